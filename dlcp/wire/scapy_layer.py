"""The DLCP header and its bodies as scapy layers, generated from the wire table.

Needs scapy, which is no dependency of the package: nothing else in ``dlcp.wire`` imports this module.

    >>> from scapy.layers.inet import IP, UDP
    >>> from dlcp.wire.scapy_layer import DLCP, DLCPReport
    >>> packet = IP(dst="127.0.0.1") / UDP() / DLCP(source=1, destination=0) / DLCPReport.of([3, 5], packets=10, needed=1)
    >>> packet[DLCPReport].missing_packets()
    [3, 5]

Importing it binds the layer to the default UDP port; :func:`bind` adds ports, and :func:`guess` finds DLCP on the ephemeral ports
that ranks use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, cast

import numpy as np
from scapy.fields import (
    BitEnumField,
    BitField,
    ByteEnumField,
    ByteField,
    IntField,
    LongField,
    ShortField,
    StrField,
    StrLenField,
    XLongField,
    XShortField,
)
from scapy.layers.inet import UDP
from scapy.packet import Packet, Raw, bind_bottom_up, bind_layers

from dlcp.wire import codec
from dlcp.wire.header import (
    ABORT_BODY,
    FEEDBACK_BODY,
    HEADER,
    HEADER_BYTES,
    HELLO_BODY,
    REPORT_BODY,
    UDP_PORT,
    VERSION,
    PacketType,
)
from dlcp.wire.layout import Field, Layout

_PLAIN: Final[dict[int, Callable[[str, int], Any]]] = {8: ByteField, 16: ShortField, 32: IntField, 64: LongField}
_TYPES: Final = frozenset(int(kind) for kind in PacketType)
_HEX: Final[dict[str, Callable[[str, Any], Any]]] = {"cookie": XLongField, "check": XShortField, "nonce": XLongField}


class PartsField(ByteField):
    """A byte that carries several things, shown one by one."""

    __slots__ = ["parts"]

    def __init__(self, name: str, default: int, field: Field) -> None:
        super().__init__(name, default)
        self.parts = field.part_shifts()

    def i2repr(self, pkt: Packet | None, x: Any) -> str:
        """Shows the parts that are not zero, or have a name for zero, by name."""
        shown = []
        for part, shift in self.parts:
            value = int(x or 0) >> shift & (1 << part.bits) - 1
            if part.values:
                shown.append(part.values.get(value, f"{part.name} {value}"))
            elif value:
                shown.append(part.name if part.bits == 1 else f"{part.name} {value}")
        return f"{x} ({', '.join(shown)})"


def _scapy_field(field: Field, default: int | None = 0) -> Any:
    if field.parts:
        return PartsField(field.name, 0, field)
    if field.name in _HEX:
        return _HEX[field.name](field.name, default)
    if field.bits in _PLAIN and not field.values:
        return _PLAIN[field.bits](field.name, cast(int, default))
    names = dict(field.values) if field.values else {}
    if field.bits == 8:
        return ByteEnumField(field.name, default, names)
    return BitEnumField(field.name, default, field.bits, names) if names else BitField(field.name, default, field.bits)


def _scapy_fields(layout: Layout, **defaults: int | None) -> list[Any]:
    return [_scapy_field(field, defaults.get(field.name, 0)) for field in layout.fields]


class DLCP(Packet):
    """The 48-byte header.  ``check=None``, the default, is computed when the packet is built."""

    name = "DLCP"
    fields_desc = _scapy_fields(HEADER, version=VERSION, check=None)

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Fills in the check."""
        if self.check is None:
            slot = HEADER.slots["check"]
            check = codec.header_check(np.frombuffer(pkt, np.uint8, HEADER_BYTES)[None])
            pkt = pkt[: slot.byte] + check.tobytes() + pkt[slot.byte + slot.word_bytes :]
        return pkt + pay

    def check_holds(self) -> bool:
        """Tells whether the check of a dissected header holds."""
        return bool(codec.check_ok(np.frombuffer(bytes(self), np.uint8, HEADER_BYTES)[None])[0])

    def mysummary(self) -> str:
        """One line for ``summary()``."""
        return self.sprintf("DLCP %type% %source% > %destination% op %operation% %phase%/%part% offset %offset%")


