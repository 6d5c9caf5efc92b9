"""What an experiment shows of its sweep: names for the values of its axes, columns, panels of its figure."""

from __future__ import annotations

from typing import ClassVar, Final

from dlcp.schema import Document, Record, refuse, required, section, setting
from dlcp.schema_kinds import Flag, Integer, Items, Number, Text

_TEXT: Final = Text(r"[^\x00-\x1f\x7f|]{1,80}", "a text of up to 80 characters, without vertical bars")
_METRIC: Final = Text(r"[A-Za-z0-9_.]{0,80}", "the name of a metric, such as steps_s.mean")


@section
class Axis:
    """An axis: a key of the grid other than the seed, or one of its tables whose lists go together."""

    heading: str = required(_TEXT, doc="What varies.")
    names: tuple[str, ...] = required(Items(_TEXT, 1, 1000), doc="A name for each of its values, in their order.")


@section
class Column:
    """A number of every cell."""

    heading: str = required(_TEXT, doc="What it is, with its unit.")
    metric: str = required(_METRIC, doc="Of the sweep's tables.")
    over: str = setting(_METRIC, default="", doc="Divided by this metric, if there is one.")
    factor: float = setting(Number(0, 1e18, above=True), default=1.0, doc="And times this.")
    inverse: bool = setting(Flag(), default=False, doc="Whether the factor is divided by the metric instead.")
    bus: bool = setting(
        Flag(),
        default=False,
        doc="Whether it is a bandwidth, to be multiplied by 2 (n - 1) / n for the n ranks that sum together.",
    )
    digits: int = setting(Integer(1, 9), default=3, doc="Significant digits in the table.")
    figure: bool = setting(Flag(), default=False, doc="Whether the figure has a panel of it.")


@section
class Declaration(Document):
    """What is shown of a sweep."""

    title: ClassVar[str] = "Experiment."

    name: str = required(_TEXT, doc="Title of the figure.")
    axes: tuple[Axis, ...] = required(Items(Record(Axis), 1, 6), doc="In the order of the grid: its keys, then its tables.")
    columns: tuple[Column, ...] = required(Items(Record(Column), 1, 20), doc="Of the table.")
    ranks: tuple[int, ...] = setting(
        Items(Integer(2, 65_535), 0, 1000), default=(), doc="How many ranks sum together, for each name of the last axis."
    )

    def check(self) -> None:
        """Refuses a bandwidth of nobody knows how many ranks, and headings that stand twice."""
        if any(column.bus for column in self.columns) and len(self.ranks) != len(self.axes[-1].names):
            raise refuse("ranks", f"{len(self.ranks)} numbers for {len(self.axes[-1].names)} names", "one for each")
        headings = [*(axis.heading for axis in self.axes), *(column.heading for column in self.columns)]
        if len(set(headings)) != len(headings):
            raise refuse("columns", "a heading stands twice", "a heading of its own for each")


__all__ = ["Axis", "Column", "Declaration"]
