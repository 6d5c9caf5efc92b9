"""Sends whole batches of bursts in one ``sendmmsg``, with segmentation offload if the kernel has it.

The kernel's message headers, I/O vectors and control messages are preallocated arrays, and what never changes in them is written
once; :mod:`dlcp.udp.describe` fills in the rest, compiled where LLVM is installed.  Payload is never copied.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Final

import numpy as np

from dlcp.compiler.llvm import Program, callable_entry
from dlcp.compiler.raw import address_of
from dlcp.transport.packets import Burst
from dlcp.udp import describe, describe_layout
from dlcp.udp.describe_layout import (
    B_WORDS,
    CELL_BYTES,
    D_BURST,
    D_CONTROL,
    D_COPIES,
    D_COUNT,
    D_MESSAGE_BYTES,
    D_MESSAGES,
    D_ROW,
    D_SEGMENTS,
    D_STOPS,
    D_TOS_SPACE,
    D_VECTORS,
    MESSAGE_BYTES,
    PACKETS,
)
from dlcp.udp.send import BLOCKED, MAX_PAYLOAD, Sender
from dlcp.udp.syscalls import CMSG, CMSG_HEADER, CMSG_SPACE, MMSGHDR, SOL_UDP, UDP_SEGMENT, sendmmsg, tos_option
from dlcp.wire import checksum
from dlcp.wire.header import HEADER_BYTES

UDP: Final = Program(
    name="udp",
    modules=(checksum, describe),
    entries=("describe",),
    sources=(describe_layout,),
    extra=("llvmlite", ""),
)
"""What is compiled."""

FITS: Final = MMSGHDR.itemsize == MESSAGE_BYTES and CMSG_SPACE == CELL_BYTES
"""Whether this machine's words have 64 bits, as :mod:`dlcp.udp.describe` takes for granted."""


@cache
def compiled() -> Callable[[int, int, int], int] | None:
    """Returns ``describe`` on addresses; None if there is no LLVM."""
    return callable_entry(UDP, "describe", ctypes.PYFUNCTYPE, 3)


class BatchSender(Sender):
    """Sends through ``sendmmsg``, with segmentation offload if the kernel has it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        steps = np.arange(PACKETS, dtype=np.uintp)
        self._copies = np.zeros((PACKETS, HEADER_BYTES), np.uint8)
        # Two vectors for each datagram: address and length of its header, then of its payload.
        self._vectors = np.zeros((PACKETS, 4), np.uintp)
        self._control = np.zeros((PACKETS, 2), CMSG)
        with_tos = self._capabilities.tos_cmsg
        self._with_tos = with_tos
        kinds = [(4, *tos_option(self._family)), (2, SOL_UDP, UDP_SEGMENT)]
        for column, (length, level, kind) in enumerate(kinds if with_tos else kinds[::-1]):
            self._control["length"][:, column] = CMSG_HEADER + length
            self._control["level"][:, column] = level
            self._control["type"][:, column] = kind
        self._messages = np.zeros(PACKETS, MMSGHDR)
        self._messages["name_length"] = self._peers.name_length
        self._messages["control"] = address_of(self._control) + steps * np.uintp(2 * CMSG_SPACE)
        self._address = address_of(self._messages)
        self._lengths = self._messages["length"]
        self._array = np.zeros(D_STOPS + PACKETS, np.int64)
        self._words = self._array.data
        self._bursts = np.zeros(64 * B_WORDS, np.int64)
        for at, value in (
            (D_MESSAGES, self._address),
            (D_VECTORS, address_of(self._vectors)),
            (D_COPIES, address_of(self._copies)),
            (D_CONTROL, address_of(self._control)),
            (D_TOS_SPACE, CMSG_SPACE if with_tos else 0),
        ):
            self._words[at] = value
        self._start = (0, 0)

    def _advance(self, bursts: Sequence[Burst], index: int, row: int) -> tuple[int, int, bool]:
        segments = self._segments
        end = self._plan(bursts, index, row)
        words = self._words
        messages = words[D_COUNT]
        stops: list[int] = words[D_STOPS : D_STOPS + messages].tolist()
        counters = self._counters
        sent = lost = 0
        blocked = False
        while sent < messages:
            taken = sendmmsg(self._descriptor, self._address + sent * MESSAGE_BYTES, messages - sent)
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
            burst_index, datagram = self._position(bursts, first)
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
        return (*self._position(bursts, done), blocked)

    def _position(self, bursts: Sequence[Burst], row: int) -> tuple[int, int]:
        """Returns the burst and the datagram in it that a row of the batch stands for."""
        index, datagram = self._start
        datagram += row
        while datagram >= len(bursts[index]):
            datagram -= len(bursts[index])
            index += 1
        return index, datagram

    def _plan(self, bursts: Sequence[Burst], index: int, row: int) -> tuple[int, int]:
        """Describes as many datagrams as fit to the kernel; returns the position behind the last."""
        self._start = (index, row)
        if not self._with_tos:
            first = next((burst for burst in bursts[index:] if len(burst)), None)
            if first is not None:
                self._set_tos(first.tos)
        places: list[int] = []
        rows = -row
        number = 0
        for burst in bursts[index:] if index else bursts:
            places.append(self._location(burst.peer))
            places += burst.place
            number += 1
            rows += len(burst)
            if rows >= PACKETS:
                break
        if len(places) > self._bursts.size:
            self._bursts = np.zeros(2 * len(places), np.int64)
        self._bursts[: len(places)] = places
        words = self._words
        words[D_BURST], words[D_ROW] = 0, row
        words[D_SEGMENTS] = self._segments
        words[D_MESSAGE_BYTES] = min(MAX_PAYLOAD, self.message_bytes)
        function = compiled()
        if function is None:
            wrong = describe.describe(words, self._bursts.data, number)
        else:
            wrong = function(address_of(self._array), address_of(self._bursts), number)
        if wrong:
            raise ValueError("a burst has datagrams that reach beyond its payload")
        return index + words[D_BURST], words[D_ROW]


__all__ = ["FITS", "UDP", "BatchSender", "compiled"]
