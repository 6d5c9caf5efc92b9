"""The benchmark as a command: its arguments, its rounds, and its report."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from dlcp.bench.switch.network import ArrivalCounter, HostLacks, make_pair, private_network
from dlcp.bench.switch.targets import TargetProcess, bmv2_path

_MISSING: Final = 3
_FRAMES: Final = 112
"""Different frames that are sent in turn: a multiple of classes times protection, and of a burst."""
_BURST: Final = 8
_WARM_UP_S: Final = 0.5
_SIZES: Final = (90, 1514)
"""Shortest and longest frame: headers alone, and what an MTU of 1500 allows."""

EPILOG: Final = """\
how it is measured:
  In a network namespace of its own, each target runs p4/build/dlcp.json with the entries that `dlcp switch deploy` writes for
  the default policy. Frames of DLCP data enter one interface and leave another (with --paths, several, sprayed). A window
  keeps the switch busy without overflowing a queue, so the rate is the highest without loss. Targets take turns in every
  round, in an order that changes; figures are medians over rounds. The generator shares the machine with the switch.

the JSON document:
  softswitch_pps, bmv2_pps        packets per second; bmv2_pps is null if simple_switch_grpc is not on PATH
  ratio                           softswitch_pps / bmv2_pps, or null
  softswitch_pps_core             packets per second of CPU time of its data-plane thread, receiving and sending included
  softswitch_cpu_us, bmv2_cpu_us  CPU time of all threads per packet, in microseconds
  writes_per_s, bmv2_writes_per_s table entries written per second, in requests of 100
  lost                            packets that did not come out, by target; a figure with losses is not a rate without loss
  path_shares                     share of the packets on each path, by target
  rounds                          every single measurement

examples:
  dlcp switch bench                       the softswitch, and BMv2 where it is installed
  dlcp switch bench --paths 4             sprayed over four paths
  dlcp switch bench --json | jq .ratio
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the benchmark's arguments to a parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    add = parser.add_argument
    add("--seconds", type=float, default=2.0, metavar="S", help="length of one measurement (default: 2)")
    add("--rounds", type=int, default=5, metavar="N", help="measurements of each target (default: 5)")
    add("--size", type=int, default=1450, metavar="BYTES", help="length of a frame (default: 1450)")
    add("--hosts", type=int, default=8, metavar="N", help="hosts whose addresses the switch knows (default: 8)")
    add("--paths", type=int, default=1, metavar="N", help="equal paths to the receiver (default: 1)")
    add("--window", type=int, default=32, metavar="PACKETS", help="packets in the switch at a time (default: 32, half a queue)")
    add("--entries", type=int, default=2000, metavar="N", help="table entries written in each round; 0 skips (default: 2000)")
    add("--target", choices=["all", "softswitch", "bmv2"], default="all", help="what to measure (default: all there is)")
    add("--json", action="store_true", help="print a JSON document")


def _check(args: argparse.Namespace) -> str | None:
    limits = {
        "seconds": (0.05, 600),
        "rounds": (1, 1000),
        "size": _SIZES,
        "hosts": (2, 500),
        "paths": (1, 64),
        "window": (_BURST, 4096),
        "entries": (0, 7000),
    }
    for name, (low, high) in limits.items():
        if not low <= getattr(args, name) <= high:
            return f"--{name} is from {low:g} to {high:g}, not {getattr(args, name):g}"
    return None


def run(args: argparse.Namespace) -> int:
    """Measures and reports; returns the exit code.

    Raises:
        DLCPError: A switch refused its program or entries.
    """
    problem = _check(args)
    if problem is not None:
        return _say(problem, 2)
    if find_spec("finsy") is None:
        return _say("the benchmark is a P4Runtime client: pip install 'dlcp[p4]'", _MISSING)
    names = [name for name in ("softswitch", "bmv2") if args.target in (name, "all")]
    if bmv2_path() is None and "bmv2" in names:
        if args.target == "bmv2":
            return _say("simple_switch_grpc is not on PATH", _MISSING)
        names.remove("bmv2")
    from dlcp.fabric.errors import ProgramMissing

    try:
        report = measure(args, names)
    except (HostLacks, ProgramMissing) as error:
        return _say(str(error), _MISSING)
    print(json.dumps(report, indent=2) if args.json else describe(report))
    return 0


def _say(problem: str, code: int) -> int:
    print(f"dlcp: {problem}", file=sys.stderr)
    return code


