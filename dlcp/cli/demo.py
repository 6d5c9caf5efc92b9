"""``dlcp demo``: the same training over gloo and over dlcp, without and with loss."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dlcp.cli.bench import machine, share, whole
from dlcp.errors import ConfigError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from dlcp.demo.runs import Scenario

_EPILOG: Final = """\
what it does:
  Three runs of examples/train.py under torchrun, on scikit-learn's handwritten digits: over gloo, over dlcp, and over dlcp
  with a share of its packets dropped on purpose. Then a table: accuracy after each epoch, step times, packets, what was lost of
  each class, and how much gradient is still owed. Packets are of Ethernet's size (MTU 1500), so that losses are fine-grained.

what it leaves:
  runs/demo-TIME/summary.json      what the table shows, and more
  runs/demo-TIME/RUN.RANK.jsonl    one line for each step and epoch of each rank
  runs/demo-TIME/RUN.log           what the processes printed
  runs/demo-TIME/policy.toml       the policy of both dlcp runs

examples:
  dlcp demo                        about a minute on two cores
  dlcp demo --loss 0.05            at the edge of what the default policy tolerates
  dlcp demo --quick                two ranks, one epoch
  dlcp demo --json | jq '.runs[] | {title, accuracy}'

exit codes: 0 done   1 a run failed   2 wrong usage   3 something is not installed   4 the transport failed   130 interrupted
"""

_MISSING: Final = 3
_MTU: Final = 1500
_DEFAULTS: Final = {"ranks": 4, "epochs": 12, "width": 32}
_QUICK: Final = {"ranks": 2, "epochs": 1, "width": 16}


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``demo``."""
    parser = subparsers.add_parser(
        "demo",
        help="train a small model over gloo and over dlcp, and compare",
        description="Trains a small model on real data over gloo and over dlcp, without and with loss, and compares.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--ranks", type=whole(2, 64), metavar="N", help=f"processes (default {_DEFAULTS['ranks']})")
    add("--epochs", type=whole(1, 10_000), metavar="N", help=f"passes over the data (default {_DEFAULTS['epochs']})")
    add("--width", type=whole(1, 1024), metavar="N", help=f"scales the model (default {_DEFAULTS['width']})")
    add("--batch-size", type=whole(1, 1024), default=32, metavar="N", help="samples for each rank and step (default 32)")
    add("--loss", type=share, default=0.01, metavar="P", help="share of packets to drop in the third run (default 0.01)")
    add("--seed", type=whole(0, 2**31), default=0, metavar="N", help="of weights, data order and faults (default 0)")
    add("--quick", action="store_true", help="two ranks, one epoch, a smaller model: to see that it runs, not that it learns")
    add("--timeout", type=whole(1, 86_400), default=300, metavar="S", help="longest single run (default 300)")
    add("--out", type=Path, default=Path("runs"), metavar="DIR", help="where the results' folder is made (default runs)")
    add("--json", action="store_true", help="one JSON document on standard output instead of the table")


def run(args: argparse.Namespace) -> int:
    """Trains, then prints."""
    from dlcp.demo.runs import Training, command, root_of_script
    from dlcp.demo.runs import run as train
    from dlcp.demo.summary import read_lines, summarize
    from dlcp.policy import Policy

    root = root_of_script()
    for lacking, name in ((root is None, "examples/train.py"), (find_spec("sklearn") is None, "scikit-learn")):
        if lacking:
            print(f"dlcp demo: {name} is not installed: pip install 'dlcp[examples]', or run in the source tree", file=sys.stderr)
            return _MISSING
    assert root is not None
    sizes = {key: getattr(args, key) or value for key, value in (_QUICK if args.quick else _DEFAULTS).items()}
    training = Training(batch_size=args.batch_size, seed=args.seed, **sizes)
    policy = Policy.from_dict({"wire": {"mtu": _MTU}}, source="demo")
    folder = _new_folder(args.out)
    (folder / "policy.toml").write_text(policy.to_toml())
    scenarios = _scenarios(args.loss)
    runs = []
    begin = time.monotonic()
    with _progress(len(scenarios), training.epochs) as (started, watch):
        for scenario in scenarios:
            started(scenario)
            words = command(scenario, training, folder, folder / "policy.toml")
            seconds = train(words, scenario, folder, root, args.timeout, watch)
            logs = [read_lines(scenario.log(folder, rank)) for rank in range(training.ranks)]
            runs.append(summarize(scenario, logs, seconds))
    report = {
        "machine": machine(),
        "arguments": {**sizes, "batch_size": args.batch_size, "loss": args.loss, "seed": args.seed},
        "policy": policy.to_dict(),
        "packet_bytes": _MTU,
        "seconds": time.monotonic() - begin,
        "folder": str(folder),
        "runs": runs,
    }
    (folder / "summary.json").write_text(json.dumps(report, indent=2) + "\n")
    if args.json:
        json.dump(report, sys.stdout, indent=2)
        print()
    else:
        from rich.console import Console

        from dlcp.demo.table import print_report

        console = Console()
        print_report(report, console)
        console.print(f"\n{report['seconds']:.0f} s in all; everything is in {folder}", highlight=False, soft_wrap=True)
    return 0


def _scenarios(loss: float) -> tuple[Scenario, ...]:
    from dlcp.demo.runs import Scenario

    return (
        Scenario("gloo", "gloo", "gloo"),
        Scenario("dlcp", "dlcp", "dlcp"),
        Scenario("dlcp-loss", f"dlcp, {100 * loss:g} % loss", "dlcp", loss),
    )


def _new_folder(parent: Path) -> Path:
    folder = parent / f"demo-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError("--out", str(folder), f"cannot be made: {error.strerror}", "a folder that can be written to") from error
    return folder


@contextmanager
def _progress(runs: int, epochs: int) -> Iterator[tuple[Callable[[Scenario], None], Callable[[dict[str, Any]], None]]]:
    """Yields two functions that show, on standard error, which run has begun and what it has just logged."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=runs * epochs, note="")
        done = 0

        def started(scenario: Scenario) -> None:
            bar.update(task, description=f"training over {scenario.title}", note="starting ranks")
            if not console.is_terminal:
                print(f"dlcp demo: training over {scenario.title} ...", file=sys.stderr, flush=True)

        def watch(line: dict[str, Any]) -> None:
            nonlocal done
            if line.get("event") == "epoch":
                done += 1
                bar.update(task, completed=done, note=f"accuracy {100 * line['accuracy']:.1f} %")

        yield started, watch
