"""How an array is cut: into packets, packets into shards (one an owner), shards into parts (one message each).

Packets tile the flat array regularly, so that everything about packet ``k`` (its tag, whether it was lost) speaks of the elements
``[k * E, (k + 1) * E)`` with E elements per packet.  Shards and parts begin and end between packets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlcp.collectives.elements import dtype_field, item_bytes
from dlcp.transport.outgoing import MAX_PACKETS
from dlcp.wire.header import REPORT_BODY, WireType

MAX_PARTS = 65536
"""What the header's ``part`` can number."""
PIECES = 4
"""Parts that a shard is cut into if it is large enough: results of the first travel while contributions to the last still do."""
PIECE_PACKETS = 64
"""Smallest such part: each costs a few control packets, and a few per cent of a handful of packets are none."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of packets that travels as one message.

    Attributes:
        index: Number of the part within its shard, the header's ``part``.
        packets: First and one past the last packet of the array.
        elements: First and one past the last element.
    """

    index: int
    packets: slice
    elements: slice

    def bytes(self, item: int) -> int:
        """Returns the length of the message."""
        length: int = (self.elements.stop - self.elements.start) * item
        return length


class Plan:
    """The cut of one array.

    Args:
        elements: Length of the flat array.
        kind: Element type on the wire.
        stride: Payload bytes of a packet.
        message_bytes: Largest message.
        owners: Number of shards.
        through: Whether parts are numbered through all shards, as a ring does, or in each shard anew.

    Attributes:
        packets: Packets of the array, at least one.
        per_packet: Elements of a packet.
        parts: Parts of all shards.

    Raises:
        ValueError: The array needs more parts than the header can number.
    """

    def __init__(
        self, elements: int, kind: WireType, stride: int, message_bytes: int, owners: int, *, through: bool = False
    ) -> None:
        self.elements = elements
        self.kind = kind
        self.item = item_bytes(kind)
        self.per_packet = stride // self.item
        self.packets = max(1, -(-elements // self.per_packet))
        self.owners = owners
        # A report carries one bit a packet and must fit a datagram itself.
        self.per_part = max(1, min(message_bytes // stride, 8 * (stride - REPORT_BODY.size), MAX_PACKETS))
        if not through:
            self.per_part = min(self.per_part, max(-(-self.packets // (owners * PIECES)), PIECE_PACKETS))
        sizes = [self.packets * (owner + 1) // owners - self.packets * owner // owners for owner in range(owners)]
        counts = [-(-size // self.per_part) for size in sizes]
        self.parts = sum(counts)
        if (self.parts if through else max(counts)) > MAX_PARTS:
            raise ValueError(f"{elements} elements need more than {MAX_PARTS} messages; raise wire.message_bytes")

    def shard(self, owner: int) -> list[Part]:
        """Returns the parts of an owner's shard; none if there are fewer packets than owners."""
        first = self.packets * owner // self.owners
        last = self.packets * (owner + 1) // self.owners
        parts: list[Part] = []
        for index, start in enumerate(range(first, last, self.per_part)):
            stop = min(start + self.per_part, last)
            parts.append(Part(index, slice(start, stop), slice(start * self.per_packet, self._element(stop))))
        return parts

    def dtype_field(self, mean: bool = False) -> int:
        """Returns the header's ``dtype`` byte of all messages of this array."""
        return dtype_field(self.kind, mean=mean, parts=self.parts)

    def claim(self, dtype: np.dtype[Any], mean: bool) -> str:
        """Says in words what reducing this array is; see :class:`~dlcp.collectives.collective.Collective`."""
        return f"{'mean' if mean else 'sum'} of {self.elements} elements of {dtype}"

    def _element(self, packet: int) -> int:
        return min(packet * self.per_packet, self.elements)

    def lost_elements(self, part: Part, lost: NDArray[np.int64]) -> NDArray[np.int64]:
        """Turns lost packets of a part into element ranges of the array, ``int64[m, 2]``, merged and ascending."""
        return packet_ranges(lost + part.packets.start, self.per_packet, self.elements)


def packet_ranges(packets: NDArray[np.int64], per_packet: int, elements: int) -> NDArray[np.int64]:
    """Returns the element ranges ``int64[m, 2]`` that ascending packet numbers cover, neighbours merged."""
    if not packets.size:
        return np.zeros((0, 2), np.int64)
    breaks = np.flatnonzero(np.diff(packets) != 1)
    first = packets[np.concatenate([[0], breaks + 1])]
    last = packets[np.concatenate([breaks, [packets.size - 1]])]
    ranges: NDArray[np.int64] = np.minimum(np.stack([first, last + 1], axis=1) * per_packet, elements)
    return ranges
