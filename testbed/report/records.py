"""The files that ``results.json`` names: what ranks wrote, and what switches sampled.

A run that was cut short leaves half a line, or no file.  What can be read is; what cannot is told to whoever asks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from testbed.report.document import LIMIT
from testbed.results import RunResult, TraceFile

Tell = Callable[[str], object]


def inside(folder: Path, name: str) -> Path | None:
    """Returns a path under a folder; None if ``name`` would lead out of it."""
    path = (folder / name).resolve()
    return path if path.is_relative_to(folder.resolve()) else None


def read_lines(folder: Path, name: str, tell: Tell, *, only: str | None = None) -> Iterator[dict[str, Any]]:
    """Yields the objects of a file of JSON lines.

    Args:
        folder: What ``name`` is relative to, and must not leave.
        name: The file.
        tell: Is told what could not be read.
        only: Lines without this text are not even parsed.
    """
    path = inside(folder, name)
    if path is None:
        tell(f"{name}: not read, as it leads out of the folder")
        return
    broken = 0
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if only is not None and only not in line:
                    continue
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError):
                    broken += 1
                    continue
                if isinstance(value, dict):
                    yield value
                else:
                    broken += 1
    except OSError as error:
        tell(f"{name}: {error.strerror}")
        return
    if broken:
        tell(f"{name}: {broken} {'line is' if broken == 1 else 'lines are'} no JSON object")


def is_number(value: object) -> TypeGuard[float]:
    """Tells whether a value is a number that can be computed with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LIMIT


def step_times(folder: Path, run: RunResult, tell: Tell, eval_every: int | None = None) -> list[float]:
    """Returns the seconds of all steps of all ranks that count.

    Not each rank's first, which also sets up, and not those after an evaluation (every ``eval_every`` steps), in which all wait
    for rank 0: the same steps as in ``step_s`` of the run.
    """
    times: list[float] = []
    for rank in run["ranks"]:
        for line in read_lines(folder, rank["log"], tell, only='"step_s"'):
            step, took = line.get("step"), line.get("step_s")
            if line.get("event") == "step" and is_number(took) and isinstance(step, int):
                if step > 0 and not (eval_every and step % eval_every == 0):
                    times.append(float(took))
    return times


@dataclass
class PortTrace:
    """One port of a switch over time.

    Attributes:
        switch: Name of the switch.
        port: Number of the port.
        peer: The node at its other end.
        times: When it was sampled, in seconds of the run.
        depth: Packets in all its queues.
        bytes: Bytes in them.
        queues: Packets in each queue, lowest priority first.
        utilisation: Share of the time since the sample before in which the link was busy; None without a rate.
        drops: Packets dropped since the sample before, whatever the cause.
    """

    switch: str
    port: str
    peer: str
    times: list[float] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    queues: list[list[int]] = field(default_factory=list)
    utilisation: list[float | None] = field(default_factory=list)
    drops: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Switch and what the port leads to."""
        return f"{self.switch} → {self.peer}"


def read_ports(folder: Path, traces: list[TraceFile], tell: Tell) -> list[PortTrace]:
    """Reads all traces of a run, one switch after the other; several files of one switch, from restarts, follow each other."""
    ports: dict[tuple[str, str], PortTrace] = {}
    for trace in sorted(traces, key=lambda trace: (trace["switch"], trace["start_s"])):
        for line in read_lines(folder, trace["file"], tell):
            found = line.get("ports")
            if not is_number(line.get("t_us")) or not isinstance(found, dict):
                continue
            now = trace["start_s"] + line["t_us"] / 1e6
            for number, sample in found.items():
                if trace["ports"] and number not in trace["ports"]:
                    continue  # a port to the switch's own controller
                key = (trace["switch"], number)
                port = ports.get(key)
                if port is None:
                    peer = trace["ports"].get(number, f"port {number}")
                    port = ports[key] = PortTrace(trace["switch"], number, peer)
                _append(port, now, sample)
    return [ports[key] for key in sorted(ports, key=lambda key: (key[0], len(key[1]), key[1])) if ports[key].times]


def _append(port: PortTrace, now: float, sample: Any) -> None:
    """Adds a sample; one that is none, or that is not after the one before, is left out."""
    if port.times and now <= port.times[-1]:
        return
    try:
        queues = [int(depth) for depth in sample["depth"]]
        waiting = int(sum(sample["bytes"]))
        dropped = int(sum(sample["drops"].values())) if sample.get("drops") else 0
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return
    busy = sample.get("utilisation")
    port.times.append(now)
    port.queues.append(queues)
    port.depth.append(sum(queues))
    port.bytes.append(waiting)
    port.utilisation.append(float(busy) if is_number(busy) else None)
    port.drops.append(dropped)


__all__ = ["PortTrace", "Tell", "inside", "is_number", "read_lines", "read_ports", "step_times"]
