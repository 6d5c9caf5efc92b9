"""Rounds that stay inside fast domains, and few that cross between them.

A domain is a set of ranks that reach each other at full speed; between domains there are bottlenecks.  A cycle is ``local``
rounds, in which every domain averages within itself, and one crossing round, in which ``crossing`` ranks of each domain average
with as many of another, or of several others.  Which ranks cross changes from one crossing to the next, so that every host and
every path takes its turn.

The relaxation of a crossing.  Let q domains of m_1 ... m_q ranks, each of which holds its mean d_j, cross with c ranks each.  The
mean of a domain then moves by (a c / m_j)(D - d_j), D being the mean of the d_j: only c of its m_j ranks have moved.  The
operator diag(c / m_j)(I - J / q) has q - 1 eigenvalues other than 0, whose mean is c / h with h the harmonic mean of the m_j; a
= h / c brings that to 1.  For two domains, and for any number of equal ones, this is exact: one crossing gives every domain the
mean of all. The bound a <= q / (q - 1) of :mod:`dssync.schedule.base` may forbid it; then the disagreement shrinks by a
constant factor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

from dssync.schedule.base import Group, Schedule, check_group, check_world, refuse
from dssync.schedule.basek import BaseK


class Domains(Schedule):
    """Mostly local averaging, with crossings between domains.

    Attributes:
        cycle: Rounds after which all domains have met; the period is as long as it takes until all ranks have crossed.

    Args:
        world: Number of ranks.
        domains: A partition of the ranks.
        local: Local rounds before each crossing.
        crossing: Ranks of each domain that cross at a time; domains that meet in a crossing send as many as the smallest has.
        group: Ranks of the largest group; None lets a whole domain be one, and up to 8 domains meet.

    Raises:
        ConfigError: The domains are no partition of the ranks, or a number is out of range.
    """

    kind = "topology"

    def __init__(
        self,
        world: int,
        domains: Sequence[Sequence[int]],
        *,
        local: int = 1,
        crossing: int = 1,
        group: int | None = None,
    ) -> None:
        check_world(self.kind, world)
        if group is not None:
            check_group(self.kind, group)
        if sorted(rank for domain in domains for rank in domain) != list(range(world)) or not all(domains):
            missing = sorted(set(range(world)) - {rank for domain in domains for rank in domain})
            problem = f"no rank {missing[0]}" if missing else "a rank in two domains, unknown ranks or an empty domain"
            raise refuse(self.kind, "domains", problem, f"every rank from 0 to {world - 1} in one domain")
        if local < 1 or crossing < 1:
            raise refuse(self.kind, "local, crossing", f"{local}, {crossing}", "1 or more rounds, 1 or more ranks")
        self.world = world
        self.domains = tuple(sorted(tuple(sorted(domain)) for domain in domains))
        self.group = group
        self.crossing = crossing
        self._asked = local
        self._within = [BaseK(len(domain), group or max(2, len(domain))) for domain in self.domains]
        need = max(schedule.exact_rounds for schedule in self._within)
        self._between = BaseK(len(self.domains), group or 8)
        if len(self.domains) == 1:
            self.local, self.turns = need, 0
            self.period = self.cycle = max(1, need)
            self.exact_rounds: int | None = self._within[0].exact_rounds
            return
        # Half of a consensus inside a domain would be spoilt by the next crossing.
        self.local = -(-local // need) * need if need else 0
        self.turns = self._between.period * max(-(-len(d) // self._count(ms)) for ms in self._meetings() for d in ms)
        self.period = (self.local + 1) * self.turns
        self.cycle = (self.local + 1) * self._between.period
        self.exact_rounds = self._promise()

    @property
    def window(self) -> int:
        """The cycle."""
        return self.cycle

    def build(self, number: int) -> Iterable[Group]:
        """A local round, or a crossing."""
        turn, step = divmod(number, self.local + 1)
        if self.turns == 0 or step < self.local:
            return self._local(number if self.turns == 0 else step)
        return self._cross(turn)

    def same_as(self, number: int) -> int:
        """Local rounds are the same in every cycle."""
        return number % (self.local + 1) if self.turns and not self.is_crossing(number) else number

    def settings(self) -> dict[str, Any]:
        """Domains, local rounds as asked for, ranks that cross, and the largest group."""
        return {
            "domains": [list(domain) for domain in self.domains],
            "local": self._asked,
            "crossing": self.crossing,
            "group": self.group,
        }

    def is_crossing(self, number: int) -> bool:
        """Whether some group of round ``number`` has ranks of several domains."""
        return self.turns > 0 and number % (self.local + 1) == self.local

    def _local(self, step: int) -> Iterable[Group]:
        for domain, schedule in zip(self.domains, self._within, strict=True):
            for group in schedule.round(step):
                yield Group(tuple(domain[i] for i in group.ranks), group.relaxation)

    def _cross(self, turn: int) -> Iterable[Group]:
        rotation, step = divmod(turn, self._between.period)
        for meeting in self._between.round(step):
            members = [self.domains[index] for index in meeting.ranks]
            if len(members) == 1:
                continue
            count = self._count(members)
            relaxation = self._relaxation(members, meeting.relaxation)
            for place in range(count):
                chosen = (domain[(rotation * count + place) % len(domain)] for domain in members)
                yield Group(tuple(sorted(chosen)), relaxation)

    def _meetings(self) -> Iterator[list[tuple[int, ...]]]:
        """Yields the domains of each meeting of two or more."""
        for groups in self._between.rounds:
            for meeting in groups:
                if len(meeting.ranks) > 1:
                    yield [self.domains[index] for index in meeting.ranks]

    def _count(self, members: Sequence[Sequence[int]]) -> int:
        return min(self.crossing, *(len(domain) for domain in members))

    def _ideal(self, members: Sequence[Sequence[int]], relaxation: Fraction) -> Fraction:
        harmonic = Fraction(len(members)) / sum(Fraction(1, len(domain)) for domain in members)
        return relaxation * harmonic / self._count(members)

    def _relaxation(self, members: Sequence[Sequence[int]], relaxation: Fraction) -> Fraction:
        q = len(members)
        return min(self._ideal(members, relaxation), Fraction(q, q - 1))

    def _promise(self) -> int | None:
        """Returns the rounds to the exact mean if all crossings are exact in the sense of the module's text."""
        sizes = {len(domain) for domain in self.domains}
        for step in range(self._between.period):
            for meeting in self._between.round(step):
                members = [self.domains[index] for index in meeting.ranks]
                q = len(members)
                if q > 1 and self._ideal(members, meeting.relaxation) > Fraction(q, q - 1):
                    return None
        # The domains average as single ranks do only if they weigh the same; two of them may differ, as their crossing is exact.
        if len(sizes) > 1 and len(self.domains) > 2:
            return None
        return self._between.exact_rounds * (self.local + 1) + self.local


def domains_of_size(world: int, size: int) -> tuple[tuple[int, ...], ...]:
    """Returns blocks of ``size`` neighbouring ranks, the last one smaller if it does not come out even: hosts of equal ranks."""
    return tuple(tuple(range(start, min(start + size, world))) for start in range(0, world, size))


__all__ = ["Domains", "domains_of_size"]
