"""The convergence bound of docs/theory.md, in numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isinf, log, sqrt

import numpy as np

from dssync.mixing.operator import Mixing
from dssync.schedule.base import Schedule


@dataclass(frozen=True)
class Problem:
    """What is to be minimized: f, the mean of every rank's f_i.

    Attributes:
        smoothness: L: gradients of every f_i are L-Lipschitz.
        noise: sigma²: variance of a rank's stochastic gradient.
        heterogeneity: zeta²: mean over the ranks of |grad f_i - grad f|², at any point; 0 if all draw from the same data.
        gap: f at the start, less its infimum.
    """

    smoothness: float = 1.0
    noise: float = 1.0
    heterogeneity: float = 0.0
    gap: float = 1.0


@dataclass(frozen=True)
class Consensus:
    """How fast a schedule forgets disagreement: any ``window`` steps shrink it to ``factor`` of what it was, or less.

    Attributes:
        window: Steps.
        factor: Below 1.
    """

    window: int
    factor: float

    @property
    def first(self) -> float:
        """S1, the sum over m >= 1 of factor ** (m // window)."""
        return inf if self.factor >= 1 else self.window / (1 - self.factor) - 1

    @property
    def second(self) -> float:
        """S2, the same of the squares."""
        return inf if self.factor >= 1 else self.window / (1 - self.factor**2) - 1

    @property
    def gap(self) -> float:
        """Spectral gap for each step: 1 - factor ** (1 / window)."""
        return 1 - float(self.factor ** (1 / self.window))

    def steps_to(self, share: float) -> float:
        """Returns the steps until disagreement is ``share`` of what it was, if nothing else changes the values."""
        if self.factor >= 1:
            return inf
        if self.factor <= share:
            return self.window
        return self.window * log(share) / log(self.factor)


def measure_consensus(mixing: Mixing, every: int = 1) -> Consensus:
    """Finds window and factor of a schedule: those with the smallest S1 out of a few windows.

    Large worlds are measured from two starts only.

    Args:
        mixing: Of the schedule.
        every: Steps for each round.
    """
    schedule = mixing.schedule
    length = schedule.window
    if schedule.exact_from_any_round:
        return Consensus(every * length, 0.0)
    starts: Iterable[int] = range(min(schedule.period, length))
    windows = {1, max(1, length // 2), length, 2 * length, 4 * length}
    if schedule.exact_rounds is not None:
        windows.add(max(1, 2 * length - 1))
    if schedule.world > 256:
        starts, windows = {0, length // 2}, {max(1, length // 2), length}
    found = [Consensus(window, mixing.contraction(window, starts)) for window in sorted(windows)]
    best = min(found, key=lambda consensus: consensus.first)
    return Consensus(best.window * every, best.factor)


def disagreement(consensus: Consensus, problem: Problem, rate: float) -> float:
    """Returns the bound on the mean squared distance of a rank from the mean model, over all steps; inf if the rate is too
    high.
    """
    first = consensus.first
    if isinf(first):
        return inf
    left = 1 - 4 * (rate * problem.smoothness * first) ** 2
    if left <= 0:
        return inf
    return (2 * problem.noise * consensus.second + 4 * problem.heterogeneity * first**2) * rate**2 / left


def gradient_bound(consensus: Consensus, problem: Problem, rate: float, steps: float, world: int) -> float:
    """Returns the bound on the mean over all steps of E|grad f(mean model)|²; inf if the rate is above 1 / L or too high."""
    if rate * problem.smoothness > 1:
        return inf
    apart = disagreement(consensus, problem, rate)
    return 2 * problem.gap / (rate * steps) + rate * problem.smoothness * problem.noise / world + problem.smoothness**2 * apart


def steps_to_accuracy(consensus: Consensus, problem: Problem, accuracy: float, world: int) -> tuple[float, float]:
    """Returns the fewest steps whose bound is ``accuracy``, and the step size for them; (inf, nan) if there is none."""
    top = 1 / problem.smoothness
    if consensus.first > 0:
        top = min(top, 0.999 / (2 * problem.smoothness * consensus.first))
    if not top > 0:
        return inf, float("nan")
    best, chosen = inf, float("nan")
    for rate in np.geomspace(top * 1e-7, top, 500):
        rest = accuracy - gradient_bound(consensus, problem, float(rate), inf, world)
        if rest > 0 and 2 * problem.gap / (rate * rest) < best:
            best, chosen = float(2 * problem.gap / (rate * rest)), float(rate)
    return best, chosen


def consensus_of(schedule: Schedule, every: int = 1) -> Consensus:
    """Returns :func:`measure_consensus` of a schedule."""
    return measure_consensus(Mixing(schedule), every)


def largest_rate(consensus: Consensus, problem: Problem) -> float:
    """Returns the step size at which the bound on the disagreement is twice what it is for small steps."""
    top = 1 / problem.smoothness
    return min(top, 1 / (2 * sqrt(2) * problem.smoothness * consensus.first)) if consensus.first > 0 else top


__all__ = [
    "Consensus",
    "Problem",
    "consensus_of",
    "disagreement",
    "gradient_bound",
    "largest_rate",
    "measure_consensus",
    "steps_to_accuracy",
]
