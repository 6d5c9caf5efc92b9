"""The bytes on the wire: one table, and everything that reads or writes them.

``scapy_layer`` is imported by those who want it; it needs scapy, and nothing here does.
"""

from dlcp.wire.bodies import BODIES, PREFIX_BYTES, Body, Tail, expected_bytes
from dlcp.wire.codec import check_ok, encode_header, encode_headers, gather, header_check, records, seal
from dlcp.wire.header import (
    ABORT_BODY,
    CONTROL_CLASS,
    FEEDBACK_BODY,
    HEADER,
    HEADER_BYTES,
    HELLO_BODY,
    ITEM_BYTES,
    LAYER_CLASSES,
    REPORT_BODY,
    UDP_PORT,
    VERSION,
    AbortKind,
    PacketType,
    Phase,
    WireType,
)
from dlcp.wire.layout import Field, Layout, Slot, put

__all__ = [
    "ABORT_BODY",
    "BODIES",
    "CONTROL_CLASS",
    "FEEDBACK_BODY",
    "HEADER",
    "HEADER_BYTES",
    "HELLO_BODY",
    "ITEM_BYTES",
    "LAYER_CLASSES",
    "PREFIX_BYTES",
    "REPORT_BODY",
    "UDP_PORT",
    "VERSION",
    "AbortKind",
    "Body",
    "Field",
    "Layout",
    "PacketType",
    "Phase",
    "Slot",
    "Tail",
    "WireType",
    "check_ok",
    "encode_header",
    "encode_headers",
    "expected_bytes",
    "gather",
    "header_check",
    "put",
    "records",
    "seal",
]
