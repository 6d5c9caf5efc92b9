"""Magnitude to protection: the packets whose gradients are large for their tensor must arrive.

DLCP (arXiv 2008.08445) compares a sampled sum of |g| with a threshold set by hand.  Here a packet is compared with its own
tensor, because gradients of different layers differ by orders of magnitude, and a fixed share of the packets is protected,
because what a receiver may miss is a share as well.

Everything runs as torch operations on the device of the gradients.  Sums over parts of tensors are segmented reductions in a
fixed order, not atomic additions, so that equal gradients give equal tags.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(array: NDArray[Any], device: torch.device | str) -> Tensor:
    """Returns an array as a tensor on a device; a transfer to a GPU is queued on the current stream, and nobody waits for it."""
    tensor = torch.from_numpy(array)
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class PacketLayout:
    """How tensors laid end to end are cut into packets, prepared once for many steps.

    Args:
        edges: T + 1 element offsets, ascending from 0: tensor i is [edges[i], edges[i + 1]) of the flat array; may be empty.
        elements_per_packet: Packet k is [k * elements_per_packet, (k + 1) * elements_per_packet), the last one perhaps shorter.
        sample: Every how many elements of a packet, from its first on, one is looked at.
        device: Where the gradients are.

    Raises:
        ValueError: The offsets do not ascend from 0, or a count is below 1.
    """

    def __init__(
        self,
        edges: Sequence[int] | NDArray[np.int64],
        elements_per_packet: int,
        sample: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        offsets = np.asarray(edges, np.int64)
        if offsets.ndim != 1 or offsets.size == 0 or offsets[0] != 0 or (np.diff(offsets) < 0).any():
            raise ValueError("tensor offsets do not ascend from 0")
        if elements_per_packet < 1 or sample < 1:
            raise ValueError(f"{elements_per_packet} elements a packet, every {sample}th sampled; both must be at least 1")
        self.elements = int(offsets[-1])
        self.elements_per_packet = elements_per_packet
        self.sample = sample
        self.packets = -(-self.elements // elements_per_packet)
        self._full = self.elements // elements_per_packet

        # A piece is what one packet holds of one tensor.  In order of position, pieces are sorted by packet and by tensor alike.
        starts = np.unique(np.concatenate([np.arange(0, self.elements, elements_per_packet), offsets[:-1]]))
        starts = starts[starts < self.elements]
        stops = np.append(starts[1:], self.elements)
        packet = starts // elements_per_packet
        first = packet * elements_per_packet
        counts = -(-(stops - first) // sample) - -(-(starts - first) // sample)
        seen = counts > 0
        starts, packet, counts = starts[seen], packet[seen], counts[seen]
        tensor = np.searchsorted(offsets, starts, side="right") - 1

        pieces_of = np.bincount(packet, minlength=self.packets)
        whole = (pieces_of[packet] == 1) & (packet < self._full)
        cut = (pieces_of[packet] > 1) & (packet < self._full)

        def there(array: NDArray[np.int64]) -> Tensor:
            return upload(np.ascontiguousarray(array, np.int64), device)

        self._tensor = there(tensor)
        self._counts = there(counts)
        self._whole_pieces = there(np.flatnonzero(whole))
        self._whole_packets = there(packet[whole])
        self._cut_pieces = there(np.flatnonzero(cut))
        self._cut_packets = there(np.unique(packet[cut]))
        self._cut_counts = there(counts[cut])
        self._tail_pieces = there(np.flatnonzero(packet >= self._full))
        self._tail_counts = there(counts[packet >= self._full])
        self._pieces_of_packet = there(pieces_of)
        self._pieces_of_tensor = there(np.bincount(tensor, minlength=offsets.size - 1))
        self._samples_of_packet = there(np.bincount(packet, counts, self.packets).astype(np.int64))

    def scores(self, flat: Tensor) -> Tensor:
        """Returns how large each packet's gradients are for their tensors.

        The score is the mean of |g| / m over the sampled elements of the packet, with m the mean |g| over the sampled elements of
        the tensor that the element belongs to.  Where m is 0 so is the quotient.  A packet's part of a tensor that has a sampled
        element which is infinite or NaN, or that overflows when added up, scores infinity and is left out of m.

        Args:
            flat: Vector of any floating dtype, ``elements`` long, on the layout's device.

        Returns:
            ``float32[packets]`` on the same device.

        Raises:
            ValueError: ``flat`` has another length.
        """
        if flat.ndim != 1 or flat.numel() != self.elements:
            raise ValueError(f"tensor of shape {tuple(flat.shape)}; the layout is for {self.elements} elements")
        if self.packets == 0:
            return flat.new_empty(0, dtype=torch.float32)
        sums = self._piece_sums(flat)
        finite = torch.isfinite(sums)
        kept = torch.where(finite, sums, 0.0)
        totals = _segment_sums(kept, self._pieces_of_tensor)
        counted = _segment_sums(torch.where(finite, self._counts, 0).double(), self._pieces_of_tensor)
        means = (totals / counted.clamp(min=1))[self._tensor]
        relative = torch.where(means > 0, kept / means, 0.0)
        relative = torch.where(finite, relative, torch.inf)
        return (_segment_sums(relative, self._pieces_of_packet) / self._samples_of_packet).float()

    def _piece_sums(self, flat: Tensor) -> Tensor:
        """Returns the sum of |g| over the sampled elements of each piece, in float64."""
        accumulate = torch.float64 if flat.dtype == torch.float64 else torch.float32
        sums = torch.empty(self._counts.numel(), dtype=torch.float64, device=flat.device)
        width = self.elements_per_packet
        rows = flat[: self._full * width].view(self._full, width)[:, :: self.sample]
        if self._whole_pieces.numel():
            sums[self._whole_pieces] = rows.abs().sum(1, dtype=accumulate).double()[self._whole_packets]
        if self._cut_pieces.numel():
            cut = rows[self._cut_packets].abs().double().reshape(-1)
            sums[self._cut_pieces] = _segment_sums(cut, self._cut_counts)
        if self._tail_pieces.numel():
            tail = flat[self._full * width :: self.sample].abs().double()
            sums[self._tail_pieces] = _segment_sums(tail, self._tail_counts)
        return sums


def packet_scores(flat: Tensor, edges: Sequence[int] | NDArray[np.int64], elements_per_packet: int, sample: int = 1) -> Tensor:
    """Scores packets once; see :class:`PacketLayout` for the arguments and :meth:`PacketLayout.scores` for the result."""
    return PacketLayout(edges, elements_per_packet, sample, flat.device).scores(flat)


def protect(scores: Tensor, share: float) -> Tensor:
    """Chooses the packets to protect.

    Args:
        scores: ``float[packets]``.
        share: Share of the packets, 0 to 1.

    Returns:
        ``bool[packets]`` on the same device, true for the ``ceil(share * packets)`` with the largest scores.  NaN and both
        infinities count as largest; among equal scores the packets in front win.

    Raises:
        ValueError: The share is outside [0, 1].
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share {share}; it lies between 0 and 1")
    packets = scores.numel()
    # 0.1 * 30 is a little more than 3 in floating point.
    wanted = min(math.ceil(share * packets - 1e-9 * packets), packets)
    if wanted <= 0:
        return torch.zeros(packets, dtype=torch.bool, device=scores.device)
    if wanted == packets:
        return torch.ones(packets, dtype=torch.bool, device=scores.device)
    ranked = torch.nan_to_num(scores, nan=torch.inf, posinf=torch.inf, neginf=torch.inf)
    if torch.are_deterministic_algorithms_enabled():
        # On a GPU kthvalue may choose among equal values at random, and is refused then; only its value counts here.
        threshold = ranked.sort(descending=True).values[wanted - 1]
    else:
        threshold = torch.kthvalue(ranked, packets - wanted + 1).values
    above = ranked > threshold
    tied = ranked == threshold
    return above | (tied & (torch.cumsum(tied, 0) <= wanted - above.sum()))


def packet_tags(classes: Tensor, protected: Tensor) -> Tensor:
    """Returns ``uint8[packets]``, class * 2 + protected, from ``uint8[packets]`` and ``bool[packets]`` on one device."""
    return classes * 2 + protected.to(torch.uint8)


def _segment_sums(values: Tensor, lengths: Tensor) -> Tensor:
    # unsafe: the lengths are ours and do add up; checking them would make the host wait for the device.
    return torch.segment_reduce(values, "sum", lengths=lengths, unsafe=True, initial=0.0)
