"""Runs a sweep: what is not done yet, here or on a cluster; then writes the tables and the page of all."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.memory import ENGINES
from sim.sweep import page, table
from sim.sweep.cells import Cell, Outcome, plan
from sim.sweep.grid import Grid
from sim.sweep.pool import run_dask, run_here


@dataclass(frozen=True)
class Swept:
    """What a sweep has come to.

    Attributes:
        grid: What was asked for.
        rows: A row for every cell.
        kept: Cells that had been run before.
        page: The page.
    """

    grid: Grid
    rows: list[dict[str, Any]]
    kept: int
    page: Path

    def count(self, *states: str) -> int:
        """Returns how many cells are in one of some states."""
        return sum(row["state"] in states for row in self.rows)


def sweep(
    path: Path,
    folder: Path,
    *,
    jobs: int = 0,
    dask: str = "",
    engine: str = "compiled",
    plots: Sequence[tuple[str, str]] = (),
    stop: Callable[[], bool] = lambda: False,
    report: Callable[[int, int, int], object] = lambda done, total, failed: None,
) -> Swept:
    """Runs all cells of a grid that have not been run, and writes the results of all.

    Args:
        path: The grid.
        folder: Where results are, and go.
        jobs: Processes; 0 is one a core.
        dask: Address of a Dask scheduler, in place of processes.
        engine: Of :data:`sim.memory.ENGINES`.
        plots: Metric and axis of each figure.
        stop: Once it returns True, what is not done is given up.
        report: Told how many cells are done in this call, of how many, and how many have failed.

    Raises:
        ConfigError: The grid or the scenario is wrong.
        MissingPackage: llvmlite or distributed is not installed.
        DLCPError: The cluster does not answer.
    """
    grid, cells = plan(path, engine)
    store = table.Store(folder)
    outcomes: dict[int, Outcome] = {}
    todo: list[Cell] = []
    for cell in cells:
        if cell.task is None:
            outcomes[cell.number] = {"error": cell.error}
        elif (found := store.read(cell)) is not None:
            outcomes[cell.number] = found
        else:
            todo.append(cell)
    kept = sum("summary" in outcome for outcome in outcomes.values())
    failed = len(outcomes) - kept
    if todo and not dask and engine == ENGINES[0]:
        warm_up()
    running = run_dask(todo, dask, stop) if dask else run_here(todo, jobs or os.cpu_count() or 1, stop)
    report(0, len(todo), failed)
    for done, (cell, outcome) in enumerate(running, 1):
        outcomes[cell.number] = outcome
        failed += "summary" not in outcome
        store.write(cell, outcome)
        report(done, len(todo), failed)
    rows = table.rows(cells, outcomes, grid.axes)
    table.write(folder, rows)
    return Swept(grid, rows, kept, page.write_page(folder, path.stem, rows, grid.axes, plots))


def warm_up() -> None:
    """Compiles the engine, so that workers find it in the cache rather than all do so at once.

    Raises:
        MissingPackage: llvmlite is not installed.
    """
    from sim.compiled import compiled

    compiled()


class Line:
    """The progress line, on standard error."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._started = time.monotonic()

    def show(self, done: int, total: int, failed: int) -> None:
        """Shows how far a sweep is."""
        if self._quiet or not total:
            return
        spent = time.monotonic() - self._started
        ending = f", {spent * (total - done) / done:.0f} s to go" if done else ""
        print(f"\r\x1b[K{done} of {total} cells, {failed} failed{ending}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Takes it away."""
        if not self._quiet:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


__all__ = ["Line", "Swept", "sweep", "warm_up"]
