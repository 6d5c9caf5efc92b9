"""``dlcp testbed run``: its options, what it does, and what it says in the end."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dlcp.errors import ConfigError
from testbed.lab.errors import HostLacks

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from testbed.experiment import Experiment
    from testbed.ranks.launch import Launcher
    from testbed.results import Results

FAILED: Final = 1
TARGETS: Final = ("softswitch", "bmv2", "kernel", "bridge")

_RUN_EPILOG: Final = """\
what it leaves:
  runs/NAME-TIME/results.json              everything that was measured; see testbed/results.py for what is in it
  runs/NAME-TIME/report.html               figures, in one file
  runs/NAME-TIME/experiment.toml           what was run; give it to 'dlcp testbed run' to run it again
  runs/NAME-TIME/CANDIDATE/SEED/           logs of ranks and switches, a line for each step, bucket and message

Ctrl-C or SIGTERM ends all that was started, and leaves results and report of what is finished; --resume goes on from there.
Root is needed, or a kernel that lets users make user namespaces.

examples:
  dlcp testbed run incast
  dlcp testbed run incast --quick --json | jq '.candidates[] | {name, speedup}'
  dlcp testbed run oversubscribed --candidates gloo-bbr,dlcp --repeats 3 --target kernel
  dlcp testbed run --resume runs/incast-...           make the runs that are missing
  dlcp testbed run star.toml --launcher torchrun      one torchrun a host, as on a cluster
"""


def add_run(verbs: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``run``."""
    verb = add_verb(verbs, "run", "run an experiment", _run, epilog=_RUN_EPILOG)
    what = verb.add_mutually_exclusive_group(required=True)
    what.add_argument("experiment", nargs="?", metavar="FILE|NAME", help="a TOML file, or a name from 'dlcp testbed list'")
    what.add_argument("--resume", type=Path, metavar="DIR", help="go on with an experiment that was interrupted, in its folder")
    add = verb.add_argument
    add("--repeats", type=_whole, metavar="N", help="runs of every candidate (default: what the experiment says)")
    add("--candidates", metavar="A,B", default="", help="only these (default: all)")
    add("--epochs", type=_whole, metavar="N", help="passes over the data in each run (default: what the experiment says)")
    add("--quick", action="store_true", help="one run of each candidate, one epoch: to see that it runs, not what is faster")
    add("--seed", type=int, metavar="N", help="of the first repeat; later ones count up")
    add("--target", choices=TARGETS, help="what the switches are, for candidates that do not say")
    add("--timeout", type=_whole, metavar="S", help="longest single run")
    add("--launcher", choices=("fork", "torchrun"), help="how ranks are started (default: fork, which is quick)")
    add("--out", type=Path, default=Path("runs"), metavar="DIR", help="where the results' folder is made (default: runs)")
    add("--no-report", action="store_true", help="write results.json only")
    add("--json", action="store_true", help="one JSON document on standard output instead of the table")


def add_verb(
    verbs: _SubParsersAction[argparse.ArgumentParser],
    name: str,
    summary: str,
    do: Callable[[argparse.Namespace], int],
    epilog: str = "",
) -> argparse.ArgumentParser:
    """Adds a verb that does ``do``."""
    verb = verbs.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.set_defaults(do=do)
    return verb


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value


def _run(args: argparse.Namespace) -> int:
    experiment, former = _chosen(args)
    need_packages()
    become_root()

    from testbed.catalogue import possible
    from testbed.runner import Runner, check
    from testbed.view import Progress

    notes: list[str] = []
    if not args.candidates and former is None:
        experiment, notes = possible(experiment)
    folder = args.resume or args.out / f"{experiment.name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    launcher = _launcher((args.launcher or "fork") if former is None else former["launcher"], folder)
    check(experiment, launcher)
    if former is None:
        _make(folder)
    with Progress(experiment, folder) as progress:
        for note in notes:
            progress.say(note)
        runner = Runner(experiment, folder, launcher, progress, ["dlcp", *sys.argv[1:]], former)
        runner.results.setdefault("notes", []).extend(notes)
        try:
            results = runner.run()
        except BaseException:
            if any(run["steps"] for run in runner.results["runs"]):
                report = None if args.no_report else _write_report(runner.results, folder)
                progress.say(f"what is finished is in {folder / 'results.json'}" + (f" and {report}" if report else ""))
                progress.say(f"to make the other runs: dlcp testbed run --resume {folder}")
            raise
    report = None if args.no_report else _write_report(results, folder)
    _show(results, folder, report, args.json)
    return FAILED if any(result["outcome"] in ("failed", "timeout") for result in results["runs"]) else 0


