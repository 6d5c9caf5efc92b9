"""System calls that Python's ``socket`` module lacks: ``sendmmsg``, ``recvmmsg`` and ``ppoll``, over arrays that numpy fills.

The kernel's structures are numpy record types, so a batch of a thousand messages is described by a handful of array assignments.
Calls go through ctypes and release the GIL.  Layouts follow ``struct iovec``, ``struct msghdr`` and ``struct cmsghdr`` of the
LP64 and ILP32 Linux ABIs (``recv(2)``, ``cmsg(3)``).
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import select
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from dlcp.compiler.raw import address_of

# Linux constants that the socket module does not export (linux/udp.h, linux/in.h, linux/in6.h, asm-generic/socket.h).
SOL_UDP: Final = 17
UDP_SEGMENT: Final = 103
UDP_GRO: Final = 104
IP_TOS: Final = 1
IP_MTU_DISCOVER: Final = 10
IP_RECVTOS: Final = 13
IP_MTU: Final = 14
IP_PMTUDISC_DO: Final = 2
IPV6_MTU_DISCOVER: Final = 23
IPV6_MTU: Final = 24
IPV6_DONTFRAG: Final = 62
IPV6_RECVTCLASS: Final = 66
IPV6_TCLASS: Final = 67
SO_SNDBUFFORCE: Final = 32
SO_RCVBUFFORCE: Final = 33
SO_TIMESTAMPNS: Final = 35
"""Asks for the time at which a datagram reached this host; also the type of the control message that tells it."""
SO_MEMINFO: Final = 55
MEMINFO_DROPS: Final = 8
"""Index of the socket's drop counter in the ``u32`` array that ``SO_MEMINFO`` returns (linux/sock_diag.h)."""

MSG_DONTWAIT: Final = 0x40

_WORD: Final = ctypes.sizeof(ctypes.c_size_t)

IOVEC: Final = np.dtype([("base", np.uintp), ("length", np.uintp)])
MMSGHDR: Final = np.dtype(
    {
        "names": ["name", "name_length", "iov", "iov_length", "control", "control_length", "flags", "length"],
        "formats": [np.uintp, np.uint32, np.uintp, np.uintp, np.uintp, np.uintp, np.int32, np.uint32],
        # Every member is, or is padded to, one machine word; msg_len follows the padded msghdr.
        "offsets": [index * _WORD for index in range(8)],
        "itemsize": 8 * _WORD,
    }
)

CMSG_HEADER: Final = _WORD + 8
"""``CMSG_LEN(0)``: length, level, type."""
CMSG_SPACE: Final = CMSG_HEADER + _WORD
"""``CMSG_SPACE(n)`` of every control message used here; none has more than four bytes of data."""
CMSG: Final = np.dtype(
    {
        "names": ["length", "level", "type", "int", "short", "byte"],
        "formats": [np.uintp, np.int32, np.int32, np.int32, np.uint16, np.uint8],
        "offsets": [0, _WORD, _WORD + 4, CMSG_HEADER, CMSG_HEADER, CMSG_HEADER],
        "itemsize": CMSG_SPACE,
    }
)


STAMP_BYTES: Final = 32
"""``CMSG_SPACE(sizeof(struct timespec))`` where a word has 64 bits: only there are arrival times asked for."""
HAVE_STAMPS: Final = _WORD == 8 and ctypes.sizeof(ctypes.c_long) == 8 and sys.platform == "linux"


def _load() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None, use_errno=True)
    except OSError:
        return None


def _function(name: str, *arguments: Any) -> Callable[..., int] | None:
    try:
        function = getattr(_LIBC, name)
    except AttributeError:
        return None
    function.argtypes = arguments
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


_LIBC: Final = _load()
_SENDMMSG: Final = _function("sendmmsg", ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)
_RECVMMSG: Final = _function("recvmmsg", ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)
_PPOLL: Final = _function("ppoll", ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_void_p)
_PRCTL: Final = _function("prctl", ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)

HAVE_SENDMMSG: Final = _SENDMMSG is not None
HAVE_RECVMMSG: Final = _RECVMMSG is not None


def sendmmsg(descriptor: int, messages: int, count: int) -> int:
    """Sends ``count`` messages described by an array of ``MMSGHDR`` at address ``messages``.

    Returns:
        How many the kernel took, at least one; or the negated errno of the first, if it took none.
    """
    assert _SENDMMSG is not None
    sent = _SENDMMSG(descriptor, messages, count, MSG_DONTWAIT)
    return sent if sent >= 0 else -ctypes.get_errno()


