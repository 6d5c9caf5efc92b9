"""Puts frames from several interfaces into the order in which they arrived, by the kernel's time stamps.

A switch in user space reads late whenever the machine is busy, and then finds a burst that never was one: given to the queues as
if all of it had arrived at the moment of reading, it would overflow them.  So each frame enters the switch at the time at which
the kernel got it, and the queues behave as those of a switch that is always on time.
"""

from __future__ import annotations

from collections.abc import Sequence

_MOST_HELD = 4096
"""So many frames may wait for those of another port; beyond that, order matters less than memory."""

Arrival = tuple[int, int, int, bytes]
"""Time in ns, a running number, port, frame."""


class Arrivals:
    """Frames that were read and may not have entered the switch yet."""

    def __init__(self) -> None:
        self._held: list[Arrival] = []
        self._number = 0
        self._horizon: int | None = None
        self._reached = 0

    @property
    def waiting(self) -> bool:
        """Whether frames are held back."""
        return bool(self._held)

    def add(self, port: int, packets: Sequence[bytes], times: Sequence[int], more: bool) -> None:
        """Adds a batch.

        Args:
            port: Where it arrived.
            packets: Its frames, at least one.
            times: When each arrived, in ns.
            more: There may be more to read at this port, so nobody knows yet what arrived after the last of these.
        """
        first = self._number
        self._number += len(packets)
        self._held.extend(zip(times, range(first, self._number), (port,) * len(packets), packets, strict=True))
        if more and (self._horizon is None or times[-1] < self._horizon):
            self._horizon = times[-1]

    def take(self, now: int) -> tuple[list[Arrival], int]:
        """Takes the frames of which it is known that nothing arrived before them, in order.

        Returns:
            The frames, whose times never go back from call to call, and the time up to which all is known.
        """
        if not self._held:
            self._reached = max(self._reached, now)
            return [], self._reached
        horizon = now if self._horizon is None or len(self._held) > _MOST_HELD else min(self._horizon, now)
        self._horizon = None
        held = self._held
        held.sort()
        if held and held[-1][0] > horizon:
            self._held = [arrival for arrival in held if arrival[0] > horizon]
            ready = held[: len(held) - len(self._held)]
        else:
            ready, self._held = held, []
        reached = self._reached
        if ready and ready[0][0] < reached:
            ready = [arrival if arrival[0] >= reached else (reached, *arrival[1:]) for arrival in ready]
        self._reached = max(reached, horizon)
        return ready, self._reached


__all__ = ["Arrival", "Arrivals"]