def _chosen(args: argparse.Namespace) -> tuple[Experiment, Results | None]:
    """Returns the experiment as the command line changes it, and what is there of it already."""
    from testbed.catalogue import changed, load, resumed

    quick = {"repeats": 1, "epochs": 1} if args.quick else {}
    wanted = {"repeats": args.repeats, "epochs": args.epochs, "seed": args.seed, "target": args.target, "timeout_s": args.timeout}
    changes: dict[str, Any] = quick | {key: value for key, value in wanted.items() if value is not None}
    names = [name.strip() for name in args.candidates.split(",") if name.strip()]
    if args.resume is None:
        return changed(load(args.experiment), **changes, candidates=names), None
    refused = [*(changes.keys() - {"repeats"}), *(["candidates"] if names else []), *(["launcher"] if args.launcher else [])]
    if refused:
        problem = f"cannot be changed in what was begun: {', '.join(sorted(refused))}"
        raise ConfigError("--resume", str(args.resume), problem, "--repeats alone, or a new experiment")
    return resumed(args.resume, args.repeats)


def _launcher(kind: str, folder: Path) -> Launcher:
    from testbed.ranks.launch import ForkLauncher, TorchrunLauncher

    return ForkLauncher(folder) if kind == "fork" else TorchrunLauncher()


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError("--out", str(folder), f"cannot be made: {error.strerror}", "a folder that can be written to") from error


def need_packages() -> None:
    """Makes sure that the packages of optional parts are there; HostLacks says how to get them."""
    missing = [
        f"the module {module} is missing: pip install 'dlcp[{extra}]'"
        for module, extra in (("mininet", "testbed"), ("sklearn", "examples"))
        if find_spec(module) is None
    ]
    if missing:
        raise HostLacks(missing)


def become_root() -> None:
    """Starts this command once more, as root in a user namespace, if it is not root; see :mod:`testbed.lab.privileges`."""
    from testbed.lab import privileges

    privileges.become_root()


def _write_report(results: Results, folder: Path) -> Path | None:
    from testbed.report import write_report

    try:
        return write_report(results, folder)
    except OSError as error:
        print(f"dlcp testbed: no report: {error}; 'dlcp testbed report {folder}' writes it later", file=sys.stderr)
        return None


def _show(results: Results, folder: Path, report: Path | None, as_json: bool) -> None:
    if as_json:
        document = {
            "folder": str(folder),
            "report": str(report) if report is not None else None,
            **{key: results[key] for key in ("complete", "interrupted", "goal", "seconds", "best_baseline")},
            "candidates": [{"name": each["name"], **each["summary"]} for each in results["candidates"]],
            "failures": [
                {key: each[key] for key in ("candidate", "seed", "outcome", "error")}
                for each in results["runs"]
                if each["outcome"] != "ok"
            ],
        }
        json.dump(document, sys.stdout, indent=2)
        print()
        return
    from rich.console import Console

    from testbed.view import print_results

    console = Console()
    print_results(results, console)
    from testbed.report import verdict

    console.print(verdict(results, folder), highlight=False, soft_wrap=True, markup=False)
    console.print(f"\n{results['seconds']:.0f} s in all; everything is in {folder}", highlight=False, soft_wrap=True)
    if report is not None:
        console.print(f"report: {report}", highlight=False, soft_wrap=True)


__all__ = ["TARGETS", "add_run", "add_verb", "become_root", "need_packages"]
