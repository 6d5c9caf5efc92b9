"""Notes for a trace: when buckets and messages begin and end, and what is sent and lost of each class."""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dlcp.collectives.operation import Operation
from dlcp.transport.events import (
    Event,
    MessageSent,
    PeerAborted,
    PeerSilent,
    operation_of,
    part_of,
    phase_of,
)
from dlcp.wire.header import LAYER_CLASSES, Phase

_COUNTS: Final = ("protected", "droppable", "lost_protected", "lost_droppable")
_NS: Final = 1e-9


class Recorder:
    """Collects lines from whatever thread, until the training loop takes them.

    It is an observer of DLCP's communicator (:class:`dlcp.collectives.observer.Observer`); what travels otherwise is noted by
    :func:`examples.timed.timed`.  Times are those of ``time.monotonic()``, in seconds.
    """

    def __init__(self) -> None:
        self._lines: list[tuple[str, dict[str, Any]]] = []
        self._sent: dict[tuple[int, int], tuple[int, NDArray[np.uint8], int]] = {}
        self._classes: dict[int, list[int]] = {}
        self._packets = np.zeros((4, LAYER_CLASSES), np.int64)

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        """Returns the lines since the last time: name of the event, and its values."""
        count = len(self._lines)
        taken, self._lines[:count] = self._lines[:count], []
        return taken

    def packets(self) -> dict[str, dict[str, int]]:
        """Returns data packets by class: protected, droppable, and what messages went without of either."""
        table = self._packets.copy()
        return {
            str(number): dict(zip(_COUNTS, map(int, table[:, number]), strict=True))
            for number in range(LAYER_CLASSES)
            if table[:, number].any()
        }

    def bucket(self, number: int, size: int, begin_s: float, end_s: float, **more: Any) -> None:
        """Notes a bucket of ``size`` bytes whose reduction has ended."""
        self._lines.append(("bucket", {"number": number, "bytes": size, "begin_s": begin_s, "end_s": end_s, **more}))

    # An observer of the communicator

    def started(self, number: int, operation: Operation, now: int) -> None:
        """A collective call begins."""
        self._classes[number] = [0] * LAYER_CLASSES

        def ended(operation: Operation) -> None:
            counts = self._classes.pop(number)
            if operation.exception() is None and operation.size:
                self.bucket(number, operation.size, now * _NS, time.monotonic(), **{"class": int(np.argmax(counts))})

        operation.add_done_callback(ended)

    def sending(self, peer: int, message: int, length: int, tags: NDArray[np.uint8], now: int) -> None:
        """A message leaves."""
        if phase_of(message) not in Phase._value2member_map_ or phase_of(message) == Phase.RAW or not length:
            return
        self._sent[peer, message] = (now, tags, length)
        self._count(tags, 0)
        counts = self._classes.get(operation_of(message))
        if counts is not None:
            for number, count in enumerate(_by_class(tags)):
                counts[number] += count

    def happened(self, event: Event, now: int) -> None:
        """A message has arrived for good, or a peer is in trouble."""
        if isinstance(event, MessageSent):
            found = self._sent.pop((event.peer, event.message), None)
            if found is not None:
                self._message(event, found, now)
        elif isinstance(event, PeerSilent | PeerAborted):
            self._lines.append(("trouble", {"peer": event.peer, "what": repr(event), "at_s": now * _NS}))

    def _message(self, event: MessageSent, found: tuple[int, NDArray[np.uint8], int], now: int) -> None:
        begin, tags, length = found
        lost = tags[event.lost]
        self._count(lost, 2)
        self._lines.append(
            (
                "message",
                {
                    "operation": operation_of(event.message),
                    "phase": Phase(phase_of(event.message)).name.lower(),
                    "part": part_of(event.message),
                    "peer": event.peer,
                    "bytes": length,
                    "packets": int(tags.size),
                    "class": int(np.argmax(_by_class(tags))),
                    "lost": int(lost.size),
                    "begin_s": begin * _NS,
                    "end_s": now * _NS,
                },
            )
        )

    def _count(self, tags: NDArray[np.uint8], row: int) -> None:
        counts = np.bincount(tags, minlength=2 * LAYER_CLASSES).reshape(LAYER_CLASSES, 2)
        self._packets[row] += counts[:, 1]
        self._packets[row + 1] += counts[:, 0]


def _by_class(tags: NDArray[np.uint8]) -> list[int]:
    counts: list[int] = np.bincount(tags >> 1, minlength=LAYER_CLASSES).tolist()
    return counts


__all__ = ["Recorder"]