class DLCPFeedback(Packet):
    """Body of FEEDBACK."""

    name = "DLCP feedback"
    fields_desc = _scapy_fields(FEEDBACK_BODY)


class DLCPReport(Packet):
    """Body of STATUS and STOP with its bitmap of missing packets."""

    name = "DLCP report"
    fields_desc = [  # noqa: RUF012  scapy's metaclass wants a list
        *_scapy_fields(REPORT_BODY),
        StrLenField("bitmap", b"", length_from=lambda report: (report.packets + 7) // 8),
    ]

    @classmethod
    def of(cls, missing_packets: Iterable[int], packets: int, **fields: int) -> DLCPReport:
        """Builds the report that says which of ``packets`` packets are missing.

        Raises:
            ValueError: An index outside the message.
        """
        missing = np.fromiter(missing_packets, np.int64)
        if missing.size and (missing.min() < 0 or missing.max() >= packets):
            raise ValueError(f"packet outside 0..{packets - 1}")
        bits = np.zeros(packets, np.uint8)
        bits[missing] = 1
        values: dict[str, Any] = {"missing": int(bits.sum()), "packets": packets, "bitmap": np.packbits(bits).tobytes(), **fields}
        return cls(**values)

    def missing_packets(self) -> list[int]:
        """Returns the indices of the missing packets, as far as the bitmap reaches."""
        bits = np.unpackbits(np.frombuffer(self.bitmap, np.uint8))[: self.packets]
        return [int(index) for index in np.flatnonzero(bits)]


class DLCPHello(Packet):
    """Body of HELLO and HELLO_ACK; the padding follows as ``Raw``."""

    name = "DLCP hello"
    fields_desc = _scapy_fields(HELLO_BODY)


class DLCPAbort(Packet):
    """Body of ABORT; ``reason`` is UTF-8."""

    name = "DLCP abort"
    fields_desc = [*_scapy_fields(ABORT_BODY), StrField("reason", b"")]  # noqa: RUF012

    def text(self) -> str:
        """Returns the reason; bytes that are not UTF-8 are replaced."""
        return bytes(self.reason).decode("utf-8", "replace")


BODY_LAYERS: Final[dict[PacketType, type[Packet]]] = {
    PacketType.FEEDBACK: DLCPFeedback,
    PacketType.STATUS: DLCPReport,
    PacketType.STOP: DLCPReport,
    PacketType.HELLO: DLCPHello,
    PacketType.HELLO_ACK: DLCPHello,
    PacketType.ABORT: DLCPAbort,
}
for _kind in (PacketType.STOP, PacketType.HELLO_ACK):
    bind_bottom_up(DLCP, BODY_LAYERS[_kind], type=int(_kind))
# Of two types with one body, the one bound both ways is what `DLCP() / body` becomes.
for _kind in (PacketType.FEEDBACK, PacketType.STATUS, PacketType.HELLO, PacketType.ABORT):
    bind_layers(DLCP, BODY_LAYERS[_kind], type=int(_kind))


def bind(port: int) -> None:
    """Takes everything to or from a UDP port for DLCP."""
    bind_bottom_up(UDP, DLCP, dport=port)
    bind_bottom_up(UDP, DLCP, sport=port)


def looks_like_dlcp(payload: bytes) -> bool:
    """Tells a DLCP datagram from anything else by version, type and check; one random datagram in 1.6 million passes."""
    if len(payload) < HEADER_BYTES or payload[0] >> 4 != VERSION or payload[0] & 15 not in _TYPES:
        return False
    return bool(codec.check_ok(np.frombuffer(payload, np.uint8, HEADER_BYTES)[None])[0])


def guess(packet: Packet) -> Packet:
    """Dissects the payload of a UDP packet as DLCP where it looks like DLCP, whatever its port.

    Returns:
        The same packet object, changed in place where it applies.
    """
    if UDP in packet and DLCP not in packet:
        datagram = packet[UDP]
        payload = bytes(datagram.payload)
        if isinstance(datagram.payload, Raw) and looks_like_dlcp(payload):
            datagram.remove_payload()
            datagram.add_payload(DLCP(payload))
    return packet


bind_layers(UDP, DLCP, dport=UDP_PORT)
bind(UDP_PORT)
