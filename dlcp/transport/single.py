"""Small batches, taken datagram by datagram.

On a slow or busy link datagrams come one at a time, and array operations cost a microsecond each however short the array.  This
is :mod:`dlcp.transport.screening` and the sorting of :mod:`dlcp.transport.arrivals` in plain integers, with the same verdicts.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlcp.transport.packets import Frames
from dlcp.transport.screening import Identity
from dlcp.wire.codec import header_ok
from dlcp.wire.header import HEADER, HEADER_BYTES, VERSION, PacketType

FEW: Final = 8
"""So many datagrams are handled faster one by one."""

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
_TYPES: Final = len(PacketType)
_TRIMMED_BIT: Final = 1 << HEADER.slots["trimmed"].shift
_PROTECTED_BIT: Final = 1 << HEADER.slots["protected"].shift
_RETRANSMISSION_BIT: Final = 1 << HEADER.slots["retransmission"].shift
_PRIORITY_SHIFT: Final = HEADER.slots["priority"].shift


class Datagram(NamedTuple):
    """A datagram that passed the gate.

    Attributes:
        kind: Its :class:`~dlcp.wire.header.PacketType`.
        flags: The header byte that holds class, protection, trimming and retransmission.
        source: Sender.
        message: 64-bit message id.
        length, offset, sequence, timestamp, stride, bound, protected_packets, queue_depth: As the header says.
        ecn: The two ECN bits.
        body: ``uint8[n]``, what follows the header; a view of the receive buffer.
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
    queue_depth: int
    ecn: int
    body: NDArray[np.uint8]

    @property
    def described(self) -> tuple[int, int, int, int]:
        """Length, stride, bound and protected count."""
        return self.length, self.stride, self.bound, self.protected_packets

    @property
    def priority(self) -> int:
        """Class."""
        return self.flags >> _PRIORITY_SHIFT

    @property
    def protected(self) -> bool:
        """A switch must not drop it selectively."""
        return bool(self.flags & _PROTECTED_BIT)

    @property
    def again(self) -> bool:
        """It is a retransmission."""
        return bool(self.flags & _RETRANSMISSION_BIT)


def sort_out(frames: list[Frames], identity: Identity, counters: Counter[str]) -> list[Datagram] | None:
    """Sorts out what is not ours.

    Args:
        frames: As they came from the socket.
        identity: Own rank, world size and cookie.
        counters: Verdicts are counted here, as :func:`~dlcp.transport.screening.screen` does.

    Returns:
        What passed, in order of arrival; or None, and nothing is counted, if a data packet is trimmed or malformed: such batches
        are rare, and are taken by the other way.
    """
    passed: list[Datagram] = []
    refused: list[str] = []
    rank, world, cookie = identity.rank, identity.world, identity.cookie
    for data, row, size, ecn in _rows(frames):
        if size < HEADER_BYTES:
            refused.append("truncated")
            continue
        raw = data[row, :HEADER_BYTES].tobytes()
        (
            first,
            flags,
            _,
            source,
            destination,
            told,
            message,
            length,
            offset,
            sequence,
            timestamp,
            stride,
            bound,
            protected_packets,
            depth,
        ) = _FIELDS.unpack(raw)
        kind = first & 0x0F
        if first >> 4 != VERSION or kind >= _TYPES:
            refused.append("version")
        elif told != cookie:
            refused.append("foreign")
        elif not header_ok(raw):
            refused.append("check")
        elif destination != rank or source >= world or source == rank:
            refused.append("misaddressed")
        else:
            if not kind and (
                flags & _TRIMMED_BIT
                or not stride
                or offset % stride
                or size - HEADER_BYTES != min(stride, length - offset)
                or (offset >= length and length)
            ):
                return None
            passed.append(
                Datagram(
                    kind,
                    flags,
                    source,
                    message,
                    length,
                    offset,
                    sequence,
                    timestamp,
                    stride,
                    bound,
                    protected_packets,
                    depth,
                    ecn,
                    data[row, HEADER_BYTES:size],
                )
            )
    for verdict in refused:
        counters[verdict] += 1
    return passed


def datagram(frame: Frames, row: int) -> Datagram:
    """Reads the datagram in a row that has passed the gate."""
    first, flags, _, source, _, _, *numbers = _FIELDS.unpack(frame.data[row, :HEADER_BYTES].tobytes())
    body = frame.data[row, HEADER_BYTES : int(frame.lengths[row])]
    return Datagram._make((first & 0x0F, flags, source, *numbers, int(frame.ecn[row]), body))


def _rows(frames: Iterable[Frames]) -> Iterator[tuple[NDArray[np.uint8], int, int, int]]:
    for frame in frames:
        width = frame.data.shape[1]
        for row, (size, ecn) in enumerate(zip(frame.lengths.tolist(), frame.ecn.tolist(), strict=True)):
            yield frame.data, row, min(size, width) if width < HEADER_BYTES else size, ecn


def _fits() -> bool:
    offset = 0
    for word, code in zip(_WORDS, _FIELDS.format.lstrip(">"), strict=True):
        slots = [slot for slot in HEADER.slots.values() if slot.word == word]
        if not slots or slots[0].byte != offset:
            return False
        offset += struct.calcsize(f">{code}")
    return offset == HEADER_BYTES == _FIELDS.size


assert _fits(), "the header has changed: change the fields here, too"
