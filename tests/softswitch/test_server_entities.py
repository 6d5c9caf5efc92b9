"""All entities but table entries: members, groups, one-shots, arrays, replication, value sets, digests."""
# ruff: noqa: F811 (a parameter that is a fixture has the name of the import)

import pytest

pytest.importorskip("finsy", reason="needs the extra p4")

from finsy.proto import p4d, p4r

from softswitch.server import Code
from tests.softswitch.server_fixtures import names, primary, shared_primary, switch  # noqa: F401
from tests.softswitch.server_lab import DELETE, INSERT, MODIFY, Failed, octets

ActionSet = p4r.ActionProfileActionSet


def refused(controller, kind, message, code):
    with pytest.raises(Failed) as caught:
        controller.write((kind, message))
    assert caught.value.item == code, caught.value


def packet(source, destination, kind=b"\x08\x00"):
    ethernet = (1).to_bytes(6, "big") + (2).to_bytes(6, "big") + kind
    return ethernet + bytes([0x45]) + bytes(11) + source.to_bytes(4, "big") + destination.to_bytes(4, "big") + bytes(26)


class Balancer:
    """Messages for the table ``balanced`` and its selector."""

    def __init__(self, names):
        self.names = names

    def member(self, number, port=None, action="forward"):
        message = p4r.ActionProfileMember(action_profile_id=self.names["balancer"], member_id=number)
        if port is not None:
            message.action.CopyFrom(self.names.action(action, port))
        return message

    def group(self, number, *members, max_size=0):
        message = p4r.ActionProfileGroup(action_profile_id=self.names["balancer"], group_id=number, max_size=max_size)
        for member in members:
            message.members.add(**({"member_id": member, "weight": 1} if isinstance(member, int) else member))
        return message

    def entry(self, source, **action):
        return self.names.entry("balanced", match={"f1": source}, action=p4r.TableAction(**action))

    def one_shot(self, source, *actions, **fields):
        items = [
            p4r.ActionProfileAction(action=self.names.action("forward", port), weight=weight, **more)
            for port, weight, more in actions
        ]
        return self.entry(source, action_profile_action_set=ActionSet(action_profile_actions=items, **fields))


def test_members_and_groups(primary):
    b = Balancer(primary.names)
    members = [b.member(1, 1), b.member(2, 2), b.member(3, 3)]
    primary.insert(*members)
    group = b.group(1, {"member_id": 1, "weight": 2, "watch_port": b"\x01"}, 2, max_size=3)
    primary.insert(group)
    entries = [b.entry(5, action_profile_group_id=1), b.entry(6, action_profile_member_id=3)]
    primary.insert(*entries)
    assert primary.read(p4r.ActionProfileMember()) == members
    assert primary.read(p4r.ActionProfileMember(action_profile_id=primary.names["balancer"], member_id=2)) == [members[1]]
    assert primary.read(p4r.ActionProfileMember(action_profile_id=primary.names["hops"])) == []
    assert primary.read(p4r.ActionProfileGroup()) == [group]
    assert primary.read(p4r.TableEntry(table_id=primary.names["balanced"])) == entries

    for kind, message, code in [
        (INSERT, b.member(1, 9), Code.ALREADY_EXISTS),
        (INSERT, b.member(0, 9), Code.INVALID_ARGUMENT),
        (INSERT, b.member(9), Code.INVALID_ARGUMENT),
        (INSERT, b.member(9, 512), Code.INVALID_ARGUMENT),
        (INSERT, b.member(9, 1, action="permit"), Code.INVALID_ARGUMENT),
        (MODIFY, b.member(9, 9), Code.NOT_FOUND),
        (MODIFY, b.member(1), Code.INVALID_ARGUMENT),
        (DELETE, b.member(9), Code.NOT_FOUND),
        (DELETE, b.member(1), Code.FAILED_PRECONDITION),
        (DELETE, b.member(3), Code.FAILED_PRECONDITION),
        (DELETE, b.group(1), Code.FAILED_PRECONDITION),
        (DELETE, b.group(2), Code.NOT_FOUND),
        (INSERT, group, Code.ALREADY_EXISTS),
        (INSERT, b.group(0), Code.INVALID_ARGUMENT),
        (INSERT, b.group(2, 9), Code.NOT_FOUND),
        (INSERT, b.group(2, 1, 1), Code.INVALID_ARGUMENT),
        (INSERT, b.group(2, {"member_id": 1}), Code.INVALID_ARGUMENT),
        (INSERT, b.group(2, {"member_id": 1, "weight": -1}), Code.INVALID_ARGUMENT),
        (INSERT, b.group(2, {"member_id": 1, "weight": 1, "watch_port": b"\xff"}), Code.INVALID_ARGUMENT),
        (INSERT, b.group(2, 1, 2, max_size=1), Code.RESOURCE_EXHAUSTED),
        (INSERT, b.group(2, 1, max_size=-1), Code.INVALID_ARGUMENT),
        (MODIFY, b.group(1, 1, max_size=4), Code.INVALID_ARGUMENT),
        (MODIFY, b.group(2, 1), Code.NOT_FOUND),
        (INSERT, p4r.ActionProfileMember(action_profile_id=5, member_id=1), Code.NOT_FOUND),
        (INSERT, p4r.ActionProfileGroup(action_profile_id=0, group_id=1), Code.INVALID_ARGUMENT),
        (INSERT, p4r.ActionProfileGroup(action_profile_id=primary.names["hops"], group_id=1), Code.INVALID_ARGUMENT),
        (INSERT, b.one_shot(7, (1, 1, {})), Code.INVALID_ARGUMENT),
    ]:
        refused(primary, kind, message, code)
    assert primary.read(p4r.ActionProfileGroup()) == [group]

    primary.modify(b.group(1, 3, max_size=3), b.member(3, 4))
    primary.delete(*entries)
    primary.delete(b.group(1))
    primary.delete(*members)
    assert primary.read(p4r.ActionProfileMember(), p4r.ActionProfileGroup()) == []


