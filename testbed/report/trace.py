"""Timelines of runs for Perfetto and chrome://tracing, in the Chrome trace event format.

Every host is a process: its ranks have threads for steps, buckets and messages; a switch is one with counters for each port.
What overlaps in time stands in several lanes, since slices of one thread must nest.  An arrow leads from each message to the
reduction of that bucket, at its receiver, which it serves.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from testbed.report.records import PortTrace, Tell, is_number, read_lines, read_ports
from testbed.report.view import View
from testbed.results import RunResult

FILE: Final = "trace.json"
LIMIT: Final = 400_000
"""Events of a timeline; viewers become slow beyond."""

Event = dict[str, Any]


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
    document = {
        "displayTimeUnit": "ms",
        "otherData": {**about, "first_step_us": timeline.offset_us, "events_left_out": left_out},
        "traceEvents": events,
    }
    path = run_dir / run["folder"] / FILE if path is None else path
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        # One event a line: the format's readers do not care, and people can look for something.
        head = {key: item for key, item in document.items() if key != "traceEvents"}
        file.write(json.dumps(head, allow_nan=False)[:-1] + ', "traceEvents": [\n')
        file.write(",\n".join(json.dumps(event, separators=(",", ":"), allow_nan=False) for event in events))
        file.write("\n]}\n")
    return path


@dataclass
class Slice:
    """Something that lasted, of one rank."""

    begin: float
    end: float
    name: str
    category: str
    details: Mapping[str, Any]
    thread: int = 0


@dataclass
class Rank:
    """What one rank did."""

    number: int
    process: int
    steps: list[Slice] = field(default_factory=list)
    buckets: list[Slice] = field(default_factory=list)
    messages: list[Slice] = field(default_factory=list)


class Timeline:
    """Gathers what happened, in seconds of the run, and makes events of it.

    Args:
        zero_s: The ranks' clock at time 0.
    """

    def __init__(self, zero_s: float) -> None:
        self._zero = zero_s
        self._ranks: dict[int, Rank] = {}
        self._processes: dict[str, int] = {}
        self._threads: dict[tuple[int, str], int] = {}
        self._events: list[Event] = []
        self.offset_us = 0.0
        """What was added to all times so that none is negative."""

    # Gathering

    def add_rank(self, number: int, host: str, lines: Iterable[Mapping[str, Any]]) -> None:
        """Adds a rank's lines."""
        rank = self._ranks[number] = Rank(number, self._process(f"host {host}"))
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
        process = self._process(f"switch {port.switch}")
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
                    self._event("C", time, counter, process, self._thread(process, "counters"), "network", args=values)

    def add_moment(self, time: float, says: str) -> None:
        """Adds something that happened to everybody."""
        process = self._process("experiment")
        self._event("i", time, says, process, self._thread(process, "events"), "experiment", s="g")

    def add_arrows(self) -> None:
        """Draws slices, and an arrow from each message to the bucket at its receiver; call it when all ranks are there."""
        reductions = {
            (rank.number, bucket.details.get("number")): bucket for rank in self._ranks.values() for bucket in rank.buckets
        }
        arrow = 0
        for rank in self._ranks.values():
            for slices in (rank.steps, rank.buckets, rank.messages):
                for each in slices:
                    self._event(
                        "X", each.begin, each.name, rank.process, each.thread, each.category,
                        dur=_us(each.end - each.begin), args=dict(each.details),
                    )  # fmt: skip
            for message in rank.messages:
                peer = self._ranks.get(message.details.get("peer", -1))
                bucket = reductions.get((message.details.get("peer", -1), message.details.get("operation")))
                if peer is None or bucket is None:
                    continue
                # An arrow binds to the slice around it, of which the end is no part, and must not lead back in time.
                ends = max(bucket.begin, min(message.end, bucket.end - 1e-6))
                if ends < message.begin:
                    continue
                arrow += 1
                common = {"id": arrow, "group": arrow}
                self._event("s", message.begin, "message", rank.process, message.thread, "message", **common)
                self._event("f", ends, "message", peer.process, bucket.thread, "message", bp="e", **common)

    # Events

    def events(self, limit: int) -> tuple[list[Event], int]:
        """Returns events in the order of time, those that name processes and threads first, and how many are left out.

        What is left out is the latest; arrows stay whole.
        """
        first = min((event["ts"] for event in self._events), default=0.0)
        self.offset_us = -min(0.0, first)
        # Of what happens at once an arrow must come after the slice that it binds to.
        order = {"X": 0, "i": 1, "C": 1, "s": 2, "f": 3}
        ordered = sorted(self._events, key=lambda event: (event["ts"], order[event["ph"]]))
        kept = ordered[:limit]
        arrows = {event["id"] for event in kept if event["ph"] == "f"}
        whole: list[Event] = []
        for event in kept:
            group = event.pop("group", None)
            if group is None or group in arrows:
                whole.append({**event, "ts": round(event["ts"] + self.offset_us, 3)})
        return [*self._names(), *whole], len(ordered) - len(whole)

    def _names(self) -> Iterator[Event]:
        for index, (name, process) in enumerate(self._processes.items()):
            yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "ts": 0, "args": {"name": name}}
            yield {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "ts": 0, "args": {"sort_index": index}}
        for (process, name), thread in self._threads.items():
            yield {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "ts": 0, "args": {"name": name}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": process, "tid": thread, "ts": 0, "args": {"sort_index": thread}}

    def _event(self, phase: str, time: float, name: str, process: int, thread: int, category: str, **more: Any) -> None:
        event = {"ph": phase, "name": name, "cat": category, "pid": process, "tid": thread, "ts": _us(time), **more}
        self._events.append(event)

    def _slice(self, begin: float, end: float, name: str, category: str, details: Mapping[str, Any]) -> Slice:
        begin, end = begin - self._zero, end - self._zero
        return Slice(begin, max(begin, end), name, category, details)

    def _lay_out(self, slices: Sequence[Slice], rank: Rank, what: str) -> None:
        """Puts slices into as few lanes as keep them apart."""
        lanes: list[tuple[float, int]] = []
        for each in sorted(slices, key=lambda each: (each.begin, each.end)):
            # Times are written in nanoseconds: what touches must not overlap by rounding.
            if lanes and lanes[0][0] + 2e-9 <= each.begin:
                _, lane = heapq.heappop(lanes)
            else:
                lane = len(lanes)
            each.thread = self._thread(rank.process, f"rank {rank.number} {what}{f' ({lane + 1})' if lane else ''}")
            heapq.heappush(lanes, (each.end, lane))

    def _process(self, name: str) -> int:
        return self._processes.setdefault(name, len(self._processes) + 1)

    def _thread(self, process: int, name: str) -> int:
        return self._threads.setdefault((process, name), len(self._threads) + 1)


def _follow(slices: list[Slice]) -> None:
    """Shortens what cannot have overlapped: a rank notes a step a moment after its end."""
    slices.sort(key=lambda each: each.end)
    for before, each in pairwise(slices):
        each.begin = min(max(each.begin, before.end + 2e-9), each.end)


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 3)


def _all(line: Mapping[str, Any], *keys: str) -> bool:
    return all(is_number(line.get(key)) for key in keys)


def _some(line: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: line[key] for key in keys if isinstance(line.get(key), int | str) or is_number(line.get(key))}


__all__ = ["FILE", "LIMIT", "Timeline", "write_trace", "write_traces"]
