"""One datagram that passed the gate: control, and whatever is odd, one at a time."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlcp.transport.packets import Frames
from dlcp.wire.header import HEADER, HEADER_BYTES

_FIELDS: Final = struct.Struct(">BBHHHQQIIIIHHHH")
_WORDS: Final = (
    "version_type",
    "priority_protected_trimmed_retransmission_reserved",
    "check",
    "source",
    "destination",
    "cookie",
    "operation",
    "length",
    "offset",
    "sequence",
    "timestamp",
    "stride",
    "bound",
    "protected_packets",
    "queue_depth",
)
_TRIMMED_BIT: Final = 1 << HEADER.slots["trimmed"].shift
_PROTECTED_BIT: Final = 1 << HEADER.slots["protected"].shift
_RETRANSMISSION_BIT: Final = 1 << HEADER.slots["retransmission"].shift


class Datagram(NamedTuple):
    """A datagram that passed the gate.

    Attributes:
        kind: Its :class:`~dlcp.wire.header.PacketType`.
        flags: The header byte that holds class, protection, trimming and retransmission.
        source: Sender.
        message: 64-bit message id.
        length, offset, sequence, timestamp, stride, bound, protected_packets: As the header says.
        body: ``uint8[n]``, what follows the header; a view of the receive buffer.
        waited_us: How long it waited on this host before it was taken.
    """

    kind: int
    flags: int
    source: int
    message: int
    length: int
    offset: int
    sequence: int
    timestamp: int
    stride: int
    bound: int
    protected_packets: int
    body: NDArray[np.uint8]
    waited_us: int

    @property
    def described(self) -> tuple[int, int, int, int]:
        """Length, stride, bound and protected count."""
        return self.length, self.stride, self.bound, self.protected_packets

    @property
    def protected(self) -> bool:
        """A switch must not drop it selectively."""
        return bool(self.flags & _PROTECTED_BIT)

    @property
    def trimmed(self) -> bool:
        """A switch kept only its header."""
        return bool(self.flags & _TRIMMED_BIT)

    @property
    def again(self) -> bool:
        """It is a retransmission."""
        return bool(self.flags & _RETRANSMISSION_BIT)


def datagram(frame: Frames, row: int, waited_us: int = 0) -> Datagram:
    """Reads the datagram in a row that has passed the gate."""
    first, flags, _, source, _, _, *numbers, _ = _FIELDS.unpack(frame.data[row, :HEADER_BYTES].tobytes())
    body = frame.data[row, HEADER_BYTES : int(frame.lengths[row])]
    return Datagram._make((first & 0x0F, flags, source, *numbers, body, waited_us))


def _fits() -> bool:
    offset = 0
    for word, code in zip(_WORDS, _FIELDS.format.lstrip(">"), strict=True):
        slots = [slot for slot in HEADER.slots.values() if slot.word == word]
        if not slots or slots[0].byte != offset:
            return False
        offset += struct.calcsize(f">{code}")
    return offset == HEADER_BYTES == _FIELDS.size


assert _fits(), "the header has changed: change the fields here, too"
