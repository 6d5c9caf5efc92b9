"""Values of arbitrary P4 types (P4Runtime specification, "Representation of Arbitrary P4 Types").

The data plane keeps plain unsigned bit patterns.  A ``Codec`` turns a row of them into a ``P4Data`` message and back: structs,
tuples, headers and header stacks are flattened field by field, in order of declaration, as p4c does for registers and digests on
BMv2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from finsy.proto import p4d, p4i, p4t

from softswitch.server import bytestrings
from softswitch.server.codes import invalid

MAX_DEPTH = 32


class Codec:
    """Codec of one type.

    Attributes:
        widths: Bits of each flattened field.
    """

    widths: tuple[int, ...] = ()

    def encode(self, values: Iterator[int]) -> p4d.P4Data:
        """Takes as many values as there are widths and returns the message."""
        raise NotImplementedError

    def decode(self, data: p4d.P4Data, what: str) -> list[int]:
        """Returns the values in ``data``.

        Raises:
            Refusal: INVALID_ARGUMENT, not of this type.
        """
        raise NotImplementedError


def _expect(data: p4d.P4Data, kind: str, what: str) -> None:
    if data.WhichOneof("data") != kind:
        raise invalid(f"{what}: expected a P4Data with {kind}, got {data.WhichOneof('data')}")


def _count(got: int, expected: int, what: str) -> None:
    if got != expected:
        raise invalid(f"{what}: expected {expected} members, got {got}")


@dataclass(frozen=True)
class Bits(Codec):
    """bit<W>, and with ``signed`` int<W>."""

    width: int
    signed: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", (self.width,))

    def pack(self, value: int) -> bytes:
        """Returns the canonical string of a bit pattern."""
        if self.signed:
            return bytestrings.encode_signed(value - (1 << self.width) if value >> (self.width - 1) else value)
        return bytestrings.encode(value)

    def unpack(self, data: bytes, what: str) -> int:
        """Returns the bit pattern of a string."""
        if self.signed:
            return bytestrings.decode_signed(data, self.width, what) & ((1 << self.width) - 1)
        return bytestrings.decode(data, self.width, what)

    def encode(self, values: Iterator[int]) -> p4d.P4Data:
        return p4d.P4Data(bitstring=self.pack(next(values)))

    def decode(self, data: p4d.P4Data, what: str) -> list[int]:
        _expect(data, "bitstring", what)
        return [self.unpack(data.bitstring, what)]


@dataclass(frozen=True)
class EnumValue(Codec):
    """A serializable enum, with an underlying bit<W>."""

    width: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", (self.width,))

    def encode(self, values: Iterator[int]) -> p4d.P4Data:
        return p4d.P4Data(enum_value=bytestrings.encode(next(values)))

    def decode(self, data: p4d.P4Data, what: str) -> list[int]:
        _expect(data, "enum_value", what)
        return [bytestrings.decode(data.enum_value, self.width, what)]


class Bool(Codec):
    """bool."""

    widths = (1,)

    def encode(self, values: Iterator[int]) -> p4d.P4Data:
        return p4d.P4Data(bool=bool(next(values)))

    def decode(self, data: p4d.P4Data, what: str) -> list[int]:
        _expect(data, "bool", what)
        return [int(data.bool)]


@dataclass(frozen=True)
class Named(Codec):
    """An error or a plain enum: numbered in the order of declaration."""

    kind: str
    names: tuple[str, ...]
    width: int = 32

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", (self.width,))

    def encode(self, values: Iterator[int]) -> p4d.P4Data:
        number = next(values)
        name = self.names[number] if number < len(self.names) else str(number)
        return p4d.P4Data(error=name) if self.kind == "error" else p4d.P4Data(enum=name)

    def decode(self, data: p4d.P4Data, what: str) -> list[int]:
        _expect(data, self.kind, what)
        name = data.error if self.kind == "error" else data.enum
        if name not in self.names:
            raise invalid(f"{what}: there is no {self.kind} {name[:100]!r}")
        return [self.names.index(name)]


@dataclass(frozen=True)
class Struct(Codec):
    """A struct or tuple."""

    kind: str
    members: tuple[Codec, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", tuple(width for member in self.members for width in member.widths))

    def encode(self, values: Iterator[int]) -> p4d.P4Data:
        fields = p4d.P4StructLike(members=[member.encode(values) for member in self.members])
        return p4d.P4Data(struct=fields) if self.kind == "struct" else p4d.P4Data(tuple=fields)

    def decode(self, data: p4d.P4Data, what: str) -> list[int]:
        _expect(data, self.kind, what)
        members = (data.struct if self.kind == "struct" else data.tuple).members
        _count(len(members), len(self.members), what)
        return [value for codec, member in zip(self.members, members, strict=True) for value in codec.decode(member, what)]


@dataclass(frozen=True)
class Header(Codec):
    """A header; the data plane tells nothing of its validity here, so it counts as valid."""

    fields: tuple[Bits, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", tuple(field.width for field in self.fields))

    def message(self, values: Iterator[int]) -> p4d.P4Header:
        """Returns the bare header message."""
        return p4d.P4Header(is_valid=True, bitstrings=[field.pack(next(values)) for field in self.fields])

    def values(self, header: p4d.P4Header, what: str) -> list[int]:
        """Returns the values of a bare header message."""
        if not header.is_valid:
            raise invalid(f"{what}: an invalid header cannot be written")
        _count(len(header.bitstrings), len(self.fields), what)
        return [field.unpack(data, what) for field, data in zip(self.fields, header.bitstrings, strict=True)]

    def encode(self, values: Iterator[int]) -> p4d.P4Data:
        return p4d.P4Data(header=self.message(values))

    def decode(self, data: p4d.P4Data, what: str) -> list[int]:
        _expect(data, "header", what)
        return self.values(data.header, what)


@dataclass(frozen=True)
class HeaderStack(Codec):
    """A header stack."""

    header: Header
    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", self.header.widths * self.size)

    def encode(self, values: Iterator[int]) -> p4d.P4Data:
        return p4d.P4Data(header_stack=p4d.P4HeaderStack(entries=[self.header.message(values) for _ in range(self.size)]))

    def decode(self, data: p4d.P4Data, what: str) -> list[int]:
        _expect(data, "header_stack", what)
        _count(len(data.header_stack.entries), self.size, what)
        return [value for entry in data.header_stack.entries for value in self.header.values(entry, what)]


def codec(spec: p4t.P4DataTypeSpec, info: p4i.P4Info, depth: int = 0) -> Codec:
    """Returns the codec of a type that a P4Info declares.

    Raises:
        Refusal: INVALID_ARGUMENT, an unknown name, or a type that cannot be flattened (header unions, varbit).
    """
    if depth > MAX_DEPTH:
        raise invalid("P4Info: types are nested too deep")
    types = info.type_info
    kind = spec.WhichOneof("type_spec")
    if kind == "bitstring":
        return _bits(spec.bitstring)
    if kind == "bool":
        return Bool()
    if kind == "tuple":
        return Struct("tuple", tuple(codec(member, info, depth + 1) for member in spec.tuple.members))
    if kind == "struct" and spec.struct.name in types.structs:
        members = types.structs[spec.struct.name].members
        return Struct("struct", tuple(codec(member.type_spec, info, depth + 1) for member in members))
    if kind == "header" and spec.header.name in types.headers:
        return _header(types.headers[spec.header.name])
    if kind == "header_stack" and spec.header_stack.header.name in types.headers:
        return HeaderStack(_header(types.headers[spec.header_stack.header.name]), spec.header_stack.size)
    if kind == "serializable_enum" and spec.serializable_enum.name in types.serializable_enums:
        return EnumValue(types.serializable_enums[spec.serializable_enum.name].underlying_type.bitwidth)
    if kind == "enum" and spec.enum.name in types.enums:
        return Named("enum", tuple(member.name for member in types.enums[spec.enum.name].members))
    if kind == "error":
        return Named("error", tuple(types.error.members))
    if kind == "new_type" and spec.new_type.name in types.new_types:
        new = types.new_types[spec.new_type.name]
        if new.WhichOneof("representation") == "original_type":
            return codec(new.original_type, info, depth + 1)
        if new.translated_type.WhichOneof("sdn_type") == "sdn_bitwidth":
            return Bits(new.translated_type.sdn_bitwidth)
    raise invalid(f"P4Info: the type {str(spec).strip()[:200]!r} is unknown or not supported")


def _bits(spec: p4t.P4BitstringLikeTypeSpec) -> Bits:
    kind = spec.WhichOneof("type_spec")
    if kind == "bit" and spec.bit.bitwidth > 0:
        return Bits(spec.bit.bitwidth)
    if kind == "int" and spec.int.bitwidth > 0:
        return Bits(spec.int.bitwidth, signed=True)
    raise invalid(f"P4Info: the type {kind} is not supported here")


def _header(spec: p4t.P4HeaderTypeSpec) -> Header:
    return Header(tuple(_bits(member.type_spec) for member in spec.members))


__all__ = ["Codec", "codec"]
