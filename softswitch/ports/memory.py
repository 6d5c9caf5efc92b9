"""A port in memory, for tests and for switches in one process."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

BATCH = 64


class MemoryIO:
    """Frames put in by ``inject`` from any thread; what the switch sends is appended to ``sent`` or given to ``on_send``.

    Args:
        name: For messages.
        on_send: Called in the switch's thread with each frame that leaves.
    """

    def __init__(self, name: str = "memory", on_send: Callable[[bytes], object] | None = None) -> None:
        self.name = name
        self.drops: Counter[str] = Counter()
        self.more = False
        self.sent: list[bytes] = []
        self._emit = self.sent.append if on_send is None else on_send
        self._arrived: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def inject(self, packets: Iterable[bytes]) -> None:
        """Lets frames arrive."""
        with self._lock:
            self._arrived.extend(packets)
            if self._arrived:
                os.eventfd_write(self._descriptor, 1)

    def fileno(self) -> int:
        return self._descriptor

    def receive(self) -> list[bytes]:
        with self._lock:
            packets = [self._arrived.popleft() for _ in range(min(BATCH, len(self._arrived)))]
            if not self._arrived:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._descriptor)
            self.more = bool(self._arrived)
        return packets

    def times(self, count: int) -> None:
        return None

    def send(self, packets: Sequence[bytes]) -> int:
        for packet in packets:
            self._emit(packet)
        return len(packets)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


__all__ = ["MemoryIO"]
