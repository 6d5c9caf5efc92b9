"""Tables of training: what every rank computed, how long every collective took, and what of a step was waiting.

Bandwidths are those of NCCL's tests (PERFORMANCE.md of nccl-tests): ``algbw`` is the size of the data over the time, and
``busbw`` is ``algbw`` times what a link has to carry of it at least, 2 (n - 1) / n for an all-reduce of n ranks.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sim.engine.layout import F_END, F_LOST, F_MISSING, F_PACKETS, F_START
from sim.network import PICOSECONDS
from sim.simulation import Simulation

COMPUTE_COLUMNS: Final = ("job", "host", "what", "iteration", "begin_s", "end_s")

COLLECTIVE_COLUMNS: Final = (
    "job",
    "iteration",
    "collective",
    "operation",
    "ranks",
    "size_bytes",
    "begin_s",
    "ready_s",
    "end_s",
    "time_s",
    "algbw_bit_per_s",
    "busbw_bit_per_s",
    "sent_bytes",
    "packets",
    "lost_packets",
    "missing_packets",
    "last_ready_host",
    "last_done_host",
)

ITERATION_COLUMNS: Final = (
    "job",
    "iteration",
    "begin_s",
    "end_s",
    "step_s",
    "compute_s",
    "exposed_s",
    "mean_exposed_s",
    "straggler_host",
    "straggler_behind_s",
)

BUS_FACTORS: Final[dict[str, Callable[[int], float]]] = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}
"""What ``busbw`` multiplies ``algbw`` by, for n ranks (nccl-tests)."""

Key = tuple[str, int, str]


@dataclass
class _Collective:
    begin: dict[int, int] = field(default_factory=dict)
    """By sender, when its first message began."""
    end: dict[int, int] = field(default_factory=dict)
    """By receiver, when its last message was complete."""
    ranks: set[int] = field(default_factory=set)
    size: int = 0
    sent: int = 0
    packets: int = 0
    lost: int = 0
    missing: int = 0
    whole: bool = True


def computing(simulation: Simulation) -> list[dict[str, Any]]:
    """Returns a row for every time that a rank computed, of those that have ended."""
    memory, hosts, rows = simulation.memory, simulation.network.hosts, []
    for at, message in zip(simulation.flows, simulation.messages, strict=True):
        # What takes no time only joins messages.
        if message.source == message.destination and message.delay and (end := memory[at + F_END]):
            values = (
                message.job,
                hosts[message.source],
                message.group,
                message.iteration,
                max(end - message.delay, 0) / PICOSECONDS,
                end / PICOSECONDS,
            )
            rows.append(dict(zip(COMPUTE_COLUMNS, values, strict=True)))
    return rows


def collectives(simulation: Simulation, operation: str = "all-reduce") -> list[dict[str, Any]]:
    """Returns a row for every collective of training that is complete.

    What each rank contributes is as the messages say, or else follows from the bytes that were sent, as those of an algorithm
    that sends no more than it must: 2 (n - 1) times the size.

    Args:
        simulation: What has run.
        operation: What they do, of :data:`BUS_FACTORS`.
    """
    memory, hosts = simulation.memory, simulation.network.hosts
    found: dict[Key, _Collective] = {}
    for at, message in zip(simulation.flows, simulation.messages, strict=True):
        if message.source == message.destination or message.extra or not message.group:
            continue
        each = found.setdefault((message.job, message.iteration, message.group), _Collective())
        start, end = memory[at + F_START], memory[at + F_END]
        each.whole &= bool(end)
        each.begin[message.source] = min(each.begin.get(message.source, start), start)
        each.end[message.destination] = max(each.end.get(message.destination, 0), end)
        each.ranks |= {message.source, message.destination}
        each.size = message.whole
        each.sent += message.size
        each.packets += memory[at + F_PACKETS]
        each.lost += memory[at + F_LOST]
        each.missing += memory[at + F_MISSING]
    rows = []
    for (job, iteration, group), each in found.items():
        if not each.whole:
            continue
        count = len(each.ranks)
        size = each.size or round(each.sent / (2 * (count - 1)))
        begin, ready, end = min(each.begin.values()), max(each.begin.values()), max(each.end.values())
        bandwidth = 8 * size * PICOSECONDS / max(end - begin, 1)
        values = (
            job,
            iteration,
            group,
            operation,
            count,
            size,
            begin / PICOSECONDS,
            ready / PICOSECONDS,
            end / PICOSECONDS,
            (end - begin) / PICOSECONDS,
            round(bandwidth),
            round(bandwidth * BUS_FACTORS[operation](count)),
            each.sent,
            each.packets,
            each.lost,
            each.missing,
            hosts[_latest(each.begin)],
            hosts[_latest(each.end)],
        )
        rows.append(dict(zip(COLLECTIVE_COLUMNS, values, strict=True)))
    return rows


@dataclass
class _Rank:
    end: int = 0
    """When its forward pass ended."""
    forward: int = 0
    backward: int = 0
    """Picoseconds that it computed."""
    ready: int = 0
    """When its backward pass, and the optimizer's step if that comes before the collectives, ended."""
    whole: bool = True


