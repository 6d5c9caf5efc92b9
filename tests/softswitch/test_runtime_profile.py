"""Action profiles and selectors: references, weights, watch ports, one-shot groups."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softswitch.errors import BadValue, DuplicateEntry, InUse, NoSuchEntry, OutOfRoom, UnsupportedConstruct
from softswitch.program.model import ProfileModel
from softswitch.runtime import (
    GROUP,
    NOTHING,
    Call,
    Group,
    GroupMember,
    GroupRef,
    Hit,
    MemberRef,
    OneShot,
    OneShotAction,
    Profile,
    Runtime,
    Table,
)
from tests.softswitch.models import ACTIONS, key, runtime, table

PORTS = st.sampled_from([None, 1, 2, 3])


def selector(size: int = 64, algorithm: str | None = "identity") -> tuple[Runtime, Profile, Table]:
    kind = "indirect" if algorithm is None else "indirect_ws"
    run = runtime(
        table(key("exact", 8), name="one", kind=kind, profile="p", default=None),
        table(key("ternary", 8), name="two", kind=kind, profile="p", default=None),
        profiles={"p": ProfileModel("p", 1, size, algorithm, (("hdr", "k"),))},
    )
    return run, run.profiles["p"], run.tables["one"]


def argument(hit: Hit) -> int:
    assert isinstance(hit[1], tuple)
    return hit[1][0]


def ports(group: Group) -> Counter[int]:
    """What each of the group's places does."""
    return Counter(argument(group.select(place)) for place in range(len(group.active)))


@given(
    st.lists(st.tuples(st.integers(1, 9), PORTS), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=8),
    st.booleans(),
    st.integers(0, 2**64 - 1),
)
def test_selection_follows_weights_and_skips_members_whose_port_is_down(
    places: list[tuple[int, int | None]], events: list[tuple[int, bool]], oneshot: bool, hash_value: int
) -> None:
    run, profile, one = selector()
    calls = [Call(0, (100 + number,)) for number in range(len(places))]
    if oneshot:
        choices = [OneShotAction(call, weight, port) for call, (weight, port) in zip(calls, places, strict=True)]
        entry = one.insert((1,), 0, OneShot(tuple(choices)))
    else:
        for number, call in enumerate(calls):
            profile.insert_member(number + 1, call)
        profile.insert_group(7, [GroupMember(number + 1, *place) for number, place in enumerate(places)])
        entry = one.insert((1,), 0, GroupRef(7))
    down: set[int] = set()
    for port, up in [(9, True), *events]:
        run.set_port_state(port, up)
        down = down - {port} if up else down | {port}
        index, group, hit_entry = one.lookup(1)
        assert (index, hit_entry) == (GROUP, entry)
        assert isinstance(group, Group)
        expected = {100 + number: weight for number, (weight, port) in enumerate(places) if port not in down}
        if expected:
            assert ports(group) == expected
            assert argument(group.select(hash_value)) in expected
        else:
            assert group.select(hash_value) == (NOTHING, (), None)


def test_a_port_that_was_down_before_counts_too() -> None:
    run, profile, _one = selector()
    run.set_port_state(4, False)
    profile.insert_member(1, Call(0, (1,)))
    profile.insert_member(2, Call(0, (2,)))
    group = profile.insert_group(1, [GroupMember(1, 1, 4), GroupMember(2)])
    assert ports(group) == {2: 1}
    profile.modify_group(1, [GroupMember(1, 1, 5), GroupMember(2, 3, 4)])
    assert ports(group) == {1: 1}
    run.set_port_state(4, True)
    assert ports(group) == {1: 1, 2: 3}
    run.set_port_state(5, False)
    assert ports(group) == {2: 3}


def test_members_are_chosen_in_the_order_of_their_making() -> None:
    _run, profile, _one = selector()
    for identity, port in ((9, 1), (3, 2), (5, 3)):
        profile.insert_member(identity, Call(0, (port,)))
    group = profile.insert_group(1, [GroupMember(3), GroupMember(5), GroupMember(9)])
    assert [group.select(h)[1] for h in range(4)] == [(1,), (2,), (3,), (1,)]


def test_a_change_of_a_member_shows_everywhere_at_once() -> None:
    run, profile, one = selector()
    two = run.tables["two"]
    profile.insert_member(1, Call(0, (1,)))
    group = profile.insert_group(1, [GroupMember(1)])
    direct = one.insert((1,), 0, MemberRef(1))
    cached = two.insert(((1, 1),), 5, MemberRef(1))
    assert one.lookup(1) == (0, (1,), direct)
    assert two.lookup(3) == (0, (1,), cached)
    profile.modify_member(1, Call(1))
    assert one.lookup(1) == (1, (), direct)
    assert two.lookup(3) == (1, (), cached)
    assert group.select(0) == (1, (), None)


