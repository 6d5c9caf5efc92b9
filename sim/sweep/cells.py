"""Cells: everything that one run of a sweep needs, in JSON, so that it can run in any process on any machine."""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import dlcp
from dlcp.errors import ConfigError, DLCPError
from dlcp.schema import read_toml
from sim.sweep.grid import Grid, Values, apply

Task = dict[str, Any]
"""``fields`` of the scenario, ``files`` (base64) that it names, ``engine``, and ``source``, which stands in errors."""

Outcome = dict[str, Any]
"""``summary`` or ``error``, and ``cpu_s``."""

_APART: Final = ("report", "sweep", "cosim", "experiments", "readers")
"""What of the simulator has no part in what a run gives."""


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        number: Its position in the grid.
        values: What it changes.
        digest: Of all that its result depends on.
        task: What a worker is given; None if the scenario is wrong already.
        error: What is wrong with it, if so.
    """

    number: int
    values: Values
    digest: str
    task: Task | None
    error: str = ""


def plan(path: Path, engine: str) -> tuple[Grid, list[Cell]]:
    """Reads a grid and returns it with all its cells.

    A cell whose scenario is wrong is one that has failed; only if all are, that is an error.

    Raises:
        ConfigError: The grid or its scenario cannot be read, or no cell has a scenario that is right.
    """
    grid = Grid.from_toml(path)
    scenario = path.parent / grid.scenario
    base = apply(read_toml(scenario), grid.set, str(path))
    cells: list[Cell] = []
    read: dict[Path, str] = {}
    first: ConfigError | None = None
    for number, values in enumerate(grid.cells()):
        try:
            task = task_of(apply(base, values, str(path)), scenario, engine, read)
            cells.append(Cell(number, values, digest(task), task))
        except ConfigError as error:
            first = first or error
            cells.append(Cell(number, values, digest({"values": values, "error": str(error)}), None, str(error)))
    if first is not None and all(cell.task is None for cell in cells):
        raise first
    return grid, cells


def task_of(fields: dict[str, Any], scenario: Path, engine: str, read: dict[Path, str] | None = None) -> Task:
    """Checks the fields of a scenario and puts the files that it names beside it.

    Args:
        fields: Of the scenario.
        scenario: Its file.
        engine: Of :data:`sim.memory.ENGINES`.
        read: Files that have been read already; others are added.

    Raises:
        ConfigError: The scenario is wrong.
    """
    from sim.scenario import Scenario

    plain = Scenario.from_dict(fields, str(scenario)).to_dict()
    files: dict[str, str] = {}
    known = {} if read is None else read
    for text in set(_texts(plain)):
        found = scenario.parent / text
        if text and len(text) < 1000 and found.is_file():
            if found not in known:
                known[found] = _content(found)
            files[text] = known[found]
    return {"fields": plain, "files": files, "engine": engine, "source": str(scenario)}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _content(path: Path) -> str:
    try:
        return base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise ConfigError(path, "(file)", f"cannot be read: {error.strerror or error}", "a file") from None


def digest(task: Task) -> str:
    """Returns a digest of a task, and of the code that will run it, but not of where its files stand."""
    known = {key: value for key, value in task.items() if key not in ("source", "engine")}
    text = json.dumps([known, dlcp.__version__, sources()], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@cache
def sources() -> str:
    """Returns a digest of the simulator's sources."""
    root = Path(__file__).parents[1]
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if place.parts[0] not in _APART and not place.name.startswith("cli"):
            found.update(f"{place}\0".encode() + path.read_bytes())
    return found.hexdigest()


def run_cell(task: Task) -> Outcome:
    """Runs a cell; what goes wrong is in the outcome."""
    begun = time.process_time()
    try:
        outcome: Outcome = {"summary": _run(task)}
    except DLCPError as error:
        outcome = {"error": str(error)}
    except Exception as error:
        outcome = {"error": f"{type(error).__name__}: {error}"}
    return {**outcome, "cpu_s": round(time.process_time() - begun, 3)}


def _run(task: Task) -> dict[str, Any]:
    from sim.output import play
    from sim.scenario import Scenario

    with tempfile.TemporaryDirectory(prefix="dlcp-sweep-") as name:
        folder = Path(name)
        places: dict[str, str] = {}
        for number, (text, content) in enumerate(sorted(task["files"].items())):
            # The name is kept for errors, in a folder of its own, whatever path it had.
            place = folder / str(number) / Path(text).name
            place.parent.mkdir()
            place.write_bytes(base64.b64decode(content, validate=True))
            places[text] = str(place.relative_to(folder))
        try:
            scenario = Scenario.from_dict(_placed(task["fields"], places), task["source"])
            simulation = scenario.build(folder, task["engine"])
            return play(simulation, scenario, lambda progress: None)
        except ConfigError as error:
            raise DLCPError(str(error).replace(f"{folder}/", "")) from None


def _placed(value: Any, places: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _placed(each, places) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_placed(each, places) for each in value]
    return places.get(value, value) if isinstance(value, str) else value


__all__ = ["Cell", "Outcome", "Task", "digest", "plan", "run_cell", "sources", "task_of"]
