"""Signals: they end a run by an exception, so that everything is taken down on the way, and do not disturb that."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Final

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(BaseException):
    """A signal asked this process to end.

    Attributes:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
    """Lets signals that end a process raise :class:`Ended` in the main thread while the block runs."""

    def end(number: int, frame: object) -> None:
        raise Ended(number)

    former = {number: signal.signal(number, end) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Lets such signals wait until the block is over, if it runs in the main thread: taking down takes less than a second."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Blocking them would not do: the kernel would give them to another thread, and Python runs handlers in this one all the same.
    waiting: list[int] = []
    former = {number: signal.signal(number, lambda number, frame: waiting.append(number)) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in former.items():
            # None is a handler that was not set by Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if waiting:
            signal.raise_signal(waiting[0])


__all__ = ["ENDING", "Ended", "uninterrupted", "unwinding"]
