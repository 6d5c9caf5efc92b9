"""``dlcp tolerance``: how much gradient loss a model bears at equal accuracy, and the policy that follows."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dlcp.cli.bench import machine, whole
from dlcp.errors import ConfigError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from dlcp.tolerance.search import Plan

_EPILOG: Final = """\
what it does:
  Trains the model with virtual ranks in one process each, and takes packets out of their gradients: tags, packets, shards,
  residuals and compensation are the product's own code, only the network is not there. For each way of losing it looks for the
  largest loss in --losses that is tolerated, by bisection.

ways of losing:
  tagged      droppable packets, as a switch drops them, of all ranks: protected ones always arrive
  uneven      as many packets in all, but of one rank alone
  random, smallest, largest   any packets; those with the smallest, or the largest gradients, whatever their tags
  class K     droppable packets of one layer class

when a loss is tolerated:
  Every seed is trained with and without loss, from the same weights and on the same samples. The upper limit of the mean drop
  of accuracy, one-sided with --confidence, by Student's t over seeds, must not exceed --margin. Too few seeds, or seeds that
  scatter, widen the limit: they never make a loss look harmless. A cell whose limit is above the margin is "refused" if its
  lower limit is too, else "unclear"; neither is used.

your own task:
  MODULE:FUNCTION, importable from the working directory. The function takes no arguments and returns a dlcp.tolerance.Task:
  model, optimizer, inputs, targets, loss(output, targets), accuracy(model), batch_size, epochs.

examples:
  dlcp tolerance examples.train:digits                       about two minutes on two cores
  dlcp tolerance examples.train:digits --quick               half a minute: to see what comes out
  dlcp tolerance examples.train:digits --out policy.toml     and a policy with the bounds that were found
  dlcp tolerance my_model:task --losses 0.01,0.03,0.1 --seeds 8 --compensation zero,rescale
  dlcp tolerance examples.train:digits --json | jq .bounds

