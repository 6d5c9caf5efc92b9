"""Results: rows for every message and every port, written as they come, and a summary."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from sim.engine.layout import (
    F_CUTS,
    F_END,
    F_LOST,
    F_LOST_BYTES,
    F_MARKS,
    F_MISSING,
    F_NUMBER,
    F_PACKETS,
    F_RESENT,
    F_START,
    H_DONE,
    H_DONE_COUNT,
    H_EVENTS,
    H_HOPS,
    H_NO_ROUTE,
    H_NOW,
)
from sim.flows import ideal_time
from sim.network import PICOSECONDS
from sim.ports_table import PORT_COLUMNS, ports
from sim.simulation import Simulation
from sim.training_table import collectives, iterations

MESSAGE_COLUMNS: Final = (
    "message",
    "source",
    "destination",
    "class",
    "job",
    "group",
    "iteration",
    "size_bytes",
    "packets",
    "start_s",
    "end_s",
    "completion_s",
    "ideal_s",
    "slowdown",
    "resent_packets",
    "lost_packets",
    "lost_bytes",
    "trimmed_packets",
    "marked_packets",
    "missing_packets",
)
"""One row a message: completion is end less start, ideal what it takes alone in the network, slowdown the quotient."""

SIZE_BINS: Final = (10_000, 100_000, 1_000_000, 10_000_000)


class Rows:
    """Rows of the messages of a simulation, each as soon as it is complete, in that order.

    Args:
        simulation: Whose.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._seen = 0
        self._ideal: dict[tuple[int, int, int, str], int] = {}

    def new(self) -> Iterator[dict[str, Any]]:
        """Yields the rows of what has been completed since the last call; computing is no message."""
        memory = self._simulation.memory
        done, count = memory[H_DONE], memory[H_DONE_COUNT]
        while self._seen < count:
            number = memory[memory[done + self._seen] + F_NUMBER]
            self._seen += 1
            message = self._simulation.messages[number]
            if message.source != message.destination:
                yield self._row(number)

    def _row(self, number: int) -> dict[str, Any]:
        simulation = self._simulation
        memory, at, message = simulation.memory, simulation.flows[number], simulation.messages[number]
        hosts = simulation.network.hosts
        start, end = memory[at + F_START], memory[at + F_END]
        transport = message.transport or simulation.transport
        key = (message.source, message.destination, message.size, transport.name)
        if key not in self._ideal:
            self._ideal[key] = ideal_time(simulation.topology, message, transport)
        ideal = self._ideal[key]
        values = (
            number,
            hosts[message.source],
            hosts[message.destination],
            message.priority,
            message.job,
            message.group,
            message.iteration,
            message.size,
            memory[at + F_PACKETS],
            start / PICOSECONDS,
            end / PICOSECONDS,
            (end - start) / PICOSECONDS,
            ideal / PICOSECONDS,
            round((end - start) / ideal, 6),
            memory[at + F_RESENT],
            memory[at + F_LOST],
            memory[at + F_LOST_BYTES],
            memory[at + F_CUTS],
            memory[at + F_MARKS],
            memory[at + F_MISSING],
        )
        return dict(zip(MESSAGE_COLUMNS, values, strict=True))


class Writer:
    """Writes rows as CSV, or JSON lines if the file's name ends in ``.jsonl``; the header, or each key, has the unit.

    Args:
        path: File.
        columns: Of the rows.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._file: TextIO = path.open("w", newline="", encoding="utf-8")
        self._csv = None if path.suffix == ".jsonl" else csv.DictWriter(self._file, columns, lineterminator="\n")
        if self._csv is not None:
            self._csv.writeheader()

    def write(self, rows: Iterable[dict[str, Any]]) -> None:
        """Writes rows, and lets others see them."""
        for row in rows:
            if self._csv is not None:
                self._csv.writerow(row)
            else:
                self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least ``share`` of the values do not exceed; they have to be sorted."""
    return values[min(max(math.ceil(share * len(values)) - 1, 0), len(values) - 1)]


