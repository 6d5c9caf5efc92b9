"""Figures of messages and training: completion times, slowdowns, steps, collectives."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any, Final

from dlcp.report.axes import Axis, time_axis
from dlcp.report.charts import Curve, Curves, Mark, Row, Rows
from dlcp.report.figure import Figure, Key, Table, value
from dlcp.report.numbers import count, number, rate, seconds, size
from sim.report.reading import Columns, Run
from sim.results import percentile, spread

EDGES: Final = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
"""Where bins of sizes begin, bytes."""

_POINTS: Final = 400
_SHARES: Final = (0.5, 0.99, 0.999)


def distribution(values: Sequence[float]) -> list[tuple[float, float]]:
    """Returns value and share of values not above it, of at most some hundred of the sorted values, the ends included."""
    ordered = sorted(values)
    last = len(ordered) - 1
    places = range(last + 1) if last < _POINTS else sorted({round(last * index / _POINTS) for index in range(_POINTS + 1)})
    return [(ordered[place], (place + 1) / (last + 1)) for place in places]


def by(columns: Columns, key: str, wanted: str) -> dict[Any, list[Any]]:
    """Returns the values of a column by those of another, in order of the latter."""
    found: dict[Any, list[Any]] = {}
    for name, each in zip(columns.get(key, ()), columns.get(wanted, ()), strict=True):
        found.setdefault(name, []).append(each)
    return dict(sorted(found.items()))


def completion(run: Run) -> Figure:
    """Completion times of all messages, a curve for each class."""
    groups = {name: times for name, times in by(run.table("messages"), "class", "completion_s").items() if max(times) > 0}
    title = "Completion times of messages"
    if not groups:
        return Figure("completion", title, "", empty="No message is complete.")
    curves = [Curve(f"class {name}", f"k{name}", distribution(times)) for name, times in groups.items()]
    largest = max(max(times) for times in groups.values())
    drawing = Curves(
        title,
        curves,
        time_axis("completion time", largest),
        Axis("share of messages", percent=True),
        log_x=True,
        top=1.0,
        zero=True,
    ).draw()
    legend = [Key(curve.name, curve.style) for curve in curves]
    table = Table("Completion time by class.", ["Class", "Messages", "Mean", "p50", "p99", "p99.9", "Longest"], _spreads(groups))
    caption = "Share of the messages of a class that took no longer; logarithmic."
    return Figure("completion", title, caption, [drawing], legend=legend, tables=[table])


def _spreads(groups: dict[Any, list[Any]]) -> list[list[object]]:
    rows: list[list[object]] = []
    for name, times in groups.items():
        found = spread(times)
        rows.append([f"class {name}", value(found["count"], count)])
        rows[-1] += [value(found[key], seconds) for key in ("mean", "p50", "p99", "p999", "max")]
    return rows


def slowdown(run: Run) -> Figure:
    """Slowdown by size of message."""
    columns = run.table("messages")
    bins: dict[int, list[float]] = {}
    for length, factor in zip(columns.get("size_bytes", ()), columns.get("slowdown", ()), strict=True):
        bins.setdefault(bisect.bisect_right(EDGES, length), []).append(factor)
    title = "Slowdown by size"
    if not bins:
        return Figure("slowdown", title, "", empty="No message is complete.")
    rows, cells = [], []
    for place, factors in sorted(bins.items()):
        factors.sort()
        points = [percentile(factors, share) for share in _SHARES]
        low = "0" if not place else size(EDGES[place - 1])
        name = f"from {low}" if place == len(EDGES) else f"{low} to {size(EDGES[place])}"
        marks = [
            Mark(point, point, point, f"{name}, {label}: {number(point)}", "dot" if label == "p50" else "tail")
            for point, label in zip(points, ("p50", "p99", "p99.9"), strict=True)
        ]
        rows.append(Row(name, "s0", marks, note=f"p99 {number(points[1])}"))
        cells.append([name, value(len(factors), count), *(value(point, number) for point in points), value(factors[-1], number)])
    drawing = Rows(
        title, rows, Axis("completion time over the time that the message takes alone in the network"), log=True
    ).draw()
    table = Table("Slowdown by size of message.", ["Size", "Messages", "p50", "p99", "p99.9", "Largest"], cells)
    return Figure("slowdown", title, "Dot: median. Bars: p99 and p99.9.", [drawing], tables=[table])


def steps(run: Run) -> Figure | None:
    """Step by step what was computing and what was waiting; None of what is no training."""
    columns = run.table("iterations")
    if not columns.get("step_s"):
        return None
    jobs = list(dict.fromkeys(columns["job"]))
    curves = []
    for place, job in enumerate(jobs):
        rows = sorted((row for row in run.rows("iterations") if row["job"] == job), key=lambda row: row["iteration"])
        label = f"{job}: " if job else ""
        points = [(row["iteration"] + 1.0, row["step_s"]) for row in rows]
        worked = [(row["iteration"] + 1.0, row["compute_s"]) for row in rows]
        curves.append(Curve(f"{label}step", f"s{place}", points))
        curves.append(Curve(f"{label}computing of the slowest rank", f"b{place}", worked))
    title = "Time of every step"
    axis = time_axis("time", max(columns["step_s"]))
    drawing = Curves(title, curves, Axis("step"), axis, zero=True).draw()
    cells = [
        [
            f"{row['job']} {row['iteration'] + 1}".strip(),
            *(value(row[key], seconds) for key in ("step_s", "compute_s", "exposed_s", "mean_exposed_s")),
            row["straggler_host"],
            value(row["straggler_behind_s"], seconds),
        ]
        for row in run.rows("iterations")
    ]
    heads = ["Step", "Time", "Computing", "Exposed", "Exposed, mean of ranks", "Straggler", "Behind the median by"]
    caption = "What lies between the curves is exposed communication: time in which the slowest rank does not compute."
    legend = [Key(curve.name, curve.style) for curve in curves]
    return Figure("steps", title, caption, [drawing], legend=legend, tables=[Table("Every step.", heads, cells)])


def collectives(run: Run) -> Figure | None:
    """Times and bandwidths of collectives, over iterations; None of what is no training."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in run.rows("collectives"):
        groups.setdefault(f"{row['job']} {row['collective']}".strip(), []).append(row)
    if not groups:
        return None
    rows, cells = [], []
    for name, found in groups.items():
        times, bus = spread(row["time_s"] for row in found), spread(row["busbw_bit_per_s"] for row in found)
        alg = spread(row["algbw_bit_per_s"] for row in found)
        mark = Mark(bus["p50"], min(row["busbw_bit_per_s"] for row in found), bus["max"], f"{name}: {rate(bus['p50'])}")
        rows.append(Row(name, "s0", [mark], note=rate(bus["p50"])))
        cells.append(
            [
                name,
                found[0]["operation"],
                value(found[0]["size_bytes"], size),
                value(len(found), count),
                *(value(times[key], seconds) for key in ("mean", "p99", "max")),
                value(alg["mean"], rate),
                value(bus["mean"], rate),
            ]
        )
    title = "Bus bandwidth of collectives"
    drawing = Rows(title, rows, Axis("bus bandwidth (Gbit/s)", 1e-9)).draw()
    heads = ["Collective", "Operation", "Size", "Times", "Mean time", "p99", "Longest", "Mean algbw", "Mean busbw"]
    caption = "Median over steps, with the range. As in NCCL's tests: size over time, times 2 (n - 1) / n for an all-reduce."
    return Figure("collectives", title, caption, [drawing], tables=[Table("Collectives.", heads, cells)])


__all__ = ["by", "collectives", "completion", "distribution", "slowdown", "steps"]
