"""Random groups, the same on every rank and on every version of Python."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

from dssync.schedule.base import Group, Schedule, check_group, check_world, refuse

_MASK: Final = 2**64 - 1


class Shuffled(Schedule):
    """Uniformly random partitions into groups of equal or nearly equal sizes.

    A fixed number of partitions is drawn and then repeated, because process groups have to be created beforehand.  They connect
    all ranks.  For groups of g drawn afresh every round, the second eigenvalue of the expected mixing matrix is (N - g) / (g (N
    - 1)).

    Args:
        world: Number of ranks.
        group: Ranks of the largest group; there are as few groups as that allows, and their sizes differ by one at most.
        seed: Of the draws.
        partitions: How many are drawn.

    Raises:
        ConfigError: So few partitions cannot connect all ranks.
    """

    kind = "random"

    def __init__(self, world: int, group: int = 2, seed: int = 0, partitions: int = 8) -> None:
        check_world(self.kind, world)
        check_group(self.kind, group)
        if partitions < 1:
            raise refuse(self.kind, "partitions", f"{partitions}", "1 or more")
        self.world, self.group, self.seed = world, min(group, world), seed
        self.period, self.exact_rounds = partitions, None
        if self.group >= world:
            self.exact_rounds = 1 if world > 1 else 0
        count = -(-world // max(self.group, 1))
        for attempt in range(64):
            draws = SplitMix64(seed * 0x9E3779B97F4A7C15 + attempt)
            self._partitions = [_partition(draws, world, count) for _ in range(partitions)]
            if _connects(self._partitions, world):
                return
        problem = f"{partitions} partitions into groups of up to {group} do not connect {world} ranks"
        raise refuse(self.kind, "partitions", problem, "more of them, or larger groups")

    def build(self, number: int) -> Iterable[Group]:
        """One of the partitions."""
        return (Group(ranks) for ranks in self._partitions[number])

    def settings(self) -> dict[str, Any]:
        """Largest group, seed and number of partitions."""
        return {"group": self.group, "seed": self.seed, "partitions": self.period}


class SplitMix64:
    """Steele, Lea and Flood's generator (OOPSLA 2014): Python promises its own only for ``random()``."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def below(self, limit: int) -> int:
        """Returns a uniform number from 0 to ``limit`` - 1."""
        while True:
            self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
            z = self._state
            z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
            z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
            z ^= z >> 31
            if z < _MASK + 1 - (_MASK + 1) % limit:  # else the lowest results would come a little more often
                return z % limit

    def shuffled(self, count: int) -> list[int]:
        """Returns 0 to ``count`` - 1 in random order (Fisher and Yates)."""
        items = list(range(count))
        for last in range(count - 1, 0, -1):
            other = self.below(last + 1)
            items[last], items[other] = items[other], items[last]
        return items


def _partition(draws: SplitMix64, world: int, count: int) -> list[tuple[int, ...]]:
    order = draws.shuffled(world)
    bounds = [world * index // count for index in range(count + 1)]
    return [tuple(sorted(order[start:stop])) for start, stop in pairwise(bounds)]


def _connects(partitions: list[list[tuple[int, ...]]], world: int) -> bool:
    root = list(range(world))

    def find(rank: int) -> int:
        while root[rank] != rank:
            root[rank] = root[root[rank]]
            rank = root[rank]
        return rank

    for groups in partitions:
        for first, *others in groups:
            for other in others:
                root[find(other)] = find(first)
    return len({find(rank) for rank in range(world)}) == 1


__all__ = ["Shuffled", "SplitMix64"]
