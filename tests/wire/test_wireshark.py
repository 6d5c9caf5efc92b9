"""The dissector, run by tshark: on captures of real traffic, and on traffic that nobody well-meaning sends."""

import json

import numpy as np
import pytest

from dlcp.wire import codec
from dlcp.wire.bodies import BODIES
from dlcp.wire.header import FEEDBACK_BODY, HEADER, HEADER_BYTES, REPORT_BODY, PacketType
from dlcp.wire.wireshark import checked_runs, dissector, lua

FAULTS = ("_ws.lua.error", "_ws.malformed.expert", "_ws.malformed.dissector_bug")
HEADER_FILTERS = {f"dlcp.{name}": name for name in HEADER.slots}


def number(text):
    return {"True": 1, "False": 0}.get(text) if text in ("True", "False") else int(text, 0)


def filters(layout):
    return {f"dlcp.{layout.name}.{name}": name for name in layout.slots}


def assert_unharmed(rows):
    for k, row in enumerate(rows):
        assert not any(row[name] for name in FAULTS), (k, {name: row[name] for name in FAULTS})


@pytest.mark.root
def test_every_field_of_real_traffic_is_what_was_sent(loopback, tshark, wire, tmp_path):
    rng = np.random.default_rng(7)
    sent = []
    for k in range(120):
        kind = PacketType(k % len(PacketType))
        payload = wire.datagram(rng, kind)
        head = HEADER.decode_one(payload)
        tos = (8 * head["priority"]) << 2 | (2 if head["protected"] else 0)
        loopback.exchange(payload, tos)
        sent.append((kind, payload, tos))
    capture = loopback.save(tmp_path / "real.pcap")
    bodies = {name: layout for layout in wire.layouts[1:] for name in filters(layout)}
    parts = {f"dlcp.dtype.{part.name}": (part, shift) for part, shift in HEADER.slots["dtype"].field.part_shifts()}
    names = [*HEADER_FILTERS, *bodies, *parts, "dlcp.check.status"]
    more = ["dlcp.payload", "dlcp.bitmap", "dlcp.padding", "dlcp.reason", "dlcp.trailing", "dlcp.payload.length"]
    rows = tshark.fields(capture, *names, *more, "ip.dsfield.dscp", "ip.dsfield.ecn", *FAULTS, options=tshark.any_port)
    assert len(rows) == len(sent)
    assert_unharmed(rows)
    for row, (kind, payload, tos) in zip(rows, sent, strict=True):
        expected = HEADER.decode_one(payload)
        assert {name: number(row[key][0]) for key, name in HEADER_FILTERS.items()} == expected
        for key, (part, shift) in parts.items():
            assert number(row[key][0]) == expected["dtype"] >> shift & ((1 << part.bits) - 1)
        assert row["dlcp.check.status"] == ["1"]
        assert (number(row["ip.dsfield.dscp"][0]), number(row["ip.dsfield.ecn"][0])) == (tos >> 2, tos & 3)
        assert not row["dlcp.trailing"]
        body = BODIES[kind]
        for layout in wire.layouts[1:]:
            here = {name: number(row[key][0]) for key, name in filters(layout).items() if row[key]}
            assert here == (layout.decode_one(payload[HEADER_BYTES:]) if layout is body.layout else {})
        tail = payload[HEADER_BYTES + body.size :]
        holder = {"PAYLOAD": "payload", "BITMAP": "bitmap", "PADDING": "padding"}.get(body.tail.name)
        for name in ("payload", "bitmap", "padding"):
            assert "".join(row[f"dlcp.{name}"]).replace(":", "") == (tail.hex() if name == holder else "")
        if kind is PacketType.ABORT:
            assert "".join(row["dlcp.reason"]) == tail.decode("utf-8", "replace")
        if kind is PacketType.DATA:
            assert row["dlcp.payload.length"] == [str(len(tail))]


