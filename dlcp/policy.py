"""The policy: how gradients are tagged, how much of them may be lost, and how the transport behaves.

One policy holds for all ranks of a job; they compare its digest when they meet.  The defaults follow DLCP (arXiv 2008.08445)
where it names values: seven layer classes, a protected and a droppable share of the packets of each, and a loss bound per
message.
"""

from __future__ import annotations

from typing import ClassVar, Final

from dlcp.errors import ConfigError
from dlcp.schema import Document, Record, refuse, section, setting
from dlcp.schema_kinds import Choice, Either, Flag, Integer, Items, Number
from dlcp.wire.header import CONTROL_CLASS, HEADER_BYTES

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

ECN_BITS: Final = {"not-ect": 0b00, "ect1": 0b01, "ect0": 0b10}
"""Codepoints of RFC 3168, section 5."""

MIN_PAYLOAD_BYTES: Final = 256
MAX_MTU: Final = 65_535
_IPV4_BYTES: Final = 20
_IPV6_BYTES: Final = 40
_UDP_BYTES: Final = 8
_PAYLOAD_ALIGNMENT: Final = 8

_ECN = Choice(tuple(sorted(ECN_BITS)))


@section
class Classes:
    """Priority classes and how they stand in the IP header."""

    count: int = setting(
        Integer(1, 7),
        default=7,
        doc="Layer classes in use: class 0 is least urgent (back layers), class count-1 most (front layers).",
    )
    dscp: tuple[int, ...] = setting(
        Items(Integer(0, 63), 8, 8),
        default=(0, 8, 16, 24, 32, 40, 48, 56),
        doc="DSCP of classes 0 to 7; class 7 carries control, retransmissions and trimmed headers. "
        "The default is the class selectors (RFC 2474), which strict-priority switches map to queues as they come.",
    )
    ecn_protected: str = setting(
        _ECN,
        default="ect0",
        doc="ECN field of protected packets. With ECT a switch marks them where it would drop others (RFC 3168).",
    )
    ecn_droppable: str = setting(
        _ECN,
        default="not-ect",
        doc="ECN field of droppable packets. Not-ECT lets a switch with WRED drop them first.",
    )


@section
class Protection:
    """Which packets of a message no switch should drop selectively."""

    share: float = setting(
        Number(0, 1),
        default=0.25,
        doc="Share of the packets that are protected: those with the largest mean |gradient| relative to their tensor.",
    )
    sample: int = setting(
        Integer(1, 1_000_000),
        default=8,
        doc="Every how many elements one is looked at to estimate a packet's magnitude; 1 looks at all.",
    )


@section
class Loss:
    """How much of a message may be missing, and what happens to that part."""

    push: float = setting(
        Number(0, 0.5),
        default=0.05,
        doc="Largest share of a contribution (towards the reduction) that may be missing; 0 makes it reliable.",
    )
    push_by_class: tuple[float, ...] = setting(
        Items(Number(0, 0.5), 0, 7),
        default=(),
        doc="The same for each layer class, class 0 first, where some bear less: of a class at most this share of a message is "
        "missing, and never more than push. Classes beyond the end of the list have push.",
    )
    bound: str = setting(
        Choice(("fixed", "adaptive")),
        default="fixed",
        doc="fixed: push and push_by_class as they stand. adaptive: they are ceilings, and the bound of each step lies between 0 "
        "and them, as far as the gradients' own noise hides the noise that loss adds.",
    )
    bound_window: int = setting(
        Integer(1, 1_000_000),
        default=32,
        doc='Over how many backward passes bound = "adaptive" averages signal and noise.',
    )
    evenness: float = setting(
        Number(0, 1000),
        default=2.0,
        doc="How many times the mean missing share of the other senders one sender's may be, on a moving average; what exceeds "
        "it is asked for again. 0 lets one sender lose all that push allows while others lose nothing.",
    )
    pull: float = setting(
        Number(0, 0.5),
        default=0.0,
        doc="Largest share of a result (on its way back) that may be missing. Above 0 replicas drift apart, so that resync_steps "
        "is needed.",
    )
    resync_steps: int = setting(
        Integer(0, 1_000_000_000),
        default=0,
        doc="Every how many steps the replicas are made equal again; above 0 exactly if pull is above 0.",
    )
    compensation: str = setting(
        Choice(("error-feedback", "zero", "rescale")),
        default="error-feedback",
        doc="What did not arrive is added to the next step (error-feedback), forgotten (zero), or made up for by dividing by the "
        "number of contributions that arrived (rescale).",
    )

    def check(self) -> None:
        if self.pull > 0 and self.resync_steps == 0:
            raise refuse(
                "resync_steps", f"0 with pull = {self.pull:g} lets replicas drift for ever", "a whole number above 0, or pull = 0"
            )
        if self.pull == 0 and self.resync_steps > 0:
            raise refuse("resync_steps", f"{self.resync_steps} without pull loss has nothing to do", "0, or pull above 0")


