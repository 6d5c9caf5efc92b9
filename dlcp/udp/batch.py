"""Sends whole batches of bursts in one ``sendmmsg``, with segmentation offload if the kernel has it.

The kernel's message headers, I/O vectors and control messages are preallocated arrays, and what never changes in them is written
once.  The bursts of a batch are laid end to end and described together, so a burst costs a few list entries and only the batch
costs array operations.  Headers (48 bytes a datagram) are copied into one array whose addresses are constant; payload never is.

With segmentation offload a message is a run of datagrams to one peer, with one ToS and one size, the last of which may be
shorter; it may reach over the border of two bursts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dlcp.compiler.raw import address_of
from dlcp.transport.packets import Burst
from dlcp.udp.send import BLOCKED, MAX_PAYLOAD, Sender
from dlcp.udp.syscalls import CMSG, CMSG_HEADER, CMSG_SPACE, MMSGHDR, SOL_UDP, UDP_SEGMENT, sendmmsg, tos_option
from dlcp.wire.header import HEADER_BYTES

_PACKETS: Final = 1024
"""Datagrams in one batch; ``sendmmsg`` takes at most 1024 messages."""

_FEW: Final = 8
"""So many messages are described faster one by one than by columns."""


_HANDFUL: Final = 4
"""So many datagrams are sent faster by calls of Python's ``socket``."""


