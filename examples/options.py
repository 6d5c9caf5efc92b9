"""The command line of the training script."""

from __future__ import annotations

import argparse
from pathlib import Path

from examples.carriers import CARRIERS, OVER_DLCP


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="train.py",
        description="Train a small model on real data with DistributedDataParallel, and choose what carries the gradients.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="""\
examples:
  python examples/train.py                                             one rank, to see that it learns
  torchrun --nproc-per-node 4 examples/train.py --comm gloo            the baseline
  torchrun --nproc-per-node 4 examples/train.py --comm dlcp            the same over DLCP
  torchrun --nproc-per-node 4 examples/train.py --comm dlcp --faults drop=0.01
                                                                       the same, one packet in a hundred lost
  torchrun --nproc-per-node 4 examples/train.py --sync ds-sync
                                                                       pairs of ranks average, other pairs each step
  torchrun --nproc-per-node 2 examples/train.py --task charlm --epochs 3 --json-log runs/chars.jsonl

exit codes: 0 done, 2 wrong usage or policy, 4 the transport or another rank failed, 1 anything else
""",
    )
    add = parser.add_argument_group("what to train").add_argument
    add(
        "--task",
        choices=("digits", "charlm"),
        default="digits",
        help="digits: a CNN on scikit-learn's handwritten digits; "
        "charlm: a transformer on the source text of Python's standard library (default: %(default)s)",
    )
    add(
        "--width",
        type=_positive,
        default=32,
        metavar="N",
        help="scales the model; bytes of gradients grow with its square (default: %(default)s, over 1 MB)",
    )
    add(
        "--text-bytes",
        type=_positive,
        default=300_000,
        metavar="N",
        help="charlm only: how much text to learn (default: %(default)s)",
    )
    add("--epochs", type=_positive, default=8, metavar="N", help="passes over the data (default: %(default)s)")
    add("--batch-size", type=_positive, default=16, metavar="N", help="samples for each rank and step (default: %(default)s)")
    add("--lr", type=float, metavar="X", help="learning rate (default: 0.05 for digits, SGD; 0.001 for charlm, AdamW)")
    add("--seed", type=int, default=0, metavar="N", help="of initial weights and order of samples (default: %(default)s)")
    add(
        "--threads",
        type=_positive,
        default=1,
        metavar="N",
        help="of torch in each rank; ranks of one machine share its cores (default: %(default)s)",
    )
    add = parser.add_argument_group("what carries the gradients").add_argument
    add(
        "--comm",
        choices=tuple(CARRIERS),
        default="gloo",
        help="gloo: plain DDP over TCP; gloo-fp16: rounded to 16 bits; dlcp: this project; pipelined: the same, and the next "
        "forward pass does not wait for all gradients; powersgd: torch's low-rank compression over gloo; postlocalsgd: torch's "
        "local SGD over gloo (default: %(default)s)",
    )
    add(
        "--policy",
        type=Path,
        metavar="FILE",
        help="over DLCP only: TOML file of classes, loss bounds and the rest ('dlcp policy init' writes one with all keys)",
    )
    add(
        "--backend",
        choices=("gloo", "dlcp"),
        default="gloo",
        help="process group that DDP itself uses, and that carries gradients where --comm is gloo: dlcp sends them reliably over "
        "DLCP, without a hook, and what powersgd and postlocalsgd exchange (default: %(default)s)",
    )
    add("--algorithm", choices=("sharded", "ring"), default="sharded", help="over DLCP only (default: %(default)s)")
    add(
        "--faults",
        metavar="PLAN",
        help="over DLCP only: loss to inject into what a rank sends, for example drop=0.01 or "
        "'drop=0.05,class=0-3,protected=no'. It happens in DLCP's own sockets, out of gloo's reach: to hurt gloo, hurt the "
        "network it runs in",
    )
    add(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="over DLCP only: address of this rank that the others can reach (default: %(default)s, all ranks on this machine)",
    )
    add(
        "--sync",
        choices=("bsp", "ds-sync"),
        default="bsp",
        help="bsp: gradients of all ranks are reduced in every step; ds-sync: parameters are averaged in small groups that "
        "change every round (default: %(default)s)",
    )
    add(
        "--store",
        type=Path,
        metavar="FILE",
        help="where ranks of one machine meet, in place of the address that torchrun gives; a file that does not exist yet",
    )
    add("--bucket-mb", type=float, default=25.0, metavar="X", help="DDP's bucket size (default: %(default)s)")
    add = parser.add_argument_group("ds-sync only").add_argument
    add(
        "--schedule",
        choices=("base-k", "digits", "random", "topology"),
        default="base-k",
        help="who averages with whom; 'dlcp dssync plan' compares them on a network (default: %(default)s)",
    )
    add("--group", type=_positive, metavar="N", help="ranks of the largest group (default: 2)")
    add("--topology", type=Path, metavar="FILE", help="TOML file of the network, for --schedule topology")
    add("--every", type=_positive, default=1, metavar="N", help="steps for each round (default: %(default)s)")
    add("--overlap", action="store_true", help="do not wait for averages: apply them one round later")
    add = parser.add_argument_group("what to keep").add_argument
    add(
        "--json-log",
        type=Path,
        metavar="FILE",
        help="a JSON line for each step and epoch; each rank writes its own file, run.jsonl becomes run.0.jsonl and so on",
    )
    add(
        "--eval-every",
        type=_positive,
        metavar="N",
        help="look at the test data every N steps and at the end, not after each epoch; rank 0 does so alone where all ranks "
        "have the same model",
    )
    add(
        "--trace",
        action="store_true",
        help="note in the JSON lines when each bucket and, over DLCP, each message begins and ends",
    )
    add("--tensorboard", type=Path, metavar="DIR", help="scalars for TensorBoard, of rank 0 (needs the package tensorboard)")
    add(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="save after each epoch; every rank saves its own file, since what is owed to the network differs",
    )
    add("--resume", action="store_true", help="go on from the newest epoch in --checkpoint that all ranks have")
    add("--quiet", action="store_true", help="show no progress")
    options = parser.parse_args(arguments)
    if options.resume and options.checkpoint is None:
        parser.error("--resume needs --checkpoint")
    for name in ("policy", "faults"):
        if getattr(options, name) is not None and options.comm not in OVER_DLCP and options.backend != "dlcp":
            ways = f"--comm {' or '.join(OVER_DLCP)}, or --backend dlcp"
            parser.error(f"--{name} has no effect on --comm {options.comm}: use {ways}")
    if options.trace and options.json_log is None:
        parser.error("--trace needs --json-log")
    if options.sync == "ds-sync" and options.comm not in ("gloo", "dlcp"):
        parser.error(f"--sync ds-sync averages over gloo or dlcp, not {options.comm}")
    if (options.schedule == "topology") != (options.topology is not None):
        parser.error("--schedule topology and --topology go together")
    return options


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value
