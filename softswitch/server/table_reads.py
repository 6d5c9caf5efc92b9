"""Reads of table entries and of their direct resources (P4Runtime specification, "Wildcard Reads")."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from finsy.proto import p4r

from softswitch.errors import NoSuchEntry
from softswitch.program.model import Match
from softswitch.runtime import Call, Entry, MeterConfig, Table
from softswitch.runtime.actions import Action
from softswitch.server.actions import write_action, write_call
from softswitch.server.codes import Code, Refusal, invalid
from softswitch.server.matches import read_match, write_match
from softswitch.server.schema import Schema, TableSchema
from softswitch.server.tables import find_table, no_colour_counters, write_meter_config
from softswitch.server.target import Query, Target

MAX_INT64 = 2**63 - 1


class Row(NamedTuple):
    """A copy of an entry, taken in the data plane's thread; ``idle_ns`` is the time since its last hit."""

    match: Match
    priority: int
    action: Action
    metadata: bytes
    cookie: int
    timeout: int
    const: bool
    packets: int
    bytes: int
    meter: MeterConfig | None
    idle_ns: int


def copy_entry(entry: Entry, now_us: int) -> Row:
    """Returns a copy of an entry."""
    return Row(
        entry.match,
        entry.priority,
        entry.action,
        entry.metadata,
        entry.controller_metadata,
        entry.idle_timeout_ns,
        entry.const,
        entry.packets,
        entry.bytes,
        None if entry.meter is None else entry.meter.config,
        max(0, now_us - entry.last_hit) * 1000,
    )


def write_key(table: TableSchema, row: Row) -> p4r.TableEntry:
    """Returns the message of an entry with its key and what the client noted with it, as idle notifications carry it."""
    return p4r.TableEntry(
        table_id=table.id,
        match=write_match(table.fields, row.match),
        priority=row.priority,
        metadata=row.metadata,
        controller_metadata=row.cookie,
        idle_timeout_ns=row.timeout,
    )


def counter_data(packets: int, size: int) -> p4r.CounterData:
    """Returns the message of a counter; the wire has 63 bits."""
    return p4r.CounterData(packet_count=min(packets, MAX_INT64), byte_count=min(size, MAX_INT64))


def read_entries(schema: Schema, message: p4r.TableEntry) -> list[Query]:
    """Returns the queries for the entries that a message selects."""
    filters = message.match or message.HasField("action") or message.priority or message.metadata or message.controller_metadata
    if message.table_id == 0:
        if filters:
            raise invalid("without a table_id no other filter can be used")
        tables: Iterable[TableSchema] = schema.tables.values()
    else:
        table = find_table(schema, message.table_id)
        if message.HasField("time_since_last_hit") and not table.timeouts:
            raise invalid(f"table {table.name} has no idle timeouts")
        tables = (table,)
    no_colour_counters(message.HasField("meter_counter_data"))
    if message.is_default_action:
        if message.match or message.priority:
            raise invalid("the default entry has neither match nor priority")
        if message.HasField("time_since_last_hit"):
            raise invalid("the default entry has no idle timeout")
        return [_default(table) for table in tables]
    return [_entries(table, message) for table in tables]


def _default(table: TableSchema) -> Query:
    def gather(target: Target) -> list[Any]:
        default = target.runtime.tables[table.name].default
        return [(default, *target.defaults.get(table.id, (b"", 0)))]

    def encode(row: Any) -> p4r.Entity:
        default, metadata, cookie = row
        entry = p4r.TableEntry(table_id=table.id, is_default_action=True, metadata=metadata, controller_metadata=cookie)
        call = None if default is None else write_call(table.by_index, default)
        if call is not None:
            entry.action.action.CopyFrom(call)
        return p4r.Entity(table_entry=entry)

    return gather, encode


