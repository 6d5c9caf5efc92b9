"""``dlcp sim``: run scenarios, compare runs, measure the simulator."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sim.cli_inputs import add_parsers, run_import, run_profile
from sim.cli_results import VERBS, add_verbs
from sim.interrupts import interrupts
from sim.memory import ENGINES

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from sim.simulation import Progress

INTERRUPTED: Final = 130
UNFINISHED: Final = 1
MISSING: Final = 3

_EPILOG: Final = """\
examples:
  dlcp sim run scenarios/permutation-144.toml               a summary
  dlcp sim run job.toml --out results/dlcp --seed 7         and a row for every message and every port
  dlcp sim run job.toml --set transport.name=dctcp --json > dctcp.json
  dlcp sim run job.toml --set workload=vgg16 --set traffic.kind=training --set traffic.algorithm=hierarchical
  dlcp sim compare dctcp.json results/dlcp
  dlcp sim compare results/dlcp results/tcp --html compare.html
  dlcp sim bench --hosts 1024 --json | jq .packet_hops_per_cpu_s

exit codes of run:
  0 all messages complete   1 some are not, by the time limit   130 interrupted; what there is by then has been written
"""


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``sim`` with its verbs."""
    parser = subparsers.add_parser(
        "sim",
        help="simulate a network and what it carries, packet by packet",
        description="Simulates training traffic packet by packet. What it says follows from topology, policy and workload files.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", required=True)

    run_ = verbs.add_parser("run", help="run a scenario")
    run_.add_argument("file", type=Path, help="scenario file")
    run_.add_argument("--out", type=Path, help="folder for tables, summary.json, report.html and trace.json; made if need be")
    run_.add_argument("--jsonl", action="store_true", help="tables as JSON lines in place of CSV")
    run_.add_argument("--seed", type=int, help="in place of the file's")
    run_.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="change a key of the file, such as transport.name=dctcp"
    )
    run_.add_argument(
        "--engine", choices=ENGINES, default="compiled", help="machine code or Python, with the same results (%(default)s)"
    )
    run_.add_argument("--json", action="store_true", help="the summary as one JSON document")
    run_.add_argument("--quiet", action="store_true", help="no progress line")

    bench = verbs.add_parser("bench", help="packet-hops a CPU second")
    bench.add_argument("--hosts", type=int, choices=(128, 1024), default=128, help="size of the network (%(default)s)")
    bench.add_argument("--runs", type=int, default=5, help="runs of each transport (%(default)s)")
    bench.add_argument("--json", action="store_true", help="one JSON document")
    add_verbs(verbs)
    add_parsers(verbs)


def run(args: argparse.Namespace) -> int:
    """Runs a verb."""
    from dlcp.errors import MissingPackage

    try:
        return {"run": _run, "bench": _bench, "profile": run_profile, "import": run_import, **VERBS}[args.verb](args)
    except MissingPackage as error:
        print(f"dlcp sim: {error}", file=sys.stderr)
        return MISSING


def _run(args: argparse.Namespace) -> int:
    from sim.output import Folder, play
    from sim.scenario_file import read

    overrides = [*args.set, *([f"seed={args.seed}"] if args.seed is not None else [])]
    scenario = read(args.file, overrides)
    simulation = scenario.build(args.file.parent, args.engine)
    folder = None if args.out is None else Folder(args.out, jsonl=args.jsonl)
    line = _Line(quiet=args.quiet or not sys.stderr.isatty())
    with interrupts() as interrupted:

        def report(progress: Progress) -> bool:
            line.show(progress)
            return bool(interrupted)

        summary = play(simulation, scenario, report, folder=folder)
    line.clear()
    if folder is not None:
        from sim.report import write_report

        write_report(folder.path)
    print(json.dumps(summary, indent=2) if args.json else "\n".join(described(summary)))
    return INTERRUPTED if summary["interrupted"] else 0 if summary["finished"] else UNFINISHED


class _Line:
    """The progress line, on standard error."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._started = self._shown = time.monotonic()

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        if self._quiet or now - self._shown < 0.5:
            return
        self._shown = now
        spent = now - self._started
        left = spent * (progress.total - progress.done) / progress.done if progress.done else None
        ending = "" if left is None else f", {left:.0f} s to go"
        text = f"{progress.now / 1e9:.3f} ms simulated, {progress.done}/{progress.total} messages"
        print(f"\r\x1b[K{text}, {progress.hops / spent / 1e6:.2f} M packet-hops/s{ending}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if not self._quiet:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def described(summary: dict[str, Any]) -> Iterator[str]:
    """Yields the lines of a summary as people read it."""
    yield (
        f"{summary['transport']}, {summary['spray']}: {summary['complete']} of {summary['messages']} messages complete "
        f"after {summary['now_s'] * 1e3:.6g} ms; {summary['packet_hops']} packet-hops, seed {summary['seed']}"
    )
    yield f"{'':<28}{'count':>8}{'mean':>12}{'p50':>12}{'p99':>12}{'p99.9':>12}{'max':>12}"
    groups = [("all", summary), *((f"{name} B", found) for name, found in summary["by_size_bytes"].items())]
    groups += [*summary["jobs"].items(), ("background", summary["background"])]
    for name, found in groups:
        for column, unit, factor in (("completion_s", "us", 1e6), ("slowdown", "", 1.0)):
            values = found[column]
            if values["count"]:
                numbers = "".join(f"{values[key] * factor:>12.6g}" for key in ("mean", "p50", "p99", "p999", "max"))
                yield f"{name + ' ' + column.removesuffix('_s') + (' ' + unit if unit else ''):<28}{values['count']:>8}{numbers}"
    for name, found in (("", summary), *summary["jobs"].items()):
        if times := found["steps_s"]:
            mean = sum(times) / len(times)
            text = f"{name + ' ' if name else ''}steps: {len(times)}, mean {mean * 1e3:.6g} ms, longest {max(times) * 1e3:.6g} ms"
            idle = found["exposed_s"]
            yield text + (f", exposed communication {sum(idle) / len(idle) * 1e3:.6g} ms" if idle else "")
    yield "packets: " + ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in summary["packets"].items() if value)


def _bench(args: argparse.Namespace) -> int:
    from sim.bench import measure

    result = measure(args.hosts, max(args.runs, 1))
    if args.json:
        print(json.dumps(result, indent=2))
        return 0
    compiling, first = result["compile_cpu_s"], result["first_call_cpu_s"]
    print(f"{result['hosts']} hosts, permutation over all paths, compiling {compiling} s, first call {first} s")
    for name, found in result.items():
        if isinstance(found, dict):
            rate = found["packet_hops_per_cpu_s"] / 1e6
            print(f"{name:<8}{rate:>8.2f} M packet-hops/CPU-s{found['events_per_hop']:>8.2f} events/hop")
    return 0


__all__ = ["add_parser", "described", "run"]