def test_what_is_referred_to_cannot_go() -> None:
    _run, profile, one = selector()
    profile.insert_member(1, Call(1))
    profile.insert_member(2, Call(1))
    profile.insert_group(1, [GroupMember(1)])
    one.insert((1,), 0, GroupRef(1))
    one.insert((2,), 0, MemberRef(2))
    for refused in (lambda: profile.delete_member(1), lambda: profile.delete_member(2), lambda: profile.delete_group(1)):
        with pytest.raises(InUse):
            refused()
    one.modify((1,), 0, MemberRef(2))
    profile.delete_group(1)
    profile.delete_member(1)
    one.delete((1,), 0)
    with pytest.raises(InUse):
        profile.delete_member(2)
    one.delete((2,), 0)
    profile.delete_member(2)
    assert (profile.members, profile.groups) == ({}, {})


def test_what_does_not_exist_or_fit_is_refused() -> None:
    _run, profile, one = selector(size=3)
    with pytest.raises(BadValue):
        one.insert((1,), 0, Call(1))
    with pytest.raises(BadValue):
        one.set_default(Call(1))
    for missing in (MemberRef(1), GroupRef(1)):
        with pytest.raises(NoSuchEntry):
            one.insert((1,), 0, missing)
    for call in (Call(2), Call(0), Call(0, (512,))):
        with pytest.raises(BadValue):
            profile.insert_member(1, call)
    for identity in (0, -1, 2**32):
        with pytest.raises(BadValue):
            profile.insert_member(identity, Call(1))
        with pytest.raises(BadValue):
            profile.insert_group(identity, [])
    for identity in (1, 2, 3):
        profile.insert_member(identity, Call(1))
    with pytest.raises(DuplicateEntry):
        profile.insert_member(1, Call(1))
    with pytest.raises(OutOfRoom):
        profile.insert_member(4, Call(1))
    with pytest.raises(NoSuchEntry):
        profile.insert_group(1, [GroupMember(4)])
    for members in ([GroupMember(1), GroupMember(1)], [GroupMember(1, 0)]):
        with pytest.raises(BadValue):
            profile.insert_group(1, members)
    with pytest.raises(OutOfRoom):
        profile.insert_group(1, [GroupMember(1, 4)])
    profile.insert_group(1, [GroupMember(1, 2)], max_size=2)
    with pytest.raises(DuplicateEntry):
        profile.insert_group(1, [])
    with pytest.raises(OutOfRoom):
        profile.insert_group(2, [GroupMember(1, 2)])
    with pytest.raises(OutOfRoom):
        profile.modify_group(1, [GroupMember(1, 3)])
    with pytest.raises(BadValue):
        profile.modify_group(1, [GroupMember(1)], max_size=3)
    profile.modify_group(1, [GroupMember(2, 2)], max_size=2)
    for missing_write in (
        lambda: profile.modify_group(2, []),
        lambda: profile.delete_group(2),
        lambda: profile.modify_member(4, Call(1)),
        lambda: profile.delete_member(4),
    ):
        with pytest.raises(NoSuchEntry):
            missing_write()
    profile.max_group_size = 1
    with pytest.raises(BadValue):
        profile.insert_group(2, [], max_size=2)
    with pytest.raises(OutOfRoom):
        profile.insert_group(2, [GroupMember(1), GroupMember(2)])


def test_one_shots_and_members_do_not_mix() -> None:
    _run, profile, one = selector(size=4)
    shot = OneShot((OneShotAction(Call(1)),))
    one.insert((1,), 0, shot)
    with pytest.raises(BadValue):
        profile.insert_member(1, Call(1))
    with pytest.raises(BadValue):
        profile.insert_group(1, [])
    for wrong in (OneShot((OneShotAction(Call(5)),)), OneShot((OneShotAction(Call(1), 0),))):
        with pytest.raises(BadValue):
            one.insert((2,), 0, wrong)
    with pytest.raises(OutOfRoom):
        one.insert((2,), 0, OneShot((OneShotAction(Call(1), 4),)))
    one.modify((1,), 0, OneShot((OneShotAction(Call(1), 4),)))
    one.delete((1,), 0)
    profile.insert_member(1, Call(1))
    with pytest.raises(BadValue):
        one.insert((1,), 0, shot)


def test_a_profile_without_selector_has_no_groups() -> None:
    _run, profile, one = selector(algorithm=None)
    profile.insert_member(1, Call(0, (3,)))
    with pytest.raises(BadValue):
        profile.insert_group(1, [GroupMember(1)])
    with pytest.raises(BadValue):
        one.insert((1,), 0, OneShot((OneShotAction(Call(1)),)))
    entry = one.insert((1,), 0, MemberRef(1))
    assert one.lookup(1) == (0, (3,), entry)


def test_tables_that_share_a_profile_need_the_same_actions() -> None:
    with pytest.raises(UnsupportedConstruct, match="other actions"):
        runtime(
            table(key("exact", 8), name="one", kind="indirect", profile="p", default=None),
            table(key("exact", 8), name="two", kind="indirect", profile="p", default=None, actions=ACTIONS[::-1]),
            profiles={"p": ProfileModel("p", 1, 4)},
        )
