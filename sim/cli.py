"""``dlcp sim``: run scenarios, compare runs, measure the simulator."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
  dlcp sim compare dctcp.json results/dlcp
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
    run_.add_argument("--out", type=Path, help="folder for messages.csv, ports.csv and summary.json; made if it is not there")
    run_.add_argument("--jsonl", action="store_true", help="messages.jsonl and ports.jsonl in place of CSV")
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

    compare = verbs.add_parser("compare", help="what differs between two runs")
    compare.add_argument("left", type=Path, help="summary, or folder of --out")
    compare.add_argument("right", type=Path, help="likewise")
    compare.add_argument("--json", action="store_true", help="one JSON document")


def run(args: argparse.Namespace) -> int:
    """Runs a verb."""
    from sim.errors import MissingPackage

    try:
        return {"run": _run, "bench": _bench, "compare": _compare}[args.verb](args)
    except MissingPackage as error:
        print(f"dlcp sim: {error}", file=sys.stderr)
        return MISSING


def _run(args: argparse.Namespace) -> int:
    from sim.results import MESSAGE_COLUMNS, PORT_COLUMNS, Rows, Writer, ports, summarize
    from sim.scenario_file import read

    overrides = [*args.set, *([f"seed={args.seed}"] if args.seed is not None else [])]
    scenario = read(args.file, overrides)
    simulation = scenario.build(args.file.parent, args.engine)
    rows = Rows(simulation)
    suffix = "jsonl" if args.jsonl else "csv"
    with ExitStack() as stack:
        writer = None
        if args.out is not None:
            args.out.mkdir(parents=True, exist_ok=True)
            writer = Writer(args.out / f"messages.{suffix}", MESSAGE_COLUMNS)
            stack.callback(writer.close)
        interrupted = stack.enter_context(_interrupts())
        line = _Line(quiet=args.quiet or not sys.stderr.isatty())

        def report(progress: Progress) -> bool:
            if writer is not None:
                writer.write(rows.new())
            line.show(progress)
            return bool(interrupted)

        finished = simulation.run(int(scenario.limit), report)
        line.clear()
        summary = summarize(simulation)
        summary["interrupted"] = bool(interrupted)
        if writer is not None:
            writer.write(rows.new())
            table = Writer(args.out / f"ports.{suffix}", PORT_COLUMNS)
            stack.callback(table.close)
            table.write(ports(simulation))
            (args.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(summary, indent=2) if args.json else "\n".join(described(summary)))
    return INTERRUPTED if interrupted else 0 if finished else UNFINISHED


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Collects Ctrl-C instead of raising, so that the engine stops between two events; a second one is as usual."""
    seen: list[int] = []

    def note(number: int, frame: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


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
    groups = [("all", summary)] + [(f"{name} B", found) for name, found in summary["by_size_bytes"].items()]
    for name, found in groups:
        for column, unit, factor in (("completion_s", "us", 1e6), ("slowdown", "", 1.0)):
            values = found[column]
            if values["count"]:
                numbers = "".join(f"{values[key] * factor:>12.6g}" for key in ("mean", "p50", "p99", "p999", "max"))
                yield f"{name + ' ' + column.removesuffix('_s') + (' ' + unit if unit else ''):<28}{values['count']:>8}{numbers}"
    if summary["steps_s"]:
        times = summary["steps_s"]
        yield f"steps: {len(times)}, mean {sum(times) / len(times) * 1e3:.6g} ms, longest {max(times) * 1e3:.6g} ms"
    yield "packets: " + ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in summary["packets"].items() if value)


def _bench(args: argparse.Namespace) -> int:
    from sim.bench import measure

    result = measure(args.hosts, max(args.runs, 1))
    if args.json:
        print(json.dumps(result, indent=2))
        return 0
    print(f"{result['hosts']} hosts, permutation over all paths, first call {result['first_call_s']} s")
    for name, found in result.items():
        if isinstance(found, dict):
            rate = found["packet_hops_per_cpu_s"] / 1e6
            print(f"{name:<8}{rate:>8.2f} M packet-hops/CPU-s{found['events_per_hop']:>8.2f} events/hop")
    return 0


def _compare(args: argparse.Namespace) -> int:
    from sim.compare import compare, load

    rows = compare(load(args.left), load(args.right))
    if args.json:
        print(json.dumps([dict(zip(("name", "left", "right", "change"), row, strict=True)) for row in rows], indent=2))
        return 0
    print(f"{'':<32}{'left':>14}{'right':>14}{'change':>10}")
    for name, left, right, change in rows:
        print(f"{name:<32}{left:>14.6g}{right:>14.6g}{'' if change is None else f'{change:+.1%}':>10}")
    return 0


__all__ = ["add_parser", "described", "run"]
