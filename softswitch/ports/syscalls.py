"""System calls that Python lacks: ``recvmmsg``, ``sendmmsg`` and ``ppoll``, through ctypes and without numpy.

Structures are described to the kernel in flat arrays of machine words that Python fills by slices.  Layouts are those of LP64
Linux: ``struct mmsghdr`` takes eight words, ``struct iovec`` two, ``struct pollfd`` one (recvmmsg(2), poll(2)).
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from typing import Any, Final

MSG_DONTWAIT: Final = 0x40
POLLIN: Final = 1
POLLOUT: Final = 4

MESSAGE_WORDS: Final = 8
"""Words of ``struct mmsghdr``: name, name length, iov, iov length, control, control length, flags, and message length."""
IOV_WORDS: Final = 2


def address_of(buffer: Any) -> int:
    """Returns the address of a writable buffer, which the caller keeps alive and does not resize."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def _function(name: str, *arguments: Any) -> Callable[..., int]:
    function = getattr(_LIBC, name)
    function.argtypes = arguments
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_SENDMMSG: Final = _function("sendmmsg", ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)
_RECVMMSG: Final = _function("recvmmsg", ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)
_PPOLL: Final = _function("ppoll", ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_void_p)
_PRCTL: Final = _function("prctl", ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)

_PR_SET_TIMERSLACK: Final = 29


def supported() -> bool:
    """Whether the layouts above are this platform's."""
    return ctypes.sizeof(ctypes.c_void_p) == 8


def sendmmsg(descriptor: int, messages: int, count: int) -> int:
    """Sends up to ``count`` messages without waiting; returns how many the kernel took, or a negated errno."""
    sent = _SENDMMSG(descriptor, messages, count, MSG_DONTWAIT)
    return sent if sent >= 0 else -ctypes.get_errno()


def recvmmsg(descriptor: int, messages: int, count: int) -> int:
    """Receives up to ``count`` messages without waiting; returns how many came, or a negated errno."""
    received = _RECVMMSG(descriptor, messages, count, MSG_DONTWAIT, None)
    return received if received >= 0 else -ctypes.get_errno()


def set_timer_slack(nanoseconds: int) -> None:
    """Lets this thread's timers be late by so much at most; the kernel's default is 50 us."""
    _PRCTL(_PR_SET_TIMERSLACK, max(1, nanoseconds), 0, 0, 0)


class Poller:
    """Waits for descriptors, with a timeout in nanoseconds; ``poll`` and ``epoll`` know milliseconds only."""

    def __init__(self) -> None:
        self._positions: dict[int, int] = {}
        self._rebuild([])
        self._time = (ctypes.c_int64 * 2)()
        self._time_address = ctypes.addressof(self._time)

    def _rebuild(self, wanted: list[tuple[int, int]]) -> None:
        self._positions = {descriptor: index for index, (descriptor, _) in enumerate(wanted)}
        self._array = bytearray(8 * max(1, len(wanted)))
        self._address = address_of(self._array)
        self._words = memoryview(self._array).cast("i")
        self._halves = memoryview(self._array).cast("h")
        for index, (descriptor, events) in enumerate(wanted):
            self._words[2 * index] = descriptor
            self._halves[4 * index + 2] = events

    def watch(self, descriptor: int, *, write: bool = False) -> None:
        """Watches a descriptor for reading, and with ``write`` for writing."""
        events = POLLIN | (POLLOUT if write else 0)
        if descriptor in self._positions:
            self._halves[4 * self._positions[descriptor] + 2] = events
        else:
            self._rebuild([*self._wanted(), (descriptor, events)])

    def forget(self, descriptor: int) -> None:
        """Watches a descriptor no more."""
        self._rebuild([pair for pair in self._wanted() if pair[0] != descriptor])

    def _wanted(self) -> list[tuple[int, int]]:
        return [(descriptor, self._halves[4 * index + 2]) for descriptor, index in self._positions.items()]

    def wait(self, timeout_ns: int | None) -> list[tuple[int, int]]:
        """Waits until a descriptor is ready, the time is over (None: for ever), or a signal comes.

        Returns:
            Ready descriptors and their events (``POLLIN``, ``POLLOUT`` and what poll(2) adds).
        """
        if timeout_ns is None:
            time = None
        else:
            self._time[0], self._time[1] = divmod(max(0, timeout_ns), 1_000_000_000)
            time = self._time_address
        count = len(self._positions)
        ready = _PPOLL(self._address, count, time, None)
        if ready <= 0:
            if ready < 0 and ctypes.get_errno() != errno.EINTR:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
            return []
        words = self._words
        returned = self._halves[3 : 4 * count : 4].tolist()
        return [(words[2 * index], events) for index, events in enumerate(returned) if events]


__all__ = [
    "IOV_WORDS",
    "MESSAGE_WORDS",
    "POLLIN",
    "POLLOUT",
    "Poller",
    "address_of",
    "recvmmsg",
    "sendmmsg",
    "set_timer_slack",
    "supported",
]
