"""A network interface as a port: an AF_PACKET socket, a batch of frames a system call (packet(7)).

The kernel takes an outer VLAN tag out of a frame that it receives and reports it beside the frame; here it is put back.  It also
reports a transport checksum that the sender left undone, which is completed here.  Frames that this host sends itself through the
interface are not seen.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import mmap
import socket
import struct
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from softswitch.ports.base import CapabilityError, PortError
from softswitch.ports.checksum import complete
from softswitch.ports.syscalls import IOV_WORDS, MESSAGE_WORDS, address_of, recvmmsg, sendmmsg, supported

BATCH: Final = 64
"""Frames in one system call."""
RECEIVE_BUFFER: Final = 16 << 20
"""Bytes of the socket's receive buffer."""

# linux/if_packet.h
_SOL_PACKET: Final = 263
_PACKET_ADD_MEMBERSHIP: Final = 1
_PACKET_STATISTICS: Final = 6
_PACKET_AUXDATA: Final = 8
_PACKET_IGNORE_OUTGOING: Final = 23
_PACKET_MR_PROMISC: Final = 1
_ETH_P_ALL: Final = 3
_CHECKSUM_NOT_READY: Final = 0x8
_VLAN_VALID: Final = 0x10
_VLAN_TPID_VALID: Final = 0x40
# linux/sockios.h, linux/ethtool.h, linux/if.h, asm-generic/socket.h
_SO_RCVBUFFORCE: Final = 33
_SO_TIMESTAMPNS: Final = 35
_SIOCGIFFLAGS: Final = 0x8913
_SIOCGIFMTU: Final = 0x8921
_SIOCETHTOOL: Final = 0x8946
_ETHTOOL_SGRO: Final = 0x2C
_IFF_UP: Final = 0x1
_IFF_RUNNING: Final = 0x40

# Two control messages, in this order: struct cmsghdr (16 bytes) and struct timespec; struct cmsghdr and struct tpacket_auxdata
# (status, len, snaplen: u32; mac, net, vlan_tci, vlan_tpid: u16).
_SECONDS_AT: Final = 16
_STATUS_AT: Final = 32 + 16
_TCI_AT: Final = 32 + 32
_CONTROL_BYTES: Final = 32 + 40

_HEADERS: Final = 14 + 2 * 4
"""Ethernet header and two VLAN tags, beyond the MTU."""

_HINT: Final = (
    "capturing and sending frames needs CAP_NET_RAW: run as root, or inside `unshare -rn`, or give the interpreter the capability"
    " (`sudo setcap cap_net_raw,cap_net_admin+ep $(readlink -f $(which python3))`); --use-files works without"
)


