"""Reads header types, instances, stacks and unions."""

from __future__ import annotations

from dataclasses import dataclass, field

from softswitch.program.ir import Field, Header, HeaderType, Stack, Union
from softswitch.program.source import Source

MAX_FIELD_BITS = 16_384
MAX_PACKET_BYTES = 65_535


@dataclass(slots=True)
class Names:
    """All that expressions may refer to, by name.

    Attributes:
        members: Names of a union type's members, by union.
        widths: Width of each register array.
        arrays: Names of other objects by the JSON's type name (``meter_array``, ``calculation``, ...).
    """

    headers: dict[str, Header] = field(default_factory=dict)
    stacks: dict[str, Stack] = field(default_factory=dict)
    unions: dict[str, Union] = field(default_factory=dict)
    members: dict[str, tuple[str, ...]] = field(default_factory=dict)
    widths: dict[str, int] = field(default_factory=dict)
    arrays: dict[str, set[str]] = field(default_factory=dict)

    def stack_type(self, stack: Stack, member: int | None = None) -> HeaderType:
        """Type of a stack's headers (of one member of its unions)."""
        first = stack.items[0]
        if stack.of_unions:
            first = self.unions[first].headers[member or 0]
        return self.headers[first].type


def read_headers(root: Source) -> Names:
    """Header types, instances, stacks and unions.

    Raises:
        ProgramError: A reference to something that is not there, duplicates, or impossible widths.
    """
    types = {}
    for source in root.items("header_types"):
        header_type = _type(source)
        if header_type.name in types:
            source.fail(f"duplicate header type '{header_type.name}'")
        types[header_type.name] = header_type
    names = Names()
    by_id: dict[int, str] = {}
    for source in root.items("headers"):
        name = source["name"].text()
        kind = source["header_type"].text()
        if kind not in types:
            source["header_type"].fail(f"there is no header type '{kind}'")
        if name in names.headers:
            source.fail(f"duplicate header '{name}'")
        metadata = source["metadata"].boolean()
        if not metadata and types[kind].bits % 8:
            source.fail(f"header '{name}' is {types[kind].bits} bits wide, no whole number of bytes")
        names.headers[name] = Header(name, len(names.headers), types[kind], metadata)
        identity = source["id"].integer()
        if identity in by_id:
            source["id"].fail(f"duplicate id {identity}")
        by_id[identity] = name
    _stacks(root, names, by_id)
    _unions(root, names, by_id)
    return names


def _type(source: Source) -> HeaderType:
    fields: list[Field] = []
    offset = 0
    for item in source.items("fields"):
        parts = item.array()
        if len(parts) < 2:
            item.fail("expected a field's name and width")
        name = parts[0].text()
        if any(other.name == name for other in fields) or name == "$valid$":
            item.fail(f"duplicate field '{name}'")
        signed = len(parts) > 2 and parts[2].boolean(False)
        saturating = len(parts) > 3 and parts[3].boolean(False)
        if parts[1].value == "*":
            if any(other.variable for other in fields):
                item.fail("a header can have only one variable-length field")
            if source.has("length_exp"):
                source["length_exp"].unsupported("length expression of a header type (extract_VL has its own)")
            fields.append(Field(name, 0, offset, variable=True))
            continue
        width = parts[1].integer(1, MAX_FIELD_BITS)
        if signed and width < 2:
            item.fail("a signed field has two bits or more")
        fields.append(Field(name, width, offset, signed, saturating))
        offset += width
    most = source["max_length"].integer(0, MAX_PACKET_BYTES) if source.has("max_length") else 0
    return HeaderType(source["name"].text(), tuple(fields), offset, most)


def _references(source: Source, by_id: dict[int, str], what: str) -> tuple[str, ...]:
    names = []
    for item in source.array():
        identity = item.integer()
        if identity not in by_id:
            item.fail(f"there is no {what} with id {identity}")
        names.append(by_id[identity])
    return tuple(names)


def _stacks(root: Source, names: Names, by_id: dict[int, str]) -> None:
    for source in root.items("header_stacks"):
        name = source["name"].text()
        items = _references(source["header_ids"], by_id, "header")
        if name in names.stacks:
            source.fail(f"duplicate stack '{name}'")
        if not items:
            source["header_ids"].fail("a stack has one header or more")
        if len({names.headers[item].type for item in items}) != 1:
            source["header_ids"].fail("a stack's headers are all of one type")
        names.stacks[name] = Stack(name, len(names.stacks), items)


def _unions(root: Source, names: Names, by_id: dict[int, str]) -> None:
    members = {}
    for source in root.items("header_union_types"):
        members[source["name"].text()] = tuple(pair[0].text() for pair in source["headers"].array())
    unions_by_id: dict[int, str] = {}
    for source in root.items("header_unions"):
        name = source["name"].text()
        kind = source["union_type"].text()
        if kind not in members:
            source["union_type"].fail(f"there is no header union type '{kind}'")
        items = _references(source["header_ids"], by_id, "header")
        if len(items) != len(members[kind]) or not items:
            source["header_ids"].fail(f"expected {len(members[kind])} headers")
        names.unions[name] = Union(name, items)
        names.members[name] = members[kind]
        unions_by_id[source["id"].integer()] = name
        for item in items:
            header = names.headers[item]
            names.headers[item] = Header(header.name, header.index, header.type, header.metadata, name)
    for source in root.items("header_union_stacks"):
        name = source["name"].text()
        unions = _references(source["header_union_ids"], unions_by_id, "header union")
        if name in names.stacks or not unions:
            source.fail(f"empty or duplicate stack '{name}'")
        names.stacks[name] = Stack(name, len(names.stacks), unions, of_unions=True)
        for union in unions:
            if [names.headers[item].type for item in names.unions[union].headers] != [
                names.headers[item].type for item in names.unions[unions[0]].headers
            ]:
                source.fail("a stack's unions are all of one type")
