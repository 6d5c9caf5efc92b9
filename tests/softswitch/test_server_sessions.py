"""Sessions over gRPC: who becomes primary, who is told, and what ends a stream."""

import pytest

pytest.importorskip("finsy", reason="needs the extra p4")

from finsy.proto import p4r, stratum

from softswitch.server import Code
from softswitch.server.testing import running_switches
from tests.softswitch.server_lab import INSERT, SET, Controller, Failed, octets


@pytest.fixture
def switch():
    with running_switches() as (switch,):
        yield switch


@pytest.fixture
def controllers(switch):
    """Makes controllers, and ends them."""
    made = []

    def make(**options):
        made.append(Controller(switch.address, **options))
        return made[-1]

    yield make
    for controller in made:
        controller.__exit__()


def number(update):
    return update.election_id.high << 64 | update.election_id.low


def test_the_highest_election_id_is_primary(controllers):
    first, second, third = controllers(), controllers(), controllers()
    answer = first.bid(5)
    assert (answer.status.code, number(answer), answer.device_id) == (Code.OK, 5, 1)
    assert not answer.HasField("role")
    answer = second.bid(3)
    assert (answer.status.code, number(answer)) == (Code.ALREADY_EXISTS, 5)
    with pytest.raises(Failed, match="not primary") as caught:
        second.set_pipeline()
    assert caught.value.code == Code.PERMISSION_DENIED
    first.set_pipeline()
    entry = first.names.entry("dmac", "forward", 1, match={"f1": 1})
    first.insert(entry)

    answer = third.bid(2**100)
    assert (answer.status.code, number(answer)) == (Code.OK, 2**100)
    for other in (first, second):
        answer = other.receive("arbitration")
        assert (answer.status.code, number(answer)) == (Code.ALREADY_EXISTS, 2**100)
    with pytest.raises(Failed) as caught:
        first.delete(entry)
    assert caught.value.code == Code.PERMISSION_DENIED
    third.delete(entry)


def test_a_backup_is_told_that_the_primary_left_and_can_take_over(controllers):
    primary, backup = controllers(), controllers()
    primary.bid(5)
    primary.set_pipeline()
    backup.bid(3)
    primary.close_stream()
    answer = backup.receive("arbitration")
    assert (answer.status.code, number(answer)) == (Code.NOT_FOUND, 5)
    for controller in (primary, backup):
        with pytest.raises(Failed, match="no primary") as caught:
            controller.insert(primary.names.entry("dmac", "forward", 1, match={"f1": 1}))
        assert caught.value.code == Code.PERMISSION_DENIED
    answer = backup.bid(4)
    assert (answer.status.code, number(answer)) == (Code.NOT_FOUND, 5)
    answer = backup.bid(5)
    assert (answer.status.code, number(answer)) == (Code.OK, 5)
    backup.insert(backup.names.entry("dmac", "forward", 1, match={"f1": 1}))


def test_a_primary_can_step_down(controllers):
    primary, backup = controllers(), controllers()
    primary.bid(5)
    backup.bid(3)
    assert primary.bid(2).status.code == Code.NOT_FOUND
    assert backup.receive("arbitration").status.code == Code.NOT_FOUND


def test_without_an_election_id_nobody_is_primary(controllers):
    controller = controllers()
    answer = controller.bid(None)
    assert answer.status.code == Code.NOT_FOUND
    assert not answer.HasField("election_id")
    with pytest.raises(Failed) as caught:
        controller.set_pipeline()
    assert caught.value.code == Code.PERMISSION_DENIED
    other = controllers()
    answer = other.bid(0)
    assert answer.status.code == Code.OK
    assert answer.HasField("election_id")
    answer = controller.receive("arbitration")
    assert answer.status.code == Code.ALREADY_EXISTS


def test_a_pipeline_before_arbitration_is_refused(controllers):
    controller = controllers()
    controller.election_id = 1
    with pytest.raises(Failed, match="MasterArbitrationUpdate") as caught:
        controller.set_pipeline()
    assert caught.value.code == Code.PERMISSION_DENIED
    controller.bid(1)
    controller.set_pipeline()


def test_an_election_id_in_use_ends_the_stream(controllers):
    first, second = controllers(), controllers()
    first.bid(5)
    with pytest.raises(Failed, match="election id 5 is already used") as caught:
        second.bid(5)
    assert caught.value.code == Code.INVALID_ARGUMENT
    first.set_pipeline()


@pytest.mark.parametrize(
    ("second", "code"),
    [
        ({"election_id": 2, "device_id": 2}, Code.FAILED_PRECONDITION),
        ({"election_id": 2, "role": "b"}, Code.FAILED_PRECONDITION),
        ({"election_id": 2, "role": "a", "config": stratum.P4RoleConfig.PacketFilter()}, Code.INVALID_ARGUMENT),
    ],
)
def test_what_a_stream_is_for_cannot_change(controllers, second, code):
    controller = controllers()
    controller.bid(1, role="a")
    with pytest.raises(Failed) as caught:
        controller.bid(**second)
    assert caught.value.code == code


