"""What the loop needs of a port's outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from softswitch.errors import SwitchError


class PortError(SwitchError):
    """A port cannot be opened: there is no such interface or file, or it cannot be used."""


class CapabilityError(PortError):
    """This process may not do what a port needs; the message says what to do about it."""


class PacketIO(Protocol):
    """A source and sink of whole Ethernet frames.  No call waits.

    Attributes:
        name: For messages and file names.
        drops: Frames lost here, by cause.
        more: Whether there may be more to read than the last batch.
    """

    name: str
    drops: Counter[str]
    more: bool

    def fileno(self) -> int:
        """Descriptor that becomes readable when frames are there, and writable when ``send`` can take more."""

    def receive(self) -> list[bytes]:
        """Returns the frames that are there, at most a batch, oldest first."""

    def times(self, count: int) -> list[int] | None:
        """When the ``count`` frames of the last batch arrived, in ns of CLOCK_REALTIME; None if nobody knows."""

    def send(self, packets: Sequence[bytes]) -> int:
        """Sends frames in order and returns how many are dealt with, sent or counted as dropped; fewer than given: wait."""

    def close(self) -> None:
        """Releases the descriptor.  Calling it again does nothing."""


__all__ = ["CapabilityError", "PacketIO", "PortError"]
