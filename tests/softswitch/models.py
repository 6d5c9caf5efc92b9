"""Control models made by hand, and a whole program's state as plain data, for the tests of the runtime."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

from softswitch.program.model import (
    ActionModel,
    ControlModel,
    CounterModel,
    KeyField,
    Match,
    MatchKind,
    MeterModel,
    Parameter,
    ProfileModel,
    RegisterModel,
    TableModel,
    ValueSetModel,
)
from softswitch.runtime import Group, Hit, Runtime

FORWARD = ActionModel("forward", 1, (Parameter("port", 9),))
DROP = ActionModel("drop", 2, ())
ACTIONS = (FORWARD, DROP)
WIDEST: list[MatchKind] = ["exact", "lpm", "ternary", "range"]


def key(kind: MatchKind, width: int, name: str = "k") -> KeyField:
    return KeyField(name, kind, width, ("hdr", name))


def table(*keys: KeyField, name: str = "t", **more: Any) -> TableModel:
    kinds = ["ternary" if field.kind == "optional" else field.kind for field in keys] or ["exact"]
    match = max(kinds, key=WIDEST.index)
    settings: dict[str, Any] = {"kind": "simple", "actions": ACTIONS, "size": 4096, "default": 1}
    return TableModel(name=name, id=1, match=match, keys=keys, **(settings | more))


def control(*tables: TableModel, **more: Any) -> ControlModel:
    parts: dict[str, Any] = {
        "tables": {item.name: item for item in tables},
        "actions": {action.id: action for action in ACTIONS},
        "profiles": {},
        "counters": {},
        "meters": {},
        "registers": {},
        "digests": {},
        "value_sets": {},
    }
    return ControlModel(**(parts | more))


def runtime(*tables: TableModel, **more: Any) -> Runtime:
    return Runtime(control(*tables, **more), random=random.Random(0), clock=lambda: 5_000_000)


def whole() -> Runtime:
    """A program with one of everything."""
    selected = {"kind": "indirect_ws", "profile": "selector", "default": None}
    return runtime(
        table(key("exact", 8), name="exact", with_counters=True, direct_meter="direct", support_timeout=True, size=6),
        table(key("lpm", 8), name="lpm"),
        table(key("ternary", 4, "a"), key("range", 4, "b"), name="ternary"),
        table(key("exact", 8), name="selected", **selected),
        table(key("lpm", 8), name="shared", **selected),
        profiles={"selector": ProfileModel("selector", 1, 12, "identity", (("hdr", "k"),))},
        counters={"counter": CounterModel("counter", 1, 4), "of_exact": CounterModel("of_exact", 2, 6, "exact")},
        meters={
            "meter": MeterModel("meter", 1, 3, "bytes"),
            "direct": MeterModel("direct", 2, 6, "packets", "exact", ("m", "c")),
        },
        registers={"register": RegisterModel("register", 1, 4, 16)},
        value_sets={"set": ValueSetModel("set", 1, 8, 3)},
    )


def hit_state(hit: Hit) -> object:
    index, data, entry = hit
    where = None if entry is None else (entry.match, entry.priority)
    return (index, [hit_state(choice) for choice in data.active] if isinstance(data, Group) else data, where)


def state(run: Runtime) -> dict[str, object]:
    """Everything that the control plane can see or the data plane can meet, down to the tokens of meters and all lookups."""
    tables = {}
    for name, item in run.tables.items():
        rows = {}
        for entry in item.entries():
            rows[entry.match, entry.priority] = (
                entry.action,
                hit_state(entry.hit),
                entry.serial,
                entry.packets,
                entry.bytes,
                entry.last_hit,
                entry.idle_timeout_ns,
                entry.metadata,
                entry.controller_metadata,
                entry.meter and entry.meter.state(),
            )
        keys = range(256) if len(item.model.keys) == 1 else [(a, b) for a in range(16) for b in range(16)]
        tables[name] = (rows, item.default, item.miss, [hit_state(item.lookup(packet)) for packet in keys])
    profiles = {
        name: (
            {
                member.id: (
                    member.call,
                    member.hit,
                    member.serial,
                    {id(user) for user in member.users},
                    {g.id for g in member.groups},
                )
                for member in profile.members.values()
            },
            {
                group.id: (group.members, group.max_size, group.active, {id(user) for user in group.users})
                for group in profile.groups.values()
            },
        )
        for name, profile in run.profiles.items()
    }
    return {
        "tables": tables,
        "profiles": profiles,
        "counters": {name: (array.packets[:], array.bytes[:]) for name, array in run.counters.items()},
        "meters": {name: [cell.state() for cell in array.cells] for name, array in run.meters.items()},
        "registers": {name: array.cells[:] for name, array in run.registers.items()},
        "sets": {name: (members.members, [members.matcher()(v) for v in range(256)]) for name, members in run.value_sets.items()},
        "groups": {group.id: (group.replicas, group.metadata, group.active) for group in run.groups},
        "sessions": {s.id: (s.replicas, s.class_of_service, s.packet_length, s.active) for s in run.sessions},
    }


def field_match(field: KeyField) -> st.SearchStrategy[object]:
    """Canonical matches of one field."""
    full = (1 << field.width) - 1
    value = st.integers(0, full)
    if field.kind == "exact":
        return value
    if field.kind == "lpm":
        return st.tuples(value, st.integers(0, field.width)).map(lambda p: (p[0] & (full << (field.width - p[1])) & full, p[1]))
    if field.kind == "ternary":
        return st.tuples(value, value).map(lambda p: (p[0] & p[1], p[1]))
    if field.kind == "range":
        return st.tuples(value, value).map(lambda p: (min(p), max(p)))
    return st.none() | value


def matches(fields: tuple[KeyField, ...]) -> st.SearchStrategy[Match]:
    return st.tuples(*[field_match(field) for field in fields])


def covers(field: KeyField, item: Any, value: int) -> bool:
    """Whether a match item takes a value: the definition, field by field."""
    if field.kind == "exact":
        return bool(item == value)
    if field.kind == "lpm":
        return item[0] >> (field.width - item[1]) == value >> (field.width - item[1])
    if field.kind == "ternary":
        return item[0] == value & item[1]
    if field.kind == "range":
        return bool(item[0] <= value <= item[1])
    return item is None or item == value
