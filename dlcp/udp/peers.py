"""Where each rank listens: socket addresses in the form the kernel reads them."""

from __future__ import annotations

import socket
import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dlcp.compiler.raw import address_of
from dlcp.errors import UnreachableError

_SOCKADDR_BYTES: Final = {socket.AF_INET: 16, socket.AF_INET6: 28}


def resolve(host: str, port: int, family: int = socket.AF_UNSPEC) -> tuple[int, tuple[object, ...]]:
    """Resolves a host name or a numeric address for UDP.

    Returns:
        Address family and socket address.

    Raises:
        OSError: The name does not resolve in that family.
        OverflowError: The port is not in 0..65535.
    """
    if not 0 <= port <= 0xFFFF:
        raise OverflowError(f"port {port} is not in 0..65535")
    answers = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_DGRAM)
    return answers[0][0], answers[0][4]


def pack_address(family: int, address: tuple[object, ...]) -> bytes:
    """Lays a socket address out as ``struct sockaddr_in`` or ``sockaddr_in6`` (``ip(7)``, ``ipv6(7)``)."""
    host, port = str(address[0]), int(str(address[1]))
    if family == socket.AF_INET:
        return struct.pack("=H", family) + struct.pack("!H4s8x", port, socket.inet_pton(family, host))
    flow, scope = (int(str(part)) for part in address[2:4])
    raw = socket.inet_pton(family, host.split("%", 1)[0])
    return struct.pack("=H", family) + struct.pack("!HI16s", port, flow, raw) + struct.pack("=I", scope)


class PeerTable:
    """Socket addresses by rank.

    Attributes:
        locations: Rank to the address in memory of its packed socket address, which lives as long as the table.
        addresses: Rank to the socket address that Python's ``socket`` takes.
        name_length: Bytes of a packed socket address.
    """

    def __init__(self, family: int) -> None:
        self.family = family
        self.name_length = _SOCKADDR_BYTES[socket.AddressFamily(family)]
        self.locations: dict[int, int] = {}
        self.addresses: dict[int, tuple[object, ...]] = {}
        self._packed: dict[int, NDArray[np.uint8]] = {}

    def connect(self, rank: int, address: tuple[str, int]) -> None:
        """Adds or replaces a rank.

        Raises:
            UnreachableError: The name does not resolve in this table's address family.
        """
        host, port = address[0], address[1]
        try:
            _, resolved = resolve(host, port, self.family)
        except (OSError, OverflowError) as problem:
            kind = "IPv6" if self.family == socket.AF_INET6 else "IPv4"
            raise UnreachableError(rank, f"{host}:{port}", 0.0, f"not an {kind} address: {problem}") from problem
        packed = np.frombuffer(pack_address(self.family, resolved), np.uint8).copy()
        self._packed[rank], self.addresses[rank] = packed, resolved
        self.locations[rank] = address_of(packed)

    def describe(self, rank: int) -> str:
        host, port = self.addresses[rank][:2]
        return f"rank {rank} at [{host}]:{port}" if self.family == socket.AF_INET6 else f"rank {rank} at {host}:{port}"
