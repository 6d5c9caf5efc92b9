"""What came in a batch: owns the memory of :mod:`dlcp.transport.intake`, and runs it, compiled where LLVM is installed.

Messages are *opened* here when their first packet comes, and closed when nothing may be written into their buffers any more.
The table of open messages is of fixed size; one that finds no place takes another's, which is opened again when its next packet
comes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from dlcp.compiler.llvm import Program, callable_entry
from dlcp.compiler.raw import address_of
from dlcp.transport import intake, intake_layout, serial
from dlcp.transport.incoming import IncomingMessage
from dlcp.transport.intake_layout import (
    DONE,
    E_COUNT,
    E_NEW_PROTECTED,
    E_OWNER,
    E_STAMP,
    E_WORDS,
    ENTRIES,
    F_WORDS,
    I_CLOSED,
    I_COOKIE,
    I_ENTRIES,
    I_FRAME,
    I_MESSAGE_LIST,
    I_MESSAGES,
    I_NOW,
    I_ORPHAN,
    I_RANK,
    I_REFUSED,
    I_REST,
    I_REST_LIST,
    I_ROW,
    I_SOURCE_LIST,
    I_SOURCES,
    I_STAMP,
    I_WORDS,
    I_WORLD,
    P_WORDS,
    R_WORDS,
    REACH,
    REFUSALS,
    REST_ROOM,
    UNKNOWN,
)
from dlcp.transport.packets import Frames
from dlcp.wire import checksum

TRANSPORT: Final = Program(
    name="transport",
    modules=(serial, checksum, intake),
    entries=("take",),
    sources=(intake_layout,),
    extra=("llvmlite", ""),
)
"""What is compiled."""

_RELEASE_BYTES: Final = 1 << 18
"""Batches with more bytes than this are worth letting other threads run meanwhile."""

Take = Callable[[int, int, int], int]


@dataclass(frozen=True, slots=True)
class Identity:
    """What a datagram must say to be let in."""

    rank: int
    world: int
    cookie: int


class Came(NamedTuple):
    """What a batch brought of one message.

    Attributes:
        message: The message.
        packets: How many came.
        again: Those that had been sent before.
        new: Those that were not in.
        new_protected: Those of the latter that are protected.
    """

    message: IncomingMessage
    packets: int
    again: int
    new: int
    new_protected: int


@cache
def compiled() -> tuple[Take, Take] | None:
    """Returns ``take`` on addresses, without and with other threads running meanwhile; None if there is no LLVM."""
    quick = callable_entry(TRANSPORT, "take", ctypes.PYFUNCTYPE, 3)
    free = callable_entry(TRANSPORT, "take", ctypes.CFUNCTYPE, 3)
    return None if quick is None or free is None else (quick, free)


class Arrivals:
    """The memory, and a pass over a batch.

    Args:
        identity: What datagrams must say.
        use_compiled: Whether to run compiled code if there is any; tests run both.

    Attributes:
        words: The memory.
    """

    def __init__(self, identity: Identity, *, use_compiled: bool = True) -> None:
        entries = I_WORDS + identity.world * P_WORDS
        entries += -entries % 8  # a cache line
        sources = entries + ENTRIES * E_WORDS
        messages = sources + identity.world
        rest = messages + ENTRIES
        self._array = np.zeros(rest + R_WORDS * REST_ROOM, np.int64)
        self.words = self._array.data
        for at, value in (
            (I_RANK, identity.rank),
            (I_WORLD, identity.world),
            (I_COOKIE, identity.cookie - (identity.cookie >> 63 << 64)),
            (I_ENTRIES, entries),
            (I_SOURCE_LIST, sources),
            (I_MESSAGE_LIST, messages),
            (I_REST_LIST, rest),
        ):
            self.words[at] = value
        self._entries, self._sources, self._messages, self._rest = entries, sources, messages, rest
        self._open: list[IncomingMessage | None] = [None] * ENTRIES
        self._frames = np.zeros(64 * F_WORDS, np.int64)
        self._number = 0
        functions = compiled() if use_compiled else None
        self._functions = functions
        self._address = address_of(self._array)
        self._large = False

    def peer(self, rank: int) -> memoryview:
        """Returns the block of a rank."""
        at = I_WORDS + rank * P_WORDS
        return self.words[at : at + P_WORDS]

    # -- open messages -------------------------------------------------------------------------------------------------------

    def open(self, message: IncomingMessage) -> bool:
        """Lets packets of a message be placed; returns False if the message whose place it takes is yet to be settled."""
        words = self.words
        first = intake.place_of(message.peer, _signed(message.message))
        places = [(first + step) & (ENTRIES - 1) for step in range(REACH)]
        place = next((p for p in places if self._open[p] is None), places[0])
        at = self._entries + place * E_WORDS
        if self._open[place] is not None and words[at + E_STAMP] == words[I_STAMP] and words[I_MESSAGES]:
            return False
        shape = message.stride << 32 | message.bound << 16 | message.protected_packets
        tags = 0 if message.tags is None else address_of(message.tags)
        self._array[at : at + E_STAMP + 1] = (
            message.peer + 1,
            _signed(message.message),
            message.length,
            shape,
            address_of(message.buffer),
            address_of(message.have),
            tags,
            0,
        )
        self._open[place] = message
        return True

    def close(self, message: IncomingMessage) -> None:
        """Lets nothing more be placed in a message's buffer, or in the one that it has had so far."""
        first = intake.place_of(message.peer, _signed(message.message))
        for step in range(REACH):
            place = (first + step) & (ENTRIES - 1)
            if self._open[place] is message:
                self._open[place] = None
                self.words[self._entries + place * E_WORDS + E_OWNER] = 0

    def clear(self) -> None:
        """Closes every message."""
        for message in self._open:
            if message is not None:
                self.close(message)

    # -- a batch -------------------------------------------------------------------------------------------------------------

    def begin(self, frames: list[Frames], now: int, closed: bool) -> None:
        """Starts a pass over a batch; ``closed``: leave all that is ours."""
        places: list[int] = []
        for frame in frames:
            places += frame.place
        if len(places) > self._frames.size:
            self._frames = np.zeros(2 * len(places), np.int64)
        self._frames[: len(places)] = places
        self._number = len(frames)
        self._large = sum(frame.data.nbytes for frame in frames) > _RELEASE_BYTES
        words = self.words
        words[I_NOW] = now
        words[I_CLOSED] = closed
        words[I_FRAME] = words[I_ROW] = words[I_ORPHAN] = 0
        self.renew()

    def renew(self) -> None:
        """Forgets what the batch was about so far, which has been accounted for."""
        words = self.words
        words[I_STAMP] += 1
        words[I_SOURCES] = words[I_MESSAGES] = words[I_REST] = 0

    def take(self) -> int:
        """Goes on with the pass; returns a verdict of ``intake_layout``."""
        functions = self._functions
        if functions is None:
            return intake.take(self.words, self._frames.data, self._number)
        return functions[self._large](self._address, address_of(self._frames), self._number)

    def orphan(self) -> None:
        """The message that the pass stopped at is none that may be opened."""
        self.words[I_ORPHAN] = 1

    @property
    def position(self) -> tuple[int, int]:
        """Frame and row that the pass stopped at."""
        return self.words[I_FRAME], self.words[I_ROW]

    def sources(self) -> list[int]:
        """Returns the ranks that something came from, in the order of arrival."""
        return self.words[self._sources : self._sources + self.words[I_SOURCES]].tolist()

    def messages(self) -> list[Came]:
        """Returns what came of which messages."""
        words, came = self.words, []
        for at in words[self._messages : self._messages + words[I_MESSAGES]].tolist():
            message = self._open[(at - self._entries) // E_WORDS]
            if message is not None:
                came.append(Came(message, *words[at + E_COUNT : at + E_NEW_PROTECTED + 1].tolist()))
        return came

    def rest(self) -> list[tuple[int, int, int]]:
        """Returns frame and row of what is left to others, and microseconds waited, in the order of arrival."""
        flat = self.words[self._rest : self._rest + R_WORDS * self.words[I_REST]].tolist()
        return list(zip(flat[::R_WORDS], flat[1::R_WORDS], flat[2::R_WORDS], strict=True))

    def refused(self) -> dict[str, int]:
        """Returns how many datagrams were not ours, by reason, since this was last asked."""
        counts = self.words[I_REFUSED : I_REFUSED + len(REFUSALS)].tolist()
        if not any(counts):
            return {}
        self._array[I_REFUSED : I_REFUSED + len(REFUSALS)] = 0
        return {name: count for name, count in zip(REFUSALS, counts, strict=True) if count}


def _signed(message: int) -> int:
    return message - (message >> 63 << 64)


__all__ = ["DONE", "TRANSPORT", "UNKNOWN", "Arrivals", "Came", "Identity", "compiled"]
