"""What p4c describes to P4Runtime in unusual ways, on a switch that runs ``odd.p4``."""

import pytest

pytest.importorskip("finsy", reason="needs the extra p4")

from finsy.proto import p4r

from softswitch.server import Code
from softswitch.server.testing import running_switches
from tests.softswitch.server_lab import INSERT, MODIFY, PROGRAMS, Controller, Failed, load_p4info

INFO = PROGRAMS / "odd.p4info.txtpb"
JSON = PROGRAMS / "odd.json"


@pytest.fixture
def switch():
    with running_switches() as (switch,):
        yield switch


@pytest.fixture
def primary(switch):
    with Controller(switch.address, info=load_p4info(INFO)) as controller:
        controller.bid(1)
        controller.set_pipeline(json=JSON.read_bytes())
        yield controller


def frame(destination=1, source=2, kind=0x1234, tag=b""):
    return destination.to_bytes(6, "big") + source.to_bytes(6, "big") + kind.to_bytes(2, "big") + tag + bytes(46)


def ports(primary, port, *action):
    return primary.names.entry("ports", *action, match={"f1": port})


def test_translated_ports_are_the_numbers_of_the_data_plane(switch, primary):
    primary.insert(ports(primary, 3, "forward", 5))
    switch.receive(3, frame())
    assert switch.transmit() == [(5, frame())]
    (entry,) = primary.read(p4r.TableEntry(table_id=primary.names["ports"]))
    assert entry == ports(primary, 3, "forward", 5)
    # 32 bits on the wire, 9 in the switch.
    with pytest.raises(Failed) as caught:
        primary.insert(ports(primary, 4, "forward", 512))
    assert caught.value.item == Code.INVALID_ARGUMENT


def test_controller_headers_have_the_layout_of_the_program(switch, primary):
    primary.insert(ports(primary, 3, "to_controller", 6))
    switch.receive(3, frame())
    packet = primary.receive("packet")
    assert packet.payload == frame()
    assert {item.metadata_id: item.value for item in packet.metadata} == {1: b"\x06", 2: b"\x03", 3: b"\x00"}
    metadata = [p4r.PacketMetadata(metadata_id=1, value=b"\0"), p4r.PacketMetadata(metadata_id=2, value=b"\0\0\0\x09")]
    primary.send(packet=p4r.PacketOut(payload=frame(), metadata=metadata))
    # The answer to this comes after the packet was taken.
    primary.bid(1)
    assert switch.transmit() == [(9, frame())]
    metadata[1].value = b"\x02\0"
    primary.send(packet=p4r.PacketOut(payload=frame(), metadata=metadata))
    assert primary.receive("error").canonical_code == Code.INVALID_ARGUMENT


def test_a_digest_of_a_tuple(switch, primary):
    primary.insert(ports(primary, 3, "learn"))
    primary.insert(p4r.DigestEntry(digest_id=primary.names["digest_0"], config={}))
    switch.receive(3, frame(source=77))
    (data,) = primary.receive("digest").data
    assert [data.WhichOneof("data"), data.tuple.members[0].bitstring] == ["tuple", b"\x4d"]
    assert [member.WhichOneof("data") for member in data.tuple.members] == ["bitstring", "enum_value"]


def test_value_sets_with_several_fields_and_masks(switch, primary):
    number = primary.names["tagged"]

    def members(*matches):
        items = [p4r.ValueSetMember(match=primary.names.match("tagged", **match)) for match in matches]
        return p4r.ValueSetEntry(value_set_id=number, members=items)

    wanted = members(
        {"f1": {"ternary": {"value": 0x8000, "mask": 0xF000}}, "f2": {"lpm": {"value": 0x0A << 40, "prefix_len": 8}}},
        {"f1": {"ternary": {"value": 5, "mask": 0xFFFF}}, "f3": {"optional": {"value": 9}}},
        {},
    )
    primary.modify(wanted)
    assert primary.read(p4r.ValueSetEntry(value_set_id=number)) == [wanted]
    del wanted.members[2]
    primary.modify(wanted)
    counter = p4r.DirectCounterEntry(table_entry=primary.names.entry("kinds"))

    def counted(destination, source, kind):
        before = sum(entry.data.packet_count for entry in primary.read(counter))
        switch.receive(3, frame(destination, source, kind, b"\1\0\0\7"))
        return sum(entry.data.packet_count for entry in primary.read(counter)) - before

    assert counted(0x0A0000000001, 1, 0x8123) == 1
    assert counted(0x0B0000000001, 1, 0x8123) == 0
    assert counted(1, 9 << 40, 5) == 1
    assert counted(1, 8 << 40, 5) == 0


def test_counters_of_const_entries_can_be_written_and_nothing_else(primary):
    query = p4r.TableEntry(table_id=primary.names["kinds"], counter_data={})
    entries = primary.read(query)
    assert [entry.priority for entry in sorted(entries, key=lambda entry: -entry.priority)] == [3, 2, 1]
    first = max(entries, key=lambda entry: entry.priority)
    change = p4r.TableEntry(table_id=first.table_id, match=first.match, priority=first.priority, counter_data={"packet_count": 4})
    primary.modify(change)
    assert max(primary.read(query), key=lambda entry: entry.priority).counter_data.packet_count == 4
    change.action.CopyFrom(first.action)
    for kind in (MODIFY, INSERT):
        with pytest.raises(Failed) as caught:
            primary.write((kind, change))
        assert caught.value.item == Code.PERMISSION_DENIED


def test_two_tables_share_a_selector(switch, primary):
    names = primary.names
    member = p4r.ActionProfileMember(action_profile_id=names["balancer"], member_id=1, action=names.action("forward", 4))
    group = p4r.ActionProfileGroup(action_profile_id=names["balancer"], group_id=1, members=[{"member_id": 1, "weight": 1}])
    primary.insert(member)
    primary.insert(group)
    primary.insert(names.entry("left", match={"f1": 1}, action=p4r.TableAction(action_profile_group_id=1)))
    primary.insert(names.entry("right", match={"f1": 9}, action=p4r.TableAction(action_profile_member_id=1)))
    for packet in (frame(destination=1), frame(source=9)):
        switch.receive(3, packet)
        assert switch.transmit() == [(4, packet)]
    shot = p4r.ActionProfileActionSet(action_profile_actions=[{"action": names.action("forward", 1), "weight": 1}])
    with pytest.raises(Failed) as caught:
        primary.insert(names.entry("right", match={"f1": 1}, action=p4r.TableAction(action_profile_action_set=shot)))
    assert caught.value.item == Code.INVALID_ARGUMENT
