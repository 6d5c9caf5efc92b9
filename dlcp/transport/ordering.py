"""How far the packets of one peer get out of order, and so how long a gap may be a straggler rather than a loss.

Order is judged class by class: switches let urgent packets overtake others on purpose, but keep order inside a class, and a probe
travels in the class of the packets that it asks about.

The wait is that of RACK (RFC 8985, section 7.2), with one difference: where something was out of order lately, the header's
timestamps tell by how much, and nothing need be guessed.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from dlcp.transport.rtt import RttEstimator
from dlcp.transport.serial import MASK, ahead, ahead_array

MIN_WINDOW_NS: Final = 50_000
"""Shortest wait for stragglers: what an I/O loop takes to turn round."""
UNKNOWN_WINDOW_NS: Final = 1_000_000
"""Shortest wait for stragglers on a path on which nothing has been lost so far."""
ORDERLY_RUN: Final = 128
"""Packets in a row, none out of order, after which a path is taken for one that keeps order."""
LOSSLESS_RUN: Final = 1024
"""Packets, with no wait in vain, after which a path is taken for one that loses nothing."""
MAX_PATIENCE: Final = 4
"""Longest wait for stragglers that have never been seen, in quarters of a round trip: then asking for them is quicker."""
CLASSES: Final = 8


class Ordering:
    """Watches the packets of one peer come in."""

    def __init__(self) -> None:
        self._highest = np.zeros(CLASSES, np.uint32)
        self._delay = np.zeros(CLASSES, np.uint32)
        self._known = np.zeros(CLASSES, bool)
        self._packets = 0
        self._lost_at = 0
        self._in_order = 0
        self._extent = 0
        self._patience = MAX_PATIENCE

    def note_orderly(
        self, sequences: NDArray[np.uint32], timestamps: NDArray[np.uint32], classes: NDArray[np.uint8], now: int
    ) -> None:
        """Takes a batch whose sequence numbers ascend, and are all higher than any before."""
        # Where an index is there more than once, numpy keeps the last value.
        self._highest[classes] = sequences
        self._delay[classes] = np.uint32(now // 1000 & 0xFFFFFFFF) - timestamps
        self._known[classes] = True
        self._packets += int(sequences.size)
        self._in_order += int(sequences.size)

    def note(self, sequences: NDArray[np.uint32], timestamps: NDArray[np.uint32], classes: NDArray[np.uint8], now: int) -> None:
        """Takes any batch, arrays in order of arrival.

        Args:
            sequences: ``uint32[n]``.
            timestamps: ``uint32[n]``, microseconds of the sender's clock.
            classes: ``uint8[n]``, 0 to 7.
            now: Nanoseconds.
        """
        delays = np.uint32(now // 1000 & 0xFFFFFFFF) - timestamps
        self._packets += int(sequences.size)
        self._in_order += int(sequences.size)
        for kind in np.unique(classes).tolist():
            mine = classes == kind
            here, delay = sequences[mine], delays[mine]
            if not self._known[kind]:
                self._known[kind] = True
                self._highest[kind], self._delay[kind] = here[0], delay[0]
            distance = ahead_array(here, int(self._highest[kind]))
            before = np.maximum.accumulate(np.concatenate([np.zeros(1, np.int32), distance[:-1]]))
            late = distance < before
            top = int(distance.argmax())
            if distance[top] > 0:
                self._highest[kind], self._delay[kind] = here[top], delay[top]
            if late.any():
                # How much longer it took than the packet that came before it though it left later.
                extra = ahead_array(delay[late], int(self._delay[kind]))
                self._extent = max(self._extent, int(extra.max()) * 1000)
                self._in_order = 0

    def note_one(self, sequence: int, timestamp: int, priority: int, now: int, newest: bool) -> None:
        """Takes one packet; ``newest``: its sequence number is higher than any before."""
        delay = (now // 1000 - timestamp) & MASK
        self._packets += 1
        self._in_order += 1
        distance = 1 if newest or not self._known[priority] else ahead(sequence, int(self._highest[priority]))
        if distance > 0:
            self._known[priority] = True
            self._highest[priority], self._delay[priority] = sequence, delay
        elif distance < 0:
            self._extent = max(self._extent, ahead(delay, int(self._delay[priority])) * 1000)
            self._in_order = 0

    def window(self, rtt: RttEstimator, for_good: bool) -> int:
        """Returns how long to wait for stragglers before calling them lost, in nanoseconds.

        Args:
            rtt: Estimator of the path.
            for_good: They would be given up; otherwise they are asked for, and an error costs no more than a packet.
        """
        if self._packets - self._lost_at >= LOSSLESS_RUN:
            # Where nothing gets lost, what is missing will come.
            self._patience = MAX_PATIENCE
        shortest = rtt.minimum or 0
        late = self._extent * 5 // 4
        if not shortest or (for_good and self._patience == MAX_PATIENCE):
            return max(shortest, late, UNKNOWN_WINDOW_NS)
        if self._in_order >= ORDERLY_RUN:
            return max(shortest // 16, MIN_WINDOW_NS)
        return max(shortest * self._patience // 4, late, MIN_WINDOW_NS)

    def waited_in_vain(self) -> None:
        """A wait for stragglers is over and something is still missing: it was lost."""
        self._patience = max(self._patience - 1, 1)
        self._extent -= self._extent // 4
        self._lost_at = self._packets

    def straggler_came(self) -> None:
        """Something came that had been called lost."""
        self._patience = MAX_PATIENCE
        self._in_order = 0
