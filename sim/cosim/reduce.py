"""All-reduces with losses, as :mod:`dlcp.collectives` does them, on the gradients of all ranks at once.

Of each message some packets may be missing.  An element of the array belongs to the packet in which its first byte lies.  What of
a contribution does not arrive is zero in the sum, and stays with its sender: under ``error-feedback`` it is added to the sender's
next contribution, under ``zero`` it is forgotten, under ``rescale`` the sum of what arrived is scaled by contributors over
arrivals.  In a ring a message holds a partial sum, and its sender keeps that.  Where a result did not arrive, a rank takes its
own contribution.

DLCP protects the packets with large gradients, and sends them first (``dlcp.tagging.magnitude``).  The simulator's first packets
of a message are therefore those, whichever they are in this step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.cosim.plan import Collective, Piece
from sim.dlcp_flows import protected_of

Array = NDArray[np.float64] | NDArray[np.float32]
Missing = Mapping[int, NDArray[np.bool_]]
"""Of each message that lost something which of its packets are missing, by number."""


@dataclass(frozen=True)
class Layout:
    """How bytes of messages are elements of arrays.

    Attributes:
        item: Bytes of an element on the wire.
        payload: Payload bytes of each packet but a message's last.
    """

    item: int
    payload: int

    def elements(self, piece: Piece) -> slice:
        """Returns the elements of a message: those whose first byte lies in it."""
        return slice(-(-piece.offset // self.item), -(-(piece.offset + piece.size) // self.item))

    def lost(self, piece: Piece, packets: NDArray[np.bool_], scores: Array | None = None) -> NDArray[np.bool_]:
        """Returns which of the message's elements are missing, ``bool[elements]``.

        Args:
            piece: The message.
            packets: Which of its packets are, ``bool[packets]`` in the order in which they were sent.
            scores: How large the sender's elements are, ``float[elements of the array]``, if that has a say in the order.

        Raises:
            ValueError: ``packets`` is not as long as the message.
        """
        if len(packets) != max(-(-piece.size // self.payload), 1):
            raise ValueError(f"{len(packets)} packets for {piece.size} bytes in packets of {self.payload}")
        places = self.elements(piece)
        index = (np.arange(places.start, places.stop) * self.item - piece.offset) // self.payload
        if scores is not None:
            packets = _unsorted(packets, index, scores[places], protected_of(len(packets), piece.protected))
        found: NDArray[np.bool_] = packets[index]
        return found


def _unsorted(packets: NDArray[np.bool_], index: NDArray[np.int64], scores: Array, protected: int) -> NDArray[np.bool_]:
    """Returns by position in the array what ``packets`` says in the order of sending: the ``protected`` largest first."""
    count = len(packets)
    means = np.bincount(index, scores, count) / np.maximum(np.bincount(index, minlength=count), 1)
    by_size = np.argsort(-means, kind="stable")
    order = np.concatenate([np.sort(by_size[:protected]), np.sort(by_size[protected:])])
    found = np.empty_like(packets)
    found[order] = packets
    return found


@dataclass(frozen=True)
class Reduced:
    """What an all-reduce gave.

    Attributes:
        means: The result of every rank, ``float[ranks, elements]``; one row if all ranks have the same.
        lost: What of each rank's contribution, or partial sum, reached nobody, ``float[ranks, elements]``; None if all did.
    """

    means: Array
    lost: Array | None


def all_reduce(
    contributions: Array,
    collective: Collective,
    algorithm: str,
    missing: Missing,
    layout: Layout,
    *,
    rescale: bool = False,
    scores: Array | None = None,
) -> Reduced:
    """Averages contributions.

    Args:
        contributions: ``float[ranks, elements]``; not changed.
        collective: The messages that carry them.
        algorithm: Whose messages these are.
        missing: What the network lost.
        layout: Of packets.
        scores: How large each element is, ``float[ranks, elements]``, if packets with large ones are sent first.
        rescale: Make up for what is missing of a sum; not in a ring, in which nobody knows how many contributions that was.

    Without losses sums are made in the order of the ranks, in a ring in the order of the ring from behind the owner on.
    """
    world = len(contributions)
    lost = np.zeros_like(contributions) if any(piece.number in missing for piece in collective.pieces) else None
    total = np.empty_like(contributions[0])
    pushes = [piece for piece in collective.pieces if not piece.way.pull]
    if algorithm == "ring":
        _around(contributions, pushes, missing, layout, total, lost, scores)
    else:
        _gathered(contributions, pushes, missing, layout, total, lost, scores, rescale=rescale)
    mean = total / total.dtype.type(world)
    pulls = [piece for piece in collective.pieces if piece.way.pull and piece.number in missing]
    if not pulls:
        return Reduced(mean[None], lost)
    means = np.repeat(mean[None], world, axis=0)
    for shard in sorted({piece.way.shard for piece in pulls}):
        gone = _not_told([piece for piece in collective.pieces if piece.way.pull and piece.way.shard == shard], missing, layout)
        for rank, elements in gone.items():
            places = layout.elements(next(piece for piece in pulls if piece.way.shard == shard))
            means[rank, places][elements] = contributions[rank, places][elements]
    return Reduced(means, lost)


def _gathered(
    contributions: Array,
    pushes: Sequence[Piece],
    missing: Missing,
    layout: Layout,
    total: Array,
    lost: Array | None,
    scores: Array | None,
    *,
    rescale: bool,
) -> None:
    """Sums every shard at its owner, or server."""
    world = len(contributions)
    shards: dict[int, list[Piece]] = {}
    for piece in pushes:
        shards.setdefault(piece.way.shard, []).append(piece)
    for pieces in shards.values():
        places = layout.elements(pieces[0])
        gone = {
            piece.way.source: layout.lost(piece, missing[piece.number], None if scores is None else scores[piece.way.source])
            for piece in pieces
            if piece.number in missing
        }
        arrived = np.full(places.stop - places.start, world)
        sums = np.zeros_like(total[places])
        for rank in range(world):
            part = contributions[rank, places]
            if rank in gone:
                assert lost is not None
                lost[rank, places] = np.where(gone[rank], part, 0)
                part = np.where(gone[rank], part.dtype.type(0), part)
                arrived -= gone[rank]
            sums = sums + part if rank else part.copy()
        if rescale and gone:
            short = (arrived > 0) & (arrived < world)
            sums[short] *= (world / arrived[short]).astype(sums.dtype)
        total[places] = sums


def _around(
    contributions: Array,
    pushes: Sequence[Piece],
    missing: Missing,
    layout: Layout,
    total: Array,
    lost: Array | None,
    scores: Array | None,
) -> None:
    """Sums every shard on its way round, from behind its owner to the owner."""
    held: dict[int, Array] = {}
    for piece in pushes:
        places, way = layout.elements(piece), piece.way
        part = held.get(way.shard)
        part = contributions[way.source, places].copy() if part is None else part
        if piece.number in missing:
            assert lost is not None
            gone = layout.lost(piece, missing[piece.number], None if scores is None else scores[way.source])
            lost[way.source, places] += np.where(gone, part, 0)
            part = np.where(gone, part.dtype.type(0), part)
        held[way.shard] = part + contributions[way.destination, places]
    for piece in pushes:
        total[layout.elements(piece)] = held[piece.way.shard]


def _not_told(pulls: Sequence[Piece], missing: Missing, layout: Layout) -> dict[int, NDArray[np.bool_]]:
    """Returns which elements of a shard's result each rank did not get; along a ring what one lacks those behind it lack, too."""
    gone: dict[int, NDArray[np.bool_]] = {}
    for piece in pulls:
        before = gone.get(piece.way.source)
        mine = layout.lost(piece, missing[piece.number]) if piece.number in missing else None
        if before is not None or mine is not None:
            either = before if mine is None else mine if before is None else before | mine
            assert either is not None
            gone[piece.way.destination] = either
    return gone


__all__ = ["Layout", "Missing", "Reduced", "all_reduce"]
