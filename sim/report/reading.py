"""Reads what a run has left: the summary, and the tables, column by column."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from dlcp.errors import ConfigError
from sim.compare import load
from sim.output import TABLES

TEXT: Final = frozenset(
    (
        "source",
        "destination",
        "job",
        "group",
        "node",
        "peer",
        "host",
        "what",
        "collective",
        "operation",
        "last_ready_host",
        "last_done_host",
        "straggler_host",
    )
)
"""Columns that are no numbers."""

Columns = dict[str, list[Any]]


class Run:
    """One run.

    Args:
        path: The folder of ``--out``, or a file that ``--json`` has printed, which has no tables.

    Attributes:
        name: How figures call it.
        summary: As :func:`sim.results.summarize` has it.

    Raises:
        ConfigError: There is no summary.
    """

    def __init__(self, path: Path, name: str = "") -> None:
        self.folder = path if path.is_dir() else None
        self.summary = load(path)
        self.name = name or (path.resolve().name if path.is_dir() else path.stem)
        self._tables: dict[str, Columns] = {}

    def table(self, name: str) -> Columns:
        """Returns a table as columns of equal length; no columns if there is no such file.

        Raises:
            ConfigError: The file is no table.
        """
        if name not in self._tables:
            self._tables[name] = self._read(name)
        return self._tables[name]

    def rows(self, name: str) -> Iterator[dict[str, Any]]:
        """Yields the rows of a table."""
        columns = self.table(name)
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))

    @cached_property
    def title(self) -> str:
        """Says in a few words what ran."""
        return f"{self.summary.get('transport', '?')}, {self.summary.get('spray', '?')}"

    def _read(self, name: str) -> Columns:
        for suffix in ("csv", "jsonl"):
            path = None if self.folder is None else self.folder / f"{name}.{suffix}"
            if path is not None and path.is_file():
                try:
                    with path.open(newline="", encoding="utf-8") as file:
                        columns = _from_csv(file, path) if suffix == "csv" else _from_jsonl(file, path)
                    lacking = [column for column in TABLES[name] if columns and column not in columns]
                    if lacking:
                        raise ConfigError(path, lacking[0], "missing", "a table of this version of dlcp sim run")
                    return columns
                except (UnicodeDecodeError, csv.Error) as error:
                    raise ConfigError(path, "(file)", f"cannot be read: {error}", "a table of dlcp sim run") from None
        return {}


def _from_csv(file: Any, path: Path) -> Columns:
    reader = csv.reader(file)
    header = next(reader, [])
    columns: Columns = {name: [] for name in header}
    for number, row in enumerate(reader, 2):
        if len(row) != len(header):
            raise ConfigError(path, f"line {number}", f"has {len(row)} fields", f"{len(header)}, as the header has")
        for name, text in zip(header, row, strict=True):
            columns[name].append(text if name in TEXT else _number(text, path, number, name))
    return columns


def _from_jsonl(file: Any, path: Path) -> Columns:
    columns: Columns = {}
    for number, line in enumerate(file, 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(path, f"line {number}", f"is not JSON: {error}", "a table of dlcp sim run") from None
        if not isinstance(row, dict) or (columns and list(row) != list(columns)):
            raise ConfigError(path, f"line {number}", "has other columns than the first", "a table of dlcp sim run")
        for name, value in row.items():
            sound = isinstance(value, str) if name in TEXT else value is None or type(value) in (int, float)
            if not sound or (isinstance(value, float) and not math.isfinite(value)):
                raise ConfigError(path, f"line {number}", f"{name} is {value!r:.40}", "text" if name in TEXT else "a number")
            columns.setdefault(name, []).append(value)
    return columns


def _number(text: str, path: Path, line: int, name: str) -> float | int | None:
    if not text:
        return None
    try:
        value = float(text)
        if math.isfinite(value):
            return int(text) if text.lstrip("-").isdecimal() else value
    except ValueError:
        pass
    raise ConfigError(path, f"line {line}", f"{name} is {text!r:.40}", "a number")


__all__ = ["TEXT", "Columns", "Run"]
