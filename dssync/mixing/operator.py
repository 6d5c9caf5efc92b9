"""Rounds as linear operators: matrices for small worlds, and their action on vectors for large ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dssync.schedule.base import Round, Schedule

Array = NDArray[np.float64]

_DENSE: Final = 96
"""Largest world whose norms are computed from matrices."""


class Layout:
    """The partition of a round as arrays.

    Attributes:
        order: Ranks, group by group.
        starts: Where in ``order`` each group begins.
        label: Group of each rank.
        sizes: Ranks of each group.
    """

    def __init__(self, groups: Round, world: int) -> None:
        self.order: NDArray[np.intp] = np.fromiter((rank for group in groups for rank in group.ranks), np.intp, world)
        self.sizes: NDArray[np.intp] = np.fromiter((len(group.ranks) for group in groups), np.intp, len(groups))
        self.starts: NDArray[np.intp] = np.concatenate([np.zeros(1, np.intp), np.cumsum(self.sizes)[:-1]])
        self.label: NDArray[np.intp] = np.empty(world, np.intp)
        self.label[self.order] = np.repeat(np.arange(len(groups)), self.sizes)


class RoundOperator:
    """W of one round.

    Args:
        groups: The round.
        world: Number of ranks.
        weights: Of the ranks, above 0: groups average with these weights, and the weighted mean of all ranks is what stays.
            None for equal ones.
    """

    def __init__(self, groups: Round, world: int, weights: Sequence[float] | None = None) -> None:
        self._layout = Layout(groups, world)
        relaxation = np.array([float(group.relaxation) for group in groups])
        self._relaxation = relaxation[self._layout.label, None]
        self.weights = np.ones(world) if weights is None else np.asarray(weights, np.float64)
        self._total = np.add.reduceat(self.weights[self._layout.order], self._layout.starts)[:, None]

    def apply(self, values: Array) -> Array:
        """Returns W times ``values``, ``float64[world, columns]``."""
        layout = self._layout
        sums = np.add.reduceat((values * self.weights[:, None])[layout.order], layout.starts, axis=0)
        result: Array = values + self._relaxation * ((sums / self._total)[layout.label] - values)
        return result

    def matrix(self) -> Array:
        """Returns W, ``float64[world, world]``."""
        return self.apply(np.eye(len(self.weights)))


class Mixing:
    """The operators of a schedule."""

    def __init__(self, schedule: Schedule, weights: Sequence[float] | None = None) -> None:
        self.schedule = schedule
        self.weights = weights
        self._operators: dict[int, RoundOperator] = {}

    def operator(self, number: int) -> RoundOperator:
        """Returns the operator of a round."""
        number = self.schedule.same_as(number % self.schedule.period)
        if number not in self._operators:
            self._operators[number] = RoundOperator(self.schedule.round(number), self.schedule.world, self.weights)
        return self._operators[number]

    def apply(self, values: Array, start: int, count: int) -> Array:
        """Returns what ``values`` become by ``count`` rounds from ``start``."""
        for number in range(start, start + count):
            values = self.operator(number).apply(values)
        return values

    def matrix(self, start: int = 0, count: int | None = None) -> Array:
        """Returns the product of ``count`` rounds from ``start``; of one period if it is not given."""
        return self.apply(np.eye(self.schedule.world), start, self.schedule.period if count is None else count)

    def norm(self, start: int, count: int) -> float:
        """Returns the largest factor by which ``count`` rounds from ``start`` can leave a disagreement: |W...W - J|, spectral.

        Exact for small worlds; for large ones by subspace iteration, which comes from below and is good to some percent.
        """
        world = self.schedule.world
        if world == 1:
            return 0.0
        if world <= _DENSE:
            return _clean(float(np.linalg.norm(self.matrix(start, count) - 1.0 / world, 2)))
        values = _centred(np.random.default_rng(0).standard_normal((world, 4)))
        found = 0.0
        for _ in range(12):
            values = np.linalg.qr(values)[0]
            values = _centred(self.apply(values, start, count))
            # The rounds are symmetric: backwards they are the transpose.
            for number in range(start + count - 1, start - 1, -1):
                values = self.operator(number).apply(values)
            values = _centred(values)
            latest = float(np.linalg.norm(values, axis=0).max())
            if latest < 1e-24 or abs(latest - found) <= 1e-2 * latest:
                found = latest
                break
            found = latest
        return _clean(found**0.5)

    def contraction(self, window: int, starts: Iterable[int] | None = None) -> float:
        """Returns the largest :meth:`norm` of ``window`` rounds, over all ``starts``; those of one period if not given."""
        return max(self.norm(start, window) for start in (range(self.schedule.period) if starts is None else starts))


def _centred(values: Array) -> Array:
    result: Array = values - values.mean(axis=0)
    return result


def _clean(value: float) -> float:
    return 0.0 if value < 1e-9 else min(value, 1.0)


def expected_eigenvalue(world: int, group: int) -> float:
    """Returns the second eigenvalue of the expected W of uniformly random groups of ``group`` ranks, which has to divide the
    world.

    By symmetry E[W] = x I + y J; its trace is world / group, the number of groups, as W is a projection of that rank.
    """
    return (world - group) / (group * (world - 1))


__all__ = ["Mixing", "RoundOperator", "expected_eigenvalue"]
