"""The scapy layer says and understands the same bytes as the numpy codec."""

import doctest
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dlcp.wire
from dlcp.wire import codec
from dlcp.wire.bodies import BODIES
from dlcp.wire.header import FEEDBACK_BODY, HEADER, HEADER_BYTES, HELLO_BODY, REPORT_BODY, PacketType

scapy_layer = pytest.importorskip("dlcp.wire.scapy_layer", reason="scapy is not installed (pip install 'dlcp[dev]')")
DLCP, DLCPReport = scapy_layer.DLCP, scapy_layer.DLCPReport

from scapy.layers.inet import IP, UDP  # noqa: E402
from scapy.packet import Raw  # noqa: E402


def values(layout, **fixed):
    return st.fixed_dictionaries({f.name: st.just(fixed[f.name]) if f.name in fixed else st.integers(0, 2**f.bits - 1)
                                  for f in layout.fields})  # fmt: skip


@st.composite
def header_values(draw, kind=None):
    kind = draw(st.sampled_from(PacketType)) if kind is None else kind
    fields = draw(values(HEADER, version=1, type=kind))
    del fields["check"]
    return fields


def dissected(packet):
    return {name: getattr(packet, name) for name in HEADER.slots}


@given(header_values())
def test_build_equals_the_numpy_codec(fields):
    assert bytes(DLCP(**fields)) == codec.encode_headers(1, **fields).tobytes()


@given(header_values(), st.integers(0, 0xFFFF))
def test_a_check_that_is_given_is_left_alone(fields, check):
    assert bytes(DLCP(**fields, check=check)) == HEADER.encode(1, **fields, check=check).tobytes()


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES + 200))
@settings(max_examples=300)
def test_dissect_equals_the_numpy_decode_for_any_bytes(raw):
    packet = DLCP(raw)
    assert dissected(packet) == HEADER.decode_one(raw)
    assert bytes(packet) == raw


@pytest.mark.parametrize("kind", [kind for kind, body in BODIES.items() if body.layout], ids=lambda kind: kind.name)
@given(data=st.data())
@settings(max_examples=40)
def test_bodies(kind, data):
    layout = BODIES[kind].layout
    fields = data.draw(header_values(kind))
    body = data.draw(values(layout))
    tail = data.draw(st.binary(max_size=50))
    if layout is REPORT_BODY:
        body["packets"] = len(tail) * 8
    raw = codec.encode_headers(1, **fields).tobytes() + layout.encode(1, **body).tobytes() + tail
    packet = DLCP(raw)
    layer = scapy_layer.BODY_LAYERS[kind]
    assert isinstance(packet.payload, layer)
    assert {name: getattr(packet.payload, name) for name in layout.slots} == body
    rest = {PacketType.STATUS: "bitmap", PacketType.STOP: "bitmap", PacketType.ABORT: "reason"}.get(kind)
    assert (getattr(packet.payload, rest) if rest else bytes(packet.payload.payload)) == tail
    assert packet.check_holds()
    built = DLCP(**fields) / layer(**body, **({rest: tail} if rest else {}))
    assert bytes(built if rest else built / Raw(tail)) == raw


@given(st.integers(1, 200), st.data())
def test_reports_say_which_packets_are_missing(packets, data):
    missing = data.draw(st.sets(st.integers(0, packets - 1)))
    report = DLCPReport(bytes(DLCPReport.of(missing, packets, needed=1)))
    assert report.missing_packets() == sorted(missing)
    assert (report.missing, report.needed, report.packets) == (len(missing), 1, packets)
    bits = np.zeros(packets, np.uint8)
    bits[sorted(missing)] = 1
    assert report.bitmap == np.packbits(bits).tobytes()


@pytest.mark.parametrize("index", [-1, 10])
def test_a_report_refuses_packets_outside_the_message(index):
    with pytest.raises(ValueError, match=r"outside 0\.\.9"):
        DLCPReport.of([index], 10)


def test_a_body_sets_the_type():
    for kind in (PacketType.FEEDBACK, PacketType.STATUS, PacketType.HELLO, PacketType.ABORT):
        assert DLCP(bytes(DLCP() / scapy_layer.BODY_LAYERS[kind]())).type == kind
    assert DLCP(bytes(DLCP(type=PacketType.STOP) / DLCPReport())).type == PacketType.STOP


