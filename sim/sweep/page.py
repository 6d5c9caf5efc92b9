"""The page of a sweep: metrics over axes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dlcp.errors import ConfigError
from dlcp.report.axes import Axis, time_axis
from dlcp.report.charts import Curve, Curves, Mark, Row, Rows
from dlcp.report.figure import Drawing, Figure, Key, Table, Value, value
from dlcp.report.markup import Content, element
from dlcp.report.numbers import count, number
from dlcp.report.page import Section, page, save
from dlcp.units import Delay, Rate, Size

FILE: Final = "sweep.html"
LINES: Final = 8
"""Lines of a plot."""
USUAL: Final = ("steps_s.mean", "exposed_s.mean", "completion_s.p50", "completion_s.p99", "slowdown.p50", "slowdown.p99")
"""What is plotted unless something is asked for."""

_PLAIN: Final = frozenset(("cell", "digest", "state", "cpu_s", "error"))

Found = list[dict[str, Any]]


def write_page(folder: Path, name: str, found: Found, axes: Sequence[str], plots: Sequence[tuple[str, str]] = ()) -> Path:
    """Writes the page.

    Args:
        folder: Of the sweep.
        name: Its title.
        found: As :func:`sim.sweep.table.rows` has it.
        axes: Keys that vary.
        plots: Metric and axis of each figure; by default usual metrics over every axis.

    Raises:
        ConfigError: A plot names a metric or an axis that is not there.
    """
    names = list(dict.fromkeys(key for row in found for key in row if key not in _PLAIN and key not in axes))
    for metric, axis in plots:
        if axis not in axes:
            raise ConfigError("--plot", axis, "is no axis of the grid", ", ".join(axes))
        if names and metric not in names:
            raise ConfigError("--plot", metric, "is no metric of any cell", ", ".join(names[:40]))
    wide = [axis for axis in axes if len({str(row[axis]) for row in found}) > 1] or list(axes)
    chosen = plots or [(metric, axis) for axis in wide for metric in USUAL if metric in names]
    figures: list[Figure | Content] = [plot(found, metric, axis, axes) for metric, axis in chosen]
    states = {state: sum(row["state"] == state for row in found) for state in ("done", "unfinished", "failed", "missing")}
    head: list[Content] = [
        element("h1", f"{name}: sweep"),
        element("ul", *(element("li", element("b", count(n)), f" {state}") for state, n in states.items() if n), class_="chips"),
    ]
    sections = [
        Section("plots", "Plots", figures or ["No cell has run."]),
        Section("cells", "All cells", [_table(found, axes, names).render()]),
    ]
    return save(
        folder / FILE, page(f"{name}: sweep", head, sections, "Times are simulated. table.csv and table.json have all metrics.")
    )


def plot(found: Found, metric: str, axis: str, axes: Sequence[str]) -> Figure:
    """Returns a figure of a metric over an axis.

    Lines are the combinations of the other axes but for the seed, if there are few; else the values of one of them. What a point
    stands for several cells of is their median, with their range.
    """
    cells = [row for row in found if isinstance(row.get(metric), int | float) and math.isfinite(row[metric])]
    title, key = f"{metric} over {axis}", f"{metric}-{axis}".replace(".", "-").replace("[", "-").replace("]", "-")
    if not cells:
        return Figure(key, title, "", empty="No cell has this metric.")
    lines = _lines(cells, axis, axes)
    unit = time_axis(metric, max(row[metric] for row in cells)) if metric.split(".")[0].endswith("_s") else Axis(metric)
    positions = [_position(row[axis]) for row in cells]
    numeric = all(position is not None for position in positions) and len(set(positions)) > 1
    drawing = _curves(lines, metric, axis, unit, title) if numeric else _rows(lines, metric, axis, unit, title)
    legend = [Key(name, f"s{place}") for place, name in enumerate(lines) if name]
    table = Table(title, [axis, "Line", "Cells", "Median", "Least", "Most"], _cells(lines, metric, axis))
    caption = "Median of the cells that share a place, with their range."
    return Figure(key, title, caption, [drawing], legend=legend, tables=[table])


def _lines(cells: Found, axis: str, axes: Sequence[str]) -> dict[str, Found]:
    others = [each for each in axes if each not in (axis, "seed") and len({str(row[each]) for row in cells}) > 1]
    # Keys that go together say the same; those of an axis that moves with this one say nothing.
    others = [each for each in others if not _follows(cells, each, axis)]
    while True:
        found: dict[str, Found] = {}
        for row in cells:
            found.setdefault(", ".join(f"{each.rpartition('.')[2]} {row[each]}" for each in others), []).append(row)
        if len(found) <= LINES or not others:
            return found
        others.pop()


def _follows(cells: Found, one: str, other: str) -> bool:
    """Tells whether one axis has one value only for each value of another."""
    known: dict[str, str] = {}
    return all(known.setdefault(str(row[other]), str(row[one])) == str(row[one]) for row in cells)


def _groups(rows: Found, metric: str, axis: str) -> list[tuple[Any, list[float]]]:
    found: dict[str, tuple[Any, list[float]]] = {}
    for row in rows:
        found.setdefault(str(row[axis]), (row[axis], []))[1].append(row[metric])
    return list(found.values())


def _curves(lines: dict[str, Found], metric: str, axis: str, unit: Axis, title: str) -> Drawing:
    curves = []
    for place, (name, rows) in enumerate(lines.items()):
        points = sorted((_position(at) or 0.0, values) for at, values in _groups(rows, metric, axis))
        middle = [(x, statistics.median(values)) for x, values in points]
        band = [(x, min(values), max(values)) for x, values in points] if any(len(values) > 1 for _, values in points) else []
        curves.append(Curve(name or metric, f"s{place}", middle, band))
    xs = [x for curve in curves for x, _ in curve.points]
    log = min(xs) > 0 and max(xs) / min(xs) >= 20
    return Curves(title, curves, Axis(_axis_label(lines, axis)), unit, log_x=log, zero=True).draw()


def _rows(lines: dict[str, Found], metric: str, axis: str, unit: Axis, title: str) -> Drawing:
    places = {str(at): at for rows in lines.values() for at, _ in _groups(rows, metric, axis)}
    drawn = []
    for at in places.values():
        for place, (name, rows) in enumerate(lines.items()):
            values = [row[metric] for row in rows if str(row[axis]) == str(at)]
            if values:
                middle = statistics.median(values)
                says = f"{at}, {name}: {number(middle * unit.factor)}" if name else f"{at}: {number(middle * unit.factor)}"
                marks = [Mark(middle, min(values), max(values), says)]
                drawn.append(Row(f"{at}  {name}".strip(), f"s{place}", marks, note=number(middle * unit.factor)))
    return Rows(title, drawn, unit).draw()


def _cells(lines: dict[str, Found], metric: str, axis: str) -> list[list[object]]:
    return [
        [str(at), name, value(len(values), count),
         *(value(each, _plain) for each in (statistics.median(values), min(values), max(values)))]
        for name, rows in lines.items()
        for at, values in _groups(rows, metric, axis)
    ]  # fmt: skip


def _plain(each: float | None) -> str:
    return number(each, 5)


def _axis_label(lines: dict[str, Found], axis: str) -> str:
    text = next(row[axis] for rows in lines.values() for row in rows)
    for kind, unit in ((Size, "bytes"), (Rate, "bit/s"), (Delay, "s")):
        if isinstance(text, str) and _parsed(kind, text) is not None:
            return f"{axis} ({unit})"
    return axis


def _position(each: object) -> float | None:
    """Returns where a value stands on an axis: numbers, and texts with a unit; None of all else."""
    if isinstance(each, bool):
        return None
    if isinstance(each, int | float):
        return float(each)
    if isinstance(each, str):
        for kind, factor in ((Size, 1.0), (Rate, 1.0), (Delay, 1e-12)):
            found = _parsed(kind, each)
            if found is not None:
                return found * factor
    return None


def _parsed(kind: Any, text: str) -> float | None:
    try:
        return float(kind.parse(text))
    except (ValueError, ConfigError):
        return None


def _table(found: Found, axes: Sequence[str], names: Sequence[str]) -> Table:
    shown = [name for name in names if not name.startswith("by_")]
    cells = [
        [
            str(row["cell"]),
            row["state"],
            *(_text(row[axis]) for axis in axes),
            *(value(row.get(name), _plain) for name in shown),
            value(row["cpu_s"], _plain),
            row["error"],
        ]
        for row in found
    ]
    failed = [index for index, row in enumerate(found) if row["state"] == "failed"]
    return Table("Every cell; times in seconds.", ["Cell", "State", *axes, *shown, "CPU time", "Error"], cells, notable=failed)


def _text(each: object) -> Value | str:
    return Value(float(each), str(each)) if isinstance(each, int | float) and not isinstance(each, bool) else str(each)


__all__ = ["FILE", "USUAL", "plot", "write_page"]
