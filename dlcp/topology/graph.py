"""The graph of a topology: numbered ports, and the two directions of every link."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from dlcp.schema import refuse
from dlcp.topology.addresses import AUTO, unclaimed

if TYPE_CHECKING:
    from dlcp.topology.description import Link

FIRST_HOST_PORT: Final = 0
FIRST_SWITCH_PORT: Final = 1
"""Lowest number that is chosen: a host's first interface is ``eth0``; P4 and OpenFlow switches count from 1."""


class Arc(NamedTuple):
    """One direction of a link.

    Attributes:
        number: ``2 * link`` from its end ``a`` to its end ``b``, ``2 * link + 1`` back.
        link: Position of the link in the description.
        source: Node that sends.
        port: Port of ``source`` that leads here.
        target: Node that receives.
        target_port: Port of ``target`` at which it arrives.
        metric: Cost for routing.
        rate: Bits per second, no more than a host at one of its ends sends or receives.
    """

    number: int
    link: int
    source: str
    port: int
    target: str
    target_port: int
    metric: int
    rate: int


def number_ports(links: Sequence[Link], hosts: Iterable[str]) -> list[tuple[int, int]]:
    """Returns the port numbers of both ends of every link.

    Raises:
        ConfigError: A port is given twice.
    """
    taken: dict[tuple[str, int], str] = {}
    for index, link in enumerate(links):
        for end, node, port in (("a_port", link.a, link.a_port), ("b_port", link.b, link.b_port)):
            if isinstance(port, str):
                continue
            where = f"links[{index}].{end}"
            if (node, port) in taken:
                problem = f"port {port} of {node} is in use by {taken[node, port]}"
                raise refuse(where, problem, "a port of its own, or auto")
            taken[node, port] = where
    given: dict[str, list[int]] = {}
    for node, port in taken:
        given.setdefault(node, []).append(port)
    host_names = set(hosts)
    free = {
        node: unclaimed(given.get(node, ()), count(FIRST_HOST_PORT if node in host_names else FIRST_SWITCH_PORT))
        for node in dict.fromkeys(node for link in links for node in (link.a, link.b))
    }

    def chosen(node: str, port: str | int) -> int:
        return next(free[node]) if port == AUTO else int(port)

    return [(chosen(link.a, link.a_port), chosen(link.b, link.b_port)) for link in links]


class Graph:
    """Nodes and arcs.

    Attributes:
        hosts: Names, in the order of the description.
        switches: Likewise.
        arcs: Two for every link, by :attr:`Arc.number`.
    """

    def __init__(self, hosts: Iterable[str], switches: Iterable[str], links: Sequence[Link], nics: Mapping[str, int]) -> None:
        self.hosts = tuple(hosts)
        self.switches = tuple(switches)
        self._is_host = frozenset(self.hosts)
        arcs: list[Arc] = []
        for index, (link, (a_port, b_port)) in enumerate(zip(links, number_ports(links, self.hosts), strict=True)):
            rate = int(min(link.rate, nics.get(link.a, link.rate), nics.get(link.b, link.rate)))
            arcs.append(Arc(2 * index, index, link.a, a_port, link.b, b_port, link.metric, rate))
            arcs.append(Arc(2 * index + 1, index, link.b, b_port, link.a, a_port, link.metric, rate))
        self.arcs = tuple(arcs)
        leaving: dict[str, list[Arc]] = {node: [] for node in (*self.hosts, *self.switches)}
        for arc in arcs:
            leaving[arc.source].append(arc)
        self._leaving = {node: tuple(sorted(out, key=lambda arc: arc.port)) for node, out in leaving.items()}

    def leaving(self, node: str) -> tuple[Arc, ...]:
        """Returns the arcs that leave ``node``, by port number; KeyError if there is no such node."""
        return self._leaving[node]

    def neighbours(self, node: str) -> tuple[str, ...]:
        """Returns the nodes that a link joins to ``node``, each once, by the lowest port that leads there."""
        return tuple(dict.fromkeys(arc.target for arc in self._leaving[node]))

    def is_host(self, node: str) -> bool:
        """Whether ``node`` is a host."""
        return node in self._is_host

    def arc(self, source: str, port: int) -> Arc:
        """Returns the arc that leaves ``source`` through ``port``; KeyError if there is none."""
        for arc in self._leaving[source]:
            if arc.port == port:
                return arc
        raise KeyError(f"{source} has no port {port}")

    def back(self, arc: Arc) -> Arc:
        """Returns the other direction of the same link."""
        return self.arcs[arc.number ^ 1]

    def tiers(self) -> dict[str, int]:
        """Returns the tier of every node: 0 for hosts, else the number of links to the nearest host."""
        tier = dict.fromkeys(self.hosts, 0)
        front = list(self.hosts)
        while front:
            reached = []
            for node in front:
                for arc in self._leaving[node]:
                    if arc.target not in tier:
                        tier[arc.target] = tier[node] + 1
                        reached.append(arc.target)
            front = reached
        return tier

    def reached_from(self, host: str) -> set[str]:
        """Returns the nodes that packets of ``host`` can get to; hosts do not forward."""
        found, front = {host}, [host]
        while front:
            for arc in self._leaving[front.pop()]:
                if arc.target not in found:
                    found.add(arc.target)
                    if arc.target not in self._is_host:
                        front.append(arc.target)
        return found

    def parted(self) -> tuple[str, str] | None:
        """Returns a host and a node that its packets cannot get to; None if everything reaches everything."""
        first = self.hosts[0]
        reached = self.reached_from(first)
        for node in (*self.hosts, *self.switches):
            if node not in reached:
                return first, node
        # Usually all hosts hang on one body of switches; then what one of them reaches all of them reach.
        body = next((arc.target for arc in self._leaving[first] if not self.is_host(arc.target)), None)
        if body is not None:
            fabric, front = {body}, [body]
            while front:
                for arc in self._leaving[front.pop()]:
                    if arc.target not in fabric and not self.is_host(arc.target):
                        fabric.add(arc.target)
                        front.append(arc.target)
            if all(any(arc.target in fabric for arc in self._leaving[host]) for host in self.hosts):
                return None
        for host in self.hosts:
            reached = self.reached_from(host)
            for other in self.hosts:
                if other not in reached:
                    return host, other
        return None


__all__ = ["Arc", "Graph", "number_ports"]
