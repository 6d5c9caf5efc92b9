"""Which network interface owns an address, and how large its packets may be."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import Final

import numpy as np

from dlcp.compiler.raw import address_of
from dlcp.udp.syscalls import IP_MTU, IPV6_MTU

_SIOCGIFCONF: Final = 0x8912
_SIOCGIFFLAGS: Final = 0x8913
_SIOCGIFMTU: Final = 0x8921
_IFF_UP: Final = 0x1
_IFF_LOOPBACK: Final = 0x8
_IFNAMSIZ: Final = 16
_IFREQ_BYTES: Final = 40 if struct.calcsize("P") == 8 else 32
_IF_INET6: Final = Path("/proc/thread-self/net/if_inet6")

MINIMUM_MTU: Final = 576
"""What every IPv4 host must be able to receive (RFC 791); assumed where an interface does not say."""


def _ioctl(name: str, request: int) -> bytes | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        try:
            return fcntl.ioctl(control, request, struct.pack(f"{_IFREQ_BYTES}s", name.encode()))
        except OSError:
            return None


def interface_mtu(name: str) -> int | None:
    """Returns the MTU in bytes of an interface of the calling thread's network namespace, or None if it does not exist."""
    answer = _ioctl(name, _SIOCGIFMTU)
    return None if answer is None else int(struct.unpack_from("i", answer, _IFNAMSIZ)[0])


def _flags(name: str) -> int:
    answer = _ioctl(name, _SIOCGIFFLAGS)
    return 0 if answer is None else int(struct.unpack_from("h", answer, _IFNAMSIZ)[0])


def _ipv4_addresses() -> list[tuple[str, ipaddress.IPv4Address]]:
    """Lists (interface, address), secondary addresses included."""
    room = np.zeros(256 * _IFREQ_BYTES, np.uint8)
    request = struct.pack("iP", room.size, address_of(room))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        try:
            used = struct.unpack_from("i", fcntl.ioctl(control, _SIOCGIFCONF, request))[0]
        except OSError:
            return []
    found = []
    for start in range(0, used - _IFREQ_BYTES + 1, _IFREQ_BYTES):
        entry = room[start : start + _IFREQ_BYTES].tobytes()
        label = entry[:_IFNAMSIZ].split(b"\0", 1)[0].decode(errors="replace")
        # An alias such as eth0:1 is a label of eth0, not an interface.
        found.append((label.split(":", 1)[0], ipaddress.IPv4Address(entry[_IFNAMSIZ + 4 : _IFNAMSIZ + 8])))
    return found


def _ipv6_addresses() -> list[tuple[str, ipaddress.IPv6Address]]:
    try:
        lines = _IF_INET6.read_text().splitlines()
    except OSError:
        return []
    rows = [line.split() for line in lines]
    return [(row[5], ipaddress.IPv6Address(bytes.fromhex(row[0]))) for row in rows if len(row) == 6]


def interface_of(host: str) -> str | None:
    """Returns the interface that owns a numeric address, or None: a wildcard, a name, or an address of another host."""
    try:
        address = ipaddress.ip_address(host.split("%", 1)[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        for name, owned in _ipv4_addresses():
            # Linux answers for the whole of 127.0.0.0/8 although only 127.0.0.1 is listed.
            if owned == address or (owned.is_loopback and address.is_loopback):
                return name
        return None
    return next((name for name, owned in _ipv6_addresses() if owned == address), None)


def mtu_of(host: str) -> int:
    """Returns the MTU in bytes of the interface that owns a bound address.

    For a wildcard address it is the smallest MTU of all interfaces that are up, the loopback only if there is no other.
    """
    name = interface_of(host)
    if name is not None:
        return interface_mtu(name) or MINIMUM_MTU
    sizes: dict[bool, list[int]] = {True: [], False: []}
    for _, name in socket.if_nameindex():
        flags = _flags(name)
        size = interface_mtu(name)
        if flags & _IFF_UP and size is not None and size >= MINIMUM_MTU:
            sizes[bool(flags & _IFF_LOOPBACK)].append(size)
    return min(sizes[False] or sizes[True] or [MINIMUM_MTU])


def path_mtu(family: int, source: tuple[str, int], destination: tuple[object, ...]) -> int | None:
    """Returns what the kernel knows of the path MTU in bytes to a socket address, or None.

    Nothing is sent: a second socket is connected, which only looks the route up (``ip(7)``, ``IP_MTU``).
    """
    option = (socket.IPPROTO_IPV6, IPV6_MTU) if family == socket.AF_INET6 else (socket.IPPROTO_IP, IP_MTU)
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as control:
            control.bind((source[0], 0))
            control.connect(destination)
            return control.getsockopt(*option)
    except OSError:
        return None
