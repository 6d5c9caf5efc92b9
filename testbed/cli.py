"""``dlcp testbed``: training across emulated networks, candidate against candidate."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from testbed.cli_run import FAILED, TARGETS, add_run, add_verb, become_root, need_packages
from testbed.lab.errors import HostLacks, LabError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from testbed.experiment import Experiment

MISSING, INTERRUPTED = 3, 130

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
    add_run(verbs)
    verb = add_verb(verbs, "list", "experiments that come with the testbed", _list)
    verb.add_argument("--json", action="store_true", help="one JSON document")
    verb = add_verb(verbs, "check", "say what an experiment would do, and whether it can be done here", _check)
    verb.add_argument("experiment", metavar="FILE|NAME", help="a TOML file, or a name from 'dlcp testbed list'")
    verb.add_argument("--json", action="store_true", help="one JSON document")
    verb = add_verb(
        verbs, "doctor", "what this machine can do for an emulated network, and what is lost without the rest", _doctor
    )
    verb.add_argument("--target", choices=TARGETS, help="exit with code 3 if networks of these switches cannot be built")
    verb.add_argument("--json", action="store_true", help="one JSON document")
    verb = add_verb(verbs, "clean", "take away what runs left whose drivers were killed, and nothing else", _clean)
    verb.add_argument("--json", action="store_true", help="one JSON document")
    verb = add_verb(verbs, "report", "write the report of an experiment once more, or compare several", _report)
    add = verb.add_argument
    add("folders", nargs="+", type=Path, metavar="DIR", help="folder of an experiment, finished or not, or its results.json")
    add("--out", type=Path, default=Path("compared.html"), metavar="FILE", help="page for several (default: %(default)s)")
    add("--markdown", action="store_true", help="print tables of candidates in Markdown instead")


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
    try:
        need_packages()
        become_root()
        from testbed.ranks.launch import ForkLauncher
        from testbed.runner import check

        here, notes = possible(experiment)
        check(here, ForkLauncher(Path()))
    except HostLacks as error:
        lacks = list(error.missing)
    except LabError as error:
        lacks = [str(error)]
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
        become_root()
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
