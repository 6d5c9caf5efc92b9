"""Two-rate three-colour meters (RFC 2698, colour-blind), with the arithmetic of BMv2's ``meters.cpp``.

Both buckets start full when a meter is configured.  A packet that the peak bucket cannot pay is red and takes nothing; one that
the committed bucket cannot pay is yellow and takes from the peak bucket only.  What has trickled in is computed from one origin
of time, not from packet to packet, so that rounding does not add up; it is exact integers here, where BMv2 has doubles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from softswitch.errors import BadValue

GREEN, YELLOW, RED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class MeterConfig:
    """Rates and bursts in the meter's unit (bytes or packets); rates a second.

    Attributes:
        cir: Committed information rate.
        cburst: Committed burst.
        pir: Peak information rate, at least ``cir``.
        pburst: Peak burst.
    """

    cir: int
    cburst: int
    pir: int
    pburst: int

    def check(self, where: str) -> None:
        """Raise ``BadValue`` for a negative figure or a peak rate below the committed one."""
        if min(self.cir, self.cburst, self.pir, self.pburst) < 0:
            raise BadValue(f"{where}: a meter's rates and bursts are not negative")
        if self.pir < self.cir:
            raise BadValue(f"{where}: peak rate {self.pir} is below committed rate {self.cir}")


class Meter:
    """One meter.  Without configuration every packet is green."""

    __slots__ = ("_cir", "_cmax", "_committed", "_committed_seen", "_packets", "_peak", "_peak_seen", "_pir", "_pmax", "config")

    def __init__(self, unit: Literal["bytes", "packets"]) -> None:
        self._packets = unit == "packets"
        self.configure(None)

    def configure(self, config: MeterConfig | None) -> None:
        """Set rates and bursts and fill both buckets; None makes every packet green."""
        self.config = config
        self._cir, self._pir = (config.cir, config.pir) if config else (0, 0)
        self._cmax, self._pmax = (config.cburst, config.pburst) if config else (0, 0)
        self._committed, self._peak = self._cmax, self._pmax
        self._committed_seen = self._peak_seen = 0

    def color(self, length: int, now_us: int) -> int:
        """Meter a packet of ``length`` bytes that comes ``now_us`` after the switch started: ``GREEN``, ``YELLOW`` or ``RED``."""
        if self.config is None:
            return GREEN
        if self._packets:
            length = 1
        total = now_us * self._pir // 1_000_000
        tokens = self._peak
        if total > self._peak_seen:
            tokens += total - self._peak_seen
            if tokens > self._pmax:
                tokens = self._pmax
            self._peak_seen = total
        if tokens < length:
            self._peak = tokens
            return RED
        self._peak = tokens - length
        total = now_us * self._cir // 1_000_000
        tokens = self._committed
        if total > self._committed_seen:
            tokens += total - self._committed_seen
            if tokens > self._cmax:
                tokens = self._cmax
            self._committed_seen = total
        if tokens < length:
            self._committed = tokens
            return YELLOW
        self._committed = tokens - length
        return GREEN

    def state(self) -> tuple[object, ...]:
        """All of the meter, for ``restore``."""
        return (self.config, self._committed, self._committed_seen, self._peak, self._peak_seen)

    def restore(self, state: tuple[MeterConfig | None, int, int, int, int]) -> None:
        """Go back to what ``state`` returned."""
        self.configure(state[0])
        _, self._committed, self._committed_seen, self._peak, self._peak_seen = state


__all__ = ["GREEN", "RED", "YELLOW", "Meter", "MeterConfig"]
