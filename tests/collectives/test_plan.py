"""How arrays are cut, and what identifies a message."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcp.collectives.collective import concatenate_lost, put_ranges, take_ranges
from dlcp.collectives.elements import dtype_field, is_mean, item_bytes, kind_of, wire_type
from dlcp.collectives.plan import MAX_PARTS, PIECE_PACKETS, PIECES, Plan, packet_ranges
from dlcp.wire.header import REPORT_BODY, WireType

KINDS = st.sampled_from(list(WireType))
STRIDES = st.integers(32, 1125).map(lambda n: 8 * n)


@given(st.integers(0, 200_000), KINDS, STRIDES, st.integers(256, 1 << 20), st.integers(1, 9))
def test_parts_tile_the_array(elements, kind, stride, message_bytes, owners):
    message_bytes = max(message_bytes, stride)
    plan = Plan(elements, kind, stride, message_bytes, owners)
    packet = element = count = 0
    for owner in range(owners):
        parts = plan.shard(owner)
        assert [part.index for part in parts] == list(range(len(parts)))
        first = packet
        for part in parts:
            assert part.packets.start == packet and part.elements.start == element
            packets = part.packets.stop - part.packets.start
            length = part.bytes(item_bytes(kind))
            assert 0 < packets <= 65535 and length <= message_bytes
            assert -(-length // stride) == packets or (elements == 0 and packets == 1)
            # One report, in one datagram, can list all its packets.
            assert REPORT_BODY.size + -(-packets // 8) <= stride
            packet, element = part.packets.stop, part.elements.stop
            count += 1
        assert packet - first in (plan.packets // owners, plan.packets // owners + 1)
    assert (packet, element, count) == (plan.packets, elements, plan.parts)
    assert plan.packets == max(1, -(-elements // (stride // item_bytes(kind))))


@given(st.integers(0, 400_000), KINDS, STRIDES, st.integers(256, 1 << 20), st.integers(1, 9))
def test_shards_are_cut_into_a_few_parts_that_are_worth_it(elements, kind, stride, message_bytes, owners):
    """Results of the first part travel while contributions to the last still do; but small parts cost more than they bring."""
    plan = Plan(elements, kind, stride, max(message_bytes, stride), owners)
    most = max(1, min(message_bytes // stride, 8 * (stride - REPORT_BODY.size), 65535))  # of one message
    for owner in range(owners):
        sizes = [part.packets.stop - part.packets.start for part in plan.shard(owner)]
        assert len(sizes) <= max(PIECES, -(-sum(sizes) // most))
        assert all(size >= min(PIECE_PACKETS, most) for size in sizes[:-1])
        assert len(sizes) >= min(PIECES, -(-sum(sizes) // PIECE_PACKETS))


@pytest.mark.parametrize(
    ("packets", "expected"),
    [(1, [1]), (64, [64]), (65, [64, 1]), (256, [64] * 4), (257, [65, 65, 65, 62]), (4000, [1000] * 4)],
)
def test_parts_of_one_shard(packets, expected):
    plan = Plan(packets * 64, WireType.FLOAT32, 256, 1 << 20, 1)
    assert [part.packets.stop - part.packets.start for part in plan.shard(0)] == expected


@given(st.integers(0, 400_000), STRIDES, st.integers(256, 1 << 20), st.integers(2, 9))
def test_a_ring_sends_messages_as_large_as_may_be(elements, stride, message_bytes, owners):
    """A part waits for the one before it at every hop; cut further it would overlap with nothing."""
    plan = Plan(elements, WireType.FLOAT32, stride, max(message_bytes, stride), owners, through=True)
    most = max(1, min(message_bytes // stride, 8 * (stride - REPORT_BODY.size), 65535))
    for owner in range(owners):
        sizes = [part.packets.stop - part.packets.start for part in plan.shard(owner)]
        assert sizes[:-1] == [most] * (len(sizes) - 1) and all(size <= most for size in sizes)


def test_more_parts_than_the_header_can_number():
    """A ring numbers parts through all shards."""
    per_packet = 64
    most = MAX_PARTS * per_packet
    assert Plan(2 * most, WireType.FLOAT32, 256, 256, 2).parts == 2 * MAX_PARTS
    with pytest.raises(ValueError, match=r"need more than 65536 messages; raise wire\.message_bytes"):
        Plan(2 * most + 1, WireType.FLOAT32, 256, 256, 2)
    assert Plan(most, WireType.FLOAT32, 256, 256, 2, through=True).parts == MAX_PARTS
    with pytest.raises(ValueError, match="need more than 65536 messages"):
        Plan(most + 1, WireType.FLOAT32, 256, 256, 2, through=True)


def test_a_message_is_never_more_packets_than_a_header_can_count():
    plan = Plan(PIECES << 30, WireType.UINT8, 16384, 1 << 30, 1)
    assert max(part.packets.stop - part.packets.start for part in plan.shard(0)) == 65535


@given(st.integers(0, 5000), st.integers(1, 64), st.sets(st.integers(0, 200)))
def test_ranges_of_packets(elements, per_packet, packets):
    packets = np.array(sorted(p for p in packets if p * per_packet < elements), np.int64)
    ranges = packet_ranges(packets, per_packet, elements)
    covered = np.zeros(elements, bool)
    for start, stop in ranges.tolist():
        assert not covered[start:stop].any()
        covered[start:stop] = True
    np.testing.assert_array_equal(covered, np.isin(np.arange(elements) // per_packet, packets))
    assert (ranges[1:, 0] > ranges[:-1, 1]).all(), "neighbours are merged"


@given(st.lists(st.lists(st.integers(0, 30), unique=True, max_size=8), max_size=5), st.randoms(use_true_random=False))
def test_losses_of_several_messages_become_one_list(pieces, random):
    """Whatever order their acknowledgements came in."""
    flat = np.arange(5 * 31 * 4, dtype=np.float64) * 1.5
    found, expected = [], np.zeros(flat.size, bool)
    for number, packets in enumerate(pieces):
        ranges = packet_ranges(np.array(sorted(packets), np.int64), 4, 31 * 4) + number * 31 * 4
        for start, stop in ranges.tolist():
            expected[start:stop] = True
        found.append((ranges, take_ranges(flat, ranges)))
    random.shuffle(found)
    lost, residual = concatenate_lost(found, flat.dtype)
    assert (np.diff(lost.reshape(-1)) >= 0).all()
    back = np.zeros_like(flat)
    put_ranges(back, lost, residual)
    np.testing.assert_array_equal(back, np.where(expected, flat, 0))
    assert residual.dtype == flat.dtype and residual.size == np.count_nonzero(expected)


@given(KINDS, st.booleans(), st.integers(1, MAX_PARTS))
def test_the_dtype_byte(kind, mean, parts):
    field = dtype_field(kind, mean=mean, parts=parts)
    assert 0 <= field < 256
    assert kind_of(field) is kind and is_mean(field) == mean


@pytest.mark.parametrize("owners", [1, 2, 3, 4, 6, 8, 16, 64])
def test_arrays_of_one_part_more_for_each_owner_look_different(owners):
    """The mistake that lengths alone do not show.  (Three bits cannot tell all numbers apart; claims tell the rest.)"""
    for parts in range(1, 4):
        a, b = dtype_field(WireType.FLOAT32, parts=owners * parts), dtype_field(WireType.FLOAT32, parts=owners * (parts + 1))
        assert a != b


@pytest.mark.parametrize(
    ("dtype", "policy", "expected"),
    [
        ("float32", "float32", WireType.FLOAT32),
        ("float64", "float32", WireType.FLOAT64),
        ("float64", "bfloat16", WireType.BFLOAT16),
        ("float32", "float16", WireType.FLOAT16),
    ],
)
def test_wire_types(dtype, policy, expected):
    assert wire_type(np.dtype(dtype), policy) is expected


@pytest.mark.parametrize("dtype", ["float16", "int32", "complex64", ">f4", "longdouble", "U3", "bool"])
def test_types_that_cannot_be_reduced(dtype):
    with pytest.raises(TypeError, match="cannot be reduced; float32 and float64 can"):
        wire_type(np.dtype(dtype), "float32")
