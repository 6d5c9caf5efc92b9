"""What a round costs on a network: bytes on every link, and seconds for every group.

A group of g ranks averages B bytes by a ring in the order of its ranks: each sends 2 B (g - 1) / g to the next one, in 2 (g - 1)
steps.  All groups of a round run at once and share links; traffic spreads evenly over the shortest paths.  A link carries what
it is asked to at its rate, and a group takes as long as the busiest link that it uses, and the delays of its steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlcp.errors import ConfigError
from dlcp.topology import Topology
from dssync.mixing.operator import Layout
from dssync.schedule.base import Round, Schedule

_SECOND = 10**12


class _Hop(NamedTuple):
    arc: int
    target: str
    share: float


class _Flows(NamedTuple):
    """Columns: sending rank, receiving rank, number of the group, bytes, and steps of the ring."""

    source: NDArray[np.intp]
    target: NDArray[np.intp]
    group: NDArray[np.intp]
    amount: NDArray[np.float64]
    steps: NDArray[np.float64]

    def where(self, chosen: NDArray[np.bool_]) -> _Flows:
        """Returns some rows."""
        return _Flows(self.source[chosen], self.target[chosen], self.group[chosen], self.amount[chosen], self.steps[chosen])


@dataclass(frozen=True)
class RoundCost:
    """Cost of a round.

    Attributes:
        group_seconds: ``float64[groups]``, in the order of the round; 0 for ranks that are alone.
        sent: Most bytes that a rank sends.
        loads: Bytes on each direction of each link, by the number of the arc.
    """

    group_seconds: NDArray[np.float64]
    sent: float
    loads: dict[int, float]

    @property
    def longest(self) -> float:
        """Seconds of the slowest group; 0 if nobody averages."""
        return float(self.group_seconds.max())


class NetworkCost:
    """Costs on one topology.

    Args:
        topology: The network.
        world: Number of ranks; the first ones of the topology.

    Raises:
        ConfigError: A rank has no host.
    """

    def __init__(self, topology: Topology, world: int | None = None) -> None:
        self.topology = topology
        self.world = topology.world if world is None else world
        if self.world > topology.world:
            problem = f"has no host for rank {topology.world}"
            raise ConfigError(topology.name, "ranks", problem, f"a topology with all {self.world} ranks")
        self._graph = topology.graph
        self._rates: NDArray[np.float64] = np.array([float(arc.rate) for arc in self._graph.arcs])
        self._delays: NDArray[np.float64] = np.array([int(topology.link(arc).delay) / _SECOND for arc in self._graph.arcs])
        self._access: dict[str, tuple[int, int, str] | None] = {}
        self._hops: dict[tuple[str, str], tuple[_Hop, ...]] = {}
        self._distance: dict[tuple[str, str], int] = {}
        self._place_ranks()
        self._costs: dict[tuple[int, int], tuple[RoundCost, Round]] = {}
        self._layouts: dict[int, Layout] = {}

    def _place_ranks(self) -> None:
        """Notes for each rank its host, and for hosts on one switch that switch and the arc to it; -1 for others."""
        hosts = {host: number for number, host in enumerate(self._graph.hosts)}
        switches = {switch: number for number, switch in enumerate(self._graph.switches)}
        places = self.topology.places[: self.world]
        single = [self._single(host) for host in places]
        self._host: NDArray[np.intp] = np.array([hosts[host] for host in places])
        self._up: NDArray[np.intp] = np.array([-1 if one is None else one[0] for one in single])
        self._switch: NDArray[np.intp] = np.array([-1 if one is None else switches[one[2]] for one in single])
        self._stand_in: dict[int, str] = {}
        for host, one in zip(places, single, strict=True):
            if one is not None:
                self._stand_in.setdefault(switches[one[2]], host)

    def round_cost(self, groups: Round, model_bytes: int) -> RoundCost:
        """Returns the cost of a round that averages ``model_bytes``."""
        # Groups of a thousand ranks take long to hash; the entry keeps the round, and so its id, alive.
        key = (id(groups), model_bytes)
        if key not in self._costs:
            self._layouts[id(groups)] = Layout(groups, self.world)
            self._costs[key] = self._compute(groups, model_bytes), groups
        return self._costs[key][0]

    def step_seconds(self, schedule: Schedule, model_bytes: int, compute: float = 0.0, every: int = 1) -> float:
        """Returns the seconds of a step in the long run.

        Nobody waits for a round as such, only for the members of its own group; a slow group holds up others when its members
        meet them.

        Args:
            schedule: Who meets whom.
            model_bytes: What is averaged.
            compute: Seconds of forward, backward and optimizer.
            every: Steps for each round.
        """
        ready: NDArray[np.float64] = np.zeros(self.world)
        count = schedule.window
        marks = []
        for period in range(3):
            for number in range(period * count, (period + 1) * count):
                # Later cycles of large worlds differ in who crosses, and cost the same.
                groups = schedule.round(number % count if self.world > 256 else number)
                cost, layout = self.round_cost(groups, model_bytes), self._layouts[id(groups)]
                begin = np.maximum.reduceat(ready[layout.order], layout.starts) + compute * every
                ready = (begin + cost.group_seconds)[layout.label]
            marks.append(float(ready.max()))
        return (marks[2] - marks[0]) / (2 * count * every)

    def _compute(self, groups: Round, model_bytes: int) -> RoundCost:
        flows = self._flows(groups, model_bytes)
        sent = float(flows.amount.max(initial=0.0))
        remote = self._host[flows.source] != self._host[flows.target]
        flows = flows.where(remote)
        arcs: NDArray[np.float64] = np.zeros(len(self._graph.arcs))
        seconds: NDArray[np.float64] = np.zeros(len(groups))
        simple = (self._switch[flows.source] >= 0) & (self._switch[flows.target] >= 0)
        easy, odd = flows.where(simple), flows.where(~simple)
        # Traffic between hosts of two switches goes together from the one to the other.
        up, down = self._up[easy.source], self._up[easy.target] ^ 1
        np.add.at(arcs, up, easy.amount)
        np.add.at(arcs, down, easy.amount)
        crossing = self._switch[easy.source] != self._switch[easy.target]
        pairs, inverse = np.unique(
            self._switch[easy.source] * len(self._graph.switches) + self._switch[easy.target], return_inverse=True
        )
        amounts = np.bincount(inverse[crossing], easy.amount[crossing], len(pairs))
        loads: dict[int, float] = {}
        entering: dict[int, dict[str, float]] = {}
        for pair, amount in zip(pairs.tolist(), amounts.tolist(), strict=True):
            if amount:
                source, target = divmod(pair, len(self._graph.switches))
                entering.setdefault(target, {})[self._graph.switches[source]] = amount
        for target, sources in entering.items():
            self._flow(self._stand_in[target], sources, loads, until=self._graph.switches[target])
        places = self.topology.places
        for source, target, amount in zip(odd.source.tolist(), odd.target.tolist(), odd.amount.tolist(), strict=True):
            self._flow(places[target], {places[source]: amount}, loads)
        for number, load in loads.items():
            arcs[number] += load
        busy = 8 * arcs / self._rates
        worst: dict[tuple[str, str], tuple[float, float]] = {}
        names, many = self._graph.switches, len(self._graph.switches)
        core = [self._core(names[p // many], self._stand_in[p % many], busy, worst) for p in pairs.tolist()]
        between = np.array(core).reshape(-1, 2)[inverse]
        transfer = np.maximum(np.maximum(busy[up], busy[down]), between[:, 0])
        delay = self._delays[up] + self._delays[down] + between[:, 1]
        np.maximum.at(seconds, easy.group, transfer + easy.steps * delay)
        for group, source, target, steps in zip(
            *(c.tolist() for c in (odd.group, odd.source, odd.target, odd.steps)), strict=True
        ):
            slowest, wait = self._worst(places[source], places[target], busy, worst)
            seconds[group] = max(float(seconds[group]), slowest + steps * wait)
        used = np.flatnonzero(arcs)
        return RoundCost(seconds, sent, dict(zip(used.tolist(), arcs[used].tolist(), strict=True)))

    def _flows(self, groups: Round, model_bytes: int) -> _Flows:
        """Returns who sends how much to whom: every rank of a group to the next, the last to the first."""
        layout = self._layouts[id(groups)]
        following = np.roll(layout.order, -1)
        following[layout.starts + layout.sizes - 1] = layout.order[layout.starts]
        sizes = layout.sizes[layout.label[layout.order]]
        amount = 2.0 * model_bytes * (sizes - 1) / sizes
        steps: NDArray[np.float64] = 2.0 * (sizes - 1).astype(np.float64)
        real = sizes > 1
        return _Flows(layout.order[real], following[real], layout.label[layout.order][real], amount[real], steps[real])

    def _flow(self, host: str, entering: dict[str, float], loads: dict[int, float], until: str | None = None) -> None:
        end = host if until is None else until
        levels: dict[int, dict[str, float]] = {}
        for node, amount in entering.items():
            levels.setdefault(self._far(node, host), {})[node] = amount
        while levels:
            for node, amount in levels.pop(max(levels)).items():
                if node == end:
                    continue
                for arc, target, share in self._next(node, host):
                    part = amount * share
                    loads[arc] = loads.get(arc, 0.0) + part
                    level = levels.setdefault(self._far(target, host), {})
                    level[target] = level.get(target, 0.0) + part

    def _worst(
        self, node: str, host: str, busy: NDArray[np.float64], memo: dict[tuple[str, str], tuple[float, float]]
    ) -> tuple[float, float]:
        """Returns the seconds of the busiest link, and the longest delay, on the ways from a node to a host."""
        transfer, delay = self._core(node, host, busy, memo)
        last = self._single(host)
        if last is None:
            return transfer, delay
        return max(transfer, float(busy[last[1]])), delay + self._delay(last[1])

    def _core(
        self, node: str, host: str, busy: NDArray[np.float64], memo: dict[tuple[str, str], tuple[float, float]]
    ) -> tuple[float, float]:
        """Likewise, but for the last link of a host that has only one: all hosts of a switch share the rest."""
        key = (node, self._key(host))
        if node == key[1]:
            return 0.0, 0.0
        if key not in memo:
            transfer = delay = 0.0
            for arc, target, _ in self._next(node, host):
                rest = self._core(target, host, busy, memo)
                transfer = max(transfer, float(busy[arc]), rest[0])
                delay = max(delay, self._delay(arc) + rest[1])
            memo[key] = (transfer, delay)
        return memo[key]

    def _delay(self, arc: int) -> float:
        return float(self._delays[arc])

    def _single(self, host: str) -> tuple[int, int, str] | None:
        """Returns for a host on one switch the arcs up and down and the switch; None for other hosts and for switches."""
        if host not in self._access:
            self._access[host] = None
            if self._graph.is_host(host):
                leaving = self._graph.leaving(host)
                if len(leaving) == 1 and not self._graph.is_host(leaving[0].target):
                    arc = leaving[0]
                    self._access[host] = (arc.number, arc.number ^ 1, arc.target)
        return self._access[host]

    def _key(self, host: str) -> str:
        single = self._single(host)
        return host if single is None else single[2]

    def _next(self, node: str, host: str) -> tuple[_Hop, ...]:
        last = self._key(host)
        key = (node, host if node == last else last)
        if key not in self._hops:
            hops = self.topology.routes.next_hops(node, host)
            if not hops:
                raise ConfigError(self.topology.name, "links", f"no path leads from {node} to {host}", "a connected network")
            self._hops[key] = tuple(_Hop(arc.number, arc.target, 1 / len(hops)) for arc in hops)
        return self._hops[key]

    def _far(self, node: str, host: str) -> int:
        key = (node, self._key(host))
        if key not in self._distance:
            self._distance[key] = self.topology.routes.distance(node, host) or 0
        return self._distance[key]


def busiest(loads: Iterable[dict[int, float]], topology: Topology, most: int) -> list[tuple[int, float]]:
    """Returns the numbers of the arcs that are busy longest over several rounds, and the bytes on them, the busiest first."""
    total: dict[int, float] = {}
    for load in loads:
        for number, amount in load.items():
            total[number] = total.get(number, 0.0) + amount
    arcs = topology.graph.arcs
    order = sorted(total, key=lambda number: (-total[number] / arcs[number].rate, number))
    return [(number, total[number]) for number in order[:most]]


__all__ = ["NetworkCost", "RoundCost", "busiest"]
