"""Finds out by real loopback round trips what this kernel can do for UDP.

A socket option that is accepted proves nothing: each capability is granted only if datagrams went through and came out as they
should, with their ToS.  An odd kernel, a sandbox or a missing function gives ``False``, never an exception.
"""

from __future__ import annotations

import functools
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dlcp.compiler.raw import address_of
from dlcp.udp import syscalls
from dlcp.udp.syscalls import (
    CMSG_SPACE,
    IOVEC,
    MMSGHDR,
    SOL_UDP,
    UDP_GRO,
    UDP_SEGMENT,
    receive_tos_option,
    tos_option,
)

_TIMEOUT: Final = 0.2
_TOS: Final = 0xA2  # DSCP 40, ECT(0)
_SEGMENT: Final = 24
_SEGMENT_COUNTS: Final = (128, 64, 32, 16, 8, 4, 2)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a port may use.  All false is a plain socket that sends and receives one datagram a call.

    Attributes:
        segmentation: ``UDP_SEGMENT`` (Linux 4.18): one call, many datagrams.
        receive_offload: ``UDP_GRO`` (Linux 5.0): one call, many datagrams of one flow.
        sendmmsg: Many messages in one call.
        recvmmsg: Many messages in one call.
        tos_cmsg: ToS as a control message of each call; otherwise it is set on the socket whenever it changes.
        recv_tos: The ToS of received datagrams is known, and with it congestion marks.
        max_segments: Datagrams in one segmented message.
        arrival_times: The kernel tells when a datagram reached this host (``SO_TIMESTAMPNS``), however late it is taken.
    """

    segmentation: bool = False
    receive_offload: bool = False
    sendmmsg: bool = False
    recvmmsg: bool = False
    tos_cmsg: bool = False
    recv_tos: bool = False
    max_segments: int = 1
    arrival_times: bool = False


WITHOUT: Final = {
    "segmentation": "sending costs about 10 times the CPU per packet (UDP_SEGMENT needs Linux 4.18)",
    "receive_offload": "receiving costs about 10 times the CPU per packet (UDP_GRO needs Linux 5.0)",
    "sendmmsg": "one system call per message sent",
    "recvmmsg": "one system call per datagram received",
    "tos_cmsg": "one more system call whenever the class of the packets sent changes",
    "arrival_times": "time on a busy host is taken for time in the network's queues",
    "recv_tos": "congestion marks (ECN) are not seen; congestion control falls back to loss and delay",
}
"""For every capability, what is lost without it; for people."""


class _Pair:
    """Two sockets on the loopback, the second of which receives."""

    def __init__(self, family: int) -> None:
        host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
        self.family = family
        self.sender = socket.socket(family, socket.SOCK_DGRAM)
        self.receiver = socket.socket(family, socket.SOCK_DGRAM)
        for end in (self.sender, self.receiver):
            end.settimeout(_TIMEOUT)
        self.receiver.bind((host, 0))
        self.sender.connect(self.receiver.getsockname())

    def __enter__(self) -> _Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.sender.close()
        self.receiver.close()

    def receive(self) -> tuple[bytes, dict[tuple[int, int], int]]:
        data, control, _, _ = self.receiver.recvmsg(65536, 4 * CMSG_SPACE)
        return data, {(level, kind): int.from_bytes(value, sys.byteorder) for level, kind, value in control}

    def tos_message(self) -> tuple[int, int, bytes]:
        return (*tos_option(self.family), struct.pack("=i", _TOS))

    def received_tos(self, control: dict[tuple[int, int], int]) -> int | None:
        return control.get(tos_option(self.family))


def _segments(count: int) -> list[bytes]:
    return [bytes([index]) * _SEGMENT for index in range(count - 1)] + [b"\xff" * (_SEGMENT - 5)]


def _recv_tos(pair: _Pair) -> bool:
    pair.receiver.setsockopt(*receive_tos_option(pair.family), 1)
    pair.sender.setsockopt(*tos_option(pair.family), _TOS)
    pair.sender.send(b"x")
    _, control = pair.receive()
    return pair.received_tos(control) == _TOS


def _tos_cmsg(pair: _Pair) -> bool:
    pair.receiver.setsockopt(*receive_tos_option(pair.family), 1)
    pair.sender.sendmsg([b"x"], [pair.tos_message()])
    _, control = pair.receive()
    return pair.received_tos(control) == _TOS


def _segmentation(pair: _Pair, count: int, tos: bool) -> bool:
    expected = _segments(count)
    control = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", _SEGMENT))]
    if tos:
        control.append(pair.tos_message())
        pair.receiver.setsockopt(*receive_tos_option(pair.family), 1)
    pair.sender.sendmsg(expected, control)
    for segment in expected:
        data, got = pair.receive()
        if data != segment or (tos and pair.received_tos(got) != _TOS):
            return False
    return True


def _receive_offload(pair: _Pair, count: int, tos: bool) -> bool:
    expected = b"".join(_segments(count))
    pair.receiver.setsockopt(SOL_UDP, UDP_GRO, 1)
    control = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", _SEGMENT))]
    if tos:
        control.append(pair.tos_message())
        pair.receiver.setsockopt(*receive_tos_option(pair.family), 1)
    pair.sender.sendmsg([expected], control)
    data, got = pair.receive()
    return data == expected and got.get((SOL_UDP, UDP_GRO)) == _SEGMENT and (not tos or pair.received_tos(got) == _TOS)


def _messages(data: NDArray[np.uint8]) -> tuple[NDArray[Any], NDArray[Any]]:
    iov = np.zeros(len(data), IOVEC)
    iov["base"] = [address_of(row) for row in data]
    iov["length"] = data.shape[1]
    headers = np.zeros(len(data), MMSGHDR)
    headers["iov"] = address_of(iov) + np.arange(len(data), dtype=np.uintp) * np.uintp(IOVEC.itemsize)
    headers["iov_length"] = 1
    return iov, headers


def _sendmmsg(pair: _Pair) -> bool:
    if not syscalls.HAVE_SENDMMSG:
        return False
    data = np.arange(3 * _SEGMENT, dtype=np.uint8).reshape(3, -1)
    iov, headers = _messages(data)
    if syscalls.sendmmsg(pair.sender.fileno(), address_of(headers), 3) != 3:
        return False
    del iov
    return [pair.receive()[0] for _ in data] == [row.tobytes() for row in data]


def _recvmmsg(pair: _Pair) -> bool:
    if not syscalls.HAVE_RECVMMSG:
        return False
    data = np.zeros((3, 2 * _SEGMENT), np.uint8)
    iov, headers = _messages(data)
    sent = _segments(2)
    for segment in sent:
        pair.sender.send(segment)
    if syscalls.recvmmsg(pair.receiver.fileno(), address_of(headers), 3) != 2:
        return False
    del iov
    return [row[:size].tobytes() for row, size in zip(data, headers["length"].tolist(), strict=True)] == [*sent, b""]


def _arrival_times(pair: _Pair) -> bool:
    if not syscalls.HAVE_STAMPS:
        return False
    pair.receiver.setsockopt(socket.SOL_SOCKET, syscalls.SO_TIMESTAMPNS, 1)
    before = time.time_ns()
    pair.sender.send(b"x")
    _, control, _, _ = pair.receiver.recvmsg(16, syscalls.STAMP_BYTES)
    ((level, kind, value),) = control
    seconds, rest = struct.unpack("=qq", value)
    told = seconds * 1_000_000_000 + rest
    return (level, kind) == (socket.SOL_SOCKET, syscalls.SO_TIMESTAMPNS) and before <= told <= time.time_ns()


def _works(family: int, check: Callable[[_Pair], bool]) -> bool:
    try:
        with _Pair(family) as pair:
            return check(pair)
    except (OSError, ValueError, AttributeError, NotImplementedError):
        return False


@functools.cache
def probe(family: int = socket.AF_INET) -> Capabilities:
    """Probes the kernel, once in a process for each address family.  Takes milliseconds; sends to the loopback only.

    Args:
        family: ``AF_INET`` or ``AF_INET6``.

    Returns:
        The capabilities that were seen to work; none at all if there is no loopback of that family.
    """
    found = Capabilities(
        sendmmsg=_works(family, _sendmmsg),
        recvmmsg=_works(family, _recvmmsg),
        recv_tos=_works(family, _recv_tos),
        arrival_times=_works(family, _arrival_times),
    )
    if found.recv_tos:
        found = replace(found, tos_cmsg=_works(family, _tos_cmsg))
    for count in _SEGMENT_COUNTS:
        if _works(family, functools.partial(_segmentation, count=count, tos=found.tos_cmsg)):
            offload = _works(family, functools.partial(_receive_offload, count=count, tos=found.tos_cmsg))
            return replace(found, segmentation=True, max_segments=count, receive_offload=offload)
    return found
