"""Packets from and to the controller (P4Runtime specification, "Packet I/O").

In the data plane such a packet begins with a controller header; on the stream the header's fields are metadata.
"""

from __future__ import annotations

from finsy.proto import p4r

from softswitch.server.bytestrings import decode, encode
from softswitch.server.codes import invalid
from softswitch.server.schema import HeaderSchema


def packet_in(header: HeaderSchema | None, data: bytes) -> p4r.PacketIn | None:
    """Returns the message of a packet that left through the CPU port, or None if it is shorter than the header."""
    if header is None:
        return p4r.PacketIn(payload=data)
    if len(data) < header.bytes:
        return None
    bits = int.from_bytes(data[: header.bytes], "big")
    total = header.bytes * 8
    metadata = [
        p4r.PacketMetadata(
            metadata_id=field.id, value=encode(bits >> (total - field.offset - field.width) & ((1 << field.width) - 1))
        )
        for field in header.fields
    ]
    return p4r.PacketIn(payload=data[header.bytes :], metadata=metadata)


def packet_out(header: HeaderSchema | None, message: p4r.PacketOut) -> bytes:
    """Returns the packet to put into the CPU port.

    Raises:
        Refusal: INVALID_ARGUMENT, the metadata is not what the P4Info says.
    """
    fields = {} if header is None else {field.id: field for field in header.fields}
    bits = 0
    total = 0 if header is None else header.bytes * 8
    for metadata in message.metadata:
        field = fields.pop(metadata.metadata_id, None)
        if field is None:
            raise invalid(f"metadata field id {metadata.metadata_id} is unknown, or is given twice")
        bits |= decode(metadata.value, field.width, f"metadata {field.name}") << (total - field.offset - field.width)
    if fields:
        raise invalid(f"metadata field {next(iter(fields.values())).name} is missing")
    return bits.to_bytes(total // 8, "big") + message.payload


__all__ = ["packet_in", "packet_out"]
