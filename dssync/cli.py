"""``dlcp dssync``: which schedule suits a network, and what its rounds are."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dlcp.errors import ConfigError
from dlcp.units import Delay, Size

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from dssync.mixing.plan import Plan
    from dssync.schedule import Schedule

_EPILOG: Final = """\
examples:
  dlcp dssync plan --topology net.toml --model-bytes "100 MB"
  dlcp dssync plan --topology net.toml --model-bytes 25e6 --compute "80 ms" --every 2 --json
  dlcp dssync rounds base-k --world 7 --group 2
  dlcp dssync rounds topology --topology net.toml --model-bytes "100 MB"
"""

_KINDS: Final = ("bsp", "digits", "base-k", "random", "topology")


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``dssync`` with its verbs."""
    parser = subparsers.add_parser(
        "dssync",
        help="divide-and-shuffle synchronization: choose a schedule",
        description="Ranks average parameters in small groups that change every round. A schedule says who meets whom.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", required=True)

    plan = verbs.add_parser("plan", help="compare schedules on a network, and recommend one")
    plan.add_argument("--topology", type=Path, required=True, metavar="FILE", help="topology file")
    plan.add_argument("--model-bytes", type=_size, required=True, metavar="SIZE", help='what is averaged: "100 MB", or 25e6')
    plan.add_argument("--world", type=int, metavar="N", help="ranks; those of the topology if it is not given")
    plan.add_argument("--kinds", type=_words, default=_KINDS, metavar="LIST", help=f"out of {','.join(_KINDS)} (all)")
    plan.add_argument("--groups", type=_numbers, default=(2, 4, 8), metavar="LIST", help="largest groups to try (2,4,8)")
    plan.add_argument("--compute", type=_time, default=0.0, metavar="TIME", help='a step without communication: "80 ms" (0)')
    plan.add_argument("--every", type=int, default=1, metavar="N", help="steps for each round (1)")
    plan.add_argument("--seed", type=int, default=0, metavar="N", help="of random groups (0)")
    bound = plan.add_argument_group("for the convergence bound (docs/theory.md), in units of your problem")
    bound.add_argument("--accuracy", type=float, default=1e-3, metavar="X", help="squared gradient to reach (%(default)s)")
    bound.add_argument("--smoothness", type=float, default=1.0, metavar="L", help="of the loss (%(default)s)")
    bound.add_argument("--noise", type=float, default=1.0, metavar="V", help="variance of a rank's gradient (%(default)s)")
    bound.add_argument(
        "--heterogeneity", type=float, default=0.0, metavar="Z", help="how far the ranks' data differ, zeta squared (%(default)s)"
    )
    bound.add_argument("--gap", type=float, default=1.0, metavar="D", help="loss at the start above the least (%(default)s)")
    plan.add_argument("--json", action="store_true", help="one JSON document")

    rounds = verbs.add_parser("rounds", help="print the groups of every round")
    rounds.add_argument("kind", choices=_KINDS)
    rounds.add_argument("--world", type=int, metavar="N", help="ranks; with --topology those of the topology")
    rounds.add_argument("--group", type=int, metavar="N", help="ranks of the largest group")
    rounds.add_argument("--seed", type=int, metavar="N", help="random only")
    rounds.add_argument("--topology", type=Path, metavar="FILE", help="topology only: topology file")
    rounds.add_argument("--model-bytes", type=_size, metavar="SIZE", help="topology only: what is averaged")
    rounds.add_argument("--json", action="store_true", help="one JSON document")


def run(args: argparse.Namespace) -> int:
    """Runs a verb."""
    return _plan(args) if args.verb == "plan" else _rounds(args)


def _size(text: str) -> int:
    try:
        return int(Size.parse(text))
    except ValueError:
        try:
            return int(float(text))
        except (ValueError, OverflowError):
            raise argparse.ArgumentTypeError(f'{text!r} is not a size such as "100 MB" or 25e6') from None


def _time(text: str) -> float:
    try:
        return Delay.parse(text).seconds
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 2,4") from None