def test_unknown_devices(controllers):
    controller = controllers(device_id=7)
    with pytest.raises(Failed, match="no device 7") as caught:
        controller.bid(1)
    assert caught.value.code == Code.NOT_FOUND
    requests = {
        "Write": p4r.WriteRequest(device_id=7),
        "SetForwardingPipelineConfig": SET(device_id=7),
        "GetForwardingPipelineConfig": p4r.GetForwardingPipelineConfigRequest(device_id=7),
        "Capabilities": p4r.CapabilitiesRequest(device_id=7),
    }
    for method, request in requests.items():
        with pytest.raises(Failed) as caught:
            controller.rpc(method, request)
        assert caught.value.code == Code.NOT_FOUND
    with pytest.raises(Failed) as caught:
        controller.read(p4r.TableEntry())
    assert caught.value.code == Code.NOT_FOUND


def test_capabilities(controllers):
    controller = controllers()
    for device_id in (0, 1):
        answer = controller.rpc("Capabilities", p4r.CapabilitiesRequest(device_id=device_id))
        assert tuple(map(int, answer.p4runtime_api_version.split("."))) >= (1, 4, 0)


def test_roles_are_apart(controllers):
    default, other = controllers(), controllers()
    default.bid(5)
    default.set_pipeline()
    names = default.names
    config = stratum.P4RoleConfig(exclusive_p4_ids=[names["dmac"]], shared_p4_ids=[names["routes"]])
    answer = other.bid(1, role="edge", config=config)
    assert answer.status.code == Code.OK
    assert answer.role.name == "edge"
    unpacked = stratum.P4RoleConfig()
    assert answer.role.config.Unpack(unpacked)
    assert unpacked == config

    dmac = names.entry("dmac", "forward", 1, match={"f1": 1})
    route = names.entry("routes", "drop", match={"f1": {"lpm": {"value": 0x0A000000, "prefix_len": 8}}})
    smac = names.entry("smac", "learn", match={"f1": 1})
    other.insert(dmac, route)
    for controller, entry in ((other, smac), (default, dmac)):
        with pytest.raises(Failed, match="role may not") as caught:
            controller.insert(entry)
        assert caught.value.item == Code.PERMISSION_DENIED
    with pytest.raises(Failed) as caught:
        other.set_pipeline()
    assert caught.value.code == Code.PERMISSION_DENIED
    default.insert(smac)
    assert {entry.table_id for entry in other.read(p4r.TableEntry(), role="edge")} == {names["dmac"], names["routes"]}
    assert len(other.read(p4r.TableEntry())) == 3 + 2
    for role in ("nobody", "edge"):
        request = p4r.WriteRequest(device_id=1, role=role, election_id=p4r.Uint128(low=5))
        with pytest.raises(Failed) as caught:
            default.rpc("Write", request)
        assert caught.value.code == (Code.NOT_FOUND if role == "nobody" else Code.PERMISSION_DENIED)
    with pytest.raises(Failed) as caught:
        default.read(p4r.TableEntry(), role="nobody")
    assert caught.value.code == Code.NOT_FOUND


def test_a_role_by_its_old_number(controllers):
    controller = controllers()
    update = p4r.MasterArbitrationUpdate(device_id=1, election_id=p4r.Uint128(low=1), role=p4r.Role(id=9))
    controller.send(arbitration=update)
    assert controller.receive("arbitration").status.code == Code.OK
    controller.rpc(
        "SetForwardingPipelineConfig",
        SET(
            device_id=1,
            role_id=9,
            election_id=p4r.Uint128(low=1),
            action=SET.VERIFY_AND_COMMIT,
            config=_config(controller),
        ),
    )


def _config(controller):
    from tests.softswitch.server_lab import JSON

    return p4r.ForwardingPipelineConfig(p4info=controller.names.info, p4_device_config=JSON.read_bytes())


def test_a_stream_must_begin_with_arbitration(controllers):
    controller = controllers()
    controller.send(packet=p4r.PacketOut(payload=b"x"))
    with pytest.raises(Failed, match="first message") as caught:
        controller.receive()
    assert caught.value.code == Code.FAILED_PRECONDITION


def test_a_client_may_end_its_stream_in_order(controllers):
    first, second = controllers(), controllers()
    first.bid(2)
    second.bid(1)
    first.requests.put(None)
    assert first.receive() is None
    assert second.receive("arbitration").status.code == Code.NOT_FOUND


def test_open_streams_are_bounded():
    with running_switches(max_streams=2) as (switch,):
        controllers = [Controller(switch.address) for _ in range(3)]
        try:
            controllers[0].bid(1)
            controllers[1].bid(2)
            with pytest.raises(Failed) as caught:
                controllers[2].bid(3)
            assert caught.value.code == Code.RESOURCE_EXHAUSTED
            controllers[2].close_stream()
            controllers[0].close_stream()
            assert controllers[1].bid(2).status.code == Code.OK
        finally:
            for controller in controllers:
                controller.__exit__()


def test_two_devices_behind_one_server():
    with running_switches(2, one_server=True) as switches, Controller(switches[0].address) as first:
        assert switches[0].address == switches[1].address
        with Controller(switches[1].address, device_id=2) as second:
            for controller, port in ((first, 1), (second, 2)):
                controller.bid(7)
                controller.set_pipeline()
                controller.write((INSERT, controller.names.entry("dmac", "forward", port, match={"f1": 1})))
            for controller, port in ((first, 1), (second, 2)):
                (entry,) = controller.read(p4r.TableEntry(table_id=controller.names["dmac"]))
                assert entry.action.action.params[0].value == octets(port)
