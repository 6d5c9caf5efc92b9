"""Table entries and their direct resources: writes (P4Runtime specification, "TableEntry", "Direct Resources").

Each ``plan_...`` checks an update against the schema, where the gRPC server runs, and returns the operation that the data plane's
thread then carries out.
"""

from __future__ import annotations

from finsy.proto import p4r

from softswitch.errors import SwitchError
from softswitch.program.model import Match
from softswitch.runtime import Entry, MeterConfig, Table
from softswitch.runtime.actions import Action
from softswitch.server.actions import read_action, read_call
from softswitch.server.codes import Code, Refusal, invalid, refusal
from softswitch.server.matches import read_match
from softswitch.server.schema import MeterType, Schema, TableSchema
from softswitch.server.target import Operation, Target

INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE


def find_table(schema: Schema, number: int) -> TableSchema:
    """Returns the table with a P4 id.

    Raises:
        Refusal: NOT_FOUND, or INVALID_ARGUMENT for 0.
    """
    if number == 0:
        raise invalid("table_id is not set")
    table = schema.tables.get(number)
    if table is None:
        raise Refusal(Code.NOT_FOUND, f"there is no table with id {number:#x}")
    return table


def key_of(table: TableSchema, entry: p4r.TableEntry) -> tuple[Match, int]:
    """Returns match and priority of an entry that is not the default one."""
    return read_match(table.by_id, table.wildcard, table.exact, entry.match), entry.priority


def meter_config(kind: MeterType | None, message: p4r.MeterConfig) -> MeterConfig:
    """Returns the runtime's meter configuration; the three meter types limit which figures may differ."""
    if kind is None:
        raise invalid("the table has no direct meter")
    if kind == "trTCM":
        if message.eburst:
            raise invalid("eburst is only for single-rate meters")
    elif (message.pir, message.pburst) != (message.cir, message.cburst):
        raise invalid("pir and pburst of a single-rate meter must equal cir and cburst")
    elif message.eburst:
        if kind == "two-colour":
            raise invalid("eburst of a two-colour meter must not be set")
        raise Refusal(Code.UNIMPLEMENTED, "single-rate meters with an excess burst are not supported")
    return MeterConfig(message.cir, message.cburst, message.pir, message.pburst)


def write_meter_config(config: MeterConfig) -> p4r.MeterConfig:
    """Returns the message of a meter's configuration."""
    return p4r.MeterConfig(cir=config.cir, cburst=config.cburst, pir=config.pir, pburst=config.pburst)


def no_colour_counters(present: bool) -> None:
    """Refuses per-colour counters, which this target does not keep."""
    if present:
        raise Refusal(Code.UNIMPLEMENTED, "meters have no counters per colour")


def plan_entry(schema: Schema, kind: int, entry: p4r.TableEntry, target: Target) -> Operation:
    """Plans an update of a table entry."""
    table = find_table(schema, entry.table_id)
    try:
        if entry.is_const:
            raise invalid("is_const cannot be written")
        if entry.is_default_action:
            return _plan_default(table, kind, entry)
        if not table.fields:
            raise invalid("the table has no key, so it has no entries but the default one")
        return _plan_keyed(table, kind, entry, target)
    except SwitchError as error:
        raise _prefixed(table, error) from None


def _prefixed(table: TableSchema, error: SwitchError) -> Refusal:
    refused = refusal(error)
    return Refusal(refused.code, f"table {table.name}: {refused.message}")


def _plan_default(table: TableSchema, kind: int, entry: p4r.TableEntry) -> Operation:
    if kind != MODIFY:
        raise invalid("the default entry can only be modified")
    if entry.match or entry.priority:
        raise invalid("the default entry has neither match nor priority")
    if entry.idle_timeout_ns or entry.HasField("time_since_last_hit"):
        raise invalid("the default entry has no idle timeout")
    if table.const_default:
        raise Refusal(Code.PERMISSION_DENIED, "the default action is const")
    if table.profile is not None:
        raise invalid("the default action of a table with an action profile cannot be set")
    if entry.HasField("counter_data") or entry.HasField("meter_config") or entry.HasField("meter_counter_data"):
        raise Refusal(Code.UNIMPLEMENTED, "the default entry has no direct resources")
    name, number = table.name, table.id
    if not entry.HasField("action"):

        def reset(target: Target) -> None:
            target.runtime.tables[name].reset_default()
            target.defaults.pop(number, None)

        return reset
    if entry.action.WhichOneof("type") != "action":
        raise invalid("a default action is a direct action")
    call = read_call(table.choices, entry.action.action, "table")
    notes = (entry.metadata, entry.controller_metadata)

    def assign(target: Target) -> None:
        target.runtime.tables[name].set_default(call)
        if notes == (b"", 0):
            target.defaults.pop(number, None)
        else:
            target.defaults[number] = notes

    return assign


