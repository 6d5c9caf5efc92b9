"""SetForwardingPipelineConfig and GetForwardingPipelineConfig: all actions, and what is refused."""
# ruff: noqa: F811 (a parameter that is a fixture has the name of the import)

import json

import grpc
import pytest

pytest.importorskip("finsy", reason="needs the extra p4")

from finsy.proto import p4i, p4r

from softswitch.server import Code, P4RuntimeServer, Refusal
from softswitch.server.device import InMemoryDevice
from softswitch.server.testing import running_switches
from tests.softswitch.server_fixtures import primary, switch  # noqa: F401
from tests.softswitch.server_lab import JSON, P4INFO, SET, Controller, Failed, load_p4info

GET = p4r.GetForwardingPipelineConfigRequest


@pytest.fixture
def controller(switch):
    with Controller(switch.address) as controller:
        controller.bid(1)
        yield controller


def entries(controller, table="dmac"):
    return controller.read(p4r.TableEntry(table_id=controller.names[table]))


def entry(controller, key=1, port=1):
    return controller.names.entry("dmac", "forward", port, match={"f1": key})


def refused(code, text, function, *args, **kwargs):
    with pytest.raises(Failed) as caught:
        function(*args, **kwargs)
    assert caught.value.code == code, caught.value
    assert text in caught.value.message
    assert not caught.value.items


def test_without_a_pipeline(controller):
    assert controller.get_pipeline() == p4r.ForwardingPipelineConfig()
    refused(Code.FAILED_PRECONDITION, "No forwarding pipeline config", controller.insert, entry(controller))
    refused(Code.FAILED_PRECONDITION, "No forwarding pipeline config", controller.read, p4r.TableEntry())
    refused(Code.NOT_FOUND, "no saved config", controller.set_pipeline, SET.COMMIT)


def test_what_was_set_is_returned_in_parts(controller):
    controller.set_pipeline(cookie=2**64 - 1)
    info, text = load_p4info(), JSON.read_bytes()
    cookie = p4r.ForwardingPipelineConfig.Cookie(cookie=2**64 - 1)
    config = p4r.ForwardingPipelineConfig
    assert controller.get_pipeline(GET.ALL) == config(p4info=info, p4_device_config=text, cookie=cookie)
    assert controller.get_pipeline(GET.COOKIE_ONLY) == config(cookie=cookie)
    assert controller.get_pipeline(GET.P4INFO_AND_COOKIE) == config(p4info=info, cookie=cookie)
    assert controller.get_pipeline(GET.DEVICE_CONFIG_AND_COOKIE) == config(p4_device_config=text, cookie=cookie)
    refused(Code.INVALID_ARGUMENT, "response type", controller.get_pipeline, 9)
    controller.set_pipeline()
    assert not controller.get_pipeline(GET.COOKIE_ONLY).HasField("cookie")


def test_verify_changes_nothing(controller):
    controller.set_pipeline(SET.VERIFY, cookie=1)
    assert controller.get_pipeline() == p4r.ForwardingPipelineConfig()
    controller.set_pipeline(cookie=2)
    controller.insert(entry(controller))
    controller.set_pipeline(SET.VERIFY, cookie=3)
    assert controller.get_pipeline().cookie.cookie == 2
    assert entries(controller) == [entry(controller)]


def test_a_verified_pipeline_is_not_compiled_again():
    from softswitch.pipeline import Pipeline

    compiled = []

    def loader(device):
        def load(text):
            compiled.append(len(text))
            return Pipeline.load(text)

        return load

    with running_switches(loader=loader) as (switch,), Controller(switch.address) as controller:
        controller.bid(1)
        controller.set_pipeline(SET.VERIFY, cookie=1)
        controller.set_pipeline(cookie=2)
        assert len(compiled) == 1
        assert controller.get_pipeline(GET.COOKIE_ONLY).cookie.cookie == 2
        controller.insert(entry(controller))
        controller.set_pipeline(cookie=3)
        assert len(compiled) == 2
        assert entries(controller) == []
        controller.set_pipeline(SET.VERIFY)
        controller.set_pipeline(json=JSON.read_bytes() + b" ")
        assert len(compiled) == 4


