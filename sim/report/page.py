"""The page of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dlcp.report.figure import Figure
from dlcp.report.markup import Content, element
from dlcp.report.numbers import count, number, seconds
from dlcp.report.page import Section, page, save
from sim.report import figures, network
from sim.report.reading import Run
from sim.report.trace import FILE as TRACE
from sim.report.trace import write_trace

FILE: Final = "report.html"


def write_report(folder: Path, *, trace: bool = True) -> Path:
    """Writes the page of a run, and its timeline.

    Args:
        folder: That of ``dlcp sim run --out``.
        trace: Also write the timeline.

    Returns:
        The path of the page.

    Raises:
        ConfigError: There is no summary, or a table is malformed.
        OSError: It cannot be written.
    """
    run = Run(folder)
    if trace:
        write_trace(run, folder / TRACE)
    steps, collectives = figures.steps(run), figures.collectives(run)
    sections = [
        Section("training", "Training", [each for each in (steps, collectives) if each is not None]),
        Section("messages", "Messages", [figures.completion(run), figures.slowdown(run)]),
        Section("network", "The network", _network(run)),
        Section("origin", "How it was made", _origin(run)),
    ]
    text = page(f"{run.name}: simulation", _head(run), [section for section in sections if section.content], _foot())
    return save(folder / FILE, text)


def _head(run: Run) -> list[Content]:
    summary = run.summary
    steps = summary.get("steps_s") or []
    chips = [
        ("messages complete", f"{count(summary.get('complete'))} of {count(summary.get('messages'))}"),
        ("simulated", seconds(summary.get("now_s"))),
        ("median completion", seconds(summary["completion_s"].get("p50"))),
        ("p99", seconds(summary["completion_s"].get("p99"))),
        ("median slowdown", number(summary.get("slowdown", {}).get("p50"))),
        ("packet-hops", count(summary.get("packet_hops"))),
        *([("mean step", seconds(sum(steps) / len(steps)))] if steps else []),
    ]
    problems = []
    if summary.get("interrupted"):
        problems.append("The run was interrupted; this is what there was by then.")
    elif not summary.get("finished"):
        problems.append("Not all messages were complete by the time limit; those that were not are in no figure.")
    return [
        element("h1", f"{run.name}: {run.title}"),
        element("ul", *(element("li", element("b", text), " ", name) for name, text in chips), class_="chips"),
        element("aside", element("h2", "Before you believe this"), element("ul", *(element("li", each) for each in problems)),
                class_="gaps") if problems else None,
    ]  # fmt: skip


def _network(run: Run) -> list[Figure | Content]:
    table = network.classes(run)
    found: list[Figure | Content] = [network.queues(run), network.utilisation(run), network.drops(run)]
    return found if table is None else [*found, element("details", element("summary", "Queues by class"), table.render())]


def _origin(run: Run) -> list[Figure | Content]:
    keys = ("scenario", "topology", "policy", "seed", "engine", "events", "packet_hops")
    items = [element("li", element("b", key.replace("_", " ")), ": ", str(run.summary.get(key, "?"))) for key in keys]
    hint = f"{TRACE} opens in Perfetto (ui.perfetto.dev, or chrome://tracing): ranks, collectives, messages, queues."
    return [element("ul", *items), element("p", hint)]


def _foot() -> str:
    return "Times are simulated. Made by dlcp sim from the tables beside this page."


__all__ = ["FILE", "write_report"]
