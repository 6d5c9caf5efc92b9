"""``dlcp bench``: measure, side by side with a baseline."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dlcp.cli.bench_step import add_step, run_step
from dlcp.errors import ConfigError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from dlcp.policy import Policy
    from dlcp.udp.faults import FaultPlan

_EPILOG: Final = """\
examples:
  dlcp bench allreduce                                    4 ranks, 25 MB, dlcp against gloo
  dlcp bench allreduce --loss 0.01                        with 1 % of dlcp's packets dropped
  dlcp bench allreduce --mtu 1500 --policy job.toml       packets of network size, your policy
  dlcp bench allreduce --json | jq '.ratio_p50'
  dlcp bench step                                         a training step over shaped links, with and without pipelining

'dlcp bench MEASUREMENT --help' says what is measured, and how.
"""

_ALLREDUCE_EPILOG: Final = """\
how it is measured:
  Ranks are processes on this machine, and packets go over the loopback interface. All candidates run in the same processes
  and take turns within every iteration, in an order that changes, so that other load hits all alike. A turn's time is that of
  the slowest rank. CPU time is user and system time of all ranks and all their threads until the last rank is done,
  for each GB (1e9 bytes) of the array. Every element of every result is checked: see mass_error.

candidates:
  dlcp            as the DDP hook calls it: mean, tagged packets, result into another array; faults as asked for
  dlcp_lossless   the same without faults; only if there are faults
  gloo            torch.distributed.all_reduce, sum, in place; its TCP never sees the injected faults
  stream          plain TCP, no reduction: each rank sends the 2 (N - 1) / N of the array that an all-reduce must move at least.
                  Its p50 is ideal_s, unless --link-gbps computes that from a link's bandwidth

the JSON document:
  dlcp, gloo, ...         p50_s, p99_s, min_s, max_s, mean_s, cpu_s_per_gb, peak_bytes, held_bytes, error, times_s
  ratio_p50, ratio_p99    dlcp to gloo; ratio_lossless_p50, ..._p99: dlcp to dlcp_lossless
  ratio_p50_interval      95 % bootstrap interval
  ideal_s                 see above; ratio_ideal_p50: dlcp to that
  packets                 data packets of all ranks by verdict; sent = delivered + lost. packets_by_class: the same by class.
                          With --algorithm ps those of the servers too, and of the warm-up
  counters                everything dlcp's transport counted, for example why a packet was refused
  memory                  peak_bytes and growth_bytes of a rank while measuring, all candidates together
  mass_error              largest |contributed - delivered - residual| of any element in any iteration; 0 is right

examples:
  dlcp bench allreduce --ranks 4 --bytes 25e6 --loss 0.01 --iters 20 --baseline gloo
  dlcp bench allreduce --ranks 2 --bytes 1MB --iters 100 --algorithm ring
  dlcp bench allreduce --faults 'reorder=0.1; drop=0.05,class=0-3,protected=no'
  dlcp bench allreduce --json > result.json

