"""Messages of the right type with anything in them: the server answers with a code of its own, never by a failure inside."""

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("finsy", reason="needs the extra p4")

from finsy.proto import p4r

from softswitch.server import Code
from softswitch.server.testing import running_switches
from tests.softswitch.server_lab import SET, Controller, Failed, load_p4info

NUMBERS = st.sampled_from([0, 1, 2, 3, 4, 7, 16, 31, 32, 48, 64, 255, 511, 512]) | st.integers(-(2**31), 2**31 - 1)
STRINGS = st.sampled_from([b"", b"\0", b"\1", b"\1\2", b"\0\0\1", b"\xff", b"\xff\xff", b"\x01\xff", bytes(6)])
STRINGS |= st.binary(max_size=12)
LIMITS = {
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
}


def scalar(draw, field, ids):
    if field.type == FieldDescriptor.TYPE_BYTES:
        return draw(STRINGS)
    if field.type == FieldDescriptor.TYPE_STRING:
        return draw(st.sampled_from(["", "a", "red"]))
    if field.type == FieldDescriptor.TYPE_BOOL:
        return draw(st.booleans())
    if field.type == FieldDescriptor.TYPE_ENUM:
        return draw(st.sampled_from([value.number for value in field.enum_type.values] + [99]))
    if field.name.endswith("_id") and field.name not in ("field_id", "param_id", "member_id", "group_id", "session_id"):
        return draw(st.sampled_from(ids))
    low, high = LIMITS[field.type]
    number = draw(st.sampled_from([low, high]) | NUMBERS)
    return min(max(number, low), high)


def fill(draw, message, ids, depth=0):
    """Sets about half of a message's fields."""
    for field in message.DESCRIPTOR.fields:
        # The type of a batch's item is what matters most; the rest is left out often, as clients do.
        if depth > 7 or not draw(st.booleans()):
            continue
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if field.message_type.full_name == "google.protobuf.Any":
                continue
            if field.is_repeated:
                for _ in range(draw(st.integers(0, 2))):
                    fill(draw, getattr(message, field.name).add(), ids, depth + 1)
            else:
                getattr(message, field.name).SetInParent()
                fill(draw, getattr(message, field.name), ids, depth + 1)
        elif field.is_repeated:
            getattr(message, field.name).append(scalar(draw, field, ids))
        else:
            setattr(message, field.name, scalar(draw, field, ids))


@st.composite
def entities(draw, ids):
    entity = p4r.Entity()
    kind = draw(st.sampled_from([field.name for field in p4r.Entity.DESCRIPTOR.fields]))
    message = getattr(entity, kind)
    message.SetInParent()
    fill(draw, message, ids)
    if hasattr(message, "table_id") and draw(st.booleans()):
        message.is_default_action = False
    return entity


@pytest.fixture(scope="module")
def controller():
    with running_switches() as (switch,), Controller(switch.address) as controller:
        controller.bid(1)
        controller.set_pipeline()
        yield controller


def all_ids(controller):
    return [0, 5, *sorted(set(controller.names.ids.values()))]


@given(st.data())
@settings(max_examples=100)
def test_updates(controller, data):
    ids = all_ids(controller)
    updates = [
        p4r.Update(type=data.draw(st.sampled_from([1, 2, 3])), entity=data.draw(entities(ids)))
        for _ in range(data.draw(st.integers(1, 5)))
    ]
    request = p4r.WriteRequest(updates=updates, atomicity=data.draw(st.sampled_from([0, 1, 2])), **controller.identity())
    try:
        controller.rpc("Write", request)
    except Failed as error:
        assert error.code == Code.UNKNOWN
        assert len(error.items) == len(updates)
        assert all(code not in (Code.INTERNAL, Code.UNKNOWN) for code, _ in error.items), error


@given(st.data())
@settings(max_examples=100)
def test_queries(controller, data):
    ids = all_ids(controller)
    queries = data.draw(st.lists(entities(ids), min_size=1, max_size=4))
    try:
        list(controller.stub.Read(p4r.ReadRequest(device_id=1, entities=queries), timeout=20))
    except Exception as raised:
        error = Failed(raised)
        assert error.code == Code.UNKNOWN
        assert len(error.items) == len(queries)
        assert all(code not in (Code.INTERNAL, Code.UNKNOWN) for code, _ in error.items), error


@given(st.data())
@settings(max_examples=60)
def test_stream_messages(controller, data):
    request = p4r.StreamMessageRequest()
    kind = data.draw(st.sampled_from(["packet", "digest_ack"]))
    getattr(request, kind).SetInParent()
    fill(data.draw, getattr(request, kind), all_ids(controller))
    controller.send(**{kind: getattr(request, kind)})
    # The answer to this comes after whatever the message led to.
    controller.send(arbitration=p4r.MasterArbitrationUpdate(device_id=1, election_id=p4r.Uint128(low=1)))
    while (message := controller.receive()).WhichOneof("update") != "arbitration":
        if message.WhichOneof("update") == "error":
            assert message.error.canonical_code not in (Code.INTERNAL, Code.UNKNOWN)
    assert message.arbitration.status.code == Code.OK


@given(st.data())
@settings(max_examples=60)
def test_p4infos(controller, data):
    """A P4Info with one thing changed is taken or refused."""
    info = load_p4info()
    groups = [field.name for field in info.DESCRIPTOR.fields if field.is_repeated and getattr(info, field.name)]
    group = getattr(info, data.draw(st.sampled_from(groups)))
    ids = all_ids(controller)
    fill(data.draw, group[data.draw(st.integers(0, len(group) - 1))], ids)
    try:
        controller.set_pipeline(SET.VERIFY, info=info)
    except Failed as error:
        assert error.code == Code.INVALID_ARGUMENT
