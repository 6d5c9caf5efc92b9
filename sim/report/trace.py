"""The timeline of a run for Perfetto: ranks with what they compute and send, collectives, and queues as counters."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from dlcp.report.timeline import Events, Slice, save
from sim.report.reading import Run

FILE: Final = "trace.json"
LIMIT: Final = 400_000
"""Events of a timeline; viewers become slow beyond."""


def write_trace(run: Run, path: Path, *, limit: int = LIMIT) -> Path:
    """Writes the timeline of a run; of too many events its beginning, as the file says.

    Raises:
        ConfigError: A table is malformed.
        OSError: It cannot be written.
    """
    events = Events()
    by_host: dict[str, list[Slice]] = {}
    for row in run.rows("computing"):
        name = f"{row['what']} {row['iteration'] + 1}"
        by_host.setdefault(row["host"], []).append(_slice(row["begin_s"], row["end_s"], name, "computing", row, ("job",)))
    for host, slices in by_host.items():
        # A rank computes one thing at a time; what only looks like more by rounding must not overlap.
        _draw(events, slices, f"host {host}", "computing")
    _messages(events, run)
    every: dict[str, list[Slice]] = {}
    for row in run.rows("collectives"):
        details = ("iteration", "operation", "size_bytes", "busbw_bit_per_s", "last_ready_host", "last_done_host")
        name = f"{row['collective']} of step {row['iteration'] + 1}"
        every.setdefault(row["job"], []).append(_slice(row["begin_s"], row["end_s"], name, "collective", row, details))
    for job, slices in every.items():
        _draw(events, slices, f"job {job}" if job else "collectives", "collectives")
    _counters(events, run)
    found, left_out = events.events(limit)
    about = {key: run.summary.get(key) for key in ("transport", "spray", "seed", "scenario", "topology", "policy")}
    return save(path, found, {**about, "events_left_out": left_out})


def _slice(begin: float, end: float, name: str, category: str, row: dict[str, Any], keys: Iterable[str]) -> Slice:
    return Slice(begin, max(begin, end), name, category, {key: row[key] for key in keys})


def _draw(events: Events, slices: list[Slice], process: str, thread: str) -> None:
    number = events.process(process)
    events.lay_out(slices, number, thread)
    for each in slices:
        events.draw(each, number)


def _messages(events: Events, run: Run) -> None:
    keys = ("message", "size_bytes", "packets", "slowdown", "resent_packets", "lost_packets", "missing_packets", "marked_packets")
    found: dict[tuple[str, int], list[Slice]] = {}
    for row in run.rows("messages"):
        name = f"{row['group']} to {row['destination']}".strip()
        each = _slice(row["start_s"], row["end_s"], name, "message", row, keys)
        found.setdefault((row["source"], row["class"]), []).append(each)
    for (host, number), slices in sorted(found.items(), key=lambda item: (item[0][0], -item[0][1])):
        _draw(events, slices, f"host {host}", f"messages of class {number}")


def _counters(events: Events, run: Run) -> None:
    last: dict[tuple[str, int], tuple[float, dict[str, float]]] = {}
    for row in run.rows("series"):
        process = events.process(row["node"])
        key = (row["node"], row["port"])
        name = f"queue to {row['peer']} (port {row['port']}), packets"
        values = {f"class {number}": row[f"class{number}_packets"] for number in range(8)}
        time, before = last.get(key, (row["time_s"], {}))
        if row["time_s"] - time > 1.5 * row["interval_s"] and any(before.values()):
            # Idle ports have no rows.
            before = dict.fromkeys(before, 0)
            events.counter(time + row["interval_s"], name, process, before)
        if values != before and (before or any(values.values())):
            events.counter(row["time_s"], name, process, values)
            before = values
        last[key] = (row["time_s"], before)


__all__ = ["FILE", "LIMIT", "write_trace"]
