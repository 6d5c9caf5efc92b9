"""Figures of what is learnt against the wall-clock, and of the gradient mass that is owed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from dlcp.report import numbers
from dlcp.report.axes import Axis, time_axis
from dlcp.report.charts import Curve, Curves, Flag
from dlcp.report.figure import Figure, Key, Table, spread, value
from dlcp.report.numbers import Spread, at, number, seconds, share, smoothed
from testbed.report.view import Contender, View, time_to_accuracy
from testbed.results import RunResult

Line = list[tuple[float, float]]

SAMPLES: Final = 160
"""Places at which runs are compared with each other."""
CLOCK: Final = "wall-clock from the first step, without the time of evaluations"


def over_runs(lines: Sequence[Line]) -> tuple[Line, list[tuple[float, float, float]]]:
    """Returns the median line of several, and the band from the lowest to the highest.

    At each time the runs count that are under way; where fewer than half of them are, the lines end.
    """
    lines = [line for line in lines if line]
    if not lines:
        return [], []
    if len(lines) == 1:
        return list(lines[0]), []
    first, last = min(line[0][0] for line in lines), max(line[-1][0] for line in lines)
    own = sorted({x for line in lines for x, _ in line})
    places = own if len(own) <= SAMPLES else [first + (last - first) * index / (SAMPLES - 1) for index in range(SAMPLES)]
    median, band = [], []
    for place in places:
        found = Spread.of(at(line, place) for line in lines)
        if found is not None and 2 * found.count >= len(lines):
            median.append((place, found.median))
            band.append((place, found.low, found.high))
    return median, band


def accuracy(view: View) -> Figure:
    """Accuracy against the wall-clock."""
    goal = view.results["goal"]

    def line(run: RunResult) -> Line:
        return [(point["clock_s"], point["accuracy"]) for point in run["evaluations"]]

    curves, cells = [], []
    for contender in view.contenders:
        median, band = over_runs([_ascending(line(run)) for run in contender.shown])
        if not median:
            continue
        took = time_to_accuracy(contender)
        flags = []
        if took is not None:
            extent = numbers.between(seconds(took.low), seconds(took.high))
            says = f"{contender.name}: {numbers.goal(goal)} after {seconds(took.median)}, {extent}"
            flags = [Flag(took.median, goal, took.low, took.high, says)]
        curves.append(Curve(contender.name, contender.style, median, band, flags))
        cells.append(
            [
                contender.name,
                value(len(contender.shown), lambda n: f"{n:g}"),
                spread(took, seconds),
                spread(contender.spread(lambda run: run["final_accuracy"]), share),
                *(value(at(median, moment), share) for moment in _moments(view)),
            ]
        )
    if not curves:
        return Figure("accuracy", "Accuracy against the wall-clock", "", empty="No run came to an evaluation.")
    last = max(curve.points[-1][0] for curve in curves)
    drawing = Curves(
        "Accuracy against the wall-clock",
        curves,
        time_axis(CLOCK, last),
        Axis("accuracy on the test data", percent=True),
        top=1.0,
        level=(goal, f"goal: {numbers.goal(goal)}"),
    ).draw()
    columns = ["Candidate", "Runs", "Time to accuracy", "Final accuracy", *(f"After {seconds(m)}" for m in _moments(view))]
    caption = (
        "Line: median over runs. Band: their range. Ring on the goal: median time of first reaching it, with the range of runs. "
        "Between two evaluations the line is straight. Grey: baselines. Press a name to hide or show it."
    )
    return Figure(
        "accuracy", "Accuracy against the wall-clock", caption, [drawing], legend=_legend(view.contenders, curves),
        tables=[Table("Accuracy: medians over runs, and the range.", columns, cells)],
    )  # fmt: skip


def _moments(view: View) -> list[float]:
    """Times at which the table tells where everybody stands: fractions of the time that the longest takes."""
    last = max((point["clock_s"] for run in view.results["runs"] for point in run["evaluations"]), default=0.0)
    return [last * part for part in (0.1, 0.25, 0.5, 1.0)] if last > 0 else []


def loss(view: View) -> Figure:
    """Training loss against the wall-clock."""
    curves, cells, window = [], [], 1
    for contender in view.contenders:
        lines = []
        for run in contender.shown:
            points = [(pair[0], pair[1]) for pair in run["losses"] if len(pair) == 2 and None not in pair]
            line = _ascending(points)  # type: ignore[arg-type]
            window = max(window, len(line) // 40 * 2 + 1)
            lines.append(smoothed(line, len(line) // 40 * 2 + 1))
        median, band = over_runs(lines)
        if not median:
            continue
        curves.append(Curve(contender.name, contender.style, median, band))
        lowest = min(median, key=lambda point: point[1])
        cells.append(
            [
                contender.name,
                value(median[0][1], number),
                value(median[-1][1], number),
                value(lowest[1], number),
                value(median[-1][0], seconds),
                spread(contender.spread(lambda run: run["final_loss"]), number),
            ]
        )
    if not curves:
        return Figure("loss", "Loss against the wall-clock", "", empty="No run noted a loss.")
    values = [y for curve in curves for _, y in curve.points]
    log = min(values) > 0 and max(values) / min(values) > 8
    drawing = Curves(
        "Training loss against the wall-clock",
        curves,
        time_axis(CLOCK, max(curve.points[-1][0] for curve in curves)),
        Axis("training loss (cross-entropy, nats)"),
        log_y=log,
        zero=not log and min(values) < 0.4 * max(values),
    ).draw()
    caption = (
        f"Mean loss over all ranks in each step, smoothed by a running median of up to {window} steps; line and band as above."
        + (" Logarithmic." if log else "")
    )
    columns = ["Candidate", "At the start", "At the end", "Lowest", "Last step noted at", "On the test data, at the end"]
    return Figure(
        "loss", "Loss against the wall-clock", caption, [drawing], legend=_legend(view.contenders, curves),
        tables=[Table("Training loss (nats): of the smoothed medians over runs.", columns, cells)],
    )  # fmt: skip


def residual(view: View) -> Figure:
    """Gradient mass that is owed over time."""
    curves, cells = [], []
    for contender in view.contenders:
        lines = [_ascending([(point["clock_s"], point["l1"]) for point in run["residual"]]) for run in contender.shown]
        median, band = over_runs(lines)
        if not median:
            continue
        curves.append(Curve(contender.name, contender.style, median, band))

        def last(run: RunResult, key: str) -> float | None:
            return float(run["residual"][-1][key]) if run["residual"] else None  # type: ignore[literal-required]

        ends: Callable[[RunResult], float | None] = lambda run: last(run, "l1")  # noqa: E731
        elements: Callable[[RunResult], float | None] = lambda run: last(run, "elements")  # noqa: E731
        largest = max(y for _, y in median)
        cells.append(
            [
                contender.name,
                value(largest, number),
                spread(contender.spread(ends), number),
                spread(contender.spread(elements), lambda n: number(n)),
            ]
        )
    if not curves:
        why = "Nothing owes gradients here: no candidate over DLCP came to an evaluation, where it is noted."
        return Figure("residual", "Gradient mass that is owed", "", empty=why)
    drawing = Curves(
        "Residual mass against the wall-clock",
        curves,
        time_axis(CLOCK, max(curve.points[-1][0] for curve in curves)),
        Axis("sum of |residual| over all ranks"),
        zero=True,
    ).draw()
    caption = (
        "What did not arrive in its own step is owed, and leaves with a later one (error feedback). If mass were forgotten or "
        "piled up, this would grow without end. Unit: that of the gradients. Noted at evaluations; line and band as above."
    )
    columns = ["Candidate", "Largest median", "At the end", "Elements at the end"]
    return Figure(
        "residual", "Gradient mass that is owed", caption, [drawing], legend=_legend(view.contenders, curves),
        tables=[Table("Residual: sum of absolute values over all ranks.", columns, cells)],
    )  # fmt: skip


def _ascending(points: Line) -> Line:
    """Returns those points that come later than all before them, as those of a clock should."""
    kept: Line = []
    for point in points:
        if not kept or point[0] > kept[-1][0]:
            kept.append(point)
    return kept


def _legend(contenders: Sequence[Contender], curves: Sequence[Curve]) -> list[Key]:
    drawn = {curve.name for curve in curves}
    return [
        Key(contender.name + (" (best baseline)" if contender.best else ""), contender.style)
        for contender in contenders
        if contender.name in drawn
    ]


__all__ = ["accuracy", "loss", "over_runs", "residual"]
