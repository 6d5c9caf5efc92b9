"""The numpy codec against properties and against an encoding written out by hand."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dlcp.wire import codec
from dlcp.wire.bodies import BODIES, PREFIX_BYTES, Tail, expected_bytes
from dlcp.wire.header import (
    ABORT_BODY,
    FEEDBACK_BODY,
    HEADER,
    HEADER_BYTES,
    HELLO_BODY,
    ITEM_BYTES,
    REPORT_BODY,
    VERSION,
    PacketType,
    Phase,
    WireType,
)
from dlcp.wire.layout import Field, Layout

LAYOUTS = [HEADER, FEEDBACK_BODY, REPORT_BODY, HELLO_BODY, ABORT_BODY]
BITS = {layout.name: [(f, bit) for f in layout.fields for bit in range(f.bits)] for layout in LAYOUTS}


def reference_check(header: bytes) -> int:
    """RFC 1071 as the RFC writes it, one word after the other, over the header without what does not count."""
    octets = bytearray(header)
    octets[1] &= 0b0001_0111  # priority and trimmed may change on the path
    octets[2:4] = octets[46:48] = b"\0\0"  # the check itself, queue_depth
    total = 0
    for (word,) in struct.iter_unpack("!H", octets):
        total += word
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def split(layout, raw):
    """Reads the fields of one record out of one long integer: slow, obvious, and no part of the codec."""
    number, left, out = int.from_bytes(raw, "big"), 8 * len(raw), {}
    for field in layout.fields:
        left -= field.bits
        out[field.name] = number >> left & ((1 << field.bits) - 1)
    assert left == 0
    return out


@st.composite
def columns(draw, layout, rows=None):
    """Draws records as bytes; returns how many, their columns, and the bytes."""
    raw = draw(st.lists(st.binary(min_size=layout.size, max_size=layout.size), min_size=rows or 0, max_size=rows or 9))
    split_rows = [split(layout, one) for one in raw]
    out = {f.name: np.array([row[f.name] for row in split_rows], np.uint64) for f in layout.fields}
    return len(raw), out, b"".join(raw)


@st.composite
def headers(draw, rows=None):
    n, cols, _ = draw(columns(HEADER, rows))
    del cols["check"], cols["version"]
    return codec.encode_headers(n, **cols)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
class TestLayouts:
    @given(data=st.data())
    def test_round_trip(self, layout, data):
        n, cols, raw = data.draw(columns(layout))
        rows = layout.encode(n, **cols)
        assert rows.tobytes() == raw
        assert rows.shape == (n, layout.size) and rows.dtype == np.uint8 and rows.flags.c_contiguous
        for name, column in layout.decode(rows).items():
            np.testing.assert_array_equal(column, cols[name])
            assert column.dtype.isnative

    @given(data=st.data())
    def test_any_bytes_survive_decode_and_encode(self, layout, data):
        n = data.draw(st.integers(0, 5))
        rows = data.draw(hnp.arrays(np.uint8, (n, layout.size)))
        np.testing.assert_array_equal(layout.encode(n, **layout.decode(rows)), rows)

    @given(data=st.data())
    def test_batch_is_the_rows_one_by_one(self, layout, data):
        n, cols, _ = data.draw(columns(layout))
        whole = layout.encode(n, **cols)
        for k in range(n):
            one = layout.encode(1, **{name: column[k] for name, column in cols.items()})
            np.testing.assert_array_equal(whole[k : k + 1], one)
            assert one.tobytes() == layout.encode_one(**{name: int(column[k]) for name, column in cols.items()})
            assert layout.decode_one(one.tobytes()) == {name: int(column[k]) for name, column in cols.items()}

    @given(data=st.data())
    def test_rows_wider_than_the_record_and_strided(self, layout, data):
        n, cols, _ = data.draw(columns(layout))
        wide = np.full((2 * n, layout.size + 7), 0xA5, np.uint8)
        wide[::2, : layout.size] = layout.encode(n, **cols)
        for rows in (wide[::2], wide[::2, : layout.size], np.asfortranarray(wide[::2])):
            for name, column in layout.decode(rows).items():
                np.testing.assert_array_equal(column, cols[name])

    @given(data=st.data())
    def test_values_wrap_at_the_width_of_their_field(self, layout, data):
        field = data.draw(st.sampled_from(layout.fields))
        value = data.draw(st.integers(-(2**63), 2**64 - 1))
        rows = [layout.encode(1, **{field.name: form}).tobytes() for form in (value, [value], np.array([value]))]
        for row in [*rows, layout.encode_one(**{field.name: value})]:
            fields = layout.decode_one(row)
            assert fields.pop(field.name) == value % 2**field.bits
            assert not any(fields.values())

    def test_every_bit_belongs_to_one_field(self, layout):
        rows = np.vstack([layout.encode(1, **{field.name: 1 << bit}) for field, bit in BITS[layout.name]])
        assert len(rows) == layout.size * 8
        np.testing.assert_array_equal(np.unpackbits(rows, axis=1).sum(axis=1), 1)
        np.testing.assert_array_equal(np.bitwise_or.reduce(rows), np.full(layout.size, 255))

    def test_short_rows_are_refused(self, layout):
        with pytest.raises(ValueError, match=f"{layout.size - 1} bytes, {layout.size} needed"):
            layout.decode_one(bytes(layout.size - 1))
        # Six short rows hold as many bytes as some whole number of records: they must not be taken for those.
        with pytest.raises(ValueError, match="needed"):
            layout.decode(np.zeros((layout.size, layout.size - 1), np.uint8))

    def test_unknown_field(self, layout):
        for encode in (layout.encode, layout.encode_one):
            with pytest.raises(KeyError):
                encode(nonsense=1)

    def test_reading_does_not_copy_contiguous_records(self, layout):
        rows = layout.encode(3)
        assert np.shares_memory(layout.records(rows), rows)


@pytest.mark.parametrize(
    "fields",
    [
        [Field("a", 7, "")],
        [Field("a", 8, ""), Field("b", 9, "")],
        [Field("a", 60, ""), Field("b", 8, "")],
    ],
    ids=["too few bits", "odd end", "too wide"],
)
def test_fields_that_do_not_tile_words_are_refused(fields):
    with pytest.raises(ValueError, match="do not fill a word"):
        Layout("broken", fields)


def test_parts_that_do_not_fill_their_field_are_refused():
    with pytest.raises(ValueError, match="do not fill 8 bits"):
        Field("a", 8, "", parts=(Field("b", 7, ""),))


class TestGoldenBytes:
    """The bytes as docs/wire-format.md gives them, packed with struct and no help from the table."""

    def test_header(self):
        row = codec.encode_headers(
            1,
            type=PacketType.DATA,
            priority=5,
            protected=1,
            trimmed=0,
            retransmission=1,
            source=0x0102,
            destination=0x0304,
            cookie=0x1122334455667788,
            operation=0xDEADBEEF,
            phase=Phase.RING_GATHER,
            dtype=0x80 | WireType.BFLOAT16,
            part=0x0506,
            length=1_048_576,
            offset=65_536,
            sequence=0xFFFFFFFE,
            timestamp=0x01020304,
            stride=1424,
            bound=3277,
            protected_packets=185,
            queue_depth=9,
        )
        flags = 5 << 5 | 1 << 4 | 0 << 3 | 1 << 2
        by_hand = struct.pack(
            "!BBHHHQIBBHIIIIHHHH",
            1 << 4 | 0,
            flags,
            0,
            0x0102,
            0x0304,
            0x1122334455667788,
            0xDEADBEEF,
            3,
            0x83,
            0x0506,
            1_048_576,
            65_536,
            0xFFFFFFFE,
            0x01020304,
            1424,
            3277,
            185,
            9,
        )
        assert len(by_hand) == 48
        by_hand = by_hand[:2] + struct.pack("!H", reference_check(by_hand)) + by_hand[4:]
        assert row.tobytes() == by_hand
        assert row.tobytes().hex() == (
            "10b41d3e 01020304 1122334455667788 deadbeef 03830506 00100000 00010000 fffffffe 01020304 05900ccd 00b90009"
        ).replace(" ", "")

    def test_feedback(self):
        row = FEEDBACK_BODY.encode(
            1, highest_sequence=7, received=6, marked=2, trimmed=1, timestamp_echo=99, delay=40, window=2**23, queue_depth=3
        )
        assert row.tobytes() == struct.pack("!7IHH", 7, 6, 2, 1, 99, 40, 2**23, 3, 0)

    def test_report(self):
        row = REPORT_BODY.encode(1, missing=3, needed=2, packets=737, busy=1, echo=123456)
        assert row.tobytes() == struct.pack("!IIHBBI", 3, 2, 737, 1, 0, 123456)

    def test_hello(self):
        row = HELLO_BODY.encode(1, nonce=2**63 + 1, datagram=1472)
        assert row.tobytes() == struct.pack("!QHHI", 2**63 + 1, 1472, 0, 0)

    def test_abort(self):
        row = ABORT_BODY.encode(1, kind=1, culprit=515, silence_ms=10_000)
        assert row.tobytes() == struct.pack("!BBHI", 1, 0, 515, 10_000)


class TestCheck:
    @given(headers())
    def test_agrees_with_the_rfc(self, rows):
        assert codec.check_ok(rows).all()
        for row in rows:
            assert int.from_bytes(row[2:4].tobytes(), "big") == reference_check(row.tobytes())

    @given(headers(rows=1))
    def test_one_header_from_integers_is_the_same(self, row):
        fields = HEADER.decode_one(row.tobytes())
        del fields["check"], fields["version"]
        assert codec.encode_header(**fields) == row.tobytes()

    @given(headers(rows=1))
    def test_any_flip_of_one_bit_that_no_switch_may_change_is_found(self, row):
        flipped = np.repeat(row, len(BITS["dlcp"]), axis=0)
        for k, (field, bit) in enumerate(BITS["dlcp"]):
            flipped[k] ^= HEADER.encode(1, **{field.name: 1 << bit})[0]
        mutable = np.array([field.mutable for field, _ in BITS["dlcp"]])
        np.testing.assert_array_equal(codec.check_ok(flipped), mutable)

    @given(headers(rows=1), st.data())
    def test_any_change_to_what_a_switch_may_change_is_not(self, row, data):
        fields = HEADER.decode_one(row.tobytes())
        for field in HEADER.fields:
            if field.mutable:
                fields[field.name] = data.draw(st.integers(0, 2**field.bits - 1))
        assert codec.check_ok(HEADER.encode(1, **fields)).all()

    def test_what_may_change_is_what_the_design_says(self):
        assert [f.name for f in HEADER.fields if f.mutable] == ["priority", "trimmed", "queue_depth"]

    @given(headers())
    def test_seal_is_idempotent_and_in_place(self, rows):
        before = rows.copy()
        assert codec.seal(rows) is rows
        np.testing.assert_array_equal(rows, before)

    def test_the_version_is_the_default(self):
        assert HEADER.decode_one(codec.encode_headers(1).tobytes())["version"] == VERSION

    def test_random_bytes_hardly_ever_pass(self):
        rows = np.random.default_rng(1).integers(0, 256, (200_000, HEADER_BYTES), np.uint8)
        passed = int(codec.check_ok(rows).sum())
        assert 0 < passed < 20  # 3 of 200,000 are expected by chance


class TestRows:
    @given(headers(), st.integers(0, 100))
    def test_gather_takes_the_headers_out_of_a_receive_buffer(self, rows, more):
        buffer = np.full((len(rows), HEADER_BYTES + more), 0x5A, np.uint8)
        buffer[:, :HEADER_BYTES] = rows
        out = codec.gather(buffer)
        assert out.flags.c_contiguous
        np.testing.assert_array_equal(out, rows)
        assert codec.check_ok(out).all()

    @given(headers())
    def test_records_view_the_same_bytes(self, rows):
        view = codec.records(rows)
        assert np.shares_memory(view, rows) or not len(rows)
        np.testing.assert_array_equal(HEADER.get(view, "cookie"), HEADER.decode(rows)["cookie"])

    def test_the_check_of_a_strided_view_is_that_of_its_copy(self):
        rows = codec.encode_headers(8, sequence=np.arange(8))
        np.testing.assert_array_equal(codec.header_check(rows[::2]), codec.header_check(rows[::2].copy()))

    def test_payload_is_aligned_for_every_element_type(self):
        assert all(HEADER_BYTES % size == 0 for size in ITEM_BYTES.values())
        assert set(ITEM_BYTES) == set(WireType)
        datagram = np.zeros(HEADER_BYTES + 64, np.uint8)
        for size in ITEM_BYTES.values():
            assert datagram[HEADER_BYTES:].view(f"u{size}").flags.aligned


class TestExpectedBytes:
    def test_each_type(self):
        def one(kind, body=b"", total=None, **fields):
            whole = codec.encode_headers(1, type=kind, **fields).tobytes() + body
            row = np.frombuffer(whole[:PREFIX_BYTES].ljust(PREFIX_BYTES, b"\0"), np.uint8)[None]
            return int(expected_bytes(row, np.array([len(whole) if total is None else total]))[0])

        message = {"length": 10_000, "stride": 1424}
        assert one(PacketType.DATA, offset=0, **message, total=9) == -1
        assert one(PacketType.DATA, offset=0, **message) == 48 + 1424
        assert one(PacketType.DATA, offset=7 * 1424, **message) == 48 + 32
        assert one(PacketType.DATA, offset=1424, trimmed=1, **message) == 48
        assert one(PacketType.DATA, offset=10_001, **message) == -1
        assert one(PacketType.DATA) == 48
        for kind in (PacketType.PROBE, PacketType.PING, PacketType.GOODBYE):
            assert one(kind, **message) == 48
        assert one(PacketType.FEEDBACK, bytes(32)) == 80
        assert one(PacketType.FEEDBACK, bytes(31)) == -1
        for kind in (PacketType.STATUS, PacketType.STOP):
            assert one(kind, REPORT_BODY.encode(1, packets=0).tobytes()) == 64
            assert one(kind, REPORT_BODY.encode(1, packets=8).tobytes()) == 65
            assert one(kind, REPORT_BODY.encode(1, packets=9).tobytes()) == 66
            assert one(kind, REPORT_BODY.encode(1, packets=65535).tobytes()) == 64 + 8192
        assert one(PacketType.HELLO, HELLO_BODY.encode(1, datagram=1472).tobytes()) == 1472
        assert one(PacketType.HELLO, HELLO_BODY.encode(1, datagram=64).tobytes()) == 64
        assert one(PacketType.HELLO, HELLO_BODY.encode(1, datagram=63).tobytes()) == -1
        assert one(PacketType.HELLO_ACK, HELLO_BODY.encode(1, datagram=64).tobytes()) == 64
        assert one(PacketType.ABORT, ABORT_BODY.encode(1).tobytes() + b"reason") == 62
        assert one(15) == -1

    def test_every_type_has_a_body_and_the_prefix_holds_it(self):
        assert set(BODIES) == set(PacketType)
        assert all(HEADER_BYTES + body.size <= PREFIX_BYTES for body in BODIES.values())
        assert {body.tail for body in BODIES.values()} == set(Tail)