@pytest.mark.root
def test_segmentation_offload_is_taken_apart(loopback, tshark, tmp_path):
    stride, packets = 400, 21
    length = stride * (packets - 1) + 104
    offsets = np.arange(packets) * stride
    headers = codec.encode_headers(
        packets, source=2, length=length, stride=stride, offset=offsets, sequence=np.arange(packets) + 9
    )
    content = np.random.default_rng(1).bytes(length)
    burst = b"".join(row.tobytes() + content[start : start + stride] for row, start in zip(headers, offsets, strict=True))
    try:
        loopback.exchange(burst, tos=0xA2, segment=HEADER_BYTES + stride)
    except OSError as error:
        pytest.skip(f"this kernel has no UDP segmentation offload: {error}")
    capture = loopback.save(tmp_path / "offload.pcap")
    names = ("dlcp.offset", "dlcp.sequence", "dlcp.payload", "dlcp.datagrams", "_ws.col.Info", *FAULTS)
    (row,) = tshark.fields(capture, *names, options=tshark.any_port)
    assert_unharmed([row])
    if len(row["dlcp.offset"]) == 1:
        pytest.fail("the capture shows the burst already cut: this test needs to see it before")
    assert [number(text) for text in row["dlcp.offset"]] == offsets.tolist()
    assert [number(text) for text in row["dlcp.sequence"]] == list(range(9, 9 + packets))
    assert "".join(row["dlcp.payload"]).replace(":", "") == content.hex()
    assert row["dlcp.datagrams"] == [str(packets)]
    assert row["_ws.col.Info"][0].startswith(f"[{packets} datagrams] DATA 2 → 0 ")


def test_json_names_the_values(tshark, wire, tmp_path):
    payload = codec.encode_headers(1, type=PacketType.GOODBYE, phase=2, dtype=0x81, cookie=2**64 - 2, bound=6554).tobytes()
    capture = wire.pcap(tmp_path / "one.pcap", [wire.frame(payload)])
    (packet,) = json.loads(tshark(capture, "-T", "json"))
    layer = packet["_source"]["layers"]["dlcp"]
    assert layer["dlcp.cookie"] == "0xfffffffffffffffe"
    assert (layer["dlcp.type"], layer["dlcp.phase"]) == ("9", "2")
    text = tshark(capture, "-V")
    for line in ("Type: goodbye (9)", "Phase: ring_reduce (2)", "Element: float32 (1)", "Bound: 6554 (10.001 %)"):
        assert line in text


INFO = {
    PacketType.DATA: "DATA 2 → 1 op 17 push/3 [1424 + 1424 of 10000] class 5 protected retransmission",
    PacketType.PROBE: "PROBE 2 → 1 op 17 push/3 retransmission",
    PacketType.STATUS: "STATUS 2 → 1 op 17 push/3 missing 2 of 8, needed 1, no_memory retransmission",
    PacketType.STOP: "STOP 2 → 1 op 17 push/3 missing 2 of 8, needed 1, no_memory retransmission",
    PacketType.FEEDBACK: "FEEDBACK 2 → 1 highest 7 received 6 marked 5 trimmed 4 window 9 retransmission",
    PacketType.HELLO: "HELLO 2 → 1 nonce 0x800000000000000b, 64 bytes retransmission",
    PacketType.HELLO_ACK: "HELLO_ACK 2 → 1 nonce 0x800000000000000b, 64 bytes retransmission",
    PacketType.PING: "PING 2 → 1 retransmission",
    PacketType.ABORT: "ABORT 2 → 1 peer_lost of rank 3: gone retransmission",
    PacketType.GOODBYE: "GOODBYE 2 → 1 retransmission",
}
BODY_VALUES = {
    "feedback": {"highest_sequence": 7, "received": 6, "marked": 5, "trimmed": 4, "window": 9},
    "report": {"missing": 2, "needed": 1, "packets": 8, "busy": 1},
    "hello": {"nonce": 2**63 + 11, "datagram": 64},
    "abort": {"kind": 1, "culprit": 3},
}


def typical(kind, **more):
    """A datagram of each type with values that are easy to recognize."""
    fields = {"source": 2, "destination": 1, "operation": 17, "part": 3, "length": 10_000, "offset": 1424, "stride": 1424}
    fields |= {"priority": 5, "protected": 1, "retransmission": 1, "type": int(kind)} | more
    body = BODIES[kind]
    tail = {"PAYLOAD": bytes(1424), "BITMAP": b"\x21", "TEXT": b"gone"}.get(body.tail.name, b"")
    fixed = body.layout.encode(1, **BODY_VALUES[body.layout.name]).tobytes() if body.layout else b""
    return codec.encode_headers(1, **fields).tobytes() + fixed + tail


