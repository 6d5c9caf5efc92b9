"""Batches: each update has its error; a batch that rolls back leaves no trace; concurrent controllers and large requests."""
# ruff: noqa: F811 (a parameter that is a fixture has the name of the import)

import threading

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("finsy", reason="needs the extra p4")

from finsy.proto import p4r

from softswitch.server import Code
from softswitch.server.testing import running_switches
from tests.softswitch.server_fixtures import names, primary, shared_primary, switch  # noqa: F401
from tests.softswitch.server_lab import DELETE, INSERT, MODIFY, Controller, Failed, entity

Request = p4r.WriteRequest
EVERYTHING = (
    p4r.TableEntry(counter_data=p4r.CounterData(), meter_config=p4r.MeterConfig()),
    p4r.TableEntry(is_default_action=True),
    p4r.ActionProfileMember(),
    p4r.ActionProfileGroup(),
    p4r.MeterEntry(),
    p4r.CounterEntry(),
    p4r.RegisterEntry(),
    p4r.ValueSetEntry(),
    p4r.DigestEntry(),
    p4r.PacketReplicationEngineEntry(multicast_group_entry=p4r.MulticastGroupEntry()),
    p4r.PacketReplicationEngineEntry(clone_session_entry=p4r.CloneSessionEntry()),
)


def snapshot(controller):
    return sorted(message.SerializeToString(deterministic=True) for message in controller.read(*EVERYTHING))


def test_each_update_has_its_own_error(primary):
    names = primary.names
    good = names.entry("dmac", "forward", 1, match={"f1": 1})
    with pytest.raises(Failed) as caught:
        primary.write(
            (INSERT, good),
            (INSERT, good),
            (DELETE, names.entry("dmac", match={"f1": 9})),
            (INSERT, names.entry("dmac", "forward", 2**9, match={"f1": 2})),
            (INSERT, p4r.TableEntry(table_id=99)),
            (0, good),
            (INSERT, names.entry("dmac", "drop", match={"f1": 3})),
        )
    assert caught.value.code == Code.UNKNOWN
    assert [code for code, _ in caught.value.items] == [
        Code.OK,
        Code.ALREADY_EXISTS,
        Code.NOT_FOUND,
        Code.INVALID_ARGUMENT,
        Code.NOT_FOUND,
        Code.INVALID_ARGUMENT,
        Code.OK,
    ]
    assert [bool(message) for _, message in caught.value.items] == [False, True, True, True, True, True, False]
    assert len(primary.read(p4r.TableEntry(table_id=names["dmac"]))) == 2


@pytest.mark.parametrize("atomicity", [Request.ROLLBACK_ON_ERROR, Request.DATAPLANE_ATOMIC])
def test_all_or_nothing(primary, atomicity):
    names = primary.names
    good = [names.entry("dmac", "forward", 1, match={"f1": number}) for number in range(300)]
    primary.write(*((INSERT, entry) for entry in good), atomicity=atomicity)
    before = snapshot(primary)
    for bad, code in [
        ((INSERT, good[0]), Code.ALREADY_EXISTS),
        ((INSERT, p4r.TableEntry(table_id=99)), Code.NOT_FOUND),
    ]:
        with pytest.raises(Failed) as caught:
            primary.write(*((DELETE, entry) for entry in good[1:]), bad, atomicity=atomicity)
        assert [item for item, _ in caught.value.items] == [Code.ABORTED] * 299 + [code]
        assert snapshot(primary) == before


def test_an_unknown_atomicity_or_an_empty_entity(primary):
    with pytest.raises(Failed) as caught:
        primary.write((INSERT, primary.names.entry("dmac", "drop", match={"f1": 1})), atomicity=7)
    assert caught.value.code == Code.INVALID_ARGUMENT
    assert not caught.value.items
    request = Request(updates=[p4r.Update(type=INSERT), p4r.Update(type=9)], **primary.identity())
    with pytest.raises(Failed) as caught:
        primary.rpc("Write", request)
    assert [code for code, _ in caught.value.items] == [Code.INVALID_ARGUMENT] * 2
    primary.write()


def test_a_failed_read_returns_the_others_first(primary):
    entry = primary.names.entry("dmac", "drop", match={"f1": 1})
    primary.insert(entry)
    request = p4r.ReadRequest(
        device_id=1,
        entities=[
            entity(p4r.TableEntry(table_id=primary.names["dmac"])),
            p4r.Entity(),
            entity(p4r.TableEntry(table_id=99)),
            entity(p4r.DigestEntry()),
        ],
    )
    got = []
    with pytest.raises(grpc.RpcError) as caught:
        for answer in primary.stub.Read(request):
            got.extend(answer.entities)
    failed = Failed(caught.value)
    assert failed.code == Code.UNKNOWN
    assert [code for code, _ in failed.items] == [Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.OK]
    assert [item.table_entry for item in got] == [entry]


