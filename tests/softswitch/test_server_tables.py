"""Table entries over gRPC: what is written is read back in canonical form, and each mistake has its code."""
# ruff: noqa: F811 (a parameter that is a fixture has the name of the import)

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("finsy", reason="needs the extra p4")

from finsy.proto import p4r

from softswitch.server import Code
from softswitch.server.testing import running_switches
from tests.softswitch.server_fixtures import names, primary, shared_primary, switch  # noqa: F401
from tests.softswitch.server_lab import DELETE, INSERT, MODIFY, Controller, Failed, octets

PORT = {"exact": {"value": 3}}


def refused(controller, kind, message, code, text=""):
    with pytest.raises(Failed) as caught:
        controller.write((kind, message))
    assert caught.value.code == Code.UNKNOWN
    assert caught.value.item == code, caught.value
    assert text in caught.value.items[0][1]


@st.composite
def acl_entries(draw, names):
    """An entry of the table that has all match kinds but lpm, in canonical form."""
    match = {"f4": {"exact": {"value": draw(st.integers(0, 1))}}}
    if draw(st.booleans()):
        match["f1"] = {"optional": {"value": draw(st.integers(0, 511))}}
    mask = draw(st.integers(0, 0xFFFF))
    if mask:
        match["f2"] = {"ternary": {"value": draw(st.integers(0, 0xFFFF)) & mask, "mask": mask}}
    low, high = sorted((draw(st.integers(0, 255)), draw(st.integers(0, 255))))
    if (low, high) != (0, 255):
        match["f3"] = {"range": {"low": low, "high": high}}
    action = draw(st.sampled_from([("permit",), ("drop",), ("mirror", draw(st.integers(0, 2**32 - 1)))]))
    return names.entry(
        "acl",
        *action,
        match=dict(sorted(match.items())),
        priority=draw(st.integers(1, 2**31 - 1)),
        metadata=draw(st.binary(max_size=10)),
        controller_metadata=draw(st.integers(0, 2**64 - 1)),
    )


def key(entry):
    return sorted(field.SerializeToString() for field in entry.match), entry.priority


@given(st.data())
@settings(max_examples=25)
def test_what_is_written_is_read_back(shared_primary, names, data):
    entries = data.draw(st.lists(acl_entries(names), max_size=8, unique_by=lambda entry: str(key(entry))))
    shared_primary.insert(*entries)
    try:
        query = p4r.TableEntry(table_id=names["acl"])
        assert sorted(shared_primary.read(query), key=key) == sorted(entries, key=key)
        for entry in entries:
            one = p4r.TableEntry(table_id=names["acl"], match=entry.match, priority=entry.priority)
            assert shared_primary.read(one) == [entry]
    finally:
        shared_primary.delete(*entries)
    assert shared_primary.read(p4r.TableEntry(table_id=names["acl"])) == []


def test_values_may_come_with_leading_zeros_and_go_out_without(primary):
    names = primary.names
    entry = names.entry("dmac", "forward", bytes(5) + b"\x02", match={"f1": bytes(9) + b"\x01\x00"})
    primary.insert(entry)
    (got,) = primary.read(p4r.TableEntry(table_id=names["dmac"]))
    assert got.match[0].exact.value == b"\x01\x00"
    assert got.action.action.params[0].value == b"\x02"
    (same,) = primary.read(p4r.TableEntry(table_id=names["dmac"], match=entry.match))
    assert same == got
    refused(primary, INSERT, names.entry("dmac", "forward", 9, match={"f1": b"\x01\x00"}), Code.ALREADY_EXISTS)


