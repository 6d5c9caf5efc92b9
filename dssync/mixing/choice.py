"""Domains, local rounds and crossings for a topology, chosen by what they cost and how fast they converge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlcp.errors import ConfigError
from dlcp.topology import Topology, fast_domains
from dssync.mixing.bound import Consensus, Problem, steps_to_accuracy
from dssync.mixing.network import NetworkCost
from dssync.mixing.operator import Mixing
from dssync.schedule.domains import Domains

LOCAL_ROUNDS = (1, 2, 4, 8, 16)


def choose_domains(
    topology: Topology,
    world: int,
    model_bytes: int,
    *,
    group: int | None = None,
    domains: Sequence[Sequence[int]] | None = None,
    local: int | None = None,
    crossing: int | None = None,
    problem: Problem | None = None,
    accuracy: float = 1e-3,
    compute: float = 0.0,
    every: int = 1,
    network: NetworkCost | None = None,
    **unknown: Any,
) -> Domains:
    """Returns the schedule with the least predicted time to ``accuracy``.

    Args:
        topology: The network.
        world: Number of ranks.
        model_bytes: What is averaged.
        group: Ranks of the largest group.
        domains: Given, or found by :func:`dlcp.topology.fast_domains`.
        local: Local rounds before each crossing; given, or chosen.
        crossing: Ranks of each domain that cross at a time; given, or chosen.
        problem: For the convergence bound.
        accuracy: Bound on the squared gradient that is to be reached.
        compute: Seconds of a step without communication.
        every: Steps for each round.
        network: Costs of the same topology, computed before.

    Raises:
        ConfigError: A rank has no host in the topology, or an argument is out of range.
    """
    if unknown:
        raise ConfigError("topology schedule", next(iter(unknown)), "unknown setting", "group, domains, local, crossing")
    network = network or NetworkCost(topology, world)
    problem = problem or Problem()
    if domains is None:
        domains = [[r for r in domain if r < world] for domain in fast_domains(topology).domains]
        domains = [domain for domain in domains if domain]
    if len(domains) == 1:
        return Domains(world, domains, group=group)
    largest = max(len(domain) for domain in domains)
    crossings = [crossing] if crossing else [1 << k for k in range(largest.bit_length()) if 1 << k <= largest]
    best: tuple[float, Domains] | None = None
    for count in crossings:
        # Once a domain agrees, further local rounds leave frozen values alone: what one cycle does is the same for all.
        first = Domains(world, domains, local=1, crossing=count, group=group)
        mixing = Mixing(first)
        factors = [(cycles, mixing.norm(0, cycles * first.cycle)) for cycles in (1, 2, 4)]
        for rounds in [local] if local else LOCAL_ROUNDS:
            schedule = Domains(world, domains, local=rounds, crossing=count, group=group)
            seconds = network.step_seconds(schedule, model_bytes, compute, every)
            consensus = min(
                (Consensus(every * cycles * schedule.cycle, factor) for cycles, factor in factors), key=lambda found: found.first
            )
            steps, _ = steps_to_accuracy(consensus, problem, accuracy, world)
            if best is None or steps * seconds < best[0]:
                best = steps * seconds, schedule
    assert best is not None
    return best[1]


__all__ = ["choose_domains"]
