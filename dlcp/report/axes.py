"""Axes: from values to pixels, and where the ticks stand."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dlcp.report.markup import Markup, element, joined
from dlcp.report.numbers import number

_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Scale:
    """Maps the values from ``low`` to ``high`` to the pixels from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def over(
        cls, values: Iterable[float], start: float, end: float, *, log: bool = False, zero: bool = False, margin: float = 0.04
    ) -> Scale:
        """Returns a scale that shows all values.

        Args:
            values: Finite; those that a logarithmic scale cannot show are ignored.
            start: First pixel.
            end: Last pixel.
            log: Logarithmic.
            zero: Begin at 0, if linear.
            margin: Share of the range that is added at its ends.
        """
        shown = [value for value in values if not log or value > 0]
        low, high = (min(shown), max(shown)) if shown else (1.0 if log else 0.0, 10.0 if log else 1.0)
        if log:
            # Of something that spans more than this, the smallest says nothing.
            low = max(low, high * 1e-12)
            spread = max(math.log10(high / low), 0.3) * margin
            return cls(low / 10**spread, high * 10**spread, start, end, log=True)
        if zero:
            low = min(0.0, low)
        if high <= low:
            high = low + (abs(low) or 1.0)
        room = (high - low) * margin
        return cls(low if zero and low == 0 else low - room, high + room, start, end)

    def __call__(self, value: float) -> float:
        """Returns the pixel of a value, within the axis."""
        if self.log:
            place = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            place = (value - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, place)) * (self.end - self.start)

    def ticks(self, wanted: int = 6) -> list[float]:
        """Returns round values within the scale, about as many as wanted."""
        return self._decades(wanted) if self.log else self._linear(wanted)

    def _linear(self, wanted: int) -> list[float]:
        rough = (self.high - self.low) / max(1, wanted)
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(step * power for step in _STEPS if step * power >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]

    def _decades(self, wanted: int) -> list[float]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for factors in ((1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
            ticks = [factor * 10.0**decade for decade in decades for factor in factors]
            ticks = [tick for tick in ticks if self.low <= tick <= self.high]
            if len(ticks) <= wanted + 1:
                break
        stride = max(1, -(-len(ticks) // (wanted + 1)))
        return ticks[::stride]


@dataclass(frozen=True)
class Axis:
    """What stands beside a scale.

    Attributes:
        label: What is measured, with its unit.
        factor: Values are multiplied by it for their labels, 1000 for milliseconds.
        percent: Labels are shares in per cent.
    """

    label: str
    factor: float = 1.0
    percent: bool = False

    def text(self, value: float) -> str:
        """Writes the label of a tick."""
        if self.percent:
            return f"{100 * value:.6g} %"
        shown = value * self.factor
        return f"{shown:,.6g}" if 1e-4 <= abs(shown) < 1e7 or shown == 0 else number(shown, 1)


def time_axis(label: str, largest: float) -> Axis:
    """Returns the axis of a time in seconds, with the unit that suits the largest."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if largest * factor >= 1:
            return Axis(f"{label} ({unit})", factor)
    return Axis(f"{label} (µs)", 1e6)


def frame(x: Scale, y: Scale, across: Axis, up: Axis | None, *, rows: bool = False) -> Markup:
    """Draws grid, ticks and labels of a panel.

    Args:
        x: Across.
        y: Up; ``start`` is the lower end.
        across: Of ``x``.
        up: Of ``y``; None where rows have names of their own.
        rows: No horizontal grid.
    """
    top, bottom = min(y.start, y.end), max(y.start, y.end)
    pieces = []
    for tick in x.ticks(max(3, round(abs(x.end - x.start) / 90))):
        place = x(tick)
        pieces.append(element("line", class_="grid", x1=place, x2=place, y1=top, y2=bottom))
        pieces.append(element("text", across.text(tick), class_="tick", x=place, y=bottom + 16, text_anchor="middle"))
    if up is not None and not rows:
        for tick in y.ticks(max(3, round(abs(y.end - y.start) / 42))):
            place = y(tick)
            pieces.append(element("line", class_="grid", x1=x.start, x2=x.end, y1=place, y2=place))
            pieces.append(element("text", up.text(tick), class_="tick", x=x.start - 7, y=place + 4, text_anchor="end"))
    pieces.append(element("line", class_="axis", x1=x.start, x2=x.end, y1=bottom, y2=bottom))
    middle = (x.start + x.end) / 2
    pieces.append(element("text", across.label, class_="label", x=middle, y=bottom + 35, text_anchor="middle"))
    if up is not None:
        pieces.append(element("text", up.label, class_="label", x=max(0.0, x.start - 48), y=top - 9, text_anchor="start"))
    return joined(pieces)


__all__ = ["Axis", "Scale", "frame", "time_axis"]
