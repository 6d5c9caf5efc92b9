"""``dlcp testbed``: training across emulated networks, candidate against candidate."""

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
from testbed.lab.errors import HostLacks, LabError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from testbed.experiment import Experiment
    from testbed.ranks.launch import Launcher
    from testbed.results import Results

FAILED, MISSING, INTERRUPTED = 1, 3, 130

_EPILOG: Final = """\
what it does:
  An experiment is a TOML file: a network, a training, candidates that carry its gradients, and what else happens. For every
  run the network is built anew on this machine, of network namespaces and emulated switches; ranks are real processes that
  train a real model in it. Candidates take turns, so that a machine that is busy for a while is so for all of them.

examples:
  dlcp testbed list                        experiments that come with it
  dlcp testbed doctor                      what this machine can do, and what is lost without the rest
  dlcp testbed check incast                what would be run, and whether it can be
  dlcp testbed run incast --quick          one short run of each candidate
  sudo dlcp testbed run incast             all of it; the report is in runs/incast-.../report.html
  dlcp testbed run my.toml --candidates gloo-bbr,dlcp --repeats 3
  dlcp testbed report runs/incast-...      the report once more; of several folders, a comparison
  dlcp testbed clean                       take away what a run left that was killed

exit codes: 0 done   1 a run failed   2 wrong usage or experiment   3 this machine lacks something   130 interrupted
"""

