"""How far the packets of one peer get out of order, and so how long a gap may be a straggler rather than a loss.

Order is judged class by class: switches let urgent packets overtake others on purpose, but keep order inside a class, and a probe
travels in the class of the packets that it asks about.

The wait is that of RACK (RFC 8985, section 7.2), with one difference: where something was out of order lately, the header's
timestamps tell by how much, and nothing need be guessed.
"""

from __future__ import annotations

from typing import Final

from dlcp.transport.intake_layout import P_EXTENT, P_IN_ORDER, P_PACKETS
from dlcp.transport.rtt import RttEstimator

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


class Ordering:
    """What the packets of one peer tell about their order, and the waits that were in vain.

    Args:
        block: The peer's block in the memory of :mod:`dlcp.transport.intake`, which counts packets.
    """

    def __init__(self, block: memoryview) -> None:
        self._block = block
        self._lost_at = 0
        self._patience = MAX_PATIENCE

    def window(self, rtt: RttEstimator, for_good: bool) -> int:
        """Returns how long to wait for stragglers before calling them lost, in nanoseconds.

        Args:
            rtt: Estimator of the path.
            for_good: They would be given up; otherwise they are asked for, and an error costs no more than a packet.
        """
        if self._block[P_PACKETS] - self._lost_at >= LOSSLESS_RUN:
            # Where nothing gets lost, what is missing will come.
            self._patience = MAX_PATIENCE
        shortest = rtt.minimum or 0
        late = self._block[P_EXTENT] * 5 // 4
        if not shortest or (for_good and self._patience == MAX_PATIENCE):
            return max(shortest, late, UNKNOWN_WINDOW_NS)
        if self._block[P_IN_ORDER] >= ORDERLY_RUN:
            return max(shortest // 16, MIN_WINDOW_NS)
        return max(shortest * self._patience // 4, late, MIN_WINDOW_NS)

    def waited_in_vain(self) -> None:
        """A wait for stragglers is over and something is still missing: it was lost."""
        self._patience = max(self._patience - 1, 1)
        self._block[P_EXTENT] -= self._block[P_EXTENT] // 4
        self._lost_at = self._block[P_PACKETS]

    def straggler_came(self) -> None:
        """Something came that had been called lost."""
        self._patience = MAX_PATIENCE
        self._block[P_IN_ORDER] = 0
