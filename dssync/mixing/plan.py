"""The schedules that suit a topology, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, Final

from dlcp.errors import ConfigError
from dlcp.topology import Topology
from dssync.mixing.bound import Consensus, Problem, measure_consensus, steps_to_accuracy
from dssync.mixing.choice import choose_domains
from dssync.mixing.network import NetworkCost, busiest
from dssync.mixing.operator import Mixing
from dssync.schedule.base import Schedule
from dssync.schedule.factors import fewest_factors
from dssync.schedule.make import KINDS, make_schedule

GROUPS: Final = (2, 4, 8)
_LINKS: Final = 16


@dataclass(frozen=True)
class Row:
    """What is predicted for one schedule.

    Attributes:
        schedule: The schedule.
        consensus: How fast it forgets disagreement, by steps.
        round_seconds: Mean over a period of the slowest group's time.
        longest_seconds: Slowest group of the slowest round.
        step_seconds: Of a step in the long run, computation included.
        sent_bytes: Most that a rank sends in a round, mean over the period.
        link: Direction of a link that is busy longest, as ``from -> to``; empty if nobody uses the network.
        link_bytes: What it carries a round, mean over the period.
        link_loads: The same for the directions of links that are busy longest, the busiest first.
        rounds_to_consensus: Until disagreement is ``consensus_share`` of what it was.
        steps: Steps to the accuracy asked for, by the bound.
        seconds: Time for them.
        step_size: Best step size by the bound.
    """

    schedule: Schedule
    consensus: Consensus
    round_seconds: float
    longest_seconds: float
    step_seconds: float
    sent_bytes: float
    link: str
    link_bytes: float
    link_loads: dict[str, float]
    rounds_to_consensus: float
    steps: float
    seconds: float
    step_size: float

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values."""
        names = ("round_seconds", "longest_seconds", "step_seconds", "sent_bytes", "link_bytes")
        more = ("rounds_to_consensus", "steps", "seconds", "step_size")
        values = {name: getattr(self, name) for name in (*names, *more)}
        return {
            "schedule": self.schedule.describe(),
            "busiest_link": self.link,
            "link_loads": self.link_loads,
            "spectral_gap": self.consensus.gap,
            "window_steps": self.consensus.window,
            "window_factor": self.consensus.factor,
            **{name: value if isfinite(value) else None for name, value in values.items()},
        }


