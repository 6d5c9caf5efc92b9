"""Timelines for Perfetto and chrome://tracing, in the Chrome trace event format.

Processes have threads of slices and counters; what overlaps in time stands in several lanes, since slices of
one thread must nest.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Event = dict[str, Any]


@dataclass
class Slice:
    """Something that lasted.

    Attributes:
        begin, end: Seconds.
        name: What it is.
        category: What viewers filter by.
        details: What viewers show of it.
        thread: Where it is drawn; :meth:`Events.lay_out` sets it.
    """

    begin: float
    end: float
    name: str
    category: str
    details: Mapping[str, Any]
    thread: int = 0


class Events:
    """Gathers events, in seconds."""

    def __init__(self) -> None:
        self._processes: dict[str, int] = {}
        self._threads: dict[tuple[int, str], int] = {}
        self._events: list[Event] = []
        self._arrows = 0
        self.offset_us = 0.0
        """What was added to all times so that none is negative."""

    def process(self, name: str) -> int:
        """Returns the number of a process."""
        return self._processes.setdefault(name, len(self._processes) + 1)

    def thread(self, process: int, name: str) -> int:
        """Returns the number of a thread."""
        return self._threads.setdefault((process, name), len(self._threads) + 1)

    def event(self, phase: str, time: float, name: str, process: int, thread: int, category: str, **more: Any) -> None:
        """Adds an event; ``more`` is what its phase needs beyond."""
        event = {"ph": phase, "name": name, "cat": category, "pid": process, "tid": thread, "ts": us(time), **more}
        self._events.append(event)

    def draw(self, each: Slice, process: int) -> None:
        """Adds a slice."""
        more = {"dur": us(each.end - each.begin), "args": dict(each.details)}
        self.event("X", each.begin, each.name, process, each.thread, each.category, **more)

    def counter(self, time: float, name: str, process: int, values: Mapping[str, float]) -> None:
        """Adds values of a counter."""
        self.event("C", time, name, process, self.thread(process, "counters"), "network", args=dict(values))

    def arrow(self, name: str, begin: tuple[float, int, int], end: tuple[float, int, int]) -> None:
        """Adds an arrow from (time, process, thread), where a slice has to be, to another, not earlier."""
        self._arrows += 1
        for phase, (time, process, thread), more in (("s", begin, {}), ("f", end, {"bp": "e"})):
            fields: dict[str, Any] = {"id": self._arrows, "group": self._arrows, **more}
            self.event(phase, time, name, process, thread, name, **fields)

    def lay_out(self, slices: Sequence[Slice], process: int, name: str) -> None:
        """Puts slices into as few lanes as keep them apart."""
        lanes: list[tuple[float, int]] = []
        for each in sorted(slices, key=lambda each: (each.begin, each.end)):
            # Times are written in nanoseconds: what touches must not overlap by rounding.
            if lanes and lanes[0][0] + 2e-9 <= each.begin:
                _, lane = heapq.heappop(lanes)
            else:
                lane = len(lanes)
            each.thread = self.thread(process, f"{name}{f' ({lane + 1})' if lane else ''}")
            heapq.heappush(lanes, (each.end, lane))

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


def save(path: Path, events: Iterable[Event], about: Mapping[str, Any]) -> Path:
    """Writes events and what is known about them; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        # One event a line: the format's readers do not care, and people can look for something.
        head = {"displayTimeUnit": "ms", "otherData": dict(about)}
        file.write(json.dumps(head, allow_nan=False)[:-1] + ', "traceEvents": [\n')
        file.write(",\n".join(json.dumps(event, separators=(",", ":"), allow_nan=False) for event in events))
        file.write("\n]}\n")
    return path


def us(seconds: float) -> float:
    """Returns microseconds, to the nanosecond."""
    return round(1e6 * seconds, 3)


__all__ = ["Event", "Events", "Slice", "save", "us"]
