"""Each match structure against the definition of matching, with writes and lookups in any order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softswitch.errors import BadValue, DuplicateEntry, Immutable, NoSuchEntry, OutOfRoom
from softswitch.program.model import ConstEntry, KeyField, Match, MatchKind
from softswitch.runtime import NOTHING, Call, MemberRef, Table, classifier
from softswitch.runtime import table as table_module
from tests.softswitch.models import covers, key, matches, runtime, table

PLAIN: list[MatchKind] = ["exact", "ternary", "range", "optional"]


@st.composite
def keys(draw: st.DrawFn) -> tuple[KeyField, ...]:
    """One to three fields, at most one of them longest-prefix, narrow enough that entries meet."""
    widths = draw(st.lists(st.integers(1, 3), min_size=1, max_size=draw(st.sampled_from([1, 2, 2, 3]))))
    one = draw(st.none() | st.sampled_from(PLAIN))
    kinds: list[MatchKind] = [draw(st.sampled_from(PLAIN)) if one is None else one for _ in widths]
    if draw(st.booleans()):
        kinds[draw(st.integers(0, len(kinds) - 1))] = "lpm"
    return tuple(key(kind, width, f"k{i}") for i, (kind, width) in enumerate(zip(kinds, widths, strict=True)))


class Naive:
    """The definition: of all entries that match, the longest prefix or highest priority, then the oldest."""

    def __init__(self, fields: tuple[KeyField, ...]) -> None:
        self.fields = fields
        self.prioritized = any(field.kind in ("ternary", "range", "optional") for field in fields)
        self.rows: dict[tuple[Match, int], int] = {}
        self.default = 0

    def lookup(self, packet: tuple[int, ...]) -> tuple[int, tuple[Match, int] | None]:
        best: tuple[Any, tuple[Match, int], int] | None = None
        for (match, priority), port in self.rows.items():
            if all(covers(*each) for each in zip(self.fields, match, packet, strict=True)):
                rank: Any = priority
                if not self.prioritized:
                    rank = sum(item[1] for field, item in zip(self.fields, match, strict=True) if field.kind == "lpm")  # type: ignore[index]
                if best is None or rank > best[0]:
                    best = (rank, (match, priority), port)
        return (self.default, None) if best is None else (best[2], best[1])


def agree(real: Table, naive: Naive, packet: tuple[int, ...]) -> None:
    index, data, entry = real.lookup(packet if len(packet) > 1 else packet[0])
    port, where = naive.lookup(packet)
    assert (index, data) == (0, (port,))
    assert (None if entry is None else (entry.match, entry.priority)) == where


@settings(max_examples=400)
@given(st.data(), keys())
def test_lookup_is_the_definition_after_any_writes(data: st.DataObject, fields: tuple[KeyField, ...]) -> None:
    real = runtime(table(*fields, default=0, default_data=(0,))).tables["t"]
    bound = real.lookup
    naive = Naive(fields)
    packets = st.tuples(*[st.integers(0, (1 << field.width) - 1) for field in fields])
    seen = data.draw(st.lists(packets, min_size=1, max_size=6))
    priorities = st.integers(1, 3) if naive.prioritized else st.just(0)
    for port in range(1, data.draw(st.integers(1, 12)) + 1):
        step = data.draw(st.sampled_from(["insert", "insert", "insert", "modify", "delete", "default"]))
        known = sorted(naive.rows, key=repr)
        if step in ("modify", "delete") and known:
            where = data.draw(st.sampled_from(known))
        else:
            where = (data.draw(matches(fields)), data.draw(priorities))
        if step == "default":
            real.set_default(Call(0, (port,)))
            naive.default = port
        elif step == "insert":
            if where in naive.rows:
                with pytest.raises(DuplicateEntry):
                    real.insert(*where, Call(0, (port,)))
            else:
                real.insert(*where, Call(0, (port,)))
                naive.rows[where] = port
        elif where not in naive.rows:
            with pytest.raises(NoSuchEntry):
                real.modify(*where, Call(0, (port,))) if step == "modify" else real.delete(*where)
        elif step == "modify":
            real.modify(*where, Call(0, (port,)))
            naive.rows[where] = port
        else:
            real.delete(*where)
            del naive.rows[where]
        for packet in (*seen, data.draw(packets)):
            agree(real, naive, packet)
    assert real.lookup == bound
    assert {(entry.match, entry.priority) for entry in real.entries()} == set(naive.rows)
    assert len(real) == len(naive.rows)


@pytest.mark.parametrize("looked_up", [False, True])
def test_equal_priorities_and_masks_that_rise(looked_up: bool) -> None:
    """Of equal priorities the older entry wins, in whatever order the masks are tried; a mask may come to hold a higher one."""
    real = runtime(table(key("ternary", 8))).tables["t"]

    def insert(mask: int, value: int, priority: int, port: int) -> None:
        real.insert(((value, mask),), priority, Call(0, (port,)))
        if looked_up:
            real.lookup(255)

    insert(1, 1, 1, 1)
    insert(2, 2, 2, 2)
    insert(1, 0, 2, 3)
    assert real.lookup(2)[1] == (2,)
    insert(1, 1, 3, 4)
    assert real.lookup(3)[1] == (4,)
    real.delete(((1, 1),), 3)
    assert real.lookup(3)[1] == (2,)
    insert(4, 4, 2, 5)
    assert real.lookup(6)[1] == (2,)
    real.delete(((2, 2),), 2)
    assert real.lookup(6)[1] == (3,)


@given(st.integers(0, 2**128 - 1), st.integers(1, 128), st.integers(0, 2**128 - 1))
def test_wide_prefixes(value: int, length: int, other: int) -> None:
    real = runtime(table(key("lpm", 128))).tables["t"]
    mask = (1 << 128) - (1 << (128 - length))
    real.insert(((value & mask, length),), 0, Call(0, (1,)))
    real.insert(((0, 0),), 0, Call(0, (2,)))
    inside = (value & mask) | (other & ~mask)
    assert real.lookup(inside)[1] == (1,)
    assert real.lookup(other)[1] == ((1,) if other & mask == value & mask else (2,))


def test_the_cache_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "CACHE_SIZE", 16)
    real = runtime(table(key("ternary", 16))).tables["t"]
    real.insert(((0, 1),), 1, Call(0, (1,)))
    for packet in range(1000):
        assert real.lookup(packet)[0] == packet & 1
        assert len(real._hits) <= 16


def test_writes_do_not_rebuild(monkeypatch: pytest.MonkeyPatch) -> None:
    """The masks are put in order on the first lookup after writes, however many there were."""
    ordered: list[int] = []

    def counted(spaces: Any, key: Any) -> list[Any]:
        ordered.append(1)
        return sorted(spaces, key=key)

    monkeypatch.setattr(classifier, "sorted", counted, raising=False)
    real = runtime(table(key("lpm", 32))).tables["t"]
    for length in range(8, 33):
        for number in range(40):
            real.insert(((((0x80 + number) << 24 | 0xFFFFFF) & (0xFFFFFFFF << (32 - length)), length),), 0, Call(0, (1,)))
    assert ordered == []
    real.lookup(0)
    assert ordered == [1]
    for number in range(1000):
        real.insert(((0xC0000000 | number, 32),), 0, Call(0, (2,)))
    real.lookup(1)
    assert ordered == [1]


@pytest.mark.parametrize(
    ("fields", "match", "priority"),
    [
        ((key("exact", 8),), (256,), 0),
        ((key("exact", 8),), (-1,), 0),
        ((key("exact", 8),), (True,), 0),
        ((key("exact", 8),), ("1",), 0),
        ((key("exact", 8),), ((1, 8),), 0),
        ((key("exact", 8),), (1,), 1),
        ((key("exact", 8),), (), 0),
        ((key("exact", 8),), (1, 2), 0),
        ((key("lpm", 8),), ((1, 9),), 0),
        ((key("lpm", 8),), ((1, -1),), 0),
        ((key("lpm", 8),), ((1, 4),), 0),
        ((key("lpm", 8),), (1,), 0),
        ((key("lpm", 8),), ((0, 0),), 5),
        ((key("ternary", 8),), ((1, 1),), 0),
        ((key("ternary", 8),), ((1, 1),), -1),
        ((key("ternary", 8),), ((1, 1),), 2**31),
        ((key("ternary", 8),), ((3, 1),), 1),
        ((key("ternary", 8),), ((1, 256),), 1),
        ((key("ternary", 8),), ((1, 1, 1),), 1),
        ((key("range", 8),), ((2, 1),), 1),
        ((key("range", 8),), ((0, 256),), 1),
        ((key("range", 8),), (None,), 1),
        ((key("optional", 8),), (256,), 1),
        ((key("optional", 8),), (None,), 0),
        ((key("exact", 8), key("lpm", 8)), (1,), 0),
    ],
)
def test_a_match_that_does_not_fit_is_refused(fields: tuple[KeyField, ...], match: Match, priority: int) -> None:
    real = runtime(table(*fields)).tables["t"]
    for write in (
        lambda: real.insert(match, priority, Call(1)),
        lambda: real.modify(match, priority, Call(1)),
        lambda: real.delete(match, priority),
        lambda: real.get(match, priority),
    ):
        with pytest.raises(BadValue):
            write()
    assert len(real) == 0


@pytest.mark.parametrize("action", [Call(2), Call(-1), Call(0), Call(0, (512,)), Call(0, (-1,)), Call(1, (0,)), MemberRef(1)])
def test_an_action_that_does_not_fit_is_refused(action: Any) -> None:
    real = runtime(table(key("exact", 8))).tables["t"]
    real.insert((1,), 0, Call(1))
    with pytest.raises(BadValue):
        real.insert((2,), 0, action)
    with pytest.raises(BadValue):
        real.modify((1,), 0, action)
    if isinstance(action, Call):
        with pytest.raises(BadValue):
            real.set_default(action)
    assert real.lookup(1)[0] == 1
    assert len(real) == 1


def test_a_full_table_takes_no_more() -> None:
    real = runtime(table(key("exact", 8), size=2)).tables["t"]
    real.insert((1,), 0, Call(1))
    real.insert((2,), 0, Call(1))
    with pytest.raises(OutOfRoom):
        real.insert((3,), 0, Call(1))
    real.delete((1,), 0)
    real.insert((3,), 0, Call(1))


def test_default_actions() -> None:
    bare = runtime(table(key("exact", 8), default=None)).tables["t"]
    assert bare.lookup(1) == (NOTHING, (), None)
    bare.set_default(Call(0, (3,)))
    assert bare.lookup(1) == (0, (3,), None)
    bare.reset_default()
    assert (bare.lookup(1), bare.default) == ((NOTHING, (), None), None)
    fixed = runtime(table(key("exact", 8), default_const=True)).tables["t"]
    with pytest.raises(Immutable):
        fixed.set_default(Call(1))
    with pytest.raises(Immutable):
        fixed.reset_default()
    keyless = runtime(table(default=0, default_data=(7,))).tables["t"]
    assert keyless.lookup(()) == keyless.miss == (0, (7,), None)
    keyless.set_default(Call(0, (8,)))
    assert keyless.lookup(()) == keyless.miss == (0, (8,), None)


def test_const_entries_win_by_the_lowest_number_and_stay() -> None:
    entries = (
        ConstEntry(((0x12, 0x0F),), 2, 0, (2,)),  # bits outside the mask count for nothing here
        ConstEntry(((0x12, 0xFF),), 1, 0, (1,)),
        ConstEntry(((0, 0),), 3, 0, (3,)),
    )
    real = runtime(table(key("ternary", 8), const_entries=entries, size=1)).tables["t"]
    assert [real.lookup(packet)[1] for packet in (0x12, 0x22, 0x33)] == [(1,), (2,), (3,)]
    assert [(entry.match, entry.priority, entry.const) for entry in real.entries()] == [
        (((2, 15),), 2, True),
        (((0x12, 255),), 3, True),
        (((0, 0),), 1, True),
    ]
    with pytest.raises(Immutable):
        real.insert(((1, 1),), 9, Call(1))
    with pytest.raises(Immutable):
        real.delete(((0, 0),), 1)
    with pytest.raises(Immutable):
        real.modify(((0, 0),), 1, Call(1))
    real.set_default(Call(0, (9,)))
    assert real.default == Call(0, (9,))


def test_a_static_mask_applies_to_entries_too() -> None:
    masked = KeyField("k", "exact", 8, ("hdr", "k"), mask=0xF0)
    real = runtime(table(masked)).tables["t"]
    real.insert((0x12,), 0, Call(0, (1,)))
    assert real.lookup(0x17 & 0xF0)[1] == (1,)
    with pytest.raises(DuplicateEntry):
        real.insert((0x1F,), 0, Call(1))


def test_direct_counters_and_timeouts_survive_a_modify() -> None:
    real = runtime(table(key("exact", 8), with_counters=True, support_timeout=True)).tables["t"]
    entry = real.insert((1,), 0, Call(1), idle_timeout_ns=2_000_000, metadata=b"m", controller_metadata=4)
    assert (entry.last_hit, entry.metadata, entry.controller_metadata) == (5000, b"m", 4)
    real.write_counter(entry, 5, 700)
    assert real.modify((1,), 0, Call(0, (1,)), idle_timeout_ns=2_000_000) is entry
    assert (entry.packets, entry.bytes, entry.metadata) == (5, 700, b"")
    hit = real.lookup(1)[2]
    assert hit is entry
    assert real.idle(6999) == []
    assert real.idle(7000) == [entry]
    entry.last_hit = 7000
    assert real.idle(7000) == []
    assert real.modify((1,), 0, None).action == Call(0, (1,))
    assert real.idle(10**9) == []
    plain = runtime(table(key("exact", 8))).tables["t"]
    with pytest.raises(BadValue):
        plain.insert((1,), 0, Call(1), idle_timeout_ns=1)
    with pytest.raises(BadValue):
        plain.write_counter(plain.insert((1,), 0, Call(1)), 1, 1)
    with pytest.raises(BadValue):
        plain.write_meter(plain.get((1,), 0), None)
