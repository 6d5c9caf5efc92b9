"""Match keys on the wire (P4Runtime specification, "Match Format") and in the runtime.

"Don't care" is expressed by leaving a field out; a message that spells it out instead is refused, so that an entry has one
representation only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from finsy.proto import p4r

from softswitch.program.model import Match
from softswitch.server.bytestrings import decode, encode
from softswitch.server.codes import invalid
from softswitch.server.schema import FieldSchema


def read_match(
    fields: Mapping[int, FieldSchema], wildcard: tuple[object, ...], exact: int, messages: Iterable[p4r.FieldMatch]
) -> Match:
    """Returns the runtime's match.

    Args:
        fields: Match fields by P4 id.
        wildcard: The match that cares for nothing, None in exact fields.
        exact: Number of exact fields, all of which must be given.
        messages: As the client sent them.

    Raises:
        Refusal: INVALID_ARGUMENT.
    """
    result = list(wildcard)
    seen = set()
    for message in messages:
        field = fields.get(message.field_id)
        if field is None:
            raise invalid(f"there is no match field with id {message.field_id}")
        position = field.position
        if position in seen:
            raise invalid(f"match field {field.name} is given twice")
        seen.add(position)
        kind = field.kind
        if message.WhichOneof("field_match_type") != kind:
            raise invalid(f"match field {field.name} is {kind}, not {message.WhichOneof('field_match_type')}")
        if kind == "exact":
            result[position] = decode(message.exact.value, field.width, field.name)
            exact -= 1
        elif kind == "lpm":
            result[position] = _prefix(message.lpm, field)
        elif kind == "ternary":
            result[position] = _ternary(message.ternary, field)
        elif kind == "range":
            result[position] = _range(message.range, field)
        else:
            value = decode(message.optional.value, field.width, field.name)
            result[position] = (value, (1 << field.width) - 1) if field.masked else value
    if exact:
        missing = [field.name for field in fields.values() if field.kind == "exact" and field.position not in seen]
        raise invalid(f"exact match field {missing[0]} is missing")
    return tuple(result)


def _prefix(message: p4r.FieldMatch.LPM, field: FieldSchema) -> tuple[int, int]:
    length = message.prefix_len
    if not 0 < length <= field.width:
        raise invalid(f'{field.name}: prefix length {length} is not in 1..{field.width}; leave the field out for "don\'t care"')
    value = decode(message.value, field.width, field.name)
    if value & ((1 << (field.width - length)) - 1):
        raise invalid(f"{field.name}: bits are set beyond the prefix of {length} bits")
    return value, length


def _ternary(message: p4r.FieldMatch.Ternary, field: FieldSchema) -> tuple[int, int]:
    mask = decode(message.mask, field.width, field.name)
    if mask == 0:
        raise invalid(f'{field.name}: the mask is 0; leave the field out for "don\'t care"')
    value = decode(message.value, field.width, field.name)
    if value & ~mask:
        raise invalid(f"{field.name}: bits are set outside the mask")
    return value, mask


def _range(message: p4r.FieldMatch.Range, field: FieldSchema) -> tuple[int, int]:
    low = decode(message.low, field.width, field.name)
    high = decode(message.high, field.width, field.name)
    if low > high:
        raise invalid(f"{field.name}: the low bound {low} is above the high bound {high}")
    if low == 0 and high == (1 << field.width) - 1:
        raise invalid(f'{field.name}: the range takes every value; leave the field out for "don\'t care"')
    return low, high


def write_match(fields: Iterable[FieldSchema], match: Match) -> list[p4r.FieldMatch]:
    """Returns the messages of a match, canonical, without "don't care" fields."""
    result = []
    item: Any
    for field, item in zip(fields, match, strict=True):
        kind = field.kind
        if kind == "exact":
            result.append(p4r.FieldMatch(field_id=field.id, exact=p4r.FieldMatch.Exact(value=encode(item))))
        elif kind == "lpm":
            if item[1]:
                lpm = p4r.FieldMatch.LPM(value=encode(item[0]), prefix_len=item[1])
                result.append(p4r.FieldMatch(field_id=field.id, lpm=lpm))
        elif kind == "ternary":
            if item[1]:
                ternary = p4r.FieldMatch.Ternary(value=encode(item[0]), mask=encode(item[1]))
                result.append(p4r.FieldMatch(field_id=field.id, ternary=ternary))
        elif kind == "range":
            if item != field.any:
                bounds = p4r.FieldMatch.Range(low=encode(item[0]), high=encode(item[1]))
                result.append(p4r.FieldMatch(field_id=field.id, range=bounds))
        elif item != field.any:
            optional = p4r.FieldMatch.Optional(value=encode(item[0] if field.masked else item))
            result.append(p4r.FieldMatch(field_id=field.id, optional=optional))
    return result


__all__ = ["read_match", "write_match"]