def _plan_keyed(table: TableSchema, kind: int, entry: p4r.TableEntry, target: Target) -> Operation:
    name = table.name
    match, priority = key_of(table, entry)
    if kind == DELETE:
        if table.const:
            raise Refusal(Code.PERMISSION_DENIED, "the table's entries are const")
        return lambda target: target.runtime.tables[name].delete(match, priority)
    if entry.HasField("time_since_last_hit"):
        raise invalid("time_since_last_hit cannot be written")
    no_colour_counters(entry.HasField("meter_counter_data"))
    counts: tuple[int, int] | None = None
    if entry.HasField("counter_data"):
        if not table.counter:
            raise invalid("the table has no direct counter")
        counts = (entry.counter_data.packet_count, entry.counter_data.byte_count)
    config = meter_config(table.meter, entry.meter_config) if entry.HasField("meter_config") else None
    action: Action | None = None
    if entry.HasField("action"):
        if table.const:
            raise Refusal(Code.PERMISSION_DENIED, "the table's entries are const")
        action = read_action(table, entry.action, target.ports)
    timeout, metadata, cookie = entry.idle_timeout_ns, entry.metadata, entry.controller_metadata
    if kind == INSERT:
        if table.const:
            raise Refusal(Code.PERMISSION_DENIED, "the table's entries are const")
        if action is None:
            raise invalid("an entry needs an action")
        return _insert(name, match, priority, action, timeout, metadata, cookie, counts, config)

    def modify(target: Target) -> None:
        state = target.runtime.tables[name]
        with target.runtime.transaction():
            current = state.get(match, priority)
            if not current.const or action is not None:
                state.modify(match, priority, action, idle_timeout_ns=timeout, metadata=metadata, controller_metadata=cookie)
            _write_direct(state, current, counts, config, table.meter is not None)

    return modify


def _insert(
    name: str,
    match: Match,
    priority: int,
    action: Action,
    timeout: int,
    metadata: bytes,
    cookie: int,
    counts: tuple[int, int] | None,
    config: MeterConfig | None,
) -> Operation:
    def plain(target: Target) -> object:
        return target.runtime.tables[name].insert(
            match, priority, action, idle_timeout_ns=timeout, metadata=metadata, controller_metadata=cookie
        )

    if counts is None and config is None:
        return plain

    def whole(target: Target) -> None:
        state = target.runtime.tables[name]
        with target.runtime.transaction():
            entry = state.insert(match, priority, action, idle_timeout_ns=timeout, metadata=metadata, controller_metadata=cookie)
            _write_direct(state, entry, counts, config, config is not None)

    return whole


def _write_direct(state: Table, entry: Entry, counts: tuple[int, int] | None, config: MeterConfig | None, metered: bool) -> None:
    if counts is not None:
        state.write_counter(entry, *counts)
    if metered:
        state.write_meter(entry, config)


def plan_direct_counter(schema: Schema, kind: int, message: p4r.DirectCounterEntry) -> Operation:
    """Plans a write of an entry's counter."""
    table = find_table(schema, message.table_entry.table_id)
    if kind != MODIFY:
        raise invalid("a direct counter can only be modified")
    if not table.counter:
        raise invalid(f"table {table.name} has no direct counter")
    match, priority = _direct_key(table, message.table_entry)
    data = (message.data.packet_count, message.data.byte_count) if message.HasField("data") else None

    def write(target: Target) -> None:
        state = target.runtime.tables[table.name]
        entry = state.get(match, priority)
        if data is not None:
            state.write_counter(entry, *data)

    return write


def plan_direct_meter(schema: Schema, kind: int, message: p4r.DirectMeterEntry) -> Operation:
    """Plans a write of an entry's meter."""
    table = find_table(schema, message.table_entry.table_id)
    if kind != MODIFY:
        raise invalid("a direct meter can only be modified")
    if table.meter is None:
        raise invalid(f"table {table.name} has no direct meter")
    no_colour_counters(message.HasField("counter_data"))
    match, priority = _direct_key(table, message.table_entry)
    config = meter_config(table.meter, message.config) if message.HasField("config") else None

    def write(target: Target) -> None:
        state = target.runtime.tables[table.name]
        state.write_meter(state.get(match, priority), config)

    return write


def _direct_key(table: TableSchema, entry: p4r.TableEntry) -> tuple[Match, int]:
    if entry.is_default_action:
        raise Refusal(Code.UNIMPLEMENTED, f"table {table.name}: the default entry has no direct resources")
    try:
        return key_of(table, entry)
    except Refusal as error:
        raise _prefixed(table, error) from None


__all__ = [
    "DELETE",
    "INSERT",
    "MODIFY",
    "find_table",
    "key_of",
    "meter_config",
    "no_colour_counters",
    "plan_direct_counter",
    "plan_direct_meter",
    "plan_entry",
    "write_meter_config",
]
