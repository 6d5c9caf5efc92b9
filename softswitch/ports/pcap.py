"""Capture files: classic libpcap, both byte orders, micro- and nanoseconds (draft-ietf-opsawg-pcap)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

from softswitch.ports.base import PortError

_MICROSECONDS: Final = 0xA1B2C3D4
_NANOSECONDS: Final = 0xA1B23C4D
_ETHERNET: Final = 1
_LONGEST: Final = 1 << 18
_SNAP: Final = 1 << 16


def read_pcap(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields (time in ns since the epoch, frame) of a capture of Ethernet frames.

    Raises:
        PortError: Missing, of another format or link type, or damaged.
    """
    try:
        with path.open("rb") as file:
            yield from _records(file, path)
    except OSError as error:
        raise PortError(f"{path}: {error.strerror}") from error


def _records(file: BinaryIO, path: Path) -> Iterator[tuple[int, bytes]]:
    header = file.read(24)
    for order in "<>":
        if len(header) == 24 and struct.unpack_from(order + "I", header)[0] in (_MICROSECONDS, _NANOSECONDS):
            break
    else:
        raise PortError(f"{path}: not a pcap file (pcapng files can be converted with `editcap -F nsecpcap`)")
    magic, *_, link = struct.unpack(order + "IHHiIII", header)
    if link & 0xFFFF != _ETHERNET:
        raise PortError(f"{path}: its link type is {link & 0xFFFF}, not Ethernet")
    unit = 1 if magic == _NANOSECONDS else 1000
    while record := file.read(16):
        seconds, fraction, captured, original = struct.unpack(order + "IIII", record) if len(record) == 16 else (0, 0, 0, 0)
        data = file.read(captured) if captured <= _LONGEST else b""
        if len(record) < 16 or len(data) < captured or captured > _LONGEST:
            raise PortError(f"{path}: damaged or cut off")
        if captured != original:
            raise PortError(f"{path}: a frame of {original} bytes was captured with {captured} bytes only")
        yield seconds * 1_000_000_000 + fraction * unit, data


class PcapWriter:
    """Writes frames to a capture file with nanoseconds.

    Raises:
        PortError: It cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("wb")
        except OSError as error:
            raise PortError(f"{path}: {error.strerror}") from error
        self._file.write(struct.pack("<IHHiIII", _NANOSECONDS, 2, 4, 0, 0, _SNAP, _ETHERNET))
        # A file that is looked at while nothing has been written must be a valid one.
        self._file.flush()

    def write(self, time_ns: int, packets: Iterable[bytes]) -> None:
        """Appends frames, all with one time in ns since the epoch."""
        seconds, fraction = divmod(time_ns, 1_000_000_000)
        for packet in packets:
            self._file.write(struct.pack("<IIII", seconds & 0xFFFFFFFF, fraction, len(packet), len(packet)))
            self._file.write(packet)

    def flush(self) -> None:
        """Makes what was written visible to readers."""
        self._file.flush()

    def close(self) -> None:
        """Ends the file."""
        self._file.close()

    def __enter__(self) -> PcapWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


__all__ = ["PcapWriter", "read_pcap"]