def _entries(table: TableSchema, message: p4r.TableEntry) -> Query:
    keep = _filter(table, message)
    match = read_match(table.by_id, table.wildcard, table.exact, message.match) if message.match else None
    priority = message.priority
    name = table.name

    def gather(target: Target) -> list[Any]:
        state = target.runtime.tables[name]
        now = target.runtime.clock() // 1000
        return [copy_entry(entry, now) for entry in _matching(state, match, priority) if keep(entry)]

    counters = table.counter and message.HasField("counter_data")
    meters = table.meter is not None and message.HasField("meter_config")
    idle = table.timeouts and message.HasField("time_since_last_hit")

    def encode(row: Any) -> p4r.Entity:
        entry = write_key(table, row)
        action = write_action(table, row.action)
        if action is not None:
            entry.action.CopyFrom(action)
        if row.const:
            entry.is_const = True
        if counters:
            entry.counter_data.CopyFrom(counter_data(row.packets, row.bytes))
        if meters and row.meter is not None:
            entry.meter_config.CopyFrom(write_meter_config(row.meter))
        if idle:
            entry.time_since_last_hit.elapsed_ns = row.idle_ns
        return p4r.Entity(table_entry=entry)

    return gather, encode


def _filter(table: TableSchema, message: p4r.TableEntry) -> Callable[[Entry], bool]:
    metadata, cookie = message.metadata, message.controller_metadata
    index: int | None = None
    if message.HasField("action"):
        if table.profile is not None or message.action.WhichOneof("type") != "action":
            raise invalid("entries can be filtered by the action of direct tables only")
        choice = table.choices.get(message.action.action.action_id)
        if choice is None:
            raise invalid(f"action id {message.action.action.action_id:#x} is not one of the actions of table {table.name}")
        index = choice.index

    def keep(entry: Entry) -> bool:
        if metadata and entry.metadata != metadata:
            return False
        if cookie and entry.controller_metadata != cookie:
            return False
        return index is None or (isinstance(entry.action, Call) and entry.action.action == index)

    return keep


def _matching(state: Table, match: Match | None, priority: int) -> Iterable[Entry]:
    if match is None:
        return (entry for entry in state.entries() if priority in (0, entry.priority))
    if state.schema.prioritized and not priority:
        return (entry for entry in state.entries() if entry.match == match)
    try:
        return (state.get(match, priority),)
    except NoSuchEntry:
        return ()


def read_direct_counters(schema: Schema, message: p4r.DirectCounterEntry) -> list[Query]:
    """Returns the queries for the counter of one entry, of all entries of a table, or of all tables."""

    def write(entry: p4r.TableEntry, row: Row) -> p4r.Entity:
        return p4r.Entity(
            direct_counter_entry=p4r.DirectCounterEntry(table_entry=entry, data=counter_data(row.packets, row.bytes))
        )

    return _direct(schema, message.table_entry, "counter", lambda table: table.counter, write)


def read_direct_meters(schema: Schema, message: p4r.DirectMeterEntry) -> list[Query]:
    """Returns the queries for the meter of one entry, of all entries of a table, or of all tables."""
    no_colour_counters(message.HasField("counter_data"))

    def write(entry: p4r.TableEntry, row: Row) -> p4r.Entity:
        config = None if row.meter is None else write_meter_config(row.meter)
        return p4r.Entity(direct_meter_entry=p4r.DirectMeterEntry(table_entry=entry, config=config))

    return _direct(schema, message.table_entry, "meter", lambda table: table.meter is not None, write)


def _direct(
    schema: Schema,
    message: p4r.TableEntry,
    kind: str,
    has: Callable[[TableSchema], bool],
    write: Callable[[p4r.TableEntry, Row], p4r.Entity],
) -> list[Query]:
    if message.is_default_action:
        raise Refusal(Code.UNIMPLEMENTED, "the default entry has no direct resources")
    if message.table_id == 0:
        tables = [table for table in schema.tables.values() if has(table)]
    else:
        tables = [find_table(schema, message.table_id)]
        if not has(tables[0]):
            raise invalid(f"table {tables[0].name} has no direct {kind}")

    def query(table: TableSchema) -> Query:
        match = read_match(table.by_id, table.wildcard, table.exact, message.match) if message.match else None
        priority = message.priority

        def gather(target: Target) -> list[Any]:
            state = target.runtime.tables[table.name]
            rows = [copy_entry(entry, 0) for entry in _matching(state, match, priority)]
            if match is not None and not rows:
                raise NoSuchEntry(f"table {table.name} has no such entry")
            return rows

        def encode(row: Any) -> p4r.Entity:
            key = p4r.TableEntry(table_id=table.id, match=write_match(table.fields, row.match), priority=row.priority)
            return write(key, row)

        return gather, encode

    return [query(table) for table in tables]


__all__ = ["Row", "copy_entry", "counter_data", "read_direct_counters", "read_direct_meters", "read_entries", "write_key"]
