"""The schedules that need no derivation: one group of all, and digits of a mixed-radix number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any

from dssync.schedule.base import ONE, Group, Schedule, check_group, check_world, refuse
from dssync.schedule.factors import fewest_factors


class BSP(Schedule):
    """All ranks in one group, every round: bulk-synchronous parallel averaging, the reference.

    Args:
        world: Number of ranks.
    """

    kind = "bsp"

    def __init__(self, world: int) -> None:
        check_world(self.kind, world)
        self.world, self.period, self.exact_rounds = world, 1, 1

    @property
    def exact_from_any_round(self) -> bool:
        """Always."""
        return True

    def build(self, number: int) -> Iterable[Group]:
        """One group."""
        return [Group(tuple(range(self.world)))]

    def settings(self) -> dict[str, Any]:
        """Nothing."""
        return {}


class Digits(Schedule):
    """Ranks as mixed-radix numbers; in round r those average that differ in digit r only.

    With g digits of radices g_1 ... g_d, whose product is the world, d rounds give the exact mean, from whichever round they
    start: averaging over one digit and averaging over another commute, and together they are averaging over all.

    Args:
        world: Number of ranks.
        group: Largest radix.
        radices: The radices, those of neighbouring ranks first; None for the fewest that ``group`` allows.

    Raises:
        ConfigError: No radices have this product: ``base-k`` is for that.
    """

    kind = "digits"

    def __init__(self, world: int, group: int = 2, radices: Sequence[int] | None = None) -> None:
        check_world(self.kind, world)
        if radices is None:
            check_group(self.kind, group)
            radices = fewest_factors(world, group)
            if radices is None:
                fit = next(size for size in range(group + 1, world + 1) if fewest_factors(world, size))
                problem = f"groups of up to {group} cannot tile {world} ranks"
                raise refuse(self.kind, "group", problem, f"{fit} or more, or the kind base-k, which takes any number of ranks")
        elif prod(radices) != world or any(radix < 2 for radix in radices):
            raise refuse(self.kind, "radices", f"{list(radices)} for {world} ranks", "factors above 1 whose product is the world")
        self.world, self.radices = world, tuple(radices)
        self.period = max(1, len(self.radices))
        self.exact_rounds = len(self.radices)

    @property
    def exact_from_any_round(self) -> bool:
        """Always."""
        return True

    def build(self, number: int) -> Iterable[Group]:
        """Groups of ranks that are equal in all digits but one."""
        if self.world == 1:
            return []
        return (Group(ranks, ONE) for ranks in digit_groups(self.world, self.radices, number))

    def settings(self) -> dict[str, Any]:
        """The radices."""
        return {"radices": list(self.radices)}


def digit_groups(world: int, radices: Sequence[int], digit: int) -> Iterator[tuple[int, ...]]:
    """Yields the groups of numbers below ``world`` that differ in one digit, the least significant being digit 0."""
    stride = prod(radices[:digit])
    radix = radices[digit]
    for block in range(0, world, stride * radix):
        for first in range(block, block + stride):
            yield tuple(range(first, first + stride * radix, stride))


__all__ = ["BSP", "Digits", "digit_groups"]