def messages(names):
    """Updates that often work and often do not, over all kinds of state."""
    small = st.integers(1, 3)
    kinds = st.sampled_from([INSERT, MODIFY, DELETE])

    def action(port):
        return names.action("forward", port)

    def group(number, member):
        return p4r.ActionProfileGroup(
            action_profile_id=names["balancer"],
            group_id=number,
            members=[{"member_id": member, "weight": 1, "watch_port": b"\x01"}],
        )

    def one_shot(number, port):
        actions = p4r.ActionProfileActionSet(action_profile_actions=[p4r.ActionProfileAction(action=action(port), weight=2)])
        return names.entry("balanced", match={"f1": number}, action=p4r.TableAction(action_profile_action_set=actions))

    choices = [
        st.builds(lambda key, port: names.entry("dmac", "forward", port, match={"f1": key}), small, small),
        st.builds(
            lambda key, count: names.entry(
                "smac", "learn", match={"f1": key}, counter_data={"packet_count": count}, metadata=b"m"
            ),
            small,
            small,
        ),
        st.builds(
            lambda priority, rate: names.entry(
                "acl", "permit", match={"f4": 1}, priority=priority, meter_config={"cir": rate, "pir": 2}
            ),
            small,
            small,
        ),
        st.builds(lambda port: names.entry("dmac", "forward", port, is_default_action=True, metadata=b"d"), small),
        st.builds(lambda: names.entry("dmac", is_default_action=True)),
        st.builds(
            lambda number, port: p4r.ActionProfileMember(
                action_profile_id=names["balancer"], member_id=number, action=action(port)
            ),
            small,
            small,
        ),
        st.builds(group, small, small),
        st.builds(one_shot, small, small),
        st.builds(
            lambda number, key: names.entry(
                "balanced", match={"f1": key}, action=p4r.TableAction(action_profile_group_id=number)
            ),
            small,
            small,
        ),
        st.builds(
            lambda index, count: p4r.CounterEntry(
                counter_id=names["port_counter"], index={"index": index * 8}, data={"packet_count": count}
            ),
            small,
            small,
        ),
        st.builds(lambda count: p4r.RegisterEntry(register_id=names["last_type"], data={"bitstring": bytes([count])}), small),
        st.builds(lambda rate: p4r.MeterEntry(meter_id=names["port_meter"], config={"cir": rate, "pir": 2}), small),
        st.builds(
            lambda number, port: p4r.PacketReplicationEngineEntry(
                multicast_group_entry={"multicast_group_id": number, "replicas": [{"port": bytes([port])}]}
            ),
            small,
            small,
        ),
        st.builds(
            lambda number, port: p4r.PacketReplicationEngineEntry(
                clone_session_entry={"session_id": number, "replicas": [{"port": bytes([port])}]}
            ),
            small,
            small,
        ),
        st.builds(
            lambda value: p4r.ValueSetEntry(
                value_set_id=names["tunnel_types"], members=[{"match": [{"field_id": 1, "exact": {"value": bytes([value])}}]}]
            ),
            small,
        ),
        st.builds(lambda size: p4r.DigestEntry(digest_id=names["learn_t"], config={"max_list_size": size}), small),
    ]
    return st.lists(st.tuples(kinds, st.one_of(choices)), min_size=1, max_size=12)


@given(st.data())
@settings(max_examples=60)
def test_a_batch_that_fails_leaves_no_trace_and_one_that_works_is_what_one_by_one_gives(shared_primary, names, data):
    """State carries over from example to example, so that there is something to modify and delete."""
    updates = data.draw(messages(names))
    before = snapshot(shared_primary)
    atomicity = data.draw(st.sampled_from([Request.ROLLBACK_ON_ERROR, Request.DATAPLANE_ATOMIC]))
    try:
        shared_primary.write(*updates, atomicity=atomicity)
    except Failed as error:
        assert snapshot(shared_primary) == before
        bad = [number for number, (code, _) in enumerate(error.items) if code != Code.ABORTED]
        assert bad
        # The others stand in the way of nothing: the same batch that continues fails where this one did, at the latest.
        with pytest.raises(Failed) as caught:
            shared_primary.write(*updates)
        codes = [code for code, _ in caught.value.items]
        assert codes[: bad[0] + 1].count(Code.OK) <= bad[0]
        assert Code.ABORTED not in codes
        assert Code.INTERNAL not in codes


def test_controllers_at_once():
    """Each of several controllers writes to its own device behind one server, and to a shared one through one session."""
    count, per_thread = 6, 40
    with running_switches(count, one_server=True) as switches, Controller(switches[0].address, device_id=1) as first:
        controllers = [first] + [Controller(switches[0].address, device_id=number) for number in range(2, count + 1)]
        failures = []

        def work(number, controller):
            try:
                controller.bid(3)
                controller.set_pipeline()
                for key in range(per_thread):
                    controller.insert(controller.names.entry("dmac", "forward", number, match={"f1": key}))
                    if key % 10 == 0:
                        assert len(controller.read(p4r.TableEntry(table_id=controller.names["dmac"]))) == key + 1
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=item) for item in enumerate(controllers, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures

        def share(start):
            try:
                with Controller(switches[0].address, device_id=1) as helper:
                    helper.election_id = 3
                    for key in range(start, start + per_thread):
                        helper.insert(helper.names.entry("smac", "learn", match={"f1": key}))
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=share, args=(number * per_thread,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert len(first.read(p4r.TableEntry(table_id=first.names["smac"]))) == 4 * per_thread
        for controller in controllers[1:]:
            controller.__exit__()


def test_a_large_batch_with_many_errors_keeps_its_codes_within_the_metadata(primary):
    """All 500 codes arrive at a client that takes 64 KiB of metadata, as finsy does."""
    names = primary.names
    entry = names.entry("dmac", "forward", 1, match={"f1": 1})
    with pytest.raises(Failed) as caught:
        primary.insert(*[entry] * 500)
    codes = [code for code, _ in caught.value.items]
    assert codes == [Code.OK] + [Code.ALREADY_EXISTS] * 499
    assert caught.value.items[1][1]
