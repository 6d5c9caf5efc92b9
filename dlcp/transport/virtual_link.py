"""A bottleneck in front of a receiver of the virtual network: a queue per class, ECN marks, selective drops."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from dlcp.wire.header import HEADER

CLASSES: Final = 8
_FLAGS: Final = HEADER.slots["priority"]
_CE: Final = 0b11


@dataclass(frozen=True, slots=True)
class LinkModel:
    """A switch port.

    Attributes:
        bytes_per_second: Rate, UDP payload only.
        buffer_bytes: Room for all classes together; what does not fit is dropped.
        threshold_bytes: Above this, ECN-capable datagrams are marked and the others dropped (WRED with a step profile).
        priorities: Serve classes strictly by priority; False: one queue.
    """

    bytes_per_second: float
    buffer_bytes: int
    threshold_bytes: int
    priorities: bool = True


class Link:
    """The port's state.  Times are nanoseconds; calls come in order of time."""

    def __init__(self, model: LinkModel) -> None:
        self.model = model
        self.backlog = 0
        self.deepest = 0
        self._queues: list[deque[tuple[int, bytes]]] = [deque() for _ in range(CLASSES)]
        self._sending: tuple[int, int, bytes] | None = None

    def offer(self, ecn: int, datagram: bytes, now: int) -> str:
        """Takes a datagram in, or drops it; returns what it did: ``queued``, ``marked``, ``dropped``."""
        model = self.model
        fate = "queued"
        if self.backlog + len(datagram) > model.buffer_bytes:
            return "dropped"
        if self.backlog > model.threshold_bytes:
            if ecn == 0:
                return "dropped"
            ecn, fate = _CE, "marked"
        priority = datagram[_FLAGS.byte] >> _FLAGS.shift & _FLAGS.mask if model.priorities and len(datagram) > _FLAGS.byte else 0
        self._queues[priority].append((ecn, datagram))
        self.backlog += len(datagram)
        self.deepest = max(self.deepest, self.backlog)
        if self._sending is None:
            self._start(now)
        return fate

    def next_departure(self) -> int | None:
        """Returns when the datagram on the wire has left."""
        return None if self._sending is None else self._sending[0]

    def depart(self) -> tuple[int, int, bytes]:
        """Returns (time, ECN bits, datagram) of what has left, and starts with the next."""
        assert self._sending is not None
        sent = self._sending
        self.backlog -= len(sent[2])
        self._sending = None
        self._start(sent[0])
        return sent

    def _start(self, now: int) -> None:
        for queue in reversed(self._queues):
            if queue:
                ecn, datagram = queue.popleft()
                self._sending = (now + max(int(len(datagram) * 1e9 / self.model.bytes_per_second), 1), ecn, datagram)
                return
