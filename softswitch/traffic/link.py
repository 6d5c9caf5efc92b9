"""The link behind a port: how long a packet occupies it, how long it then travels, and whether it arrives.

Time is integer nanoseconds and is given, never read.  A link with a rate sends one packet at a time; the packet leaves at the end
of its serialization and arrives ``delay`` later, so a delay costs no throughput.  Departures are exact: over a busy period the
k-th packet ends at start + ceil(bits so far / rate), whenever the caller gets round to asking.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Final

from softswitch.errors import BadValue

WIRE_OVERHEAD_BYTES: Final = 0
"""Added to a frame's length for the time on the link.  0 counts the Ethernet frame as an interface sees it, without preamble,
checksum and gap, as ``tc``'s htb and tbf do: rates given here and there mean the same."""

_BITS_NS: Final = 8 * 1_000_000_000


class Link:
    """A link that may have a rate, a delay and a loss probability.

    Args:
        rate_bps: Bits per second, or None: as fast as packets come.
        delay_ns: From the end of serialization to arrival.
        loss: Probability that a packet vanishes after serialization, 0 to 1.
        rng: Draws the losses.

    Raises:
        BadValue: A value out of range.
    """

    __slots__ = ("_debt", "_rng", "busy_ns", "delay_ns", "free_at", "line", "loss", "rate_bps")

    def __init__(self, rate_bps: int | None, delay_ns: int, loss: float, rng: random.Random) -> None:
        self._rng = rng
        # Between -rate+1 and 0: what the last ceil() rounded up, in bits x ns.
        self._debt = 0
        self.free_at = 0
        """When the packet on the link ends, in ns."""
        self.busy_ns = 0
        """Time spent serializing since the start."""
        self.line: deque[tuple[int, bytes]] = deque()
        """Packets under way: (arrival in ns, data), soonest first."""
        self.rate_bps: int | None = None
        self.delay_ns = 0
        self.loss = 0.0
        self.configure(rate_bps=rate_bps, delay_ns=delay_ns, loss=loss)

    def configure(self, *, rate_bps: int | None, delay_ns: int, loss: float) -> None:
        """Changes the link; packets under way arrive as they would have."""
        if rate_bps is not None and rate_bps < 1:
            raise BadValue(f"a rate is at least 1 bit/s, not {rate_bps}")
        if delay_ns < 0:
            raise BadValue(f"a delay is not negative: {delay_ns} ns")
        if not 0.0 <= loss <= 1.0:
            raise BadValue(f"a loss probability is within 0 and 1: {loss}")
        if rate_bps != self.rate_bps:
            self._debt = 0
        self.rate_bps = rate_bps
        self.delay_ns = delay_ns
        self.loss = loss

    @property
    def transparent(self) -> bool:
        """Whether packets pass at once and unchanged."""
        return self.rate_bps is None and not self.delay_ns and not self.loss

    def send(self, data: bytes, start: int) -> bool:
        """Puts ``data`` on the link, which must be free, at ``start`` or when it became free, whichever is later.

        Returns:
            False if it will be lost.  The link is occupied all the same.
        """
        rate = self.rate_bps
        if rate is not None:
            if start > self.free_at:
                self._debt = 0
            else:
                start = self.free_at
            work = (len(data) + WIRE_OVERHEAD_BYTES) * _BITS_NS + self._debt
            duration = -(-work // rate)
            self._debt = work - duration * rate
            self.busy_ns += duration
            start += duration
            self.free_at = start
        if self.loss and self._rng.random() < self.loss:
            return False
        due = start + self.delay_ns
        # A shorter delay set while packets are under way must not reorder them.
        if self.line and self.line[-1][0] > due:
            due = self.line[-1][0]
        self.line.append((due, data))
        return True

    def clear(self, now: int) -> int:
        """Forgets the packets under way, frees the link at ``now``, and returns how many packets were lost."""
        gone = len(self.line)
        self.line.clear()
        if self.free_at > now:
            self.busy_ns -= self.free_at - now
            self.free_at = now
            self._debt = 0
        return gone


__all__ = ["WIRE_OVERHEAD_BYTES", "Link"]