WRONG = [
    ("no table", lambda n: p4r.TableEntry(), Code.INVALID_ARGUMENT, "table_id is not set"),
    ("unknown table", lambda n: p4r.TableEntry(table_id=0x02FFFFFF), Code.NOT_FOUND, "no table"),
    ("id of an action", lambda n: p4r.TableEntry(table_id=n["forward"]), Code.NOT_FOUND, "no table"),
    ("too wide a key", lambda n: n.entry("dmac", "forward", 1, match={"f1": 2**48}), Code.INVALID_ARGUMENT, "48 bits"),
    ("empty key", lambda n: n.entry("dmac", "forward", 1, match={"f1": b""}), Code.INVALID_ARGUMENT, "empty"),
    ("too wide a parameter", lambda n: n.entry("dmac", "forward", 512, match={"f1": 1}), Code.INVALID_ARGUMENT, "9 bits"),
    ("empty parameter", lambda n: n.entry("dmac", "forward", b"", match={"f1": 1}), Code.INVALID_ARGUMENT, "empty"),
    ("missing parameter", lambda n: n.entry("dmac", "forward", match={"f1": 1}), Code.INVALID_ARGUMENT, "port"),
    ("extra parameter", lambda n: n.entry("dmac", "drop", 1, match={"f1": 1}), Code.INVALID_ARGUMENT, "no parameter"),
    ("missing field", lambda n: n.entry("dmac", "forward", 1), Code.INVALID_ARGUMENT, "missing"),
    ("unknown field", lambda n: n.entry("dmac", "forward", 1, match={"f1": 1, "f9": 1}), Code.INVALID_ARGUMENT, "id 9"),
    ("no action", lambda n: n.entry("dmac", match={"f1": 1}), Code.INVALID_ARGUMENT, "needs an action"),
    ("empty action", lambda n: n.entry("dmac", match={"f1": 1}, action=p4r.TableAction()), Code.INVALID_ARGUMENT, "direct"),
    ("another table's action", lambda n: n.entry("dmac", "permit", match={"f1": 1}), Code.INVALID_ARGUMENT, "not one of"),
    ("default-only action", lambda n: n.entry("dmac", "miss", match={"f1": 1}), Code.PERMISSION_DENIED, "miss"),
    ("a priority", lambda n: n.entry("dmac", "drop", match={"f1": 1}, priority=1), Code.INVALID_ARGUMENT, "priority"),
    ("no priority", lambda n: n.entry("acl", "drop", match={"f4": 1}), Code.INVALID_ARGUMENT, "priority"),
    ("negative priority", lambda n: n.entry("acl", "drop", match={"f4": 1}, priority=-1), Code.INVALID_ARGUMENT, "priority"),
    (
        "kind of match",
        lambda n: n.entry("dmac", "drop", match={"f1": {"ternary": {"value": 1, "mask": 1}}}),
        Code.INVALID_ARGUMENT,
        "is exact",
    ),
    (
        "prefix of 0",
        lambda n: n.entry("routes", "drop", match={"f1": {"lpm": {"value": 0, "prefix_len": 0}}}),
        Code.INVALID_ARGUMENT,
        "care",
    ),
    (
        "too long a prefix",
        lambda n: n.entry("routes", "drop", match={"f1": {"lpm": {"value": 0, "prefix_len": 33}}}),
        Code.INVALID_ARGUMENT,
        "1..32",
    ),
    (
        "bits beyond the prefix",
        lambda n: n.entry("routes", "drop", match={"f1": {"lpm": {"value": 1, "prefix_len": 31}}}),
        Code.INVALID_ARGUMENT,
        "beyond",
    ),
    (
        "mask of 0",
        lambda n: n.entry("acl", "drop", priority=1, match={"f4": 1, "f2": {"ternary": {"value": 0, "mask": 0}}}),
        Code.INVALID_ARGUMENT,
        "care",
    ),
    (
        "bits outside the mask",
        lambda n: n.entry("acl", "drop", priority=1, match={"f4": 1, "f2": {"ternary": {"value": 3, "mask": 2}}}),
        Code.INVALID_ARGUMENT,
        "outside",
    ),
    (
        "empty range",
        lambda n: n.entry("acl", "drop", priority=1, match={"f4": 1, "f3": {"range": {"low": 2, "high": 1}}}),
        Code.INVALID_ARGUMENT,
        "above",
    ),
    (
        "whole range",
        lambda n: n.entry("acl", "drop", priority=1, match={"f4": 1, "f3": {"range": {"low": 0, "high": 255}}}),
        Code.INVALID_ARGUMENT,
        "care",
    ),
    ("keyless", lambda n: n.entry("always", "forward", 1), Code.INVALID_ARGUMENT, "no key"),
    ("const", lambda n: n.entry("dmac", "drop", match={"f1": 1}, is_const=True), Code.INVALID_ARGUMENT, "is_const"),
    (
        "const table",
        lambda n: n.entry("classes", "drop", priority=9, match={"f1": {"ternary": {"value": 1, "mask": 1}}}),
        Code.PERMISSION_DENIED,
        "const",
    ),
    ("timeout", lambda n: n.entry("dmac", "drop", match={"f1": 1}, idle_timeout_ns=1), Code.INVALID_ARGUMENT, "timeout"),
    (
        "negative timeout",
        lambda n: n.entry("smac", "learn", match={"f1": 1}, idle_timeout_ns=-1),
        Code.INVALID_ARGUMENT,
        "timeout",
    ),
    (
        "time since last hit",
        lambda n: n.entry("smac", "learn", match={"f1": 1}, time_since_last_hit={}),
        Code.INVALID_ARGUMENT,
        "time_since",
    ),
    ("counter", lambda n: n.entry("dmac", "drop", match={"f1": 1}, counter_data={}), Code.INVALID_ARGUMENT, "no direct counter"),
    ("meter", lambda n: n.entry("dmac", "drop", match={"f1": 1}, meter_config={}), Code.INVALID_ARGUMENT, "no direct meter"),
    ("colours", lambda n: n.entry("dmac", "drop", match={"f1": 1}, meter_counter_data={}), Code.UNIMPLEMENTED, "colour"),
    ("insertion of the default", lambda n: n.entry("dmac", "drop", is_default_action=True), Code.INVALID_ARGUMENT, "modified"),
    (
        "direct action in an indirect table",
        lambda n: n.entry("balanced", "forward", 1, match={"f1": 1}),
        Code.INVALID_ARGUMENT,
        "implementation",
    ),
    (
        "group in a direct table",
        lambda n: n.entry("dmac", match={"f1": 1}, action=p4r.TableAction(action_profile_group_id=1)),
        Code.INVALID_ARGUMENT,
        "direct",
    ),
    (
        "group in a table without selector",
        lambda n: n.entry("shared_hops", match={"f1": 1}, action=p4r.TableAction(action_profile_group_id=1)),
        Code.INVALID_ARGUMENT,
        "implementation",
    ),
    (
        "unknown member",
        lambda n: n.entry("balanced", match={"f1": 1}, action=p4r.TableAction(action_profile_member_id=1)),
        Code.NOT_FOUND,
        "member 1",
    ),
    (
        "unknown group",
        lambda n: n.entry("balanced", match={"f1": 1}, action=p4r.TableAction(action_profile_group_id=1)),
        Code.NOT_FOUND,
        "group 1",
    ),
]


