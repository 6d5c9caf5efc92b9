"""What a switch without P4 has to do, whoever made it: the part of topology and policy that eight queues and ECN can enforce.

DSCP says the class, which is a strict-priority queue.  ECN says the protection: above a threshold packets without ECT are
dropped and those with ECT are marked.  That is DLCP's path for commodity switches (arXiv 2008.08445): trimming, spraying by
packet and the depth stamp need P4."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from dlcp.errors import ConfigError
from dlcp.policy import ECN_BITS, Policy
from dlcp.topology import Topology

ETHERNET_BYTES: Final = 14
CLASSES: Final = 8


@dataclass(frozen=True)
class PortPlan:
    """What one port does.

    Attributes:
        number: Port of the topology.
        interface: What the switch calls it.
        peer: Node at the other end.
        rate_bps: Bits per second.
        mtu: Largest IP packet in bytes.
        limit_bytes: Room of each queue.
        mark_bytes: Depth of a queue from which ECT packets are marked; None: never.
        drop_bytes: Depth of a queue from which droppable packets are dropped; None: never.
    """

    number: int
    interface: str
    peer: str
    rate_bps: int
    mtu: int
    limit_bytes: int
    mark_bytes: int | None
    drop_bytes: int | None


@dataclass(frozen=True)
class SwitchPlan:
    """What one switch does.

    Attributes:
        topology: Name of the network.
        switch: Name of the switch.
        ports: Its ports, by number.
        dscp: DSCP of classes 0 to 7.
        queue_of: Class of every DSCP, 0 to 63; what no class has is in class 0.
        protected: ECN codepoint of protected packets, by name.
        droppable: ECN codepoint of droppable packets, by name.
    """

    topology: str
    switch: str
    ports: tuple[PortPlan, ...]
    dscp: tuple[int, ...]
    queue_of: tuple[int, ...]
    protected: str
    droppable: str

    @property
    def droppable_bits(self) -> int:
        """ECN codepoint of droppable packets."""
        return ECN_BITS[self.droppable]


def plan(topology: Topology, policy: Policy, switch: str, pattern: str = "port{port}") -> SwitchPlan:
    """Returns what ``switch`` has to do; ``pattern`` makes names of interfaces (:func:`interface`).

    Raises:
        ConfigError: There is no such switch, it has no ports, or the policy asks for what only P4 can tell apart.
    """
    names = [each.name for each in topology.switches]
    if switch not in names:
        raise ConfigError(
            f"topology {topology.name}", "switches", f"there is no switch {switch!r}", ", ".join(names) or "a switch"
        )
    classes = policy.classes
    if classes.ecn_droppable == classes.ecn_protected:
        problem = f"is {classes.ecn_droppable!r} like ecn_protected, and a switch without P4 has nothing else to tell packets by"
        raise ConfigError("policy", "classes.ecn_droppable", problem, 'another codepoint, such as "not-ect"')
    if classes.ecn_droppable != "not-ect":
        problem = f"is {classes.ecn_droppable!r}, and switches without P4 drop packets without ECT only"
        raise ConfigError("policy", "classes.ecn_droppable", problem, '"not-ect"')
    ports = []
    for arc in topology.graph.leaving(switch):
        link = topology.link(arc)
        limit = link.buffer.bytes(link.mtu + ETHERNET_BYTES)
        ports.append(
            PortPlan(
                number=arc.port,
                interface=interface(pattern, arc.port),
                peer=arc.target,
                rate_bps=int(link.rate),
                mtu=link.mtu,
                limit_bytes=limit,
                mark_bytes=_threshold(policy.switch.mark_share, limit),
                drop_bytes=_threshold(policy.switch.drop_share, limit),
            )
        )
    if not ports:
        raise ConfigError(f"topology {topology.name}", f"switches.{switch}", "has no links", "a switch with links")
    if len({port.interface for port in ports}) < len(ports):
        raise ConfigError("(command line)", "--interface", f"{pattern!r} gives several ports one name", "a pattern with {port}")
    return SwitchPlan(
        topology=topology.name,
        switch=switch,
        ports=tuple(ports),
        dscp=classes.dscp,
        queue_of=tuple(_class(classes.dscp, dscp) for dscp in range(64)),
        protected=classes.ecn_protected,
        droppable=classes.ecn_droppable,
    )


def interface(pattern: str, port: int) -> str:
    """Returns the name of an interface: ``{port}`` is its number, ``{port0}`` one less, ``{port0x4}`` four times that.

    Raises:
        ConfigError: What comes out is no name of an interface.
    """
    name = pattern
    for word, value in (("{port}", port), ("{port0}", port - 1), ("{port0x4}", 4 * (port - 1))):
        name = name.replace(word, str(value))
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_./-]{0,63}", name) is None:
        accepted = "a name with {port}, {port0} or {port0x4} in it, such as Ethernet{port0x4}"
        raise ConfigError("(command line)", "--interface", f"{pattern!r} makes no name", accepted)
    return name


def ramp(port: PortPlan) -> tuple[int, int] | None:
    """Returns the thresholds of a WRED profile that has but one pair for marking and dropping: from where, and from where always.

    Between them the probability rises; so droppable packets are never dropped, and protected ones never marked, below the
    lower one. None if the policy wants neither."""
    both = [threshold for threshold in (port.mark_bytes, port.drop_bytes) if threshold is not None]
    return (min(both), max(both)) if both else None


def _threshold(share: float, limit: int) -> int | None:
    return None if share >= 1 else max(round(share * limit), 1)


def _class(dscp_of: tuple[int, ...], dscp: int) -> int:
    """Of classes with the same DSCP the most urgent one."""
    return max((priority for priority, each in enumerate(dscp_of) if each == dscp), default=0)


__all__ = ["CLASSES", "ETHERNET_BYTES", "PortPlan", "SwitchPlan", "interface", "plan", "ramp"]
