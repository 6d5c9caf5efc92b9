"""From the kernel to frames: receive offload, ``recvmmsg``, or one call a datagram.

All paths fill the same slots of one buffer that is allocated once.  Nothing is copied: :class:`Frames` are views of the slots.

* Without receive offload a slot holds one datagram, and all that came make one ``Frames``.
* With it a slot holds one datagram, or many of equal length but the last; such a slot is a ``Frames`` of its own, a run of slots
  with single datagrams is one together.  The views of a slot depend only on how it is filled, and senders fill slots alike, so
  they are kept and reused: in a steady stream a slot costs one dictionary lookup.
"""

from __future__ import annotations

import errno
import socket
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dlcp.transport.packets import Frames
from dlcp.udp.metrics import PortCounters
from dlcp.udp.probe import Capabilities
from dlcp.udp.syscalls import (
    CMSG,
    CMSG_HEADER,
    CMSG_SPACE,
    IOVEC,
    MMSGHDR,
    MSG_TRUNC,
    SOL_UDP,
    UDP_GRO,
    address_of,
    recvmmsg,
    tos_option,
)

MAX_DATAGRAM: Final = 65535
"""No UDP payload is longer, aggregated or not."""

_BLOCKED: Final = (errno.EAGAIN, errno.EWOULDBLOCK)
_LINE: Final = 64
_KNOWN: Final = 4096
_BATCH_BYTES: Final = 1 << 20


