"""Indexed counters, meters and registers (P4Runtime specification, "CounterEntry", "MeterEntry", "RegisterEntry")."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from finsy.proto import p4r

from softswitch.errors import BadValue, OutOfBounds
from softswitch.server.codes import Code, Refusal, invalid
from softswitch.server.schema import CounterSchema, MeterSchema, RegisterSchema, Schema
from softswitch.server.table_reads import counter_data
from softswitch.server.tables import MODIFY, meter_config, no_colour_counters, write_meter_config
from softswitch.server.target import Operation, Query, Target

_S = TypeVar("_S", CounterSchema, MeterSchema, RegisterSchema)


def _find(objects: Mapping[int, _S], number: int, kind: str) -> _S:
    if number == 0:
        raise invalid(f"{kind}_id is not set")
    found = objects.get(number)
    if found is None:
        raise Refusal(Code.NOT_FOUND, f"there is no {kind} with id {number:#x}")
    return found


def _index(message: p4r.CounterEntry | p4r.MeterEntry | p4r.RegisterEntry, size: int, name: str) -> int | None:
    """Returns the index, or None if it is not set, which means the whole array."""
    if not message.HasField("index"):
        return None
    index = message.index.index
    if index < 0:
        raise BadValue(f"{name}: index {index} is negative")
    if index >= size:
        raise OutOfBounds(f"{name}: index {index} is beyond the end; the size is {size}")
    return index


def _only_modify(kind: int, what: str) -> None:
    if kind != MODIFY:
        raise invalid(f"a {what} can only be modified")


def plan_counter(schema: Schema, kind: int, message: p4r.CounterEntry) -> Operation:
    """Plans a write of one counter or of all of an array."""
    counter = _find(schema.counters, message.counter_id, "counter")
    _only_modify(kind, "counter")
    index = _index(message, counter.size, counter.name)
    if not message.HasField("data"):
        return lambda target: None
    packets, size = message.data.packet_count, message.data.byte_count
    return lambda target: target.runtime.counters[counter.name].write(index, packets, size)


def plan_meter(schema: Schema, kind: int, message: p4r.MeterEntry) -> Operation:
    """Plans a configuration of one meter or of all of an array."""
    meter = _find(schema.meters, message.meter_id, "meter")
    _only_modify(kind, "meter")
    index = _index(message, meter.size, meter.name)
    no_colour_counters(message.HasField("counter_data"))
    config = meter_config(meter.type, message.config) if message.HasField("config") else None
    return lambda target: target.runtime.meters[meter.name].write(index, config)


def plan_register(schema: Schema, kind: int, message: p4r.RegisterEntry) -> Operation:
    """Plans a write of one cell or of all of an array."""
    register = _find(schema.registers, message.register_id, "register")
    _only_modify(kind, "register")
    index = _index(message, register.size, register.name)
    (value,) = register.codec.decode(message.data, f"register {register.name}")
    return lambda target: target.runtime.registers[register.name].write(index, value)


def _queries(
    objects: Iterable[_S],
    message: p4r.CounterEntry | p4r.MeterEntry | p4r.RegisterEntry,
    copy: Callable[[Target, str, slice], list[Any]],
    write: Callable[[_S, p4r.Index, Any], p4r.Entity],
) -> list[Query]:
    def query(item: _S) -> Query:
        index = _index(message, item.size, item.name)
        cells = slice(None) if index is None else slice(index, index + 1)
        first = index or 0

        def gather(target: Target) -> list[Any]:
            return list(enumerate(copy(target, item.name, cells), first))

        return gather, lambda row: write(item, p4r.Index(index=row[0]), row[1])

    return [query(item) for item in objects]


def read_counters(schema: Schema, message: p4r.CounterEntry) -> list[Query]:
    """Returns the queries for one counter, an array, or all."""

    def copy(target: Target, name: str, cells: slice) -> list[Any]:
        state = target.runtime.counters[name]
        return list(zip(state.packets[cells], state.bytes[cells], strict=True))

    def write(counter: CounterSchema, index: p4r.Index, row: Any) -> p4r.Entity:
        return p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=counter.id, index=index, data=counter_data(*row)))

    number = message.counter_id
    wanted = [_find(schema.counters, number, "counter")] if number else list(schema.counters.values())
    return _queries(wanted, message, copy, write)


def read_meters(schema: Schema, message: p4r.MeterEntry) -> list[Query]:
    """Returns the queries for one meter, an array, or all."""
    no_colour_counters(message.HasField("counter_data"))

    def copy(target: Target, name: str, cells: slice) -> list[Any]:
        return [meter.config for meter in target.runtime.meters[name].cells[cells]]

    def write(meter: MeterSchema, index: p4r.Index, row: Any) -> p4r.Entity:
        config = None if row is None else write_meter_config(row)
        return p4r.Entity(meter_entry=p4r.MeterEntry(meter_id=meter.id, index=index, config=config))

    number = message.meter_id
    wanted = [_find(schema.meters, number, "meter")] if number else list(schema.meters.values())
    return _queries(wanted, message, copy, write)


def read_registers(schema: Schema, message: p4r.RegisterEntry) -> list[Query]:
    """Returns the queries for one cell, an array, or all."""

    def copy(target: Target, name: str, cells: slice) -> list[Any]:
        return target.runtime.registers[name].cells[cells]

    def write(register: RegisterSchema, index: p4r.Index, row: Any) -> p4r.Entity:
        data = register.codec.encode(iter((row,)))
        return p4r.Entity(register_entry=p4r.RegisterEntry(register_id=register.id, index=index, data=data))

    number = message.register_id
    wanted = [_find(schema.registers, number, "register")] if number else list(schema.registers.values())
    return _queries(wanted, message, copy, write)


__all__ = ["plan_counter", "plan_meter", "plan_register", "read_counters", "read_meters", "read_registers"]
