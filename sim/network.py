"""Puts a topology into a memory: nodes, arcs, queues, thresholds, routes; and changes links between two runs."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from dlcp.fabric.treatment import NEVER
from dlcp.policy import Policy
from dlcp.topology import Arc, Link, Routes, Topology
from sim.engine.layout import (
    A_ARRIVE,
    A_DELAY,
    A_DROP_AT,
    A_EXPIRE,
    A_HOST,
    A_LEAVE,
    A_LIMIT,
    A_LIMIT_BYTES,
    A_LOSS,
    A_MARK_AT,
    A_QUANTA,
    A_REFRESH,
    A_REVERSE,
    A_SPACE,
    A_SWITCH,
    A_TARGET,
    A_TICKS,
    A_UP,
    A_WORDS,
    A_XOFF,
    A_XON,
    BY_INGRESS,
    E_KIND,
    G_ARCS,
    G_COUNT,
    K_ARRIVE,
    K_EXPIRE,
    K_FREE,
    K_PULL,
    K_REFRESH,
    N_ALPHA,
    N_CLASS,
    N_LAST,
    N_PULL,
    N_PULL_GAP,
    N_ROOM,
    N_ROUTES,
    N_SALT,
    N_SWITCH,
    N_WORDS,
)
from sim.engine.ports import flush
from sim.engine.routing import OWN
from sim.memory import Memory

ETHERNET_BYTES: Final = 14
"""What a frame has beyond its IP packet.  Preamble, checksum and gap are left out, as the softswitch does."""

SHORTEST_FRAME: Final = 64
TICKS_SHIFT: Final = 12
LOSS_ONE: Final = 1 << 40
PICOSECONDS: Final = 10**12


@dataclass(frozen=True, slots=True)
class Buffers:
    """How switches share their memory.

    Attributes:
        shared: All queues of a switch share what the buffers of its links add up to; otherwise every queue has its own.
        alpha: Share of what is left that one port may hold, if shared.
        pfc: Switches ask for pauses, by class, and hold what comes in over a link apart from all else; ``shared`` has no meaning.
        xoff: Bytes that a class may hold of what came over one link before a pause is asked for; 0 is half of the link's buffer.
        xon: Bytes at which the pause ends; 0 is half of ``xoff``.
    """

    shared: bool = False
    alpha: float = 1.0
    pfc: bool = False
    xoff: int = 0
    xon: int = 0


def thresholds(policy: Policy, link: Link) -> tuple[int, int]:
    """Returns from how many waiting packets on droppable ones are given up, and from how many ECT is marked.

    The numbers are those that ``dlcp switch deploy`` writes into switches.
    """
    room = link.buffer.packets(link.mtu + ETHERNET_BYTES)
    drop, mark = (
        NEVER if share >= 1 else min(max(round(share * room), 1), NEVER)
        for share in (policy.switch.drop_share, policy.switch.mark_share)
    )
    return drop, mark


class Network:
    """Nodes and arcs in a memory.

    Args:
        memory: Where.
        topology: The network.
        policy: Its ``[switch]`` section says when switches drop and mark.
        buffers: How switches share their memory.
        seed: Tells the hashes of flows of one run from those of another.

    Attributes:
        nodes: Position of each node's record, by name.
        arcs: Position of each arc's record, by :attr:`~dlcp.topology.Arc.number`.
    """

    def __init__(self, memory: Memory, topology: Topology, policy: Policy, buffers: Buffers | None = None, seed: int = 0) -> None:
        self.memory = memory
        self.topology = topology
        self.buffers = buffers = buffers or Buffers()
        graph = topology.graph
        self._down: set[int] = set()
        self._groups: dict[tuple[int, ...], int] = {}
        self.nodes = {name: memory.take(N_WORDS) for name in (*graph.hosts, *graph.switches)}
        self.arcs = [memory.take(A_WORDS) for _ in graph.arcs]
        for arc in graph.arcs:
            self._write_arc(arc, policy)
        for name in graph.hosts:
            node = self.nodes[name]
            memory[node + N_PULL + E_KIND] = K_PULL
            largest = max((topology.link(arc).mtu for arc in graph.leaving(name)), default=1500)
            memory[node + N_PULL_GAP] = 8 * PICOSECONDS * (largest + ETHERNET_BYTES) // max(int(topology.nics[name]), 1) + 1
        self._classify()
        for name in graph.switches:
            node = self.nodes[name]
            memory[node + N_SWITCH] = 1
            memory[node + N_SALT] = zlib.crc32(f"{seed}/{name}".encode())
            memory[node + N_ROUTES] = memory.take(len(self._classes))
            if buffers.pfc:
                memory[node + N_ROOM] = BY_INGRESS
            elif buffers.shared:
                links = (topology.link(arc) for arc in graph.leaving(name))
                memory[node + N_ROOM] = sum(link.buffer.bytes(link.mtu + ETHERNET_BYTES) for link in links)
                memory[node + N_ALPHA] = round(256 * buffers.alpha)
        self.write_routes()

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts; messages name them by position."""
        return self.topology.graph.hosts

    def _write_arc(self, arc: Arc, policy: Policy) -> None:
        memory, at = self.memory, self.arcs[arc.number]
        link = self.topology.link(arc)
        from_host = self.topology.graph.is_host(arc.source)
        memory[at + A_ARRIVE + E_KIND] = K_ARRIVE
        memory[at + A_LEAVE + E_KIND] = K_FREE
        memory[at + A_TARGET] = self.nodes[arc.target]
        memory[at + A_SWITCH] = self.nodes[arc.source]
        memory[at + A_HOST] = int(from_host)
        memory[at + A_UP] = 1
        memory[at + A_REVERSE] = self.arcs[arc.number ^ 1]
        memory[at + A_REFRESH + E_KIND] = K_REFRESH
        memory[at + A_EXPIRE + E_KIND] = K_EXPIRE
        self.set_link(arc.link, rate=arc.rate, delay=int(link.delay), loss=link.loss, arcs=(arc.number,))
        if not from_host:
            memory[at + A_DROP_AT], memory[at + A_MARK_AT] = thresholds(policy, link)
            if link.buffer.unit == "packets":
                memory[at + A_LIMIT] = link.buffer.amount
            else:
                memory[at + A_LIMIT_BYTES] = link.buffer.amount

    def set_link(
        self,
        link: int,
        *,
        rate: int | None = None,
        delay: int | None = None,
        loss: float | None = None,
        arcs: Collection[int] | None = None,
    ) -> None:
        """Changes rate (bit/s), delay (picoseconds) or loss of a link from now on, in both directions or of ``arcs`` only."""
        for number in (2 * link, 2 * link + 1) if arcs is None else arcs:
            at = self.arcs[number]
            if rate is not None:
                self.memory[at + A_TICKS] = round((8 * PICOSECONDS << TICKS_SHIFT) / rate)
            if delay is not None:
                self.memory[at + A_DELAY] = delay
            if loss is not None:
                self.memory[at + A_LOSS] = round(loss * LOSS_ONE)
        if self.buffers.pfc:
            for number in (2 * link, 2 * link + 1):
                self._write_pauses(number)

    def _write_pauses(self, number: int) -> None:
        """Writes when a class that comes over an arc is paused, and what room is left above that for what comes all the same."""
        memory, at = self.memory, self.arcs[number]
        ticks, back = memory[at + A_TICKS], memory[self.arcs[number ^ 1] + A_TICKS]
        if not ticks or not back:
            return  # the other direction is written next
        link = self.topology.links[number // 2]
        frame = link.mtu + ETHERNET_BYTES
        xoff = self.buffers.xoff or max(link.buffer.bytes(frame) // 2, 2 * frame)
        # The pause frame waits for a frame that is being sent, and takes its time; so does what the other end has begun to send.
        wait = (frame + 2 * SHORTEST_FRAME) * back // ticks
        flying = 2 * (memory[at + A_DELAY] << TICKS_SHIFT) // ticks
        memory[at + A_XOFF] = xoff
        memory[at + A_XON] = min(self.buffers.xon or xoff // 2, xoff)
        memory[at + A_SPACE] = xoff + frame + wait + flying + frame
        memory[at + A_QUANTA] = 65535 * 64 * ticks >> TICKS_SHIFT

    def bound_queues(self, size: int) -> None:
        """Lets no queue of a switch hold more than so many bytes."""
        for arc in self.topology.graph.arcs:
            if not self.topology.graph.is_host(arc.source):
                at = self.arcs[arc.number] + A_LIMIT_BYTES
                self.memory[at] = min(self.memory[at] or size, size)

    @property
    def samples(self) -> list[str]:
        """One host of each set that hangs on the same switch."""
        return list(self._classes)

    def cut(self, link: int) -> None:
        """Takes a link down: what is on it, and waits for it, is lost; neighbours with another path use that at once."""
        self._down.add(link)
        for at in (self.arcs[2 * link], self.arcs[2 * link + 1]):
            self.memory[at + A_UP] = 0
            flush(self.memory, at)  # type: ignore[arg-type]

    def mend(self, link: int) -> list[int]:
        """Puts a link up again; returns the positions of its two arcs, whose hosts may want to be woken."""
        self._down.discard(link)
        arcs = [self.arcs[2 * link], self.arcs[2 * link + 1]]
        for at in arcs:
            self.memory[at + A_UP] = 1
        return arcs

    # Routes

    def _classify(self) -> None:
        """Gives hosts that hang on the same switch by one link the same class, and every other host one of its own."""
        graph, memory = self.topology.graph, self.memory
        numbers: dict[str, int] = {}
        self._classes: list[str] = []
        """A host of each class."""
        self._edges: list[str | None] = []
        """The switch of each class whose hosts have one link."""
        self._last_links: set[int] = set()
        for host in graph.hosts:
            leaving = graph.leaving(host)
            alone = len(leaving) == 1 and not graph.is_host(leaving[0].target)
            key = leaving[0].target if alone else f"{host} itself"
            if key not in numbers:
                numbers[key] = len(self._classes)
                self._classes.append(host)
                self._edges.append(leaving[0].target if alone else None)
            node = self.nodes[host]
            memory[node + N_CLASS] = numbers[key]
            if alone:
                self._last_links.add(leaving[0].link)
                memory[node + N_LAST] = self.arcs[graph.back(leaving[0]).number]

    def write_routes(self) -> None:
        """Works out the shortest paths without the links that are down, and writes them into every switch."""
        # Hosts of one class share their way, whatever becomes of the last link of one of them.
        down = self._down - self._last_links
        routes = Routes(self.topology, down=down) if down else self.topology.routes
        for name in self.topology.graph.switches:
            table = self.memory[self.nodes[name] + N_ROUTES]
            for number, (host, edge) in enumerate(zip(self._classes, self._edges, strict=True)):
                hops = () if edge == name else routes.next_hops(name, host)
                self.memory[table + number] = OWN if edge == name else self._group(tuple(hop.number for hop in hops))

    def _group(self, arcs: tuple[int, ...]) -> int:
        if not arcs:
            return 0
        if arcs not in self._groups:
            place = self.memory.take(G_ARCS + len(arcs))
            self.memory[place + G_COUNT] = len(arcs)
            self.memory.store(place + G_ARCS, [self.arcs[arc] for arc in arcs])
            self._groups[arcs] = place
        return self._groups[arcs]

    def access(self, source: int, destination: int, entropy: int) -> Arc:
        """Returns the arc on which a host sends to another; of several the one that ``entropy`` picks.

        Raises:
            ValueError: There is no path.
        """
        hosts = self.hosts
        hops = self.topology.routes.next_hops(hosts[source], hosts[destination])
        if not hops:
            raise ValueError(f"no path leads from {hosts[source]} to {hosts[destination]}")
        return hops[entropy % len(hops)]


__all__ = ["ETHERNET_BYTES", "PICOSECONDS", "Buffers", "Network", "thresholds"]