def test_names_are_shown():
    packet = DLCP(type=4, phase=2, dtype=0x83) / scapy_layer.DLCPFeedback()
    text = packet.show(dump=True)
    assert "feedback" in text and "ring_reduce" in text and "131 (mean, bfloat16)" in text
    assert "7 (element 7)" in DLCP(dtype=7).show(dump=True)
    assert "feedback 3 > 4" in DLCP(type=4, source=3, destination=4).summary()


def test_an_abort_reason_that_is_not_utf8_can_be_read():
    assert scapy_layer.DLCPAbort(reason="Überlauf".encode()).text() == "Überlauf"
    assert scapy_layer.DLCPAbort(reason=b"\xff\xfeno").text() == "\ufffd\ufffdno"


@pytest.mark.parametrize("kind", PacketType, ids=lambda kind: kind.name)
def test_a_datagram_cut_anywhere_does_no_harm(kind):
    body = BODIES[kind]
    raw = codec.encode_headers(1, type=kind).tobytes()
    if body.layout:
        raw += body.layout.encode(1, **({"packets": 64} if body.layout is REPORT_BODY else {})).tobytes()
    raw += bytes(range(8))
    for cut in range(len(raw)):
        packet = UDP(bytes(UDP(dport=9753) / Raw(raw[:cut])))
        assert bytes(packet)[8:] == raw[:cut]
        packet.show(dump=True)


class TestPorts:
    def test_the_default_port_is_bound_both_ways(self):
        raw = codec.encode_headers(1, source=3).tobytes()
        for ports in ({"dport": 9753, "sport": 1}, {"sport": 9753, "dport": 1}):
            packet = IP(bytes(IP() / UDP(**ports) / Raw(raw)))
            assert packet[DLCP].source == 3
        assert UDP(bytes(UDP() / DLCP())).dport == 9753

    def test_bind_adds_a_port(self):
        raw = bytes(UDP(dport=40_123, sport=1) / DLCP(source=5))
        assert DLCP not in UDP(raw)
        scapy_layer.bind(40_123)
        assert UDP(raw)[DLCP].source == 5

    @given(header_values())
    def test_guess_finds_it_on_any_port(self, fields):
        packet = IP(bytes(IP() / UDP(dport=40_001, sport=40_002) / DLCP(**fields) / Raw(b"x" * 40)))
        assert DLCP not in packet
        assert scapy_layer.guess(packet) is packet
        assert dissected(packet[DLCP])["sequence"] == fields["sequence"]

    @given(st.binary(max_size=200))
    def test_guess_leaves_others_alone(self, raw):
        packet = IP(bytes(IP() / UDP(dport=40_001, sport=40_002) / Raw(raw)))
        assert DLCP not in scapy_layer.guess(packet)
        assert bytes(packet[UDP].payload) == raw
        assert scapy_layer.guess(IP()) == IP()

    def test_what_looks_like_dlcp(self):
        good = bytes(DLCP(type=9))
        assert scapy_layer.looks_like_dlcp(good) and scapy_layer.looks_like_dlcp(good + b"tail")
        assert not scapy_layer.looks_like_dlcp(good[:-1])
        assert not scapy_layer.looks_like_dlcp(bytes(DLCP(type=10)))
        assert not scapy_layer.looks_like_dlcp(bytes(DLCP(version=2)))
        assert not scapy_layer.looks_like_dlcp(bytes(DLCP(check=1)))


def test_the_documented_example_runs():
    result = doctest.testmod(scapy_layer)
    assert result.attempted >= 4 and not result.failed


def test_the_wire_package_neither_needs_nor_loads_scapy():
    code = "import sys; sys.modules['scapy'] = None; import dlcp.wire as w, dlcp.wire.render; [getattr(w, n) for n in w.__all__]"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_everything_exported_exists_and_is_sorted_once():
    public = {name for name, what in vars(dlcp.wire).items() if not name.startswith("_") and not isinstance(what, ModuleType)}
    assert set(dlcp.wire.__all__) == public
    assert len(set(dlcp.wire.__all__)) == len(dlcp.wire.__all__)


def test_fixed_bodies_are_generated_from_the_table():
    for layout, layer in ((FEEDBACK_BODY, scapy_layer.DLCPFeedback), (HELLO_BODY, scapy_layer.DLCPHello), (HEADER, DLCP)):
        assert [f.name for f in layer.fields_desc] == list(layout.slots)
        assert len(bytes(layer())) == layout.size
