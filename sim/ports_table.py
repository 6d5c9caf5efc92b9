"""Tables of ports: of each as a whole, and of each of its classes; counting by class has to be asked for before a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sim.engine.layout import (
    A_BYTES,
    A_CLASSES,
    A_DEEPEST,
    A_DOWN,
    A_DROPPED,
    A_ERRORS,
    A_FULL,
    A_MARKED,
    A_PACKETS,
    A_PAUSED,
    A_PAUSED_AT,
    A_PAUSES,
    A_PENDING,
    A_TRIMMED,
    A_WAIT,
    C_BINS,
    C_DEEPEST,
    C_FOUND,
    C_WAIT,
    C_WORDS,
    H_NOW,
    PAUSED_SHIFT,
)
from sim.network import PICOSECONDS
from sim.simulation import Simulation

CLASSES: Final = 8

_COUNTERS: Final = {
    "marked_packets": A_MARKED,
    "trimmed_packets": A_TRIMMED,
    "dropped_selectively": A_DROPPED,
    "dropped_full": A_FULL,
    "dropped_down": A_DOWN,
    "lost_on_link": A_ERRORS,
}

PORT_COLUMNS: Final = (
    "node",
    "port",
    "peer",
    "packets",
    "bytes",
    "utilisation",
    "mean_queue_packets",
    "deepest_queue_bytes",
    *_COUNTERS,
    "pauses_sent",
    "paused_s",
)

CLASS_COLUMNS: Final = (
    "node",
    "port",
    "peer",
    "class",
    "packets",
    "bytes",
    "utilisation",
    "mean_queue_packets",
    "p50_found_packets",
    "p99_found_packets",
    "p999_found_packets",
    "deepest_queue_bytes",
    *_COUNTERS,
)


def count_classes(simulation: Simulation) -> None:
    """Has every port count by class from now on; to be called before the first event."""
    memory = simulation.memory
    for at in simulation.network.arcs:
        memory[at + A_CLASSES] = memory.take(CLASSES * C_WORDS)


def ports(simulation: Simulation) -> list[dict[str, Any]]:
    """Returns a row for every port, hosts' too; the mean queue is over the whole time."""
    memory, rows = simulation.memory, []
    now = max(memory[H_NOW], 1)
    for arc, at in zip(simulation.topology.graph.arcs, simulation.network.arcs, strict=True):
        values = (
            arc.source,
            arc.port,
            arc.target,
            memory[at + A_PACKETS],
            memory[at + A_BYTES],
            round(memory[at + A_BYTES] * 8 * PICOSECONDS / (arc.rate * now), 6),
            round(memory[at + A_WAIT] / now, 6),
            memory[at + A_DEEPEST],
            *(memory[at + counter] for counter in _COUNTERS.values()),
            memory[at + A_PAUSES],
            _paused(simulation, at) / PICOSECONDS,
        )
        rows.append(dict(zip(PORT_COLUMNS, values, strict=True)))
    return rows


def _paused(simulation: Simulation, at: int) -> int:
    """Returns for how long some class of a port has been paused, picoseconds."""
    memory = simulation.memory
    lasting = memory[H_NOW] - memory[at + A_PAUSED_AT] if memory[at + A_PENDING] >> PAUSED_SHIFT else 0
    return memory[at + A_PAUSED] + lasting


def classes(simulation: Simulation) -> list[dict[str, Any]]:
    """Returns a row for every class that has sent or lost something at a port; none without :func:`count_classes`.

    ``found`` is how many packets of its class a packet finds in the queue that it joins: a percentile over packets, exact to 7,
    beyond that the smallest of the numbers that share a bin, four to a doubling.  Only ports of switches have queues that count.
    """
    memory, rows = simulation.memory, []
    now = max(memory[H_NOW], 1)
    for arc, at in zip(simulation.topology.graph.arcs, simulation.network.arcs, strict=True):
        first = memory[at + A_CLASSES]
        for number in range(CLASSES if first else 0):
            base = first + number * C_WORDS
            counters = [memory[base + counter - A_PACKETS] for counter in _COUNTERS.values()]
            packets, sent = memory[base], memory[base + A_BYTES - A_PACKETS]
            if not packets and not any(counters):
                continue
            bins = [memory[base + C_FOUND + index] for index in range(C_BINS)]
            values = (
                arc.source,
                arc.port,
                arc.target,
                number,
                packets,
                sent,
                round(sent * 8 * PICOSECONDS / (arc.rate * now), 6),
                round(memory[base + C_WAIT] / now, 6),
                *(found(bins, share) for share in (0.5, 0.99, 0.999)),
                memory[base + C_DEEPEST],
                *counters,
            )
            rows.append(dict(zip(CLASS_COLUMNS, values, strict=True)))
    return rows


def found(bins: Sequence[int], share: float) -> int | None:
    """Returns the least number of the bin within which ``share`` of all counts are reached; None if there are none."""
    wanted, seen = share * sum(bins), 0
    for index, count in enumerate(bins):
        seen += count
        if count and seen >= wanted:
            return bin_start(index)
    return None


def bin_start(index: int) -> int:
    """Returns the smallest depth that is counted in a bin (:func:`sim.engine.ports.note_depth`)."""
    if index < 8:
        return index
    octave, quarter = divmod(index + 4, 4)
    return (4 + quarter) << (octave - 2)


__all__ = ["CLASSES", "CLASS_COLUMNS", "PORT_COLUMNS", "bin_start", "classes", "count_classes", "found", "ports"]
