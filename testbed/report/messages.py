"""Figures of messages: completion times by class, and what messages went without."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from dlcp.report.axes import Axis, time_axis
from dlcp.report.charts import HALF, WIDE, Curve, Curves
from dlcp.report.figure import Drawing, Figure, Key, Table, value
from dlcp.report.grids import Matrix
from dlcp.report.numbers import count, seconds, share, size
from testbed.report.view import Contender, View
from testbed.results import Completion, RunResult

_SHARE = Axis("share that is complete", percent=True)


def quantiles(found: Sequence[Completion]) -> list[float]:
    """Returns the median over runs of each of the 101 quantiles."""
    known = [each["quantiles_s"] for each in found if len(each["quantiles_s"]) == 101]
    return [statistics.median(values) for values in zip(*known, strict=True)]


def _curve(name: str, style: str, line: Sequence[float]) -> Curve:
    # What took no measurable time has no place on a logarithmic axis.
    return Curve(name, style, [(max(time, 1e-6), index / 100) for index, time in enumerate(line)])


def _row(name: str, kind: str, line: Sequence[float], found: Sequence[Completion]) -> list[object]:
    return [
        name,
        kind,
        value(sum(each["count"] for each in found), count),
        value(sum(each["bytes"] for each in found), size),
        *(value(line[place], seconds) for place in (50, 90, 99, 100)),
        value(sum(each["lost_packets"] for each in found), count),
    ]


_COLUMNS = ["Candidate", "Class", "Messages", "Bytes", "p50", "p90", "p99", "Longest", "Packets gone without"]


def completion(view: View) -> Figure:
    """CDF of the completion times of messages, by class."""
    panels: dict[str, Drawing] = {}
    cells: list[list[object]] = []
    present: set[str] = set()
    longest, shortest = 0.0, 1.0
    lines: dict[str, dict[str, list[float]]] = {}
    for contender in view.contenders:
        names = sorted({name for run in contender.shown for name in run["classes"]}, key=_order)
        for name in names:
            found = [run["classes"][name] for run in contender.shown if name in run["classes"]]
            line = quantiles(found)
            if line:
                lines.setdefault(contender.name, {})[name] = line
                longest, shortest = max(longest, line[-1]), min(shortest, line[0])
                present.add(name)
                cells.append(_row(contender.name, _class(name), line, found))
    for candidate, of_class in lines.items():
        curves = [_curve(f"class {name}", f"k{_order(name)[0]}", line) for name, line in of_class.items()]
        axis, span = time_axis("completion time", longest), (max(shortest, 1e-6), longest)
        width = HALF if len(lines) > 1 else WIDE
        panels[candidate] = Curves(
            candidate, curves, axis, _SHARE, log_x=True, zero=True, top=1.0, width=width, height=280.0, x_range=span
        ).draw()
    if not panels:
        why = "No candidate sends messages that have classes: only DLCP does, and it writes them down when they complete."
        return Figure("completion", "Completion time of messages, by class", "", empty=why)
    drawings, more = _split(view, panels)
    caption = (
        "Share of messages that were acknowledged for good within a time from their submission. Each quantile is the median over "
        "runs. The stronger the colour, the more urgent: the front layers, which the next forward pass needs first, have the "
        "highest class. All panels have the same logarithmic axis."
    )
    legend = [Key(_class(name), f"k{_order(name)[0]}") for name in sorted(present, key=_order)]
    table = Table("Completion times of messages by class; counts are sums over runs.", _COLUMNS, cells)
    return Figure(
        "completion", "Completion time of messages, by class", caption, drawings, more, legend, [table], columns=2,
        what="Other candidates",
    )  # fmt: skip


def buckets(view: View) -> Figure:
    """CDF of the time that a bucket's all-reduce takes, whatever carries it."""
    curves, cells = [], []
    for contender in view.contenders:
        found = [run["buckets"] for run in contender.shown]
        line = quantiles(found)
        if line:
            curves.append(_curve(contender.name, contender.style, line))
            cells.append(_row(contender.name, "buckets", line, found))
    if not curves:
        return Figure("buckets", "Time of a bucket's all-reduce", "", empty="No run noted the buckets of its gradients.")
    longest = max(curve.points[-1][0] for curve in curves)
    drawing = Curves(
        "All-reduce of a gradient bucket",
        curves,
        time_axis("time from the bucket being ready until it is reduced", longest),
        _SHARE,
        log_x=True,
        zero=True,
        top=1.0,
        width=WIDE,
    ).draw()
    caption = "Share of gradient buckets that are reduced within a time; each quantile is the median over runs. Logarithmic."
    names = {curve.name for curve in curves}
    legend = [Key(contender.name, contender.style) for contender in view.contenders if contender.name in names]
    table = Table("Times of all-reduces of buckets; counts are sums over runs.", _COLUMNS, cells)
    return Figure("buckets", "Time of a bucket's all-reduce", caption, [drawing], legend=legend, tables=[table])


def losses(view: View) -> Figure:
    """Share of each class's packets that messages went without."""
    rows, cells = [], []
    present = sorted({name for contender in view.contenders for run in contender.shown for name in run["packets"]}, key=_order)
    for contender in view.contenders:
        if not any(run["packets"] for run in contender.shown):
            continue
        shares = []
        for name in present:
            sums = {key: _sum(contender, name, key) for key in ("protected", "droppable", "lost_protected", "lost_droppable")}
            sent, lost = sums["protected"] + sums["droppable"], sums["lost_protected"] + sums["lost_droppable"]
            shares.append(lost / sent if sent else None)
            cells.append([contender.name, _class(name), *(value(number, count) for number in sums.values()),
                          value(shares[-1], lambda v: share(v, 2))])  # fmt: skip
        rows.append((contender.name, shares))
    if not rows:
        why = "No candidate sends packets that may be lost for good: only DLCP does."
        return Figure("losses", "Packets that messages went without, by class", "", empty=why)
    largest = max((v for _, values in rows for v in values if v is not None), default=0.0)
    drawing = Matrix("Packets gone without", [_class(name) for name in present], rows, largest, lambda v: share(v, 2)).draw()
    caption = (
        "Share of the data packets, all runs together, that their messages were completed without; their gradients are owed and "
        "leave with the next step. Class 0 is the least urgent. Protected packets, the largest gradients, are never given up. "
        "The policy bounds the loss of a message, whose packets may be of several classes: one class may lose more than that."
    )
    columns = ["Candidate", "Class", "Protected", "Droppable", "Protected, lost", "Droppable, lost", "Share lost"]
    table = Table("Data packets as tagged by senders, all runs together; sent again does not count again.", columns, cells)
    return Figure("losses", "Packets that messages went without, by class", caption, [drawing], tables=[table])


def _sum(contender: Contender, name: str, key: str) -> int:
    of_class: Callable[[RunResult], int] = lambda run: run["packets"][name][key] if name in run["packets"] else 0  # type: ignore[literal-required]  # noqa: E731
    return sum(of_class(run) for run in contender.shown)


def _split(view: View, panels: dict[str, Drawing]) -> tuple[list[Drawing], list[Drawing]]:
    """Returns the panels that are seen at once, at most two, and the others."""
    names = [contender.name for contender in view.featured if contender.name in panels]
    names += [name for name in panels if name not in names]
    return [panels[name] for name in names[:2]], [panels[name] for name in names[2:]]


def _class(name: str) -> str:
    return f"class {name}"


def _order(name: str) -> tuple[int, str]:
    return (min(int(name), 7), "") if name.isascii() and name.isdigit() and len(name) < 9 else (7, name)


__all__ = ["buckets", "completion", "losses", "quantiles"]