def _pitch(size: int) -> int:
    """Rounds up to an odd number of cache lines: with a power of two all slots would share the same few sets of the caches."""
    lines = -(-size // _LINE)
    return (lines | 1) * _LINE


class Receiver:
    """Receives batches of datagrams from one socket.

    Args:
        sock: Non-blocking; offload and ToS are already switched on.
        family: Address family.
        capabilities: What to use.
        datagram_bytes: UDP payload bytes of the longest datagram expected; longer ones are dropped and counted.
        counters: Where to count.
    """

    def __init__(
        self, sock: socket.socket, family: int, capabilities: Capabilities, datagram_bytes: int, counters: PortCounters
    ) -> None:
        self._socket = sock
        self._descriptor = sock.fileno()
        self._counters = counters
        self._offload = capabilities.receive_offload
        self._tos = capabilities.recv_tos
        self._room = MAX_DATAGRAM if self._offload else min(datagram_bytes, MAX_DATAGRAM)
        # The last row of an aggregated slot is as wide as the others though it may hold a single byte, so the view can reach
        # beyond the bytes received by almost one row, and two rows are enough to aggregate.  One byte more shows truncation.
        self._pitch = _pitch(2 * self._room if self._offload else self._room + 1)
        self.slots = 32 if self._offload else max(64, min(512, _BATCH_BYTES // self._pitch))
        self._buffer = np.zeros((self.slots, self._pitch), np.uint8)
        self._rows = list(self._buffer)
        self._lengths = np.zeros(self.slots, np.int64)
        self._known: dict[tuple[int, int, bytes], Frames] = {}
        self._tos_kind = tos_option(family)
        self._tos_type: type[np.uint8] | type[np.int32] = np.int32 if family == socket.AF_INET6 else np.uint8
        self._batched = capabilities.recvmmsg
        self._cells = int(self._offload) + int(self._tos)
        self._control = np.zeros((self.slots, max(self._cells, 1)), CMSG)
        self._control_bytes = self._cells * CMSG_SPACE
        self._control_stride = self._control.strides[0]
        if self._batched:
            self._describe()

    def close(self) -> None:
        """Forgets the descriptor, whose number the process may give to another file."""
        self._descriptor = -1

    def _describe(self) -> None:
        self._iov = np.zeros(self.slots, IOVEC)
        slots = np.arange(self.slots, dtype=np.uintp)
        self._iov["base"] = address_of(self._buffer) + slots * np.uintp(self._pitch)
        self._iov["length"] = self._room
        self._headers = np.zeros(self.slots, MMSGHDR)
        self._headers["iov"] = address_of(self._iov) + slots * np.uintp(IOVEC.itemsize)
        self._headers["iov_length"] = 1
        if self._cells:
            self._headers["control"] = address_of(self._control) + slots * np.uintp(self._control_stride)
        self._control_lengths = self._headers["control_length"]
        self._control_lengths[:] = self._control_bytes
        self._flags = self._headers["flags"]
        self._message_lengths = self._headers["length"]
        self._address = address_of(self._headers)

    def receive(self) -> list[Frames]:
        """Receives at most :attr:`slots` messages.  See :meth:`dlcp.udp.port.DatagramPort.receive`."""
        count = self._fill_batch() if self._batched else self._fill_plain()
        if count <= 0:
            return []
        counters = self._counters
        counters.bytes_received += int(self._lengths[:count].sum())
        if self._offload:
            frames = self._split(count)
        else:
            counters.packets_received += count
            frames = [Frames(self._buffer[:count], self._lengths[:count].copy(), self._ecn(count))]
        self._control[:count] = 0
        return frames

    def _fill_batch(self) -> int:
        counters = self._counters
        got = recvmmsg(self._descriptor, self._address, self.slots)
        counters.receive_calls += 1
        if got <= 0:
            # A report of an earlier datagram that could not be delivered is no datagram.
            counters.receive_errors += -got not in _BLOCKED
            return 0
        self._lengths[:got] = self._message_lengths[:got]
        self._control_lengths[:got] = self._control_bytes
        truncated = self._flags[:got] & MSG_TRUNC
        if truncated.any():
            counters.receive_truncated += int(np.count_nonzero(truncated))
            # A length of zero is shorter than any header: whoever reads the frames drops it.
            self._lengths[:got][truncated != 0] = 0
        return got

    def _fill_plain(self) -> int:
        counters = self._counters
        count = 0
        control: list[tuple[int, int, bytes]] = []
        flags = 0
        while count < self.slots:
            room = memoryview(self._rows[count])[: self._room]  # type: ignore[arg-type]
            counters.receive_calls += 1
            try:
                if self._cells:
                    size, control, flags, _ = self._socket.recvmsg_into([room], self._control_bytes)
                else:
                    # Without recvmsg truncation does not show, so there is one byte more than any datagram needs.
                    size = self._socket.recv_into(self._rows[count][: self._room + 1])  # type: ignore[arg-type]
                    flags = MSG_TRUNC if size > self._room else 0
            except OSError as problem:
                if problem.errno not in _BLOCKED:
                    counters.receive_errors += 1
                break
            if flags & MSG_TRUNC:
                counters.receive_truncated += 1
                size = 0
            self._lengths[count] = size
            for cell, (level, kind, value) in enumerate(control[: self._cells]):
                entry = self._control[count, cell : cell + 1]
                entry["level"], entry["type"] = level, kind
                entry.view(np.uint8)[CMSG_HEADER : CMSG_HEADER + len(value)] = np.frombuffer(value, np.uint8)
            count += 1
        return count

    def _ecn(self, count: int) -> NDArray[np.uint8]:
        """Reads the ECN bits where the ToS is the only control message there can be; cells without one are zero."""
        if not self._tos:
            return np.zeros(count, np.uint8)
        name = "byte" if self._tos_type is np.uint8 else "int"
        return (self._control[name][:count, 0] & 3).astype(np.uint8)

    def _parse(self, control: bytes) -> tuple[int, int]:
        """Reads (bytes of a segment, 0 if not aggregated; ECN) from the control messages of one slot."""
        segment = ecn = 0
        for start in range(0, self._control_bytes, CMSG_SPACE):
            cell = np.frombuffer(control, CMSG, 1, start)[0]
            kind = (int(cell["level"]), int(cell["type"]))
            if kind == (SOL_UDP, UDP_GRO):
                segment = int(cell["int"])
            elif kind == self._tos_kind:
                ecn = int(cell["byte" if self._tos_type is np.uint8 else "int"]) & 3
        return segment, ecn

    def _split(self, count: int) -> list[Frames]:
        """Turns ``count`` filled slots, any of which may be aggregated, into frames."""
        lengths = self._lengths[:count].tolist()
        raw = self._control[:count].tobytes()
        stride = self._control_stride
        known = self._known
        result: list[Frames] = []
        packets = 0
        batches = 0
        first_single = -1
        singles: list[NDArray[np.uint8]] = []
        for slot, length in enumerate(lengths):
            key = (slot, length, raw[slot * stride : (slot + 1) * stride])
            frames = known.get(key)
            if frames is None:
                frames = self._view(*key)
            rows = len(frames.lengths)
            packets += rows
            if rows == 1:
                if first_single < 0:
                    first_single = slot
                singles.append(frames.ecn)
                continue
            if first_single >= 0:
                result.append(self._run(first_single, singles))
                first_single, singles = -1, []
            batches += 1
            result.append(frames)
        if first_single >= 0:
            result.append(self._run(first_single, singles))
        self._counters.packets_received += packets
        self._counters.batches_received += batches
        return result

    def _run(self, first: int, singles: list[NDArray[np.uint8]]) -> Frames:
        stop = first + len(singles)
        return Frames(self._buffer[first:stop], self._lengths[first:stop].copy(), np.concatenate(singles))

    def _view(self, slot: int, length: int, control: bytes) -> Frames:
        segment, ecn = self._parse(control)
        if not 0 < segment < length:
            segment = max(length, 1)
        rows = max(1, -(-length // segment))
        lengths = np.full(rows, segment, np.int64)
        lengths[-1] = length - (rows - 1) * segment
        data = self._rows[slot][: rows * segment].reshape(rows, segment)
        frames = Frames(data, lengths, np.full(rows, ecn, np.uint8))
        # These are handed out again and again.
        frames.lengths.setflags(write=False)
        frames.ecn.setflags(write=False)
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known[slot, length, control] = frames
        return frames
