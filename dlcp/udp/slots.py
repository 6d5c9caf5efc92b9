"""The memory that received datagrams land in, and the two ways to fill it."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dlcp.compiler.raw import address_of
from dlcp.udp.metrics import PortCounters
from dlcp.udp.syscalls import CMSG, CMSG_HEADER, CMSG_SPACE, IOVEC, MMSGHDR, STAMP_BYTES, recvmmsg

_BLOCKED: Final = (errno.EAGAIN, errno.EWOULDBLOCK)
_LINE: Final = 64


def _pitch(size: int) -> int:
    """Rounds up to an odd number of cache lines: with a power of two all slots would share the same few sets of the caches."""
    lines = -(-size // _LINE)
    return (lines | 1) * _LINE


class Slots:
    """A number of equal slots, each for one message of the kernel's interface, allocated once.

    Args:
        count: Number of slots.
        room: Bytes that a message may fill of its slot.
        width: Bytes of a slot, at least ``room``.
        cells: Control messages that may come with each message.
        overflow: Bytes beyond ``room`` that a message may have; they land in a second array, whose memory is not touched before.
        stamped: The kernel tells when each message came; only :meth:`fill` takes that.

    Attributes:
        buffer: ``uint8[count, pitch]``.
        rows: Its rows.
        spill: ``uint8[count, overflow]``, what did not fit into the slots.
        lengths: ``int64[count]``, bytes of the messages received.
        arrivals: ``int64[count]``, when they reached this host, in nanoseconds of a monotonic clock; None if that is not told.
        control: ``CMSG[count, max(cells, 1)]``, their control messages; zero where there is none.
        types: ``int32[count, max(cells, 1)]``, the types of those.
        ints, octets: ``int32[count]``, ``uint8[count]``, the value of the first, read as the one or the other.
    """

    def __init__(self, count: int, room: int, width: int, cells: int, overflow: int = 0, *, stamped: bool = False) -> None:
        self.count = count
        self.room = room
        self.overflow = overflow
        self.buffer = np.zeros((count, _pitch(width)), np.uint8)
        self.rows = list(self.buffer)
        self.spill = np.zeros((count, overflow), np.uint8)
        self.lengths = np.zeros(count, np.int64)
        self.cells = cells
        # The kernel writes the time first.
        stamp = STAMP_BYTES if stamped else 0
        self._raw = np.zeros((count, stamp + max(cells, 1) * CMSG_SPACE), np.uint8)
        self.control = self._raw[:, stamp:].view(CMSG)
        self.arrivals = np.zeros(count, np.int64) if stamped else None
        self._stamps = self._raw[:, CMSG_HEADER:stamp].view(np.int64) if stamped else None
        # Fields of a record array are looked up once: in a stream of single datagrams that would cost more than the call.
        self.types = self.control["type"]
        self.ints, self.octets = self.control["int"][:, 0], self.control["byte"][:, 0]
        self._cell_words = self._raw[:, stamp:].view(np.uintp)
        self.control_bytes = cells * CMSG_SPACE
        self._all_control_bytes = stamp + self.control_bytes
        self._describe()

    def _describe(self) -> None:
        slots = np.arange(self.count, dtype=np.uintp)
        pieces = 2 if self.overflow else 1
        self._iov = np.zeros((self.count, pieces), IOVEC)
        self._iov["base"][:, 0] = address_of(self.buffer) + slots * np.uintp(self.buffer.strides[0])
        self._iov["length"][:, 0] = self.room
        if self.overflow:
            self._iov["base"][:, 1] = address_of(self.spill) + slots * np.uintp(self.overflow)
            self._iov["length"][:, 1] = self.overflow
        self._messages = np.zeros(self.count, MMSGHDR)
        self._messages["iov"] = address_of(self._iov) + slots * np.uintp(self._iov.strides[0])
        self._messages["iov_length"] = pieces
        if self._all_control_bytes:
            self._messages["control"] = address_of(self._raw) + slots * np.uintp(self._raw.strides[0])
        self._control_lengths = self._messages["control_length"]
        self._control_lengths[:] = self._all_control_bytes
        self._message_lengths = self._messages["length"]
        self._address = address_of(self._messages)

    def fill(self, descriptor: int, wanted: int, counters: PortCounters, clock: Callable[[], int]) -> int:
        """Receives up to ``wanted`` messages in one ``recvmmsg``; returns how many.  ``clock``: monotonic nanoseconds."""
        got = recvmmsg(descriptor, self._address, wanted)
        counters.receive_calls += 1
        if got <= 0:
            # A report of an earlier datagram that could not be delivered is no datagram.
            counters.receive_errors += -got not in _BLOCKED
            return 0
        self.lengths[:got] = self._message_lengths[:got]
        self._control_lengths[:got] = self._all_control_bytes
        if self._stamps is not None and self.arrivals is not None:
            stamps, arrivals = self._stamps[:got], self.arrivals[:got]
            np.multiply(stamps[:, 0], 1_000_000_000, out=arrivals)
            arrivals += stamps[:, 1]
            # The wall clock first: should the thread be kept from running in between, no datagram comes before it was sent.
            wall = time.time_ns()
            arrivals += clock() - wall
        return got

    def clear_control(self, count: int) -> None:
        """Forgets the control messages of the first ``count`` slots."""
        self._cell_words[:count] = 0

    def fill_one_by_one(self, sock: socket.socket, wanted: int, counters: PortCounters) -> int:
        """Receives up to ``wanted`` messages, each with a call of Python's ``socket``; returns how many."""
        count = 0
        control: list[tuple[int, int, bytes]] = []
        while count < wanted:
            counters.receive_calls += 1
            row: Any = self.rows[count]
            try:
                if self.cells or self.overflow:
                    pieces: list[Any] = [row[: self.room], self.spill[count]]
                    size, control, _, _ = sock.recvmsg_into(pieces, self.control_bytes)
                else:
                    size = sock.recv_into(row[: self.room])
            except OSError as problem:
                if problem.errno not in _BLOCKED:
                    counters.receive_errors += 1
                break
            self.lengths[count] = size
            for cell, (level, kind, value) in enumerate(control[: self.cells]):
                entry = self.control[count, cell : cell + 1]
                entry["level"], entry["type"] = level, kind
                entry.view(np.uint8)[CMSG_HEADER : CMSG_HEADER + len(value)] = np.frombuffer(value, np.uint8)
            count += 1
        return count

    def whole(self, slot: int, size: int) -> NDArray[np.uint8]:
        """Copies a slot and what spilled out of it together into ``uint8[size]``, zero behind the message."""
        length = int(self.lengths[slot])
        data = np.zeros(size, np.uint8)
        inside = min(length, self.room)
        data[:inside] = self.rows[slot][:inside]
        data[inside:length] = self.spill[slot][: length - inside]
        return data
