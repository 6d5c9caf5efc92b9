"""What a schedule is: a pure function from the number of a round to a partition of the ranks into groups.

Terms.  In a round every rank is in one group.  A group averages: with mean m of its members' values, member x becomes

    x + relaxation * (m - x)

For a relaxation of 1 all members leave with the mean.  Above 1 they overshoot it, and disagree afterwards; that is what makes
exact consensus possible for numbers of ranks that no product of group sizes equals.  As matrices: the round multiplies the
ranks' values by W = (1 - a) I + a J / g on each group of g with relaxation a.  W is symmetric and its rows and columns add up
to 1 for any a; its entries are not negative for 0 <= a <= g / (g - 1), which every group here obeys, so W is doubly stochastic.
 Therefore the mean over all ranks never changes, and the distance to it never grows.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

from dlcp.errors import ConfigError

ONE = Fraction(1)


class Group(NamedTuple):
    """Ranks that average with each other.

    Attributes:
        ranks: Ascending.
        relaxation: From 0, exclusive, to g / (g - 1) for g ranks.
    """

    ranks: tuple[int, ...]
    relaxation: Fraction = ONE


Round = tuple[Group, ...]
"""A partition of the ranks, ordered by the groups' first ranks; a rank that averages with nobody is a group of one."""


class Schedule(ABC):
    """A periodic sequence of rounds.  Objects do not change, and are equal if their digests are.

    Attributes:
        kind: Name of the rule.
        world: Number of ranks.
        period: Rounds until the sequence repeats.
        exact_rounds: After this many rounds from the start of a period all ranks hold the exact mean of what they held before, if
            nothing else changes the values meanwhile; None if they only come closer and closer to it.
    """

    kind: str
    world: int
    period: int
    exact_rounds: int | None

    @property
    def exact_from_any_round(self) -> bool:
        """Whether any ``period`` rounds, from whichever they start, give the exact mean; for those whose theory says so."""
        return False

    @property
    def window(self) -> int:
        """Rounds in which everybody has influenced everybody: what convergence is measured over."""
        return self.period

    @abstractmethod
    def build(self, number: int) -> Iterable[Group]:
        """Returns the groups of round ``number``, 0 to period - 1; ranks may be left out, which are then alone."""

    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """Returns what distinguishes it from others of its kind and world, in plain values."""

    def same_as(self, number: int) -> int:
        """Returns the first round of the period that has the same groups as round ``number``, 0 to period - 1, by
        construction.
        """
        return number

    @cached_property
    def rounds(self) -> tuple[Round, ...]:
        """All rounds of a period."""
        return tuple(self.round(number) for number in range(self.period))

    @cached_property
    def _built(self) -> dict[int, Round]:
        return {}

    @cached_property
    def _places(self) -> dict[int, dict[int, Group]]:
        return {}

    def round(self, number: int) -> Round:
        """Returns the groups of round ``number``, counted from 0 without end; equal rounds are one object."""
        if number < 0:
            raise ValueError(f"round {number}; rounds count from 0")
        number = self.same_as(number % self.period)
        if number not in self._built:
            self._built[number] = _complete(self.build(number), self.world)
        return self._built[number]

    def group_of(self, number: int, rank: int) -> Group:
        """Returns the group of ``rank`` in round ``number``."""
        if not 0 <= rank < self.world:
            raise ValueError(f"rank {rank} is not one of {self.world}")
        if number < 0:
            raise ValueError(f"round {number}; rounds count from 0")
        number = self.same_as(number % self.period)
        if number not in self._places:
            self._places[number] = {one: group for group in self.round(number) for one in group.ranks}
        return self._places[number][rank]

    @cached_property
    def memberships(self) -> tuple[tuple[int, ...], ...]:
        """Every set of two or more ranks that is a group in some round, once, in the order in which all ranks create them."""
        return tuple(dict.fromkeys(g.ranks for groups in self.rounds for g in groups if len(g.ranks) > 1))

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits that stand for all rounds; ranks compare them."""
        text = hashlib.sha256(f"{self.world}/{self.exact_rounds}".encode())
        for groups in self.rounds:
            text.update(repr([(g.ranks, str(g.relaxation)) for g in groups]).encode())
        return text.hexdigest()[:16]

    @property
    def largest(self) -> int:
        """Ranks of the largest group."""
        return max(len(group.ranks) for groups in self.rounds for group in groups)

    def describe(self) -> dict[str, Any]:
        """Returns kind, world, settings and digest, in plain values for files."""
        return {
            "kind": self.kind,
            "world": self.world,
            "settings": dict(self.settings()),
            "period": self.period,
            "exact_rounds": self.exact_rounds,
            "largest_group": self.largest,
            "digest": self.digest,
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        more = "".join(f", {key}={value!r}" for key, value in self.settings().items())
        return f"<{self.kind} schedule of {self.world} ranks, period {self.period}{more}>"


def _complete(groups: Iterable[Group], world: int) -> Round:
    """Sorts groups and adds the ranks that are in none; ValueError if this is no partition, or a relaxation is out of bounds."""
    made = []
    free = [True] * world
    for ranks, relaxation in groups:
        ranks = tuple(sorted(ranks))
        size = len(ranks)
        if size > 1 and not 0 < relaxation * (size - 1) <= size:
            raise ValueError(f"relaxation {relaxation} of a group of {size}")
        for rank in ranks:
            if not (0 <= rank < world and free[rank]):
                raise ValueError(f"rank {rank} of {world} is in two groups, or does not exist")
            free[rank] = False
        made.append(Group(ranks, relaxation if size > 1 else ONE))
    made += [Group((rank,)) for rank in range(world) if free[rank]]
    return tuple(sorted(made, key=lambda group: group.ranks[0]))


def check_world(kind: str, world: int) -> None:
    """Refuses a number of ranks that no schedule is for."""
    if not 1 <= world <= 65_535:
        raise refuse(kind, "world", f"{world} ranks", "1 to 65535")


def check_group(kind: str, group: int) -> None:
    """Refuses a largest group that averages nothing."""
    if group < 2:
        raise refuse(kind, "group", f"{group}", "2 or more ranks")


def refuse(kind: str, key: str, problem: str, accepted: str) -> ConfigError:
    """Returns the error for an argument of a schedule."""
    return ConfigError(f"{kind} schedule", key, problem, accepted)


__all__ = ["ONE", "Group", "Round", "Schedule", "check_group", "check_world", "refuse"]
