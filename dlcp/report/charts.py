"""Charts: curves with bands, and rows of values with their ranges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from dlcp.report.axes import Axis, Scale, frame
from dlcp.report.figure import Drawing
from dlcp.report.markup import Markup, coordinate, element, joined

WIDE: Final = 1000.0
HALF: Final = 492.0

Point = tuple[float, float]


@dataclass(frozen=True)
class Flag:
    """A point that matters: where it is, the range in x of its runs, and what it says."""

    x: float
    y: float
    low: float
    high: float
    says: str


@dataclass(frozen=True)
class Curve:
    """A line.

    Attributes:
        name: What it is.
        style: Class of its marks.
        points: Ascending in x.
        band: ``(x, low, high)``, ascending in x.
        flags: Points that matter.
        ends: Whether its name stands at its end.
    """

    name: str
    style: str
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()
    flags: Sequence[Flag] = ()


@dataclass(frozen=True)
class Curves:
    """A panel of curves.

    Attributes:
        title: Its name.
        curves: What is in it.
        across: Horizontal axis.
        up: Vertical axis.
        log_x: Logarithmic across.
        log_y: Logarithmic up.
        zero: The vertical axis begins at 0.
        top: Upper end of the vertical axis, if given.
        level: A horizontal line with a name.
        moments: Vertical lines with names.
    """

    title: str
    curves: Sequence[Curve]
    across: Axis
    up: Axis
    log_x: bool = False
    log_y: bool = False
    zero: bool = False
    top: float | None = None
    level: tuple[float, str] | None = None
    moments: Sequence[tuple[float, str]] = ()
    width: float = WIDE
    height: float = 360.0
    x_range: tuple[float, float] | None = None

    def draw(self) -> Drawing:
        """Draws it."""
        xs = [x for curve in self.curves for x, _ in curve.points] + list(self.x_range or ())
        ys = [y for curve in self.curves for _, y in curve.points]
        ys += [y for curve in self.curves for _, low, high in curve.band for y in (low, high)]
        ys += [self.level[0]] if self.level is not None else []
        ys += [self.top] if self.top is not None else []
        x = Scale.over(xs, 58.0, self.width - 14, log=self.log_x, zero=not self.log_x, margin=0.01)
        y = Scale.over(ys, self.height - 48, 28.0, log=self.log_y, zero=self.zero)
        pieces = [frame(x, y, self.across, self.up)]
        for moment, says in self.moments:
            place = x(moment)
            line = element("line", x1=place, x2=place, y1=y.end, y2=y.start)
            pieces.append(element("g", line, element("title", says), class_="moment"))
        if self.level is not None:
            place = y(self.level[0])
            pieces.append(element("line", class_="level", x1=x.start, x2=x.end, y1=place, y2=place))
            pieces.append(element("text", self.level[1], class_="tick", x=x.end, y=place - 5, text_anchor="end"))
        pieces += [_band(curve, x, y) for curve in self.curves if len(curve.band) > 1]
        pieces += [_line(curve, x, y) for curve in self.curves]
        pieces += [_flags(curve, x, y) for curve in self.curves if curve.flags]
        return Drawing(joined(pieces), self.width, self.height, self.title, len(self.curves))


def _band(curve: Curve, x: Scale, y: Scale) -> Markup:
    upper = [(x(place), y(high)) for place, _, high in curve.band]
    lower = [(x(place), y(low)) for place, low, _ in reversed(curve.band)]
    return element("path", d=_path(upper + lower) + "Z", class_=f"band {curve.style}")


def _line(curve: Curve, x: Scale, y: Scale) -> Markup:
    places = [(x(a), y(b)) for a, b in curve.points]
    title = element("title", curve.name)
    if len(places) == 1:
        return element("circle", title, cx=places[0][0], cy=places[0][1], r=3.5, class_=f"dot {curve.style}")
    return element("path", title, d=_path(places), class_=f"curve {curve.style}")


def _flags(curve: Curve, x: Scale, y: Scale) -> Markup:
    pieces = []
    for flag in curve.flags:
        middle = y(flag.y)
        if flag.high > flag.low:
            pieces.append(element("line", class_="whisker", x1=x(flag.low), x2=x(flag.high), y1=middle, y2=middle))
        pieces.append(element("circle", element("title", flag.says), class_="flag", cx=x(flag.x), cy=middle, r=5.5))
    return element("g", *pieces, class_=curve.style)


def _path(places: Sequence[Point]) -> str:
    """Returns a path, without points that do not change what is seen."""
    words: list[str] = []
    last: tuple[str, str] | None = None
    for a, b in places:
        point = (coordinate(round(a, 1)), coordinate(round(b, 1)))
        if point != last:
            words.append(f"{'L' if words else 'M'}{point[0]} {point[1]}")
        last = point
    return "".join(words)


# Rows


@dataclass(frozen=True)
class Mark:
    """A value in a row: ``shape`` is ``dot`` or ``tail``."""

    value: float
    low: float
    high: float
    says: str
    shape: str = "dot"


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        name: Stands in front of it.
        style: Class of its marks.
        marks: Its values; a line joins them.
        runs: Single values, small.
        note: Stands behind the last mark.
        empty: Stands in place of marks.
    """

    name: str
    style: str
    marks: Sequence[Mark] = ()
    runs: Sequence[float] = ()
    note: str = ""
    empty: str = ""