def _plan(args: argparse.Namespace) -> int:
    from dlcp.topology import Topology
    from dssync.mixing import Problem, make_plan

    for name in ("smoothness", "noise", "heterogeneity", "gap", "accuracy"):
        value = getattr(args, name)
        if not (math.isfinite(value) and value >= 0) or (value == 0 and name in ("smoothness", "gap", "accuracy")):
            raise ConfigError("plan", f"--{name}", f"{value}", "a finite number above 0, or 0 for noise and heterogeneity")
    if any(group < 2 for group in args.groups):
        raise ConfigError("plan", "--groups", f"{args.groups}", "numbers of 2 or more")
    plan = make_plan(
        Topology.from_toml(args.topology),
        args.model_bytes,
        world=args.world,
        kinds=args.kinds,
        groups=args.groups,
        compute=args.compute,
        every=args.every,
        problem=Problem(args.smoothness, args.noise, args.heterogeneity, args.gap),
        accuracy=args.accuracy,
        seed=args.seed,
    )
    if args.json:
        _print_json({"source": str(args.topology), **plan.to_dict()})
    else:
        _print_plan(plan)
    return 0


def _print_plan(plan: Plan) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    size = f"{plan.model_bytes / 1e6:.4g} MB"
    console.print(f"{plan.topology.name}: {plan.world} ranks average {size} every {_count(plan.every)}", markup=False)
    table = Table()
    for column in ("", "schedule", "group", "period", "exact after", "round", "step", "busiest link", "gap", "rounds to 1e-3"):
        table.add_column(column, justify="left" if column in ("schedule", "busiest link") else "right")
    table.add_column("time to accuracy", justify="right")
    bsp = plan.bsp
    for index, row in enumerate(plan.rows):
        schedule = row.schedule
        against = f" ({bsp.seconds / row.seconds:.2f}x)" if bsp is not None and row is not bsp and row.seconds else ""
        table.add_row(
            "*" if index == 0 else "",
            schedule.kind,
            str(schedule.largest),
            str(schedule.period),
            "-" if schedule.exact_rounds is None else str(schedule.exact_rounds),
            _seconds(row.round_seconds),
            _seconds(row.step_seconds),
            f"{row.link} {row.link_bytes / 1e6:.3g} MB",
            f"{1 - row.consensus.factor:.3f} in {row.consensus.window}",
            f"{row.rounds_to_consensus:.0f}",
            _seconds(row.seconds) + against,
        )
    console.print(table)
    best = plan.recommended
    more = ", ".join(f"{key}={value}" for key, value in best.schedule.settings().items() if value is not None)
    console.print(f"recommended: {best.schedule.kind} ({more or 'no settings'})", markup=False, soft_wrap=True)
    if math.isinf(best.seconds):
        console.print("no step size reaches this accuracy by the bound: the order is that of the time for a step", markup=False)
    elif bsp is not None and best is not bsp:
        console.print(
            f"a step takes {bsp.step_seconds / best.step_seconds:.2f} times less than with bsp; by the bound it takes "
            f"{best.steps / bsp.steps:.2f} times the steps",
            markup=False,
            soft_wrap=True,
        )


def _count(every: int) -> str:
    return "step" if every == 1 else f"{every} steps"


def _seconds(value: float) -> str:
    if math.isinf(value):
        return "-"
    if value >= 100:
        return f"{value:.4g} s"
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def _rounds(args: argparse.Namespace) -> int:
    from dlcp.topology import Topology
    from dssync.schedule import make_schedule

    topology = Topology.from_toml(args.topology) if args.topology is not None else None
    world = args.world if args.world is not None else (topology.world if topology is not None else None)
    if world is None:
        raise ConfigError("rounds", "--world", "missing", "a number of ranks")
    schedule = make_schedule(args.kind, world, topology=topology, model_bytes=args.model_bytes, group=args.group, seed=args.seed)
    if args.json:
        groups = [[{"ranks": list(g.ranks), "relaxation": str(g.relaxation)} for g in r] for r in schedule.rounds]
        _print_json({**schedule.describe(), "rounds": groups})
    else:
        _print_rounds(schedule)
    return 0


def _print_rounds(schedule: Schedule) -> None:
    promise = "only comes closer to the mean" if schedule.exact_rounds is None else f"exact after {schedule.exact_rounds} rounds"
    print(f"{schedule.kind}, {schedule.world} ranks, period {schedule.period}, {promise}, digest {schedule.digest}")
    for number, groups in enumerate(schedule.rounds):
        shown = (
            " ".join(map(str, group.ranks)) + (f" (relaxation {group.relaxation})" if group.relaxation != 1 else "")
            for group in groups
        )
        print(f"{number:4}  " + " | ".join(shown))


def _print_json(document: dict[str, Any]) -> None:
    json.dump(document, sys.stdout, indent=2, allow_nan=False)
    print()
