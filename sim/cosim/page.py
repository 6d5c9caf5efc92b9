"""The page of a co-simulation: what is learnt over simulated time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dlcp.report.axes import Axis, time_axis
from dlcp.report.charts import Curve, Curves
from dlcp.report.figure import Figure, Key, Table, value
from dlcp.report.markup import Content, element
from dlcp.report.numbers import count, number, seconds, share, smoothed
from dlcp.report.page import Section, page, save

if TYPE_CHECKING:
    from sim.cosim.command import Candidate
    from sim.cosim.train import Point

FILE: Final = "cosim.html"


def write_page(folder: Path, task: str, found: Sequence[Candidate], document: dict[str, Any]) -> Path:
    """Writes the page; returns its path."""
    trained = [each for each in found if each.points]
    largest = max((each.points[-1].time_s for each in trained), default=1.0)
    time = time_axis("simulated time", largest)
    figures: list[Figure | Content] = [
        _curves("accuracy", "Accuracy over simulated time", trained, time, Axis("accuracy", percent=True), _accuracy),
        _curves("loss", "Training loss over steps", trained, Axis("step"), Axis("loss"), _loss),
        _curves("residual", "What is owed", trained, Axis("step"), Axis("sum of magnitudes"), _residual),
        _curves("missing", "Packets given up", trained, Axis("step"), Axis("share of a step's packets", percent=True), _missing),
    ]
    head: list[Content] = [
        element("h1", f"{task}: co-simulation"),
        element("p", "Gradients are real, and what the simulated network gave up of them is missing. Times are simulated."),
    ]
    sections = [
        Section("result", "Result", [_table(document["candidates"]).render() if trained else "Nothing was trained."]),
        Section("curves", "Curves", figures),
    ]
    return save(
        folder / FILE, page(f"{task}: co-simulation", head, sections, "Made by dlcp sim cosim; curves.csv has all steps.")
    )


def _accuracy(points: Sequence[Point]) -> list[tuple[float, float]]:
    return [(point.time_s, point.accuracy) for point in points if point.accuracy is not None]


def _loss(points: Sequence[Point]) -> list[tuple[float, float]]:
    return smoothed([(float(point.step), point.loss) for point in points], 5)


def _residual(points: Sequence[Point]) -> list[tuple[float, float]]:
    return [(float(point.step), point.residual) for point in points] if any(point.residual for point in points) else []


def _missing(points: Sequence[Point]) -> list[tuple[float, float]]:
    if not any(point.missing for point in points):
        return []
    return [(float(point.step), point.missing / point.packets if point.packets else 0.0) for point in points]


def _curves(
    key: str,
    title: str,
    found: Sequence[Candidate],
    across: Axis,
    up: Axis,
    points: Callable[[Sequence[Point]], list[tuple[float, float]]],
) -> Figure:
    curves = [Curve(each.name, f"s{place}", made) for place, each in enumerate(found) if (made := points(each.points))]
    if not curves:
        return Figure(key, title, "", empty="There is nothing of it: no packet was given up.")
    drawing = Curves(title, curves, across, up, zero=key != "accuracy").draw()
    legend = [Key(curve.name, curve.style) for curve in curves]
    return Figure(key, title, "A line for each candidate.", [drawing], legend=legend)


def _table(summaries: Sequence[dict[str, Any]]) -> Table:
    targets = list(summaries[0]["time_to_accuracy_s"])
    heads = ["Candidate", "Steps", "Simulated time", "Mean step", "Accuracy", "Packets given up", "Owed at the end"]
    rows = [
        [
            each["candidate"],
            value(each["steps"], count),
            value(each["time_s"], seconds),
            value(each["mean_step_s"], seconds),
            value(each["accuracy"], share),
            value(each["missing_share"], lambda n: share(n, 3)),
            value(each["residual"], number),
            *(value(each["time_to_accuracy_s"][target], seconds) for target in targets),
            f"learns the same as {each['same_as']}" if each["same_as"] else "",
        ]
        for each in summaries
    ]
    return Table("Candidates.", [*heads, *(f"Time to {float(target):.4g}" for target in targets), ""], rows)


__all__ = ["FILE", "write_page"]