@pytest.mark.parametrize(("make", "code", "text"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_wrong_entries(shared_primary, names, make, code, text):
    before = shared_primary.read(p4r.TableEntry())
    refused(shared_primary, INSERT, make(names), code, text)
    assert shared_primary.read(p4r.TableEntry()) == before


def test_a_field_or_parameter_twice(shared_primary, names):
    entry = names.entry("dmac", "forward", 1, match={"f1": 1})
    entry.match.append(entry.match[0])
    refused(shared_primary, INSERT, entry, Code.INVALID_ARGUMENT, "twice")
    entry = names.entry("dmac", "forward", 1, match={"f1": 1})
    entry.action.action.params.append(entry.action.action.params[0])
    refused(shared_primary, INSERT, entry, Code.INVALID_ARGUMENT, "twice")


def test_duplicate_and_missing_entries(primary):
    names = primary.names
    entry = names.entry("dmac", "forward", 1, match={"f1": 1})
    for kind in (MODIFY, DELETE):
        refused(primary, kind, entry, Code.NOT_FOUND)
    primary.insert(entry)
    refused(primary, INSERT, entry, Code.ALREADY_EXISTS)
    primary.modify(names.entry("dmac", "drop", match={"f1": 1}, metadata=b"m"))
    (got,) = primary.read(entry.__class__(table_id=names["dmac"]))
    assert (got.action.action.action_id, got.metadata) == (names["drop"], b"m")
    primary.modify(names.entry("dmac", match={"f1": 1}))
    (got,) = primary.read(p4r.TableEntry(table_id=names["dmac"]))
    assert (got.action.action.action_id, got.metadata) == (names["drop"], b"")
    # Only the key counts for a deletion.
    primary.delete(names.entry("dmac", "permit", 1, 2, 3, match={"f1": 1}, idle_timeout_ns=-5, counter_data={}))
    refused(primary, DELETE, entry, Code.NOT_FOUND)


def test_a_full_table(primary):
    names = primary.names
    primary.insert(*(names.entry("acl", "drop", match={"f4": 1}, priority=number) for number in range(1, 65)))
    refused(primary, INSERT, names.entry("acl", "drop", match={"f4": 1}, priority=65), Code.RESOURCE_EXHAUSTED)


def test_default_entries(primary):
    names = primary.names
    query = p4r.TableEntry(table_id=names["dmac"], is_default_action=True)

    def default(*action, **fields):
        return names.entry("dmac", *action, is_default_action=True, **fields)

    (initial,) = primary.read(query)
    assert initial == default("miss")
    changed = default("forward", 4, metadata=b"note", controller_metadata=5)
    primary.modify(changed)
    assert primary.read(query) == [changed]
    primary.modify(default())
    assert primary.read(query) == [initial]
    assert len(primary.read(p4r.TableEntry(is_default_action=True))) == 8

    refused(primary, DELETE, default(), Code.INVALID_ARGUMENT)
    refused(primary, MODIFY, default("forward", 1, match={"f1": 1}), Code.INVALID_ARGUMENT, "neither")
    refused(primary, MODIFY, default("forward", 1, priority=1), Code.INVALID_ARGUMENT, "neither")
    refused(primary, MODIFY, default("forward", 1, idle_timeout_ns=1), Code.INVALID_ARGUMENT, "timeout")
    refused(primary, MODIFY, default(action=p4r.TableAction(action_profile_member_id=1)), Code.INVALID_ARGUMENT)
    const = p4r.TableEntry(table_id=names["classes"], is_default_action=True)
    refused(primary, MODIFY, const, Code.PERMISSION_DENIED, "const")
    table_only = names.entry("routes", "mirror", 1, is_default_action=True)
    refused(primary, MODIFY, table_only, Code.PERMISSION_DENIED, "mirror")
    indirect = names.entry("balanced", "drop", is_default_action=True)
    refused(primary, MODIFY, indirect, Code.INVALID_ARGUMENT, "profile")


def test_const_entries_are_read_with_priorities_and_cannot_be_written(primary):
    names = primary.names
    entries = primary.read(p4r.TableEntry(table_id=names["classes"]))
    assert len(entries) == 2
    first, second = sorted(entries, key=lambda entry: -entry.priority)
    assert first.match[0].ternary.value == b"\x10"
    assert second.match[0].ternary.value == b"\x20"
    assert all(entry.is_const and entry.priority > 0 for entry in entries)
    first.is_const = False
    for kind in (INSERT, MODIFY, DELETE):
        refused(primary, kind, first, Code.PERMISSION_DENIED, "const")
    first.is_const = True
    refused(primary, MODIFY, first, Code.INVALID_ARGUMENT, "is_const")


def test_filters(primary):
    names = primary.names
    a = names.entry("acl", "drop", match={"f4": 1}, priority=1, metadata=b"a")
    b = names.entry("acl", "drop", match={"f4": 1}, priority=2, controller_metadata=7)
    c = names.entry("acl", "mirror", 1, match={"f4": 0}, priority=2)
    d = names.entry("dmac", "forward", 1, match={"f1": 1})
    primary.insert(a, b, c, d)

    def read(**fields):
        return sorted(primary.read(p4r.TableEntry(**fields)), key=str)

    acl = {"table_id": names["acl"]}
    assert len(read()) == 4 + 2
    assert read(**acl) == sorted([a, b, c], key=str)
    assert read(**acl, match=a.match) == sorted([a, b], key=str)
    assert read(**acl, match=a.match, priority=1) == [a]
    assert read(**acl, match=a.match, priority=3) == []
    assert read(**acl, priority=2) == sorted([b, c], key=str)
    assert read(**acl, metadata=b"a") == [a]
    assert read(**acl, controller_metadata=7) == [b]
    assert read(**acl, action=c.action) == [c]
    assert read(**acl, action=p4r.TableAction(action=p4r.Action(action_id=names["drop"]))) == sorted([a, b], key=str)
    for fields, code in [
        ({"priority": 1}, Code.INVALID_ARGUMENT),
        ({"match": a.match}, Code.INVALID_ARGUMENT),
        ({"table_id": 5}, Code.NOT_FOUND),
        ({**acl, "match": d.match}, Code.INVALID_ARGUMENT),
        ({**acl, "action": p4r.TableAction(action=p4r.Action(action_id=names["learn"]))}, Code.INVALID_ARGUMENT),
        ({"table_id": names["balanced"], "action": p4r.TableAction(action_profile_member_id=1)}, Code.INVALID_ARGUMENT),
        ({**acl, "time_since_last_hit": {}}, Code.INVALID_ARGUMENT),
        ({**acl, "is_default_action": True, "priority": 2}, Code.INVALID_ARGUMENT),
        ({"table_id": names["smac"], "is_default_action": True, "time_since_last_hit": {}}, Code.INVALID_ARGUMENT),
        ({**acl, "meter_counter_data": {}}, Code.UNIMPLEMENTED),
    ]:
        with pytest.raises(Failed) as caught:
            primary.read(p4r.TableEntry(**fields))
        assert caught.value.item == code, fields


def test_direct_counters(switch, primary):
    names = primary.names
    entry = names.entry("smac", "count_direct", match={"f1": 0xA})
    primary.insert(entry)
    for _ in range(3):
        switch.receive(1, bytes(6) + (0xA).to_bytes(6, "big") + b"\x12\x34" + bytes(46))
    query = p4r.TableEntry(table_id=names["smac"])
    assert primary.read(query) == [entry]
    query.counter_data.SetInParent()
    (got,) = primary.read(query)
    assert (got.counter_data.packet_count, got.counter_data.byte_count) == (3, 180)
    direct = p4r.DirectCounterEntry(table_entry=p4r.TableEntry(table_id=names["smac"], match=entry.match))
    assert primary.read(direct)[0].data.packet_count == 3
    assert len(primary.read(p4r.DirectCounterEntry(table_entry={"table_id": names["smac"]}))) == 1
    assert len(primary.read(p4r.DirectCounterEntry())) == 1

    direct.data.packet_count, direct.data.byte_count = 5, 7
    primary.modify(direct)
    assert primary.read(direct) == [direct]
    direct.ClearField("data")
    primary.modify(direct)
    assert primary.read(direct)[0].data.packet_count == 5
    primary.modify(names.entry("smac", "learn", match={"f1": 0xA}))
    assert primary.read(direct)[0].data.packet_count == 5
    primary.modify(names.entry("smac", "learn", match={"f1": 0xA}, counter_data={"packet_count": 9}))
    assert primary.read(direct)[0].data.packet_count == 9

    other = p4r.DirectCounterEntry(table_entry=names.entry("smac", match={"f1": 0xB}))
    with pytest.raises(Failed) as caught:
        primary.read(other)
    assert caught.value.item == Code.NOT_FOUND
    refused(primary, MODIFY, other, Code.NOT_FOUND)
    for kind in (INSERT, DELETE):
        refused(primary, kind, direct, Code.INVALID_ARGUMENT, "modified")
    refused(primary, MODIFY, p4r.DirectCounterEntry(table_entry={"table_id": names["dmac"]}), Code.INVALID_ARGUMENT, "no direct")
    direct.data.packet_count = -1
    refused(primary, MODIFY, direct, Code.INVALID_ARGUMENT, "negative")
    primary.delete(entry)
    refused(primary, MODIFY, direct, Code.NOT_FOUND)
    primary.insert(names.entry("smac", "learn", match={"f1": 0xA}, counter_data={"packet_count": 4, "byte_count": 6}))
    assert primary.read(direct)[0].data.packet_count == 4


def test_direct_meters(primary):
    names = primary.names
    config = p4r.MeterConfig(cir=1, cburst=2, pir=3, pburst=4)
    entry = names.entry("acl", "permit", match={"f4": 1}, priority=1, meter_config=config)
    primary.insert(entry)
    query = p4r.TableEntry(table_id=names["acl"], meter_config={})
    assert primary.read(query) == [entry]
    direct = p4r.DirectMeterEntry(table_entry=names.entry("acl", match={"f4": 1}, priority=1))
    (got,) = primary.read(direct)
    assert got.config == config
    primary.modify(direct)
    (got,) = primary.read(direct)
    assert not got.HasField("config")
    assert not primary.read(query)[0].HasField("meter_config")
    direct.config.CopyFrom(config)
    primary.modify(direct)
    assert primary.read(p4r.DirectMeterEntry()) == [direct]
    # A modification without a configuration takes it away.
    primary.modify(names.entry("acl", "permit", match={"f4": 1}, priority=1))
    assert not primary.read(direct)[0].HasField("config")

    for wrong in ({"cir": -1}, {"cir": 2, "pir": 1}, {"eburst": 1}):
        refused(primary, MODIFY, p4r.DirectMeterEntry(table_entry=direct.table_entry, config=wrong), Code.INVALID_ARGUMENT)
        bad = names.entry("acl", "drop", match={"f4": 1}, priority=5, meter_config=wrong)
        refused(primary, INSERT, bad, Code.INVALID_ARGUMENT)
    assert len(primary.read(query)) == 1
    refused(primary, MODIFY, p4r.DirectMeterEntry(table_entry=direct.table_entry, counter_data={}), Code.UNIMPLEMENTED)
    refused(primary, MODIFY, p4r.DirectMeterEntry(table_entry={"table_id": names["smac"]}), Code.INVALID_ARGUMENT, "no direct")
    default = p4r.DirectMeterEntry(table_entry={"table_id": names["acl"], "is_default_action": True})
    refused(primary, MODIFY, default, Code.UNIMPLEMENTED)


def test_idle_times_are_shown_on_request(primary):
    names = primary.names
    entry = names.entry("smac", "learn", match={"f1": 1}, idle_timeout_ns=10**15)
    primary.insert(entry)
    assert primary.read(p4r.TableEntry(table_id=names["smac"])) == [entry]
    query = p4r.TableEntry(table_id=names["smac"], time_since_last_hit={})
    first = primary.read(query)[0].time_since_last_hit.elapsed_ns
    second = primary.read(query)[0].time_since_last_hit.elapsed_ns
    assert 0 <= first <= second < 60 * 10**9


def test_a_large_table_is_read_in_parts():
    with running_switches() as (switch,), Controller(switch.address) as primary:
        primary.bid(1)
        primary.set_pipeline()
        names = primary.names
        metadata = bytes(range(256)) * 8
        entries = [names.entry("dmac", "forward", 1, match={"f1": number}, metadata=metadata) for number in range(1000)]
        primary.insert(*entries)
        request = p4r.ReadRequest(device_id=1, entities=[p4r.Entity(table_entry=p4r.TableEntry(table_id=names["dmac"]))])
        answers = list(primary.stub.Read(request))
        assert len(answers) > 2
        assert all(answer.ByteSize() < 4 << 20 for answer in answers)
        got = [item.table_entry for answer in answers for item in answer.entities]
        assert sorted(got, key=lambda entry: octets(entry.match[0].exact.value)) == sorted(
            entries, key=lambda entry: octets(entry.match[0].exact.value)
        )
