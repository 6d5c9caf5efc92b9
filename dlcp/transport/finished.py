"""What an endpoint remembers of messages that are complete, so that it can say so again when the STOP was lost.

A sender asks until it has the answer, at intervals of at most the policy's ``timeouts.probe_max_ms``, and gives up after
``timeouts.peer_s`` of silence.  So a record may go when its sender has given up for sure, or when so many of those intervals have
passed in which the sender was heard that it would have asked.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlcp.transport.incoming import IncomingMessage

HEARD_INTERVALS: Final = 32
"""A path on which that many questions and answers in a row are lost is not one on which anything works."""


class Finished(NamedTuple):
    """A complete message.

    Attributes:
        packets: How many it had.
        missing: How many are missing for good.
        bits: Bitmap of those, None if there are none.
        at: When, in nanoseconds.
        interval: The sender's count of intervals at that time.
    """

    packets: int
    missing: int
    bits: NDArray[np.uint8] | None
    at: int
    interval: int

    @property
    def bitmap(self) -> NDArray[np.uint8]:
        """One bit a packet, set if missing."""
        return np.zeros((self.packets + 7) // 8, np.uint8) if self.bits is None else self.bits


class FinishedMessages:
    """The complete messages of one peer, oldest first.

    Args:
        horizon_ns: Age at which a sender has given up for sure.
        interval_ns: Longest time between two of its questions.
    """

    def __init__(self, horizon_ns: int, interval_ns: int) -> None:
        self._records: dict[int, Finished] = {}
        self._horizon = horizon_ns
        self._interval = interval_ns
        self._intervals = 0
        self._interval_end = 0

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, message: int) -> bool:
        return message in self._records

    def get(self, message: int) -> Finished | None:
        """Returns the record of ``message``."""
        return self._records.get(message)

    def heard(self, now: int) -> None:
        """Something came from the peer."""
        if now >= self._interval_end:
            self._intervals += 1
            self._interval_end = now + self._interval

    def add(self, incoming: IncomingMessage, now: int) -> Finished:
        """Records a message that is complete, and drops up to two old records."""
        bits = incoming.bitmap() if incoming.missing else None
        record = Finished(incoming.packets, incoming.missing, bits, now, self._intervals)
        self._records[incoming.message] = record
        self.forget(now, 2)
        return record

    def forget(self, now: int, limit: int | None = None) -> None:
        """Drops the oldest records, at most ``limit``, that nobody will ask for any more."""
        while self._records and limit != 0:
            message, record = next(iter(self._records.items()))
            if now - record.at < self._horizon and self._intervals - record.interval < HEARD_INTERVALS:
                return
            del self._records[message]
            limit = None if limit is None else limit - 1

    def clear(self) -> None:
        """Drops all records."""
        self._records.clear()
