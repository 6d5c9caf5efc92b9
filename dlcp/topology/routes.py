"""Paths: next hops, all shortest paths, and how the traffic of a pair spreads over them.

A path costs the sum of its links' metrics.  Hosts send and receive but do not forward.  Where several next hops cost the same,
all are used, and traffic is taken to spread evenly over them at every node, as sprayed packets do, and many hashed flows.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from dlcp.topology.graph import Arc

if TYPE_CHECKING:
    from dlcp.topology.description import Topology


class Routes:
    """Shortest paths between the nodes of a topology.

    All methods raise KeyError for a name that is not one of a host, or of a node, as the argument asks for.

    Args:
        topology: The network.
        down: Positions of links that are out of use.
    """

    def __init__(self, topology: Topology, down: Collection[int] = ()) -> None:
        self._topology = topology
        self._graph = topology.graph
        self.down = frozenset(down)
        self._fabric: dict[str, list[Arc]] = {
            switch: [arc for arc in self._up(switch) if not self._graph.is_host(arc.target)] for switch in self._graph.switches
        }
        self._distances: dict[str, dict[str, int]] = {}
        self._hops: dict[tuple[str, str], tuple[Arc, ...]] = {}
        self._last: dict[str, dict[str, int]] = {}

    def distance(self, node: str, host: str) -> int | None:
        """Returns the cost of the shortest paths from ``node`` to ``host``; None if there is no path."""
        self._check(node, host)
        if node == host:
            return 0
        costs = (
            [self._step(arc, host) for arc in self._up(node)] if self._graph.is_host(node) else [self._from_switch(node, host)]
        )
        least = min(costs, default=math.inf)
        return None if math.isinf(least) else int(least)

    def next_hops(self, node: str, host: str) -> tuple[Arc, ...]:
        """Returns the arcs out of ``node`` on the shortest paths to ``host``, by port; none if there is no path."""
        self._check(node, host)
        if node == host:
            return ()
        if self._graph.is_host(node):
            costs = [(self._step(arc, host), arc) for arc in self._up(node)]
            least = min((cost for cost, _ in costs), default=math.inf)
            return () if math.isinf(least) else tuple(arc for cost, arc in costs if cost == least)
        least = self._from_switch(node, host)
        if math.isinf(least):
            return ()
        access = self._access(host)
        if len(access) == 1 and node not in access:
            return self._switch_hops(node, next(iter(access)))
        found: set[Arc] = set()
        for switch, metric in access.items():
            if switch == node:
                if metric == least:
                    found.update(arc for arc in self._up(node) if arc.target == host and arc.metric == metric)
            elif self._between(node, switch) + metric == least:
                found.update(self._switch_hops(node, switch))
        return tuple(sorted(found, key=lambda arc: arc.port))

    def next_ports(self, node: str, host: str) -> tuple[int, ...]:
        """Returns the ports of :meth:`next_hops`."""
        return tuple(arc.port for arc in self.next_hops(node, host))

    def table(self, switch: str) -> dict[str, tuple[int, ...]]:
        """Returns the forwarding table of a switch: the ports towards each host."""
        return {host: self.next_ports(switch, host) for host in self._graph.hosts}

    def paths(self, a: str, b: str) -> Iterator[tuple[Arc, ...]]:
        """Yields every shortest path from host ``a`` to host ``b``, in the order of their ports; there may be very many."""
        stack: list[tuple[Arc, ...]] = [(arc,) for arc in reversed(self.next_hops(a, b))]
        while stack:
            path = stack.pop()
            node = path[-1].target
            if node == b:
                yield path
            else:
                stack += [(*path, arc) for arc in reversed(self.next_hops(node, b))]

    def path_count(self, a: str, b: str) -> int:
        """Returns the number of shortest paths, without walking them."""
        counts = {a: 1}
        for node in self._outwards(a, b):
            for arc in self.next_hops(node, b):
                counts[arc.target] = counts.get(arc.target, 0) + counts[node]
        return counts.get(b, 0) if a != b else 0

    def shares(self, a: str, b: str) -> dict[int, Fraction]:
        """Returns the share of the traffic from host ``a`` to host ``b`` on each arc that has any, by :attr:`Arc.number`."""
        entering = {a: Fraction(1)}
        shares = {}
        for node in self._outwards(a, b):
            hops = self.next_hops(node, b)
            for arc in hops:
                shares[arc.number] = entering[node] / len(hops)
                entering[arc.target] = entering.get(arc.target, Fraction(0)) + shares[arc.number]
        return shares

    def loads(self, demands: Iterable[tuple[str, str, float]]) -> dict[int, float]:
        """Sums what traffic between hosts puts on each arc, by :attr:`Arc.number`.

        Args:
            demands: Source host, destination host, and how much: bytes, bit/s, or any other unit, which is the result's.

        Raises:
            ValueError: There is no path for a demand.
        """
        total: dict[int, float] = {}
        for a, b, amount in demands:
            if a == b:
                continue
            shares = self.shares(a, b)
            if not shares:
                raise ValueError(f"no path leads from {a} to {b}")
            for index, share in shares.items():
                total[index] = total.get(index, 0.0) + float(share) * amount
        return total

    def capacity(self, a: str, b: str) -> float:
        """Returns the highest rate from host ``a`` to host ``b``, alone in the network, that overloads nothing, in bit/s.

        It is infinite if the two are one, 0 if there is no path.
        """
        if a == b:
            return math.inf
        shares = self.shares(a, b)
        if not shares:
            return 0.0
        nics = self._topology.nics
        narrowest = min(self._graph.arcs[index].rate / share for index, share in shares.items())
        return min(float(narrowest), float(nics[a]), float(nics[b]))

    def path_capacity(self, a: str, b: str) -> float:
        """Returns the highest rate of a single flow on the best of the shortest paths, in bit/s; ends like :meth:`capacity`."""
        if a == b:
            return math.inf
        widest = {a: float(min(self._topology.nics[a], self._topology.nics[b]))}
        for node in self._outwards(a, b):
            for arc in self.next_hops(node, b):
                widest[arc.target] = max(widest.get(arc.target, 0.0), min(widest[node], arc.rate))
        return widest.get(b, 0.0)

    def rank_capacity(self, a: int, b: int) -> float:
        """Returns :meth:`capacity` between the hosts of two ranks."""
        return self.capacity(self._topology.places[a], self._topology.places[b])

    def bottleneck(self, a: str, b: str) -> Arc | None:
        """Returns the arc that bounds :meth:`capacity`, of several the one nearest to ``a``; None if there are no paths."""
        shares = self.shares(a, b)
        if a == b or not shares:
            return None
        return min((self._graph.arcs[index] for index in shares), key=lambda arc: arc.rate / shares[arc.number])

    def delay(self, a: str, b: str) -> int | None:
        """Returns the longest delay of the shortest paths from ``a`` to ``b``, in picoseconds; None if there is no path."""
        longest = {a: 0}
        for node in self._outwards(a, b):
            for arc in self.next_hops(node, b):
                longest[arc.target] = max(longest.get(arc.target, 0), longest[node] + int(self._topology.link(arc).delay))
        return longest.get(b)

    def _check(self, node: str, host: str) -> None:
        if not self._graph.is_host(host):
            raise KeyError(f"{host} is not a host")
        self._graph.leaving(node)

    def _up(self, node: str) -> list[Arc]:
        return [arc for arc in self._graph.leaving(node) if arc.link not in self.down]

    def _outwards(self, a: str, b: str) -> Iterator[str]:
        """Yields the nodes on the shortest paths, ``b`` left out, each after all that lead to it."""
        far = self.distance(a, b)
        if not far:
            return
        seen, queue = {a}, [(-far, a)]
        while queue:
            _, node = heapq.heappop(queue)
            yield node
            for arc in self.next_hops(node, b):
                if arc.target != b and arc.target not in seen:
                    seen.add(arc.target)
                    rest = self.distance(arc.target, b)
                    assert rest is not None
                    heapq.heappush(queue, (-rest, arc.target))

    def _step(self, arc: Arc, host: str) -> float:
        """Returns the cost of the way to ``host`` that begins with ``arc``."""
        if arc.target == host:
            return arc.metric
        return math.inf if self._graph.is_host(arc.target) else arc.metric + self._from_switch(arc.target, host)

    def _from_switch(self, switch: str, host: str) -> float:
        return min((self._between(switch, last) + metric for last, metric in self._access(host).items()), default=math.inf)

    def _access(self, host: str) -> dict[str, int]:
        """Returns the switches that a host hangs on, with the least metric of the links to each."""
        if host not in self._last:
            found: dict[str, int] = {}
            for arc in self._up(host):
                if not self._graph.is_host(arc.target):
                    found[arc.target] = min(arc.metric, found.get(arc.target, arc.metric))
            self._last[host] = found
        return self._last[host]

    def _between(self, switch: str, last: str) -> float:
        """Returns the cost from one switch to another through switches."""
        if last not in self._distances:
            costs: dict[str, int] = {}
            queue = [(0, last)]
            while queue:
                cost, node = heapq.heappop(queue)
                if node in costs:
                    continue
                costs[node] = cost
                for arc in self._fabric[node]:
                    if arc.target not in costs:
                        heapq.heappush(queue, (cost + arc.metric, arc.target))
            self._distances[last] = costs
        return self._distances[last].get(switch, math.inf)

    def _switch_hops(self, switch: str, last: str) -> tuple[Arc, ...]:
        if (switch, last) not in self._hops:
            far = self._between(switch, last)
            self._hops[switch, last] = tuple(
                arc for arc in self._fabric[switch] if arc.metric + self._between(arc.target, last) == far
            )
        return self._hops[switch, last]


__all__ = ["Routes"]
