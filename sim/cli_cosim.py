"""``dlcp sim cosim``: its options, and what it prints."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sim.memory import ENGINES

if TYPE_CHECKING:
    from argparse import _SubParsersAction

INTERRUPTED: Final = 130


def add_cosim(verbs: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb."""
    cosim = verbs.add_parser(
        "cosim",
        help="train a model over the simulated network",
        description="Trains a real model with virtual ranks in this process. What the simulated network gives up of each message "
        "is missing from the gradients, and simulated steps are the clock: accuracy over simulated time, for each transport.",
        epilog="example: dlcp sim cosim scenarios/cosim-digits.toml --transport dlcp --transport dctcp --out results/cosim",
    )
    cosim.add_argument("file", type=Path, metavar="SCENARIO", help="one training job whose workload is that of the task's model")
    cosim.add_argument("--task", choices=("digits", "charlm"), default="digits", help="what is learnt (%(default)s)")
    cosim.add_argument("--transport", action="append", default=[], help="in place of the scenario's; one run for each")
    cosim.add_argument(
        "--compensation", action="append", default=[], help="error-feedback, zero or rescale, in place of the policy's; likewise"
    )
    cosim.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="change a key of the scenario")
    cosim.add_argument("--out", type=Path, help="folder for curves.csv, cosim.json and cosim.html")
    cosim.add_argument("--epochs", type=_positive, default=3, help="passes over the data (%(default)s)")
    cosim.add_argument("--batch-size", type=_positive, default=32, help="samples of a rank in a step (%(default)s)")
    cosim.add_argument("--lr", type=float, default=0.0, help="learning rate (the task's)")
    cosim.add_argument("--seed", type=int, default=0, help="of the model and the order of samples (%(default)s)")
    cosim.add_argument("--eval-every", type=int, default=0, help="steps between looks at the test data (an epoch)")
    cosim.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="of all computing (%(default)s)")
    cosim.add_argument("--width", type=_positive, default=32, help="of the task's model (%(default)s)")
    cosim.add_argument(
        "--target", type=float, action="append", default=[], help="accuracies whose times are told (0.8, 0.9, 0.95)"
    )
    cosim.add_argument(
        "--simulated", type=_positive, default=200, help="most steps that are simulated, then repeated (%(default)s)"
    )
    cosim.add_argument("--chunk", type=_positive, default=20, help="steps of one simulation (%(default)s)")
    cosim.add_argument(
        "--warmup", type=int, default=1, help="steps that a simulation begins with and that do not count (%(default)s)"
    )
    cosim.add_argument("--engine", choices=ENGINES, default=ENGINES[0], help="machine code or Python (%(default)s)")
    cosim.add_argument("--json", action="store_true", help="one JSON document")
    cosim.add_argument("--quiet", action="store_true", help="no progress line")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def run_cosim(args: argparse.Namespace) -> int:
    """Runs it."""
    from sim.cosim.command import Candidate, candidates, cosimulate, write
    from sim.cosim.task import Options
    from sim.interrupts import interrupts
    from sim.scenario_file import read

    options = Options(
        task=args.task,
        epochs=args.epochs,
        batch_size=args.batch_size,
        lr=args.lr,
        seed=args.seed,
        eval_every=max(args.eval_every, 0),
        dtype=args.dtype,
        width=args.width,
    )
    found = candidates(read(args.file, args.set), args.transport, args.compensation)
    line = not (args.quiet or not sys.stderr.isatty())
    with interrupts() as seen:
        done: list[Candidate] = []
        for each in found:

            def report(what: str, steps: int, total: int, name: str = each.name) -> None:
                if line:
                    print(f"\r\x1b[K{name}: {what}, {steps} of {total} steps", end="", file=sys.stderr, flush=True)

            whole = cosimulate(
                each,
                args.file.parent,
                options,
                engine=args.engine,
                chunk=args.chunk,
                warmup=max(args.warmup, 0),
                most=args.simulated,
                others=done,
                stop=lambda: bool(seen),
                report=report,
            )
            done += [each] if each.points else []
            if not whole:
                break
    if line:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    targets = args.target or [0.8, 0.9, 0.95]
    summaries = [each.summary(targets) for each in done]
    if args.out is not None:
        summaries = write(args.out, done, options, targets)["candidates"]
    if args.json:
        print(json.dumps(summaries, indent=2))
    else:
        print("\n".join(_learnt(summaries, targets)))
    return INTERRUPTED if seen else 0


def _learnt(summaries: list[dict[str, Any]], targets: list[float]) -> list[str]:
    heads = ["steps", "time s", "step ms", "accuracy", "missing", *(f"s to {target:g}" for target in targets)]
    lines = [f"{'':<24}" + "".join(f"{head:>11}" for head in heads)]
    for each in summaries:
        times = [each["time_to_accuracy_s"][f"{target:g}"] for target in targets]
        accuracy = "" if each["accuracy"] is None else f"{each['accuracy']:.4f}"
        cells = [
            f"{each['steps']}",
            f"{each['time_s']:.4g}",
            f"{each['mean_step_s'] * 1e3:.4g}",
            accuracy,
            f"{each['missing_share']:.3%}",
            *("never" if time is None else f"{time:.4g}" for time in times),
        ]
        lines.append(f"{each['candidate'][:23]:<24}" + "".join(f"{cell:>11}" for cell in cells))
    return lines


__all__ = ["add_cosim", "run_cosim"]
