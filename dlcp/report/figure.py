"""A figure: drawings, a caption, and the numbers behind them in a table that anybody can read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dlcp.report.markup import Content, Markup, element, joined
from dlcp.report.numbers import NOTHING, Spread, between

_LONG: Final = 40
"""Text of a table that is longer may be broken into lines."""


@dataclass(frozen=True)
class Value:
    """A number in a table: its text for people, and itself for machines and for sorting."""

    value: float | None
    text: Content


def value(number: float | None, text: Callable[[float | None], str]) -> Value:
    """Returns a number as it is written."""
    return Value(number, text(number))


def spread(found: Spread | None, text: Callable[[float | None], str]) -> Value:
    """Returns a median with the range of the runs."""
    if found is None:
        return Value(None, NOTHING)
    if found.count == 1:
        return Value(found.median, text(found.median))
    return Value(found.median, ranged(text(found.median), text(found.low), text(found.high)))


def ranged(text: str, low: str, high: str) -> Markup:
    """Returns a text with a range below it."""
    return joined([text, " ", element("span", between(low, high), class_="range")])


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        caption: What it shows, with units where cells have none.
        columns: Their headings.
        rows: Cells: text, or numbers as :class:`Value`.  The first cell of a row is its heading.
        notable: Positions of rows that stand out.
    """

    caption: str
    columns: Sequence[Content]
    rows: Sequence[Sequence[object]]
    notable: Sequence[int] = ()

    def render(self) -> Markup:
        """Returns it as HTML."""
        # A column in which nobody has anything to say.
        kept = [index for index in range(len(self.columns)) if index == 0 or any(row[index] != "" for row in self.rows)]
        columns = [self.columns[index] for index in kept]
        rows = [[row[index] for index in kept] for row in self.rows]
        numeric = [any(isinstance(row[index], Value) for row in rows) for index in range(len(columns))]
        head = [
            element("th", element("button", heading, type="button"), scope="col", class_="number" if is_number else None)
            for heading, is_number in zip(columns, numeric, strict=True)
        ]
        body = [
            element("tr", *self._cells(row), class_="notable" if index in self.notable else None)
            for index, row in enumerate(rows)
        ]
        table = element(
            "table",
            element("caption", self.caption),
            element("thead", element("tr", *head)),
            element("tbody", *body),
        )
        return element("div", table, class_="scroll", tabindex="0", role="region", aria_label=self.caption)

    @staticmethod
    def _cells(row: Sequence[object]) -> list[Markup]:
        cells = []
        for index, cell in enumerate(row):
            attributes: dict[str, Any] = {"scope": "row"} if index == 0 else {}
            content: Any = cell
            if isinstance(cell, Value):
                attributes["class_"] = "number"
                attributes["data_value"] = "" if cell.value is None else repr(float(cell.value))
                content = cell.text
            elif isinstance(cell, str) and len(cell) > _LONG:
                attributes["class_"] = "long"
            cells.append(element("th" if index == 0 else "td", content, **attributes))
        return cells


@dataclass(frozen=True)
class Key:
    """An entry of a legend; ``style`` is the class of the marks that it stands for."""

    name: str
    style: str
    kind: str = "line"


@dataclass(frozen=True)
class Drawing:
    """One SVG.

    Attributes:
        content: What is in it.
        width: In pixels.
        height: In pixels.
        title: Its name, for those who do not see it and above it for those who do.
        marks: How many data there are in it.
    """

    content: Markup
    width: float
    height: float
    title: str
    marks: int

    def render(self, *, titled: bool) -> Markup:
        """Returns it as HTML."""
        svg = element(
            "svg",
            element("title", self.title),
            self.content,
            viewBox=f"0 0 {self.width:g} {self.height:g}",
            width=self.width,
            height=self.height,
            role="img",
            aria_label=self.title,
            data_marks=self.marks,
        )
        return element("div", element("h4", self.title) if titled else None, svg, class_="drawing")


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        key: Its anchor.
        title: What it tells.
        caption: How to read it, with units.
        drawings: What is seen at once.
        more: What is seen on demand.
        what: Says what ``more`` is.
        legend: Meaning of the marks.
        tables: The numbers.
        empty: Why there is nothing to see, if so.
        open: The tables are part of what is seen at once.
    """

    key: str
    title: str
    caption: Content
    drawings: Sequence[Drawing] = ()
    more: Sequence[Drawing] = ()
    legend: Sequence[Key] = ()
    tables: Sequence[Table] = ()
    empty: str = ""
    open: bool = False
    columns: int = 1
    what: str = "More"

    def render(self) -> Markup:
        """Returns it as HTML."""
        heading = element("h3", self.title, id=f"{self.key}-title")
        parts: list[Content] = [heading]
        if self.empty:
            parts.append(element("p", self.empty, class_="nothing"))
        if self.legend:
            parts.append(element("ul", *(self._entry(key) for key in self.legend), class_="legend"))
        titled = len(self.drawings) + len(self.more) > 1
        if self.drawings:
            drawn = [drawing.render(titled=titled) for drawing in self.drawings]
            parts.append(element("div", *drawn, class_=f"drawings columns{self.columns}"))
        if self.more:
            drawn = [drawing.render(titled=True) for drawing in self.more]
            words = f"{self.what} ({len(drawn)})"
            hidden = element("div", *drawn, class_=f"drawings columns{self.columns}")
            parts.append(element("details", element("summary", words), hidden))
        parts.append(element("figcaption", self.caption))
        if self.tables:
            tables = [table.render() for table in self.tables]
            summary = element("summary", "The numbers")
            parts.append(joined(tables) if self.open else element("details", summary, *tables, class_="data"))
        return element("figure", *parts, id=self.key, aria_labelledby=f"{self.key}-title")

    @staticmethod
    def _entry(key: Key) -> Markup:
        shape = element("line", x1=1, x2=21, y1=6, y2=6, class_="curve")
        if key.kind == "area":
            shape = element("rect", x=1, y=0, width=12, height=12, class_="fill")
        sample = element("svg", shape, width=22, height=12, aria_hidden="true", class_=key.style)
        button = element("button", sample, key.name, type="button", aria_pressed="true", data_style=key.style)
        return element("li", button)


__all__ = ["Drawing", "Figure", "Key", "Table", "Value", "ranged", "spread", "value"]