def test_the_info_column_tells_what_happens(tshark, wire, tmp_path):
    capture = wire.pcap(tmp_path / "info.pcap", [wire.frame(typical(kind)) for kind in PacketType])
    rows = tshark.fields(capture, "_ws.col.Info", "_ws.col.Protocol", "dlcp.missing_packets")
    assert {kind: row["_ws.col.Info"][0] for kind, row in zip(PacketType, rows, strict=True)} == INFO
    assert {row["_ws.col.Protocol"][0] for row in rows} == {"DLCP"}
    assert rows[PacketType.STOP]["dlcp.missing_packets"] == ["2, 7"]


def test_the_bitmap_is_told_as_ranges(tshark, wire, tmp_path):
    def report(bits, **fields):
        body = REPORT_BODY.encode(1, packets=len(bits), missing=sum(bits), **fields).tobytes()
        return typical(PacketType.STOP)[:HEADER_BYTES] + body + np.packbits(np.array(bits, np.uint8)).tobytes()

    cases = {
        "": [0] * 9,
        "0-8": [1] * 9,
        "1, 3-4, 6-8, 10": [0, 1, 0, 1, 1, 0, 1, 1, 1, 0, 1],
        "0, 15-16": [1] + [0] * 14 + [1, 1] + [0] * 40,
    }
    long = [1, 0] * 5000
    capture = wire.pcap(tmp_path / "bitmap.pcap", [wire.frame(report(bits)) for bits in [*cases.values(), long]])
    rows = tshark.fields(capture, "dlcp.missing_packets", "dlcp.expert.bitmap")
    assert ["".join(row["dlcp.missing_packets"]) for row in rows[:-1]] == list(cases)
    text = rows[-1]["dlcp.missing_packets"][0]
    assert text.startswith("0, 2, 4, ") and text.endswith(", 126, ...")
    assert not any(row["dlcp.expert.bitmap"] for row in rows)


class TestRecognition:
    def test_by_the_check_on_any_port(self, tshark, wire, tmp_path):
        good = typical(PacketType.PROBE)
        flipped = bytearray(good)
        flipped[20] ^= 1
        frames = [
            wire.frame(good, 40_000, 40_001),
            wire.frame(bytes(flipped), 50_000, 50_001),
            wire.frame(good[:47], 50_002, 50_003),
            wire.frame(typical(PacketType.PROBE, version=2), 50_004, 50_005),
            wire.frame(typical(PacketType.PROBE, type=11), 50_006, 50_007),
            wire.frame(bytes(flipped), 40_000, 40_001),
            wire.frame(bytes(flipped), 40_001, 40_000),
        ]
        capture = wire.pcap(tmp_path / "any.pcap", frames)
        rows = tshark.fields(capture, "dlcp.version", "dlcp.check.status")
        assert [bool(row["dlcp.version"]) for row in rows] == [True, False, False, False, False, True, True]
        assert [row["dlcp.check.status"] for row in rows[-2:]] == [["0"], ["0"]]

    def test_random_datagrams_are_left_to_others(self, tshark, wire, tmp_path):
        rng = np.random.default_rng(3)
        frames = [wire.frame(rng.bytes(int(rng.integers(0, 300))), 50_000 + k % 10_000, 3) for k in range(5000)]
        assert not tshark(wire.pcap(tmp_path / "random.pcap", frames), "-Y", "dlcp")

    def test_a_capture_cut_inside_the_header_is_recognized_by_its_values(self, tshark, wire, tmp_path):
        frames = [wire.frame(typical(kind), 40_000 + kind, 1) for kind in PacketType]
        frames += [
            wire.frame(typical(PacketType.DATA, phase=200), 41_000, 1),
            wire.frame(typical(PacketType.DATA, dtype=9), 41_001, 1),
        ]
        capture = wire.pcap(tmp_path / "cut.pcap", [frame[:64] for frame in frames], [len(frame) for frame in frames])
        rows = tshark.fields(capture, "dlcp.version", "dlcp.check.status", "dlcp.expert.cut")
        assert [bool(row["dlcp.version"]) for row in rows] == [True] * len(PacketType) + [False] * 2
        assert all(row["dlcp.check.status"] == ["2"] and row["dlcp.expert.cut"] for row in rows[: len(PacketType)])

    def test_the_port_is_a_preference(self, tshark, wire, tmp_path):
        broken = b"\x10" + bytes(99)
        capture = wire.pcap(tmp_path / "port.pcap", [wire.frame(broken, 1, 9753), wire.frame(broken, 1, 1234)])

        def seen(*options):
            return [bool(row["dlcp.version"]) for row in tshark.fields(capture, "dlcp.version", options=options)]

        assert seen() == [True, False]
        assert seen("-o", "dlcp.port:1234") == [False, True]
        assert seen("-o", "dlcp.port:0") == [False, False]