def test_commit_clears_the_state(controller):
    controller.set_pipeline()
    controller.insert(entry(controller))
    controller.set_pipeline()
    assert entries(controller) == []


def test_a_saved_pipeline_takes_writes_and_is_in_force_from_commit_on(switch, controller):
    packet = (1).to_bytes(6, "big") + bytes(54)
    controller.set_pipeline(cookie=1)
    controller.insert(entry(controller, port=1))
    controller.set_pipeline(SET.VERIFY_AND_SAVE, cookie=2)
    assert controller.get_pipeline(GET.COOKIE_ONLY).cookie.cookie == 2
    assert entries(controller) == []
    controller.insert(entry(controller, port=2))
    switch.receive(9, packet)
    assert switch.transmit() == [(1, packet)]
    refused(Code.INVALID_ARGUMENT, "takes no config", controller.set_pipeline, SET.COMMIT, config=p4r.ForwardingPipelineConfig())
    controller.set_pipeline(SET.COMMIT)
    switch.receive(9, packet)
    assert switch.transmit() == [(2, packet)]
    assert entries(controller) == [entry(controller, port=2)]
    refused(Code.NOT_FOUND, "no saved config", controller.set_pipeline, SET.COMMIT)


def everything(controller):
    """Some state of every kind, and how to read it."""
    names = controller.names
    balancer = names["balancer"]
    return [
        entry(controller),
        names.entry("acl", "permit", match={"f4": 1}, priority=3, meter_config={"cir": 1, "pir": 2}, metadata=b"x"),
        names.entry("smac", "count_direct", match={"f1": 1}, counter_data={"packet_count": 4}, idle_timeout_ns=10**12),
        names.entry("routes", "forward_to", 1, 2, match={"f1": {"lpm": {"value": 10 << 24, "prefix_len": 8}}}),
        p4r.ActionProfileMember(action_profile_id=balancer, member_id=1, action=names.action("forward", 1)),
        p4r.ActionProfileGroup(
            action_profile_id=balancer, group_id=1, max_size=4, members=[{"member_id": 1, "weight": 1, "watch_port": b"\x01"}]
        ),
        names.entry("balanced", match={"f1": 1}, action=p4r.TableAction(action_profile_group_id=1)),
        p4r.PacketReplicationEngineEntry(multicast_group_entry={"multicast_group_id": 1, "replicas": [{"port": b"\x01"}]}),
        p4r.PacketReplicationEngineEntry(clone_session_entry={"session_id": 1, "replicas": [{"port": b"\x01"}]}),
        p4r.DigestEntry(digest_id=names["learn_t"], config={"max_list_size": 1}),
    ], [
        names.entry("always", "forward", 3, is_default_action=True, metadata=b"d"),
        p4r.CounterEntry(counter_id=names["port_counter"], index={"index": 2}, data={"packet_count": 3}),
        p4r.MeterEntry(meter_id=names["port_meter"], index={"index": 2}, config={"cir": 3, "pir": 4}),
        p4r.RegisterEntry(register_id=names["last_type"], index={"index": 2}, data={"bitstring": b"\x05"}),
        p4r.ValueSetEntry(
            value_set_id=names["tunnel_types"], members=[{"match": [{"field_id": 1, "exact": {"value": b"\x05"}}]}]
        ),
    ]


def read_all(controller):
    from tests.softswitch.test_server_batches import snapshot

    return snapshot(controller)


def renumbered(info):
    """The same P4Info with other ids."""
    copy = p4i.P4Info()
    copy.CopyFrom(info)
    for group in (copy.tables, copy.actions, copy.action_profiles, copy.digests, copy.counters, copy.registers):
        for item in group:
            item.preamble.id += 1
    for table in copy.tables:
        for ref in table.action_refs:
            ref.id += 1
        table.ClearField("initial_default_action")
        table.const_default_action_id += 1 if table.const_default_action_id else 0
        table.implementation_id += 1 if table.implementation_id else 0
    for item in (*copy.direct_counters, *copy.direct_meters):
        item.direct_table_id += 1
    for item in copy.action_profiles:
        item.table_ids[:] = [number + 1 for number in item.table_ids]
    return copy


