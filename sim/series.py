"""Samples of all ports at regular times: a run is paused, looked at, and goes on as if nothing had been."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sim.engine.layout import (
    A_BACKLOG,
    A_BUSY,
    A_BYTES,
    A_DOWN,
    A_DROPPED,
    A_ERRORS,
    A_FULL,
    A_MARKED,
    A_QUEUES,
    A_TRIMMED,
    H_NOW,
    Q_COUNT,
)
from sim.engine.words import MASK32
from sim.network import PICOSECONDS
from sim.ports_table import CLASSES
from sim.simulation import Progress, Simulation

SERIES_COLUMNS: Final = (
    "time_s",
    "interval_s",
    "node",
    "port",
    "peer",
    "utilisation",
    "queue_bytes",
    "queue_packets",
    *(f"class{number}_packets" for number in range(CLASSES)),
    "marked_packets",
    "trimmed_packets",
    "dropped_packets",
)
"""A port at a time: the share of the interval in which its link was busy, what waits, what happened since the last sample."""

_WORDS: Final = (
    A_BYTES,
    A_BUSY,
    A_BACKLOG,
    *(A_QUEUES + 4 * number + Q_COUNT for number in range(CLASSES)),
    A_MARKED,
    A_TRIMMED,
    A_DROPPED,
    A_FULL,
    A_DOWN,
    A_ERRORS,
)


class Sampler:
    """Takes samples of a simulation.

    Args:
        simulation: Whose.

    Attributes:
        samples: How many there were.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        arcs = simulation.topology.graph.arcs
        self._names = [(arc.source, arc.port, arc.target) for arc in arcs]
        self._rates = np.array([arc.rate for arc in arcs], np.float64)
        self._places = np.array(simulation.network.arcs, np.int64)[:, None] + np.array(_WORDS, np.int64)
        self._before = np.zeros((len(arcs), 4))
        self._time = 0
        self.samples = 0

    def take(self) -> list[dict[str, Any]]:
        """Returns a row for every port that something waits for, or that sent or lost something since the last time."""
        memory = self._simulation.memory
        now = memory[H_NOW]
        words = memory.words
        found: NDArray[np.int64]
        if isinstance(words, list):
            found = np.array([[words[at] for at in row] for row in self._places.tolist()], np.int64)
        else:
            found = words[self._places]
        # A packet's bytes count when it begins to be sent; what of it is still to come is not yet sent.
        busy = found[:, 0] * 8 * PICOSECONDS / self._rates - np.maximum(found[:, 1] - now, 0)
        depths = found[:, 3 : 3 + CLASSES] & MASK32
        events = found[:, 3 + CLASSES :]
        totals = np.column_stack([busy, events[:, 0], events[:, 1], events[:, 2:].sum(axis=1)])
        change = totals - self._before
        span = max(now - self._time, 1)
        self._before, self._time = totals, now
        self.samples += 1
        shown = np.flatnonzero((found[:, 2] > 0) | (change > 0).any(axis=1))
        return [
            dict(
                zip(
                    SERIES_COLUMNS,
                    (
                        now / PICOSECONDS,
                        span / PICOSECONDS,
                        *self._names[index],
                        round(min(max(float(change[index, 0]) / span, 0.0), 1.0), 6),
                        int(found[index, 2]),
                        int(depths[index].sum()),
                        *depths[index].tolist(),
                        *(int(value) for value in change[index, 1:]),
                    ),
                    strict=True,
                )
            )
            for index in shown.tolist()
        ]


def run_sampled(
    simulation: Simulation,
    until: int,
    interval: int,
    report: Callable[[Progress], bool | None] | None = None,
) -> Iterator[list[dict[str, Any]]]:
    """Runs a simulation and yields the rows of each sample; it ends the same as ``simulation.run(until, report)``.

    Args:
        simulation: What to run.
        until: Picoseconds.
        interval: Picoseconds between samples, at least 1.
        report: As :meth:`~sim.simulation.Simulation.run` has it.
    """
    sampler = Sampler(simulation)
    stopped = False

    def look(progress: Progress) -> bool | None:
        nonlocal stopped
        stopped = bool(report(progress)) if report is not None else False
        return stopped

    at = simulation.memory[H_NOW]
    while not simulation.finished and not stopped and at < until:
        at = min(at + interval, until)
        simulation.run(at, look)
        if not stopped and simulation.memory[H_NOW] < at:
            break  # complete, or nothing can happen any more
        if not stopped:
            yield sampler.take()


__all__ = ["SERIES_COLUMNS", "Sampler", "run_sampled"]