class BatchSender(Sender):
    """Sends through ``sendmmsg``, with segmentation offload if the kernel has it; a handful of datagrams as its parent does."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        steps = np.arange(_PACKETS, dtype=np.uintp)
        self._copies = np.zeros((_PACKETS, HEADER_BYTES), np.uint8)
        self._sizes = np.zeros(_PACKETS, np.int64)
        self._offsets = np.zeros(_PACKETS, np.int64)
        self._scratch = np.zeros(_PACKETS, np.int64)
        # Two vectors for each datagram: address and length of its header, then of its payload.
        self._iov = np.zeros((_PACKETS, 4), np.uintp)
        self._iov[:, 0] = address_of(self._copies) + steps * np.uintp(HEADER_BYTES)
        self._iov[:, 1] = HEADER_BYTES
        self._usual = self._iov[:, :2].copy()
        self._iov_steps = address_of(self._iov) + steps * np.uintp(self._iov.strides[0])

        self._control = np.zeros((_PACKETS, 2), CMSG)
        for column, (length, level, kind) in enumerate([(4, *tos_option(self._family)), (2, SOL_UDP, UDP_SEGMENT)]):
            self._control["length"][:, column] = CMSG_HEADER + length
            self._control["level"][:, column] = level
            self._control["type"][:, column] = kind
        self._with_tos = self._capabilities.tos_cmsg
        self._tos_space = CMSG_SPACE if self._with_tos else 0

        self._messages = np.zeros(_PACKETS, MMSGHDR)
        self._messages["name_length"] = self._peers.name_length
        first = address_of(self._control) + (0 if self._with_tos else CMSG_SPACE)
        self._messages["control"] = first + steps * np.uintp(2 * CMSG_SPACE)
        self._address = address_of(self._messages)
        self._names = self._messages["name"]
        self._iovs = self._messages["iov"]
        self._iov_lengths = self._messages["iov_length"]
        self._control_lengths = self._messages["control_length"]
        self._lengths = self._messages["length"]
        self._toses = self._control["int"][:, 0]
        self._cuts = self._control["short"][:, 1]
        if self._segments == 1:
            self._one_datagram_a_message()

        # The plan: for each burst its first row in the batch, its index and its first datagram; for each message the row behind.
        self._spans: list[tuple[int, int, int]] = []
        self._stops: Sequence[int] = []
        self._odd: list[int] = []

    def _one_datagram_a_message(self) -> None:
        self._iovs[:] = self._iov_steps
        self._iov_lengths[:] = 2
        self._control_lengths[:] = self._tos_space

    def _give_up_segmentation(self) -> None:
        super()._give_up_segmentation()
        self._one_datagram_a_message()

    def _advance(self, bursts: Sequence[Burst], index: int, row: int) -> tuple[int, int, bool]:
        if len(bursts) - index <= _HANDFUL and sum(len(burst) for burst in bursts[index:]) - row <= _HANDFUL:
            return super()._advance(bursts, index, row)
        segments = self._segments
        rows, end = self._plan(bursts, index, row)
        if not rows:
            return (*end, False)
        stops = self._stops
        messages = len(stops)
        counters = self._counters
        sent = lost = 0
        blocked = False
        while sent < messages:
            taken = sendmmsg(self._descriptor, self._address + sent * MMSGHDR.itemsize, messages - sent)
            counters.send_calls += 1
            if taken > 0:
                counters.bytes_sent += int(self._lengths[sent : sent + taken].sum())
                sent += taken
                continue
            if -taken in BLOCKED:
                counters.send_blocked += 1
                blocked = True
                break
            first = stops[sent - 1] if sent else 0
            burst_index, datagram = self._position(first)
            burst = bursts[burst_index]
            size = burst.headers.shape[1] + int(burst.sizes[datagram])
            if self._failed(-taken, burst.peer, size, stops[sent] - first):
                lost += stops[sent] - first
                sent += 1
            elif self._segments != segments:
                break
        done = stops[sent - 1] if sent else 0
        counters.packets_sent += done - lost
        if segments > 1:
            counters.batches_sent += sum(stop - start > 1 for start, stop in pairwise((0, *stops[:sent])))
        if sent == messages:
            return (*end, False)
        return (*self._position(done), blocked)

    def _position(self, row: int) -> tuple[int, int]:
        """Returns the burst and the datagram in it that a row of the batch stands for."""
        first, index, datagram = self._spans[bisect_right(self._spans, row, key=lambda span: span[0]) - 1]
        return index, datagram + row - first

    def _plan(self, bursts: Sequence[Burst], index: int, row: int) -> tuple[int, tuple[int, int]]:
        """Describes as many datagrams as fit to the kernel.

        Returns:
            Number of datagrams, and the position behind the last.
        """
        if self._odd:
            self._iov[self._odd, :2] = self._usual[self._odd]
            self._odd = []
        spans = self._spans = []
        headers: list[NDArray[np.uint8]] = []
        offsets: list[NDArray[np.int64]] = []
        sizes: list[NDArray[np.int64]] = []
        counts: list[int] = []
        bases: list[int] = []
        rooms: list[int] = []
        # Rows from which on peer, ToS or length of the header differ from those before.
        groups: list[tuple[int, int, int, int]] = []
        peer = tos = width = -1
        payload: NDArray[np.uint8] | None = None
        base = room = rows = 0
        while index < len(bursts) and rows < _PACKETS:
            burst = bursts[index]
            head, place, size = burst.headers, burst.offsets, burst.sizes
            total = len(head)
            count = min(total - row, _PACKETS - rows)
            if not count:
                index, row = index + 1, 0
                continue
            if burst.tos != tos or burst.peer != peer or head.shape[1] != width:
                if not self._with_tos and burst.tos != self._tos:
                    if rows:
                        break
                    self._set_tos(burst.tos)
                peer, tos, width = burst.peer, burst.tos, head.shape[1]
                groups.append((rows, self._location(peer), tos, width))
            if burst.payload is not payload or not rows:
                payload = burst.payload
                base, room = (0, 0) if payload is None else (_address_of_bytes(payload), payload.size)
            spans.append((rows, index, row))
            if count != total:
                head, place, size = head[row : row + count], place[row : row + count], size[row : row + count]
            if width != HEADER_BYTES:
                self._describe_odd(rows, head)
                head = self._copies[rows : rows + count]
            headers.append(head)
            offsets.append(place)
            sizes.append(size)
            counts.append(count)
            bases.append(base)
            rooms.append(room)
            rows += count
            row += count
            if row == total:
                index, row = index + 1, 0
        if rows:
            np.concatenate(headers, out=self._copies[:rows])
            np.concatenate(offsets, out=self._offsets[:rows])
            np.concatenate(sizes, out=self._sizes[:rows])
            self._point(slice(rows), counts, bases, rooms)
            if self._segments > 1:
                self._cut(rows, groups)
            else:
                self._stops = range(1, rows + 1)
                for (start, location, tos, _), stop in zip(groups, [*(group[0] for group in groups[1:]), rows], strict=True):
                    self._names[start:stop] = location
                    self._toses[start:stop] = tos
        return rows, (index, row)

    def _describe_odd(self, row: int, head: NDArray[np.uint8]) -> None:
        """Describes headers that are longer than data's, control packets with their bodies, where they are."""
        if not head.flags.c_contiguous:
            raise ValueError("the headers of a burst must be C-contiguous")
        address, width = address_of(head), head.shape[1]
        for odd in range(row, row + len(head)):
            self._iov[odd, 0] = address
            self._iov[odd, 1] = width
            self._odd.append(odd)
            address += width

    def _point(self, where: slice, counts: list[int], bases: list[int], rooms: list[int]) -> None:
        """Fills in where the payloads are, and checks that they are inside their arrays before the kernel reads them."""
        offsets, sizes, check = self._offsets[where], self._sizes[where], self._scratch[where]
        base: Any = bases[0]
        room: Any = rooms[0]
        if len(counts) > 1 and (bases.count(base) != len(bases) or rooms.count(room) != len(rooms)):
            base, room = np.repeat(np.array([bases, rooms], np.int64), counts, axis=1)
        # A negative number in any of the three shows in the sign of all of them together.
        np.add(offsets, sizes, out=check)
        np.subtract(room, check, out=check)
        np.bitwise_or(check, offsets, out=check)
        np.bitwise_or(check, sizes, out=check)
        if np.minimum.reduce(check) < 0:
            raise ValueError("a burst has datagrams that reach beyond its payload")
        np.add(offsets, base, out=self._iov[where, 2], casting="unsafe")
        self._iov[where, 3] = sizes

    def _cut(self, rows: int, groups: list[tuple[int, int, int, int]]) -> None:
        """Cuts the batch into messages for segmentation offload and describes them."""
        sizes = self._sizes
        starts = [group[0] for group in groups]
        changes = np.flatnonzero(sizes[1:rows] != sizes[: rows - 1])
        if changes.size:
            starts = sorted({*starts, *(changes + 1).tolist()})
        stops: list[int] = []
        names: list[int] = []
        toses: list[int] = []
        cuts: list[int] = []
        coming = iter([*groups, (rows, 0, 0, 0)])
        following = next(coming)
        location = tos = width = 0
        most = min(MAX_PAYLOAD, self.message_bytes)
        cut = 0  # segment size of the last message if it still has room for one shorter datagram
        for start, stop, size in zip(starts, [*starts[1:], rows], sizes[starts].tolist(), strict=True):
            size += width
            if start == following[0]:
                size -= width
                _, location, tos, width = following
                following = next(coming)
                size += width
            elif size < cut:
                start += 1
                stops[-1] = start
            cut = 0
            per = max(1, min(self._segments, most // max(size, 1)))
            while start < stop:
                cut = size if stop - start < per else 0
                start = min(start + per, stop)
                stops.append(start)
                names.append(location)
                toses.append(tos)
                cuts.append(size)
        self._stops = stops
        self._describe_messages(stops, names, toses, cuts)

    def _describe_messages(self, stops: list[int], names: list[int], toses: list[int], cuts: list[int]) -> None:
        count = len(stops)
        if count <= _FEW:
            begin = 0
            for message, (end, name, tos, cut) in enumerate(zip(stops, names, toses, cuts, strict=True)):
                self._names[message] = name
                self._iovs[message] = self._iov_steps[begin]
                self._iov_lengths[message] = 2 * (end - begin)
                self._control_lengths[message] = self._tos_space + (CMSG_SPACE if end - begin > 1 else 0)
                self._toses[message] = tos
                self._cuts[message] = cut
                begin = end
            return
        ends = np.array(stops)
        datagrams = ends.copy()
        datagrams[1:] -= ends[:-1]
        self._names[:count] = names
        self._iovs[:count] = self._iov_steps[ends - datagrams]
        self._iov_lengths[:count] = 2 * datagrams
        self._control_lengths[:count] = self._tos_space + CMSG_SPACE * (datagrams > 1)
        self._toses[:count] = toses
        self._cuts[:count] = cuts


def _address_of_bytes(payload: NDArray[np.uint8]) -> int:
    if payload.itemsize != 1 or not payload.flags.c_contiguous:
        raise ValueError("the payload of a burst must be contiguous bytes")
    return address_of(payload)
