"""Several experiments side by side: a page, and a table for documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dlcp.report.axes import Axis
from dlcp.report.charts import Mark, Row, Rows
from dlcp.report.figure import Figure, Table, spread, value
from dlcp.report.markup import Content, element
from dlcp.report.numbers import NOTHING, Spread, ratio, seconds, share
from dlcp.report.page import Section, page, save
from testbed.report.outcome import verdict
from testbed.report.view import Contender, View, paired, time_to_accuracy
from testbed.results import RunResult, read_results


def write_comparison(folders: Sequence[Path], path: Path) -> Path:
    """Writes a page that compares experiments.

    Args:
        folders: Of the experiments, or their ``results.json``.
        path: The page.

    Raises:
        ConfigError: A document cannot be read, or is something else.
        OSError: The page cannot be written.
    """
    views = [_view(Path(folder)) for folder in folders]
    names = [_name(view) for view in views]
    problems: list[Content] = [f"{name}: {problem}" for name, view in zip(names, views, strict=True) for problem in view.problems]
    problems += [
        f"{name}: {len(view.results['runs'])} of {view.results['planned']} runs are here."
        for name, view in zip(names, views, strict=True)
        if not view.results["complete"]
    ]
    words = [element("li", element("b", name), ": ", verdict(view)) for name, view in zip(names, views, strict=True)]
    head: list[Content] = [
        element("h1", "Experiments compared"),
        element("ul", *words),
        _limits(problems),
    ]
    figures = [_factors(views, names, what) for what in ("time", "tail")]
    sections = [Section("factors", "Against the best baseline of each experiment", figures), _numbers(views, names)]
    return save(path, page("Experiments compared", head, sections, "Medians over runs, and their range."))


def _limits(problems: Sequence[Content]) -> Content:
    if not problems:
        return None
    items = element("ul", *(element("li", problem) for problem in problems))
    return element("aside", element("h2", "Before you believe this"), items, class_="gaps")


def _view(folder: Path) -> View:
    document: Mapping[str, Any] = read_results(folder)
    return View.of(document, folder if folder.is_dir() else folder.parent)


def _name(view: View) -> str:
    return str(view.results["experiment"].get("name") or view.folder.name)


def _value(run: RunResult, what: str) -> float | None:
    return run["time_to_accuracy_s"] if what == "time" else run["step_s"]["p99_s"]


def _median(contender: Contender, what: str) -> Spread | None:
    return contender.spread(lambda run: _value(run, what))


def _factors(views: Sequence[View], names: Sequence[str], what: str) -> Figure:
    rows, cells = [], []
    for name, view in zip(names, views, strict=True):
        yardstick = view.best_baseline
        theirs = None if yardstick is None else _median(yardstick, what)
        for contender in view.contenders:
            mine = _median(contender, what)
            if yardstick is None or theirs is None or contender.best or mine is None or not mine.median:
                continue
            factor = theirs.median / mine.median
            pairs = paired(contender, yardstick, lambda run: _value(run, what))
            low, high = (pairs.low, pairs.high) if pairs is not None else (factor, factor)
            says = f"{name}, {contender.name}: {ratio(factor)}"
            marks = [Mark(factor, min(low, factor), max(high, factor), says)]
            rows.append(Row(f"{name}: {contender.name}", contender.style, marks, note=ratio(factor)))
            cells.append([name, contender.name, yardstick.name, value(factor, ratio), spread(pairs, ratio)])
    title = {"time": "Times as fast to the goal", "tail": "Times better in step time p99"}[what]
    if not rows:
        return Figure(what, title, "", empty="No experiment has both a baseline and another candidate that came so far.")
    drawing = Rows(title, rows, Axis("factor, above 1 is better"), log=True, level=1.0).draw()
    caption = "Dot: of medians. Line: range over pairs of runs with the same seed. Dashed: as good as the best baseline."
    columns = ["Experiment", "Candidate", "Against", "Factor of medians", "By pairs of runs"]
    return Figure(what, title, caption, [drawing], tables=[Table(title, columns, cells)])


def _numbers(views: Sequence[View], names: Sequence[str]) -> Section:
    columns = ["Experiment", "Candidate", "Runs", "Time to accuracy", "Final accuracy", "Step p50", "Step p99"]
    rows = [
        [
            name,
            contender.name,
            value(len(contender.shown), lambda n: f"{n:g}"),
            spread(time_to_accuracy(contender), seconds),
            spread(contender.spread(lambda run: run["final_accuracy"]), share),
            spread(contender.spread(lambda run: run["step_s"]["p50_s"]), seconds),
            spread(contender.spread(lambda run: run["step_s"]["p99_s"]), seconds),
        ]
        for name, view in zip(names, views, strict=True)
        for contender in view.contenders
    ]
    return Section("numbers", "The numbers", [Table("All candidates of all experiments.", columns, rows).render()])


def markdown(document: Mapping[str, Any]) -> str:
    """Returns the comparison of an experiment's candidates as a table in Markdown, best first; it ends with a newline."""
    view = View.of(document, Path())
    lines = [
        "| candidate | switches | runs | time to accuracy | times as fast | final accuracy | step p50 | step p99 | p99 gain |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]

    def rank(contender: Contender) -> float:
        took = time_to_accuracy(contender)
        return float("inf") if took is None else took.median

    for contender in sorted(view.contenders, key=rank):
        summary = contender.result["summary"]
        cells = [
            contender.name + (" (best baseline)" if contender.best else ""),
            contender.result["target"],
            str(len(contender.shown)),
            _plain(time_to_accuracy(contender)),
            ratio(summary["speedup"]),
            share(found.median) if (found := contender.spread(lambda run: run["final_accuracy"])) is not None else NOTHING,
            _plain(contender.spread(lambda run: run["step_s"]["p50_s"])),
            _plain(contender.spread(lambda run: run["step_s"]["p99_s"])),
            ratio(summary["p99_gain"]),
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _plain(found: Spread | None) -> str:
    if found is None:
        return NOTHING
    return seconds(found.median) + (f" ({seconds(found.low)} … {seconds(found.high)})" if found.count > 1 else "")


__all__ = ["markdown", "write_comparison"]
