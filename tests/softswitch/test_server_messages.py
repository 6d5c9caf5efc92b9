"""Controller headers, error details, wrapped device configurations: the small translations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("finsy", reason="needs the extra p4")

from finsy.proto import p4i, p4r, rpc_status

from softswitch import errors
from softswitch.server import codes
from softswitch.server.codes import Code, Refusal, refusal, status_details
from softswitch.server.packet_io import packet_in, packet_out
from softswitch.server.pipeline_config import read_p4info, unwrap
from softswitch.server.schema import HeaderField, HeaderSchema


@st.composite
def headers(draw):
    widths = draw(st.lists(st.integers(1, 40), max_size=6))
    total = sum(widths)
    fields = []
    offset = 0
    for number, width in enumerate(widths, 1):
        fields.append(HeaderField(number * 3, f"f{number}", width, offset))
        offset += width
    return HeaderSchema(tuple(fields), (total + 7) // 8)


@given(headers(), st.binary(max_size=20), st.data())
def test_what_a_controller_puts_into_a_header_comes_out_of_it(header, payload, data):
    values = {field.id: data.draw(st.integers(0, 2**field.width - 1)) for field in header.fields}
    metadata = [p4r.PacketMetadata(metadata_id=key, value=bytes(3) + value.to_bytes(5, "big")) for key, value in values.items()]
    packet = packet_out(header, p4r.PacketOut(payload=payload, metadata=data.draw(st.permutations(metadata))))
    assert len(packet) == header.bytes + len(payload)
    message = packet_in(header, packet)
    assert message.payload == payload
    assert {item.metadata_id: int.from_bytes(item.value, "big") for item in message.metadata} == values
    assert all(len(item.value) == 1 or item.value[0] for item in message.metadata)


def test_the_bits_of_a_header_are_in_network_order():
    header = HeaderSchema((HeaderField(1, "port", 9, 0), HeaderField(2, "pad", 7, 9)), 2)
    metadata = [p4r.PacketMetadata(metadata_id=1, value=b"\x01\x01"), p4r.PacketMetadata(metadata_id=2, value=b"\x03")]
    assert packet_out(header, p4r.PacketOut(payload=b"xy", metadata=metadata)) == b"\x80\x83xy"
    assert packet_in(header, b"\x80") is None
    assert packet_in(None, b"\x80").payload == b"\x80"
    assert packet_out(None, p4r.PacketOut(payload=b"xy")) == b"xy"


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        [(1, b"\x01")],
        [(1, b"\x01"), (2, b"\x01"), (3, b"\x01")],
        [(1, b"\x01"), (1, b"\x01")],
        [(1, b"\x02\x00"), (2, b"\x01")],
        [(1, b""), (2, b"\x01")],
    ],
)
def test_packet_out_metadata_must_be_what_the_p4info_says(metadata):
    header = HeaderSchema((HeaderField(1, "port", 9, 0), HeaderField(2, "pad", 7, 9)), 2)
    items = [p4r.PacketMetadata(metadata_id=number, value=value) for number, value in metadata]
    with pytest.raises(Refusal, match="metadata") as caught:
        packet_out(header, p4r.PacketOut(metadata=items))
    assert caught.value.code == Code.INVALID_ARGUMENT


@given(st.lists(st.none() | st.builds(Refusal, st.sampled_from(sorted(Code)[1:]), st.text(max_size=600)), max_size=300))
def test_details_have_one_error_for_each_item_and_bounded_text(items):
    status = rpc_status.Status.FromString(status_details("m", items))
    assert status.code == Code.UNKNOWN
    assert len(status.details) == len(items)
    text = 0
    for item, detail in zip(items, status.details, strict=True):
        error = p4r.Error()
        assert detail.Unpack(error)
        assert error.canonical_code == (Code.OK if item is None else item.code)
        assert item is not None or error == p4r.Error()
        text += len(error.message)
    assert text <= codes.MESSAGE_ROOM


def test_each_error_of_the_switch_has_its_code():
    expected = {
        errors.UnknownObject: Code.NOT_FOUND,
        errors.NoSuchEntry: Code.NOT_FOUND,
        errors.DuplicateEntry: Code.ALREADY_EXISTS,
        errors.OutOfRoom: Code.RESOURCE_EXHAUSTED,
        errors.BadValue: Code.INVALID_ARGUMENT,
        errors.OutOfBounds: Code.OUT_OF_RANGE,
        errors.Immutable: Code.PERMISSION_DENIED,
        errors.InUse: Code.FAILED_PRECONDITION,
        errors.SwitchError: Code.INTERNAL,
    }
    for kind, code in expected.items():
        assert refusal(kind("x")).code == code
        assert refusal(kind("x")).message == "x"
    assert refusal(errors.UnsupportedConstruct("a[0]", "no")).code == Code.INVALID_ARGUMENT
    assert refusal(errors.UnsupportedConstruct("a[0]", "no")).message == "a[0]: no"


@given(st.binary(min_size=1, max_size=300))
def test_a_device_configuration_may_be_wrapped(tail):
    json = b"{" + tail
    length = bytes([len(json) & 0x7F | 0x80, len(json) >> 7])
    assert unwrap(json) == json
    assert unwrap(b" \n" + json) == b" \n" + json
    assert unwrap(b"\x08\x01" + b"\x1a" + length + json) == json
    assert unwrap(b"\x08\x01\x12\x00\x1a" + length + json) == json


@given(st.binary(max_size=100))
def test_unwrapping_nonsense_ends(data):
    assert unwrap(data) in (data, *(data[start:stop] for start in range(len(data) + 1) for stop in range(start, len(data) + 1)))


def test_a_p4info_is_read_as_text_or_binary():
    info = p4i.P4Info()
    info.tables.add().preamble.name = "t"
    assert read_p4info(str(info).encode()) == info
    assert read_p4info(info.SerializeToString()) == info
    with pytest.raises(Refusal, match="neither"):
        read_p4info(b"\xff\xff\xff")
