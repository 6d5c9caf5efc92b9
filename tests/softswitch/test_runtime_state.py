"""Arrays, value sets, replication, digests; and transactions that roll back to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softswitch.errors import BadValue, DuplicateEntry, NoSuchEntry, OutOfBounds, OutOfRoom, RuntimeStateError
from softswitch.runtime import (
    Call,
    CloneSession,
    DigestQueue,
    Entry,
    GroupMember,
    GroupRef,
    MemberRef,
    MeterConfig,
    MulticastGroup,
    OneShot,
    OneShotAction,
    Replica,
    Runtime,
)
from tests.softswitch.models import state, whole

SMALL = st.integers(0, 3)
CALLS = st.just(Call(1)) | st.builds(lambda port: Call(0, (port,)), st.integers(0, 511))
ONESHOTS = st.lists(st.builds(OneShotAction, CALLS, st.integers(1, 3), st.none() | SMALL), max_size=3).map(
    lambda a: OneShot(tuple(a))
)
REFERENCES = st.builds(MemberRef, SMALL) | st.builds(GroupRef, SMALL) | ONESHOTS
PREFIXES = st.integers(0, 8).map(lambda length: (0xA5 & (0xFF00 >> length) & 0xFF, length))
TERNARY = st.tuples(st.sampled_from([(0, 0), (1, 1), (5, 15)]), st.tuples(SMALL, SMALL).map(lambda p: (min(p), max(p) + 9)))
CONFIGS = st.none() | st.builds(MeterConfig, SMALL, SMALL, st.integers(2, 5), SMALL)
PLACES = st.lists(st.builds(GroupMember, SMALL, st.integers(0, 3), st.none() | SMALL), max_size=3)
REPLICAS = st.lists(st.builds(Replica, SMALL, SMALL, st.lists(st.tuples(SMALL, SMALL), max_size=2).map(tuple)), max_size=3).map(
    tuple
)
Operation = Callable[[Runtime], object]


def _table(
    name: str, matches: st.SearchStrategy[Any], priorities: st.SearchStrategy[int], actions: st.SearchStrategy[Any]
) -> Any:
    timeout = SMALL if name == "exact" else st.just(0)
    return (
        st.builds(
            lambda m, p, a, i: lambda run: run.tables[name].insert(m, p, a, idle_timeout_ns=i),
            matches,
            priorities,
            actions,
            timeout,
        )
        | st.builds(
            lambda m, p, a, i: lambda run: run.tables[name].modify(m, p, a, idle_timeout_ns=i, metadata=b"x"),
            matches,
            priorities,
            st.none() | actions,
            timeout,
        )
        | st.builds(lambda m, p: lambda run: run.tables[name].delete(m, p), matches, priorities)
    )


def _entry(run: Runtime, match: int) -> Entry:
    return run.tables["exact"].get((match,), 0)


OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    _table("exact", st.tuples(SMALL), st.just(0), CALLS),
    _table("lpm", st.tuples(PREFIXES), st.just(0), CALLS),
    _table("ternary", TERNARY, st.integers(0, 2), CALLS),
    _table("selected", st.tuples(SMALL), st.just(0), REFERENCES),
    _table("shared", st.tuples(PREFIXES), st.just(0), REFERENCES),
    st.builds(
        lambda name, call: lambda run: run.tables[name].set_default(call), st.sampled_from(["exact", "lpm", "ternary"]), CALLS
    ),
    st.sampled_from(["exact", "lpm", "ternary"]).map(lambda name: lambda run: run.tables[name].reset_default()),
    st.builds(lambda m, v: lambda run: run.tables["exact"].write_counter(_entry(run, m), v, v), SMALL, st.integers(-1, 9)),
    st.builds(lambda m, c: lambda run: run.tables["exact"].write_meter(_entry(run, m), c), SMALL, CONFIGS),
    st.builds(lambda i, c: lambda run: run.profiles["selector"].insert_member(i, c), SMALL, CALLS),
    st.builds(lambda i, c: lambda run: run.profiles["selector"].modify_member(i, c), SMALL, CALLS),
    st.builds(lambda i: lambda run: run.profiles["selector"].delete_member(i), SMALL),
    st.builds(lambda i, p: lambda run: run.profiles["selector"].insert_group(i, p), SMALL, PLACES),
    st.builds(lambda i, p: lambda run: run.profiles["selector"].modify_group(i, p), SMALL, PLACES),
    st.builds(lambda i: lambda run: run.profiles["selector"].delete_group(i), SMALL),
    st.builds(
        lambda i, v: lambda run: run.registers["register"].write(i, v), st.none() | st.integers(0, 4), st.integers(0, 2**16)
    ),
    st.builds(
        lambda i, v: lambda run: run.counters["counter"].write(i, v, v), st.none() | st.integers(-1, 4), st.integers(-1, 9)
    ),
    st.builds(lambda i, c: lambda run: run.meters["meter"].write(i, c), st.none() | SMALL, CONFIGS),
    st.lists(SMALL | st.tuples(SMALL, SMALL), max_size=4).map(lambda m: lambda run: run.value_sets["set"].set(m)),
    st.builds(lambda i, r, m: lambda run: run.groups.insert(MulticastGroup(i, r, m)), SMALL, REPLICAS, st.binary(max_size=1)),
    st.builds(lambda i, r, m: lambda run: run.groups.modify(MulticastGroup(i, r, m)), SMALL, REPLICAS, st.binary(max_size=1)),
    st.builds(lambda i: lambda run: run.groups.delete(i), SMALL),
    st.builds(lambda i, r, c: lambda run: run.sessions.insert(CloneSession(i, r, c, c)), SMALL, REPLICAS, st.integers(-1, 2)),
    st.builds(lambda i, r, c: lambda run: run.sessions.modify(CloneSession(i, r, c, c)), SMALL, REPLICAS, st.integers(-1, 2)),
    st.builds(lambda i: lambda run: run.sessions.delete(i), SMALL),
)


class Undone(Exception):
    pass


def attempt(run: Runtime, operation: Operation) -> bool:
    """Whether it worked."""
    try:
        operation(run)
    except RuntimeStateError:
        return False
    return True


@given(st.lists(OPERATIONS, min_size=1, max_size=10))
def test_a_write_that_fails_changes_nothing(operations: list[Operation]) -> None:
    run = whole()
    populate(run)
    before = state(run)
    for operation in operations:
        worked = attempt(run, operation)
        after = state(run)
        assert worked or after == before
        before = after


def populate(run: Runtime) -> None:
    """References of each kind, so that few operations suffice to meet them."""
    profile = run.profiles["selector"]
    for member in (1, 2):
        profile.insert_member(member, Call(0, (member,)))
    profile.insert_group(1, [GroupMember(1), GroupMember(2, 2, 3)])
    run.tables["selected"].insert((1,), 0, GroupRef(1))
    run.tables["shared"].insert(((0, 0),), 0, MemberRef(1))
    run.tables["exact"].insert((1,), 0, Call(1))
    run.tables["ternary"].insert(((1, 1), (0, 9)), 1, Call(1))
    run.tables["lpm"].insert(((0x80, 1),), 0, Call(1))
    run.groups.insert(MulticastGroup(1, (Replica(1, 1, ((2, 2),)), Replica(3, 3))))


@settings(max_examples=300)
@given(
    st.booleans(), st.lists(OPERATIONS, max_size=5), st.lists(OPERATIONS, min_size=1, max_size=10), st.lists(SMALL, max_size=2)
)
def test_a_transaction_that_fails_leaves_no_trace(
    full: bool, before: list[Operation], inside: list[Operation], down: list[int]
) -> None:
    run = whole()
    if full:
        populate(run)
    for operation in before:
        attempt(run, operation)
    for port in down:
        run.set_port_state(port, False)
    run.meters["meter"].cells[0].color(2, 1)
    was = state(run)
    with pytest.raises(Undone), run.transaction():
        for operation in inside:
            attempt(run, operation)
        raise Undone
    assert state(run) == was


@given(st.lists(OPERATIONS, min_size=1, max_size=6), st.lists(OPERATIONS, min_size=1, max_size=6))
def test_an_inner_transaction_that_fails_takes_back_its_own_writes_only(kept: list[Operation], undone: list[Operation]) -> None:
    run = whole()
    populate(run)
    start = state(run)
    with pytest.raises(Undone), run.transaction():
        for operation in kept:
            attempt(run, operation)
        middle = state(run)
        with pytest.raises(Undone), run.transaction():
            for operation in undone:
                attempt(run, operation)
            raise Undone
        assert state(run) == middle
        with run.transaction():
            for operation in undone:
                attempt(run, operation)
        raise Undone
    assert state(run) == start


def test_a_transaction_that_ends_well_stays() -> None:
    run = whole()
    with run.transaction():
        run.registers["register"].write(0, 5)
    with pytest.raises(Undone), run.transaction():
        raise Undone
    assert run.registers["register"].read(0) == 5


def test_arrays_keep_their_lists_and_check_their_indices() -> None:
    run = whole()
    register, counter = run.registers["register"], run.counters["counter"]
    cells, packets, size = register.cells, counter.packets, counter.bytes
    register.write(None, 7)
    register.write(2, 65535)
    counter.write(1, 2, 300)
    assert cells == [7, 7, 65535, 7]
    assert (packets, size) == ([0, 2, 0, 0], [0, 300, 0, 0])
    assert (counter.read(1), list(run.counters)) == ((2, 300), ["counter"])
    for index in (4, 100):
        for beyond in (lambda i: register.write(i, 0), register.read, lambda i: counter.write(i, 0, 0), counter.read):
            with pytest.raises(OutOfBounds):
                beyond(index)
    for bad in (
        lambda: register.write(0, 65536),
        lambda: register.write(0, -1),
        lambda: register.read(-1),
        lambda: counter.write(0, -1, 0),
    ):
        with pytest.raises(BadValue):
            bad()
    assert register.cells is cells


@given(
    st.lists(
        st.tuples(st.integers(0, 255), st.integers(0, 255)).map(lambda p: (p[0] & p[1], p[1])) | st.integers(0, 255), max_size=3
    ),
    st.none() | st.integers(0, 255),
    st.lists(st.integers(0, 255), min_size=1, max_size=20),
)
def test_value_sets_match_by_definition(members: list[Any], mask: int | None, keys: list[int]) -> None:
    values = whole().value_sets["set"]
    match = values.matcher(mask)
    assert not any(match(key) for key in keys)
    pairs = [(member, 255) if isinstance(member, int) else member for member in members]
    if len(set(pairs)) < len(pairs):
        with pytest.raises(DuplicateEntry):
            values.set(members)
        return
    values.set(members)
    seen = 255 if mask is None else mask
    for key in keys:
        assert match(key) == any(key & own & seen == value & own & seen for value, own in pairs)
    assert values.values == {value for value, own in pairs if own == 255}
    values.set([])
    assert not any(match(key) for key in keys)


def test_value_sets_refuse_what_does_not_fit() -> None:
    values = whole().value_sets["set"]
    values.set([1])
    for bad in (256, -1, (1, 256), (3, 1)):
        with pytest.raises(BadValue):
            values.set([bad])
    with pytest.raises(OutOfRoom):
        values.set([1, 2, 3, 4])
    with pytest.raises(DuplicateEntry):
        values.set([1, (1, 255)])
    assert values.values == {1}


def test_copies_go_by_instance_then_port_and_to_backups() -> None:
    run = whole()
    run.groups.insert(MulticastGroup(5, (Replica(4, 2), Replica(9, 1, ((8, 7), (7, 3))), Replica(3, 2)), b"m"))
    assert run.groups.copies(5) == ((9, 1), (3, 2), (4, 2))
    assert run.groups.copies(6) == ()
    run.set_port_state(9, False)
    assert run.groups.copies(5) == ((3, 2), (4, 2), (8, 7))
    run.set_port_state(8, False)
    assert run.groups.copies(5) == ((3, 2), (4, 2), (7, 3))
    run.set_port_state(7, False)
    assert run.groups.copies(5) == ((9, 1), (3, 2), (4, 2))
    run.set_port_state(8, True)
    assert run.groups.copies(5) == ((3, 2), (4, 2), (8, 7))
    run.groups.modify(MulticastGroup(5, (Replica(9, 1, ((7, 3),)),)))
    assert run.groups.copies(5) == ((9, 1),)
    run.groups.delete(5)
    assert (run.groups.copies(5), len(run.groups)) == ((), 0)


def test_replication_refuses_what_does_not_fit() -> None:
    run = whole()
    run.groups.insert(MulticastGroup(1, ()))
    run.sessions.insert(CloneSession(1, (Replica(1),), 3, 128))
    assert (run.sessions.get(1).class_of_service, run.sessions.get(1).packet_length, run.sessions.get(1).active) == (
        3,
        128,
        ((1, 0),),
    )
    for duplicate in (lambda: run.groups.insert(MulticastGroup(1, ())), lambda: run.sessions.insert(CloneSession(1, ()))):
        with pytest.raises(DuplicateEntry):
            duplicate()
    for replicas in (
        (Replica(1, 1), Replica(1, 1)),
        (Replica(1, 1, ((1, 2),)),),
        (Replica(1, 1, ((2, 2),)), Replica(2, 2)),
        (Replica(-1),),
        (Replica(1, 65536),),
    ):
        with pytest.raises(BadValue):
            run.groups.insert(MulticastGroup(2, replicas))
        with pytest.raises(BadValue):
            run.sessions.modify(CloneSession(1, replicas))
    for identity in (0, 65536):
        with pytest.raises(BadValue):
            run.groups.insert(MulticastGroup(identity, ()))
    for session in (CloneSession(0, ()), CloneSession(32768, ()), CloneSession(2, (), -1), CloneSession(2, (), 0, -1)):
        with pytest.raises(BadValue):
            run.sessions.insert(session)
    for missing in (lambda: run.groups.delete(2), lambda: run.groups.modify(MulticastGroup(2, ())), lambda: run.sessions.get(2)):
        with pytest.raises(NoSuchEntry):
            missing()


def test_digests_are_bounded_counted_and_announced() -> None:
    queue = DigestQueue(limit=2)
    calls: list[int] = []
    queue.notify = lambda: calls.append(len(queue))
    for number in range(3):
        queue.push("d", (number,))
    assert (list(queue), queue.dropped, calls) == ([("d", (0,)), ("d", (1,))], 1, [1])
    assert queue.drain() == [("d", (0,)), ("d", (1,))]
    queue.push("d", (9,))
    assert (queue.drain(), calls) == ([("d", (9,))], [1, 1])
