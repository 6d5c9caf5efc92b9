"""The wire format of protocol buffers, as far as reading needs it (protobuf.dev/programming-guides/encoding)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sim.readers.text import InputError

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5
MAX_PACKED: Final = 1_000_000
"""Most numbers of a repeated field."""
_LENGTHS: Final = {FIXED64: 8, FIXED32: 4}


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a file that holds one message.

    Attributes:
        source: The file.
        data: All of it.
        begin, end: The part.
        name: What it is, for errors.
    """

    source: str
    data: bytes
    begin: int
    end: int
    name: str

    def error(self, at: int, problem: str, accepted: str) -> InputError:
        """Makes an error that names the position."""
        return InputError(self.source, f"byte {at}, {self.name}", problem, accepted)

    def text(self) -> str:
        """Returns the content as text; raises InputError if it is not UTF-8."""
        try:
            return self.data[self.begin : self.end].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(self.begin + error.start, "is not UTF-8", "text in UTF-8") from None


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message.

    Attributes:
        number: Its number.
        kind: Its wire type.
        value: Of a varint or fixed field, unsigned.
        span: Content of a field of bytes, or where any other stands.
    """

    number: int
    kind: int
    value: int
    span: Span

    def expect(self, kind: int, name: str) -> None:
        """Raises InputError unless the field has a wire type."""
        if self.kind != kind:
            raise self.span.error(self.span.begin, f"{name} has wire type {self.kind}", f"wire type {kind}")

    def integer(self, name: str) -> int:
        """Returns an unsigned varint; raises InputError for another wire type."""
        self.expect(VARINT, name)
        return self.value

    def text(self, name: str) -> str:
        """Returns text; raises InputError for another wire type."""
        self.expect(BYTES, name)
        return self.span.text()


def varint(span: Span, at: int) -> tuple[int, int]:
    """Returns the varint at a position, and the position after it.

    Raises:
        InputError: It is cut off, or has more than 64 bits.
    """
    value = shift = 0
    first = at
    while True:
        if at >= span.end:
            raise span.error(first, "ends within a varint", "up to ten bytes of which the last is below 128")
        byte = span.data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise span.error(first, "a varint of more than ten bytes", "up to ten bytes")
    if value >> 64:
        raise span.error(first, "a varint of more than 64 bits", "up to 64 bits")
    return value, at


def fields(span: Span) -> Iterator[Field]:
    """Yields the fields of a message.

    Raises:
        InputError: A field does not end within the message, or has a number or wire type that does not exist.
    """
    at = span.begin
    while at < span.end:
        first = at
        tag, at = varint(span, at)
        number, kind = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise span.error(first, f"field number {number}", "a number from 1 to 536870911")
        value, begin = 0, at
        if kind == VARINT:
            value, at = varint(span, at)
        elif kind == BYTES:
            length, begin = varint(span, at)
            if length > span.end - begin:
                problem = f"field {number} has {length} bytes, but {span.end - begin} are left"
                raise span.error(first, problem, "a field that ends within its message")
            at = begin + length
        elif kind in _LENGTHS:
            at += _LENGTHS[kind]
            if at > span.end:
                raise span.error(first, f"ends within field {number}", f"{_LENGTHS[kind]} bytes")
            value = struct.unpack_from("<Q" if kind == FIXED64 else "<I", span.data, begin)[0]
        else:
            raise span.error(first, f"field {number} has wire type {kind}", "wire type 0, 1, 2 or 5")
        yield Field(number, kind, value, Span(span.source, span.data, begin, at, f"{span.name}, field {number}"))


def packed(field: Field, name: str) -> list[int]:
    """Returns the varints of a repeated field, packed or not; raises InputError."""
    if field.kind == VARINT:
        return [field.value]
    field.expect(BYTES, name)
    values, at = [], field.span.begin
    while at < field.span.end:
        value, at = varint(field.span, at)
        values.append(value)
        if len(values) > MAX_PACKED:
            raise field.span.error(field.span.begin, f"more than {MAX_PACKED} {name}", f"up to {MAX_PACKED}")
    return values


def delimited(source: str, data: bytes, name: str) -> Iterator[Span]:
    """Yields the messages of a file, before each of which stands its length as a varint; raises InputError."""
    whole = Span(source, data, 0, len(data), name)
    at = number = 0
    while at < len(data):
        length, begin = varint(whole, at)
        if length > len(data) - begin:
            raise whole.error(at, f"message {number} has {length} bytes, but {len(data) - begin} are left", "a whole file")
        yield Span(source, data, begin, begin + length, f"message {number}")
        at, number = begin + length, number + 1


def signed(value: int, bits: int = 64) -> int:
    """Returns a number in two's complement."""
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def zigzag(value: int) -> int:
    """Returns the number that zigzag encoding stands for."""
    return value >> 1 ^ -(value & 1)


__all__ = ["BYTES", "VARINT", "Field", "Span", "delimited", "fields", "packed", "signed", "varint", "zigzag"]