def spread(values: Iterable[float]) -> dict[str, float | int]:
    """Returns count, mean and percentiles."""
    ordered = sorted(values)
    if not ordered:
        return {"count": 0}
    points = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}
    found = {name: percentile(ordered, share) for name, share in points.items()}
    return {"count": len(ordered), "mean": math.fsum(ordered) / len(ordered), **found}


def summarize(simulation: Simulation) -> dict[str, Any]:
    """Returns the summary: times in seconds, by size and class of message; steps of training; what happened to packets.

    Messages that the run does not wait for count apart, as ``background``; several training jobs each for itself, as ``jobs``.
    """
    rows = list(Rows(simulation).new())
    memory = simulation.memory
    extra = [row for row in rows if simulation.messages[row["message"]].extra]
    rows = [row for row in rows if not simulation.messages[row["message"]].extra]
    bins: dict[str, Any] = {}
    low = 0
    for high in (*SIZE_BINS, None):
        inside = [row for row in rows if row["size_bytes"] >= low and (high is None or row["size_bytes"] < high)]
        if inside:
            bins[f"{low}..{'' if high is None else high - 1}"] = _times(inside)
        low = high or low
    arcs = ports(simulation)
    sums = {name: sum(row[name] for row in arcs) for name in PORT_COLUMNS[8:]}
    messages = sum(message.source != message.destination and not message.extra for message in simulation.messages)
    found = collectives(simulation)
    trained = iterations(simulation)
    names = list(dict.fromkeys(message.job for message in simulation.messages if message.job))
    return {
        "finished": simulation.finished,
        "now_s": memory[H_NOW] / PICOSECONDS,
        "seed": simulation.seed,
        "engine": simulation.engine,
        "topology": simulation.topology.digest(),
        "policy": simulation.policy.digest(),
        "transport": simulation.transport.name,
        "spray": simulation.transport.spray,
        "messages": messages,
        "complete": len(rows),
        "packet_hops": memory[H_HOPS],
        "events": memory[H_EVENTS],
        **_times(rows),
        "by_size_bytes": bins,
        "by_class": {
            str(number): _times(row for row in rows if row["class"] == number)
            for number in sorted({row["class"] for row in rows})
        },
        "background": _times(extra),
        "steps_s": steps(simulation) if not names else [],
        "exposed_s": [row["exposed_s"] for row in trained] if not names else [],
        "jobs": {
            name: {
                "end_s": max((row["end_s"] for row in rows if row["job"] == name), default=0.0),
                "bytes": sum(row["size_bytes"] for row in rows if row["job"] == name),
                **_times(row for row in rows if row["job"] == name),
                "steps_s": steps(simulation, name),
                "exposed_s": [row["exposed_s"] for row in trained if row["job"] == name],
            }
            for name in names
        },
        "collectives_s": spread(row["time_s"] for row in found) if trained else {"count": 0},
        "packets": {
            "data": sum(row["packets"] for row in rows),
            "resent": sum(row["resent_packets"] for row in rows),
            "missing": sum(row["missing_packets"] for row in rows),
            "no_route": memory[H_NO_ROUTE],
            **sums,
        },
    }


def _times(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    rows = list(rows)
    return {column: spread(row[column] for row in rows) for column in ("completion_s", "slowdown")}


def steps(simulation: Simulation, job: str = "") -> list[float]:
    """Returns how long every step of a job took: from the end of one forward pass of the slowest rank to that of the next."""
    ends: dict[int, int] = {}
    for at, message in zip(simulation.flows, simulation.messages, strict=True):
        if message.group == "forward" and message.job == job:
            end = simulation.memory[at + F_END]
            if end == 0:
                ends[message.iteration] = -1
            elif ends.get(message.iteration, 0) >= 0:
                ends[message.iteration] = max(ends.get(message.iteration, 0), end)
    times = [ends[iteration] for iteration in sorted(ends)]
    return [(b - a) / PICOSECONDS for a, b in itertools.pairwise(times) if a >= 0 and b >= 0]


__all__ = ["MESSAGE_COLUMNS", "PORT_COLUMNS", "Rows", "Writer", "percentile", "ports", "spread", "steps", "summarize"]
