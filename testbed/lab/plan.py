"""What is built for a topology: interfaces, wires, and what each port of a switch does with what leaves there.

A port shapes, delays and loses by itself where its switch can.  Elsewhere a *wire*, which is a small relay in user space, is put
into every link that has a delay or losses, or will have them; it does both, each way for itself.  A host cannot delay what it
sends, so a switch that does delays what it sends to a host by both ways of the link: round trips are right, and one way is as
long as the whole of both.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from dlcp.errors import ConfigError
from dlcp.policy import Policy
from dlcp.topology import Arc, Topology
from dlcp.units import Rate

MAX_RATE: Final = Rate(10_000_000_000)
"""Fastest link: beyond, the timers that shape are too coarse, and no machine emulates it anyway."""
MIN_RATE: Final = Rate(8_000)
MAX_NODES: Final = 256
"""Most hosts and switches: each is a shell, and each switch a process."""
MAX_DELAY_S: Final = 10.0
NEGLIGIBLE_NS: Final = 100_000
"""Shorter delays are no reason for a wire: what is emulated takes as long by itself."""


@dataclass(frozen=True)
class PortPlan:
    """What a port of a switch does with what leaves there.

    Attributes:
        number: Its number.
        interface: In the switch's namespace.
        peer: Node at the other end.
        link: Position of the link in the topology.
        rate_bps: Bits per second.
        queue_packets: Room of each queue.
        mtu: Largest IP packet.
        delay_ns: Delay of what it sends.
        loss: Probability that what it sends is lost.
        loss_in: Probability that what it receives is lost.
    """

    number: int
    interface: str
    peer: str
    link: int
    rate_bps: int
    queue_packets: int
    mtu: int
    delay_ns: int = 0
    loss: float = 0.0
    loss_in: float = 0.0


@dataclass(frozen=True)
class End:
    """An interface: the node it is in, and its name there."""

    node: str
    interface: str


@dataclass(frozen=True)
class Wire:
    """A relay in a link.

    Attributes:
        link: Position of the link.
        ends: Its interfaces towards the link's ``a`` and ``b``, in the namespace of the wires.
        delay_ns: Each way.
        loss: Each way.
        mtu: Largest IP packet.
    """

    link: int
    ends: tuple[str, str]
    delay_ns: int
    loss: float
    mtu: int


WIRES: Final = ".wires"
"""Stands for the namespace of the wires; no node of a topology can be called so."""


@dataclass(frozen=True)
class LabPlan:
    """All of it.

    Attributes:
        topology: The network.
        pairs: Virtual links, each with the position of the link that it is a part of.
        ports: Of each switch, by number.
        wires: Relays.
    """

    topology: Topology
    pairs: tuple[tuple[End, End, int], ...]
    ports: dict[str, tuple[PortPlan, ...]]
    wires: tuple[Wire, ...] = field(default=())

    def wire(self, link: int) -> Wire | None:
        """Returns the wire in a link."""
        return next((wire for wire in self.wires if wire.link == link), None)


def interface(port: int) -> str:
    """Returns the name of the interface behind a port, in the namespace of its node."""
    return f"eth{port}"


def make_plan(topology: Topology, *, switches_delay: bool, lossy: Collection[tuple[str, str]] = ()) -> LabPlan:
    """Works out what is built.

    Args:
        topology: The network.
        switches_delay: Whether switches delay and lose.
        lossy: Links whose losses or state will be changed.
    """
    graph = topology.graph
    changing = {link for a, b in lossy for link in topology.links_between(a, b)}
    wires: list[Wire] = []
    pairs: list[tuple[End, End, int]] = []
    for index, link in enumerate(topology.links):
        there, back = graph.arcs[2 * index], graph.arcs[2 * index + 1]
        a, b = End(there.source, interface(there.port)), End(back.source, interface(back.port))
        by_switch = switches_delay and not (graph.is_host(link.a) and graph.is_host(link.b))
        delay = _nanoseconds(link.delay)
        if not by_switch and (delay >= NEGLIGIBLE_NS or link.loss or index in changing):
            ends = (f"w{index}a", f"w{index}b")
            wires.append(Wire(index, ends, delay, link.loss, link.mtu))
            pairs += [(a, End(WIRES, ends[0]), index), (End(WIRES, ends[1]), b, index)]
        else:
            pairs.append((a, b, index))
    ports = {
        switch.name: tuple(_port(topology, arc, switches_delay) for arc in graph.leaving(switch.name))
        for switch in topology.switches
    }
    return LabPlan(topology, tuple(pairs), ports, tuple(wires))


def _port(topology: Topology, arc: Arc, switches_delay: bool) -> PortPlan:
    link = topology.link(arc)
    to_host = topology.graph.is_host(arc.target)
    delay = _nanoseconds(link.delay) * (2 if to_host else 1)
    return PortPlan(
        number=arc.port,
        interface=interface(arc.port),
        peer=arc.target,
        link=arc.link,
        rate_bps=arc.rate,
        queue_packets=link.buffer.packets(link.mtu + 14),
        mtu=link.mtu,
        delay_ns=delay if switches_delay else 0,
        loss=link.loss if switches_delay else 0.0,
        # What another switch sends here it loses itself; a host cannot.
        loss_in=link.loss if switches_delay and to_host else 0.0,
    )


def _nanoseconds(delay: int) -> int:
    return round(delay / 1000)


def check(topology: Topology, policy: Policy, target: str) -> None:
    """Refuses what cannot be emulated, before anything is built.

    Raises:
        ConfigError: Too large, a rate that the kernel cannot do, a delay that no queue holds, or a policy that the switches
            cannot carry out.
    """
    source = f"topology {topology.name}"
    nodes = len(topology.hosts) + len(topology.switches)
    if nodes > MAX_NODES:
        problem = f"{len(topology.hosts)} hosts and {len(topology.switches)} switches"
        raise ConfigError(source, "hosts", problem, f"at most {MAX_NODES} hosts and switches on one machine")
    for index, link in enumerate(topology.links):
        if not MIN_RATE <= link.rate <= MAX_RATE:
            raise ConfigError(source, f"links[{index}].rate", f"{link.rate} cannot be emulated", f"{MIN_RATE} to {MAX_RATE}")
        if link.delay.seconds > MAX_DELAY_S:
            raise ConfigError(source, f"links[{index}].delay", f"{link.delay} cannot be emulated", f"at most {MAX_DELAY_S:g} s")
    for index, switch in enumerate(topology.switches):
        own = {"linux": "kernel", "bridge": "bridge", "softswitch": "softswitch", "bmv2": "bmv2"}.get(switch.target)
        if switch.target == "p4runtime" or (own is not None and own != target):
            problem = f"{switch.name} is a {switch.target!r} switch in a network of {target!r} switches"
            raise ConfigError(source, f"switches[{index}].target", problem, '"any", or the target of the experiment')
    if target in ("softswitch", "bmv2"):
        from dlcp.fabric.intent import Intent

        intent = Intent(topology, policy)
        for switch in topology.switches:
            intent.entities(switch.name)
    elif target == "kernel":
        from dlcp.fabric.export.commodity import plan as commodity_plan

        for switch in topology.switches:
            commodity_plan(topology, policy, switch.name)


__all__ = ["WIRES", "End", "LabPlan", "PortPlan", "Wire", "check", "interface", "make_plan"]
