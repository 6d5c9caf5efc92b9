"""Bisection bandwidth: the least that has to be cut to part the hosts into halves.

Finding it is NP-hard in general, but networks are built of few kinds of parts.  A cut is a choice of a side for every switch;
given that, the best sides for the hosts follow.  Switches that are interchangeable (same neighbours, same hosts) are counted, not
tried one by one, and switches without hosts that are not linked to each other choose the cheaper side once their neighbours have
chosen.  If still too many choices are left, a local search gives a cut that is an upper bound, and is said to be one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Final

from dlcp.units import Rate

if TYPE_CHECKING:
    from dlcp.topology.description import Topology

_WORK: Final = 2_000_000
"""Most steps that the exact search may take: about a second."""


@dataclass(frozen=True)
class Bisection:
    """The narrowest cut into halves that was found.

    Attributes:
        rate: What it carries in each direction.
        exact: Whether it is certain that there is no narrower one.
        side: The hosts on one side; half of all, rounded down or up.
    """

    rate: Rate
    exact: bool
    side: tuple[str, ...]


@dataclass(frozen=True)
class _Kind:
    """Hosts that hang on the same nodes in the same way."""

    links: tuple[tuple[int, int], ...]  # node, rate
    nic: int
    members: tuple[str, ...]


class _Cutting:
    """The network as the search sees it: nodes 0 to n-1 with merged links, and hosts by kind."""

    def __init__(self, topology: Topology) -> None:
        graph = topology.graph
        number = {switch: index for index, switch in enumerate(graph.switches)}
        merged: dict[tuple[int, int], int] = {}
        attached: dict[str, list[tuple[int, int]]] = {host: [] for host in graph.hosts}
        nodes = len(number)
        for arc in graph.arcs[::2]:
            ends = [arc.source, arc.target]
            hosts = [end for end in ends if graph.is_host(end)]
            if not hosts:
                pair = (min(number[ends[0]], number[ends[1]]), max(number[ends[0]], number[ends[1]]))
                merged[pair] = merged.get(pair, 0) + arc.rate
            elif len(hosts) == 1:
                (switch,) = set(ends) - set(hosts)
                attached[hosts[0]].append((number[switch], arc.rate))
            else:
                # A node in the middle of the cable can be on either side, and the cable is cut once if its ends are parted.
                for host in hosts:
                    attached[host].append((nodes, arc.rate))
                nodes += 1
        self.nodes = nodes
        self.edges = [(a, b, rate) for (a, b), rate in merged.items()]
        self.near: list[list[tuple[int, int]]] = [[] for _ in range(nodes)]
        for a, b, rate in self.edges:
            self.near[a].append((b, rate))
            self.near[b].append((a, rate))
        kinds: dict[tuple[tuple[tuple[int, int], ...], int], list[str]] = {}
        for host, links in attached.items():
            kinds.setdefault((tuple(sorted(links)), int(topology.nics[host])), []).append(host)
        self.kinds = [_Kind(links, nic, tuple(members)) for (links, nic), members in kinds.items()]
        self.count = len(graph.hosts)
        self.with_hosts = {node for kind in self.kinds for node, _ in kind.links}

    def cost(self, side: Sequence[int]) -> int:
        """Returns what is cut if node i is on side ``side[i]`` and every host is where it costs least, in halves."""
        cut = sum(rate for a, b, rate in self.edges if side[a] != side[b])
        return cut + min(cost for cost, _ in self._halves(side))

    def hosts_on_one_side(self, side: Sequence[int]) -> tuple[str, ...]:
        """Returns the hosts on side 0 of the cheapest halves."""
        _, taken = min(self._halves(side))
        return tuple(host for index, members in sorted(taken) for host in self.kinds[index].members[:members])

    def _halves(self, side: Sequence[int]) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        order, total = [], 0
        for index, kind in enumerate(self.kinds):
            costs = [0, 0]
            for node, rate in kind.links:
                costs[1 - side[node]] += rate
            zero, one = min(costs[0], kind.nic), min(costs[1], kind.nic)
            order.append((zero - one, index, len(kind.members)))
            total += one * len(kind.members)
        order.sort()
        for half in {self.count // 2, (self.count + 1) // 2}:
            cost, left, taken = total, half, []
            for difference, index, members in order:
                moved = min(members, left)
                cost += moved * difference
                left -= moved
                taken.append((index, moved))
                if not left:
                    break
            yield cost, taken

    def deciders(self) -> tuple[list[int], list[int]]:
        """Parts the nodes into those whose sides have to be tried, and those that follow."""
        follow: set[int] = set()
        for node in sorted(range(self.nodes), key=lambda node: (len(self.near[node]), node)):
            if node not in self.with_hosts and not any(other in follow for other, _ in self.near[node]):
                follow.add(node)
        return [node for node in range(self.nodes) if node not in follow], sorted(follow)

    def classes(self, nodes: Sequence[int]) -> list[list[int]]:
        """Groups interchangeable nodes."""
        single: dict[int, list[tuple[int, int, int]]] = {}
        own: set[int] = set()
        for kind in self.kinds:
            if len(kind.links) == 1:
                ((node, rate),) = kind.links
                single.setdefault(node, []).append((rate, kind.nic, len(kind.members)))
            else:
                own.update(node for node, _ in kind.links)
        groups: dict[object, list[int]] = {}
        for node in nodes:
            alike: object = node if node in own else (tuple(sorted(self.near[node])), tuple(sorted(single.get(node, ()))))
            groups.setdefault(alike, []).append(node)
        return sorted(groups.values(), key=lambda group: (-len(group), group))

    def follow(self, side: list[int], nodes: Sequence[int]) -> None:
        """Puts nodes that are not linked to each other on their cheaper sides."""
        for node in nodes:
            lean = sum(rate if side[other] else -rate for other, rate in self.near[node])
            side[node] = int(lean > 0)


def bisection(topology: Topology) -> Bisection:
    """Returns the narrowest cut of ``topology`` into halves of its hosts, or one that is hardly wider."""
    cutting = _Cutting(topology)
    tried, follow = cutting.deciders()
    classes = cutting.classes(tried)
    choices = prod(len(group) + 1 for group in classes)
    exact = choices * (len(cutting.edges) + 2 * len(cutting.kinds) + 10) <= _WORK
    candidates = _all(cutting, classes, follow) if exact else _searched(cutting, _starts(topology, cutting))
    best, side = min(((cutting.cost(side), side) for side in candidates), key=lambda found: found[0])
    return Bisection(Rate(best), exact, cutting.hosts_on_one_side(side))


def _all(cutting: _Cutting, classes: Sequence[Sequence[int]], follow: Sequence[int]) -> Iterator[list[int]]:
    # The sides are alike, so that the first class needs to be tried up to half of it only.
    counts = [range(len(group) // 2 + 1 if index == 0 else len(group) + 1) for index, group in enumerate(classes)]
    for chosen in product(*counts):
        side = [0] * cutting.nodes
        for group, ones in zip(classes, chosen, strict=True):
            for node in group[:ones]:
                side[node] = 1
        cutting.follow(side, follow)
        yield side


def _starts(topology: Topology, cutting: _Cutting) -> Iterator[list[int]]:
    """Yields colourings to begin with: all on one side, and halves of the hosts by order and by distance from a few of them."""
    yield [0] * cutting.nodes
    hosts = topology.graph.hosts
    orders = [list(hosts)]
    for start in dict.fromkeys((hosts[0], hosts[len(hosts) // 2], hosts[-1])):
        far = {host: topology.routes.distance(host, start) or 0 for host in hosts}
        orders.append(sorted(hosts, key=lambda host: far[host]))
    for order in orders:
        yield _coloured(cutting, {host: int(index >= len(order) // 2) for index, host in enumerate(order)})


def _coloured(cutting: _Cutting, where: Mapping[str, int]) -> list[int]:
    lean = [0] * cutting.nodes
    for kind in cutting.kinds:
        weight = sum(2 * where[host] - 1 for host in kind.members)
        for node, rate in kind.links:
            lean[node] += weight * rate
    known = {node for node in cutting.with_hosts}
    side = [int(value > 0) for value in lean]
    # Sides spread from the switches with hosts inwards, tier by tier.
    while len(known) < cutting.nodes:
        front = [node for node in range(cutting.nodes) if node not in known and any(o in known for o, _ in cutting.near[node])]
        if not front:
            break
        for node in front:
            side[node] = int(sum(rate if side[o] else -rate for o, rate in cutting.near[node] if o in known) > 0)
        known.update(front)
    return side


def _searched(cutting: _Cutting, starts: Iterator[list[int]]) -> Iterator[list[int]]:
    """Improves each colouring by moving one switch at a time to the other side, for as long as that helps."""
    for side in starts:
        best = cutting.cost(side)
        budget = _WORK // (len(cutting.edges) + len(cutting.kinds) + 1)
        improved = True
        while improved and budget > 0:
            improved = False
            for node in range(cutting.nodes):
                budget -= 1
                side[node] ^= 1
                cost = cutting.cost(side)
                if cost < best:
                    best, improved = cost, True
                else:
                    side[node] ^= 1
        yield side


__all__ = ["Bisection", "bisection"]
