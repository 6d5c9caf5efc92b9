"""``dlcp bench step``: the time of a training step, with and without pipelining."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dlcp.errors import ConfigError
from dlcp.units import Rate

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from dlcp.policy import Policy

Progress = Callable[[], AbstractContextManager[Callable[[str, int, int], None]]]

_EPILOG: Final = """\
how it is measured:
  Every rank has a network namespace, and a bridge joins them; both ends of every link are shaped to --rate, with room for
  --queue packets. The bridge is set up by the script that `dlcp switch export --vendor tc` writes, with a queue for each class
  and congestion marks; with --switch fifo it is a plain one. gloo goes through the same. The model is a row of equal layers
  that sleep, as a script does while its accelerator computes: --compute for a forward and a backward pass together. All
  candidates live in the same processes and take turns, a few steps each.

candidates:
  pipelined        PipelinedOptimizer: the next forward pass begins while gradients of back layers still travel
  pipelined_flat   the same with one class for all layers: pipelining without priority
  hook             DDP with dlcp_hook: step() waits for the last bucket
  gloo             DDP as it is

the JSON document:
  pipelined_s, pipelined_flat_s, hook_s, gloo_s    medians, in seconds a step, of the slowest rank
  ratio_hook, ratio_gloo, ratio_flat               pipelined to each of the others
  compute_s, communication_ideal_s                 what a step takes at least of either
  switch                                           dlcp, fifo, or null without a network

examples:
  dlcp bench step                                  4 ranks, 100 Mbit/s, a model of 4 MB
  dlcp bench step --switch fifo                    the same across a switch that knows no classes
  dlcp bench step --rate none --compute 0.02       over loopback: what pipelining itself costs
  dlcp bench step --json | jq '.ratio_hook'

exit codes: 0 measured   1 failed   2 wrong usage or policy   4 namespaces, a rank or the transport failed   130 interrupted
"""


def add_step(
    measurements: _SubParsersAction[argparse.ArgumentParser],
    whole: Callable[[int, int], Callable[[str], int]],
    size: Callable[[str], int],
    positive: Callable[[str], float],
) -> None:
    """Adds the subcommand; the readers of numbers are those of ``dlcp bench``."""
    parser = measurements.add_parser(
        "step",
        help="time of a training step: gloo, the hook, and pipelined",
        description="Measures a training step over shaped links between network namespaces (root), or over loopback.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--ranks", type=whole(2, 32), default=4, metavar="N", help="processes (default 4)")
    add("--bytes", type=size, default=4_000_000, metavar="SIZE", help="gradients of the model: 4e6, 4MB (default 4e6)")
    add("--layers", type=whole(1, 1000), default=12, metavar="N", help="layers of the model (default 12)")
    add("--compute", type=positive, default=0.5, metavar="S", help="forward and backward pass together (default 0.5)")
    add("--rate", type=_rate, default=Rate.parse("100 Mbit/s"), metavar="RATE", help="of each link, or none (default 100 Mbit/s)")
    add("--queue", type=whole(1, 100_000), default=100, metavar="N", help="packets that find room before a link (default 100)")
    add(
        "--switch",
        choices=("dlcp", "fifo"),
        default="dlcp",
        help="what joins the links: one that enforces classes, or a plain one",
    )
    add("--steps", type=whole(1, 1000), default=10, metavar="N", help="steps of a turn (default 10)")
    add("--turns", type=whole(1, 100_000), default=5, metavar="N", help="measured turns of each candidate (default 5)")
    add("--warmup", type=whole(1, 1000), default=1, metavar="N", help="turns before them (default 1)")
    add("--bucket-mb", type=positive, default=0.3, metavar="MB", help="DDP's buckets, for all candidates (default 0.3)")
    add("--policy", type=Path, metavar="FILE", help="policy file (the defaults if left out)")
    add("--timeout", type=positive, default=120.0, metavar="S", help="longest turn (default 120)")
    add("--json", action="store_true", help="one JSON document on standard output, and nothing else there")


def _rate(text: str) -> Rate | None:
    if text == "none":
        return None
    try:
        return Rate.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; write 100 Mbit/s, or none") from None


def run_step(
    args: argparse.Namespace,
    progress: Progress,
    machine: Callable[[], dict[str, Any]],
    policy: Callable[[Path | None, int | None], Policy],
) -> int:
    """Measures, then prints."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from dlcp.bench.step import StepSettings, measure_steps, step_document

    if args.layers > args.bytes // 4:
        raise ConfigError("dlcp bench", "--layers", f"{args.layers} for {args.bytes} bytes", "at least four bytes a layer")
    settings = StepSettings(
        ranks=args.ranks,
        layers=args.layers,
        elements=args.bytes // 4,
        compute_s=args.compute,
        rate_bps=None if args.rate is None else int(args.rate),
        queue_packets=args.queue,
        plain_switch=args.switch == "fifo",
        steps=args.steps,
        turns=args.turns,
        warmup=args.warmup,
        bucket_mb=args.bucket_mb,
        policy=policy(args.policy, None),
        timeout_s=args.timeout,
    )
    with progress() as show:
        show("importing torch", 0, 0)
        import torch
        import torch._dynamo
        import torch.distributed
        import torch.nn.parallel  # would otherwise be imported in every rank

        import dlcp.torch  # noqa: F401

        torch.set_num_threads(1)
        outcome = measure_steps(settings, show)
    report = {"measurement": "step", "machine": {**machine(), "torch": torch.__version__}, **step_document(settings, outcome)}
    if args.json:
        json.dump(report, sys.stdout, indent=2, allow_nan=False)
        print()
    else:
        _print(report)
    return 0


def _print(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="time of a training step")
    for column in ("candidate", "median", "p99", "to gloo"):
        table.add_column(column, justify="left" if column == "candidate" else "right")
    for name, found in report["candidates"].items():
        share = found["p50_s"] / report["gloo_s"]
        table.add_row(name, f"{found['p50_s'] * 1e3:.1f} ms", f"{found['p99_s'] * 1e3:.1f} ms", f"{share:.2f}")
    console = Console()
    console.print(table)
    ideal = report["communication_ideal_s"]
    least = f"communication at least {ideal * 1e3:.0f} ms" if ideal is not None else "links are not shaped"
    console.print(f"computation {report['compute_s'] * 1e3:.0f} ms, {least}")


__all__ = ["add_step", "run_step"]