@dataclass(frozen=True)
class Plan:
    """All rows.

    Attributes:
        rows: In the order of their predicted times, the fastest first; the first is recommended.
    """

    topology: Topology
    world: int
    model_bytes: int
    compute: float
    every: int
    problem: Problem
    accuracy: float
    consensus_share: float
    rows: tuple[Row, ...]

    @property
    def recommended(self) -> Row:
        """The row with the least time."""
        return self.rows[0]

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, as JSON takes them."""
        return {
            "topology": {"name": self.topology.name, "digest": self.topology.digest()},
            "world": self.world,
            "model_bytes": self.model_bytes,
            "compute_s": self.compute,
            "every": self.every,
            "problem": asdict(self.problem),
            "accuracy": self.accuracy,
            "consensus_share": self.consensus_share,
            "recommended": self.recommended.schedule.describe(),
            "rows": [row.to_dict() for row in self.rows],
        }

    @property
    def bsp(self) -> Row | None:
        """The reference, if it was asked for."""
        return next((row for row in self.rows if row.schedule.kind == "bsp"), None)


def make_plan(
    topology: Topology,
    model_bytes: int,
    *,
    world: int | None = None,
    kinds: Sequence[str] = KINDS,
    groups: Sequence[int] = GROUPS,
    compute: float = 0.0,
    every: int = 1,
    problem: Problem | None = None,
    accuracy: float = 1e-3,
    consensus_share: float = 1e-3,
    seed: int = 0,
) -> Plan:
    """Predicts what schedules cost and how fast they converge on a topology.

    Args:
        topology: The network, and which rank is where.
        model_bytes: What is averaged.
        world: Number of ranks; those of the topology if it is not given.
        kinds: Which schedules.
        groups: Sizes of the largest groups to try.
        compute: Seconds of a step without communication.
        every: Steps for each round.
        problem: For the bound.
        accuracy: Bound on the mean squared gradient that is to be reached.
        consensus_share: What disagreement is to shrink to, for the rounds to consensus.
        seed: Of random groups.

    Raises:
        ConfigError: Numbers out of range, or a rank without a host.
    """
    for name, value in (("model-bytes", model_bytes), ("every", every), ("accuracy", accuracy)):
        if not value > 0:
            raise ConfigError("plan", name, f"{value}", "a number above 0")
    if not compute >= 0:
        raise ConfigError("plan", "compute", f"{compute}", "0 or more seconds")
    world = topology.world if world is None else world
    if world < 2:
        raise ConfigError("plan", "world", f"{world} ranks", "2 or more, which have something to average")
    problem = problem or Problem()
    network = NetworkCost(topology, world)
    rows: list[Row] = []
    goals = {"problem": problem, "accuracy": accuracy, "compute": compute, "every": every}
    for schedule in _candidates(network, world, kinds, groups, seed, model_bytes, goals):
        rows.append(_row(schedule, network, model_bytes, compute, every, problem, accuracy, consensus_share))
    if not rows:
        raise ConfigError("plan", "kinds", f"{', '.join(kinds)}: none fits {world} ranks and these groups", ", ".join(KINDS))
    rows.sort(key=lambda row: (row.seconds, row.step_seconds))
    return Plan(topology, world, model_bytes, compute, every, problem, accuracy, consensus_share, tuple(rows))


def _candidates(
    network: NetworkCost,
    world: int,
    kinds: Sequence[str],
    groups: Sequence[int],
    seed: int,
    model_bytes: int,
    goals: dict[str, Any],
) -> list[Schedule]:
    found: list[Schedule] = []
    sizes = sorted({min(size, world) for size in groups})
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError("plan", "kinds", f"{kind!r} is unknown", ", ".join(KINDS))
        if kind == "bsp":
            found.append(make_schedule(kind, world))
        elif kind == "topology":
            found.append(choose_domains(network.topology, world, model_bytes, network=network, **goals))
        for size in sizes if kind in ("digits", "base-k", "random") else ():
            if size == world and "bsp" in kinds:
                continue  # one group of all, every time
            if kind == "base-k" and "digits" in kinds and fewest_factors(world, size) is not None:
                continue  # the same
            try:
                found.append(make_schedule(kind, world, group=size, seed=seed if kind == "random" else None))
            except ConfigError:
                continue  # a group size that does not tile the world is only left out of the comparison
    return found


def _direction(topology: Topology, number: int) -> str:
    arc = topology.graph.arcs[number]
    several = len(topology.links_between(arc.source, arc.target)) > 1
    return f"{arc.source} -> {arc.target}" + (f" (port {arc.port})" if several else "")


def _row(
    schedule: Schedule,
    network: NetworkCost,
    model_bytes: int,
    compute: float,
    every: int,
    problem: Problem,
    accuracy: float,
    share: float,
) -> Row:
    costs = [network.round_cost(groups, model_bytes) for groups in map(schedule.round, range(schedule.window))]
    step = network.step_seconds(schedule, model_bytes, compute, every)
    consensus = measure_consensus(Mixing(schedule), every)
    busy = busiest((cost.loads for cost in costs), network.topology, _LINKS)
    steps, rate = steps_to_accuracy(consensus, problem, accuracy, schedule.world)
    loads = {_direction(network.topology, number): load / len(costs) for number, load in busy}
    link, load = next(iter(loads.items()), ("", 0.0))
    return Row(
        schedule=schedule,
        consensus=consensus,
        round_seconds=sum(cost.longest for cost in costs) / len(costs),
        longest_seconds=max(cost.longest for cost in costs),
        step_seconds=step,
        sent_bytes=sum(cost.sent for cost in costs) / len(costs),
        link=link,
        link_bytes=load,
        link_loads=loads,
        rounds_to_consensus=schedule.exact_rounds if schedule.exact_rounds is not None else consensus.steps_to(share) / every,
        steps=steps,
        seconds=steps * step,
        step_size=rate,
    )


__all__ = ["GROUPS", "Plan", "Row", "make_plan"]