@section
class Grace:
    """How long a message within its loss bound still waits for the rest."""

    factor: float = setting(
        Number(0, 1000),
        default=8.0,
        doc="Silence, in smoothed inter-arrival times of the message, after which the rest counts as lost.",
    )
    floor_ms: float = setting(
        Number(0, 60_000, "ms"),
        default=5.0,
        doc="Shortest such silence.",
    )


@section
class Congestion:
    """Congestion control of each path."""

    algorithm: str = setting(
        Choice(("dctcp", "delay", "fixed")),
        default="dctcp",
        doc="dctcp reacts to the share of ECN marks (RFC 8257), delay keeps queueing near target_delay_us, fixed sends at "
        "rate_mbps.",
    )
    rate_mbps: float = setting(
        Number(0, 1_000_000, "Mbit/s"),
        default=0.0,
        doc="Rate of the fixed algorithm to each peer, which needs it above 0; the others do not look at it.",
    )
    initial_window_packets: int = setting(
        Integer(1, 65_535),
        default=16,
        doc="Packets that may be in flight to a peer before anything is known about the path.",
    )
    max_window_bytes: int = setting(
        Integer(4 * KIB, 2 * GIB, "bytes"),
        default=8 * MIB,
        doc="Most bytes in flight to one peer.",
    )
    target_delay_us: float = setting(
        Number(0, 10_000_000, "us", above=True),
        default=500.0,
        doc="Queueing delay that the delay algorithm aims at.",
    )
    gain: float = setting(
        Number(0, 1, above=True),
        default=0.0625,
        doc="Weight of the newest sample in the moving average of congestion (g of RFC 8257, section 3.3).",
    )

    def check(self) -> None:
        if self.algorithm == "fixed" and self.rate_mbps == 0:
            raise refuse("rate_mbps", '0 with algorithm = "fixed" would never send', "a number above 0 Mbit/s")


@section
class Timeouts:
    """How long silence is borne."""

    connect_s: float = setting(
        Number(0, 86_400, "s", above=True),
        default=30.0,
        doc="Until every rank has shown up and answers.",
    )
    peer_s: float = setting(
        Number(0, 86_400, "s", above=True),
        default=10.0,
        doc="Silence of a peer that is being waited for, after which it counts as lost.",
    )
    operation_s: float = setting(
        Number(0, 604_800, "s", above=True),
        default=600.0,
        doc="Until a collective has finished though all peers are alive.",
    )
    probe_min_ms: float = setting(
        Number(0, 60_000, "ms", above=True),
        default=2.0,
        doc="Shortest time after which an unanswered control packet is sent again.",
    )
    probe_max_ms: float = setting(
        Number(0, 60_000, "ms", above=True),
        default=200.0,
        doc="Longest such time; it doubles up to here. Below peer_s, or a live peer could not answer in time.",
    )

    def check(self) -> None:
        if self.probe_min_ms > self.probe_max_ms:
            raise refuse(
                "probe_min_ms", f"{self.probe_min_ms:g} exceeds probe_max_ms = {self.probe_max_ms:g}", "at most probe_max_ms"
            )
        if self.probe_max_ms >= 1000 * self.peer_s:
            raise refuse(
                "probe_max_ms",
                f"{self.probe_max_ms:g} ms is not below peer_s = {self.peer_s:g} s",
                f"a number below {1000 * self.peer_s:g} ms",
            )


@section
class Wire:
    """What goes into a datagram."""

    mtu: str | int = setting(
        Either((Choice(("auto",)), Integer(576, 65_535, "bytes"))),
        default="auto",
        doc="Largest IP packet; auto takes the interface's.",
    )
    dtype: str = setting(
        Choice(("float32", "float16", "bfloat16")),
        default="float32",
        doc="Element type on the wire; sums are kept in float32 or wider.",
    )
    message_bytes: int = setting(
        Integer(MIN_PAYLOAD_BYTES, GIB, "bytes"),
        default=4 * MIB,
        doc="Largest message, at least one packet; longer parts of a tensor are cut into several. Where packets are small, "
        "messages are shorter: one report must be able to list all packets of a message.",
    )

    def datagram_mtu(self, interface_mtu: int) -> int:
        """Resolves ``mtu`` against the MTU of the interface in use: a configured number stands, auto is capped."""
        return min(interface_mtu, MAX_MTU) if isinstance(self.mtu, str) else self.mtu

    def check(self) -> None:
        if isinstance(self.mtu, int):
            _check_message(self.message_bytes, _payload(self.mtu, _IPV4_BYTES))


@section
class Memory:
    """Bounds on memory."""

    early_bytes: int = setting(
        Integer(64 * KIB, 1024 * GIB, "bytes"),
        default=256 * MIB,
        doc="Data that may be held for collectives that this rank has not called yet.",
    )
    receive_buffer_bytes: int = setting(
        Integer(4 * KIB, GIB - 1, "bytes"),
        default=32 * MIB,
        doc="Socket receive buffer that is asked for; the kernel may grant less (net.core.rmem_max).",
    )


