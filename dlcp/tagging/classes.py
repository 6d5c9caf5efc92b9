"""Layer to priority class: what the next forward pass needs first travels first.

Under strict priority a class is worth having only if the classes above it do not carry nearly everything, so that layers are
dealt out by bytes rather than by number (DLCP, arXiv 2008.08445, deals them out by number).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dlcp.wire.header import LAYER_CLASSES


def assign_classes(sizes_in_execution_order: Sequence[int], classes: int = LAYER_CLASSES) -> list[int]:
    """Deals layers out to classes of about equal bytes.

    A layer's class is where the middle of its bytes falls when all are laid end to end and cut into ``classes`` equal parts.  The
    whole is then raised so that the first layer is in the most urgent class; it would not be if it held more than two parts.

    Args:
        sizes_in_execution_order: Bytes of each layer or parameter, the one used first in front.
        classes: Number of classes, 1 to 7.

    Returns:
        The class of each, from ``classes - 1`` (most urgent, first) downwards; never rising.

    Raises:
        ValueError: A size is negative, or the number of classes is out of range.
    """
    if not 1 <= classes <= LAYER_CLASSES:
        raise ValueError(f"{classes} classes; 1 to {LAYER_CLASSES} are possible")
    if any(size < 0 for size in sizes_in_execution_order):
        raise ValueError("a layer has a negative size")
    total = sum(sizes_in_execution_order)
    if total == 0:
        return [classes - 1] * len(sizes_in_execution_order)
    parts, before = [], 0
    for size in sizes_in_execution_order:
        # Whole numbers: a layer exactly on a cut must fall to the same side on every machine.
        parts.append(min((2 * before + size) * classes // (2 * total), classes - 1))
        before += size
    return [classes - 1 - part + parts[0] for part in parts]


def packet_classes(
    edges: Sequence[int] | NDArray[np.int64], classes: Sequence[int], elements_per_packet: int
) -> NDArray[np.uint8]:
    """Returns the class of each packet: the most urgent of the tensors that it touches.

    Args:
        edges: T + 1 element offsets, ascending from 0: tensor i is [edges[i], edges[i + 1]) of the flat array.
        classes: Class of each of the T tensors.
        elements_per_packet: Packet k is [k * elements_per_packet, (k + 1) * elements_per_packet), the last one perhaps shorter.

    Returns:
        ``uint8[packets]``.
    """
    offsets = np.asarray(edges, np.int64)
    of_tensor = np.asarray(classes, np.uint8)
    starts = np.arange(0, offsets[-1], elements_per_packet)
    result = of_tensor[np.searchsorted(offsets, starts, side="right") - 1]
    # Besides the tensor of its first element a packet touches just those that begin inside it.
    filled = offsets[:-1] < offsets[1:]
    np.maximum.at(result, offsets[:-1][filled] // elements_per_packet, of_tensor[filled])
    return result
