"""Reads capture files (pcap and pcapng, also gzipped) and finds the UDP datagrams in them.

Formats: draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng; link types as registered by the tcpdump group.  Nothing is trusted:
every length is compared with what is there, and nothing is read that a length promises without a bound.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final, NamedTuple

from dlcp.errors import ConfigError

MAX_FRAME_BYTES: Final = 1 << 18
"""libpcap's own limit of the snap length."""
_MAX_BLOCK_BYTES: Final = 1 << 24
_ACCEPTED: Final = "a pcap or pcapng file of tcpdump, dumpcap or Wireshark, gzipped or not"

_ETHERNET, _NULL, _RAW_BSD, _RAW, _LOOP, _SLL, _IPV4, _IPV6, _SLL2 = 1, 0, 12, 101, 108, 113, 228, 229, 276
_TYPE_IPV4, _TYPE_IPV6 = 0x0800, 0x86DD
_VLAN_TYPES: Final = (0x8100, 0x88A8, 0x9100)
_FIXED_LINK_HEADER: Final = {_NULL: 4, _LOOP: 4, _RAW_BSD: 0, _RAW: 0, _IPV4: 0, _IPV6: 0, 14: 0}
_IPV6_OPTIONS: Final = (0, 43, 60)
_UDP: Final = 17


class Frame(NamedTuple):
    """One captured frame: link type, bytes that were captured, bytes that it had, seconds since 1970."""

    link: int
    data: bytes
    wire_bytes: int
    time: float


@dataclass(frozen=True, slots=True)
class Datagram:
    """A UDP datagram from a capture.

    Attributes:
        payload: What was captured of the payload.
        size: Bytes that the payload had.
        tos: IP ToS or traffic class byte.
        source: IP address and port as bytes: an opaque key, equal for equal endpoints.
        destination: The same.
        ports: Source and destination port.
        time: Seconds since 1970.
    """

    payload: bytes
    size: int
    tos: int
    source: bytes
    destination: bytes
    ports: tuple[int, int]
    time: float


