"""Integers as byte strings (P4Runtime specification, "Bytestrings").

Sent: the shortest big-endian string that holds the value, at least one byte.  Received: any length, as long as the value fits the
width of the P4 object; an empty string never does.

The specification names two codes for a string that is refused: OUT_OF_RANGE where it speaks of byte strings, INVALID_ARGUMENT
where it speaks of match fields, action parameters, register cells and packet metadata.  Here it is INVALID_ARGUMENT, as with
BMv2.
"""

from __future__ import annotations

from softswitch.server.codes import invalid


def encode(value: int) -> bytes:
    """Returns the canonical string of an unsigned value."""
    return value.to_bytes((value.bit_length() + 7) // 8 or 1, "big")


def encode_signed(value: int) -> bytes:
    """Returns the canonical two's complement string of a signed value."""
    bits = (value if value >= 0 else ~value).bit_length() + 1
    return value.to_bytes((bits + 7) // 8, "big", signed=True)


def decode(data: bytes, width: int, what: str) -> int:
    """Returns the unsigned value of ``data``.

    Args:
        data: Received string.
        width: Bits that the value may have.
        what: Name of the object, for the message.

    Raises:
        Refusal: INVALID_ARGUMENT, empty, or the value has more bits.
    """
    value = int.from_bytes(data, "big")
    if not data:
        raise invalid(f"{what}: the byte string is empty")
    if value >> width:
        raise invalid(f"{what}: the value does not fit into {width} bits")
    return value


def decode_signed(data: bytes, width: int, what: str) -> int:
    """Returns the signed value of ``data`` in two's complement; see ``decode``."""
    value = int.from_bytes(data, "big", signed=True)
    if not data:
        raise invalid(f"{what}: the byte string is empty")
    if not -(1 << width - 1) <= value < 1 << width - 1:
        raise invalid(f"{what}: the value does not fit into {width} bits")
    return value


__all__ = ["decode", "decode_signed", "encode", "encode_signed"]