def test_a_group_skips_a_member_whose_watch_port_is_down(switch, primary):
    b = Balancer(primary.names)
    primary.modify(primary.names.entry("routes", "forward_to", 9, 1, is_default_action=True))
    primary.insert(
        b.one_shot(5, (1, 1, {"watch_port": b"\x01"}), (2, 1, {"watch_port": b"\x02"})),
    )

    def ports():
        for destination in range(8):
            switch.receive(3, packet(5, destination))
        return {port for port, _ in switch.transmit()}

    assert ports() == {1, 2}
    switch.set_port_state(1, False)
    assert ports() == {2}
    switch.set_port_state(1, True)
    assert ports() == {1, 2}


def test_one_shots(primary):
    b = Balancer(primary.names)
    first = b.one_shot(1, (1, 2, {"watch_port": b"\x01"}), (1, 2, {}), (3, 1, {}))
    second = b.one_shot(2, (1, 1, {}), action_selection_mode=ActionSet.HASH, size_semantics=ActionSet.SUM_OF_WEIGHTS)
    primary.insert(first, second)
    query = p4r.TableEntry(table_id=primary.names["balanced"])
    assert primary.read(query) == [first, second]
    for message, code in [
        (b.member(1, 1), Code.INVALID_ARGUMENT),
        (b.group(1), Code.INVALID_ARGUMENT),
        (b.one_shot(3, (1, 0, {})), Code.INVALID_ARGUMENT),
        (b.one_shot(3, (1, -1, {})), Code.INVALID_ARGUMENT),
        (b.one_shot(3, (512, 1, {})), Code.INVALID_ARGUMENT),
        (b.one_shot(3, (1, 1, {"watch_port": b"\xff"})), Code.INVALID_ARGUMENT),
        (b.one_shot(3, (1, 1, {}), action_selection_mode=ActionSet.RANDOM), Code.UNIMPLEMENTED),
        (b.one_shot(3, (1, 1, {}), size_semantics=ActionSet.SUM_OF_MEMBERS), Code.UNIMPLEMENTED),
        (b.one_shot(3, (1, 2**31 - 1, {})), Code.INVALID_ARGUMENT),
        (
            b.entry(3, action_profile_action_set=ActionSet(action_profile_actions=[p4r.ActionProfileAction(weight=1)])),
            Code.INVALID_ARGUMENT,
        ),
    ]:
        refused(primary, INSERT, message, code)
    changed = b.one_shot(1, (4, 1, {}))
    primary.modify(changed)
    assert primary.read(query) == [changed, second]
    primary.delete(changed, second)
    primary.insert(b.member(1, 1))