class Capture:
    """Iterates over the frames of a capture file.

    Args:
        file: Opened in binary mode; need not be seekable.
        name: For messages.

    Attributes:
        position: Bytes of the (unzipped) capture read so far.
        cut_off: The file ended in the middle of a record, as it does when the capturing program is killed.

    Raises:
        ConfigError: Not a capture, or damaged.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        buffered = file if isinstance(file, io.BufferedReader) else io.BufferedReader(file)  # type: ignore[type-var]
        zipped = buffered.peek(2)[:2] == b"\x1f\x8b"
        self._file: BinaryIO = gzip.GzipFile(fileobj=buffered) if zipped else buffered  # type: ignore[assignment]
        self._name = name
        self.position = 0
        self.cut_off = False

    def __iter__(self) -> Iterator[Frame]:
        magic = self._read(4)
        if magic == b"\x0a\x0d\x0d\x0a":
            return self._blocks()
        for order in "<>":
            for number, scale in ((0xA1B2C3D4, 1e-6), (0xA1B23C4D, 1e-9)):
                if magic == struct.pack(order + "I", number):
                    return self._records(order, scale)
        raise self._error("this is no capture file")

    def _records(self, order: str, scale: float) -> Iterator[Frame]:
        header = self._read(20)
        if len(header) < 20:
            raise self._error("the file header is cut off")
        link = struct.unpack(order + "HHiIII", header)[5] & 0xFFFF
        record = struct.Struct(order + "IIII")
        while head := self._read(16):
            if len(head) < 16:
                self.cut_off = True
                return
            seconds, fraction, captured, wire = record.unpack(head)
            if captured > MAX_FRAME_BYTES:
                raise self._error(f"a frame of {captured} bytes")
            data = self._read(captured)
            if len(data) < captured:
                self.cut_off = True
                return
            yield Frame(link, data, max(wire, captured), seconds + fraction * scale)

    def _blocks(self) -> Iterator[Frame]:
        order, kind = "", b"\x0a\x0d\x0d\x0a"
        interfaces: list[tuple[int, float]] = []
        while kind:
            rest = self._read(8 if kind == b"\x0a\x0d\x0d\x0a" else 4)
            if kind == b"\x0a\x0d\x0d\x0a":
                order = {b"\x1a\x2b\x3c\x4d": ">", b"\x4d\x3c\x2b\x1a": "<"}.get(rest[4:], "")
                if not order:
                    raise self._error("a section without byte order")
                interfaces = []
            elif len(rest) < 4:
                self.cut_off = True
                return
            total = struct.unpack(order + "I", rest[:4])[0]
            if not 12 <= total <= _MAX_BLOCK_BYTES or total % 4 or total < 8 + len(rest):
                raise self._error(f"a block of {total} bytes")
            body = self._read(total - 4 - len(rest))
            if len(body) < total - 4 - len(rest):
                self.cut_off = True
                return
            number = struct.unpack(order + "I", kind)[0]
            if number == 1:
                interfaces.append(self._interface(order, body[:-4]))
            elif number in (2, 3, 6):
                frame = self._packet(order, number, body[:-4], interfaces)
                if frame is not None:
                    yield frame
            kind = self._read(4)
            if 0 < len(kind) < 4:
                self.cut_off = True
                return

    def _interface(self, order: str, body: bytes) -> tuple[int, float]:
        """Returns link type and seconds per tick of an interface description."""
        if len(body) < 8:
            raise self._error("an interface description that is too short")
        link, tick, at = struct.unpack_from(order + "H", body)[0], 1e-6, 8
        while at + 4 <= len(body):
            code, size = struct.unpack_from(order + "HH", body, at)
            if code == 9 and size >= 1 and at + 4 < len(body):  # if_tsresol
                value = body[at + 4]
                tick = 2.0 ** -(value & 0x7F) if value & 0x80 else 10.0**-value
            at += 4 + (size + 3) // 4 * 4
        return link, tick

    def _packet(self, order: str, number: int, body: bytes, interfaces: list[tuple[int, float]]) -> Frame | None:
        head = 4 if number == 3 else 20
        if len(body) < head:
            raise self._error("a packet block that is too short")
        if number == 3:  # simple packet block: no interface, no time, length by the block
            (wire,) = struct.unpack_from(order + "I", body)
            index, ticks, captured = 0, 0, min(wire, len(body) - head)
        else:
            layout = "IIIII" if number == 6 else "HHIIII"
            values = struct.unpack_from(order + layout, body)
            index, (high, low, captured, wire) = values[0], values[-4:]
            ticks = high << 32 | low
        if index >= len(interfaces) or captured > len(body) - head:
            raise self._error("a packet block that contradicts itself")
        link, tick = interfaces[index]
        return Frame(link, body[head : head + captured], max(wire, captured), ticks * tick)

    def _read(self, size: int) -> bytes:
        try:
            data = self._file.read(size)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            data = b""
            self.cut_off = True
        self.position += len(data)
        return data

    def _error(self, problem: str) -> ConfigError:
        return ConfigError(self._name, "capture", f"{problem} (at byte {self.position})", _ACCEPTED)


def datagram_of(frame: Frame) -> Datagram | None:
    """Finds the UDP datagram in a frame; None for everything else, later fragments of a datagram included."""
    data, link = frame.data, frame.link
    if link == _ETHERNET:
        at, kind = 14, data[12:14]
        while len(kind) == 2 and int.from_bytes(kind, "big") in _VLAN_TYPES:
            at, kind = at + 4, data[at + 2 : at + 4]
    elif link == _SLL:
        at, kind = 16, data[14:16]
    elif link == _SLL2:
        at, kind = 20, data[0:2]
    elif link in _FIXED_LINK_HEADER:
        at = _FIXED_LINK_HEADER[link]
        version = data[at] >> 4 if len(data) > at else 0
        kind = {4: b"\x08\x00", 6: b"\x86\xdd"}.get(version, b"")
    else:
        return None
    name = int.from_bytes(kind, "big")
    if name == _TYPE_IPV4:
        return _ipv4(frame, at)
    return _ipv6(frame, at) if name == _TYPE_IPV6 else None


def _ipv4(frame: Frame, at: int) -> Datagram | None:
    data = frame.data
    if len(data) < at + 20 or data[at] >> 4 != 4 or data[at + 9] != _UDP:
        return None
    header = (data[at] & 15) * 4
    later_fragment = struct.unpack_from("!H", data, at + 6)[0] & 0x1FFF
    if header < 20 or later_fragment:
        return None
    return _udp(frame, at + header, data[at + 1], data[at + 12 : at + 16], data[at + 16 : at + 20])


def _ipv6(frame: Frame, at: int) -> Datagram | None:
    data = frame.data
    if len(data) < at + 40 or data[at] >> 4 != 6:
        return None
    following, end = data[at + 6], at + 40
    while following in _IPV6_OPTIONS and len(data) >= end + 2:
        following, end = data[end], end + 8 * (data[end + 1] + 1)
    if following != _UDP:
        return None
    tos = struct.unpack_from("!H", data, at)[0] >> 4 & 0xFF
    return _udp(frame, end, tos, data[at + 8 : at + 24], data[at + 24 : at + 40])


def _udp(frame: Frame, at: int, tos: int, source: bytes, destination: bytes) -> Datagram | None:
    data = frame.data
    if len(data) < at + 8:
        return None
    sport, dport, length = struct.unpack_from("!HHH", data, at)
    if not length:  # larger than its own field can say: a super-packet
        length = frame.wire_bytes - at
    if length < 8:
        return None
    payload = data[at + 8 : at + length]
    return Datagram(
        payload, length - 8, tos, source + data[at : at + 2], destination + data[at + 2 : at + 4], (sport, dport), frame.time
    )
