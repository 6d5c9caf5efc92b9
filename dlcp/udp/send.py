"""From bursts to the kernel: the rules that every way of sending shares, and the way that needs only Python's ``socket``.

Nothing is copied in user space.  A datagram is two entries of an I/O vector: its header, and its slice of the payload.  A
*message* of the kernel's interface is one datagram, or, with segmentation offload, as many equal ones as fit into 64 KB.  Every
message carries its ToS as a control message, so classes can be mixed (``udp(7)``, ``ip(7)``).

The position in the bursts is kept in whole messages, and the kernel takes or refuses a message as a whole: so after a full send
buffer it goes on exactly where it stopped.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any, Final

from dlcp.errors import MtuError, UnreachableError
from dlcp.transport.packets import Burst
from dlcp.udp.interface import path_mtu
from dlcp.udp.metrics import PortCounters
from dlcp.udp.peers import PeerTable
from dlcp.udp.probe import Capabilities
from dlcp.udp.syscalls import SOL_UDP, UDP_SEGMENT, tos_option

MAX_PAYLOAD: Final = 65507
"""UDP payload bytes of the largest IPv4 packet; also the limit for all segments of one message together."""

BLOCKED: Final = (errno.EAGAIN, errno.EWOULDBLOCK)
# The network's business: the peer may not be up yet, a link may be down, a queue or a firewall may drop.  Timeouts decide.
_REFUSED: Final = frozenset(
    {
        errno.ECONNREFUSED,
        errno.EHOSTUNREACH,
        errno.EHOSTDOWN,
        errno.ENETUNREACH,
        errno.ENETDOWN,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.EPERM,
    }
)


class Sender:
    """Sends bursts in order through one socket, and remembers how far it came.

    It needs no more than Python's ``socket``: one call a message, which is the way where there is no ``sendmmsg``.

    Attributes:
        message_bytes: UDP payload bytes that one message may hold, if that is more than one datagram.
    """

    def __init__(
        self, sock: socket.socket, family: int, capabilities: Capabilities, peers: PeerTable, counters: PortCounters
    ) -> None:
        self._socket = sock
        self._descriptor = sock.fileno()
        self._family = family
        self._capabilities = capabilities
        self._segments = capabilities.max_segments if capabilities.segmentation else 1
        self._peers = peers
        self._counters = counters
        self.message_bytes = MAX_PAYLOAD
        self._tos = -1
        self._tos_controls: dict[int, tuple[int, int, bytes]] = {}
        self._partial: Burst | None = None
        self._row = 0

    def close(self) -> None:
        """Forgets the descriptor, whose number the process may give to another file."""
        self._descriptor = -1

    def send(self, bursts: Sequence[Burst]) -> int:
        """Sends until the kernel takes no more.  See :meth:`dlcp.udp.port.DatagramPort.send`."""
        total = len(bursts)
        index = 0
        row = self._row if total and bursts[0] is self._partial else 0
        self._partial = None
        blocked = False
        while index < total and not blocked:
            index, row, blocked = self._advance(bursts, index, row)
        if index < total and row:
            self._partial, self._row = bursts[index], row
        return index

    def _set_tos(self, tos: int) -> None:
        """Sets the ToS on the socket, for kernels that do not take it with each message."""
        if tos != self._tos:
            self._socket.setsockopt(*tos_option(self._family), tos)
            self._tos = tos

    def _give_up_segmentation(self) -> None:
        self._segments = 1

    def _failed(self, code: int, peer: int, size: int, datagrams: int) -> bool:
        """Judges the error of one message of ``datagrams`` datagrams, the first of ``size`` bytes.

        Returns:
            True: the message is lost, go on behind it.  False: send it again.

        Raises:
            MtuError: The datagrams are too large for the path.
            OSError: Any other error that is not the network's business.
        """
        if code in _REFUSED:
            self._counters.send_refused += datagrams
            return True
        if code == errno.EINTR:
            return False
        overhead = 48 if self._family == socket.AF_INET6 else 28
        known = path_mtu(self._family, self._socket.getsockname()[:2], self._peers.addresses[peer])
        # Before Linux 6.14 a segment larger than the path MTU is EINVAL.
        if code == errno.EMSGSIZE or (code == errno.EINVAL and known is not None and size + overhead > known):
            limit = f"the path carries {known} bytes" if known is not None else "the path carries less"
            raise MtuError(
                f"packets of {size + overhead} bytes ({size} bytes of UDP payload) do not pass to "
                f"{self._peers.describe(peer)}: {limit}; lower wire.mtu in the policy"
            )
        if datagrams > 1 and code in (errno.EIO, errno.EINVAL, errno.EOPNOTSUPP):
            # EIO: the route's device cannot checksum segments, or IPsec is in the way, though the loopback could.
            self._give_up_segmentation()
            return False
        raise OSError(code, f"sending {size} bytes to {self._peers.describe(peer)}: {os.strerror(code)}")

    def _location(self, rank: int) -> int:
        try:
            return self._peers.locations[rank]
        except KeyError:
            raise UnreachableError(rank, "an unknown address", 0.0, "connect_peer() has not been called for it") from None

    def _tos_control(self, tos: int) -> tuple[int, int, bytes]:
        """Returns the control message that carries a ToS byte."""
        known = self._tos_controls.get(tos)
        if known is None:
            known = self._tos_controls[tos] = (*tos_option(self._family), struct.pack("=i", tos))
        return known

    def _advance(self, bursts: Sequence[Burst], index: int, row: int) -> tuple[int, int, bool]:
        """Sends what starts at datagram ``row`` of burst ``index``: here, the rest of that burst, message by message.

        Returns:
            The position reached, and whether the kernel's buffer is full.
        """
        burst = bursts[index]
        total = len(burst.headers)
        if row >= total:
            return index + 1, 0, False
        self._location(burst.peer)
        address = self._peers.addresses[burst.peer]
        control = []
        if self._capabilities.tos_cmsg:
            control.append(self._tos_control(burst.tos))
        else:
            self._set_tos(burst.tos)
        pieces, sizes = _pieces(burst, row)
        per = _per_message(sizes, self._segments, self.message_bytes)
        cut = [*control, (SOL_UDP, UDP_SEGMENT, struct.pack("=H", sizes[0]))] if per > 1 else control
        counters = self._counters
        for start in range(0, total - row, per):
            count = min(per, total - row - start)
            counters.send_calls += 1
            try:
                counters.bytes_sent += self._socket.sendmsg(
                    pieces[2 * start : 2 * (start + count)], cut if count > 1 else control, 0, address
                )
            except OSError as problem:
                code = problem.errno or 0
                if code in BLOCKED:
                    counters.send_blocked += 1
                    return index, row + start, True
                if self._failed(code, burst.peer, sizes[start], count):
                    continue
                return index, row + start, False
            counters.packets_sent += count
            counters.batches_sent += count > 1
        return index + 1, 0, False


def _per_message(sizes: list[int], segments: int, most: int) -> int:
    """Returns how many datagrams one message may hold: all but the last must have the same size, and that may be smaller."""
    size = sizes[0]
    if len(sizes) == 1 or segments == 1 or sizes[-1] > size or any(other != size for other in sizes[1:-1]):
        return 1
    return max(1, min(segments, min(MAX_PAYLOAD, most) // max(size, 1)))


def _pieces(burst: Burst, row: int) -> tuple[list[Any], list[int]]:
    """Returns header and payload of each datagram from ``row`` on, two pieces each, and the bytes of both together.

    Raises:
        ValueError: A datagram reaches beyond the payload.
    """
    payload, width = burst.payload, burst.headers.shape[1]
    room = 0 if payload is None else payload.size
    view: Any = b"" if payload is None else payload.data
    pieces: list[Any] = []
    sizes: list[int] = []
    for header, start, size in zip(burst.headers[row:], burst.offsets[row:].tolist(), burst.sizes[row:].tolist(), strict=True):
        if start < 0 or size < 0 or start + size > room:
            raise ValueError("a burst has datagrams that reach beyond its payload")
        pieces += (header, view[start : start + size])
        sizes.append(width + size)
    return pieces, sizes
