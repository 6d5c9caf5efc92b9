"""Divide-and-shuffle SGD on small problems whose constants are known, to hold the convergence bound against what happens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from dssync.mixing.bound import Problem
from dssync.mixing.operator import Array, Mixing
from dssync.schedule.base import Schedule

Averaged = Literal["parameters", "gradients"]


class Objective(ABC):
    """f, the mean of f_i over the ranks, with f_i(x) = sum over k of phi(x_k - b_ik).

    Attributes:
        centres: b, ``float64[world, dimensions]``: how far its rows are apart is how far the ranks' data are.
    """

    def __init__(self, centres: Array) -> None:
        self.centres = centres

    @abstractmethod
    def slope(self, distance: Array) -> Array:
        """phi'."""

    @abstractmethod
    def value(self, distance: Array) -> Array:
        """phi; its least value is 0."""

    @abstractmethod
    def problem(self, noise: float, start: Array) -> Problem:
        """Returns constants that hold: smoothness, and the others from above."""

    def gradients(self, models: Array) -> Array:
        """Returns grad f_i at model i, for ``[..., world, dimensions]``."""
        return self.slope(models - self.centres)

    def gradient(self, model: Array) -> Array:
        """Returns grad f, for ``[..., dimensions]``."""
        result: Array = self.slope(model[..., None, :] - self.centres).mean(axis=-2)
        return result

    def loss(self, model: Array) -> float:
        """Returns f."""
        return float(self.value(model[None, :] - self.centres).sum(axis=-1).mean())


class Quadratic(Objective):
    """phi(u) = h u² / 2.

    Args:
        centres: See the class above.
        curvature: h.
    """

    def __init__(self, centres: Array, curvature: float = 1.0) -> None:
        super().__init__(centres)
        self.curvature = curvature

    def slope(self, distance: Array) -> Array:
        """h u."""
        return self.curvature * distance

    def value(self, distance: Array) -> Array:
        """h u² / 2."""
        return self.curvature / 2 * distance**2

    def problem(self, noise: float, start: Array) -> Problem:
        """All exact."""
        spread = self.centres - self.centres.mean(axis=0)
        zeta = float(self.curvature**2 * (spread**2).sum(axis=1).mean())
        return Problem(self.curvature, noise, zeta, self.loss(start) - self.loss(self.centres.mean(axis=0)))


class Saturating(Objective):
    """phi(u) = u² / (1 + u²): not convex, with a plateau far from every centre."""

    # phi'' = (2 - 6 u²) / (1 + u²)³ lies in [-1/2, 2], and |phi'| is largest at u² = 1/3, where it is 9 / (8 sqrt(3)).
    _STEEPEST: Final = 9 / (8 * 3**0.5)

    def slope(self, distance: Array) -> Array:
        """2 u / (1 + u²)²."""
        result: Array = 2 * distance / (1 + distance**2) ** 2
        return result

    def value(self, distance: Array) -> Array:
        """u² / (1 + u²)."""
        result: Array = distance**2 / (1 + distance**2)
        return result

    def problem(self, noise: float, start: Array) -> Problem:
        """Heterogeneity by the steepest slope, the gap by the least value of every f_i."""
        return Problem(2.0, noise, self._STEEPEST**2 * self.centres.shape[1], self.loss(start))


@dataclass(frozen=True)
class Trial:
    """What happened, as means over all steps and repetitions.

    Attributes:
        gradient: |grad f|² at the mean of the models.
        apart: Squared distance of a model from their mean.
        final_apart: The same at the end, after the last round.
    """

    gradient: float
    apart: float
    final_apart: float


def run_trial(
    schedule: Schedule,
    objective: Objective,
    start: Array,
    *,
    rate: float,
    steps: int,
    noise: float = 0.0,
    repetitions: int = 1,
    every: int = 1,
    averaged: Averaged = "parameters",
    seed: int = 0,
) -> Trial:
    """Runs SGD on all ranks.

    Args:
        schedule: Who averages with whom.
        objective: What is minimized.
        start: ``float64[dimensions]``, where all begin.
        rate: Step size.
        steps: How many.
        noise: Variance of a rank's stochastic gradient: Gaussian, spread evenly over the dimensions.
        repetitions: Independent runs, to come close to the expectation.
        every: Steps for each round.
        averaged: ``gradients`` is the ablation: gradients are averaged in the groups, parameters never.
        seed: Of the noise.
    """
    world, dimensions = objective.centres.shape
    random = np.random.default_rng(seed)
    mixing = Mixing(schedule)
    models: Array = np.broadcast_to(start, (repetitions, world, dimensions)).copy()
    gradient = apart = final = 0.0

    def mix(values: Array, number: int) -> Array:
        flat = values.transpose(1, 0, 2).reshape(world, -1)
        result: Array = mixing.operator(number).apply(flat).reshape(world, repetitions, dimensions).transpose(1, 0, 2)
        return result

    for step in range(steps):
        mean: Array = models.mean(axis=1)
        gradient += float((objective.gradient(mean) ** 2).sum(axis=-1).mean()) / steps
        apart += float(((models - mean[:, None]) ** 2).sum(axis=-1).mean()) / steps
        gradients = objective.gradients(models)
        if noise:
            gradients = gradients + random.standard_normal(models.shape) * (noise / dimensions) ** 0.5
        meets = (step + 1) % every == 0
        number = step // every
        if averaged == "gradients":
            models = models - rate * (mix(gradients, number) if meets else gradients)
        else:
            models = models - rate * gradients
            if meets:
                models = mix(models, number)
        final = float(((models - models.mean(axis=1)[:, None]) ** 2).sum(axis=-1).mean())
    return Trial(gradient, apart, final)


__all__ = ["Objective", "Quadratic", "Saturating", "Trial", "run_trial"]
