"""From bursts to the kernel: segmentation offload, ``sendmmsg``, or one call a datagram.

Nothing is copied in user space.  A datagram is two entries of an I/O vector: its header, and its slice of the payload.  A
*message* of the kernel's interface is one datagram, or, with segmentation offload, as many equal ones as fit into 64 KB.  Every
message carries its ToS as a control message, so classes can be mixed in one call (``udp(7)``, ``ip(7)``).

The position in the bursts is kept in whole messages, and the kernel takes or refuses a message as a whole: so after a full send
buffer it goes on exactly where it stopped.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from dlcp.errors import MtuError, UnreachableError
from dlcp.transport.packets import Burst
from dlcp.udp.interface import path_mtu
from dlcp.udp.metrics import PortCounters
from dlcp.udp.peers import PeerTable
from dlcp.udp.probe import Capabilities
from dlcp.udp.syscalls import CMSG, CMSG_HEADER, CMSG_SPACE, MMSGHDR, SOL_UDP, UDP_SEGMENT, address_of, sendmmsg, tos_option
from dlcp.wire.header import HEADER_BYTES

MAX_PAYLOAD: Final = 65507
"""UDP payload bytes of the largest IPv4 packet; also the limit for all segments of one message together."""

_PACKETS: Final = 1024
"""Datagrams in one batch of system calls; ``sendmmsg`` takes at most 1024 messages."""

_BLOCKED: Final = (errno.EAGAIN, errno.EWOULDBLOCK)
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

    Subclasses implement :meth:`_advance`.
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
        self._tos = -1
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

    def _advance(self, bursts: Sequence[Burst], index: int, row: int) -> tuple[int, int, bool]:
        """Sends one batch that starts at datagram ``row`` of burst ``index``.

        Returns:
            The position reached, and whether the kernel's buffer is full.
        """
        raise NotImplementedError

    def _per_message(self, burst: Burst, row: int, count: int) -> tuple[int, int]:
        """Checks ``count`` datagrams of a burst from ``row`` on before the kernel reads their memory.

        Returns:
            UDP payload bytes of the first, and how many datagrams one message may hold.
        """
        sizes = burst.sizes[row : row + count]
        first, last = int(sizes[0]), int(sizes[-1])
        header = burst.headers.shape[1]
        room = 0 if burst.payload is None else burst.payload.size
        # A negative offset is a huge one here.
        ends = (burst.offsets[row : row + count] + sizes).view(np.uint64)
        if int(ends.max()) > room or first < 0 or last < 0:
            raise ValueError(f"burst to rank {burst.peer}: datagrams reach beyond the payload of {room} bytes")
        size = header + first
        if count == 1:
            return size, 1
        if last > first or (count > 2 and bool((sizes[:-1] != first).any())):
            if bool((sizes < 0).any()):
                raise ValueError(f"burst to rank {burst.peer}: a datagram has a negative size")
            return size, 1
        return size, max(1, min(self._segments, MAX_PAYLOAD // max(size, 1)))

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
            if -taken in _BLOCKED:
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


class PlainSender(Sender):
    """Sends one message a call through Python's ``socket``, for kernels without ``sendmmsg``."""

    def _advance(self, bursts: Sequence[Burst], index: int, row: int) -> tuple[int, int, bool]:
        burst = bursts[index]
        total = len(burst.headers)
        if row >= total:
            return index + 1, 0, False
        self._location(burst.peer)
        address = self._peers.addresses[burst.peer]
        with_tos = self._capabilities.tos_cmsg
        tos_control = (*tos_option(self._family), struct.pack("=i", burst.tos))
        if not with_tos:
            self._set_tos(burst.tos)
        size, per = self._per_message(burst, row, total - row)
        counters = self._counters
        while row < total:
            count = min(per, total - row)
            control = [tos_control] if with_tos else []
            if count > 1:
                control.append((SOL_UDP, UDP_SEGMENT, struct.pack("=H", size)))
            elif per == 1:
                size = burst.headers.shape[1] + int(burst.sizes[row])
            counters.send_calls += 1
            try:
                counters.bytes_sent += self._socket.sendmsg(_pieces(burst, row, count), control, 0, address)
            except OSError as problem:
                code = problem.errno or 0
                if code in _BLOCKED:
                    counters.send_blocked += 1
                    return index, row, True
                if self._failed(code, burst.peer, size, count):
                    row += count
                    continue
                return index, row, False
            counters.packets_sent += count
            counters.batches_sent += count > 1
            row += count
        return index + 1, 0, False


def _pieces(burst: Burst, row: int, count: int) -> list[Any]:
    if burst.payload is None:
        return list(burst.headers[row : row + count])
    pieces: list[Any] = []
    stop = row + count
    for header, start, size in zip(
        burst.headers[row:stop], burst.offsets[row:stop].tolist(), burst.sizes[row:stop].tolist(), strict=True
    ):
        pieces += [header, burst.payload[start : start + size]]
    return pieces
