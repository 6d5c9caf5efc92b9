"""Which packets are lost: kinds of loss, and how it is spread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]

KINDS: Final = {
    "tagged": "droppable packets, as switches drop them; all ranks alike",
    "uneven": "the same number of packets in all, but of rank 0 alone",
    "random": "any packets",
    "smallest": "the packets with the smallest gradients",
    "largest": "the packets with the largest gradients",
    "class": "droppable packets of one layer class",
}
"""What is lost, and in words."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One way of losing packets.

    Attributes:
        kind: A key of :data:`KINDS`.
        share: Of all packets that travel, for a class of its packets; on average over ranks and steps.
        layer_class: For the kind ``class``.
        burst: Mean length of a run of lost packets; 1 loses each by itself.
    """

    kind: str
    share: float
    layer_class: int = 0
    burst: float = 1.0

    def possible(self, ranks: int) -> bool:
        """Whether there is that much to lose: one rank cannot lose more than all it has."""
        return self.share * (ranks if self.kind == "uneven" else 1) <= 1

    def choose(
        self,
        tags: NDArray[np.uint8],
        travels: Mask,
        scores: NDArray[np.float32],
        rank: int,
        ranks: int,
        random: np.random.Generator,
    ) -> NDArray[np.int64]:
        """Returns the lost packets of one contribution, ascending.

        Args:
            tags: ``uint8[packets]``, class * 2 + protected.
            travels: ``bool[packets]``: a rank's own shard does not.
            scores: ``float32[packets]``, how large the gradients are; see :meth:`dlcp.tagging.magnitude.PacketLayout.scores`.
            rank: Whose contribution it is.
            ranks: How many there are.
            random: Decides.
        """
        droppable = travels & (tags & 1 == 0)
        if self.kind in ("smallest", "largest"):
            return self._extreme(travels, scores, random)
        of, eligible, share = travels, droppable, self.share
        if self.kind == "random":
            eligible = travels
        elif self.kind == "class":
            of = travels & (tags >> 1 == self.layer_class)
            eligible = droppable & of
        elif self.kind == "uneven":
            share = share * ranks if rank == 0 else 0.0
            # Where one rank is to lose more than it has of droppable packets, protected ones go as well.
            if share * np.count_nonzero(of) > np.count_nonzero(droppable):
                eligible = travels
        candidates = np.flatnonzero(eligible)
        if candidates.size == 0 or share == 0:
            return np.zeros(0, np.int64)
        rate = min(1.0, share * np.count_nonzero(of) / candidates.size)
        return candidates[runs(candidates.size, rate, self.burst, random)].astype(np.int64)

    def _extreme(self, travels: Mask, scores: NDArray[np.float32], random: np.random.Generator) -> NDArray[np.int64]:
        candidates = np.flatnonzero(travels)
        exact = self.share * candidates.size
        # The fraction of a packet is lost in as many steps.
        count = int(exact) + int(random.random() < exact - int(exact))
        order = np.argsort(scores[candidates], kind="stable")
        chosen = order[:count] if self.kind == "smallest" else order[order.size - count :]
        return np.sort(candidates[chosen]).astype(np.int64)


def runs(count: int, rate: float, burst: float, random: np.random.Generator) -> Mask:
    """Returns which of ``count`` packets in a row are lost.

    Args:
        count: Packets.
        rate: Probability of each to be lost, 0 to 1.
        burst: Mean length of a run of lost packets.  1, or less than independent losses have, draws each by itself; otherwise
            runs of lost and of kept packets alternate, both of geometric length (the model of Gilbert).
        random: Decides.
    """
    if not count or burst <= 1 or not 0 < rate < 1 or burst <= 1 / (1 - rate):
        return random.random(count) < rate
    leave, enter = 1 / burst, rate / (burst * (1 - rate))
    lost = bool(random.random() < rate)
    pieces: list[Mask] = []
    length = 0
    while length < count:
        run = int(random.geometric(leave if lost else enter))
        pieces.append(np.full(min(run, count), lost))
        length += run
        lost = not lost
    return np.concatenate(pieces)[:count]
