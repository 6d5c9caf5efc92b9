"""What is reduced, and the check of every element of the result.

Contributions are whole numbers, multiples of the number of ranks and small enough that every sum, partial or not, is exact in the
element type on the wire.  So "contributed - delivered - residual" is either exactly zero or an error.
"""

from __future__ import annotations

import mmap
import multiprocessing
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dlcp.collectives.operation import Reduction

Floats = NDArray[np.float32]

_SHIFT: Final = 7919  # prime, so that no two iterations meet in their data for long
_EXACT_BITS: Final = {"float32": 24, "float16": 11, "bfloat16": 8}
_CHUNK: Final = 1 << 20


class Data:
    """Contributions of all ranks and their sum, made once before the ranks are forked, which share its memory.

    All contributions are one pattern, shifted by rank and iteration, so that no rank's and no earlier call's data can pass for
    another's.

    Args:
        elements: Length of the array.
        ranks: Number of ranks.
        wire: ``wire.dtype`` of the policy.
        seed: Of the pattern.
    """

    def __init__(self, elements: int, ranks: int, wire: str, seed: int) -> None:
        self.elements = elements
        self.ranks = ranks
        most = max((1 << _EXACT_BITS[wire]) // ranks**2, 1)
        self.pattern: Floats = (np.random.default_rng(seed).integers(0, most, elements, endpoint=True) * ranks).astype(np.float32)
        self._scratch = np.ones(min(_CHUNK, elements), np.float64)
        self.total = np.zeros(elements, np.float32)
        for rank in range(ranks):
            _add_rolled(self.total, self.pattern, self._shift(rank, 0))

    def _shift(self, rank: int, iteration: int) -> int:
        return (rank * self.elements // self.ranks + iteration * _SHIFT) % self.elements

    def contribute(self, rank: int, iteration: int, target: Floats) -> None:
        """Writes a rank's contribution."""
        shift = self._shift(rank, iteration)
        target[shift:] = self.pattern[: self.elements - shift]
        target[:shift] = self.pattern[self.elements - shift :]

    def error(self, iteration: int, delivered: Floats, residual: NDArray[np.float64] | None) -> float:
        """Returns the largest |contributed - delivered - residual| of all elements, in float64; infinite for NaN."""
        worst = 0.0
        # Made once: fresh memory in between turns would blur what the candidates take.
        scratch = self._scratch
        shift = self._shift(0, iteration)
        for begin, end, offset in ((0, shift, self.elements - shift), (shift, self.elements, -shift)):
            for start in range(begin, end, _CHUNK):
                stop = min(start + _CHUNK, end)
                left = scratch[: stop - start]
                left[:] = self.total[start + offset : stop + offset]
                left -= delivered[start:stop]
                if residual is not None:
                    left -= residual[start:stop]
                largest = float(np.abs(left, out=left).max(initial=0.0))
                worst = max(worst, largest) if np.isfinite(largest) else float("inf")
        return worst


def _add_rolled(target: Floats, source: Floats, shift: int) -> None:
    target[shift:] += source[: source.size - shift]
    target[:shift] += source[source.size - shift :]


class Residuals:
    """Sum over ranks of what was lost and is kept, in memory that all ranks share."""

    def __init__(self, elements: int) -> None:
        self.values: NDArray[np.float64] = np.frombuffer(mmap.mmap(-1, 8 * elements), np.float64)
        self._lock = multiprocessing.get_context("fork").Lock()

    def touch(self) -> None:
        """Makes all of it resident in this process, so that no candidate is charged for it."""
        self.values.max()

    def add(self, reduction: Reduction) -> None:
        """Adds one rank's."""
        position = 0
        with self._lock:
            for start, stop in reduction.lost.tolist():
                self.values[start:stop] += reduction.residual[position : position + stop - start]
                position += stop - start

    def clear(self, reduction: Reduction) -> None:
        """Forgets where one rank's were; to be called when all ranks have looked."""
        for start, stop in reduction.lost.tolist():
            self.values[start:stop] = 0