def test_reconciling_preserves_the_state(controller):
    controller.set_pipeline(SET.RECONCILE_AND_COMMIT, cookie=1)
    inserted, modified = everything(controller)
    for message in inserted:
        controller.insert(message)
    controller.modify(*modified)
    before = read_all(controller)
    controller.set_pipeline(SET.RECONCILE_AND_COMMIT, cookie=2)
    assert read_all(controller) == before
    assert controller.get_pipeline(GET.COOKIE_ONLY).cookie.cookie == 2

    other = renumbered(load_p4info())
    controller.set_pipeline(SET.RECONCILE_AND_COMMIT, info=other, cookie=3)
    with Controller(controller.address, info=other) as reader:
        assert len(read_all(reader)) == len(before)
        assert reader.names["dmac"] != controller.names["dmac"]
        (got,) = entries(reader)
        assert got == reader.names.entry("dmac", "forward", 1, match={"f1": 1})
        (group,) = reader.read(p4r.ActionProfileGroup())
        assert group.max_size == 4
        (digest,) = reader.read(p4r.DigestEntry())
        assert digest.digest_id == reader.names["learn_t"]


def test_reconciling_one_shots(controller):
    controller.set_pipeline()
    actions = p4r.ActionProfileActionSet(
        action_profile_actions=[{"action": controller.names.action("forward", 1), "weight": 2, "watch_port": b"\x01"}],
        action_selection_mode=p4r.ActionProfileActionSet.HASH,
    )
    shot = controller.names.entry("balanced", match={"f1": 1}, action=p4r.TableAction(action_profile_action_set=actions))
    controller.insert(shot)
    controller.set_pipeline(SET.RECONCILE_AND_COMMIT)
    assert entries(controller, "balanced") == [shot]


def test_reconciling_what_cannot_be_preserved(controller):
    controller.set_pipeline(cookie=1)
    controller.insert(p4r.DigestEntry(digest_id=controller.names["learn_t"], config={}))
    info = load_p4info()
    del info.digests[:]
    refused(Code.INVALID_ARGUMENT, "cannot be preserved", controller.set_pipeline, SET.RECONCILE_AND_COMMIT, info=info)
    assert controller.get_pipeline(GET.COOKIE_ONLY).cookie.cookie == 1
    controller.insert(entry(controller))
    program = json.loads(JSON.read_bytes())
    for pipeline in program["pipelines"]:
        for table in pipeline["tables"]:
            if table["name"] == "TheIngress.dmac":
                table["key"][0]["name"] = "hdr.ethernet.other"
    text = json.dumps(program).encode()
    refused(Code.INVALID_ARGUMENT, "another key", controller.set_pipeline, SET.RECONCILE_AND_COMMIT, json=text)
    assert entries(controller) == [entry(controller)]


BROKEN = [
    ("no config", {"config": None, "action": SET.VERIFY}, "no config"),
    ("nothing in it", {"config": p4r.ForwardingPipelineConfig()}, "no p4info"),
    ("no program", {"config": p4r.ForwardingPipelineConfig(p4info=p4i.P4Info())}, "no p4_device_config"),
    ("no JSON", {"json": b"\xff\xfe"}, "p4_device_config"),
    ("half of a JSON", {"json": b'{"header_types": ['}, "p4_device_config"),
    ("empty JSON", {"json": b"{}"}, "p4_device_config"),
    ("another JSON", {"json": b'{"tables": {"a": 1}}'}, "p4_device_config"),
    ("a list", {"json": b"[" * 100000}, "p4_device_config"),
]


