"""The memory of a simulation: grows while it is built and between runs, and is run by the engine as Python or compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sim.engine.layout import (
    H_FAR,
    H_FAR_COUNT,
    H_FAR_ROOM,
    H_FREE,
    H_FREE_COUNT,
    H_WORDS,
    HEAP_WORDS,
    P_NEXT,
    P_WORDS,
)
from sim.engine.loop import run

ENGINES: Final = ("compiled", "python")


class Memory:
    """Words; :meth:`take` hands out more of them, all 0.  What was handed out keeps its position for ever.

    Args:
        engine: ``compiled`` or ``python``.
    """

    def __init__(self, engine: str) -> None:
        if engine not in ENGINES:
            raise ValueError(f"engine {engine!r}; there are {', '.join(ENGINES)}")
        self.engine = engine
        self.words: list[int] | NDArray[np.int64] = [] if engine == "python" else np.zeros(1 << 16, np.int64)
        self._used = 0
        self.packets = 0
        """Packets in the pool and in use."""
        self.take(H_WORDS)

    def take(self, count: int) -> int:
        """Returns the position of ``count`` new words, which begin at a multiple of 8: a cache line."""
        position = self._used
        self._used += (count + 7) // 8 * 8
        if isinstance(self.words, list):
            self.words.extend([0] * (self._used - len(self.words)))
        elif self._used > len(self.words):
            grown = np.zeros(max(self._used, len(self.words) * 3 // 2), np.int64)
            grown[:position] = self.words[:position]
            self.words = grown
        return position

    @property
    def used(self) -> int:
        """Words that were handed out."""
        return self._used

    def __getitem__(self, at: int) -> int:
        return int(self.words[at])

    def __setitem__(self, at: int, value: int) -> None:
        self.words[at] = value

    def store(self, at: int, values: Sequence[int]) -> None:
        """Sets consecutive words."""
        self.words[at : at + len(values)] = values

    def add_packets(self, count: int) -> None:
        """Puts new packets into the pool."""
        first = self.take(count * P_WORDS)
        last = first + (count - 1) * P_WORDS
        links = range(first + P_WORDS, last + P_WORDS + 1, P_WORDS)
        self.words[first + P_NEXT : last + P_NEXT + 1 : P_WORDS] = links if isinstance(self.words, list) else np.array(links)
        self[last + P_NEXT] = self[H_FREE]
        self[H_FREE] = first
        self[H_FREE_COUNT] += count
        self.packets += count

    @property
    def events(self) -> int:
        """Room of the far heap."""
        return self[H_FAR_ROOM]

    def add_events(self, count: int) -> None:
        """Makes room for ``count`` events more in the far heap, by moving it."""
        room = self[H_FAR_ROOM] + count
        place = self.take(room * HEAP_WORDS)
        old, used = self[H_FAR], self[H_FAR_COUNT] * HEAP_WORDS
        self.words[place : place + used] = self.words[old : old + used]
        self[H_FAR], self[H_FAR_ROOM] = place, room

    def run(self) -> int:
        """Runs the engine; returns its verdict.

        Raises:
            MissingPackage: llvmlite is not installed.
        """
        if isinstance(self.words, list):
            return run(self.words)
        from sim.compiled import address_of, compiled

        return compiled()(address_of(self.words))


__all__ = ["ENGINES", "Memory"]
