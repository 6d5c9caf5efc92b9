"""The verbs of ``dlcp sim`` that work with results: report, compare, sweep, and cosim."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sim.cli_cosim import add_cosim, run_cosim
from sim.memory import ENGINES

if TYPE_CHECKING:
    from argparse import _SubParsersAction

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130


def add_verbs(verbs: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds them."""
    report = verbs.add_parser("report", help="write the page and the timeline of runs once more")
    report.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="of dlcp sim run --out")
    report.add_argument("--no-trace", action="store_true", help="no timeline")

    compare = verbs.add_parser("compare", help="what differs between runs", description="Changes are against the first run.")
    compare.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="two or more: summaries, or folders of --out")
    compare.add_argument("--json", action="store_true", help="one JSON document")
    compare.add_argument("--html", type=Path, metavar="FILE", help="also write a page with steps and distributions")

    sweep = verbs.add_parser(
        "sweep",
        help="run many settings of a scenario",
        description="Runs every cell of a grid of settings. What has been done before is not done again.",
        epilog="example: dlcp sim sweep scenarios/sweeps/star.toml --out results/sweep --plot completion_s.p99:traffic.size",
    )
    sweep.add_argument("file", type=Path, metavar="GRID.toml", help="scenario, and which of its keys take which values")
    sweep.add_argument("--out", type=Path, help="folder for cells, tables and the page (sweep-NAME)")
    sweep.add_argument("--jobs", type=int, default=0, help="processes at once (one a core)")
    sweep.add_argument("--dask", metavar="ADDRESS", default="", help="of a Dask scheduler, whose workers run the cells instead")
    sweep.add_argument("--plot", metavar="METRIC:AXIS", action="append", default=[], help="plot this; may be repeated")
    sweep.add_argument("--engine", choices=ENGINES, default=ENGINES[0], help="machine code or Python (%(default)s)")
    sweep.add_argument("--json", action="store_true", help="the rows of all cells as one JSON document")
    sweep.add_argument("--quiet", action="store_true", help="no progress line")
    add_cosim(verbs)


def _sweep(args: argparse.Namespace) -> int:
    from sim.interrupts import interrupts
    from sim.sweep.command import Line, sweep

    folder = args.out or Path(f"sweep-{args.file.stem}")
    plots = [(metric, axis) for metric, _, axis in (text.partition(":") for text in args.plot)]
    line = Line(quiet=args.quiet or not sys.stderr.isatty())
    with interrupts() as seen:
        found = sweep(
            args.file,
            folder,
            jobs=max(args.jobs, 0),
            dask=args.dask,
            engine=args.engine,
            plots=plots,
            stop=lambda: bool(seen),
            report=line.show,
        )
    line.clear()
    if args.json:
        print(json.dumps(found.rows, indent=2))
    else:
        states = ", ".join(f"{n} {state}" for state in ("done", "unfinished", "failed", "missing") if (n := found.count(state)))
        print(f"{len(found.rows)} cells: {states}; {found.kept} were there before")
        for row in found.rows:
            if row["state"] == "failed":
                print(f"cell {row['cell']} failed: {row['error'].splitlines()[0]}", file=sys.stderr)
        print(found.page)
    return INTERRUPTED if seen else FAILED if found.count("failed", "missing") else 0


def _report(args: argparse.Namespace) -> int:
    from sim.report import write_report

    for folder in args.folders:
        print(write_report(folder, trace=not args.no_trace))
    return 0


def _compare(args: argparse.Namespace) -> int:
    from sim.compare import load, table

    if len(args.runs) < 2:
        print("dlcp sim compare: one run has nothing to be compared with; name two or more", file=sys.stderr)
        return USAGE
    rows = table([load(path) for path in args.runs])
    if args.html is not None:
        from sim.report import write_comparison
        from sim.report.reading import Run

        args.html.parent.mkdir(parents=True, exist_ok=True)
        write_comparison([Run(path, name) for path, name in zip(args.runs, names(args.runs), strict=True)], args.html)
    if args.json:
        print(json.dumps([_as_json(*row) for row in rows], indent=2))
        return 0
    print(
        f"{'':<28}"
        + "".join(f"{name[-15:]:>16}{'' if not place else '    change'}" for place, name in enumerate(names(args.runs)))
    )
    for name, values, changes in rows:
        cells = [f"{'' if each is None else f'{each:.6g}':>16}" for each in values]
        signs = [f"{'' if change is None else f'{change:+.1%}':>10}" for change in changes]
        print(f"{name:<28}{cells[0]}" + "".join(cell + sign for cell, sign in zip(cells[1:], signs[1:], strict=True)))
    return 0


def _as_json(name: str, values: list[float | None], changes: list[float | None]) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "values": values, "changes": changes}
    if len(values) == 2:
        found |= {"left": values[0], "right": values[1], "change": changes[1]}
    return found


def names(paths: list[Path]) -> list[str]:
    """Returns a name for each of several runs, no two the same."""
    found: list[str] = []
    for path in paths:
        base = path.resolve().name if path.is_dir() else path.stem
        name, number = base, 1
        while name in found:
            number += 1
            name = f"{base} ({number})"
        found.append(name)
    return found


VERBS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "report": _report,
    "compare": _compare,
    "sweep": _sweep,
    "cosim": run_cosim,
}

__all__ = ["VERBS", "add_verbs", "names"]
