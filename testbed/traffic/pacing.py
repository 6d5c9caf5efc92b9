"""When a datagram flow sends its packets: pure functions of time, so that a sender that was held up knows what it still owes.

Rates count whole Ethernet frames, as links do.
"""

from __future__ import annotations

from typing import Any, Final

FRAME_OVERHEAD: Final = 42
"""Bytes of a frame around a datagram's payload: Ethernet 14, IPv4 20, UDP 8."""
MOST_LATE_NS: Final = 20_000_000
"""What a sender that was held up for longer owed is not sent afterwards in a burst that the flow never had."""


class Pacer:
    """Tells how many packets a flow should have sent by a time, and when the next is due.

    Args:
        flow: :class:`testbed.traffic.flows.Flow` as plain data; its kind is not ``tcp``.
    """

    def __init__(self, flow: dict[str, Any]) -> None:
        self._kind = flow["kind"]
        self._on: int = flow["on_ns"]
        self._off: int = flow["off_ns"]
        self._phase: int = flow["phase_ns"]
        self._burst: int = flow["burst_packets"]
        frame_ns = 8 * 10**9 * (flow["payload"] + FRAME_OVERHEAD)
        self._gap = 0.0 if flow["rate_bps"] is None else frame_ns / flow["rate_bps"]

    def owed(self, time_ns: int) -> int:
        """Returns how many packets are to be sent by ``time_ns`` since the flow's start, all in all."""
        if time_ns < 0:
            return 0
        if self._kind == "incast":
            return self._burst * (1 + (time_ns // self._off if self._off else 0))
        if self._kind == "on-off":
            time_ns = self._active(time_ns + self._phase) - self._active(self._phase)
        return 1 + int(time_ns / self._gap)

    def next(self, time_ns: int) -> int:
        """Returns a time after ``time_ns`` at which more are owed, or not much earlier."""
        if self._kind == "incast":
            return (time_ns // self._off + 1) * self._off if self._off else time_ns + 10**9
        if self._kind == "on-off":
            period = self._on + self._off
            into = (time_ns + self._phase) % period if period else 0
            if into >= self._on:
                return time_ns + period - into
        return time_ns + max(int(self._gap), 1)

    def _active(self, time_ns: int) -> int:
        """Time within bursts from 0 to ``time_ns``."""
        period = self._on + self._off
        if not period:
            return 0
        whole, rest = divmod(time_ns, period)
        return whole * self._on + min(rest, self._on)


__all__ = ["FRAME_OVERHEAD", "MOST_LATE_NS", "Pacer"]
