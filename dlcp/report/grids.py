"""Charts of many cells: bars of parts, strips over time, and matrices whose cells also say their value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dlcp.report.axes import Axis, Scale, frame
from dlcp.report.charts import WIDE, shortened
from dlcp.report.figure import Drawing
from dlcp.report.markup import Markup, coordinate, element, joined

LEVELS: Final = 7
"""Shades of a strip or a matrix, above nothing at all."""


@dataclass(frozen=True)
class Part:
    """A part of a bar."""

    style: str
    value: float
    says: str


@dataclass(frozen=True)
class Bars:
    """Horizontal bars of parts, one for each row."""

    title: str
    rows: Sequence[tuple[str, Sequence[Part], str]]
    across: Axis
    width: float = WIDE

    def draw(self) -> Drawing:
        """Draws it."""
        left = min(24 + 7.2 * max((len(name) for name, _, _ in self.rows), default=0), 0.4 * self.width)
        totals = [sum(part.value for part in parts) for _, parts, _ in self.rows]
        x = Scale.over([0.0, *totals], left, self.width - 150, zero=True, margin=0.02)
        height = 28.0 * len(self.rows)
        pieces = [frame(x, Scale(0, 1, 10 + height, 10.0), self.across, None, rows=True)]
        for index, (name, parts, note) in enumerate(self.rows):
            middle = 10 + 28.0 * index + 14
            pieces.append(_label(name, left - 10, middle + 4))
            done = 0.0
            for part in parts:
                start, end = x(done), x(done + part.value)
                done += part.value
                box = element("title", part.says)
                pieces.append(
                    element(
                        "rect", box, class_=f"fill {part.style}", x=start, y=middle - 9, width=max(0.5, end - start), height=18.0
                    )
                )
            pieces.append(element("text", note, class_="note", x=x(done) + 8, y=middle + 4))
        marks = sum(len(parts) for _, parts, _ in self.rows)
        return Drawing(joined(pieces), self.width, 10 + height + 48, self.title, marks)


@dataclass(frozen=True)
class Strip:
    """A row of cells over time: ``values[i]`` from ``edges[i]`` to ``edges[i + 1]``; None where nothing was measured."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class Strips:
    """Rows of shades over time.

    Attributes:
        title: Its name.
        strips: The rows.
        edges: Of all cells.
        largest: What the darkest shade stands for.
        across: Axis of time.
        moments: Vertical lines with names.
    """

    title: str
    strips: Sequence[Strip]
    edges: Sequence[float]
    largest: float
    across: Axis
    moments: Sequence[tuple[float, str]] = ()
    width: float = WIDE

    def draw(self) -> Drawing:
        """Draws it: one path for each shade of a row, however many cells there are."""
        left = min(20 + 7.2 * max((len(strip.name) for strip in self.strips), default=0), 0.35 * self.width)
        x = Scale(self.edges[0], self.edges[-1], left, self.width - 14)
        height = 20.0 * len(self.strips)
        pieces = [frame(x, Scale(0, 1, 8 + height, 8.0), self.across, None, rows=True)]
        for index, strip in enumerate(self.strips):
            top = 8 + 20.0 * index
            pieces.append(element("rect", class_="track", x=left, y=top + 1, width=x.end - left, height=18.0))
            pieces += self._cells(strip, x, top + 1)
            pieces.append(_label(strip.name, left - 8, top + 14))
        for moment, says in self.moments:
            if self.edges[0] <= moment <= self.edges[-1]:
                place = x(moment)
                line = element("line", x1=place, x2=place, y1=8.0, y2=8 + height)
                pieces.append(element("g", line, element("title", says), class_="moment"))
        marks = sum(value is not None for strip in self.strips for value in strip.values)
        return Drawing(joined(pieces), self.width, 8 + height + 46, self.title, marks)

    def _cells(self, strip: Strip, x: Scale, top: float) -> list[Markup]:
        paths: dict[str, list[str]] = {}
        start = 0
        shades = [shade(value, self.largest) for value in strip.values]
        for index in range(1, len(shades) + 1):
            if index < len(shades) and shades[index] == shades[start]:
                continue
            if shades[start]:
                a, b = x(self.edges[start]), x(self.edges[index])
                box = f"M{coordinate(a)} {coordinate(top)}h{coordinate(b - a)}v18h{coordinate(a - b)}z"
                paths.setdefault(shades[start], []).append(box)
            start = index
        return [element("path", d="".join(boxes), class_=f"cell {name}") for name, boxes in sorted(paths.items())]


@dataclass(frozen=True)
class Matrix:
    """Cells with a shade and their value; rows and columns have names."""

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[float | None]]]
    largest: float
    text: Callable[[float | None], str]
    width: float = WIDE

    def draw(self) -> Drawing:
        """Draws it."""
        left = min(20 + 7.2 * max((len(name) for name, _ in self.rows), default=0), 0.35 * self.width)
        longest = max((len(shortened(name, 30)) for name in self.columns), default=1)
        step = min(110.0, (self.width - left - 40) / max(1, len(self.columns)))
        slanted = 7.2 * longest > step - 6
        head = 14 + (5.0 * longest if slanted else 10)
        pieces = []
        for index, name in enumerate(self.columns):
            place = left + step * (index + 0.5)
            turn = f"rotate(-40 {coordinate(place)} {coordinate(head - 8)})" if slanted else None
            anchor = "start" if slanted else "middle"
            shown = [element("title", name), shortened(name, 30)]
            pieces.append(element("text", *shown, class_="name", x=place, y=head - 8, transform=turn, text_anchor=anchor))
        for index, (name, values) in enumerate(self.rows):
            top = head + 24.0 * index
            pieces.append(_label(name, left - 8, top + 16))
            for column, value in enumerate(values):
                level = shade(value, self.largest)
                box = {"x": left + step * column + 1, "y": top + 1, "width": step - 2, "height": 22.0, "rx": 2}
                title = element("title", f"{name}, {self.columns[column]}: {self.text(value)}")
                cell = element("rect", title, **box, class_="box")
                text = element("text", self.text(value), x=box["x"] + box["width"] / 2, y=top + 16, text_anchor="middle")
                pieces.append(element("g", cell, text, class_=f"matrix {level}"))
        marks = sum(value is not None for _, values in self.rows for value in values)
        return Drawing(joined(pieces), self.width, head + 24.0 * len(self.rows) + 6, self.title, marks)


def shade(value: float | None, largest: float) -> str:
    """Returns the class of a value's shade: ``h1`` to ``h7``, or an empty string for nothing."""
    if value is None or value <= 0 or largest <= 0:
        return ""
    return f"h{min(LEVELS, 1 + int(LEVELS * min(value / largest, 1.0) * 0.9999))}"


def _label(name: str, x: float, y: float) -> Markup:
    return element("text", element("title", name), shortened(name), class_="name", x=x, y=y, text_anchor="end")


__all__ = ["LEVELS", "Bars", "Matrix", "Part", "Strip", "Strips", "shade"]
