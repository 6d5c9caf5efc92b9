"""Threads that complete futures.

A callback of a future may do anything: run tensor operations, or start another collective and wait for it, as PowerSGD's does.
In the transport's thread it would stop the transport.  In one thread for all, it would wait for a future that only that thread
can complete.  So there are as many threads as callbacks wait, and no more than one otherwise.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

IDLE_S: Final = 5.0
"""How long a thread without work stays."""


class Delivery:
    """A pool that grows when all its threads are held up.

    Args:
        name: Of its threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._tasks: deque[Callable[[], None]] = deque()
        self._idle = 0
        self._threads = 0

    def submit(self, task: Callable[[], None]) -> None:
        """Runs ``task``, which must not raise, in a thread of the pool."""
        with self._changed:
            self._tasks.append(task)
            if self._idle >= len(self._tasks):
                self._changed.notify()
                return
            self._threads += 1
            threading.Thread(target=self._run, name=self._name, daemon=True).start()

    @property
    def threads(self) -> int:
        """Threads that there are."""
        return self._threads

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: bool(self._tasks), IDLE_S)
                self._idle -= 1
                if not self._tasks:
                    self._threads -= 1
                    return
                task = self._tasks.popleft()
            task()
            del task