def measure(args: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """Runs the targets named and returns the JSON document.

    Raises:
        HostLacks: No namespaces, or a target does not start.
        DLCPError: A switch refused its program or entries, or ended.
    """
    # Not before they are wanted: they load numpy, and need the extra `p4`.
    from dlcp.bench.numbers import turns
    from dlcp.bench.switch.control import deploy, measure_writes, scene
    from dlcp.bench.switch.traffic import BurstSender, drive, make_frames
    from dlcp.fabric.program import load

    program = load()
    where = scene(args.hosts, args.paths)
    frames = make_frames(_FRAMES, args.size, where.source, where.destination)
    rounds: list[dict[str, Any]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dlcp-bench-")))
        stack.enter_context(private_network())
        targets: dict[str, tuple[TargetProcess, BurstSender, ArrivalCounter]] = {}
        for number, name in enumerate(names):
            ports = {port: f"{name[0]}{port}" for port in (where.port_in, *where.ports_out)}
            for interface in ports.values():
                make_pair(interface, f"{interface}h")
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            target = stack.enter_context(TargetProcess(name, ports, 9559 + number, log))
            sender = BurstSender(f"{ports[where.port_in]}h", frames)
            stack.callback(sender.close)
            counter = ArrivalCounter([f"{ports[port]}h" for port in where.ports_out])
            stack.callback(counter.close)
            targets[name] = (target, sender, counter)
        for target, sender, counter in targets.values():
            target.wait_until_listening()
            deploy(target.address, program, where.entities)
            drive(sender, counter, seconds=_WARM_UP_S, window=args.window, burst=_BURST)
            target.check()
        for index, order in turns(list(names), args.rounds):
            for name in order:
                target, sender, counter = targets[name]
                before = target.cpu_seconds()
                result = drive(sender, counter, seconds=args.seconds, window=args.window, burst=_BURST)
                target.check()
                after = target.cpu_seconds()
                entry = {
                    "round": index,
                    "target": name,
                    "pps": result.packets / result.seconds,
                    "packets": result.packets,
                    "lost": result.lost,
                    "by_path": list(result.by_path),
                    "cpu_s": after[0] - before[0],
                    "thread_cpu_s": after[1] - before[1],
                    "writes_per_s": None,
                }
                if args.entries:
                    entry["writes_per_s"] = measure_writes(target.address, program, args.entries, where.ports_out[0])
                rounds.append(entry)
    return _report(args, names, rounds)


def _report(args: argparse.Namespace, names: Sequence[str], rounds: list[dict[str, Any]]) -> dict[str, Any]:
    def median(name: str, key: str) -> float | None:
        values = [entry[key] for entry in rounds if entry["target"] == name and entry[key] is not None]
        return round(statistics.median(values), 3) if values else None

    for entry in rounds:
        entry["cpu_us"] = entry["cpu_s"] / max(1, entry["packets"]) * 1e6
        entry["pps_core"] = entry["packets"] / entry["thread_cpu_s"] if entry["thread_cpu_s"] else None
    ours, theirs = median("softswitch", "pps"), median("bmv2", "pps")
    lost = {name: sum(entry["lost"] for entry in rounds if entry["target"] == name) for name in names}
    shares = {}
    for name in names:
        sums = [sum(column) for column in zip(*(entry["by_path"] for entry in rounds if entry["target"] == name), strict=True)]
        shares[name] = [round(value / max(1, sum(sums)), 4) for value in sums]
    return {
        "softswitch_pps": ours,
        "bmv2_pps": theirs,
        "ratio": round(ours / theirs, 3) if ours and theirs else None,
        "softswitch_pps_core": median("softswitch", "pps_core"),
        "softswitch_cpu_us": median("softswitch", "cpu_us"),
        "bmv2_cpu_us": median("bmv2", "cpu_us"),
        "writes_per_s": median("softswitch", "writes_per_s"),
        "bmv2_writes_per_s": median("bmv2", "writes_per_s"),
        "lost": lost,
        "path_shares": shares,
        "settings": {key: getattr(args, key) for key in ("seconds", "rounds", "size", "hosts", "paths", "window", "entries")},
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
        "rounds": rounds,
    }


def describe(report: dict[str, Any]) -> str:
    """Returns the report for people."""

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"

    settings = report["settings"]
    lines = [f"{settings['size']} B frames, {settings['paths']} path(s), median of {settings['rounds']} rounds", ""]
    lines.append(f"{'':12}{'packets/s':>12}{'CPU us/packet':>16}{'writes/s':>12}{'lost':>8}")
    for name, prefix in (("softswitch", "softswitch_"), ("bmv2", "bmv2_")):
        if name not in report["lost"]:
            continue
        writes = report["writes_per_s" if name == "softswitch" else "bmv2_writes_per_s"]
        cells = (report[f"{prefix}pps"], report[f"{prefix}cpu_us"], writes, report["lost"][name])
        widths = (12, 16, 12, 8)
        lines.append(f"{name:12}" + "".join(f"{number(cell):>{width}}" for cell, width in zip(cells, widths, strict=True)))
    lines.append("")
    if report["softswitch_pps_core"] is not None:
        lines.append(f"softswitch: {number(report['softswitch_pps_core'])} packets per second of its thread's CPU time")
    if report["ratio"] is not None:
        lines.append(f"softswitch / BMv2: {report['ratio']:.2f}")
    elif "bmv2" not in report["lost"]:
        lines.append("BMv2 was not measured: simple_switch_grpc is not on PATH")
    return "\n".join(lines)


__all__ = ["add_arguments", "describe", "measure", "run"]
