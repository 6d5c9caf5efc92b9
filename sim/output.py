"""What a run writes into its folder: tables, each row as early as it can be, and the summary."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dlcp.units import Delay
from sim.ports_table import CLASS_COLUMNS, PORT_COLUMNS, classes, count_classes, ports
from sim.results import MESSAGE_COLUMNS, Rows, Writer, summarize
from sim.series import SERIES_COLUMNS, run_sampled
from sim.simulation import Progress, Simulation
from sim.training_table import (
    COLLECTIVE_COLUMNS,
    COMPUTE_COLUMNS,
    ITERATION_COLUMNS,
    collectives,
    computing,
    iterations,
)

if TYPE_CHECKING:
    from sim.scenario import Scenario

TABLES: Final[dict[str, Sequence[str]]] = {
    "messages": MESSAGE_COLUMNS,
    "ports": PORT_COLUMNS,
    "classes": CLASS_COLUMNS,
    "series": SERIES_COLUMNS,
    "computing": COMPUTE_COLUMNS,
    "collectives": COLLECTIVE_COLUMNS,
    "iterations": ITERATION_COLUMNS,
}
"""Columns of each table; a file is named after its table."""


class Folder:
    """The folder of a run.

    Args:
        path: It is made if it is not there; tables of an earlier run in it are replaced.
        jsonl: JSON lines in place of CSV.
    """

    def __init__(self, path: Path, *, jsonl: bool = False) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        for name in TABLES:
            for suffix in ("csv", "jsonl"):
                (path / f"{name}.{suffix}").unlink(missing_ok=True)
        self._suffix = "jsonl" if jsonl else "csv"

    def table(self, name: str, stack: ExitStack) -> Writer:
        """Returns the writer of a table, which ``stack`` closes."""
        writer = Writer(self.path / f"{name}.{self._suffix}", TABLES[name])
        stack.callback(writer.close)
        return writer

    def write(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        """Writes a table at once."""
        with ExitStack() as stack:
            self.table(name, stack).write(rows)

    def document(self, name: str, content: Any) -> None:
        """Writes a JSON document."""
        (self.path / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def play(
    simulation: Simulation,
    scenario: Scenario,
    report: Callable[[Progress], bool | None],
    *,
    folder: Folder | None = None,
) -> dict[str, Any]:
    """Runs a simulation and writes what it gives.

    Args:
        simulation: Made by ``scenario``.
        scenario: What it is; its ``limit`` and ``series`` hold.
        report: Called now and then; the run ends if it returns True.
        folder: Where tables go; None writes none.

    Returns:
        The summary, which says ``interrupted`` if ``report`` ended the run.
    """
    stopped = False
    until = int(scenario.limit)
    with ExitStack() as stack:
        streamed = [] if folder is None else [(folder.table("messages", stack), Rows(simulation))]
        if folder is not None:
            count_classes(simulation)

        def look(progress: Progress) -> bool:
            nonlocal stopped
            for writer, rows in streamed:
                writer.write(rows.new())
            stopped = bool(report(progress))
            return stopped

        if folder is not None and int(scenario.series):
            series = folder.table("series", stack)
            for samples in run_sampled(simulation, until, int(scenario.series), look):
                series.write(samples)
        else:
            simulation.run(until, look)
        for writer, rows in streamed:
            writer.write(rows.new())
    summary = summarize(simulation)
    summary["interrupted"] = stopped
    summary["scenario"] = identity(scenario)
    if folder is not None:
        folder.write("ports", ports(simulation))
        folder.write("classes", classes(simulation))
        if any(message.source == message.destination for message in simulation.messages):
            folder.write("computing", computing(simulation))
            folder.write("collectives", collectives(simulation))
            folder.write("iterations", iterations(simulation))
        folder.document("summary.json", summary)
    return summary


def identity(scenario: Scenario) -> str:
    """Returns a digest of a scenario's keys, but for those that say only what is written."""
    return dataclasses.replace(scenario, series=Delay.parse("0 s")).digest()


__all__ = ["TABLES", "Folder", "identity", "play"]
