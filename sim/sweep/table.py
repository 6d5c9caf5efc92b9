"""The folder of a sweep: what is done by digest, and the tables of all."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from sim.compare import metrics
from sim.sweep.cells import Cell, Outcome

CELLS: Final = "cells"


class Store:
    """Outcomes of cells, one file each, named after the digest.

    Args:
        folder: Of the sweep; made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / CELLS).mkdir(parents=True, exist_ok=True)

    def read(self, cell: Cell) -> Outcome | None:
        """Returns the outcome of a cell that ran to its end before; None if there is none, or only an error."""
        try:
            found = json.loads(self._path(cell).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        sound = isinstance(found, dict) and isinstance(found.get("summary"), dict)
        return found if sound and not found["summary"].get("interrupted") else None

    def write(self, cell: Cell, outcome: Outcome) -> None:
        """Keeps an outcome; a file is there whole or not at all."""
        path = self._path(cell)
        new = path.with_suffix(f".{os.getpid()}.new")
        new.write_text(json.dumps({"values": cell.values, **outcome}, indent=1) + "\n", encoding="utf-8")
        new.replace(path)

    def _path(self, cell: Cell) -> Path:
        return self.folder / CELLS / f"{cell.digest}.json"


def rows(cells: Sequence[Cell], outcomes: dict[int, Outcome], axes: Sequence[str]) -> list[dict[str, Any]]:
    """Returns a row for every cell: number, state, the values of its axes, metrics, and what went wrong.

    States are ``done``, ``unfinished`` (messages were open at the scenario's time limit), ``failed`` and ``missing``.
    """
    found = []
    for cell in cells:
        outcome = outcomes.get(cell.number)
        summary = (outcome or {}).get("summary")
        if outcome is None:
            state = "missing"
        elif summary is None:
            state = "failed"
        else:
            state = "done" if summary.get("finished") else "unfinished"
        row: dict[str, Any] = {"cell": cell.number, "digest": cell.digest, "state": state}
        row |= {axis: cell.values[axis] for axis in axes}
        row |= metrics(summary) if summary else {}
        row["cpu_s"] = (outcome or {}).get("cpu_s")
        row["error"] = (outcome or {}).get("error", "")
        found.append(row)
    return found


def write(folder: Path, found: Sequence[dict[str, Any]]) -> None:
    """Writes ``table.csv`` and ``table.json``."""
    columns = list(dict.fromkeys(name for row in found for name in row if name not in ("cpu_s", "error")))
    columns += ["cpu_s", "error"]
    with (folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n", restval="")
        writer.writeheader()
        for row in found:
            writer.writerow({key: json.dumps(value) if isinstance(value, list | dict) else value for key, value in row.items()})
    (folder / "table.json").write_text(json.dumps(list(found), indent=1) + "\n", encoding="utf-8")


__all__ = ["CELLS", "Store", "rows", "write"]