def test_counters(switch, primary):
    number = primary.names["port_counter"]
    for _ in range(2):
        switch.receive(3, packet(1, 2))
    counters = primary.read(p4r.CounterEntry(counter_id=number))
    assert [counter.index.index for counter in counters] == list(range(16))
    assert (counters[3].data.packet_count, counters[3].data.byte_count) == (2, 120)
    assert primary.read(p4r.CounterEntry()) == counters
    one = p4r.CounterEntry(counter_id=number, index={"index": 5}, data={"packet_count": 7, "byte_count": 9})
    primary.modify(one)
    assert primary.read(p4r.CounterEntry(counter_id=number, index={"index": 5})) == [one]
    primary.modify(p4r.CounterEntry(counter_id=number, index={"index": 5}))
    assert primary.read(p4r.CounterEntry(counter_id=number, index={"index": 5})) == [one]
    primary.modify(p4r.CounterEntry(counter_id=number, data={"packet_count": 1}))
    assert {counter.data.packet_count for counter in primary.read(p4r.CounterEntry())} == {1}
    _array_errors(primary, lambda **fields: p4r.CounterEntry(**{"counter_id": number, **fields}), "counter_id", 16)


def test_meters(primary):
    number = primary.names["port_meter"]
    config = p4r.MeterConfig(cir=1, cburst=2, pir=3, pburst=4)
    one = p4r.MeterEntry(meter_id=number, index={"index": 7}, config=config)
    primary.modify(one)
    meters = primary.read(p4r.MeterEntry())
    assert len(meters) == 8
    assert meters[7] == one
    assert not meters[0].HasField("config")
    assert primary.read(p4r.MeterEntry(meter_id=number, index={"index": 7})) == [one]
    primary.modify(p4r.MeterEntry(meter_id=number, config=config))
    assert all(meter.config == config for meter in primary.read(p4r.MeterEntry()))
    primary.modify(p4r.MeterEntry(meter_id=number))
    assert not any(meter.HasField("config") for meter in primary.read(p4r.MeterEntry()))
    refused(primary, MODIFY, p4r.MeterEntry(meter_id=number, counter_data={}), Code.UNIMPLEMENTED)
    refused(primary, MODIFY, p4r.MeterEntry(meter_id=number, config={"cir": 2, "pir": 1}), Code.INVALID_ARGUMENT)
    _array_errors(primary, lambda **fields: p4r.MeterEntry(**{"meter_id": number, **fields}), "meter_id", 8)


def test_registers(switch, primary):
    number = primary.names["last_type"]
    switch.receive(3, packet(1, 2, b"\x12\x34"))
    (cell,) = primary.read(p4r.RegisterEntry(register_id=number, index={"index": 0}))
    assert cell.data.bitstring == b"\x12\x34"
    one = p4r.RegisterEntry(register_id=number, index={"index": 31}, data={"bitstring": b"\x80\x00\x00\x01"})
    primary.modify(one)
    cells = primary.read(p4r.RegisterEntry(register_id=number))
    assert len(cells) == 32
    assert cells[31] == one
    assert cells[1].data.bitstring == b"\0"
    primary.modify(p4r.RegisterEntry(register_id=number, data={"bitstring": b"\0\0\x07"}))
    assert {cell.data.bitstring for cell in primary.read(p4r.RegisterEntry(register_id=number))} == {b"\x07"}

    signed = primary.names["signed_cells"]
    (cell,) = primary.read(p4r.RegisterEntry(register_id=signed, index={"index": 0}))
    assert cell.data.bitstring == b"\xff"
    primary.modify(p4r.RegisterEntry(register_id=signed, index={"index": 0}, data={"bitstring": b"\x80\x00"}))
    (cell,) = primary.read(p4r.RegisterEntry(register_id=signed, index={"index": 0}))
    assert cell.data.bitstring == b"\x80\x00"
    assert len(primary.read(p4r.RegisterEntry())) == 36

    for data in (p4d.P4Data(), p4d.P4Data(bool=True), p4d.P4Data(bitstring=b""), p4d.P4Data(bitstring=b"\x01" + bytes(4))):
        refused(primary, MODIFY, p4r.RegisterEntry(register_id=number, data=data), Code.INVALID_ARGUMENT)
    value = {"data": {"bitstring": b"\x01"}}
    _array_errors(primary, lambda **fields: p4r.RegisterEntry(**{"register_id": number, **value, **fields}), "register_id", 32)


