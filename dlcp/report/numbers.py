"""Numbers for people: medians and ranges over runs, and how they are written."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

NOTHING: Final = "\N{EN DASH}"
_SPACE: Final = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Spread:
    """Several runs' values.

    Attributes:
        median: Their median.
        low: The smallest.
        high: The largest.
        count: How many there are.
    """

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Returns that of the values that are there, or None if none is."""
        found = sorted(value for value in values if value is not None and math.isfinite(value))
        return cls(statistics.median(found), found[0], found[-1], len(found)) if found else None


def confidence(count: int) -> float:
    """Probability that the range of ``count`` independent runs holds the true median (of order statistics: 1 - 2 * 0.5**n)."""
    return max(0.0, 1 - 2 * 0.5**count)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Returns the quantile of ascending values, by linear interpolation (as ``numpy.quantile`` does)."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def at(points: Sequence[tuple[float, float]], x: float) -> float | None:
    """Returns the value at ``x`` of a line through points that ascend in x; None outside."""
    if not points or not points[0][0] <= x <= points[-1][0]:
        return None
    index = bisect_right(points, x, key=lambda point: point[0])
    if index == len(points):
        return points[-1][1]
    (x0, y0), (x1, y1) = points[index - 1], points[index]
    return y0 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def smoothed(points: Sequence[tuple[float, float]], window: int) -> list[tuple[float, float]]:
    """Returns points whose y is the median of ``window`` (odd) neighbours, fewer at the ends."""
    half = window // 2
    values = [y for _, y in points]
    return [(x, statistics.median(values[max(0, index - half) : index + half + 1])) for index, (x, _) in enumerate(points)]


# How they are written


def number(value: float | None, digits: int = 3) -> str:
    """Writes a number with so many significant digits and no exponent between a millionth and a thousand million."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    if not 1e-6 <= abs(value) < 1e9:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def seconds(value: float | None) -> str:
    """Writes a time with the unit that suits."""
    if value is None or not math.isfinite(value):
        return NOTHING
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(value) >= size or unit == "µs":
            return f"{number(value / size)}{_SPACE}{unit}" if value else f"0{_SPACE}s"
    raise AssertionError


def duration(value: float) -> str:
    """Writes a long time."""
    if value < 120:
        return seconds(value)
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}{_SPACE}h {minutes}{_SPACE}min" if hours else f"{minutes}{_SPACE}min {rest}{_SPACE}s"


def share(value: float | None, digits: int = 1) -> str:
    """Writes a share in per cent."""
    return NOTHING if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f}{_SPACE}%"


def goal(value: float) -> str:
    """Writes a share that somebody has chosen, as short as it was written."""
    return f"{100 * value:.6g}{_SPACE}%"


def count(value: float | None) -> str:
    """Writes a number of things; one that is an average keeps its first decimal below a hundred."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 100 or float(value).is_integer() else f"{value:,.1f}"


def ratio(value: float | None) -> str:
    """Writes a factor."""
    return NOTHING if value is None or not math.isfinite(value) else f"{value:.2f}{_SPACE}\N{MULTIPLICATION SIGN}"


def between(low: str, high: str) -> str:
    """Writes a range of two values that are written already; a unit that both have stands once."""
    unit = high.rpartition(_SPACE)[2]
    return f"{low.removesuffix(_SPACE + unit) if _SPACE in high else low} … {high}"


def size(value: float | None) -> str:
    """Writes a number of bytes."""
    return _scaled(value, ("B", "kB", "MB", "GB", "TB"))


def rate(value: float | None) -> str:
    """Writes a rate in bits per second."""
    return _scaled(value, ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"))


def _scaled(value: float | None, units: Sequence[str]) -> str:
    if value is None or not math.isfinite(value):
        return NOTHING
    place = 0
    while abs(value) >= 1000 and place + 1 < len(units):
        value, place = value / 1000, place + 1
    return f"{number(value)}{_SPACE}{units[place]}"


__all__ = [
    "NOTHING",
    "Spread",
    "at",
    "between",
    "confidence",
    "count",
    "duration",
    "goal",
    "number",
    "quantile",
    "rate",
    "ratio",
    "seconds",
    "share",
    "size",
    "smoothed",
]
