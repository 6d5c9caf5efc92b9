"""Several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dlcp.report.axes import Axis, time_axis
from dlcp.report.charts import Curve, Curves, Mark, Row, Rows
from dlcp.report.figure import Figure, Key, Table, value
from dlcp.report.markup import Content, element
from dlcp.report.numbers import count, number, ratio, seconds
from dlcp.report.page import Section, page, save
from sim.compare import table
from sim.report.figures import distribution
from sim.report.reading import Run


def write_comparison(runs: Sequence[Run], path: Path) -> Path:
    """Writes a page that compares runs; the first is the yardstick.

    Raises:
        ConfigError: A table is malformed.
        OSError: The page cannot be written.
    """
    found = [_steps(runs), _completions(runs, "completion_s"), _completions(runs, "slowdown")]
    figures: list[Figure | Content] = [figure for figure in found if figure is not None]
    head: list[Content] = [
        element("h1", "Runs compared"),
        element("ul", *(element("li", element("b", run.name), ": ", run.title) for run in runs)),
    ]
    sections = [Section("figures", "Figures", figures), Section("numbers", "The numbers", [_numbers(runs).render()])]
    return save(path, page("Runs compared", head, sections, "Times are simulated. Changes are against the first run."))


def _legend(curves: Sequence[Curve]) -> list[Key]:
    return [Key(curve.name, curve.style) for curve in curves]


def _steps(runs: Sequence[Run]) -> Figure | None:
    known = [(place, run) for place, run in enumerate(runs) if run.summary.get("steps_s")]
    if not known:
        return None
    curves, rows, cells = [], [], []
    base = known[0][1].summary["steps_s"]
    mean = sum(base) / len(base)
    for place, run in known:
        times = run.summary["steps_s"]
        mine = sum(times) / len(times)
        curves.append(Curve(run.name, f"s{place}", [(index + 1.0, time) for index, time in enumerate(times)]))
        rows.append(
            Row(run.name, f"s{place}", [Mark(mine, min(times), max(times), f"{run.name}: {seconds(mine)}")], note=seconds(mine))
        )
        exposed = run.summary.get("exposed_s") or []
        cells.append(
            [
                run.name,
                value(len(times), count),
                value(mine, seconds),
                value(min(times), seconds),
                value(max(times), seconds),
                value(sum(exposed) / len(exposed) if exposed else None, seconds),
                value(mean / mine, ratio),
            ]
        )
    largest = max(max(run.summary["steps_s"]) for _, run in known)
    drawings = [
        Rows("Mean step, and the range of all", rows, time_axis("time of a step", largest)).draw(),
        Curves("Step by step", curves, Axis("step"), time_axis("time", largest), zero=True).draw(),
    ]
    heads = ["Run", "Steps", "Mean", "Shortest", "Longest", "Exposed communication, mean", "Times as fast as the first"]
    return Figure(
        "steps", "Steps of training", "", drawings, legend=_legend(curves), tables=[Table("Steps.", heads, cells)], open=True
    )


def _completions(runs: Sequence[Run], column: str) -> Figure | None:
    curves = []
    for place, run in enumerate(runs):
        values = [each for each in run.table("messages").get(column, ()) if each > 0]
        if values:
            curves.append(Curve(run.name, f"s{place}", distribution(values)))
    title = {"completion_s": "Completion times", "slowdown": "Slowdown"}[column]
    if not curves:
        return Figure(column, title, "", empty="The runs are summaries only; folders of --out also have their messages.")
    largest = max(curve.points[-1][0] for curve in curves)
    across = time_axis("completion time", largest) if column == "completion_s" else Axis("slowdown")
    drawing = Curves(title, curves, across, Axis("share of messages", percent=True), log_x=True, top=1.0, zero=True).draw()
    caption = "Share of all messages of a run that took no longer; logarithmic."
    return Figure(column, title, caption, [drawing], legend=_legend(curves))


def _numbers(runs: Sequence[Run]) -> Table:
    rows = table([run.summary for run in runs])
    heads = ["", *(head for place, run in enumerate(runs) for head in ([run.name] if not place else [run.name, "change"]))]
    cells: list[list[object]] = []
    for name, values, changes in rows:
        cells.append([name])
        for place, each in enumerate(values):
            cells[-1].append(value(each, lambda n: number(n, 5)))
            if place:
                cells[-1].append(value(changes[place], lambda n: "" if n is None else f"{n:+.1%}"))
    return Table("Times in seconds.", heads, cells)


__all__ = ["write_comparison"]
