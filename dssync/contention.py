"""Schedules that follow the network: slow links are avoided, and used again when they have recovered.

Every rank notes how long its groups took.  After some rounds all ranks exchange their notes and compute, from the same numbers
by the same arithmetic, what the next rounds shall be; nobody decides alone, so that they cannot diverge.

A group's time is the least that any of its members noted: whoever came last did not wait for others.  A group of g that
averages B bytes in t seconds has the rate 2 B (g - 1) / (g t), and is slow if that is less than 1 / ``slowdown`` of what good
groups reach, which is the upper quartile of all rates.  Ranks belong together if fast groups connect them:

* what was one domain stays one as long as no group inside is slow; where one is, only fast groups keep ranks together;
* domains merge when groups across them were measured, and all were fast.

With one domain the schedule that the user chose is in use.  With several it is :class:`~dssync.schedule.Domains` of them: one
rank of each crosses at a time, after so many local rounds as make crossings and local rounds take equally long.  The crossings
are what finds out that a link has recovered.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from dlcp.errors import ConfigError, MismatchError
from dssync.schedule.base import Schedule
from dssync.schedule.domains import Domains

_HEAD: Final = struct.Struct("!16sII")
_MOST_LOCAL: Final = 16


@dataclass(frozen=True)
class Contention:
    """How closely the network is watched.

    Attributes:
        rounds: Least rounds between two looks; a look waits for whole windows of the schedule.
        slowdown: How many times slower than good groups is slow; above 1.
    """

    rounds: int = 16
    slowdown: float = 2.5

    def __post_init__(self) -> None:
        if self.rounds < 1 or not self.slowdown > 1:
            raise ConfigError("contention", "rounds, slowdown", f"{self.rounds}, {self.slowdown}", "1 or more, above 1")


class Measured(NamedTuple):
    """One group's average.

    Attributes:
        ranks: Members.
        rate: Bytes a second from each member to the next.
    """

    ranks: tuple[int, ...]
    rate: float


class Review:
    """One rank's notes, and what all ranks conclude from everybody's.

    Args:
        contention: How closely to look.
        base: The schedule for a network without slow links.
        rank: Own rank.
    """

    def __init__(self, contention: Contention, base: Schedule, rank: int) -> None:
        self.contention, self.base, self.rank = contention, base, rank
        self.domains: tuple[tuple[int, ...], ...] = (tuple(range(base.world)),)
        self.restart(base, 0)

    def restart(self, schedule: Schedule, number: int) -> None:
        """Begins to note anew.

        Args:
            schedule: In use from now on.
            number: The round that comes next.
        """
        self._notes: list[float] = []
        self._first = number
        window = schedule.window
        self._length = window * max(1, math.ceil(self.contention.rounds / window))

    def note(self, seconds: float) -> None:
        """Notes the time of a round; 0 for one in which this rank was alone."""
        self._notes.append(seconds)

    def due(self, number: int) -> bool:
        """Whether it is time to look before round ``number``: at the same one on all ranks."""
        return number - self._first >= self._length

    def message(self, schedule: Schedule) -> bytes:
        """Returns what the others need: the schedule's digest, first round, number of rounds, and a double for each round."""
        notes = self._notes[: self._length]
        return _HEAD.pack(schedule.digest.encode(), self._first, len(notes)) + struct.pack(f"!{len(notes)}d", *notes)

    def decide(self, messages: Sequence[bytes], schedule: Schedule, model_bytes: int) -> Schedule:
        """Returns the schedule for the rounds to come.

        Args:
            messages: Of all ranks, by rank.
            schedule: In use.
            model_bytes: What was averaged.

        Raises:
            MismatchError: Ranks have looked at different rounds or schedules.
        """
        own = _HEAD.pack(schedule.digest.encode(), self._first, self._length)
        notes = []
        for rank, message in enumerate(messages):
            if message[: _HEAD.size] != own or len(message) != _HEAD.size + 8 * self._length:
                raise MismatchError(f"rank {rank} is in another round or has another schedule than rank {self.rank}")
            notes.append(struct.unpack_from(f"!{self._length}d", message, _HEAD.size))
        measured = []
        for offset in range(self._length):
            for ranks, _ in schedule.round(self._first + offset):
                seconds = min(notes[rank][offset] for rank in ranks)
                if len(ranks) > 1 and seconds > 0:
                    measured.append(Measured(ranks, 2 * model_bytes * (len(ranks) - 1) / len(ranks) / seconds))
        self.domains, ratio = find_domains(self.domains, measured, self.contention.slowdown)
        return choose(self.base, self.domains, ratio)


def find_domains(
    before: Sequence[tuple[int, ...]], measured: Sequence[Measured], slowdown: float
) -> tuple[tuple[tuple[int, ...], ...], float]:
    """Returns which ranks reach each other at full speed, and how many times slower groups across are.

    Args:
        before: What was known.
        measured: Groups and their rates; of several measurements of a group the middle one counts.
        slowdown: How much slower is slow.
    """
    rates: dict[tuple[int, ...], float] = {}
    for ranks in dict.fromkeys(one.ranks for one in measured):
        rates[ranks] = median(one.rate for one in measured if one.ranks == ranks)
    if not rates:
        return tuple(before), 1.0
    good = sorted(rates.values())[(3 * len(rates)) // 4 if len(rates) > 1 else 0]
    slow = {ranks for ranks, rate in rates.items() if rate * slowdown < good}
    home = {rank: number for number, domain in enumerate(before) for rank in domain}
    root = {rank: rank for rank in home}

    def find(rank: int) -> int:
        while root[rank] != rank:
            root[rank] = root[root[rank]]
            rank = root[rank]
        return rank

    def join(ranks: Sequence[int]) -> None:
        for rank in ranks[1:]:
            root[find(rank)] = find(ranks[0])

    for domain in before:
        if not any(set(ranks) <= set(domain) for ranks in slow):
            join(domain)
    across: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for ranks in rates:
        homes = tuple(sorted({home[rank] for rank in ranks}))
        if len(homes) == 1:
            if ranks not in slow:
                join(ranks)
        else:
            across.setdefault(homes, []).append(ranks)
    for groups in across.values():
        if not any(ranks in slow for ranks in groups):
            for ranks in groups:
                join(ranks)
    parts: dict[int, list[int]] = {}
    for rank in sorted(root):
        parts.setdefault(find(rank), []).append(rank)
    domains = tuple(sorted(tuple(part) for part in parts.values()))
    worst = median(rates[ranks] for ranks in slow) if slow else good
    return domains, good / worst


def choose(base: Schedule, domains: Sequence[tuple[int, ...]], ratio: float) -> Schedule:
    """Returns the base for one domain, else a schedule that crosses as seldom as crossings are slow.

    Args:
        base: The schedule for a network without slow links.
        domains: From :func:`find_domains`.
        ratio: Likewise.
    """
    if len(domains) == 1:
        return base
    local = min(_MOST_LOCAL, 1 << max(0, round(math.log2(max(ratio, 1.0)))))
    return Domains(base.world, domains, local=local, crossing=1, group=base.largest)


__all__ = ["Contention", "Measured", "Review", "choose", "find_domains"]