def _array_errors(controller, make, key, size):
    for kind in (INSERT, DELETE):
        refused(controller, kind, make(index={"index": 0}), Code.INVALID_ARGUMENT)
    for index, code in ((-1, Code.INVALID_ARGUMENT), (size, Code.OUT_OF_RANGE), (2**62, Code.OUT_OF_RANGE)):
        refused(controller, MODIFY, make(index={"index": index}), code)
        with pytest.raises(Failed) as caught:
            controller.read(make(index={"index": index}))
        assert caught.value.item == code
    refused(controller, MODIFY, make(**{key: 0}), Code.INVALID_ARGUMENT)
    refused(controller, MODIFY, make(**{key: 5}), Code.NOT_FOUND)
    with pytest.raises(Failed) as caught:
        controller.read(make(**{key: 5}))
    assert caught.value.item == Code.NOT_FOUND


def multicast(number, *replicas, **fields):
    group = p4r.MulticastGroupEntry(
        multicast_group_id=number, replicas=[p4r.Replica(**replica) for replica in replicas], **fields
    )
    return p4r.PacketReplicationEngineEntry(multicast_group_entry=group)


def session(number, *replicas, **fields):
    clone = p4r.CloneSessionEntry(session_id=number, replicas=[p4r.Replica(**replica) for replica in replicas], **fields)
    return p4r.PacketReplicationEngineEntry(clone_session_entry=clone)


def test_multicast_groups(switch, primary):
    backup = {"port": b"\x02", "backup_replicas": [p4r.BackupReplica(port=b"\x03", instance=7)]}
    first = multicast(1, {"port": b"\x01", "instance": 5}, backup, metadata=b"note")
    second = multicast(2, {"port": b"\x04"})
    primary.insert(first, second)
    assert primary.read(multicast(0)) == [first, second]
    assert primary.read(multicast(2)) == [second]
    assert primary.read(multicast(3)) == []
    primary.modify(primary.names.entry("dmac", "flood", 1, is_default_action=True))
    switch.receive(9, packet(1, 2, b"\x12\x34"))
    assert sorted(port for port, _ in switch.transmit()) == [1, 2]
    switch.set_port_state(2, False)
    switch.receive(9, packet(1, 2, b"\x12\x34"))
    assert sorted(port for port, _ in switch.transmit()) == [1, 3]
    primary.modify(multicast(1, {"egress_port": 6}))
    assert primary.read(multicast(1)) == [multicast(1, {"port": b"\x06"})]
    for kind, message, code in [
        (INSERT, second, Code.ALREADY_EXISTS),
        (INSERT, multicast(0), Code.INVALID_ARGUMENT),
        (INSERT, multicast(2**16), Code.INVALID_ARGUMENT),
        (INSERT, multicast(3, {"instance": 1}), Code.INVALID_ARGUMENT),
        (INSERT, multicast(3, {"port": b""}), Code.INVALID_ARGUMENT),
        (INSERT, multicast(3, {"port": b"\x01" + bytes(4)}), Code.INVALID_ARGUMENT),
        (INSERT, multicast(3, {"port": b"\x01", "instance": 2**16}), Code.INVALID_ARGUMENT),
        (INSERT, multicast(3, {"port": b"\x01"}, {"port": b"\x00\x01"}), Code.INVALID_ARGUMENT),
        (INSERT, multicast(3, {"port": b"\x01", "backup_replicas": [p4r.BackupReplica(port=b"\x01")]}), Code.INVALID_ARGUMENT),
        (MODIFY, multicast(3), Code.NOT_FOUND),
        (DELETE, multicast(3), Code.NOT_FOUND),
        (INSERT, p4r.PacketReplicationEngineEntry(), Code.INVALID_ARGUMENT),
    ]:
        refused(primary, kind, message, code)
    with pytest.raises(Failed) as caught:
        primary.read(p4r.PacketReplicationEngineEntry())
    assert caught.value.item == Code.INVALID_ARGUMENT
    primary.delete(multicast(1), multicast(2))
    assert primary.read(multicast(0)) == []


