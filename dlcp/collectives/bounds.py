"""What one message of a contribution may go without: the policy's bound, or that of the layer classes that it carries.

A header holds one bound for the whole message, and which packets a network drops is its own choice, often all of one class.  So
where classes bear different shares, a message may miss no more packets than the class that bears the fewest of its own; classes
that could not bear to lose a single packet of it are protected instead of holding back the others.  Thus of every class of every
message at most the class's share is missing, whatever is dropped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlcp.policy import Loss
from dlcp.transport.outgoing import BOUND_SCALE, bound_to_wire
from dlcp.wire.header import LAYER_CLASSES


class PushBounds:
    """Bounds of the contributions to one call.

    Args:
        loss: The policy's.
        bound: Largest missing share in this call; None for the policy's ``push``.

    Raises:
        ValueError: ``bound`` is negative, not a number, or more than the policy allows.
    """

    def __init__(self, loss: Loss, bound: float | None = None) -> None:
        if bound is not None and not 0 <= bound <= loss.push:
            raise ValueError(f"bound is {bound}; 0 to the policy's loss.push = {loss.push:g} are possible")
        self._bound = loss.push if bound is None else float(bound)
        self._shares: NDArray[np.float64] | None = None
        if any(share < self._bound for share in loss.push_by_class):
            self._shares = np.full(LAYER_CLASSES, self._bound)
            given = np.array(loss.push_by_class)
            self._shares[: given.size] = np.minimum(given, self._bound)

    def apply(self, tags: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], int]:
        """Bounds one message.

        Args:
            tags: ``uint8[packets]``, class * 2 + protected; at most 65,535 packets.

        Returns:
            The tags to send it with (the same array, or a copy in which more is protected), and the bound in 1/65536.
        """
        if self._shares is None:
            return tags, bound_to_wire(self._bound)
        classes = tags >> 1
        packets = np.bincount(classes, minlength=LAYER_CLASSES)
        droppable = np.bincount(classes[tags & 1 == 0], minlength=LAYER_CLASSES)
        # 0.05 * 60 is a little less than 3 in floating point.
        allowed = np.floor(self._shares * packets + 1e-9).astype(np.int64)
        held = (allowed == 0) & (droppable > 0)
        if held.any():
            tags = tags | held[classes].astype(np.uint8)
        limiting = (allowed < droppable) & ~held
        most = int(allowed[limiting].min()) if limiting.any() else int(droppable[~held].sum())
        most = min(most, int(self._bound * tags.size))
        # Rounded up, for the receiver rounds down: packets * bound / 65536 is at least ``most`` and less than one more.
        return tags, -(-most * BOUND_SCALE // tags.size)


__all__ = ["PushBounds"]
