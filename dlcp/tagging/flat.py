"""Magnitude to protection on numpy arrays, for frameworks other than torch; the rule is that of :mod:`dlcp.tagging.magnitude`.

A packet's score is the mean of |g| / m over its sampled elements, with m the mean |g| over the sampled elements of the tensor
that an element belongs to; the share of the packets with the highest scores is protected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlcp.tagging.classes import packet_classes


class FlatTags:
    """Tags of one flat array of tensors laid end to end, prepared once for many steps.

    Args:
        edges: T + 1 element offsets, ascending from 0: tensor i is [edges[i], edges[i + 1]) of the array; may be empty.
        classes: Class of each of the T tensors, 0 to 6.
        elements_per_packet: Packet k is [k * elements_per_packet, (k + 1) * elements_per_packet), the last one perhaps shorter.
        share: Share of the packets that is protected, 0 to 1.
        sample: Every how many elements of a packet, from its first on, one is looked at.

    Raises:
        ValueError: The offsets do not ascend from 0, or a number is out of range.
    """

    def __init__(
        self,
        edges: Sequence[int] | NDArray[np.int64],
        classes: Sequence[int],
        elements_per_packet: int,
        share: float,
        sample: int = 1,
    ) -> None:
        offsets = np.asarray(edges, np.int64)
        if offsets.ndim != 1 or offsets.size == 0 or offsets[0] != 0 or (np.diff(offsets) < 0).any():
            raise ValueError("tensor offsets do not ascend from 0")
        if elements_per_packet < 1 or sample < 1 or not 0 <= share <= 1:
            raise ValueError(f"{elements_per_packet} elements a packet, every {sample}th sampled, share {share}: out of range")
        self.elements = int(offsets[-1])
        self.packets = -(-self.elements // elements_per_packet)
        self._width, self._sample, self._share = elements_per_packet, sample, share
        self._tensors = offsets.size - 1
        self._even = packet_classes(offsets, classes, elements_per_packet) * np.uint8(2)

        # A piece is what one packet holds of one tensor; its samples are neighbours in the array of all samples.
        starts = np.unique(np.concatenate([np.arange(0, self.elements, elements_per_packet), offsets[:-1]]))
        starts = starts[starts < self.elements]
        stops = np.append(starts[1:], self.elements)
        packet = starts // elements_per_packet
        first = packet * elements_per_packet
        counts = -(-(stops - first) // sample) - -(-(starts - first) // sample)
        seen = counts > 0
        self._counts = counts[seen]
        self._packet = packet[seen]
        self._tensor = np.searchsorted(offsets, starts[seen], side="right") - 1
        self._pieces = np.cumsum(self._counts) - self._counts
        self._samples_of_packet = np.bincount(self._packet, self._counts, self.packets)

    def scores(self, flat: NDArray[Any]) -> NDArray[np.float64]:
        """Returns how large each packet's gradients are for their tensors, ``float64[packets]``.

        A packet's part of a tensor with a sampled element that is infinite or NaN scores infinity and is left out of the mean.

        Args:
            flat: Vector of float32 or float64, ``elements`` long.

        Raises:
            ValueError: ``flat`` has another length.
        """
        if flat.ndim != 1 or flat.size != self.elements:
            raise ValueError(f"array of shape {flat.shape}; the tags are for {self.elements} elements")
        if self.packets == 0:
            return np.empty(0)
        full = self.elements // self._width * self._width
        rows = flat[:full].reshape(-1, self._width)[:, :: self._sample]
        sampled = np.concatenate([rows.ravel(), flat[full :: self._sample]])
        np.abs(sampled, out=sampled)
        with np.errstate(over="ignore", invalid="ignore"):
            sums = np.add.reduceat(sampled, self._pieces, dtype=np.float64)
        finite = np.isfinite(sums)
        kept = np.where(finite, sums, 0.0)
        totals = np.bincount(self._tensor, kept, self._tensors)
        counted = np.bincount(self._tensor, np.where(finite, self._counts, 0), self._tensors)
        means = (totals / np.maximum(counted, 1))[self._tensor]
        relative = np.divide(kept, means, out=np.zeros_like(kept), where=means > 0)
        relative[~finite] = np.inf
        result: NDArray[np.float64] = np.bincount(self._packet, relative, self.packets) / self._samples_of_packet
        return result

    def tags(self, flat: NDArray[Any]) -> NDArray[np.uint8]:
        """Returns ``uint8[packets]``, class * 2 + protected, of what is about to be contributed; see :meth:`scores`."""
        # 0.1 * 30 is a little more than 3 in floating point.
        wanted = min(math.ceil(self._share * self.packets - 1e-9 * self.packets), self.packets)
        if wanted <= 0:
            return self._even
        if wanted == self.packets:
            return self._even | np.uint8(1)
        # float32, in which scores that differ by rounding only are equal; among equals the packets in front win.
        with np.errstate(over="ignore"):
            scores = self.scores(flat).astype(np.float32)
        scores[np.isnan(scores)] = np.inf
        threshold = np.partition(scores, self.packets - wanted)[self.packets - wanted]
        above = scores > threshold
        tied = scores == threshold
        protected = above | (tied & (np.cumsum(tied) <= wanted - np.count_nonzero(above)))
        result: NDArray[np.uint8] = self._even | protected.view(np.uint8)
        return result
