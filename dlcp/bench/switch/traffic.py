"""DLCP traffic for a switch: as much as it forwards, and no more.

The sender keeps a bounded number of packets in the switch, as a window protocol would.  With a window no larger than a queue of
the switch nothing can be lost, and the switch is never idle either: what comes out per second is its highest rate without loss,
without a search for it.  What is lost all the same is noticed by its not coming out, and counted.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from dlcp.bench.switch.network import ArrivalCounter
from dlcp.compiler.raw import address_of
from dlcp.policy import Policy
from dlcp.udp.syscalls import IOVEC, MMSGHDR, sendmmsg
from dlcp.wire.codec import encode_header
from dlcp.wire.header import HEADER_BYTES, LAYER_CLASSES, UDP_PORT, PacketType

_HEADERS: Final = 14 + 20 + 8 + HEADER_BYTES
_PAUSE_S: Final = 20e-6
_SILENCE_S: Final = 0.2
"""Packets that have not come out after this time without any coming are lost."""


def _checksum(data: bytes) -> int:
    """RFC 1071; the all-zero sum, which no header has, is not cared for."""
    return 0xFFFF - int.from_bytes(data + b"\0" * (len(data) & 1), "big") % 0xFFFF


def make_frames(count: int, size: int, source: tuple[str, str], destination: tuple[str, str]) -> list[bytes]:
    """Builds Ethernet frames with DLCP data, over all classes, protected and not, tagged as the default policy says.

    Args:
        count: Number of frames.
        size: Bytes of each, Ethernet header included.
        source, destination: MAC and IPv4 address.
    """
    if size < _HEADERS:
        raise ValueError(f"{size} B are less than the headers' {_HEADERS}")
    policy = Policy()
    ethernet = bytes.fromhex((destination[0] + source[0]).replace(":", "")) + b"\x08\0"
    addresses = socket.inet_aton(source[1]) + socket.inet_aton(destination[1])
    payload = bytes(index * 7 & 0xFF for index in range(size - _HEADERS))
    frames = []
    for index in range(count):
        priority, protected = index % LAYER_CLASSES, index // LAYER_CLASSES % 2
        header = encode_header(
            type=int(PacketType.DATA),
            priority=priority,
            protected=protected,
            source=0,
            destination=1,
            cookie=0x1122_3344_5566_7788,
            length=count * len(payload),
            offset=index * len(payload),
            sequence=index,
            stride=len(payload),
        )
        length = 8 + len(header) + len(payload)
        udp = struct.pack("!HHHH", UDP_PORT, UDP_PORT, length, 0) + header + payload
        check = _checksum(addresses + struct.pack("!HH", socket.IPPROTO_UDP, length) + udp) or 0xFFFF
        ip = struct.pack("!BBHHHBBH", 0x45, policy.tos(priority, bool(protected)), 20 + length, 0, 0, 64, 17, 0) + addresses
        ip = ip[:10] + _checksum(ip).to_bytes(2, "big") + ip[12:]
        frames.append(ethernet + ip + udp[:6] + check.to_bytes(2, "big") + udp[8:])
    return frames


class BurstSender:
    """Sends a fixed set of frames out of an interface, a burst a system call."""

    def __init__(self, interface: str, frames: Sequence[bytes]) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._socket.bind((interface, 0))
        self._bytes = np.frombuffer(b"".join(frames), np.uint8).copy()
        lengths = np.array([len(frame) for frame in frames], np.uintp)
        self._iov = np.zeros(len(frames), IOVEC)
        self._iov["base"] = address_of(self._bytes) + np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.uintp)
        self._iov["length"] = lengths
        self._messages = np.zeros(len(frames), MMSGHDR)
        self._messages["iov"] = address_of(self._iov) + np.arange(len(frames), dtype=np.uintp) * np.uintp(IOVEC.itemsize)
        self._messages["iov_length"] = 1
        self._address = address_of(self._messages)
        self._count = len(frames)
        self._next = 0

    def send(self, count: int) -> int:
        """Sends up to ``count`` frames, the next ones of the set; returns how many."""
        count = min(count, self._count - self._next)
        sent = sendmmsg(self._socket.fileno(), self._address + self._next * MMSGHDR.itemsize, count)
        if sent <= 0:
            return 0
        self._next = (self._next + sent) % self._count
        return sent

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one run.

    Attributes:
        seconds: Wall clock.
        packets: Packets that came out.
        by_path: The same, by the interface they came to.
        lost: Packets that did not.
    """

    seconds: float
    packets: int
    by_path: tuple[int, ...]
    lost: int


def drive(
    sender: BurstSender,
    counter: ArrivalCounter,
    *,
    seconds: float,
    window: int,
    burst: int,
    clock: Callable[[], float] = time.monotonic,
) -> Run:
    """Keeps up to ``window`` packets in the switch for ``seconds``, then waits for the last ones."""
    first = counter.read()
    before, sent, lost = sum(first), 0, 0
    received = 0
    begin = progress = clock()
    end = begin + seconds
    while True:
        now = clock()
        count = sum(counter.read()) - before
        if count > received:
            received, progress = count, now
        under_way = sent - lost - received
        if now >= end and under_way <= 0:
            break
        if under_way > 0 and now - progress > _SILENCE_S:
            lost += under_way
            progress = now
        elif now < end and window - under_way >= burst:
            if not under_way:
                progress = now
            sent += sender.send(burst)
        else:
            # Not spinning: the switch may want this core.
            time.sleep(_PAUSE_S)
    counts = tuple(after - former for after, former in zip(counter.read(), first, strict=True))
    return Run(now - begin, sum(counts), counts, sent - sum(counts))


__all__ = ["BurstSender", "Run", "drive", "make_frames"]
