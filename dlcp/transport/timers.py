"""A set of named deadlines: one heap, lazy deletion, no clock of its own."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """Deadlines in nanoseconds by key; setting a key again moves it."""

    def __init__(self) -> None:
        self._deadline: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._deadline)

    def __contains__(self, key: K) -> bool:
        return key in self._deadline

    def set(self, key: K, deadline: int) -> None:
        """Arms or moves ``key``."""
        if self._deadline.get(key) == deadline:
            return
        self._deadline[key] = deadline
        self._count += 1
        heapq.heappush(self._heap, (deadline, self._count, key))
        if len(self._heap) > 64 + 4 * len(self._deadline):
            self._compact()

    def set_earlier(self, key: K, deadline: int) -> None:
        """Arms ``key``, or moves it if the new deadline comes first."""
        known = self._deadline.get(key)
        if known is None or deadline < known:
            self.set(key, deadline)

    def cancel(self, key: K) -> None:
        """Disarms ``key``; no error if it was not armed."""
        self._deadline.pop(key, None)

    def clear(self) -> None:
        """Disarms everything."""
        self._deadline.clear()
        self._heap.clear()

    def _compact(self) -> None:
        """Timers that are moved all the time leave their old deadlines behind."""
        self._heap = [entry for entry in self._heap if self._deadline.get(entry[2]) == entry[0]]
        heapq.heapify(self._heap)

    def next(self) -> int | None:
        """Returns the earliest deadline."""
        heap = self._heap
        while heap:
            deadline, _, key = heap[0]
            if self._deadline.get(key) == deadline:
                return deadline
            heapq.heappop(heap)
        return None

    def pop_due(self, now: int) -> list[K]:
        """Disarms and returns every key whose deadline is not after ``now``, earliest first."""
        due: list[K] = []
        while (deadline := self.next()) is not None and deadline <= now:
            _, _, key = heapq.heappop(self._heap)
            del self._deadline[key]
            due.append(key)
        return due