def recvmmsg(descriptor: int, messages: int, count: int) -> int:
    """Receives up to ``count`` messages without waiting.

    Returns:
        How many came, or a negated errno.
    """
    assert _RECVMMSG is not None
    got = _RECVMMSG(descriptor, messages, count, MSG_DONTWAIT, None)
    return got if got >= 0 else -ctypes.get_errno()


def precise_timers() -> None:
    """Asks the kernel to wake the calling thread without the usual 50 µs of timer slack (``prctl(2)``); best effort."""
    if _PRCTL is not None and sys.platform == "linux":
        set_timer_slack = 29
        _PRCTL(set_timer_slack, 1, 0, 0, 0)


class Poller:
    """Waits for one datagram socket and one wake-up descriptor, with a timeout in nanoseconds.

    Uses ``ppoll``; where the C library has none, ``poll`` with the timeout rounded up to a millisecond.
    """

    _ENTRY: Final = np.dtype([("descriptor", np.int32), ("events", np.int16), ("revents", np.int16)])

    def __init__(self, port: int, wake: int) -> None:
        self._descriptors = np.zeros(2, self._ENTRY)
        self._descriptors["descriptor"] = (port, wake)
        self._descriptors["events"] = select.POLLIN
        self._events = self._descriptors["events"]
        self._revents = self._descriptors["revents"]
        self._timespec = (ctypes.c_long * 2)()
        self._address = address_of(self._descriptors)
        self._timespec_address = ctypes.addressof(self._timespec)

    def wait(self, timeout: int | None, *, for_write: bool, for_read: bool = True) -> tuple[bool, bool, bool]:
        """Waits.

        Args:
            timeout: Nanoseconds; None waits without end.
            for_write: Also wake up when the port can send.
            for_read: Wake up when the port is readable.

        Returns:
            Whether the port is readable (or has an error to report), writable, and whether the wake-up descriptor is readable.

        Raises:
            OSError: A descriptor is not open.
        """
        self._events[0] = for_read * select.POLLIN | for_write * select.POLLOUT
        if _PPOLL is None:
            self._poll(timeout)
        else:
            where = None
            if timeout is not None:
                self._timespec[0], self._timespec[1] = divmod(max(timeout, 0), 1_000_000_000)
                where = self._timespec_address
            if _PPOLL(self._address, 2, where, None) < 0:
                code = ctypes.get_errno()
                if code != errno.EINTR:
                    raise OSError(code, os.strerror(code))
                self._revents[:] = 0
        port, wake = self._revents.tolist()
        if (port | wake) & select.POLLNVAL:
            raise OSError(errno.EBADF, "the socket or the wake-up descriptor was closed while waiting for it")
        return bool(port & (select.POLLIN | select.POLLERR | select.POLLHUP)), bool(port & select.POLLOUT), bool(wake)

    def _poll(self, timeout: int | None) -> None:
        poll = select.poll()
        for descriptor, events, _ in self._descriptors.tolist():
            poll.register(descriptor, events)
        ready = dict(poll.poll(None if timeout is None else math.ceil(max(timeout, 0) / 1e6)))
        self._revents[:] = [ready.get(descriptor, 0) for descriptor in self._descriptors["descriptor"].tolist()]


class Waker:
    """Makes a :class:`Poller` return, from any thread: an eventfd, or a pipe where there is none."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self._read = self._write = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._read, self._write = os.pipe()
            os.set_blocking(self._read, False)
            os.set_blocking(self._write, False)

    def fileno(self) -> int:
        return self._read

    def wake(self) -> None:
        try:
            os.write(self._write, (1).to_bytes(8, sys.byteorder))
        except BlockingIOError:
            pass  # a full counter or pipe is readable, which is all that is wanted

    def drain(self) -> None:
        try:
            os.read(self._read, 4096)
        except BlockingIOError:
            pass

    def close(self) -> None:
        os.close(self._read)
        if self._write != self._read:
            os.close(self._write)


def tos_option(family: int) -> tuple[int, int]:
    """Returns (level, option) that sets or carries the ToS or traffic class byte of an address family."""
    return (socket.IPPROTO_IPV6, IPV6_TCLASS) if family == socket.AF_INET6 else (socket.IPPROTO_IP, IP_TOS)


def receive_tos_option(family: int) -> tuple[int, int]:
    """Returns (level, option) that asks for the ToS or traffic class byte of received datagrams."""
    return (socket.IPPROTO_IPV6, IPV6_RECVTCLASS) if family == socket.AF_INET6 else (socket.IPPROTO_IP, IP_RECVTOS)
