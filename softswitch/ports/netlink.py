"""Tells when network interfaces come, go, and lose or find their carrier (rtnetlink(7))."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_RTMGRP_LINK: Final = 1
_RTM_NEWLINK: Final = 16
_RTM_DELLINK: Final = 17
_IFLA_IFNAME: Final = 3
_IFF_UP: Final = 0x1
_IFF_RUNNING: Final = 0x40
_HEADER: Final = struct.Struct("=IHHII")
_IFINFO: Final = struct.Struct("=BxHiII")
_ATTRIBUTE: Final = struct.Struct("=HH")


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """What an interface has become.

    Attributes:
        name: The interface.
        index: Its number; one that is deleted and made again gets another.
        up: Administratively up and with a carrier.
        gone: Deleted.
    """

    name: str
    index: int
    up: bool
    gone: bool


def parse(data: bytes) -> Iterator[LinkEvent]:
    """Reads the link events in one netlink datagram; other messages, and what does not hold together, are skipped."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size or at + length > len(data):
            return
        if kind in (_RTM_NEWLINK, _RTM_DELLINK) and length >= _HEADER.size + _IFINFO.size:
            family, _, index, flags, _ = _IFINFO.unpack_from(data, at + _HEADER.size)
            name = _name(data[at + _HEADER.size + _IFINFO.size : at + length])
            # Bridges send messages of their own family about their ports.
            if name and family == socket.AF_UNSPEC:
                gone = kind == _RTM_DELLINK
                yield LinkEvent(name, index, not gone and bool(flags & _IFF_UP and flags & _IFF_RUNNING), gone)
        at += (length + 3) & ~3


def _name(attributes: bytes) -> str:
    at = 0
    while at + _ATTRIBUTE.size <= len(attributes):
        length, kind = _ATTRIBUTE.unpack_from(attributes, at)
        if length < _ATTRIBUTE.size:
            break
        if kind == _IFLA_IFNAME:
            return attributes[at + _ATTRIBUTE.size : at + length].split(b"\0")[0].decode(errors="replace")
        at += (length + 3) & ~3
    return ""


class LinkWatch:
    """A netlink socket that reports the interfaces of this network namespace."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
        self._socket.bind((0, _RTMGRP_LINK))

    def fileno(self) -> int:
        """Becomes readable when there is news."""
        return self._socket.fileno()

    def read(self) -> tuple[list[LinkEvent], bool]:
        """Returns the news, oldest first, and whether some was lost, so that states must be asked for."""
        events: list[LinkEvent] = []
        lost = False
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    events.extend(parse(self._socket.recv(65536)))
                except OSError as error:
                    if error.errno != errno.ENOBUFS:
                        raise
                    lost = True
        return events, lost

    def close(self) -> None:
        """Stops watching."""
        self._socket.close()


__all__ = ["LinkEvent", "LinkWatch", "parse"]
