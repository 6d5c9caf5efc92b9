"""Puts a report together from what an experiment left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dlcp.report.figure import Figure
from dlcp.report.markup import Content, Markup, element
from dlcp.report.numbers import duration
from dlcp.report.page import Section, page, save
from testbed.report import drops, learning, messages, network, outcome, runs
from testbed.report.gaps import box
from testbed.report.trace import write_traces
from testbed.report.view import View

FILE: Final = "report.html"


def write_report(results: Mapping[str, Any], run_dir: Path, *, traces: bool = True) -> Path:
    """Writes the report of an experiment, and a timeline of one run of each candidate.

    A run that failed, a file that is missing or cut short, a document that lacks something: the report is of what is there, and
    says what is not.

    Args:
        results: The document, see :mod:`testbed.results`.
        run_dir: Its folder, where the files are that it names; the report goes there.
        traces: Also write timelines, see :func:`testbed.report.write_trace`.

    Returns:
        The path of the page.

    Raises:
        OSError: It cannot be written.
    """
    run_dir = Path(run_dir)
    view = View.of(results, run_dir)
    if traces:
        write_traces(view)
    return save(run_dir / FILE, render(view))


def verdict(results: Mapping[str, Any], run_dir: Path) -> str:
    """Says in a sentence or two what came out, as the report does: what was faster by how much, or that nothing was."""
    return outcome.verdict(View.of(results, Path(run_dir)))


def render(view: View) -> Markup:
    """Returns the page."""
    sections = [
        Section("result", "Result", [outcome.ranking(view), outcome.gains(view)]),
        Section("learning", "Learning", [learning.accuracy(view), learning.loss(view)]),
        Section("time", "Where the time goes", [outcome.step_times(view), messages.buckets(view), messages.completion(view)]),
        Section("network", "The network", [network.queues(view), network.utilisation(view), drops.drops(view)]),
        Section("mass", "What was lost, and is owed", [messages.losses(view), learning.residual(view)]),
        Section("runs", "All runs", _tables(view)),
        Section("origin", "How it was made", runs.provenance(view)),
    ]
    return page(f"{_title(view)}: testbed report", _head(view), sections, _foot())


def _title(view: View) -> str:
    return str(view.results["experiment"].get("name") or view.folder.name)


def _head(view: View) -> list[Content]:
    results = view.results
    ended = sum(run["outcome"] == "ok" for run in results["runs"])
    chips: list[tuple[str, str]] = [
        ("candidates", f"{len(view.contenders)}"),
        ("runs that ended well", f"{ended} of {max(results['planned'], len(results['runs']))}"),
        ("ranks", f"{sum(len(ranks) for ranks in results['hosts'].values())}"),
        ("switches", str(results["experiment"].get("target", "?"))),
        ("took", duration(results["seconds"])),
        ("began", results["started"]),
    ]
    summary = results["experiment"].get("summary")
    return [
        element("h1", _title(view)),
        element("p", str(summary), class_="summary") if summary else None,
        element("p", outcome.verdict(view), class_="verdict"),
        element("ul", *(element("li", element("b", text), " ", name) for name, text in chips), class_="chips"),
        # The figures are made before this, and what they could not read is known.
        box(view),
    ]


def _tables(view: View) -> list[Figure | Content]:
    tables = [runs.all_runs(view), runs.traffic(view), runs.events(view)]
    hint = (
        "Timelines open in Perfetto (ui.perfetto.dev, or chrome://tracing): ranks with their steps, buckets and messages, "
        "switches with their queues, and an arrow from each message to the all-reduce that it serves."
    )
    return [*(table.render() for table in tables if table is not None), element("p", hint)]


def _foot() -> str:
    return (
        "Times are wall-clock. Medians are over runs with different seeds, which candidates took in turns; a range is from the "
        "smallest to the largest run. Made by dlcp testbed from results.json and the files that it names."
    )


__all__ = ["FILE", "render", "verdict", "write_report"]
