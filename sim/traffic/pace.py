"""Stragglers: by what factor ranks compute more slowly, always and now and then."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """How slowly ranks compute.

    Attributes:
        slowness: Factor on the computing times of ranks 0, 1, ...; the rest is 1.
        jitter: Standard deviation of the logarithm of a further factor for each rank and step, whose mean is 1; 0 is none.
        probability: With which a rank straggles in a step.
        factor: By which it then is slower.
        seed: Of the random ones.
    """

    slowness: Sequence[float] = ()
    jitter: float = 0.0
    probability: float = 0.0
    factor: float = 1.0
    seed: int | str = 0

    def factors(self, world: int, steps: int) -> list[list[float]]:
        """Returns the factor of every rank in every step; shape steps x world.  More steps do not change those before."""
        # A string is hashed in the same way everywhere.
        source = random.Random(f"pace/{self.seed}")
        fixed = [self.slowness[rank] if rank < len(self.slowness) else 1.0 for rank in range(world)]
        return [[base * self._drawn(source) for base in fixed] for _ in range(steps)]

    def _drawn(self, source: random.Random) -> float:
        factor = 1.0
        if self.jitter:
            factor *= source.lognormvariate(-self.jitter * self.jitter / 2, self.jitter)
        if self.probability and source.random() < self.probability:
            factor *= self.factor
        return factor


__all__ = ["Pace"]