@section
class Switches:
    """What switches do when queues grow, and how they spread traffic over equal paths."""

    mark_share: float = setting(
        Number(0, 1),
        default=0.2,
        doc="Share of a queue's buffer above which packets with ECT are marked (CE); 1 marks none.",
    )
    drop_share: float = setting(
        Number(0, 1),
        default=0.4,
        doc="Share of a queue's buffer above which droppable packets are given up; the rest is for protected ones. 1 gives up "
        "none before the queue is full.",
    )
    overload: str = setting(
        Choice(("drop", "trim")),
        default="trim",
        doc="What is done to droppable packets above drop_share: drop them, or trim them to their headers and forward those in "
        "class 7, so that the receiver knows at once. Switches that cannot trim drop.",
    )
    spray: str = setting(
        Choice(("round-robin", "random", "hash")),
        default="round-robin",
        doc="How the job's packets spread over equal paths: packet by packet in turn or at random, or by a hash of the flow as "
        "ordinary traffic does.",
    )
    stamp_depth: bool = setting(
        Flag(),
        default=True,
        doc="Whether switches write the deepest queue on the path into the header.",
    )
    trust_dscp: bool = setting(
        Flag(),
        default=False,
        doc="Whether ordinary traffic gets the queue of the class whose DSCP it bears; otherwise all of it shares the least "
        "urgent one, so that no one but the job claims urgency.",
    )
    isolation: str = setting(
        Choice(("none", "demote", "refuse")),
        default="none",
        doc="What happens to the packets of jobs that are not permitted (dlcp switch permit): nothing, as all are; they are "
        "treated as ordinary traffic; they are dropped.",
    )


@section
class Policy(Document):
    """All of it; every part has a default, so ``Policy()`` is a working policy."""

    title: ClassVar[str] = "DLCP policy. Every key is optional; what stands here are the defaults."

    classes: Classes = setting(Record(Classes), default=Classes(), doc="Priority classes and how they stand in the IP header.")
    protection: Protection = setting(Record(Protection), default=Protection(), doc="Which packets are protected.")
    loss: Loss = setting(Record(Loss), default=Loss(), doc="How much may be missing, and what happens to that part.")
    grace: Grace = setting(Record(Grace), default=Grace(), doc="How long a message within its bound waits for the rest.")
    congestion: Congestion = setting(Record(Congestion), default=Congestion(), doc="Congestion control of each path.")
    timeouts: Timeouts = setting(Record(Timeouts), default=Timeouts(), doc="How long silence is borne.")
    wire: Wire = setting(Record(Wire), default=Wire(), doc="What goes into a datagram.")
    memory: Memory = setting(Record(Memory), default=Memory(), doc="Bounds on memory.")
    switch: Switches = setting(
        Record(Switches), default=Switches(), doc="What switches do when queues grow, and how they spread traffic."
    )

    def tos(self, priority: int, protected: bool) -> int:
        """Returns the IP ToS byte, DSCP << 2 | ECN, of a packet of class ``priority`` (0 to 7).

        Raises:
            ValueError: No such class.
        """
        if not 0 <= priority <= CONTROL_CLASS:
            raise ValueError(f"class {priority}; classes are 0 to {CONTROL_CLASS}")
        ecn = self.classes.ecn_protected if protected else self.classes.ecn_droppable
        return self.classes.dscp[priority] << 2 | ECN_BITS[ecn]

    def payload_bytes(self, mtu: int, ipv6: bool = False) -> int:
        """Returns the most payload bytes of a data packet on a path of ``mtu`` bytes: a multiple of 8.

        Raises:
            ConfigError: Fewer than 256 bytes are left, or ``wire.message_bytes`` is less than one packet.
        """
        payload = _payload(mtu, _IPV6_BYTES if ipv6 else _IPV4_BYTES)
        source = f"MTU {mtu}"
        if payload < MIN_PAYLOAD_BYTES:
            least = (_IPV6_BYTES if ipv6 else _IPV4_BYTES) + _UDP_BYTES + HEADER_BYTES + MIN_PAYLOAD_BYTES
            raise ConfigError(
                source,
                "wire.mtu",
                f"leaves {max(payload, 0)} bytes of payload, {MIN_PAYLOAD_BYTES} are needed",
                f"an MTU of {least} or more",
            )
        try:
            _check_message(self.wire.message_bytes, payload)
        except ConfigError as error:
            raise ConfigError(source, f"wire.{error.key}", error.problem, error.accepted) from None
        return payload


def _payload(mtu: int, ip_bytes: int) -> int:
    room = min(mtu, 65_535) - ip_bytes - _UDP_BYTES - HEADER_BYTES
    return room // _PAYLOAD_ALIGNMENT * _PAYLOAD_ALIGNMENT


def _check_message(message_bytes: int, payload: int) -> None:
    """Refuses messages shorter than a packet."""
    if message_bytes < payload:
        raise refuse("message_bytes", f"{message_bytes} bytes do not fill one packet", f"at least {payload} bytes at this MTU")
