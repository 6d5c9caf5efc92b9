"""Results of an experiment: a row for every cell, and the table of medians for readers."""

from __future__ import annotations

import csv
import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dlcp.errors import ConfigError
from dlcp.report.numbers import number
from sim.experiments.declaration import Column, Declaration
from sim.sweep.grid import Grid

BEGIN: Final = "<!-- results -->"
END: Final = "<!-- end of results -->"
"""Between these a README has the table."""

Result = dict[str, Any]
"""The names of a cell on all axes by heading, ``seed``, ``state``, and its numbers by heading; None is no number."""


def results(declaration: Declaration, grid: Grid, rows: Sequence[dict[str, Any]]) -> list[Result]:
    """Returns a result for every cell of a sweep.

    Args:
        declaration: What is wanted.
        grid: Of the sweep.
        rows: As :func:`sim.sweep.table.rows` has them, in the grid's order.

    Raises:
        ConfigError: The declaration has other axes than the grid.
    """
    lengths = [len(values) for values in grid.grid.values()] + [len(next(iter(table.values()))) for table in grid.zip]
    keys = [*grid.grid, *(None for _ in grid.zip)]
    shown = [place for place, key in enumerate(keys) if key != "seed"]
    expected, found = [lengths[place] for place in shown], [len(axis.names) for axis in declaration.axes]
    if expected != found:
        raise ConfigError("experiment.toml", "axes", f"have {found} names", f"{expected}, as many as the grid has values")
    made = []
    for position, row in zip(itertools.product(*map(range, lengths)), rows, strict=True):
        at = [position[place] for place in shown]
        names = {axis.heading: axis.names[where] for axis, where in zip(declaration.axes, at, strict=True)}
        seed = grid.grid["seed"][position[keys.index("seed")]] if "seed" in keys else 0
        values = {column.heading: _number(declaration, column, row, at) for column in declaration.columns}
        made.append({**names, "seed": seed, "state": row["state"], **values})
    return made


def _number(declaration: Declaration, column: Column, row: dict[str, Any], at: Sequence[int]) -> float | None:
    value, over = row.get(column.metric), row.get(column.over) if column.over else 1.0
    if row["state"] != "done" or value is None or not over or (column.inverse and not value):
        return None
    found = float(column.factor * over / value if column.inverse else column.factor * value / over)
    if column.bus:
        ranks = declaration.ranks[at[-1]]
        found *= 2 * (ranks - 1) / ranks
    return float(f"{found:.6g}")


def write(path: Path, found: Sequence[Result]) -> None:
    """Writes ``results.csv``."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(found)


def read(path: Path, declaration: Declaration) -> list[Result]:
    """Reads ``results.csv``.

    Raises:
        ConfigError: It has other columns than the declaration.
    """
    expected = [axis.heading for axis in declaration.axes] + ["seed", "state", *(each.heading for each in declaration.columns)]
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if list(reader.fieldnames or ()) != expected:
            raise ConfigError(path, "(header)", f"is {reader.fieldnames}", str(expected))
        found: list[Result] = [dict(row) for row in reader]
    for row in found:
        for column in declaration.columns:
            row[column.heading] = float(row[column.heading]) if row[column.heading] else None
    return found


def groups(declaration: Declaration, found: Sequence[Result]) -> dict[tuple[str, ...], list[Result]]:
    """Returns the results of each combination of names, which differ in the seed only."""
    made: dict[tuple[str, ...], list[Result]] = {}
    for row in found:
        made.setdefault(tuple(row[axis.heading] for axis in declaration.axes), []).append(row)
    return made


def values(rows: Sequence[Result], column: Column) -> list[float]:
    """Returns the numbers of some results, in ascending order."""
    return sorted(row[column.heading] for row in rows if row[column.heading] is not None)


def markdown(declaration: Declaration, found: Sequence[Result]) -> str:
    """Returns the table: the median over the seeds, and the range of what the figure shows."""
    headings = [*(axis.heading for axis in declaration.axes), *(column.heading for column in declaration.columns)]
    lines = ["| " + " | ".join(headings) + " |"]
    lines.append("|" + "---|" * len(headings))
    for names, rows in groups(declaration, found).items():
        cells = list(names)
        for column in declaration.columns:
            these = values(rows, column)
            if len(these) < len(rows):
                cells.append(", ".join(sorted({row["state"] for row in rows if row["state"] != "done"})))
                continue
            text = number(statistics.median(these), column.digits)
            if column.figure and len(these) > 1:
                text += f" ({number(these[0], column.digits)} to {number(these[-1], column.digits)})"
            cells.append(text)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def replace(text: str, table: str) -> str:
    """Returns a README with another table.

    Raises:
        ConfigError: It has no place for one.
    """
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ConfigError("README.md", "(table)", "has no place", f"{BEGIN} and {END}")
    return f"{head}{BEGIN}\n{table}\n{END}{tail}"


__all__ = ["BEGIN", "END", "Result", "groups", "markdown", "read", "replace", "results", "values", "write"]
