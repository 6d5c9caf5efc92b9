"""``dlcp demo``: the same training over gloo and over dlcp, in an emulated network or, where there can be none, over loopback.

The emulated network is the testbed's, which builds on this package: so it is started as a program of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
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
  It builds a network on this machine: four ranks around one P4 switch, and two other hosts that use one rank's port in bursts.
  A model learns scikit-learn's handwritten digits across it, first over gloo, then over dlcp. In the end stands which of them
  reached the goal first, by how much, and where the report is.

  For that it needs root, or a kernel that lets users make user namespaces ('dlcp testbed doctor' shows all that is needed).
  Where there can be no network it says why, and runs over loopback instead: over gloo, over dlcp, and over dlcp with a share of
  its packets dropped on purpose, with a table of accuracies, step times, packets, what was lost of each class, and how much
  gradient is still owed.

what it leaves:
  runs/demo-TIME/report.html       figures, in one file; results.json has what was measured
  runs/demo-TIME/CANDIDATE/SEED/   a line for each step, bucket and message of each rank, logs, queues
 over loopback:
  runs/demo-TIME/summary.json      what the table shows, and more
  runs/demo-TIME/RUN.RANK.jsonl    one line for each step and epoch of each rank
  runs/demo-TIME/RUN.log           what the processes printed
  runs/demo-TIME/policy.toml       the policy of both dlcp runs

examples:
  sudo dlcp demo                   about two minutes on two cores
  dlcp demo --loopback             about a minute; no root
  dlcp demo --loss 0.05            over loopback, at the edge of what the default policy tolerates
  dlcp demo --quick                one epoch
  dlcp demo --quick --loopback --json | jq '.runs[] | {title, accuracy}'

exit codes: 0 done   1 a run failed   2 wrong usage   3 something is not installed   4 the transport failed   130 interrupted
"""

_MISSING: Final = 3
_MTU: Final = 1500
_TESTBED: Final = (sys.executable, "-m", "dlcp", "testbed")
_PROBING_S: Final = 120
_BATCH: Final = 32
_LOSS: Final = 0.01
_TIMEOUT_S: Final = 300
_DEFAULTS: Final = {"ranks": 4, "epochs": 12, "width": 32}
_QUICK: Final = {"ranks": 2, "epochs": 1, "width": 16}


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``demo``."""
    parser = subparsers.add_parser(
        "demo",
        help="train a small model over gloo and over dlcp, and compare",
        description="Trains a small model on real data over gloo and over dlcp, and compares.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--loopback", action="store_true", help="over loopback, whether or not there can be an emulated network")
    add("--epochs", type=whole(1, 10_000), metavar="N", help="passes over the data (default 4; over loopback 12)")
    add("--seed", type=whole(0, 2**31 - 1), metavar="N", help="of weights, data order and faults (default 1; over loopback 0)")
    add("--quick", action="store_true", help="one epoch: to see that it runs, not that it learns")
    add("--timeout", type=whole(1, 86_400), metavar="S", help="longest single run (default 90; over loopback 300)")
    add("--out", type=Path, default=Path("runs"), metavar="DIR", help="where the results' folder is made (default runs)")
    add("--json", action="store_true", help="one JSON document on standard output instead of the table")
    add = parser.add_argument_group("over loopback", "Each of these chooses loopback.").add_argument
    add("--ranks", type=whole(2, 64), metavar="N", help=f"processes (default {_DEFAULTS['ranks']})")
    add("--width", type=whole(1, 1024), metavar="N", help=f"scales the model (default {_DEFAULTS['width']})")
    add("--batch-size", type=whole(1, 1024), metavar="N", help=f"samples for each rank and step (default {_BATCH})")
    add("--loss", type=share, metavar="P", help=f"share of packets to drop in the third run (default {_LOSS})")


def run(args: argparse.Namespace) -> int:
    """Trains in an emulated network if this host can have one, else over loopback."""
    if args.loopback or any(getattr(args, key) is not None for key in ("ranks", "width", "batch_size", "loss")):
        return _over_loopback(args)
    problem = _no_network()
    if problem:
        print(f"dlcp demo: over loopback, because there can be no emulated network: {problem}", file=sys.stderr)
        return _over_loopback(args)
    words = [*_TESTBED, "run", "demo", "--out", str(args.out)]
    for key in ("epochs", "seed", "timeout"):
        value = getattr(args, key)
        words += [] if value is None else [f"--{key}", str(value)]
    words += [f"--{key}" for key in ("quick", "json") if getattr(args, key)]
    return _become(words)


def _no_network() -> str:
    """Returns why the testbed cannot run here; empty if it can."""
    if find_spec("testbed") is None:
        return "the testbed is not installed"
    words = [*_TESTBED, "check", "demo", "--json"]
    try:
        done = subprocess.run(words, env=_environment(), capture_output=True, text=True, timeout=_PROBING_S, check=False)
    except subprocess.TimeoutExpired:
        return f"'dlcp testbed check demo' has not ended within {_PROBING_S} s"
    if done.returncode == 0:
        return ""
    try:
        return "; ".join(json.loads(done.stdout)["lacks"]) or "'dlcp testbed check demo' does not say why"
    except (ValueError, KeyError, TypeError):
        return " ".join((done.stderr.strip().splitlines() or ["'dlcp testbed check demo' has failed"])[-1].split())


def _become(words: list[str]) -> int:
    """Runs a command in place of this process, which so gets all signals that were meant for this one."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(words[0], words, _environment())


def _environment() -> dict[str, str]:
    """Returns the environment in which Python finds this package where this process found it."""
    paths = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _over_loopback(args: argparse.Namespace) -> int:
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
    batch_size, seed = args.batch_size or _BATCH, args.seed or 0
    loss = _LOSS if args.loss is None else args.loss
    training = Training(batch_size=batch_size, seed=seed, **sizes)
    policy = Policy.from_dict({"wire": {"mtu": _MTU}}, source="demo")
    folder = _new_folder(args.out)
    (folder / "policy.toml").write_text(policy.to_toml())
    scenarios = _scenarios(loss)
    runs = []
    begin = time.monotonic()
    with _progress(len(scenarios), training.epochs) as (started, watch):
        for scenario in scenarios:
            started(scenario)
            words = command(scenario, training, folder, folder / "policy.toml")
            seconds = train(words, scenario, folder, root, args.timeout or _TIMEOUT_S, watch)
            logs = [read_lines(scenario.log(folder, rank)) for rank in range(training.ranks)]
            runs.append(summarize(scenario, logs, seconds))
    report = {
        "machine": machine(),
        "arguments": {**sizes, "batch_size": batch_size, "loss": loss, "seed": seed},
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