@dataclass(frozen=True)
class Rows:
    """Values, one row each, so that they can be compared along one axis."""

    title: str
    rows: Sequence[Row]
    across: Axis
    log: bool = False
    width: float = WIDE
    note_room: float = 150.0
    bars: bool = False
    level: float | None = None
    names: Callable[[Row], str] = field(default=lambda row: row.name)

    def draw(self) -> Drawing:
        """Draws it."""
        values = [v for row in self.rows for mark in row.marks for v in (mark.value, mark.low, mark.high)]
        values += [v for row in self.rows for v in row.runs]
        values += [self.level] if self.level is not None else []
        left = 24 + 7.2 * max((len(self.names(row)) for row in self.rows), default=0)
        left = min(left, 0.4 * self.width)
        height = 30.0 * len(self.rows)
        x = Scale.over(values, left, self.width - self.note_room, log=self.log, zero=not self.log, margin=0.02)
        y = Scale(0, 1, 12 + height, 12.0)
        pieces = [frame(x, y, self.across, None, rows=True)]
        if self.level is not None:
            place = x(self.level)
            pieces.append(element("line", class_="level", x1=place, x2=place, y1=12.0, y2=12 + height))
        for index, row in enumerate(self.rows):
            pieces.append(self._row(row, 12 + 30.0 * index + 15, x, left))
        marks = sum(len(row.marks) + len(row.runs) for row in self.rows)
        return Drawing(joined(pieces), self.width, 12 + height + 48, self.title, marks)

    def _row(self, row: Row, middle: float, x: Scale, left: float) -> Markup:
        pieces = [_name(self.names(row), left - 10, middle + 4)]
        if row.empty:
            pieces.append(element("text", row.empty, class_="note", x=left + 8, y=middle + 4))
        if self.bars and row.marks:
            start, end = x(0.0), x(row.marks[0].value)
            title = element("title", row.marks[0].says)
            a, b = sorted((start, end))
            pieces.append(element("rect", title, class_="fill", x=a, y=middle - 8, width=max(1.0, b - a), height=16.0, rx=2))
        elif len(row.marks) > 1:
            ends = [x(mark.value) for mark in row.marks]
            pieces.append(element("line", class_="joint", x1=min(ends), x2=max(ends), y1=middle, y2=middle))
        for mark in row.marks:
            if mark.high > mark.low:
                pieces.append(element("line", class_="whisker", x1=x(mark.low), x2=x(mark.high), y1=middle, y2=middle))
        pieces += [element("circle", class_="run", cx=x(run), cy=middle, r=3.0) for run in row.runs]
        if not self.bars:
            pieces += [self._mark(mark, x(mark.value), middle) for mark in row.marks]
        if row.note and row.marks:
            reach = max(x(v) for mark in row.marks for v in (mark.value, mark.high))
            pieces.append(element("text", row.note, class_="note", x=reach + 12, y=middle + 4))
        return element("g", *pieces, class_=row.style)

    @staticmethod
    def _mark(mark: Mark, place: float, middle: float) -> Markup:
        title = element("title", mark.says)
        if mark.shape == "tail":
            return element("rect", title, class_="tail", x=place - 2.5, y=middle - 8, width=5.0, height=16.0, rx=1.5)
        return element("circle", title, class_="flag", cx=place, cy=middle, r=6.0)


def _name(name: str, x: float, y: float) -> Markup:
    return element("text", element("title", name), shortened(name), class_="name", x=x, y=y, text_anchor="end")


def shortened(name: str, length: int = 44) -> str:
    """Returns a name that fits in front of a row."""
    return name if len(name) <= length else name[: length - 1] + "…"


__all__ = ["HALF", "WIDE", "Curve", "Curves", "Flag", "Mark", "Row", "Rows", "shortened"]
