"""Sends whole batches of bursts in one ``sendmmsg``, with segmentation offload if the kernel has it.

The kernel's message headers, I/O vectors and control messages are preallocated arrays.  What never changes in them is written once;
a burst costs a few array operations, and a message a few list entries that become columns when the batch is complete.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from dlcp.transport.packets import Burst
from dlcp.udp.send import BLOCKED, Sender
from dlcp.udp.syscalls import CMSG, CMSG_HEADER, CMSG_SPACE, MMSGHDR, SOL_UDP, UDP_SEGMENT, address_of, sendmmsg, tos_option
from dlcp.wire.header import HEADER_BYTES

_PACKETS: Final = 1024
"""Datagrams in one batch; ``sendmmsg`` takes at most 1024 messages."""


class BatchSender(Sender):
    """Sends through ``sendmmsg``, with segmentation offload if the kernel has it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._iov = np.zeros((_PACKETS, 4), np.uintp)
        self._iov_address = address_of(self._iov)
        self._packet_bytes = self._iov.strides[0]
        self._steps = np.arange(_PACKETS, dtype=np.uintp)
        self._header_steps = self._steps * np.uintp(HEADER_BYTES)
        self._iov_steps = self._iov_address + self._steps * np.uintp(self._packet_bytes)

        self._control = np.zeros((_PACKETS, 2), CMSG)
        level, option = tos_option(self._family)
        for column, (length, lev, kind) in enumerate([(4, level, option), (2, SOL_UDP, UDP_SEGMENT)]):
            self._control["length"][:, column] = CMSG_HEADER + length
            self._control["level"][:, column] = lev
            self._control["type"][:, column] = kind
        self._tos_column = self._control["int"][:, 0]
        self._segment_column = self._control["short"][:, 1]

        self._with_tos = self._capabilities.tos_cmsg
        self._tos_space = CMSG_SPACE if self._with_tos else 0
        self._headers = np.zeros(_PACKETS, MMSGHDR)
        self._header_bytes = MMSGHDR.itemsize
        self._address = address_of(self._headers)
        self._headers["name_length"] = self._peers.name_length
        self._headers["control"] = (
            address_of(self._control) + self._steps * np.uintp(2 * CMSG_SPACE) + np.uintp(0 if self._with_tos else CMSG_SPACE)
        )
        self._names = self._headers["name"]
        self._iovs = self._headers["iov"]
        self._iov_lengths = self._headers["iov_length"]
        self._control_lengths = self._headers["control_length"]
        self._lengths = self._headers["length"]
        if self._segments == 1:
            self._one_datagram_a_message()
        # The plan of the batch, a row for each burst: first message, burst, first datagram, datagrams a message, datagrams.
        self._runs: list[tuple[int, int, int, int, int]] = []

    def _one_datagram_a_message(self) -> None:
        self._iovs[:] = self._iov_steps
        self._iov_lengths[:] = 2
        self._control_lengths[:] = self._tos_space

    def _give_up_segmentation(self) -> None:
        super()._give_up_segmentation()
        self._one_datagram_a_message()

    def _advance(self, bursts: Sequence[Burst], index: int, row: int) -> tuple[int, int, bool]:
        segments = self._segments
        messages, end = self._plan(bursts, index, row)
        if not messages:
            return (*end, False)
        sent = 0
        lost = 0
        blocked = False
        counters = self._counters
        while sent < messages:
            taken = sendmmsg(self._descriptor, self._address + sent * self._header_bytes, messages - sent)
            counters.send_calls += 1
            if taken > 0:
                counters.bytes_sent += int(self._lengths[sent : sent + taken].sum())
                sent += taken
                continue
            if -taken in BLOCKED:
                counters.send_blocked += 1
                blocked = True
                break
            burst_index, first, datagrams = self._locate(sent)
            burst = bursts[burst_index]
            size = burst.headers.shape[1] + int(burst.sizes[first])
            if self._failed(-taken, burst.peer, size, datagrams):
                lost += datagrams
                sent += 1
            elif self._segments != segments:
                break
        if sent == messages:
            counters.packets_sent += sum(count for *_, count in self._runs) - lost
            if segments > 1:
                counters.batches_sent += int(np.count_nonzero(self._iov_lengths[:messages] > 2))
            return (*end, False)
        if segments > 1:
            counters.batches_sent += int(np.count_nonzero(self._iov_lengths[:sent] > 2))
        for first_message, burst_index, first, per, count in reversed(self._runs):
            if sent >= first_message:
                done = min((sent - first_message) * per, count)
                before = sum(run[4] for run in self._runs if run[0] < first_message)
                counters.packets_sent += before + done - lost
                return burst_index, first + done, blocked
        raise AssertionError("a plan with messages has runs")

    def _locate(self, message: int) -> tuple[int, int, int]:
        """Returns burst, first datagram and number of datagrams of a message of the plan."""
        run = self._runs[bisect_right(self._runs, message, key=lambda entry: entry[0]) - 1]
        first_message, burst_index, first, per, count = run
        offset = (message - first_message) * per
        return burst_index, first + offset, min(per, count - offset)

    def _plan(self, bursts: Sequence[Burst], index: int, row: int) -> tuple[int, tuple[int, int]]:
        """Describes as many datagrams as fit to the kernel.

        Returns:
            Number of messages, and the position behind the last.
        """
        runs = self._runs = []
        iov, iov_address, packet_bytes = self._iov, self._iov_address, self._packet_bytes
        segments = self._segments
        names: list[int] = []
        starts: list[int] = []
        datagrams: list[int] = []
        toses: list[int] = []
        cuts: list[int] = []
        rows = 0
        messages = 0
        payload = None
        base = 0
        while index < len(bursts) and rows < _PACKETS:
            burst = bursts[index]
            total = len(burst.headers)
            count = min(total - row, _PACKETS - rows)
            if count == 0:
                index, row = index + 1, 0
                continue
            if not self._with_tos and burst.tos != self._tos:
                if rows:
                    break
                self._set_tos(burst.tos)
            size, per = self._per_message(burst, row, count)
            name = self._location(burst.peer)
            headers = burst.headers
            if not headers.flags.c_contiguous:
                raise ValueError("the headers of a burst must be C-contiguous")
            stop = rows + count
            width = headers.shape[1]
            entry = iov[rows:stop]
            start = address_of(headers) + row * width
            if width == HEADER_BYTES:
                np.add(self._header_steps[:count], start, out=entry[:, 0])
            else:
                entry[:, 0] = self._steps[:count] * width + start
            entry[:, 1] = width
            if burst.payload is None:
                entry[:, 2:] = 0
            else:
                if burst.payload is not payload:
                    payload = burst.payload
                    if not payload.flags.c_contiguous or payload.itemsize != 1:
                        raise ValueError("the payload of a burst must be contiguous bytes")
                    base = address_of(payload)
                np.add(burst.offsets[row : row + count], base, out=entry[:, 2], casting="unsafe")
                entry[:, 3] = burst.sizes[row : row + count]
            runs.append((messages, index, row, per, count))
            if segments == 1:
                self._names[rows:stop] = name
                self._tos_column[rows:stop] = burst.tos
                messages += count
            else:
                offset = 0
                while offset < count:
                    piece = min(per, count - offset)
                    names.append(name)
                    starts.append(iov_address + (rows + offset) * packet_bytes)
                    datagrams.append(piece)
                    toses.append(burst.tos)
                    cuts.append(size)
                    offset += piece
                messages = len(names)
            rows = stop
            row += count
            if row == total:
                index, row = index + 1, 0
        if segments > 1 and messages:
            self._names[:messages] = names
            self._iovs[:messages] = starts
            self._iov_lengths[:messages] = [2 * count for count in datagrams]
            self._tos_column[:messages] = toses
            self._segment_column[:messages] = cuts
            one, many = self._tos_space, self._tos_space + CMSG_SPACE
            self._control_lengths[:messages] = [many if count > 1 else one for count in datagrams]
        return messages, (index, row)
