"""Parser value sets and the configuration of digests (P4Runtime specification, "ValueSetEntry" and "DigestEntry")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from finsy.proto import p4r

from softswitch.errors import DuplicateEntry, NoSuchEntry
from softswitch.server.codes import Code, Refusal, invalid
from softswitch.server.matches import read_match, write_match
from softswitch.server.schema import FieldSchema, Schema, ValueSetSchema
from softswitch.server.tables import DELETE, INSERT, MODIFY
from softswitch.server.target import DigestConfig, Operation, Query, Target


def _find_value_set(schema: Schema, number: int) -> ValueSetSchema:
    if number == 0:
        raise invalid("value_set_id is not set")
    found = schema.value_sets.get(number)
    if found is None:
        raise Refusal(Code.NOT_FOUND, f"there is no value set with id {number:#x}")
    return found


def _pair(field: FieldSchema, item: Any) -> tuple[int, int]:
    """Returns value and mask of one field."""
    full = (1 << field.width) - 1
    if field.kind == "exact":
        return item, full
    if field.kind == "optional":
        return (0, 0) if item is None else (item, full)
    if field.kind == "lpm":
        return item[0], full ^ (full >> item[1])
    if field.kind == "ternary":
        return item[0], item[1]
    if item[0] == item[1]:
        return item[0], full
    if item == (0, full):
        return 0, 0
    raise Refusal(Code.UNIMPLEMENTED, f"{field.name}: ranges in a value set are not supported")


def _item(field: FieldSchema, value: int, mask: int) -> object:
    """Returns the match item of value and mask; the inverse of ``_pair``."""
    if field.kind == "exact":
        return value
    if field.kind == "optional":
        return value if mask else None
    if field.kind == "lpm":
        return value, mask.bit_count()
    if field.kind == "ternary":
        return value, mask
    return (value, value) if mask else field.any


def _join(fields: Sequence[FieldSchema], match: Sequence[Any]) -> tuple[int, int]:
    """Returns value and mask of a member over all fields side by side."""
    value = mask = 0
    for field, item in zip(fields, match, strict=True):
        part, care = _pair(field, item)
        value = value << field.width | part
        mask = mask << field.width | care
    return value, mask


def _split(fields: Sequence[FieldSchema], value: int, mask: int) -> tuple[object, ...]:
    """Returns the match of a member; the inverse of ``_join``."""
    items = []
    for field in reversed(fields):
        full = (1 << field.width) - 1
        items.append(_item(field, value & full, mask & full))
        value >>= field.width
        mask >>= field.width
    return tuple(reversed(items))


def plan_value_set(schema: Schema, kind: int, message: p4r.ValueSetEntry) -> Operation:
    """Plans a replacement of all members."""
    found = _find_value_set(schema, message.value_set_id)
    if kind != MODIFY:
        raise invalid("a value set can only be modified")
    by_id = {field.id: field for field in found.fields}
    wildcard = tuple(field.any for field in found.fields)
    exact = sum(field.kind == "exact" for field in found.fields)
    members = [_join(found.fields, read_match(by_id, wildcard, exact, member.match)) for member in message.members]
    return lambda target: target.runtime.value_sets[found.name].set(members)


def read_value_sets(schema: Schema, message: p4r.ValueSetEntry) -> list[Query]:
    """Returns the queries for one value set or all."""
    number = message.value_set_id
    wanted = [_find_value_set(schema, number)] if number else list(schema.value_sets.values())

    def query(found: ValueSetSchema) -> Query:
        def gather(target: Target) -> list[Any]:
            return [target.runtime.value_sets[found.name].members]

        def encode(row: Any) -> p4r.Entity:
            entry = p4r.ValueSetEntry(value_set_id=found.id)
            for value, mask in row:
                entry.members.add(match=write_match(found.fields, _split(found.fields, value, mask)))
            return p4r.Entity(value_set_entry=entry)

        return gather, encode

    return [query(found) for found in wanted]


def plan_digest(schema: Schema, kind: int, message: p4r.DigestEntry) -> Operation:
    """Plans switching a digest on or off, or a change of its configuration."""
    number = message.digest_id
    if number == 0:
        raise invalid("digest_id is not set")
    if number not in schema.digests:
        raise Refusal(Code.NOT_FOUND, f"there is no digest with id {number:#x}")
    name = schema.digests[number].name
    settings = message.config
    if min(settings.max_timeout_ns, settings.max_list_size, settings.ack_timeout_ns) < 0:
        raise invalid(f"digest {name}: timeouts and sizes are not negative")
    config = DigestConfig(settings.max_timeout_ns, settings.max_list_size, settings.ack_timeout_ns)

    def apply(target: Target) -> None:
        if kind == INSERT and number in target.digests:
            raise DuplicateEntry(f"digest {name} is on already")
        if kind != INSERT and number not in target.digests:
            raise NoSuchEntry(f"digest {name} is not on")
        if kind == DELETE:
            del target.digests[number]
        else:
            target.digests[number] = config

    return apply


def read_digests(schema: Schema, message: p4r.DigestEntry) -> list[Query]:
    """Returns the query for the configuration of one digest or of all that are on."""
    wanted = message.digest_id
    if wanted and wanted not in schema.digests:
        raise Refusal(Code.NOT_FOUND, f"there is no digest with id {wanted:#x}")

    def gather(target: Target) -> list[Any]:
        return [item for item in target.digests.items() if wanted in (0, item[0])]

    def encode(row: Any) -> p4r.Entity:
        number, config = row
        settings = p4r.DigestEntry.Config(
            max_timeout_ns=config.max_timeout_ns, max_list_size=config.max_list_size, ack_timeout_ns=config.ack_timeout_ns
        )
        return p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=number, config=settings))

    return [(gather, encode)]


__all__ = ["plan_digest", "plan_value_set", "read_digests", "read_value_sets"]
