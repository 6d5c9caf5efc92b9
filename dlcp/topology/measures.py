"""What a network can carry in the worst case: oversubscription and fast domains.

The traffic considered is any in which no host sends or receives more than its share at a time (the hose model, Duffield et al.,
SIGCOMM 1999): every permutation of the hosts, every ring, every grouping of ranks.  It spreads evenly over the shortest paths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from dlcp.topology.cuts import Bisection, bisection
from dlcp.topology.routes import Routes

if TYPE_CHECKING:
    from dlcp.topology.description import Topology

_SLACK: Final = 1e-9


def worst_loads(routes: Routes, topology: Topology, hose: Mapping[str, float]) -> dict[int, float]:
    """Returns for each arc, by index, a bound on what any traffic can put on it.

    On a tree, and on Clos networks (leaf-spine, fat tree), some traffic reaches the bound; elsewhere it may be above the worst.

    Args:
        routes: The paths.
        topology: The network.
        hose: What each host sends, and receives, at most; the others stay silent.  The result has the same unit.
    """
    import numpy as np
    from numpy.typing import NDArray

    graph = topology.graph
    groups: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for host in hose:
        attached = sorted((arc.target, arc.metric) for arc in graph.leaving(host) if arc.link not in routes.down)
        alone = any(graph.is_host(target) for target, _ in attached)
        groups.setdefault(((host, 0),) if alone else tuple(attached), []).append(host)
    members = list(groups.values())
    weight = np.array([sum(hose[host] for host in group) for group in members])
    senders = np.zeros((len(graph.arcs), len(members)))  # largest share, over destinations, of each group of sources
    receivers = np.zeros((len(graph.arcs), len(members)))  # and over sources, of each group of destinations
    row = {node: index for index, node in enumerate((*graph.hosts, *graph.switches))}
    for there, group in enumerate(members):
        # Hosts of one group are alike up to their own links, so that one stands for all; a second one, for traffic within.
        end = group[0]
        far = {node: routes.distance(node, end) or 0 for node in graph.switches}
        entering: NDArray[np.float64] = np.zeros((len(row), len(members)))
        for here, other in enumerate(members):
            start = other[0] if here != there else other[-1]
            far[start] = routes.distance(start, end) or 0
            entering[row[start], here] = float(far[start] > 0)
        steps: dict[int, list[tuple[int, int, int, float]]] = {}
        for node, distance in far.items():
            if distance:
                hops = routes.next_hops(node, end)
                steps.setdefault(-distance, []).extend((row[node], arc.number, row[arc.target], 1 / len(hops)) for arc in hops)
        # Every hop leads nearer, so that nodes at one distance do not feed each other.
        for _, taken in sorted(steps.items()):
            sources, numbers, targets, split = (list(column) for column in zip(*taken, strict=True))
            part = entering[sources] * np.array(split)[:, None]
            senders[numbers] = np.maximum(senders[numbers], part)
            receivers[numbers, there] = part.max(axis=1)
            np.add.at(entering, targets, part)
    bounds = np.minimum(senders @ weight, receivers @ weight)
    loads = {arc.number: float(bounds[arc.number]) for arc in graph.arcs}
    total = float(weight.sum())
    for here, group in enumerate(members):
        first, last = (_own(routes, topology, host) for host in (group[0], group[-1]))
        for host in group:
            most = min(hose[host], total - hose[host])
            for out, alike, another in zip(_own(routes, topology, host), first, last, strict=True):
                outwards = float(np.maximum(receivers[alike], receivers[another]) @ weight)
                inwards = float(np.maximum(senders[alike ^ 1], senders[another ^ 1]) @ weight)
                loads[out] = min(outwards, most * float(max(senders[alike, here], senders[another, here])))
                loads[out ^ 1] = min(inwards, most * float(max(receivers[alike ^ 1, here], receivers[another ^ 1, here])))
    return loads


def _own(routes: Routes, topology: Topology, host: str) -> list[int]:
    """Returns the arcs out of a host such that those of hosts of one group correspond."""
    arcs = [arc for arc in topology.graph.leaving(host) if arc.link not in routes.down]
    return [arc.number for arc in sorted(arcs, key=lambda arc: (arc.target, arc.metric, arc.port))]


def oversubscription(topology: Topology) -> float:
    """Returns by how much the worst traffic that the hosts' interfaces can send overloads a link: 1 or less is non-blocking."""
    loads = worst_loads(topology.routes, topology, {host: float(rate) for host, rate in topology.nics.items()})
    rates = {arc.number: topology.links[arc.link].rate for arc in topology.graph.arcs}
    return max((load / rates[index] for index, load in loads.items()), default=0.0)