exit codes: 0 measured   1 failed   2 wrong usage or policy   4 a rank or the transport failed   130 interrupted
"""

_SIZE: Final = re.compile(r"(?P<number>[0-9.]+(e[+]?[0-9]+)?)\s*(?P<unit>[a-z]*)", re.IGNORECASE)
_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}
MOST_RANKS: Final = 64
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``bench`` with what it can measure."""
    parser = subparsers.add_parser(
        "bench",
        help="measure an all-reduce, side by side with a baseline",
        description="Measures DLCP and what it competes with, interleaved in one run on this machine.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    measurements = parser.add_subparsers(dest="measurement", metavar="MEASUREMENT", title="measurements", required=True)
    _add_allreduce(measurements)
    add_step(measurements, whole, size, _positive)


def _add_allreduce(measurements: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = measurements.add_parser(
        "allreduce",
        help="time, CPU time, memory and packets of an all-reduce",
        description="Measures an all-reduce of a float32 array among ranks on this machine.",
        epilog=_ALLREDUCE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--ranks", type=whole(2, MOST_RANKS), default=4, metavar="N", help="processes (default 4)")
    add("--bytes", type=size, default=25_000_000, metavar="SIZE", help="array of each rank: 25e6, 25MB, 4MiB (default 25e6)")
    add("--iters", type=whole(1, 1_000_000), default=20, metavar="N", help="measured iterations (default 20)")
    add("--warmup", type=whole(0, 1_000_000), default=2, metavar="N", help="iterations before them (default 2)")
    add("--baseline", choices=("gloo", "none"), default="gloo", help="what to compare with (default gloo)")
    add("--algorithm", choices=("sharded", "ring", "ps"), default="sharded", help="dlcp's algorithm (default sharded)")
    add("--servers", type=whole(1, MOST_RANKS), metavar="N", help="dedicated servers for --algorithm ps (default 1)")
    faults = parser.add_mutually_exclusive_group()
    faults.add_argument("--loss", type=share, default=0.0, metavar="P", help="share of dlcp's packets to drop (default 0)")
    faults.add_argument("--faults", default="", metavar="PLAN", help="any faults: drop, delay, reorder, by class; see docs")
    add("--policy", type=Path, metavar="FILE", help="policy file (the defaults if left out)")
    add("--mtu", type=whole(576, 65_535), metavar="BYTES", help="packet size, instead of the policy's (loopback: up to 9000)")
    add("--untagged", action="store_true", help="send all packets as class 3, droppable")
    add("--link-gbps", type=_positive, metavar="G", help="compute ideal_s from this bandwidth instead of measuring plain TCP")
    add("--seed", type=whole(0, 2**63 - 1), default=0, metavar="N", help="of data, tags and faults (default 0)")
    add("--timeout", type=_positive, default=60.0, metavar="S", help="longest single all-reduce (default 60)")
    add("--json", action="store_true", help="one JSON document on standard output, and nothing else there")


def run(args: argparse.Namespace) -> int:
    """Measures, then prints."""
    if args.measurement == "step":
        return run_step(args, _progress, machine, _policy)
    return _allreduce(args)


def _allreduce(args: argparse.Namespace) -> int:
    # Before numpy is imported: ranks are forked, and a process with threads cannot be forked safely.
    for name in _THREADS:
        os.environ.setdefault(name, "1")
    from dlcp.bench.allreduce import Settings, measure
    from dlcp.bench.report import document, print_tables

    if args.servers and args.algorithm != "ps":
        raise ConfigError(
            "dlcp bench", "--servers", f"{args.servers} with --algorithm {args.algorithm}", "--algorithm ps with it"
        )
    faults = _faults(args)
    candidates = ["dlcp"]
    if faults is not None:
        candidates.append("dlcp_lossless")
    if args.baseline == "gloo":
        candidates.append("gloo")
    if args.link_gbps is None:
        candidates.append("stream")
    settings = Settings(
        ranks=args.ranks,
        elements=args.bytes // 4,
        iterations=args.iters,
        warmup=args.warmup,
        candidates=tuple(candidates),
        policy=_policy(args.policy, args.mtu),
        algorithm=args.algorithm,
        servers=(args.servers or 1) if args.algorithm == "ps" else 0,
        faults=faults,
        tagged=not args.untagged,
        seed=args.seed,
        timeout_s=args.timeout,
    )
    with _progress() as progress:
        progress("importing torch", 0, 0)
        import torch
        import torch.distributed  # would otherwise be imported in every rank

        torch.set_num_threads(1)
        load = os.getloadavg()[0]
        outcome = measure(settings, progress)
    report = {
        "measurement": "allreduce",
        "machine": {**machine(), "torch": torch.__version__, "load_before": load},
        "arguments": {key: str(value) if isinstance(value, Path) else value for key, value in _arguments(args).items()},
        **document(settings, outcome, args.link_gbps),
    }
    if args.json:
        json.dump(report, sys.stdout, indent=2, allow_nan=False)
        print()
    else:
        print_tables(report)
    return 0


def _arguments(args: argparse.Namespace) -> dict[str, Any]:
    return {key: value for key, value in vars(args).items() if key not in ("run", "command", "measurement", "debug", "json")}


def _policy(path: Path | None, mtu: int | None) -> Policy:
    from dlcp.policy import Policy

    policy = Policy() if path is None else Policy.from_toml(path)
    if mtu is None:
        return policy
    contents = policy.to_dict()
    contents["wire"]["mtu"] = mtu
    return Policy.from_dict(contents, source="--mtu")


def _faults(args: argparse.Namespace) -> FaultPlan | None:
    from dlcp.udp.faults import FaultPlan

    text = f"drop={args.loss!r}" if args.loss else args.faults
    if not text:
        return None
    plan = FaultPlan.parse(text, source="--faults")
    return plan if "seed" in text else FaultPlan(plan.rules, args.seed)


def machine() -> dict[str, Any]:
    """Describes the machine: what a reader needs to judge the numbers."""
    from dlcp.cli.doctor import host

    about = host()
    cpu = _first_match("/proc/cpuinfo", r"model name\s*:\s*(.+)")
    memory = _first_match("/proc/meminfo", r"MemTotal:\s*(\d+) kB")
    return {
        **about,
        "cpu": cpu or platform.processor() or "unknown",
        "memory_bytes": int(memory) << 10 if memory else None,
        "tcp": _first_match("/proc/sys/net/ipv4/tcp_congestion_control", r"(\w+)"),
    }


def _first_match(path: str, pattern: str) -> str | None:
    try:
        found = re.search(pattern, Path(path).read_text())
    except OSError:
        return None
    return found[1].strip() if found else None


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yields a function that shows what is going on, on standard error; in a log file, one line for each kind of work.

    rich draws from a thread, and a process with threads cannot be forked: it begins to draw with the first finished turn.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        refresh_per_second=2,  # drawing takes CPU time from the ranks
    )
    task = bar.add_task("", total=None, start=False)
    told: set[str] = set()

    def show(what: str, done: int, turns: int) -> None:
        if console.is_terminal and done:
            bar.start()
            bar.start_task(task)
            bar.update(task, description=what, completed=done, total=turns)
        elif (kind := what.partition(" ")[0]) not in told:
            told.add(kind)
            print(f"dlcp bench: {what if console.is_terminal else kind} ...", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if bar.live.is_started:  # stopping a bar that never began would print an empty line
            bar.stop()


def size(text: str) -> int:
    """Reads a number of bytes, at least one float32: ``25e6``, ``25MB``, ``4MiB``."""
    match = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(match["unit"].lower()) if match else None
    try:
        value = int(float(match["number"]) * unit) if match and unit else 0
    except ValueError:
        value = 0
    if not 4 <= value <= 1 << 36:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 25e6, 25MB or 4MiB, from 4 bytes to 64 GiB")
    return value


def whole(least: int, most: int) -> Callable[[str], int]:
    """Returns a reader of whole numbers from ``least`` to ``most``, for argparse."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r}; a whole number from {least} to {most} is needed")
        return int(text)

    return read


def share(text: str) -> float:
    """Reads a number in [0, 1)."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; a number from 0 up to, but not, 1 is needed")
    return value


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}; a number above 0 is needed")
    return value
