"""Timelines of runs for Perfetto and chrome://tracing, in the Chrome trace event format.

Every host is a process: its ranks have threads for steps, buckets and messages; a switch is one with counters for each port.
What overlaps in time stands in several lanes, since slices of one thread must nest.  An arrow leads from each message to the
reduction of that bucket, at its receiver, which it serves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from dlcp.report.timeline import Events, Slice, save
from testbed.report.records import PortTrace, Tell, is_number, read_lines, read_ports
from testbed.report.view import View
from testbed.results import RunResult

FILE: Final = "trace.json"
LIMIT: Final = 400_000
"""Events of a timeline; viewers become slow beyond."""


def write_traces(view: View) -> list[Path]:
    """Writes the timeline of the run nearest the median of each candidate, and returns their paths."""
    written = []
    for contender in view.contenders:
        run = contender.representative
        if run is not None and run["zero_s"] is not None:
            written.append(write_trace(run, view.folder, tell=view.tell, ports=view.ports.get(contender.name, ())))
    return written


def write_trace(
    run: RunResult,
    run_dir: Path,
    path: Path | None = None,
    *,
    limit: int = LIMIT,
    tell: Tell = lambda text: None,
    ports: Iterable[PortTrace] | None = None,
) -> Path:
    """Writes the timeline of one run.

    Args:
        run: The run, see :class:`testbed.results.RunResult`.
        run_dir: The experiment's folder, to which the run's files are relative.
        path: None for ``trace.json`` in the run's folder.
        limit: At most so many events are written; the run's beginning is kept, and its metadata say so.
        tell: Is told what could not be read.
        ports: The run's queues over time, if they have been read already.

    Returns:
        The path.

    Raises:
        OSError: It cannot be written.
    """
    timeline = Timeline(run["zero_s"] or 0.0)
    for rank in run["ranks"]:
        timeline.add_rank(rank["rank"], rank["host"], read_lines(run_dir, rank["log"], tell))
    timeline.add_arrows()
    for port in read_ports(run_dir, run["traces"], tell) if ports is None else ports:
        timeline.add_port(port)
    for event in run["events"]:
        says = event["what"] or event["kind"]
        timeline.add_moment(event["at_s"], says if not event["error"] else f"{says} (failed: {event['error']})")
    events, left_out = timeline.events(limit)
    about = {key: run[key] for key in ("candidate", "seed", "outcome", "error")}
    path = run_dir / run["folder"] / FILE if path is None else path
    return save(path, events, {**about, "first_step_us": timeline.offset_us, "events_left_out": left_out})


@dataclass
class Rank:
    """What one rank did."""

    number: int
    process: int
    steps: list[Slice] = field(default_factory=list)
    buckets: list[Slice] = field(default_factory=list)
    messages: list[Slice] = field(default_factory=list)


class Timeline(Events):
    """Gathers what happened, in seconds of the run, and makes events of it.

    Args:
        zero_s: The ranks' clock at time 0.
    """

    def __init__(self, zero_s: float) -> None:
        super().__init__()
        self._zero = zero_s
        self._ranks: dict[int, Rank] = {}

    # Gathering

    def add_rank(self, number: int, host: str, lines: Iterable[Mapping[str, Any]]) -> None:
        """Adds a rank's lines."""
        rank = self._ranks[number] = Rank(number, self.process(f"host {host}"))
        for line in lines:
            event = line.get("event")
            if event == "step" and _all(line, "t", "step_s"):
                details = _some(line, "step", "epoch", "loss", "clock_s")
                name = f"step {line.get('step', '?')}"
                rank.steps.append(self._slice(line["t"] - line["step_s"], line["t"], name, "step", details))
            elif event == "evaluation" and _all(line, "t", "seconds"):
                details = _some(line, "step", "accuracy", "test_loss")
                rank.steps.append(self._slice(line["t"] - line["seconds"], line["t"], "evaluation", "evaluation", details))
            elif event == "bucket" and _all(line, "begin_s", "end_s"):
                details = _some(line, "number", "bytes", "elements", "class")
                name = f"bucket {line.get('number', '?')}"
                rank.buckets.append(self._slice(line["begin_s"], line["end_s"], name, "bucket", details))
            elif event == "message" and _all(line, "begin_s", "end_s"):
                details = _some(line, "operation", "phase", "part", "peer", "bytes", "packets", "class", "lost")
                name = f"{line.get('phase', 'message')} to rank {line.get('peer', '?')}"
                rank.messages.append(self._slice(line["begin_s"], line["end_s"], name, "message", details))
        _follow(rank.steps)
        self._lay_out(rank.steps, rank, "steps")
        self._lay_out(rank.buckets, rank, "buckets")
        by_class: dict[str, list[Slice]] = {}
        for message in rank.messages:
            by_class.setdefault(str(message.details.get("class", "?")), []).append(message)
        for name, messages in sorted(by_class.items(), reverse=True):
            self._lay_out(messages, rank, f"messages of class {name}")

    def add_port(self, port: PortTrace) -> None:
        """Adds the counters of a switch's port; values that stay are not repeated."""
        process = self.process(f"switch {port.switch}")
        # What a port leads to is unique, but for parallel links.
        name = f"{port.peer} (port {port.port})"
        counters: Sequence[tuple[str, dict[str, Any]]]
        last: list[object] = [None, None, None]
        for index, time in enumerate(port.times):
            queues = {f"queue {place}": depth for place, depth in enumerate(port.queues[index])}
            busy = port.utilisation[index]
            counters = (
                (f"queue to {name}, packets", queues),
                (f"link to {name}, % busy", {"busy": None if busy is None else round(100 * busy, 1)}),
                (f"drops to {name}", {"packets": port.drops[index]}),
            )
            for place, (counter, values) in enumerate(counters):
                if None not in values.values() and values != last[place]:
                    last[place] = values
                    self.event("C", time, counter, process, self.thread(process, "counters"), "network", args=values)

    def add_moment(self, time: float, says: str) -> None:
        """Adds something that happened to everybody."""
        process = self.process("experiment")
        self.event("i", time, says, process, self.thread(process, "events"), "experiment", s="g")

    def add_arrows(self) -> None:
        """Draws slices, and an arrow from each message to the bucket at its receiver; call it when all ranks are there."""
        reductions = {
            (rank.number, bucket.details.get("number")): bucket for rank in self._ranks.values() for bucket in rank.buckets
        }
        for rank in self._ranks.values():
            for slices in (rank.steps, rank.buckets, rank.messages):
                for each in slices:
                    self.draw(each, rank.process)
            for message in rank.messages:
                peer = self._ranks.get(message.details.get("peer", -1))
                bucket = reductions.get((message.details.get("peer", -1), message.details.get("operation")))
                if peer is None or bucket is None:
                    continue
                # An arrow binds to the slice around it, of which the end is no part, and must not lead back in time.
                ends = max(bucket.begin, min(message.end, bucket.end - 1e-6))
                if ends < message.begin:
                    continue
                self.arrow("message", (message.begin, rank.process, message.thread), (ends, peer.process, bucket.thread))

    def _slice(self, begin: float, end: float, name: str, category: str, details: Mapping[str, Any]) -> Slice:
        begin, end = begin - self._zero, end - self._zero
        return Slice(begin, max(begin, end), name, category, details)

    def _lay_out(self, slices: Sequence[Slice], rank: Rank, what: str) -> None:
        self.lay_out(slices, rank.process, f"rank {rank.number} {what}")


def _follow(slices: list[Slice]) -> None:
    """Shortens what cannot have overlapped: a rank notes a step a moment after its end."""
    slices.sort(key=lambda each: each.end)
    for before, each in pairwise(slices):
        each.begin = min(max(each.begin, before.end + 2e-9), each.end)


def _all(line: Mapping[str, Any], *keys: str) -> bool:
    return all(is_number(line.get(key)) for key in keys)


def _some(line: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: line[key] for key in keys if isinstance(line.get(key), int | str) or is_number(line.get(key))}


__all__ = ["FILE", "LIMIT", "Timeline", "write_trace", "write_traces"]