class TestTrouble:
    """What is wrong is said as expert information, and only then."""

    def experts(self, tshark, wire, tmp_path, payloads):
        names = ["short", "cut", "version", "type", "check", "reserved", "body", "size", "bitmap", "trimmed", "busy", "abort"]
        keys = [f"dlcp.expert.{name}" for name in names]
        capture = wire.pcap(tmp_path / "experts.pcap", [wire.frame(payload, 1, 9753) for payload in payloads])
        rows = tshark.fields(capture, *keys, *FAULTS)
        assert_unharmed(rows)
        return [{name for name, key in zip(names, keys, strict=True) if row[key]} for row in rows]

    def test_each_kind_is_named(self, tshark, wire, tmp_path):
        data = typical(PacketType.DATA)
        stop = typical(PacketType.STOP)
        wrong_count = stop[:HEADER_BYTES] + REPORT_BODY.encode(1, missing=3, packets=8).tobytes() + b"\x21"
        cases = [
            (data, set()),
            (data[:47], {"short"}),
            (b"\x10", {"short"}),
            (b"", set()),  # Wireshark hands no empty datagram to anyone
            (typical(PacketType.PING, version=3), {"version"}),
            (typical(PacketType.PING, type=10), {"type"}),
            (typical(PacketType.PING, reserved=1), {"reserved"}),
            (typical(PacketType.PING, dtype=0x10), set()),
            (data[:30] + b"\xff" + data[31:], {"check", "size"}),
            (data[:-8], {"size"}),
            (data + b"more", {"size"}),
            (typical(PacketType.DATA, trimmed=1)[:HEADER_BYTES], {"trimmed"}),
            (typical(PacketType.DATA, trimmed=1), {"trimmed", "size"}),
            (typical(PacketType.DATA, offset=10_001), {"size"}),
            (typical(PacketType.PROBE) + b"?", {"size"}),
            (stop, {"busy"}),
            (stop[:60], {"body"}),
            (stop[:64], {"busy", "size"}),
            (stop[:HEADER_BYTES], {"body"}),
            (stop + b"\0", {"busy", "size"}),
            (wrong_count, {"bitmap"}),
            (typical(PacketType.FEEDBACK)[:-1], {"body"}),
            (typical(PacketType.FEEDBACK) + b"\0", {"size"}),
            (typical(PacketType.HELLO)[:-1], {"body"}),
            (typical(PacketType.HELLO) + b"\0", {"size"}),
            (typical(PacketType.ABORT), {"abort"}),
            (typical(PacketType.ABORT)[:55], {"body"}),
            (typical(PacketType.ABORT)[:56] + b"\xff\xfe\0", {"abort"}),
        ]
        found = self.experts(tshark, wire, tmp_path, [payload for payload, _ in cases])
        assert found == [expected for _, expected in cases]

    def test_a_cut_capture_is_not_called_malformed(self, tshark, wire, tmp_path):
        frames = [wire.frame(typical(kind), 1, 9753) for kind in PacketType]
        cut = [frame[:size] for frame in frames for size in range(43, len(frame))]
        lengths = [len(frame) for frame in frames for _ in range(43, len(frame))]
        capture = wire.pcap(tmp_path / "cut.pcap", cut, lengths)
        rows = tshark.fields(capture, "dlcp.expert.cut", "dlcp.expert.short", "dlcp.expert.body", "dlcp.expert.size", *FAULTS)
        assert_unharmed(rows)
        assert all(row["dlcp.expert.cut"] for row in rows)
        assert not any(row[f"dlcp.expert.{name}"] for row in rows for name in ("short", "body", "size"))

    def test_a_burst_whose_end_was_not_captured(self, tshark, wire, tmp_path):
        packets = [codec.encode_headers(1, length=80, stride=40, offset=k * 40).tobytes() + bytes(40) for k in range(2)]
        whole = wire.frame(b"".join(packets))
        cut = [whole[:size] for size in range(42 + HEADER_BYTES, len(whole))]
        capture = wire.pcap(tmp_path / "burst.pcap", cut, [len(whole)] * len(cut))
        rows = tshark.fields(capture, "dlcp.offset", "dlcp.expert.cut", "dlcp.expert.size", *FAULTS)
        assert_unharmed(rows)
        assert all(row["dlcp.expert.cut"] and not row["dlcp.expert.size"] for row in rows)
        assert [len(row["dlcp.offset"]) for row in rows] == [1 if len(c) < 42 + 88 + HEADER_BYTES else 2 for c in cut]

    def test_no_bytes_whatever_make_it_fail(self, tshark, wire, tmp_path):
        """Cut everywhere, random, with single bytes changed under a mended check, and glued together."""
        rng = np.random.default_rng(11)
        payloads = [typical(kind)[:cut] for kind in PacketType for cut in range(min(200, len(typical(kind))))]
        payloads += [rng.bytes(int(rng.integers(0, 200))) for _ in range(2000)]
        payloads += [bytes([0x10 | int(rng.integers(0, 10))]) + rng.bytes(int(rng.integers(0, 200))) for _ in range(2000)]
        for _ in range(3000):
            raw = np.frombuffer(wire.datagram(rng, PacketType(int(rng.integers(0, len(PacketType))))), np.uint8).copy()
            for _ in range(int(rng.integers(1, 4))):
                raw[rng.integers(0, min(len(raw), 120))] = rng.integers(0, 256)
            raw[None, :HEADER_BYTES] = codec.seal(raw[None, :HEADER_BYTES].copy())
            payloads.append(raw.tobytes()[: int(rng.integers(48, len(raw) + 1))])
        payloads += [b"".join(payloads[int(k)] for k in rng.integers(0, len(payloads), 5)) for _ in range(500)]
        capture = wire.pcap(tmp_path / "hostile.pcap", [wire.frame(payload, 1, 9753) for payload in payloads])
        rows = tshark.fields(capture, "dlcp", "dlcp.check.status", *FAULTS)
        assert_unharmed(rows)
        assert [bool(row["dlcp"]) for row in rows] == [bool(payload) for payload in payloads]
        for payload, row in zip(payloads, rows, strict=True):
            if len(payload) >= HEADER_BYTES and payload[0] >> 4 == 1:
                good = codec.check_ok(np.frombuffer(payload, np.uint8, HEADER_BYTES)[None])[0]
                assert row["dlcp.check.status"][0] == str(int(good))

    def test_a_faulty_script_would_be_noticed(self, tshark, wire, tmp_path):
        script = tmp_path / "faulty.lua"
        script.write_text(
            dissector().replace("local reported, captured =", "local beyond = tvb(0, 99999)\nlocal reported, captured =")
        )
        capture = wire.pcap(tmp_path / "one.pcap", [wire.frame(typical(PacketType.PING), 1, 9753)])
        (row,) = tshark.fields(capture, *FAULTS, script=script)
        assert row["_ws.lua.error"]