exit codes: 0 measured   1 failed   2 wrong usage, policy or task   130 interrupted
"""

_LOSSES: Final = (0.05, 0.15, 0.4)
_QUICK_LOSSES: Final = (0.05, 0.4)
_NAMES: Final = {"residual": "error-feedback", "error-feedback": "error-feedback", "zero": "zero", "rescale": "rescale"}
_WAYS: Final = ("tagged", "uneven", "random", "smallest", "largest", "class")


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``tolerance``."""
    parser = subparsers.add_parser(
        "tolerance",
        help="measure the gradient loss that a model bears, and write the policy",
        description="Measures how much of its gradients a model can lose at equal accuracy, and writes the policy that follows.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("task", metavar="TASK", help="MODULE:FUNCTION, for example examples.train:digits")
    default = ",".join(f"{loss:g}" for loss in _LOSSES)
    add("--losses", type=_losses, metavar="P,P,...", help=f"shares of packets to try, above 0 to 0.5 (default {default})")
    add("--seeds", type=whole(2, 1000), metavar="N", help="pairs of runs for each loss (default 4)")
    add(
        "--compensation",
        type=_compensations,
        metavar="C,C,...",
        help="residual, zero, rescale (default all; with --quick the policy's). tagged and uneven are tried with each, the other "
        "ways with the policy's, or the first of these if that is not among them",
    )
    add(
        "--ways",
        type=_ways,
        metavar="W,W,...",
        help=f"of {','.join(_WAYS)} (default all but random; --quick: the first two, largest)",
    )
    add("--full", action="store_true", help="try every one of --ways with each compensation")
    add("--ranks", type=whole(2, 1024), default=4, metavar="N", help="virtual ranks (default 4)")
    add("--epochs", type=whole(1, 100_000), metavar="N", help="passes over the data (default: the task's)")
    add("--batch-size", type=whole(1, 1 << 20), metavar="N", help="samples of a rank in a step (default: the task's)")
    add("--burst", type=_number(1, 1e6), default=1.0, metavar="N", help="mean length of a run of lost packets (default 1)")
    add("--margin", type=_number(1e-6, 1), default=0.01, metavar="X", help="drop of accuracy that counts as equal (default 0.01)")
    add("--confidence", type=_number(0.51, 0.9999), default=0.95, metavar="X", help="of the test (default 0.95)")
    add("--policy", type=Path, metavar="FILE", help="tags, packets and compensation (the defaults if left out)")
    add("--out", type=Path, metavar="FILE", help="write the policy with the bounds that were found; never overwrites")
    add("--jobs", type=whole(1, 256), metavar="N", help="processes (default: one a core)")
    add("--quick", action="store_true", help="2 losses, 3 seeds, fewer ways, unless said otherwise")
    add("--json", action="store_true", help="one JSON document on standard output, and nothing else there")


def run(args: argparse.Namespace) -> int:
    """Measures, then prints and writes."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    if args.out is not None and args.out.exists():
        raise ConfigError(args.out, "(file)", "is there already", "a name that is not taken")
    from dlcp.tolerance.conclusion import conclude, document, policy_text
    from dlcp.tolerance.search import search
    from dlcp.tolerance.task import make_task

    plan = _plan(args)
    make_task(args.task, 0)  # what is wrong with it is better said at once
    with _progress() as progress:
        found = search(plan, progress)
    bounds = conclude(plan, found)
    if args.out is not None:
        _write(args.out, policy_text(plan, found, bounds))
    result = document(plan, found, bounds, machine())
    if args.json:
        json.dump(result, sys.stdout, indent=2)
        print()
        return 0
    from dlcp.tolerance.table import print_findings

    print_findings(result, args.out)
    return 0


def _plan(args: argparse.Namespace) -> Plan:
    from dlcp.policy import Policy
    from dlcp.tolerance.search import Plan
    from dlcp.tolerance.training import Run

    policy = Policy() if args.policy is None else Policy.from_toml(args.policy)
    wanted = policy.loss.compensation
    compensations = args.compensation or ((wanted,) if args.quick else tuple(dict.fromkeys(_NAMES.values())))
    kept = wanted if wanted in compensations else compensations[0]
    ways = args.ways or (("tagged", "uneven", "largest") if args.quick else tuple(way for way in _WAYS if way != "random"))
    each = ways if args.full else tuple(way for way in ways if way in ("tagged", "uneven"))
    return Plan(
        base=Run(
            task=args.task,
            seed=0,
            ranks=args.ranks,
            policy=policy.to_dict(),
            compensation=kept,
            loss=None,
            epochs=args.epochs,
            batch_size=args.batch_size,
        ),
        losses=args.losses or (_QUICK_LOSSES if args.quick else _LOSSES),
        seeds=args.seeds or (3 if args.quick else 4),
        margin=args.margin,
        confidence=args.confidence,
        kinds=each,
        once=tuple(way for way in ways if way not in each),
        compensations=compensations,
        burst=args.burst,
        jobs=args.jobs or len(os.sched_getaffinity(0)),
    )


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(path, "(file)", f"cannot be written: {error.strerror}", "a writable place that is not taken") from None


def _losses(text: str) -> tuple[float, ...]:
    read = _number(0, 0.5)
    # A loss of 0 is the baseline, which is there anyway.
    losses = sorted({read(word) for word in text.split(",")} - {0.0})
    if not losses:
        raise argparse.ArgumentTypeError(f"{text!r} holds no loss; write for example 0.01,0.1")
    return tuple(losses)


def _compensations(text: str) -> tuple[str, ...]:
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in _NAMES:
            raise argparse.ArgumentTypeError(f"{word!r} is unknown; residual, zero and rescale are known")
    return tuple(dict.fromkeys(_NAMES[word] for word in words))


def _ways(text: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for word in words:
        if word not in _WAYS:
            raise argparse.ArgumentTypeError(f"{word!r} is unknown; {', '.join(_WAYS)} are known")
    return words


def _number(low: float, high: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not between {low:g} and {high:g}")
        return value

    return number


@contextmanager
def _progress() -> Iterator[Callable[[int, int, float, str], None]]:
    """Yields what shows, on standard error, how far it is and how long it will take."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, left="")
        said = 0

        def show(done: int, total: int, left_s: float, text: str) -> None:
            bar.update(task, completed=done, total=total, left=f"about {left_s:.0f} s left")
            if text:
                bar.console.print(text, highlight=False, soft_wrap=True)
            nonlocal said
            if not console.is_terminal and done >= said + 20:
                said = done
                print(f"dlcp tolerance: {done} of about {total} runs, about {left_s:.0f} s left", file=sys.stderr, flush=True)

        yield show
