"""Undo log of the control plane's writes.

Every write that succeeds records how to take itself back; outside a transaction the record is thrown away at once.  A transaction
that ends by an exception runs its records backwards, so that references between objects (entry to member, group to member) are
whole at each step.  Transactions nest: an inner one that fails takes back its own writes only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Journal:
    """Undo log.  Not thread-safe: all writes come from the thread that runs the data plane."""

    __slots__ = ("_depth", "_log")

    def __init__(self) -> None:
        self._log: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._depth = 0

    def record(self, undo: Callable[..., object], *args: Any) -> None:
        """Remember that ``undo(*args)`` takes back the write just done; ``undo`` must not record anything itself."""
        if self._depth:
            self._log.append((undo, args))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Take back all writes of the body if it raises, then let the exception pass."""
        mark = len(self._log)
        self._depth += 1
        try:
            yield
        except BaseException:
            while len(self._log) > mark:
                undo, args = self._log.pop()
                undo(*args)
            raise
        finally:
            self._depth -= 1
            if not self._depth:
                self._log.clear()


__all__ = ["Journal"]
