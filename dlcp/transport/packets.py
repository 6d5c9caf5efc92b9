"""What crosses the border between the sans-IO core and a socket: batches of datagrams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dlcp.compiler.raw import address_of
from dlcp.wire.header import HEADER_BYTES


@dataclass(slots=True)
class Frames:
    """Received datagrams, one a row.

    Attributes:
        data: ``uint8[n, pitch]``; a view of the receive buffer, valid only during the call that hands it over.
        lengths: ``int64[n]``, valid bytes of each row.
        ecn: ``uint8[n]``, the two ECN bits of each datagram's IP header (0b11: congestion experienced).
        arrivals: ``int64[n]`` or ``int64[1]``, when they reached this host, each or all of them, in nanoseconds of the receiver's
            clock; valid as long as ``data`` is.  None: nobody knows, and they count as just come.
    """

    data: NDArray[np.uint8]
    lengths: NDArray[np.int64]
    ecn: NDArray[np.uint8]
    arrivals: NDArray[np.int64] | None = None
    _place: tuple[int, ...] | None = None

    @property
    def place(self) -> tuple[int, ...]:
        """What :mod:`dlcp.transport.intake_layout` wants to know of a frame (``F_``)."""
        if self._place is None:
            data, lengths, ecn = self.data, self.lengths, self.ecn
            rows, width = data.shape
            if data.strides[1] != 1 or data.dtype != np.uint8:
                data = self.data = np.ascontiguousarray(data, np.uint8)
            if lengths.dtype != np.int64 or ecn.dtype != np.uint8 or not (lengths.flags.c_contiguous and ecn.flags.c_contiguous):
                self.lengths, self.ecn = lengths, ecn = (
                    np.ascontiguousarray(lengths, np.int64),
                    np.ascontiguousarray(ecn, np.uint8),
                )
            if len(lengths) != rows or len(ecn) != rows:
                raise ValueError(f"{rows} rows, {len(lengths)} lengths, {len(ecn)} ECN fields")
            came, came_pitch = 0, 0
            if self.arrivals is not None:
                if self.arrivals.dtype != np.int64 or len(self.arrivals) not in (1, rows):
                    raise ValueError(f"{rows} rows, {len(self.arrivals)} arrival times of {self.arrivals.dtype}")
                came, came_pitch = address_of(self.arrivals), 0 if len(self.arrivals) < rows else self.arrivals.strides[0]
            self._place = (
                address_of(data),
                data.strides[0],
                width,
                rows,
                address_of(lengths),
                address_of(ecn),
                came,
                came_pitch,
            )
        return self._place


@dataclass(slots=True)
class Burst:
    """Datagrams to one peer with one ToS.

    Every datagram is ``headers[i]`` followed by ``payload[offsets[i] : offsets[i] + sizes[i]]``.  All have the same size but the
    last, which may be smaller: what UDP segmentation offload asks for.  A control packet is one row with no payload.

    Attributes:
        peer: Rank of the receiver.
        tos: Value of the IP ToS byte: DSCP << 2 | ECN.
        headers: ``uint8[n, m]``, C-contiguous; m is 48 for data.
        payload: ``uint8[...]`` of the whole message, or None.
        offsets: ``int64[n]``.
        sizes: ``int64[n]``.
    """

    peer: int
    tos: int
    headers: NDArray[np.uint8]
    payload: NDArray[np.uint8] | None
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.headers)

    @property
    def place(self) -> tuple[int, ...]:
        """What :mod:`dlcp.udp.describe_layout` wants to know of a burst (``B_``), but for the address.

        Raises:
            ValueError: Headers or payload are not contiguous bytes.
        """
        headers, payload = self.headers, self.payload
        if not headers.flags.c_contiguous:
            raise ValueError("the headers of a burst must be C-contiguous")
        if payload is not None and (payload.itemsize != 1 or not payload.flags.c_contiguous):
            raise ValueError("the payload of a burst must be contiguous bytes")
        self.offsets = offsets = np.ascontiguousarray(self.offsets, np.int64)
        self.sizes = sizes = np.ascontiguousarray(self.sizes, np.int64)
        count, width = headers.shape
        if len(offsets) < count or len(sizes) < count:
            raise ValueError(f"a burst has {count} headers, {len(offsets)} offsets, {len(sizes)} sizes")
        base, room = (0, 0) if payload is None else (address_of(payload), payload.size)
        return (self.tos, count, 0, address_of(headers), width, base, room, address_of(offsets), address_of(sizes), 0, 0, 0, 0)

    @property
    def most_bytes(self) -> int:
        """UDP payload bytes of the whole burst, if its last datagram is as long as the first."""
        return len(self.headers) * (self.headers.shape[1] + int(self.sizes[0])) if len(self.headers) else 0

    def datagrams(self) -> list[bytes]:
        """Copies the datagrams out one by one; for tests and for sockets that take only one at a time."""
        if self.payload is None:
            return [row.tobytes() for row in self.headers]
        payload = self.payload
        return [
            row.tobytes() + payload[start : start + size].tobytes()
            for row, start, size in zip(self.headers, self.offsets.tolist(), self.sizes.tolist(), strict=True)
        ]

    @property
    def wire_bytes(self) -> int:
        """UDP payload bytes of the whole burst."""
        return self.headers.size + int(self.sizes.sum())


_NOTHING: Final = np.zeros(1, np.int64)
_NOWHERE: Final = address_of(_NOTHING)


class ControlBurst(Burst):
    """One control packet, which is all header."""

    __slots__ = ()

    def __init__(self, peer: int, tos: int, packet: NDArray[np.uint8]) -> None:
        assert packet.size >= HEADER_BYTES
        self.peer = peer
        self.tos = tos
        self.headers = packet.reshape(1, -1)
        self.payload = None
        self.offsets = self.sizes = _NOTHING

    def __len__(self) -> int:
        return 1

    @property
    def place(self) -> tuple[int, ...]:
        """See :attr:`Burst.place`."""
        headers = self.headers
        return (self.tos, 1, 0, address_of(headers), headers.size, 0, 0, _NOWHERE, _NOWHERE, 0, 0, 0, 0)

    @property
    def most_bytes(self) -> int:
        """See :attr:`Burst.most_bytes`."""
        return self.headers.size


def control_burst(peer: int, tos: int, packet: NDArray[np.uint8]) -> Burst:
    """Wraps one control packet, ``uint8[m]``."""
    return ControlBurst(peer, tos, packet)
