"""A UDP socket that moves batches of datagrams."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final

from dlcp.errors import AddressError
from dlcp.transport.packets import Burst, Frames
from dlcp.udp.backlog import Backlog
from dlcp.udp.batch import FITS, BatchSender
from dlcp.udp.interface import mtu_of, path_mtu
from dlcp.udp.metrics import PortCounters
from dlcp.udp.peers import PeerTable, resolve
from dlcp.udp.probe import Capabilities, probe
from dlcp.udp.recv import Receiver
from dlcp.udp.send import Sender
from dlcp.udp.syscalls import (
    IP_MTU_DISCOVER,
    IP_PMTUDISC_DO,
    IPV6_DONTFRAG,
    IPV6_MTU_DISCOVER,
    MEMINFO_DROPS,
    SO_MEMINFO,
    SO_RCVBUFFORCE,
    SO_SNDBUFFORCE,
    SO_TIMESTAMPNS,
    SOL_UDP,
    UDP_GRO,
    receive_tos_option,
)

RECEIVE_BUFFER_BYTES: Final = 16 << 20
SEND_BUFFER_BYTES: Final = 2 << 20
JUMBO_MTU: Final = 9000
"""Largest MTU that a policy takes without being told to."""


class DatagramPort:
    """A non-blocking UDP socket with a table of peers.

    Not thread-safe, but for :meth:`metrics`.  Packets are never fragmented: one that is too large for the path is an error
    (:class:`~dlcp.errors.MtuError`), not two packets of which either may be lost.

    Args:
        host: Local address or name; IPv4 or IPv6.
        port: Local port; 0 lets the kernel choose.
        receive_buffer_bytes: Wanted size of the kernel's receive queue; see :attr:`receive_buffer` for what was granted.
        send_buffer_bytes: Wanted size of the kernel's send queue.
        datagram_bytes: UDP payload bytes of the longest datagram expected; None: the interface's MTU, at most 9000.  Longer ones
            are received too; a value near the truth is kind to the caches.
        capabilities: What to use of the kernel; None: everything that :func:`~dlcp.udp.probe.probe` finds.
        clock: Monotonic nanoseconds.

    Attributes:
        address: Host and port that the socket is bound to.
        mtu: MTU in bytes of the interface that owns the address.
        capabilities: What is used.
        receive_buffer: Bytes of receive queue that the kernel granted.
        send_buffer: Bytes of send queue that the kernel granted.

    Raises:
        AddressError: The port is taken, or the address is not on this host.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        receive_buffer_bytes: int = RECEIVE_BUFFER_BYTES,
        send_buffer_bytes: int = SEND_BUFFER_BYTES,
        datagram_bytes: int | None = None,
        capabilities: Capabilities | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._socket, self._family = _bind(host, port)
        self._counters = PortCounters()
        self._drops = 0
        self._refused = False
        self._clock = clock
        try:
            name = self._socket.getsockname()
            self.address: tuple[str, int] = (name[0], name[1])
            self.mtu = mtu_of(self.address[0])
            self.capabilities = probe(self._family) if capabilities is None else capabilities
            self._configure(receive_buffer_bytes, send_buffer_bytes)
            self._peers = PeerTable(self._family)
            self._sender = self._make_sender()
            self._backlog = Backlog(self._socket, self.send_buffer)
            expected = min(self.mtu, JUMBO_MTU) if datagram_bytes is None else datagram_bytes
            self._receiver = Receiver(self._socket, self._family, self.capabilities, expected, self._counters, clock)
        except BaseException:
            self._socket.close()
            raise

    def _configure(self, receive_buffer_bytes: int, send_buffer_bytes: int) -> None:
        sock = self._socket
        self.receive_buffer = _buffer(sock, SO_RCVBUFFORCE, socket.SO_RCVBUF, receive_buffer_bytes)
        self.send_buffer = _buffer(sock, SO_SNDBUFFORCE, socket.SO_SNDBUF, send_buffer_bytes)
        if self._family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, IP_PMTUDISC_DO)
            sock.setsockopt(socket.IPPROTO_IPV6, IPV6_DONTFRAG, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        if self.capabilities.recv_tos:
            sock.setsockopt(*receive_tos_option(self._family), 1)
        if self.capabilities.receive_offload:
            sock.setsockopt(SOL_UDP, UDP_GRO, 1)
        if self.capabilities.arrival_times and self.capabilities.recvmmsg:
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def _make_sender(self) -> Sender:
        kind = BatchSender if self.capabilities.sendmmsg and FITS else Sender
        return kind(self._socket, self._family, self.capabilities, self._peers, self._counters)

    def connect_peer(self, rank: int, address: tuple[str, int]) -> None:
        """Says where a rank listens; may be repeated.

        Raises:
            UnreachableError: The name does not resolve in this socket's address family.
        """
        self._peers.connect(rank, address)

    def path_mtu(self, rank: int) -> int | None:
        """Returns what the kernel knows of the path MTU in bytes to a rank, or None.  Nothing is sent."""
        return path_mtu(self._family, self.address, self._peers.addresses[rank])

    def send(self, bursts: Sequence[Burst]) -> int:
        """Hands bursts to the kernel, in order, until it takes no more.

        A burst of which only a part was taken is remembered: the next call, which must begin with it, goes on behind that part.
        The memory of the bursts is read only during the call.

        Returns:
            How many bursts were handed over whole.

        Raises:
            MtuError: Datagrams are too large for the path.
            UnreachableError: A burst is for a rank that :meth:`connect_peer` does not know.
            ValueError: A burst reaches beyond its payload.
        """
        before = self._counters.packets_sent
        sent = self._sender.send(bursts)
        if sent < len(bursts) or self._refused:
            now = self._clock()
            if self._counters.packets_sent != before:
                self._backlog.taken(now)
                self._sender.message_bytes = self._backlog.limit // 2
            if sent < len(bursts):
                self._backlog.refused(now)
            self._refused = sent < len(bursts)
        return sent

    @property
    def room(self) -> int:
        """Bytes that are worth having ready: what is sent later than that can still be chosen later."""
        return self._backlog.limit

    def receive(self) -> list[Frames]:
        """Takes what has arrived, up to a fixed budget.

        Returns:
            Frames whose ``data`` is valid until the next call; ``lengths`` and ``ecn`` may be read-only.  Empty if nothing came.
        """
        return self._receiver.receive()

    def fileno(self) -> int:
        return self._socket.fileno()

    def metrics(self) -> dict[str, int]:
        """Returns the counters of :class:`~dlcp.udp.metrics.PortCounters`, ``receive_dropped`` and ``receive_buffer``.

        ``receive_dropped`` counts what the kernel threw away because the receive queue was full, aggregated datagrams as one.
        """
        return {**self._counters.snapshot(), "receive_dropped": self._kernel_drops(), "receive_buffer": self.receive_buffer}

    def _kernel_drops(self) -> int:
        # The socket's own counter costs nothing while receiving, and shows drops after which nothing more arrived.
        try:
            answer = self._socket.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 4 * (MEMINFO_DROPS + 1))
        except OSError:
            return self._drops
        if len(answer) == 4 * (MEMINFO_DROPS + 1):
            now = struct.unpack_from("=I", answer, 4 * MEMINFO_DROPS)[0]
            self._drops += (now - self._drops) & 0xFFFFFFFF
        return self._drops

    def close(self) -> None:
        """Closes the socket; may be repeated."""
        if self._socket.fileno() >= 0:
            self._kernel_drops()
            self._sender.close()
            self._receiver.close()
            self._socket.close()


def _bind(host: str, port: int) -> tuple[socket.socket, int]:
    try:
        family, address = resolve(host, port)
    except (OSError, OverflowError) as problem:
        raise AddressError(f"cannot use the local address {host}:{port}: {problem}") from problem
    try:
        sock = socket.socket(family, socket.SOCK_DGRAM)
    except OSError as problem:
        raise AddressError(f"cannot use the local address {host}:{port}: {problem.strerror}") from problem
    try:
        sock.setblocking(False)
        sock.bind(address)
    except OSError as problem:
        sock.close()
        raise AddressError(f"cannot use the local address {host}:{port}: {problem.strerror}") from problem
    return sock, family


def _buffer(sock: socket.socket, force: int, plain: int, size: int) -> int:
    """Asks for a buffer, beyond the system's limit if privileged, and returns what was granted."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, force, size)
    except OSError:
        sock.setsockopt(socket.SOL_SOCKET, plain, size)
    # The kernel doubles what is asked for, to account for its own overhead (socket(7)).
    return sock.getsockopt(socket.SOL_SOCKET, plain) // 2