_RUN_EPILOG: Final = """\
what it leaves:
  runs/NAME-TIME/results.json              everything that was measured; see testbed/results.py for what is in it
  runs/NAME-TIME/report.html               figures, in one file
  runs/NAME-TIME/experiment.toml           what was run; give it to 'dlcp testbed run' to run it again
  runs/NAME-TIME/CANDIDATE/SEED/           logs of ranks and switches, a line for each step, bucket and message

Ctrl-C or SIGTERM ends everything within a second and leaves results.json of what is finished. Root is needed, or a kernel that
lets users make user namespaces.

examples:
  dlcp testbed run incast
  dlcp testbed run incast --quick --json | jq '.candidates[] | {name, speedup}'
  dlcp testbed run oversubscribed --candidates gloo-bbr,dlcp --repeats 3 --target kernel
  dlcp testbed run star.toml --launcher torchrun      one torchrun a host, as on a cluster
"""


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``testbed``."""
    parser = subparsers.add_parser(
        "testbed",
        help="train across emulated networks with P4 switches, and compare",
        description="Trains across networks that are emulated on this machine, and compares ways to carry gradients.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", required=True)
    _add_run(verbs)
    verb = _verb(verbs, "list", "experiments that come with the testbed", _list)
    verb.add_argument("--json", action="store_true", help="one JSON document")
    verb = _verb(verbs, "check", "say what an experiment would do, and whether it can be done here", _check)
    verb.add_argument("experiment", metavar="FILE|NAME", help="a TOML file, or a name from 'dlcp testbed list'")
    verb.add_argument("--json", action="store_true", help="one JSON document")
    verb = _verb(verbs, "doctor", "what this machine can do for an emulated network, and what is lost without the rest", _doctor)
    verb.add_argument("--target", choices=_targets(), help="exit with code 3 if networks of these switches cannot be built")
    verb.add_argument("--json", action="store_true", help="one JSON document")
    verb = _verb(verbs, "clean", "take away what runs left whose drivers were killed, and nothing else", _clean)
    verb.add_argument("--json", action="store_true", help="one JSON document")
    verb = _verb(verbs, "report", "write the report of an experiment once more, or compare several", _report)
    add = verb.add_argument
    add("folders", nargs="+", type=Path, metavar="DIR", help="folder of an experiment, finished or not, or its results.json")
    add("--out", type=Path, default=Path("compared.html"), metavar="FILE", help="page for several (default: %(default)s)")
    add("--markdown", action="store_true", help="print tables of candidates in Markdown instead")


def _add_run(verbs: _SubParsersAction[argparse.ArgumentParser]) -> None:
    verb = _verb(verbs, "run", "run an experiment", _run, epilog=_RUN_EPILOG)
    add = verb.add_argument
    add("experiment", metavar="FILE|NAME", help="a TOML file, or a name from 'dlcp testbed list'")
    add("--repeats", type=_whole, metavar="N", help="runs of every candidate (default: what the experiment says)")
    add("--candidates", metavar="A,B", default="", help="only these (default: all)")
    add("--epochs", type=_whole, metavar="N", help="passes over the data in each run (default: what the experiment says)")
    add("--quick", action="store_true", help="one run of each candidate, one epoch: to see that it runs, not what is faster")
    add("--seed", type=int, metavar="N", help="of the first repeat; later ones count up")
    add("--target", choices=_targets(), help="what the switches are, for candidates that do not say")
    add("--timeout", type=_whole, metavar="S", help="longest single run")
    add("--launcher", choices=("fork", "torchrun"), default="fork", help="how ranks are started (default: %(default)s, quick)")
    add("--out", type=Path, default=Path("runs"), metavar="DIR", help="where the results' folder is made (default: runs)")
    add("--no-report", action="store_true", help="write results.json only")
    add("--json", action="store_true", help="one JSON document on standard output instead of the table")


def _verb(
    verbs: _SubParsersAction[argparse.ArgumentParser],
    name: str,
    summary: str,
    do: Callable[[argparse.Namespace], int],
    epilog: str = "",
) -> argparse.ArgumentParser:
    verb = verbs.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.set_defaults(do=do)
    return verb


def _targets() -> tuple[str, ...]:
    return ("softswitch", "bmv2", "kernel", "bridge")


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value


def run(args: argparse.Namespace) -> int:
    """Does what a verb says."""
    from testbed.lab.signals import Ended, unwinding

    try:
        with unwinding():
            return int(args.do(args))
    except Ended as ended:
        print(f"dlcp testbed: ended by {ended}", file=sys.stderr)
        return INTERRUPTED
    except HostLacks as error:
        print("dlcp testbed: this machine lacks what the experiment needs", file=sys.stderr)
        for line in error.missing:
            print(f"  {line}", file=sys.stderr)
        print("'dlcp testbed doctor' shows everything", file=sys.stderr)
        return MISSING
    except LabError as error:
        print(f"dlcp testbed: {error}", file=sys.stderr)
        return FAILED


# Verbs


def _run(args: argparse.Namespace) -> int:
    from testbed.catalogue import changed, load, possible

    experiment = load(args.experiment)
    quick = {"repeats": 1, "epochs": 1} if args.quick else {}
    wanted = {"repeats": args.repeats, "epochs": args.epochs, "seed": args.seed, "target": args.target, "timeout_s": args.timeout}
    changes: dict[str, Any] = quick | {key: value for key, value in wanted.items() if value is not None}
    names = [name.strip() for name in args.candidates.split(",") if name.strip()]
    experiment = changed(experiment, **changes, candidates=names)
    _need_packages()
    _become_root()

    from testbed.runner import Runner, check
    from testbed.view import Progress

    notes: list[str] = []
    if not names:
        experiment, notes = possible(experiment)
    folder = args.out / f"{experiment.name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    launcher = _launcher(args.launcher, folder)
    check(experiment, launcher)
    _make(folder)
    with Progress(experiment, folder) as progress:
        for note in notes:
            progress.say(note)
        runner = Runner(experiment, folder, launcher, progress, ["dlcp", *sys.argv[1:]])
        runner.results["notes"] = notes
        try:
            results = runner.run()
        except BaseException:
            if runner.results["runs"]:
                progress.say(f"what is finished is in {folder / 'results.json'}")
            raise
    report = None if args.no_report else _write_report(results, folder)
    _show(results, folder, report, args.json)
    return FAILED if any(result["outcome"] in ("failed", "timeout") for result in results["runs"]) else 0


def _launcher(kind: str, folder: Path) -> Launcher:
    from testbed.ranks.launch import ForkLauncher, TorchrunLauncher

    return ForkLauncher(folder) if kind == "fork" else TorchrunLauncher()


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError("--out", str(folder), f"cannot be made: {error.strerror}", "a folder that can be written to") from error


def _need_packages() -> None:
    missing = [
        f"the module {module} is missing: pip install 'dlcp[{extra}]'"
        for module, extra in (("mininet", "testbed"), ("sklearn", "examples"))
        if find_spec(module) is None
    ]
    if missing:
        raise HostLacks(missing)


def _become_root() -> None:
    from testbed.lab.privileges import become_root

    become_root()


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
    console.print(f"\n{results['seconds']:.0f} s in all; everything is in {folder}", highlight=False, soft_wrap=True)
    if report is not None:
        console.print(f"report: {report}", highlight=False, soft_wrap=True)


def _list(args: argparse.Namespace) -> int:
    from testbed.catalogue import shipped
    from testbed.experiment import Experiment

    experiments = {name: Experiment.from_toml(path) for name, path in shipped().items()}
    if args.json:
        json.dump([_outline(name, each) for name, each in experiments.items()], sys.stdout, indent=2)
        print()
        return 0
    from testbed.view import print_list

    print_list(experiments)
    return 0


def _outline(name: str, experiment: Experiment) -> dict[str, Any]:
    network = experiment.network
    return {
        "name": name,
        "summary": experiment.summary,
        "target": experiment.target,
        "ranks": network.world,
        "hosts": len(network.hosts),
        "switches": len(network.switches),
        "candidates": [candidate.name for candidate in experiment.candidates],
        "repeats": experiment.repeats,
        "runs": experiment.repeats * len(experiment.candidates),
    }


def _check(args: argparse.Namespace) -> int:
    from testbed.catalogue import load, possible

    experiment = load(args.experiment)
    lacks: list[str] = []
    notes: list[str] = []
    if os.geteuid() == 0:
        from testbed.ranks.launch import ForkLauncher
        from testbed.runner import check

        try:
            here, notes = possible(experiment)
            check(here, ForkLauncher(Path()))
        except HostLacks as error:
            lacks = list(error.missing)
        except LabError as error:
            lacks = [str(error)]
    else:
        from testbed.lab.privileges import refusal

        lacks = [problem] if (problem := refusal()) else []
    if args.json:
        document = {**_outline(experiment.name, experiment), "experiment": experiment.alone().to_dict()}
        document |= {"lacks": lacks, "notes": notes}
        json.dump(document, sys.stdout, indent=2)
        print()
    else:
        from testbed.view import print_check

        print_check(experiment, lacks, notes)
    return MISSING if lacks else 0


def _doctor(args: argparse.Namespace) -> int:
    from testbed.lab.capabilities import probe, require

    if os.geteuid() != 0:
        _become_root()
    found = probe()
    if args.json:
        keys = ("key", "what", "ok", "lost", "remedy", "detail")
        json.dump([{key: getattr(each, key) for key in keys} for each in found.values()], sys.stdout, indent=2)
        print()
    else:
        from testbed.view import print_capabilities

        print_capabilities(list(found.values()))
    if args.target is not None:
        require(args.target)
    return 0


def _clean(args: argparse.Namespace) -> int:
    from testbed.lab.ledger import clean_up, live_runs

    remains = clean_up()
    live = live_runs()
    if args.json:
        document = {
            "cleaned": [
                {"run": each.run, "folder": each.run_dir, "processes": each.processes, "sysctls": list(each.sysctls)}
                for each in remains
            ],
            "at_work": live,
        }
        json.dump(document, sys.stdout, indent=2)
        print()
        return 0
    for each in remains:
        sysctls = f", put back {', '.join(each.sysctls)}" if each.sysctls else ""
        print(f"{each.run}: ended {each.processes} processes{sysctls}; its results are in {each.run_dir or 'no folder'}")
    if not remains:
        print("nothing was left")
    if live:
        print(f"at work, and left alone: {', '.join(live)}")
    return 0


def _report(args: argparse.Namespace) -> int:
    from testbed.report import markdown, write_comparison, write_report
    from testbed.results import read_results

    found = [(each if each.is_dir() else each.parent, read_results(each)) for each in args.folders]
    if args.markdown:
        print("\n".join(markdown(results) for _, results in found), end="")
    elif len(found) == 1:
        folder, results = found[0]
        print(write_report(results, folder))
    else:
        print(write_comparison(args.folders, args.out))
    return 0