def test_clone_sessions(switch, primary):
    first = session(100, {"port": b"\x05", "instance": 1}, class_of_service=3, packet_length_bytes=20)
    primary.insert(first)
    assert primary.read(session(0)) == [first]
    primary.modify(primary.names.entry("acl", "mirror", 100, is_default_action=True))
    primary.modify(primary.names.entry("dmac", "forward", 1, is_default_action=True))
    data = packet(1, 2, b"\x12\x34")
    switch.receive(9, data)
    assert sorted(switch.transmit()) == [(1, data), (5, data[:20])]
    primary.modify(session(100, {"port": b"\x06"}))
    switch.receive(9, data)
    assert sorted(switch.transmit()) == [(1, data), (6, data)]
    for kind, message, code in [
        (INSERT, first, Code.ALREADY_EXISTS),
        (INSERT, session(0), Code.INVALID_ARGUMENT),
        (INSERT, session(1, class_of_service=8), Code.INVALID_ARGUMENT),
        (INSERT, session(1, packet_length_bytes=-1), Code.INVALID_ARGUMENT),
        (INSERT, session(1, {"port": b"\x01", "backup_replicas": [p4r.BackupReplica(port=b"\x02")]}), Code.INVALID_ARGUMENT),
        (MODIFY, session(1), Code.NOT_FOUND),
        (DELETE, session(1), Code.NOT_FOUND),
    ]:
        refused(primary, kind, message, code)
    primary.delete(session(100))
    assert primary.read(session(0)) == []


def test_value_sets(primary):
    number = primary.names["tunnel_types"]

    def members(*values):
        match = [[p4r.FieldMatch(field_id=1, exact=p4r.FieldMatch.Exact(value=octets(value)))] for value in values]
        return p4r.ValueSetEntry(value_set_id=number, members=[p4r.ValueSetMember(match=item) for item in match])

    empty = p4r.ValueSetEntry(value_set_id=number)
    assert primary.read(empty) == [empty]
    primary.modify(members(b"\0\x22\xf3", 0x893B))
    assert primary.read(p4r.ValueSetEntry()) == [members(0x22F3, 0x893B)]
    for kind, message, code in [
        (INSERT, members(1), Code.INVALID_ARGUMENT),
        (DELETE, members(1), Code.INVALID_ARGUMENT),
        (MODIFY, members(1, 1), Code.ALREADY_EXISTS),
        (MODIFY, members(1, 2, 3, 4, 5), Code.RESOURCE_EXHAUSTED),
        (MODIFY, members(0x10000), Code.INVALID_ARGUMENT),
        (MODIFY, p4r.ValueSetEntry(value_set_id=number, members=[p4r.ValueSetMember()]), Code.INVALID_ARGUMENT),
        (MODIFY, p4r.ValueSetEntry(), Code.INVALID_ARGUMENT),
        (MODIFY, p4r.ValueSetEntry(value_set_id=5), Code.NOT_FOUND),
    ]:
        refused(primary, kind, message, code)
    assert primary.read(empty) == [members(0x22F3, 0x893B)]
    primary.modify(empty)
    assert primary.read(empty) == [empty]


def test_digest_configurations(primary):
    number = primary.names["learn_t"]
    first = p4r.DigestEntry(digest_id=number, config={"max_timeout_ns": 5, "max_list_size": 6, "ack_timeout_ns": 7})
    for kind in (MODIFY, DELETE):
        refused(primary, kind, first, Code.NOT_FOUND)
    assert primary.read(p4r.DigestEntry()) == []
    primary.insert(first)
    refused(primary, INSERT, first, Code.ALREADY_EXISTS)
    assert primary.read(p4r.DigestEntry()) == [first]
    second = p4r.DigestEntry(digest_id=number, config={})
    primary.modify(second)
    assert primary.read(second) == [second]
    primary.delete(second)
    for message, code in [
        (p4r.DigestEntry(), Code.INVALID_ARGUMENT),
        (p4r.DigestEntry(digest_id=5), Code.NOT_FOUND),
        (p4r.DigestEntry(digest_id=number, config={"max_list_size": -1}), Code.INVALID_ARGUMENT),
        (p4r.DigestEntry(digest_id=number, config={"ack_timeout_ns": -1}), Code.INVALID_ARGUMENT),
    ]:
        refused(primary, INSERT, message, code)
    with pytest.raises(Failed) as caught:
        primary.read(p4r.DigestEntry(digest_id=5))
    assert caught.value.item == Code.NOT_FOUND


def test_externs(shared_primary):
    assert shared_primary.read(p4r.ExternEntry()) == []
    with pytest.raises(Failed) as caught:
        shared_primary.read(p4r.ExternEntry(extern_type_id=0x81))
    assert caught.value.item == Code.NOT_FOUND
    refused(shared_primary, INSERT, p4r.ExternEntry(extern_type_id=0x81), Code.UNIMPLEMENTED)
