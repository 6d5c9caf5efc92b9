"""Adds contributions up, in rank order, so that the same contributions give the same bits whatever order they came in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlcp.collectives.elements import from_wire
from dlcp.wire.header import WireType


def zero_lost(data: NDArray[np.uint8], lost: NDArray[np.int64], stride: int) -> None:
    """Clears the bytes of lost packets: buffers are reused, so they hold something else."""
    for packet in lost.tolist():
        data[packet * stride : (packet + 1) * stride] = 0


def reduce_contributions(
    contributions: Sequence[NDArray[Any]],
    lost: Sequence[NDArray[np.int64]],
    kind: WireType,
    per_packet: int,
    *,
    divisor: int,
    rescale: bool,
) -> NDArray[Any]:
    """Sums ``contributions``.

    Args:
        contributions: 1-D arrays of one length, float32 or float64, or ``uint8`` wire bytes of ``kind``; lost packets hold zeros.
        lost: For each contribution the indices of its lost packets.
        kind: Element type on the wire.
        per_packet: Elements of a packet.
        divisor: What the sum is divided by: the number of contributors for a mean, 1 for a sum.
        rescale: Make up for lost packets by scaling a packet's sum with contributors / arrived.

    Returns:
        A new array, float32 or float64.
    """
    # Gradients may overflow, or not be numbers: the training loop's business, and no reason to warn from the I/O thread.
    with np.errstate(over="ignore", invalid="ignore"):
        return _reduce(contributions, lost, kind, per_packet, divisor, rescale)


def _reduce(
    contributions: Sequence[NDArray[Any]],
    lost: Sequence[NDArray[np.int64]],
    kind: WireType,
    per_packet: int,
    divisor: int,
    rescale: bool,
) -> NDArray[Any]:
    values = [from_wire(c, kind) if c.dtype == np.uint8 else c for c in contributions]
    if len(values) == 1:
        total = values[0].copy()
    else:
        total = np.add(values[0], values[1])
        for value in values[2:]:
            np.add(total, value, out=total)
    if divisor != 1:
        np.multiply(total, total.dtype.type(1 / divisor), out=total)
    if rescale and any(len(packets) for packets in lost):
        gone = np.bincount(np.concatenate(lost))
        for packet in np.flatnonzero(gone).tolist():
            arrived = len(values) - int(gone[packet])
            if arrived:
                total[packet * per_packet : (packet + 1) * per_packet] *= total.dtype.type(len(values) / arrived)
    return total
