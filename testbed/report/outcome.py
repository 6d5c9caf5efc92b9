"""What came of it: how long every candidate took, and what each mechanism has of the gain."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from dlcp.report import numbers
from dlcp.report.axes import Axis, time_axis
from dlcp.report.charts import Curve, Curves, Mark, Row, Rows
from dlcp.report.figure import Drawing, Figure, Key, Table, Value, ranged, spread, value
from dlcp.report.markup import Content, element, joined
from dlcp.report.numbers import NOTHING, Spread, number, ratio, seconds, share
from testbed.report.view import DLCP_COMMS, Contender, View, paired, time_to_accuracy
from testbed.results import RunResult

RUNS: Final = "Every small dot is a run, the large one their median, and the bar their range."


def ranking(view: View) -> Figure:
    """Time to accuracy of every candidate, best first, and the table of everything that is compared."""
    contenders = view.contenders
    found = {contender.name: time_to_accuracy(contender) for contender in contenders}
    order = sorted(contenders, key=lambda contender: _median(found[contender.name]))
    rows = []
    for contender in order:
        took = found[contender.name]
        name = f"{contender.name} (baseline)" if contender.baseline else contender.name
        if took is None:
            rows.append(Row(name, contender.style, empty=_why_not(contender)))
            continue
        faster = contender.result["summary"]["speedup"]
        note = seconds(took.median) + (f", {ratio(faster)} as fast" if faster is not None and not contender.best else "")
        runs = [run["time_to_accuracy_s"] for run in contender.shown if run["time_to_accuracy_s"] is not None]
        marks = [Mark(took.median, took.low, took.high, f"{contender.name}: median {seconds(took.median)} of {took.count}")]
        rows.append(Row(name, contender.style, marks, runs, note))
    goal = numbers.goal(view.results["goal"])
    largest = max((took.high for took in found.values() if took is not None), default=0.0)
    best = found[view.best_baseline.name] if view.best_baseline is not None else None
    drawing = Rows(
        f"Time to {goal} accuracy",
        rows,
        time_axis("time from the first step, without evaluations", largest),
        note_room=190,
        level=None if best is None else best.median,
    ).draw()
    reached = any(took is not None for took in found.values())
    return Figure(
        "ranking",
        f"Time until {goal} of the test data are classified right",
        f"Less is better. {RUNS} The dashed line is the best baseline's median.",
        [drawing] if reached else [],
        tables=[_comparison(view, order)],
        empty="" if reached else f"No run reached an accuracy of {goal}; the table has what the runs came to.",
        open=True,
    )


def _median(found: Spread | None) -> float:
    return math.inf if found is None else found.median


def _why_not(contender: Contender) -> str:
    if not contender.runs:
        return "no run"
    if not contender.shown:
        return f"no run counts ({', '.join(sorted({run['outcome'] for run in contender.runs}))})"
    best = Spread.of(run["final_accuracy"] for run in contender.shown)
    return "not reached" + (f"; {share(best.median)} at the end" if best is not None else "")


def _comparison(view: View, order: Sequence[Contender]) -> Table:
    yardstick = view.best_baseline
    rows = []
    for contender in order:
        result, summary = contender.result, contender.result["summary"]
        pairs = None
        if yardstick is not None and not contender.best:
            pairs = paired(contender, yardstick, lambda run: run["time_to_accuracy_s"])
        carried = f"{result['comm']}, {result['congestion']}" if result["comm"] not in DLCP_COMMS else result["comm"]
        rows.append(
            [
                [contender.name, element("span", "the yardstick", class_="range")] if contender.best else contender.name,
                joined([carried, " ", element("span", result["target"], class_="range")]),
                _reached(contender),
                spread(time_to_accuracy(contender), seconds),
                _factor(summary["speedup"], pairs),
                spread(contender.spread(lambda run: run["final_accuracy"]), share),
                spread(contender.spread(_p50), seconds),
                spread(contender.spread(_p99), seconds),
                value(summary["p99_gain"], ratio),
            ]
        )
    columns = [
        "Candidate", "Carried by, through", "Reached", "Time to accuracy", "Times as fast", "Final accuracy", "Step p50",
        "Step p99", "p99, times better",
    ]  # fmt: skip
    words = (
        "Median, and the range over runs. Factors are those of medians, against the yardstick, the best baseline; above 1 is "
        "better; their range is over pairs of runs with the same seed."
    )
    notable = [index for index, contender in enumerate(order) if contender.best or contender is view.winner]
    return Table(words, columns, rows, notable)


def _reached(contender: Contender) -> Value:
    reached = sum(run["time_to_accuracy_s"] is not None for run in contender.shown)
    bad = sum(run["outcome"] != "ok" for run in contender.runs)
    text: list[Content] = [f"{reached} of {len(contender.runs)}"]
    if bad:
        text.append(element("span", f"{bad} not ok", class_="range failed"))
    return Value(reached, joined(text))


def _factor(factor: float | None, pairs: Spread | None) -> Value:
    if factor is None or pairs is None or pairs.count < 2:
        return value(factor, ratio)
    return Value(factor, ranged(ratio(factor), ratio(pairs.low), ratio(pairs.high)))


def _p50(run: RunResult) -> float | None:
    return run["step_s"]["p50_s"]


def _p99(run: RunResult) -> float | None:
    return run["step_s"]["p99_s"]


# Shares of the gain


@dataclass(frozen=True)
class Rung:
    """One step of the ladder from the yardstick to all mechanisms.

    Attributes:
        contender: The candidate.
        changed: What it has that the one before has not.
        took: Its median.
        gain: Times as fast as the one before; 1 for the first.
        share: The gain's share of that from the first to the last, of their logarithms, so that the shares add up to 1.
    """

    contender: Contender
    changed: str
    took: float
    gain: float
    share: float | None


def ladder(view: View) -> tuple[list[Rung], str]:
    """Returns the rungs, and what they measure.

    The first is the best baseline; then all candidates over DLCP on the experiment's own switches, in the order of the file, as
    each adds a mechanism to the one before.  Times to accuracy are compared, or if a rung has none, the median time of a step;
    then the first is the quickest baseline if none is the best.
    """
    target = view.results["experiment"].get("target")
    chosen = [
        contender
        for contender in view.contenders
        if contender.result["comm"] in DLCP_COMMS and contender.shown and target in (None, contender.result["target"])
    ]
    if chosen:
        # Another way to reduce is another experiment, not another mechanism.
        chosen = [contender for contender in chosen if contender.result["algorithm"] == chosen[0].result["algorithm"]]
    best = view.best_baseline if view.best_baseline is not None and view.best_baseline.shown else None
    measures: list[tuple[str, Contender | None, Callable[[Contender], Spread | None]]] = [
        ("time to accuracy", best, time_to_accuracy),
        ("median time of a step", best or view.quickest(baseline=True), lambda contender: contender.spread(_p50)),
    ]
    for words, first, measure in measures:
        whole = chosen if first is None else [first, *chosen]
        times = [(contender, spread) for contender in whole if (spread := measure(contender)) is not None and spread.median > 0]
        if len(times) >= 2 and len(times) == len(whole):
            return _rungs([(contender, spread.median) for contender, spread in times]), words
    return [], ""


_WORTH_SHARING = math.log(1.1)
"""Below that, shares of the gain are quotients of chance."""


def _rungs(times: Sequence[tuple[Contender, float]]) -> list[Rung]:
    total = math.log(times[0][1] / times[-1][1])
    rungs = [Rung(times[0][0], "where it begins", times[0][1], 1.0, None)]
    for (before, earlier), (contender, took) in pairwise(times):
        gain = earlier / took
        part = math.log(gain) / total if total >= _WORTH_SHARING else None
        rungs.append(Rung(contender, changes(before, contender), took, gain, part))
    return rungs


def changes(before: Contender, after: Contender) -> str:
    """Says in what two candidates differ, in the words of the policy's keys."""
    if before.result["comm"] not in DLCP_COMMS:
        return f"{after.result['comm']} in place of {before.result['comm']}"
    words = []
    if before.result["comm"] != after.result["comm"]:
        words.append(f"{after.result['comm']} in place of {before.result['comm']}")
    old, new = _flat(before.result["policy"]), _flat(after.result["policy"])
    for key in {**old, **new}:
        if old.get(key) != new.get(key):
            words.append(f"{key} {old.get(key, NOTHING)} → {new.get(key, NOTHING)}")
    return "; ".join(words) or "nothing in the policy"


