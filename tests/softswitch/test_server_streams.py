"""What travels on the streams: packets, digests, idle notifications, errors."""
# ruff: noqa: F811 (a parameter that is a fixture has the name of the import)

import time

import pytest

pytest.importorskip("finsy", reason="needs the extra p4")

from finsy.proto import p4r, stratum

from softswitch.server import Code
from softswitch.server.testing import running_switches
from tests.softswitch.server_fixtures import primary, switch  # noqa: F401
from tests.softswitch.server_lab import Controller

CPU_REASON = 5


def ethernet(destination=1, source=2, kind=b"\x12\x34"):
    return destination.to_bytes(6, "big") + source.to_bytes(6, "big") + kind + bytes(46)


def packet_out(payload, port=1, flags=0, extra=()):
    metadata = [(1, port), (2, flags), *extra]
    return p4r.PacketOut(
        payload=payload,
        metadata=[p4r.PacketMetadata(metadata_id=number, value=value.to_bytes(2, "big")) for number, value in metadata],
    )


def metadata(message):
    return {item.metadata_id: item.value for item in message.metadata}


def wait_for(condition):
    """Waits for what another thread does."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_packet_in(switch, primary):
    primary.modify(primary.names.entry("dmac", "to_controller", CPU_REASON, is_default_action=True))
    with Controller(switch.address) as backup:
        backup.bid(0)
        switch.receive(7, ethernet())
        packet = primary.receive("packet")
        assert packet.payload == ethernet()
        assert metadata(packet) == {1: b"\x07", 2: b"\x05"}
        for number in range(100):
            switch.receive(7, ethernet(source=number))
        for number in range(100):
            assert primary.receive("packet").payload == ethernet(source=number)
        assert backup.received.empty()


def test_packet_out(switch, primary):
    primary.send(packet=packet_out(ethernet(), port=3))
    sent = []
    wait_for(lambda: sent.extend(switch.transmit()) or sent)
    assert sent == [(3, ethernet())]


@pytest.mark.parametrize(
    "message",
    [
        packet_out(ethernet(), port=512),
        packet_out(ethernet(), extra=[(7, 1)]),
        packet_out(ethernet(), extra=[(1, 1)]),
        p4r.PacketOut(payload=ethernet()),
    ],
)
def test_wrong_packet_out_metadata(switch, primary, message):
    primary.send(packet=message)
    error = primary.receive("error")
    assert error.canonical_code == Code.INVALID_ARGUMENT
    assert error.message
    assert error.packet_out.packet_out == p4r.PacketOut(metadata=message.metadata)
    assert switch.transmit() == []
    primary.send(packet=packet_out(b"", port=3))
    primary.send(packet=packet_out(b"x", port=3))
    primary.send(digest_ack=p4r.DigestListAck(digest_id=1, list_id=1))
    assert primary.receive("error").digest_list_ack.digest_list_ack.digest_id == 1


def test_a_backup_may_not_send_packets(switch, primary):
    with Controller(switch.address) as backup:
        backup.bid(0)
        backup.send(packet=packet_out(ethernet()))
        assert backup.receive("error").canonical_code == Code.PERMISSION_DENIED
    assert switch.transmit() == []


def test_a_switch_without_cpu_port_or_program():
    with running_switches(cpu_port=None) as (switch,), Controller(switch.address) as controller:
        controller.bid(1)
        controller.send(packet=packet_out(ethernet()))
        assert controller.receive("error").canonical_code == Code.FAILED_PRECONDITION
        controller.set_pipeline()
        controller.send(packet=packet_out(ethernet()))
        error = controller.receive("error")
        assert error.canonical_code == Code.INVALID_ARGUMENT
        assert "CPU port" in error.message


def test_other_stream_messages(primary):
    request = p4r.StreamMessageRequest()
    request.other.Pack(p4r.Index(index=1))
    primary.send(other=request.other)
    error = primary.receive("error")
    assert error.canonical_code == Code.UNIMPLEMENTED
    assert error.WhichOneof("details") == "other"
    primary.send()
    assert primary.receive("error").canonical_code == Code.UNIMPLEMENTED


def test_packet_in_by_role(switch, primary):
    primary.modify(primary.names.entry("dmac", "to_controller", CPU_REASON, is_default_action=True))
    configs = {
        "all": stratum.P4RoleConfig(receives_packet_ins=True),
        "port 8": stratum.P4RoleConfig(receives_packet_ins=True, packet_in_filter={"metadata_id": 1, "value": b"\x08"}),
        "none": stratum.P4RoleConfig(),
    }
    controllers = {name: Controller(switch.address) for name in configs}
    try:
        for name, config in configs.items():
            controllers[name].bid(1, role=name, config=config)
        switch.receive(7, ethernet())
        switch.receive(8, ethernet())
        for controller in (primary, controllers["all"]):
            assert metadata(controller.receive("packet"))[1] == b"\x07"
            assert metadata(controller.receive("packet"))[1] == b"\x08"
        assert metadata(controllers["port 8"].receive("packet"))[1] == b"\x08"
        # What was sent to a stream arrives in order, so this answer shows that no packet went before it.
        assert controllers["none"].bid(2, role="none", config=configs["none"]).status.code == Code.OK
    finally:
        for controller in controllers.values():
            controller.__exit__()


def learn(primary, **config):
    primary.modify(primary.names.entry("smac", "learn", is_default_action=True))
    primary.insert(p4r.DigestEntry(digest_id=primary.names["learn_t"], config=config))


def addresses(message):
    return [int.from_bytes(item.struct.members[0].bitstring, "big") for item in message.data]


def test_digests_are_sent_once_until_they_are_acknowledged(switch, primary):
    learn(primary, max_list_size=1, ack_timeout_ns=10**15)
    for source in (5, 5, 6):
        switch.receive(7, ethernet(source=source))
    first, second = primary.receive("digest"), primary.receive("digest")
    assert first.digest_id == primary.names["learn_t"]
    assert (addresses(first), addresses(second)) == ([5], [6])
    assert first.data[0].struct.members[1].bitstring == b"\x07"
    assert first.list_id != second.list_id
    assert abs(first.timestamp - time.time_ns()) < 60 * 10**9
    primary.send(digest_ack=p4r.DigestListAck(digest_id=first.digest_id, list_id=first.list_id))
    primary.send(digest_ack=p4r.DigestListAck(digest_id=99, list_id=1))
    assert primary.receive("error").canonical_code == Code.INVALID_ARGUMENT
    for source in (6, 5):
        switch.receive(7, ethernet(source=source))
    assert addresses(primary.receive("digest")) == [5]


def test_a_role_hears_of_its_own_objects_only(switch, primary):
    numbers = primary.names["learn_t"], primary.names["smac"]
    with Controller(switch.address) as edge, Controller(switch.address) as other:
        edge.bid(1, role="edge", config=stratum.P4RoleConfig(shared_p4_ids=numbers))
        other.bid(1, role="other", config=stratum.P4RoleConfig(shared_p4_ids=[primary.names["dmac"]]))
        learn(primary, max_list_size=1)
        primary.insert(primary.names.entry("smac", "learn", match={"f1": 9}, idle_timeout_ns=1))
        switch.receive(7, ethernet(source=5))
        for controller in (primary, edge):
            kinds = {controller.receive().WhichOneof("update") for _ in range(2)}
            while len(kinds) < 2:
                kinds.add(controller.receive().WhichOneof("update"))
            assert kinds == {"digest", "idle_timeout_notification"}
        assert other.bid(2, role="other").status.code == Code.OK


def test_digests_are_collected(switch, primary):
    learn(primary, max_timeout_ns=200_000_000, max_list_size=3)
    for source in range(1, 5):
        switch.receive(7, ethernet(source=source))
    assert addresses(primary.receive("digest")) == [1, 2, 3]
    assert addresses(primary.receive("digest")) == [4]


def test_digests_can_be_changed_and_switched_off(switch, primary):
    learn(primary, max_timeout_ns=10**15)
    switch.receive(7, ethernet(source=1))
    number = primary.names["learn_t"]
    primary.modify(p4r.DigestEntry(digest_id=number, config={"max_timeout_ns": 1}))
    assert addresses(primary.receive("digest")) == [1]
    primary.delete(p4r.DigestEntry(digest_id=number))
    switch.receive(7, ethernet(source=2))
    wait_for(lambda: not switch.device.switch.pipeline.runtime.digests)
    primary.insert(p4r.DigestEntry(digest_id=number, config={}))
    switch.receive(7, ethernet(source=3))
    assert addresses(primary.receive("digest")) == [3]


def test_idle_entries_are_reported_again_and_again(switch, primary):
    names = primary.names
    idle = names.entry("smac", "learn", match={"f1": 1}, idle_timeout_ns=150_000_000, metadata=b"m", controller_metadata=3)
    never = names.entry("smac", "learn", match={"f1": 2})
    long = names.entry("smac", "learn", match={"f1": 3}, idle_timeout_ns=10**15)
    before = time.monotonic()
    primary.insert(idle, never, long)
    for times in (1, 2):
        message = primary.receive("idle_timeout_notification")
        idle.ClearField("action")
        assert list(message.table_entry) == [idle]
        assert abs(message.timestamp - time.time_ns()) < 60 * 10**9
        assert time.monotonic() - before >= 0.150 * times
    primary.delete(idle)


def test_a_client_that_does_not_read_loses_packets_but_not_its_session(switch, primary, monkeypatch):
    from softswitch.server import streams

    monkeypatch.setattr(streams, "BACKLOG", 0)
    primary.modify(primary.names.entry("dmac", "to_controller", CPU_REASON, is_default_action=True))
    switch.receive(7, ethernet())
    assert primary.bid(1).status.code == Code.OK
    monkeypatch.setattr(streams, "BACKLOG", 100)
    switch.receive(7, ethernet(source=9))
    assert primary.receive("packet").payload == ethernet(source=9)


def test_the_backlog_of_a_stream_ends():
    from softswitch.server.arbitration import Notice, Session
    from softswitch.server.streams import BACKLOG, HARD_BACKLOG, Stream

    stream = Stream()
    for _ in range(BACKLOG + 5):
        stream.send(p4r.StreamMessageResponse(packet={}))
    assert stream.dropped == {"packet": 5}
    for _ in range(HARD_BACKLOG - BACKLOG + 1):
        stream.notify(Notice(Session(), 1, Code.OK, "", None), 1)
    assert stream.refusal is not None
    assert stream.refusal.code == Code.RESOURCE_EXHAUSTED
    taken = 0
    while stream.next() is not None:
        taken += 1
    assert taken == HARD_BACKLOG