@pytest.mark.parametrize(("arguments", "text"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_configurations_that_cannot_be_realized(controller, arguments, text):
    controller.set_pipeline(cookie=5)
    if "config" in arguments and arguments["config"] is None:
        request = SET(action=SET.VERIFY, **controller.identity())
        refused(Code.INVALID_ARGUMENT, text, controller.rpc, "SetForwardingPipelineConfig", request)
        return
    for action in (SET.VERIFY, SET.VERIFY_AND_SAVE, SET.VERIFY_AND_COMMIT, SET.RECONCILE_AND_COMMIT):
        refused(Code.INVALID_ARGUMENT, text, controller.set_pipeline, action, **arguments)
    assert controller.get_pipeline(GET.COOKIE_ONLY).cookie.cookie == 5


def test_an_unsupported_construct_is_named(controller):
    program = json.loads(JSON.read_bytes())
    program["extern_instances"] = [{"name": "magic", "id": 0, "type": "teleport", "attribute_values": []}]
    refused(Code.INVALID_ARGUMENT, "teleport", controller.set_pipeline, json=json.dumps(program).encode())


def mutations():
    def table(info, name):
        return next(item for item in info.tables if item.preamble.alias == name)

    def action(info, name):
        return next(item for item in info.actions if item.preamble.alias == name)

    yield "table", lambda i: setattr(table(i, "dmac").preamble, "name", "TheIngress.nowhere"), "no such table"
    yield "action", lambda i: setattr(action(i, "forward").preamble, "name", "TheIngress.other"), "no action TheIngress.other"
    yield "dangling action", lambda i: table(i, "dmac").action_refs.add(id=12345), "no action with id"
    yield "key width", lambda i: setattr(table(i, "dmac").match_fields[0], "bitwidth", 32), "has 32 bits, the program has 48"
    yield "key kind", lambda i: setattr(table(i, "dmac").match_fields[0], "match_type", p4i.MatchField.TERNARY), "is ternary"
    yield "key kind unknown", lambda i: setattr(table(i, "dmac").match_fields[0], "other_match_type", "fuzzy"), "fuzzy"
    yield "more key", lambda i: table(i, "dmac").match_fields.add(id=2, name="x", bitwidth=1, match_type=2), "2 match fields"
    yield "less key", lambda i: table(i, "dmac").match_fields.pop(), "0 match fields"
    yield "key id twice", lambda i: setattr(table(i, "acl").match_fields[0], "id", 2), "same id"
    yield "key without id", lambda i: setattr(table(i, "dmac").match_fields[0], "id", 0), "no id"
    yield "parameter width", lambda i: setattr(action(i, "forward").params[0], "bitwidth", 16), "has 16 bits"
    yield "parameter name", lambda i: setattr(action(i, "forward").params[0], "name", "x"), "is called 'port'"
    yield "parameter count", lambda i: action(i, "forward").params.add(id=2, name="x", bitwidth=1), "2 parameters"
    yield "parameter id", lambda i: setattr(action(i, "forward").params[0], "id", 0), "id of their own"
    yield "id twice", lambda i: setattr(table(i, "dmac").preamble, "id", table(i, "smac").preamble.id), "same id"
    yield "no id", lambda i: setattr(table(i, "dmac").preamble, "id", 0), "no id"
    yield "implementation", lambda i: setattr(table(i, "balanced"), "implementation_id", 0), "implementation None"
    yield "unknown implementation", lambda i: setattr(table(i, "balanced"), "implementation_id", 7), "no action profile"
    yield (
        "other implementation",
        lambda i: setattr(table(i, "dmac"), "implementation_id", i.action_profiles[0].preamble.id),
        "program has None",
    )
    yield "selector", lambda i: setattr(i.action_profiles[0], "with_selector", not i.action_profiles[0].with_selector), "selector"
    yield "profile", lambda i: setattr(i.action_profiles[0].preamble, "name", "x"), "no such action profile"
    yield "direct resource", lambda i: table(i, "dmac").direct_resource_ids.append(7), "no direct resource"
    yield (
        "direct counter",
        lambda i: table(i, "dmac").direct_resource_ids.append(i.direct_counters[0].preamble.id),
        "direct counters",
    )
    yield "direct meter", lambda i: table(i, "dmac").direct_resource_ids.append(i.direct_meters[0].preamble.id), "direct meter"
    yield "timeouts", lambda i: setattr(table(i, "dmac"), "idle_timeout_behavior", 1), "idle timeouts"
    yield "counter", lambda i: setattr(i.counters[0].preamble, "name", "x"), "no such counter"
    yield "counter size", lambda i: setattr(i.counters[0], "size", 17), "size 17"
    yield "meter size", lambda i: setattr(i.meters[0], "size", 9), "size 9"
    yield "register", lambda i: setattr(i.registers[0].preamble, "name", "x"), "no such register"
    yield "register width", lambda i: setattr(i.registers[0].type_spec.bitstring.bit, "bitwidth", 8), "cells of 8 bits"
    yield "register type", lambda i: i.registers[0].ClearField("type_spec"), "type"
    yield "digest", lambda i: setattr(i.digests[0].preamble, "name", "x"), "no such digest"
    yield "digest fields", lambda i: i.type_info.structs["learn_t"].members.pop(), "1 fields"
    yield "digest type", lambda i: i.type_info.structs.pop("learn_t"), "unknown"
    yield "value set", lambda i: setattr(i.value_sets[0].match[0], "bitwidth", 8), "8 bits"
    yield "extern", lambda i: i.externs.add(extern_type_name="X"), "extern 'X'"


MUTATIONS = list(mutations())


@pytest.fixture(scope="module")
def verifier():
    with running_switches() as (one,), Controller(one.address) as controller:
        controller.bid(1)
        yield controller


@pytest.mark.parametrize(("change", "text"), [case[1:] for case in MUTATIONS], ids=[case[0] for case in MUTATIONS])
def test_a_p4info_of_another_program_is_refused(verifier, change, text):
    info = load_p4info()
    change(info)
    refused(Code.INVALID_ARGUMENT, text, verifier.set_pipeline, SET.VERIFY, info=info)


def test_unknown_actions(controller):
    for action in (SET.UNSPECIFIED, 9):
        refused(Code.INVALID_ARGUMENT, "action", controller.set_pipeline, action)


def test_a_wrapped_program_is_taken(controller):
    text = JSON.read_bytes()
    length, size = b"", len(text)
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    controller.set_pipeline(json=b"\x08\x01\x1a" + length + bytes([size]) + text)
    controller.insert(entry(controller))


@pytest.mark.parametrize("method", ["Write", "SetForwardingPipelineConfig", "GetForwardingPipelineConfig", "Capabilities"])
def test_malformed_requests(controller, method):
    call = controller.channel.unary_unary(f"/p4.v1.P4Runtime/{method}")
    for data in (b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x22\x05abc"):
        with pytest.raises(grpc.RpcError) as caught:
            call(data, timeout=20)
        assert Failed(caught.value).code in (Code.INVALID_ARGUMENT, Code.NOT_FOUND)


def test_malformed_reads_and_stream_messages(controller):
    with pytest.raises(grpc.RpcError) as caught:
        list(controller.channel.unary_stream("/p4.v1.P4Runtime/Read")(b"\xff", timeout=20))
    assert Failed(caught.value).code == Code.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as caught:
        list(controller.channel.stream_stream("/p4.v1.P4Runtime/StreamChannel")(iter([b"\xff"]), timeout=20))
    assert Failed(caught.value).code == Code.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as caught:
        controller.channel.unary_unary("/p4.v1.P4Runtime/Nothing")(b"", timeout=20)
    assert Failed(caught.value).code == Code.UNIMPLEMENTED


def test_huge_requests(controller):
    refused(Code.RESOURCE_EXHAUSTED, "", controller.set_pipeline, json=b"{" + bytes(65 << 20))
    # Beyond gRPC's own default of 4 MiB, within the server's.
    controller.set_pipeline(json=JSON.read_bytes() + b" " * (16 << 20))
    controller.insert(*(entry(controller, key) for key in range(5000)))
    assert len(entries(controller)) == 5000


def test_a_program_can_be_there_before_any_controller():
    device = InMemoryDevice(3)
    server = P4RuntimeServer([device], "127.0.0.1:0")
    with pytest.raises(Refusal, match="no device"):
        server.install(4, P4INFO.read_bytes(), JSON.read_bytes())
    with pytest.raises(Refusal, match="P4Info"):
        server.install(3, b"tables { preamble { id: 1 name: 'x' } }", JSON.read_bytes())
    server.install(3, P4INFO.read_bytes(), JSON.read_bytes())
    port = server.start()
    try:
        with Controller(f"127.0.0.1:{port}", device_id=3) as controller:
            assert controller.get_pipeline().p4info == load_p4info()
            assert not controller.get_pipeline().HasField("cookie")
            controller.bid(1)
            controller.insert(entry(controller))
            assert entries(controller) == [entry(controller)]
    finally:
        server.stop()
