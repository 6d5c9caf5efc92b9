"""Digests on their way from the data plane to the control plane."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

Digest = tuple[str, tuple[int, ...]]
"""Name of the digest, and its fields in the order of ``DigestModel.fields``."""


class DigestQueue(deque[Digest]):
    """Bounded; what does not fit is dropped and counted.

    Attributes:
        dropped: Digests lost since the start.
        notify: Called when a digest comes into an empty queue; None for nobody.
    """

    def __init__(self, limit: int = 65536) -> None:
        super().__init__()
        self.limit = limit
        self.dropped = 0
        self.notify: Callable[[], None] | None = None

    def push(self, name: str, values: tuple[int, ...]) -> None:
        """Add a digest (compiled code calls this)."""
        if len(self) >= self.limit:
            self.dropped += 1
            return
        self.append((name, values))
        if self.notify is not None and len(self) == 1:
            self.notify()

    def drain(self) -> list[Digest]:
        """Take all digests, oldest first."""
        taken = list(self)
        self.clear()
        return taken


__all__ = ["Digest", "DigestQueue"]