class TestGeneration:
    def test_the_runs_of_bits_make_up_the_check(self):
        rows = np.random.default_rng(5).integers(0, 256, (200, HEADER_BYTES), np.uint8)
        for row in rows:
            total = 0
            for byte, first, bits, weight in checked_runs():
                word = int.from_bytes(row[byte : byte + 2].tobytes(), "big")
                total += (word >> (16 - first - bits) & ((1 << bits) - 1)) * weight
            while total > 0xFFFF:
                total = (total & 0xFFFF) + (total >> 16)
            assert 0xFFFF - total == int(codec.header_check(row[None])[0].byteswap() if np.little_endian else 0)

    def test_every_field_has_a_filter(self, wire):
        text = dissector()
        for layout in wire.layouts:
            prefix = "dlcp." if layout is HEADER else f"dlcp.{layout.name}."
            for name in layout.slots:
                assert f'key = "{prefix}{name}"' in text

    def test_plain_data_as_lua(self):
        assert lua({"a": [1, True, 'say "hi"\\\n'], 3: {}}) == '{ a = { 1, true, "say \\"hi\\"\\\\\\n" }, [3] = {  } }'
        with pytest.raises(TypeError, match="float has no counterpart"):
            lua([1.5])

    def test_the_text_is_the_same_every_time(self):
        assert dissector() == dissector()
        assert FEEDBACK_BODY.name in dissector()
