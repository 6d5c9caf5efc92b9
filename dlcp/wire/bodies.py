"""What follows the header, by packet type: the second half of the wire table.

From it come the bodies of the scapy layer, of the dissector and of ``docs/wire-format.md``, and the size that a datagram must
have.  The size matters to more than checks: a capture taken on the sending host shows one giant datagram where the network card
will cut many (UDP segmentation offload), and only the sizes tell where one ends and the next begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dlcp.wire.header import ABORT_BODY, FEEDBACK_BODY, HEADER, HEADER_BYTES, HELLO_BODY, REPORT_BODY, PacketType
from dlcp.wire.layout import Layout


class Tail(Enum):
    """What follows the fixed part of a body."""

    NONE = "nothing"
    PAYLOAD = "elements of the message, min(stride, length - offset) bytes; nothing if trimmed"
    BITMAP = "bitmap of missing packets, packets / 8 bytes rounded up"
    PADDING = "padding up to `datagram` bytes in all"
    TEXT = "UTF-8 text up to the end of the datagram"


@dataclass(frozen=True, slots=True)
class Body:
    """The fixed part of a body, if there is one, and what follows it."""

    layout: Layout | None
    tail: Tail

    @property
    def size(self) -> int:
        """Bytes of the fixed part."""
        return 0 if self.layout is None else self.layout.size


BODIES: Final[Mapping[PacketType, Body]] = {
    PacketType.DATA: Body(None, Tail.PAYLOAD),
    PacketType.PROBE: Body(None, Tail.NONE),
    PacketType.STATUS: Body(REPORT_BODY, Tail.BITMAP),
    PacketType.STOP: Body(REPORT_BODY, Tail.BITMAP),
    PacketType.FEEDBACK: Body(FEEDBACK_BODY, Tail.NONE),
    PacketType.HELLO: Body(HELLO_BODY, Tail.PADDING),
    PacketType.HELLO_ACK: Body(HELLO_BODY, Tail.NONE),
    PacketType.PING: Body(None, Tail.NONE),
    PacketType.ABORT: Body(ABORT_BODY, Tail.TEXT),
    PacketType.GOODBYE: Body(None, Tail.NONE),
}
PREFIX_BYTES: Final = HEADER_BYTES + max(body.size for body in BODIES.values())
"""So many bytes of a datagram hold every fixed field of any type."""


def expected_bytes(rows: NDArray[np.uint8], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Computes how long each datagram should be, by its own fields.

    Args:
        rows: ``uint8[n, >= PREFIX_BYTES]``, the first bytes of each datagram, zero where it is shorter.
        lengths: ``int64[n]``, bytes that there are.  Nothing beyond them is looked at.

    Returns:
        ``int64[n]``: UDP payload bytes; ``lengths`` itself where a datagram runs to its end whatever its length (ABORT); -1 where
        the fields cannot be read or contradict each other (unknown type, an offset beyond the message, a body cut short).
    """
    header = HEADER.decode(rows)
    kind = header["type"]
    out = np.full(len(rows), -1, np.int64)
    readable = lengths >= HEADER_BYTES
    for member, body in BODIES.items():
        here = np.flatnonzero(readable & (kind == member) & (lengths >= HEADER_BYTES + body.size))
        if here.size:
            out[here] = HEADER_BYTES + body.size + _tail_bytes(body, rows[here], lengths[here])
    return out


def _tail_bytes(body: Body, rows: NDArray[np.uint8], lengths: NDArray[np.int64]) -> Any:
    fixed = HEADER_BYTES + body.size
    if body.tail is Tail.PAYLOAD:
        header = HEADER.decode(rows)
        left = header["length"].astype(np.int64) - header["offset"].astype(np.int64)
        whole = np.minimum(left, header["stride"].astype(np.int64))
        return np.where(left < 0, -1 - fixed, np.where(header["trimmed"] == 1, 0, whole))
    if body.layout is None:
        return 0
    fields = body.layout.decode(rows[:, HEADER_BYTES:])
    if body.tail is Tail.BITMAP:
        return (fields["packets"].astype(np.int64) + 7) // 8
    if body.tail is Tail.PADDING:
        datagram = fields["datagram"].astype(np.int64)
        return np.where(datagram < fixed, -1, datagram) - fixed
    if body.tail is Tail.TEXT:
        return lengths - fixed
    return 0
