"""What an onlooker of a communicator is shown, for traces and statistics."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dlcp.collectives.operation import Operation
from dlcp.transport.events import Event


class Observer(Protocol):
    """Sees what a communicator does, from then on.

    All is called in the I/O thread: nothing may block or raise.  ``now`` is ``time.monotonic_ns()``.
    """

    def started(self, number: int, operation: Operation, now: int) -> None:
        """A collective call begins; ``number`` is its number, the header's ``operation``."""

    def sending(self, peer: int, message: int, length: int, tags: NDArray[np.uint8], now: int) -> None:
        """A message is handed to the transport: its 64-bit id, its bytes, and class * 2 + protected of each packet."""

    def happened(self, event: Event, now: int) -> None:
        """The transport reports something."""


__all__ = ["Observer"]
