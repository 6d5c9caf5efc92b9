"""From the kernel to frames: receive offload, ``recvmmsg``, or one call a datagram.

All ways fill slots that are allocated once, and :class:`Frames` are views of the slots.

* Where nothing is aggregated a slot holds one datagram, and all that came make one ``Frames``.
* With receive offload a slot may hold many datagrams of equal length but the last; such a slot is a ``Frames`` of its own, a run
  of slots with single datagrams is one together.  The views of a slot depend only on how it is filled, and senders fill slots
  alike, so they are kept and reused: in a steady stream a slot costs one dictionary lookup.

Whether the kernel aggregates is a matter of the path: it does on the loopback and behind many network cards, not behind a bridge.
Slots of 64 KB for single datagrams are hard on caches and address translation.  So as long as nothing is aggregated the receiver
uses dense slots.  What is longer than such a slot, an aggregate or an unexpectedly long datagram, spills into a second array and
is put together by a copy; then the slots are changed.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dlcp.transport.packets import Frames
from dlcp.udp.metrics import PortCounters
from dlcp.udp.probe import Capabilities
from dlcp.udp.slots import Slots
from dlcp.udp.syscalls import CMSG, CMSG_SPACE, SOL_UDP, UDP_GRO, tos_option

MAX_DATAGRAM: Final = 65535
"""No UDP payload is longer, aggregated or not."""

_KNOWN: Final = 4096
_BATCH_BYTES: Final = 1 << 20
_AGGREGATES: Final = 32
_SINGLES: Final = 64
_SPILLING: Final = 128
_DENSE_BYTES: Final = 16384
"""Longest datagrams that dense slots are worth while for."""
_PATIENCE: Final = 64
"""Single datagrams in a row after which the path is taken not to aggregate."""


class Receiver:
    """Receives batches of datagrams from one socket.

    Args:
        sock: Non-blocking; offload and ToS are already switched on.
        family: Address family.
        capabilities: What to use.
        datagram_bytes: UDP payload bytes of the longest datagram expected; longer ones are received too, at the cost of a copy.
        counters: Where to count.
        clock: Monotonic nanoseconds, in which arrival times are told.
    """

    def __init__(
        self,
        sock: socket.socket,
        family: int,
        capabilities: Capabilities,
        datagram_bytes: int,
        counters: PortCounters,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._clock = clock
        self._stamped = capabilities.arrival_times and capabilities.recvmmsg
        self._socket = sock
        self._descriptor = sock.fileno()
        self._counters = counters
        self._offload = capabilities.receive_offload
        self._tos = capabilities.recv_tos
        self._tos_kind = tos_option(family)
        self._tos_name = "int" if family == socket.AF_INET6 else "byte"
        self._batched = capabilities.recvmmsg
        self._cells = int(self._offload) + int(self._tos)
        self._wide: Slots | None = None
        self._dense: Slots | None = None
        if not self._batched and not self._cells:
            # recv_into() takes one buffer only.
            self._slots = Slots(_SINGLES, MAX_DATAGRAM, MAX_DATAGRAM, 0)
        elif not self._offload:
            self._slots = self._make_dense(datagram_bytes)
        else:
            # The last row of an aggregate is as wide as the others though it may hold a single byte, so a view can reach beyond
            # the bytes received by almost one row, and two rows are enough to aggregate.
            self._slots = self._wide = Slots(_SINGLES, MAX_DATAGRAM, 2 * MAX_DATAGRAM, self._cells, stamped=self._stamped)
            if datagram_bytes <= _DENSE_BYTES:
                self._dense = self._make_dense(datagram_bytes)
        self._wanted = self._slots.count
        self._singles = 0
        self._known: dict[tuple[int, int, bytes], Frames] = {}

    def _make_dense(self, room: int) -> Slots:
        room = max(1, min(room, MAX_DATAGRAM))
        count = max(64, min(512, _BATCH_BYTES // room))
        count = min(count, _SPILLING) if self._offload else count
        return Slots(count, room, room, self._cells, MAX_DATAGRAM - room, stamped=self._stamped)

    def close(self) -> None:
        """Forgets the descriptor, whose number the process may give to another file."""
        self._descriptor = -1

    def receive(self) -> list[Frames]:
        """Receives at most one batch of messages.  See :meth:`dlcp.udp.port.DatagramPort.receive`."""
        slots, counters = self._slots, self._counters
        if self._batched:
            count = slots.fill(self._descriptor, self._wanted, counters, self._clock)
        else:
            count = slots.fill_one_by_one(self._socket, self._wanted, counters)
        if not count:
            return []
        lengths = slots.lengths[:count].tolist()
        aggregated = self._offload and bool((slots.types[:count] == UDP_GRO).any())
        spilled = slots.overflow > 0 and max(lengths) > slots.room
        counters.bytes_received += sum(lengths)
        if aggregated or spilled:
            frames = self._split(slots, count)
        else:
            counters.packets_received += count
            # Where nothing is aggregated the ToS is the only control message there can be.
            ecn = (self._toses(slots)[:count] & 3).astype(np.uint8) if self._tos else np.zeros(count, np.uint8)
            arrivals = None if slots.arrivals is None else slots.arrivals[:count]
            frames = [Frames(slots.buffer[:count], slots.lengths[:count].copy(), ecn, arrivals)]
        slots.clear_control(count)
        if self._wide is not None:
            self._adapt(self._wide, aggregated, spilled, count)
        elif spilled:
            # The frames handed out keep the old slots alive.
            self._slots = self._make_dense(_DENSE_BYTES if slots.room < _DENSE_BYTES else MAX_DATAGRAM)
            self._wanted = self._slots.count
        return frames

    def _toses(self, slots: Slots) -> NDArray[Any]:
        return slots.ints if self._tos_name == "int" else slots.octets

    def _adapt(self, wide: Slots, aggregated: bool, spilled: bool, count: int) -> None:
        if aggregated or spilled:
            if not aggregated:
                # Single datagrams longer than expected.
                self._dense = None
            self._singles = 0
            # Full slots of 64 KB: fewer of them stay in the processor's cache until they are read.
            self._slots, self._wanted = wide, _AGGREGATES
            return
        self._singles += count
        if self._dense is not None and self._singles >= _PATIENCE:
            self._slots = self._dense
        self._wanted = self._slots.count

    def _parse(self, control: bytes) -> tuple[int, int]:
        """Reads (bytes of a segment, 0 if not aggregated; ECN) from the control messages of one slot."""
        segment = ecn = 0
        for start in range(0, len(control) - CMSG_SPACE + 1, CMSG_SPACE):
            cell = np.frombuffer(control, CMSG, 1, start)[0]
            kind = (int(cell["level"]), int(cell["type"]))
            if kind == (SOL_UDP, UDP_GRO):
                segment = int(cell["int"])
            elif kind == self._tos_kind:
                ecn = int(cell[self._tos_name]) & 3
        return segment, ecn

    def _split(self, slots: Slots, count: int) -> list[Frames]:
        """Turns ``count`` filled slots, some of them aggregated, into frames."""
        raw = slots.control[:count].tobytes()
        stride = slots.control.shape[1] * CMSG_SPACE
        known = self._known
        keep = slots is self._wide
        result: list[Frames] = []
        packets = batches = 0
        first = -1
        singles: list[NDArray[np.uint8]] = []
        for slot, length in enumerate(slots.lengths[:count].tolist()):
            key = (slot, length, raw[slot * stride : (slot + 1) * stride])
            frames = known.get(key) if keep else None
            if frames is None:
                frames = self._view(slots, *key)
                if keep:
                    if len(known) >= _KNOWN:
                        known.clear()
                    known[key] = frames
            rows = len(frames.lengths)
            packets += rows
            if rows == 1 and length <= slots.room:
                if first < 0:
                    first = slot
                singles.append(frames.ecn)
                continue
            if first >= 0:
                result.append(_run(slots, first, singles))
                first, singles = -1, []
            batches += rows > 1
            result.append(frames)
        if first >= 0:
            result.append(_run(slots, first, singles))
        self._counters.packets_received += packets
        self._counters.batches_received += batches
        return result

    def _view(self, slots: Slots, slot: int, length: int, control: bytes) -> Frames:
        segment, ecn = self._parse(control)
        if not 0 < segment < length:
            segment = max(length, 1)
        rows = max(1, -(-length // segment))
        lengths = np.full(rows, segment, np.int64)
        lengths[-1] = length - (rows - 1) * segment
        flat = slots.whole(slot, rows * segment) if slots.overflow else slots.rows[slot]
        arrival = None if slots.arrivals is None else slots.arrivals[slot : slot + 1]
        frames = Frames(flat[: rows * segment].reshape(rows, segment), lengths, np.full(rows, ecn, np.uint8), arrival)
        # These are handed out again and again.
        frames.lengths.setflags(write=False)
        frames.ecn.setflags(write=False)
        return frames


def _run(slots: Slots, first: int, singles: list[NDArray[np.uint8]]) -> Frames:
    """Makes one batch of consecutive slots with a single datagram each."""
    stop = first + len(singles)
    arrivals = None if slots.arrivals is None else slots.arrivals[first:stop]
    return Frames(slots.buffer[first:stop], slots.lengths[first:stop].copy(), np.concatenate(singles), arrivals)