def _flat(policy: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in policy.items():
        if isinstance(item, Mapping):
            flat |= _flat(item, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = item
    return flat


def gains(view: View) -> Figure:
    """What each mechanism has of the gain."""
    rungs, words = ladder(view)
    if not rungs:
        why = "There is nothing to compare: that takes a candidate over DLCP on the experiment's own switches, and a baseline."
        return Figure("gains", "What each mechanism gains", "", empty=why)
    rows, cells = [], []
    for rung in rungs:
        name = rung.contender.name
        note = seconds(rung.took)
        if rung.share is not None or rung is not rungs[0]:
            note += f", {ratio(rung.gain)}" + (f" = {share(rung.share, 0)} of the gain" if rung.share is not None else "")
        marks = [Mark(rung.took, rung.took, rung.took, f"{name}: {seconds(rung.took)}; {rung.changed}")]
        rows.append(Row(name, rung.contender.style, marks, note=note))
        cells.append([name, rung.changed, value(rung.took, seconds), value(rung.gain, ratio), value(rung.share, share)])
    whole = rungs[0].took / rungs[-1].took
    drawing = Rows(
        f"{words}, one mechanism after the other", rows, time_axis(words, rungs[0].took), note_room=260, bars=True
    ).draw()
    caption = (
        f"From top to bottom each candidate has one mechanism more than the one above; less is better. In all {ratio(whole)}. "
        "A share is that of the logarithms of factors, so that shares add up; one below 0 made it slower; there are none where "
        "all of it gains less than a tenth. What a mechanism gains depends on those before it."
    )
    columns = [
        "Candidate",
        "What is new",
        f"{words[0].upper()}{words[1:]}",
        "Times as fast as the one above",
        "Share of the gain",
    ]
    return Figure(
        "gains",
        "What each mechanism gains",
        caption,
        [drawing],
        tables=[Table("Gain of each mechanism, medians over runs.", columns, cells)],
    )


def step_times(view: View) -> Figure:
    """p50 and p99 of the time of a step."""
    rows, cells = [], []
    for contender in view.contenders:
        middle, tail = contender.spread(_p50), contender.spread(_p99)
        if middle is None or tail is None:
            why = _why_not(contender) if not contender.shown else "no step that counts"
            rows.append(Row(contender.name, contender.style, empty=why))
            continue
        marks = [
            Mark(middle.median, middle.low, middle.high, f"{contender.name}: p50 {seconds(middle.median)}"),
            Mark(tail.median, tail.low, tail.high, f"{contender.name}: p99 {seconds(tail.median)}", "tail"),
        ]
        note = f"{seconds(middle.median)}; p99 {seconds(tail.median)}"
        rows.append(Row(contender.name, contender.style, marks, note=note))
        merged = view.steps.get(contender.name, [])
        cells.append(
            [
                contender.name,
                spread(middle, seconds),
                spread(tail, seconds),
                spread(contender.spread(lambda run: run["step_s"]["mean_s"]), seconds),
                spread(contender.spread(lambda run: run["step_s"]["max_s"]), seconds),
                value(tail.median / middle.median if middle.median else None, ratio),
                value(len(merged) or None, lambda n: NOTHING if n is None else f"{n:,.0f}"),
            ]
        )
    if not cells:
        return Figure("steps", "How long a step takes", "", empty="No run made a step that counts.")
    largest = max(v for row in rows for mark in row.marks for v in (mark.value, mark.high))
    drawing = Rows("Time of a step", rows, time_axis("time of a step", largest), log=True, note_room=210).draw()
    caption = (
        "Dot: half of all steps of all ranks are shorter (p50). Bar: 99 of 100 are (p99). Thin lines: range over runs. "
        "Logarithmic; less is better. Left out are each rank's first step, which also sets up, and those after evaluations. "
        "Below: the share of steps, all runs together, that take longer than a time."
    )
    columns = ["Candidate", "p50", "p99", "Mean", "Longest", "p99 over p50", "Steps in the files"]
    return Figure(
        "steps",
        "How long a step takes",
        caption,
        [drawing, *_tails(view)],
        legend=[Key(contender.name, contender.style) for contender in view.contenders if contender.name in view.steps],
        tables=[Table("Time of a step: medians over runs, and the range.", columns, cells)],
    )


def _tails(view: View) -> list[Drawing]:
    """Share of steps that take longer than a time, as far as there are steps to tell."""
    curves = []
    for contender in view.contenders:
        times = view.steps.get(contender.name, [])
        # Twenty places a decade, from all steps to one in a million.
        count = len(times)
        places = sorted({min(count - 1, int(count * (1 - 10 ** (-place / 20)))) for place in range(120)} if times else ())
        points = [(times[place], (count - place) / count) for place in places if times[place] > 0]
        if len(points) > 1:
            curves.append(Curve(contender.name, contender.style, points))
    if not curves:
        return []
    axis = time_axis("time of a step", max(curve.points[-1][0] for curve in curves))
    up = Axis("share of steps that take at least as long", percent=True)
    return [Curves("The tail", curves, axis, up, log_x=True, log_y=True, height=320.0).draw()]


def verdict(view: View) -> str:
    """Says in a sentence or two what came out."""
    goal = numbers.goal(view.results["goal"])
    winner, yardstick = view.winner, view.best_baseline
    if winner is None:
        text = f"Nothing reached {goal} accuracy."
        if yardstick is not None:
            took = time_to_accuracy(yardstick)
            text = f"Only baselines reached {goal} accuracy, the best, {yardstick.name}, in {_words(took)}."
        return text + _quickest(view)
    took = time_to_accuracy(winner)
    text = f"{winner.name} reached {goal} accuracy in {_words(took)}"
    if yardstick is None or (theirs := time_to_accuracy(yardstick)) is None or took is None:
        return text + "; no baseline did."
    faster = theirs.median / took.median if took.median else None
    better = "as fast as" if faster is not None and faster >= 1 else "as fast as, and so slower than,"
    text += f", {number(faster)} times {better} {yardstick.name}, the best baseline, which took {_words(theirs)}."
    tails = [_median(contender.spread(_p99)) for contender in (yardstick, winner)]
    if all(math.isfinite(tail) and tail > 0 for tail in tails):
        text += f" One step in a hundred took longer than {seconds(tails[1])}, against {seconds(tails[0])}."
    return text


def _quickest(view: View) -> str:
    """Compares steps, where there is nothing else to compare."""
    best, ours = view.quickest(baseline=True), view.quickest(baseline=False)
    steps = [None if contender is None else contender.spread(_p50) for contender in (best, ours)]
    if best is None or ours is None or steps[0] is None or steps[1] is None:
        return ""
    return (
        f" Half of the steps of {ours.name} were shorter than {seconds(steps[1].median)}; of {best.name}, the quickest baseline, "
        f"than {seconds(steps[0].median)}."
    )


def _words(found: Spread | None) -> str:
    if found is None:
        return NOTHING
    return seconds(found.median) + (f" (median of {found.count})" if found.count > 1 else " (one run)")


__all__ = ["Rung", "changes", "gains", "ladder", "ranking", "step_times", "verdict"]
