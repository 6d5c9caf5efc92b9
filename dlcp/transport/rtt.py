"""Round-trip time estimation and the probe timeout (RFC 6298, RFC 9002 section 5 and 6.2)."""

from __future__ import annotations

from typing import Final

IMPLAUSIBLE: Final = 16
"""Multiple of the longest probe timeout that no round trip reaches."""


class RttEstimator:
    """Smoothed round-trip time of one path, in nanoseconds.

    Args:
        initial_ns: Assumed round trip before the first sample.
        floor_ns: Lower limit of the probe timeout.
        ceiling_ns: Upper limit of the probe timeout, backoff included.
    """

    def __init__(self, *, initial_ns: int, floor_ns: int, ceiling_ns: int) -> None:
        self.smoothed = initial_ns
        self.variation = initial_ns // 2
        self.minimum: int | None = None
        self.latest: int | None = None
        self._floor = floor_ns
        self._ceiling = max(ceiling_ns, floor_ns)

    def sample(self, rtt_ns: int) -> None:
        """Takes one measured round trip.

        A value below 1 µs (clock granularity) counts as 1 µs; one of many times the longest probe timeout is no round trip but a
        mistake, and would slow the pacer down for as long, so it is ignored.
        """
        rtt_ns = max(rtt_ns, 1_000)
        if rtt_ns > IMPLAUSIBLE * self._ceiling:
            return
        if self.minimum is None:
            self.minimum = rtt_ns
            self.smoothed = rtt_ns
            self.variation = rtt_ns // 2
        else:
            self.minimum = min(self.minimum, rtt_ns)
            self.variation += (abs(self.smoothed - rtt_ns) - self.variation) // 4
            self.smoothed += (rtt_ns - self.smoothed) // 8
        self.latest = rtt_ns

    def probe_timeout(self, attempt: int = 0) -> int:
        """Returns how long to wait for an answer to the ``attempt``-th unanswered probe (0 is the first)."""
        base = max(self.smoothed + 4 * self.variation, self._floor)
        return min(base << min(attempt, 16), self._ceiling)


class PathDelay:
    """The part of the round trip that the network is responsible for, hosts left out, and how much of it is queueing.

    Queues drain now and then; so the least that was measured in the last :data:`MEMORY_NS`, or twice that, is the path's own.
    """

    MEMORY_NS: Final = 10_000_000_000

    def __init__(self) -> None:
        self._least: int | None = None
        self._before: int | None = None
        self._renewed = 0

    def sample(self, delay_ns: int, now: int) -> int:
        """Takes one measured delay; returns the queueing in it, in nanoseconds."""
        if self._least is None or now - self._renewed > self.MEMORY_NS:
            self._before, self._least, self._renewed = self._least, delay_ns, now
        self._least = min(self._least, delay_ns)
        least = self._least if self._before is None else min(self._least, self._before)
        return delay_ns - least
