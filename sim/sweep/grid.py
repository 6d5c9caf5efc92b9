"""The grid: which keys of a scenario take which values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from dlcp.errors import ConfigError
from dlcp.schema import Document, refuse, required, section, setting
from dlcp.schema_kinds import Items, Kind, Text, join, shown

MOST: Final = 100_000
"""Cells of a grid."""

Values = dict[str, Any]
"""Values of one cell by key of the scenario, with points: ``transport.name``."""


@dataclass(frozen=True)
class Changes(Kind):
    """Keys of a scenario and their values: plain TOML tables, nested or with keys that have points.

    Attributes:
        lists: Every value is a list, of the values that the key takes one after the other.
    """

    lists: bool = False

    @property
    def accepted(self) -> str:
        return "a table of keys of the scenario" + (", each with a list of values" if self.lists else " and their values")

    def parse(self, value: object, key: str) -> Values:
        if value == ():
            return {}  # the default, which has to be immutable
        if not isinstance(value, Mapping):
            raise refuse(key, f"{shown(value)} is no table", self.accepted)
        found: Values = {}
        for name, each in _leaves(value, ""):
            if self.lists and (not isinstance(each, list | tuple) or not each):
                raise refuse(join(key, name), f"{shown(each)} is no list of values", "a list with at least one value")
            if name in found:
                raise refuse(join(key, name), "stands twice", "one list for a key")
            found[name] = list(each) if self.lists else each
        return found

    def dump(self, value: Any) -> Any:
        return dict(value)


def _leaves(table: Mapping[Any, Any], key: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        path = f"{key}.{name}" if key else str(name)
        if isinstance(value, Mapping):
            yield from _leaves(value, path)
        else:
            yield path, value


@section
class Grid(Document):
    """A sweep: a scenario, and which of its keys take which values."""

    title: ClassVar[str] = "Sweep."

    scenario: str = required(Text(r"[^\x00-\x1f\x7f]{1,1000}", "a path"), doc="File of the scenario, relative to this one.")
    set: Values = setting(Changes(), default=(), doc="Keys that are changed in every cell.")
    grid: Values = setting(Changes(lists=True), default=(), doc="Keys and their values; every combination is a cell.")
    zip: tuple[Values, ...] = setting(
        Items(Changes(lists=True), 0, 100), default=(), doc="Tables of keys whose values go together, first with first."
    )

    def check(self) -> None:
        """Refuses lists of different length, keys that stand twice, and grids without an axis or an end."""
        seen: dict[str, str] = {}
        tables = [("set", self.set), ("grid", self.grid), *((f"zip[{index}]", each) for index, each in enumerate(self.zip))]
        for name, table in tables:
            for key in table:
                if key in seen:
                    raise refuse(join(name, key), f"stands in {seen[key]}, too", "one place for a key")
                seen[key] = name
        for index, table in enumerate(self.zip):
            lengths = {len(values) for values in table.values()}
            if len(lengths) != 1:
                raise refuse(f"zip[{index}]", f"lists of {', '.join(map(str, sorted(lengths)))} values", "lists of one length")
        if not self.axes:
            raise refuse("grid", "no key takes several values", "a table [grid], or [[zip]]")
        if self.count > MOST:
            raise refuse("grid", f"{self.count} cells", f"at most {MOST}")

    @property
    def axes(self) -> list[str]:
        """Keys that vary, in the order of the file."""
        return [*self.grid, *(key for table in self.zip for key in table)]

    @property
    def count(self) -> int:
        """Number of cells."""
        lengths = [len(values) for values in self.grid.values()] + [len(next(iter(table.values()))) for table in self.zip]
        return math.prod(lengths)

    def cells(self) -> Iterator[Values]:
        """Yields the values of each cell, those of the last axis changing first."""
        parts: list[list[Values]] = [[{key: value} for value in values] for key, values in self.grid.items()]
        for table in self.zip:
            parts.append([dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)])
        for chosen in itertools.product(*parts):
            yield {key: value for each in chosen for key, value in each.items()}


def apply(fields: dict[str, Any], changes: Values, source: str) -> dict[str, Any]:
    """Returns the fields of a scenario with changes.

    Raises:
        ConfigError: A key leads through something that is no table.
    """
    made: dict[str, Any] = _copied(fields)
    for key, value in changes.items():
        *sections, name = key.split(".")
        table: Any = made
        for part in sections:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError(source, key, f"{part} is no table", "a key of the scenario")
        table[name] = value
    return made


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


__all__ = ["MOST", "Changes", "Grid", "Values", "apply"]
