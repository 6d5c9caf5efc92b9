"""A loss bound that follows training: low while gradients agree from step to step, up to the policy's when they are mostly noise.

Losing a random share p of every rank's contribution adds noise to the mean gradient.  With N ranks, mean gradient G and variance
S of one rank's gradient (both summed over all elements), that noise is p (|G|^2 + S) / N, while sampling alone makes S / N.  Loss
thus multiplies the noise by 1 + p (1 + |G|^2 / S).  So that its part never exceeds the policy's ceiling c,

    p = c / (1 + |G|^2 / S).

|G|^2 and S are estimated from averaged gradients g_t alone, which all ranks have anyway: E<g_t, g_(t-1)> = |G|^2, as the noise of
two steps is independent, and E|g_t|^2 = |G|^2 + S / N (the simple noise scale of McCandlish et al., arXiv 1812.06162, taken over
time instead of over batch sizes).  Where results are reliable all ranks see the same gradients and find the same bound; where
they do not, nothing breaks, for every message carries its own bound.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlcp.errors import ConfigError

LEVELS: Final = 10
"""The bound is a multiple of this part of the ceiling."""
HYSTERESIS: Final = 0.75
"""How many levels away the target must be before the bound moves."""
WARM_UP: Final = 8
"""Passes with an estimate before the bound leaves 0; fewer if the window is shorter."""
_FEWEST_SAMPLES: Final = 4096
_LARGEST: Final = 1e200
"""Sums of squares beyond this count as infinite: float32 cannot make them, and averages of them must not overflow."""
_VERSION: Final = 1


class Change(NamedTuple):
    """The bound has moved.

    Attributes:
        old: Before.
        new: From now on.
        reason: In words.
        ratio: |G|^2 / S, the signal-to-noise ratio of one rank's gradient; NaN if the gradients are not finite.
    """

    old: float
    new: float
    reason: str
    ratio: float


class GradientMeter:
    """Products of averaged gradients with themselves and with those of the pass before.

    Args:
        sample: Every how many elements one is looked at; fewer are skipped in short vectors.
    """

    def __init__(self, sample: int) -> None:
        self._sample = sample
        self._lock = threading.Lock()
        self._previous: dict[Hashable, NDArray[np.float32]] = {}
        self._current: dict[Hashable, NDArray[np.float32]] = {}
        self._products: list[tuple[float, float]] = []

    def observe(self, key: Hashable, gradient: NDArray[Any]) -> None:
        """Takes an averaged gradient, a float vector, which is not kept; from any thread."""
        step = max(1, min(self._sample, gradient.size // _FEWEST_SAMPLES))
        with np.errstate(over="ignore", invalid="ignore"):
            now = gradient[::step].astype(np.float32)
            wide = now.astype(np.float64)
            before = self._previous.get(key)
            product = None
            if before is not None and before.size == now.size:
                product = float(np.dot(wide, wide)), float(np.dot(wide, before.astype(np.float64)))
            elif not np.isfinite(wide).all():
                product = math.nan, math.nan
        with self._lock:
            self._current[key] = now
            if product is not None:
                self._products.append(product)

    def end_pass(self) -> tuple[float, float] | None:
        """Returns |g_t|^2 and <g_t, g_(t-1)> over the pass that ends, or None if nothing in it was there the pass before.

        The sums are exact, so that they do not depend on the order in which reductions ended.
        """
        with self._lock:
            products, self._products = self._products, []
            self._previous, self._current = self._current, {}
        if not products:
            return None
        try:
            return math.fsum(power for power, _ in products), math.fsum(cross for _, cross in products)
        except (ValueError, OverflowError):  # infinities of both signs
            return math.nan, math.nan

    def drop_pass(self) -> None:
        """Forgets what a pass that failed has left."""
        with self._lock:
            self._products, self._current = [], {}

    def scale(self, factor: float) -> None:
        """Multiplies what is remembered, as the loss scale of mixed precision changes."""
        with self._lock, np.errstate(over="ignore", invalid="ignore"):
            self._previous = {key: value * np.float32(factor) for key, value in self._previous.items()}


class AdaptiveBound:
    """The bound, from what :class:`GradientMeter` sees; pure and deterministic.

    It falls at once, and rises by one level at a time, every eighth of the window.  Gradients that are not finite put it to 0,
    and back to the start of the warm-up.

    Args:
        ceiling: The policy's ``loss.push``.
        world: Number of ranks.
        window: Passes over which signal and noise are averaged.

    Attributes:
        bound: Largest share that may be missing in the next pass, 0 to ``ceiling``.
    """

    def __init__(self, ceiling: float, world: int, window: int) -> None:
        self.bound = 0.0
        self._ceiling = ceiling
        self._world = world
        self._window = window
        self._signal = 0.0
        self._power = 0.0
        self._seen = 0
        self._still = 0

    @property
    def ratio(self) -> float:
        """|G|^2 / S of one rank's gradient, as estimated; infinite if there is no noise."""
        signal = min(max(self._signal, 0.0), self._power)
        noise = (self._power - signal) * self._world
        return signal / noise if noise > 0 else math.inf

    def update(self, power: float, cross: float) -> Change | None:
        """Takes the products of a pass; returns what changes."""
        if not (0 <= power <= _LARGEST and abs(cross) <= _LARGEST):
            self._seen = 0
            return self._move(0.0, "gradients are not finite", math.nan)
        self._seen += 1
        self._still += 1
        weight = 1 / min(self._window, self._seen)
        self._power += weight * (power - self._power)
        self._signal += weight * (cross - self._signal)
        if self._power <= 0 or self._seen < min(WARM_UP, self._window):
            return None
        ratio = self.ratio
        target = LEVELS / (1 + ratio)
        level = LEVELS * self.bound / self._ceiling if self._ceiling else 0.0
        if abs(target - level) < HYSTERESIS:
            return None
        if target < level:
            return self._move(round(target), "gradients agree more from step to step", ratio)
        if self._still < max(1, self._window // 8):
            return None
        return self._move(min(round(level) + 1, round(target)), "noise hides more loss", ratio)

    def scale(self, factor: float) -> None:
        """Follows a change of the loss scale."""
        self._signal *= factor * factor
        self._power *= factor * factor

    def _move(self, level: float, reason: str, ratio: float) -> Change | None:
        old, self.bound = self.bound, min(self._ceiling * level / LEVELS, self._ceiling)
        if old == self.bound:
            return None
        self._still = 0
        return Change(old, self.bound, reason, ratio)

    def state_dict(self) -> dict[str, Any]:
        """Returns plain numbers."""
        return {
            "version": _VERSION,
            "bound": self.bound,
            "signal": self._signal,
            "power": self._power,
            "seen": self._seen,
            "still": self._still,
        }

    def load_state_dict(self, state: Mapping[str, Any], source: str = "<bound>") -> None:
        """Takes up what :meth:`state_dict` returned; a bound above the ceiling, which may have changed, is lowered.

        Raises:
            ConfigError: It is malformed.  Nothing has changed.
        """
        if not isinstance(state, Mapping) or state.get("version") != _VERSION:
            raise ConfigError(source, "version", "not the state of a bound of this version", f"version {_VERSION}")
        values: dict[str, float] = {}
        for key in ("bound", "signal", "power", "seen", "still"):
            value = state.get(key)
            number = isinstance(value, int if key in ("seen", "still") else int | float) and not isinstance(value, bool)
            if not isinstance(value, int | float) or not number or not math.isfinite(value) or (key != "signal" and value < 0):
                raise ConfigError(source, key, f"{value!r}", "a finite number, whole for seen and still")
            values[key] = value
        self.bound = min(float(values["bound"]), self._ceiling)
        self._signal, self._power = float(values["signal"]), float(values["power"])
        self._seen, self._still = int(values["seen"]), int(values["still"])


class Adaptation:
    """Meter and bound of one model.

    Args:
        ceiling, world, window: See :class:`AdaptiveBound`.
        sample: See :class:`GradientMeter`.
    """

    def __init__(self, ceiling: float, world: int, window: int, sample: int) -> None:
        self.meter = GradientMeter(sample)
        self.control = AdaptiveBound(ceiling, world, window)

    def end_pass(self) -> Change | None:
        """Ends a pass that went well; returns what changes."""
        products = self.meter.end_pass()
        return None if products is None else self.control.update(*products)

    def scale(self, factor: float) -> None:
        """Follows a change of the loss scale."""
        self.meter.scale(factor)
        self.control.scale(factor)


__all__ = ["Adaptation", "AdaptiveBound", "Change", "GradientMeter"]