def iterations(simulation: Simulation) -> list[dict[str, Any]]:
    """Returns a row for every step of training that is complete.

    A step lasts from the end of the slowest rank's forward pass to the end of the slowest rank's next one.  ``compute_s`` is
    what the rank computed in it that computed most, ``exposed_s`` the rest of the step, ``mean_exposed_s`` the mean over ranks of
    what each did not compute between its own two ends.  The straggler is the rank whose backward pass ended last, and how long
    after the median rank's.
    """
    memory = simulation.memory
    ranks: dict[tuple[str, int], dict[int, _Rank]] = {}
    for at, message in zip(simulation.flows, simulation.messages, strict=True):
        if message.source != message.destination or message.group not in ("forward", "backward", "optimizer"):
            continue
        each = ranks.setdefault((message.job, message.iteration), {}).setdefault(message.source, _Rank())
        end = memory[at + F_END]
        each.whole &= bool(end) or message.group != "forward"
        if message.group == "forward":
            each.end = max(each.end, end)
            each.forward += message.delay
        else:
            each.ready = max(each.ready, end)
            each.backward += message.delay
    rows = []
    for (job, iteration), now in ranks.items():
        after = ranks.get((job, iteration + 1))
        if after is None or not all(each.whole for each in (*now.values(), *after.values())):
            continue
        begin, end = (max(each.end for each in some.values()) for some in (now, after))
        worked = {rank: now[rank].backward + after[rank].forward for rank in now if rank in after}
        idle = [after[rank].end - now[rank].end - work for rank, work in worked.items()]
        ready = {rank: each.ready for rank, each in now.items()}
        last = _latest(ready)
        values = (
            job,
            iteration,
            begin / PICOSECONDS,
            end / PICOSECONDS,
            (end - begin) / PICOSECONDS,
            max(worked.values()) / PICOSECONDS,
            max(end - begin - max(worked.values()), 0) / PICOSECONDS,
            round(statistics.fmean(idle)) / PICOSECONDS,
            simulation.network.hosts[last],
            (ready[last] - statistics.median_low(ready.values())) / PICOSECONDS,
        )
        rows.append(dict(zip(ITERATION_COLUMNS, values, strict=True)))
    return rows


def _latest(times: Mapping[int, int]) -> int:
    """Returns whose time is the latest, of several the first."""
    return min(times, key=lambda who: (-times[who], who))


__all__ = [
    "BUS_FACTORS",
    "COLLECTIVE_COLUMNS",
    "COMPUTE_COLUMNS",
    "ITERATION_COLUMNS",
    "collectives",
    "computing",
    "iterations",
]