@dataclass(frozen=True)
class FastDomains:
    """Ranks that reach each other at full speed.

    Attributes:
        domains: A partition of the ranks, each part ascending, ordered by their first ranks.
        boundaries: Positions of the links that were found too slow.
    """

    domains: tuple[tuple[int, ...], ...]
    boundaries: tuple[int, ...]


def fast_domains(topology: Topology, slowdown: float = 1.5) -> FastDomains:
    """Finds groups of ranks such that no traffic within a group is held up by a link.

    The typical rank's share of its host's interface is the yardstick.  Links at which worst-case traffic gets less than
    1/``slowdown`` of it are set aside, the slowest first, until within every group, on the remaining links, all get that much.

    Args:
        topology: The network.
        slowdown: How many times slower than typical is still fast; above 1.
    """
    if not slowdown > 1:
        raise ValueError(f"slowdown {slowdown}; it has to be above 1")
    graph = topology.graph
    ranks = {host.name: len(host.ranks) for host in topology.hosts if host.ranks}
    if not ranks:
        return FastDomains((), ())
    typical = median(topology.nics[host] / ranks[host] for host in topology.places)
    aside: set[int] = set()
    while True:
        routes, parts = Routes(topology, aside), _islands(topology, list(ranks), aside)
        loads: dict[int, float] = {}
        for part in parts:
            for index, load in worst_loads(routes, topology, {host: typical * ranks[host] for host in part}).items():
                loads[index] = loads.get(index, 0.0) + load
        slowness: dict[int, float] = {}
        for index, load in loads.items():
            link = graph.arcs[index].link
            if load > 0:
                slowness[link] = max(slowness.get(link, 0.0), load / graph.arcs[index].rate)
        worst = max(slowness.values(), default=0.0)
        if worst <= slowdown * (1 + _SLACK):
            break
        aside |= {link for link, value in slowness.items() if value >= worst * (1 - _SLACK)}
    domains = [sorted(rank for host in part for rank in topology.host(host).ranks) for part in parts]
    return FastDomains(tuple(sorted(map(tuple, domains))), tuple(sorted(aside)))


def _islands(topology: Topology, hosts: Sequence[str], down: Collection[int]) -> list[list[str]]:
    """Parts ``hosts`` into groups in which each reaches each by the links that are not ``down``.

    A host on two bodies of switches joins one of them, the one with more hosts; it does not join the two, as it does not forward.
    """
    graph = topology.graph
    body: dict[str, int] = {}
    for number, start in enumerate(graph.switches):
        front = [start] if start not in body else []
        body.setdefault(start, number)
        while front:
            for arc in graph.leaving(front.pop()):
                if arc.link not in down and arc.target not in body and not graph.is_host(arc.target):
                    body[arc.target] = body[start]
                    front.append(arc.target)
    near = {host: [arc.target for arc in graph.leaving(host) if arc.link not in down] for host in hosts}
    left, groups = list(hosts), []
    while left:
        on_body = Counter(number for host in left for number in {body[node] for node in near[host] if node in body})
        if on_body:
            most = max(on_body, key=lambda number: (on_body[number], -number))
            group = [host for host in left if any(body.get(node) == most for node in near[host])]
        else:
            group = left[:1]
            for host in left[1:]:  # what is left are hosts that are linked to each other
                if all(other in near[host] for other in group):
                    group.append(host)
        groups.append(group)
        done = set(group)
        left = [host for host in left if host not in done]
    return groups


__all__ = ["Bisection", "FastDomains", "bisection", "fast_domains", "oversubscription", "worst_loads"]
