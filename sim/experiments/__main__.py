"""Runs an experiment again, and writes its results, its figure, and the table of its README."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dlcp.errors import DLCPError
from sim.experiments import figure, tables
from sim.experiments.declaration import Declaration
from sim.sweep.command import Line, sweep

ROOT = Path(__file__).parent
NAMES = tuple(sorted(path.parent.name for path in ROOT.glob("*/experiment.toml")))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one; returns the exit code: 1 if a cell has no result, 2 if a file is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m sim.experiments",
        description="Runs an experiment again. What has been done before is not done again.",
        epilog="example: python -m sim.experiments mechanisms --out results/mechanisms --jobs 1",
    )
    parser.add_argument("name", choices=NAMES, help="which")
    parser.add_argument("--out", type=Path, help="folder of the sweep, with all its numbers (sweep-NAME)")
    parser.add_argument("--jobs", type=int, default=0, help="processes at once (one a core)")
    parser.add_argument("--redraw", action="store_true", help="only write figure and table of the results that are there")
    parser.add_argument("--quiet", action="store_true", help="no progress line")
    options = parser.parse_args(arguments)
    line = Line(quiet=options.quiet)
    try:
        if options.redraw:
            declaration = Declaration.from_toml(ROOT / options.name / "experiment.toml")
            show(ROOT / options.name, declaration, tables.read(ROOT / options.name / "results.csv", declaration))
            return 0
        return run(ROOT / options.name, options.out or Path(f"sweep-{options.name}"), options.jobs, line)
    except DLCPError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        line.clear()


def run(folder: Path, out: Path, jobs: int, line: Line) -> int:
    """Runs the experiment in a folder and writes there what came out."""
    declaration = Declaration.from_toml(folder / "experiment.toml")
    swept = sweep(folder / "grid.toml", out, jobs=jobs, report=line.show)
    found = tables.results(declaration, swept.grid, swept.rows)
    tables.write(folder / "results.csv", found)
    table = show(folder, declaration, found)
    spent = sum(row["cpu_s"] or 0.0 for row in swept.rows)
    print(f"{len(found)} cells, {swept.count('done')} done, {spent:.0f} s of CPU time\n{table}")
    return int(swept.count("done") < len(found))


def show(folder: Path, declaration: Declaration, found: Sequence[tables.Result]) -> str:
    """Writes the figure, and the table into the README; returns the table."""
    (folder / "figure.svg").write_text(figure.draw(declaration, found), encoding="utf-8")
    readme, table = folder / "README.md", tables.markdown(declaration, found)
    readme.write_text(tables.replace(readme.read_text(encoding="utf-8"), table), encoding="utf-8")
    return table


if __name__ == "__main__":
    sys.exit(main())