def is_up(name: str) -> bool:
    """Whether an interface exists, is up, and has a carrier."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFFLAGS, struct.pack("16s16x", name.encode()))
        except OSError:
            return False
    (flags,) = struct.unpack_from("=H", answer, 16)
    return bool(flags & _IFF_UP and flags & _IFF_RUNNING)


class InterfaceIO:
    """Receives all frames that come in at an interface, and sends frames out of it.

    Args:
        name: The interface, in this process's network namespace.

    Raises:
        CapabilityError: Not permitted, or not on this platform.
        PortError: No such interface, or no Ethernet-like one.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.drops: Counter[str] = Counter()
        if not supported() or not hasattr(socket, "AF_PACKET"):
            raise CapabilityError("network interfaces need 64-bit Linux; --use-files works without")
        try:
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        except PermissionError as error:
            raise CapabilityError(_HINT) from error
        try:
            mtu = self._set_up(name)
        except OSError as error:
            self._socket.close()
            if error.errno in (errno.ENODEV, errno.ENXIO):
                raise PortError(f"there is no network interface {name!r} (see `ip link`)") from error
            raise PortError(f"interface {name!r}: {error.strerror}") from error
        self.index = socket.if_nametoindex(name)
        self._fd = self._socket.fileno()
        self._prepare_receive(mtu)
        self._prepare_send()

    def _set_up(self, name: str) -> int:
        handle = self._socket
        request = struct.pack("16s16x", name.encode())
        mtu: int = struct.unpack_from("=i", fcntl.ioctl(handle, _SIOCGIFMTU, request), 16)[0]
        index = socket.if_nametoindex(name)
        handle.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        handle.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        handle.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        handle.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, struct.pack("=iHH8x", index, _PACKET_MR_PROMISC, 0))
        try:
            handle.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BUFFER)
        except OSError:
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        self._stop_merging(name)
        handle.bind((name, _ETH_P_ALL))
        return mtu

    def _stop_merging(self, name: str) -> None:
        """Turns generic receive offload off, which would hand over several frames as one that is too long to forward."""
        command = array.array("I", [_ETHTOOL_SGRO, 0])
        try:
            fcntl.ioctl(self._socket, _SIOCETHTOOL, struct.pack("16sQ8x", name.encode(), command.buffer_info()[0]))
        except OSError:
            pass  # Not every driver has it, and without CAP_NET_ADMIN it stays as it is.

    def _prepare_receive(self, mtu: int) -> None:
        # One byte more than the longest frame, so that a longer one shows.
        self._room = (mtu + _HEADERS + 1 + 63) & ~63
        self._frames = mmap.mmap(-1, BATCH * self._room)
        self._offsets = range(0, BATCH * self._room, self._room)
        self._controls = bytearray(BATCH * _CONTROL_BYTES)
        iov = array.array("Q")
        for offset in self._offsets:
            iov.extend((address_of(self._frames) + offset, self._room))
        self._receive_iov = iov
        messages = array.array("Q")
        iov_address = iov.buffer_info()[0]
        control_address = address_of(self._controls)
        for index in range(BATCH):
            where = iov_address + index * 8 * IOV_WORDS
            messages.extend((0, 0, where, 1, control_address + index * _CONTROL_BYTES, _CONTROL_BYTES, 0, 0))
        self._receive_messages = messages
        self._receive_address = messages.buffer_info()[0]
        self._control_lengths = memoryview(messages)[5::MESSAGE_WORDS]
        self._full_controls = memoryview(array.array("Q", [_CONTROL_BYTES]) * BATCH)
        self._lengths = memoryview(messages).cast("B").cast("I")[2 * (MESSAGE_WORDS - 1) :: 2 * MESSAGE_WORDS]
        self._statuses = memoryview(self._controls).cast("I")[_STATUS_AT // 4 :: _CONTROL_BYTES // 4]
        words = memoryview(self._controls).cast("Q")
        self._seconds = words[_SECONDS_AT // 8 :: _CONTROL_BYTES // 8]
        self._nanoseconds = words[_SECONDS_AT // 8 + 1 :: _CONTROL_BYTES // 8]
        self._kept: list[int] | None = None
        """Which frames of the last batch were kept, if not all."""
        self.more = False
        """Whether there may be more to read than the last batch."""
        self._plain = {0}
        """Statuses seen that ask for nothing to be done."""

    def _prepare_send(self) -> None:
        self._send_iov = array.array("Q", bytes(8 * IOV_WORDS * BATCH))
        words = memoryview(self._send_iov)
        self._send_bases, self._send_lengths = words[0::IOV_WORDS], words[1::IOV_WORDS]
        iov_address = self._send_iov.buffer_info()[0]
        messages = array.array("Q")
        for index in range(BATCH):
            messages.extend((0, 0, iov_address + index * 8 * IOV_WORDS, 1, 0, 0, 0, 0))
        self._send_messages = messages
        self._send_address = messages.buffer_info()[0]

    def fileno(self) -> int:
        return self._fd

    def receive(self) -> list[bytes]:
        self._control_lengths[:] = self._full_controls
        count = recvmmsg(self._fd, self._receive_address, BATCH)
        self.more = count == BATCH
        self._kept = None
        if count <= 0:
            # ENETDOWN is told once when the interface goes down; the link's state is watched elsewhere.
            return []
        frames = self._frames
        lengths = self._lengths[:count].tolist()
        packets = [frames[offset : offset + length] for offset, length in zip(self._offsets, lengths, strict=False)]
        if not self._plain.issuperset(statuses := self._statuses[:count].tolist()) or max(lengths) >= self._room:
            return self._mend(packets, statuses)
        return packets

    def _mend(self, packets: list[bytes], statuses: list[int]) -> list[bytes]:
        """Puts VLAN tags back, completes checksums, and leaves out frames that were cut."""
        result = []
        kept = []
        for index, (packet, status) in enumerate(zip(packets, statuses, strict=True)):
            if not status & (_CHECKSUM_NOT_READY | _VLAN_VALID):
                self._plain.add(status)
            if len(packet) >= self._room:
                self.drops["too-long"] += 1
                continue
            if status & _CHECKSUM_NOT_READY:
                packet = complete(packet)
            if status & _VLAN_VALID:
                tci, tpid = struct.unpack_from("=HH", self._controls, index * _CONTROL_BYTES + _TCI_AT)
                tag = (tpid if status & _VLAN_TPID_VALID else 0x8100) << 16 | tci
                packet = packet[:12] + tag.to_bytes(4, "big") + packet[12:]
            result.append(packet)
            kept.append(index)
        self._kept = kept
        return result

    def times(self, count: int) -> list[int]:
        """When the ``count`` frames of the last batch arrived, in ns of CLOCK_REALTIME, by the kernel's time stamps."""
        seconds, nanoseconds = self._seconds[:BATCH].tolist(), self._nanoseconds[:BATCH].tolist()
        kept = range(count) if self._kept is None else self._kept
        return [seconds[index] * 1_000_000_000 + nanoseconds[index] for index in kept]

    def send(self, packets: Sequence[bytes]) -> int:
        done, total = 0, len(packets)
        while done < total:
            batch = packets[done : done + BATCH]
            count = len(batch)
            whole = b"".join(batch)
            base = ctypes.c_void_p.from_buffer(ctypes.c_char_p(whole)).value or 0
            lengths = array.array("Q", map(len, batch))
            self._send_lengths[:count] = memoryview(lengths)
            self._send_bases[:count] = memoryview(array.array("Q", accumulate(lengths[:-1], initial=base)))
            sent = sendmmsg(self._fd, self._send_address, count)
            if sent > 0:
                done += sent
            elif -sent in (errno.EAGAIN, errno.EWOULDBLOCK):
                return done
            elif -sent != errno.EINTR:
                self.drops[_CAUSES.get(-sent, "send-failed")] += 1
                done += 1
        return done

    def read_drops(self) -> int:
        """Adds what the kernel dropped since the last call, because frames came faster than they were taken, to ``drops``."""
        _, dropped = struct.unpack("=II", self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
        if dropped:
            self.drops["receive-buffer-full"] += dropped
        return int(dropped)

    def close(self) -> None:
        self._socket.close()


_CAUSES: Final = {
    errno.EMSGSIZE: "longer-than-mtu",
    errno.ENETDOWN: "interface-down",
    errno.ENXIO: "interface-down",
    errno.ENODEV: "interface-down",
    errno.ENOBUFS: "interface-full",
    errno.EINVAL: "too-short",
}


__all__ = ["BATCH", "InterfaceIO", "is_up"]
