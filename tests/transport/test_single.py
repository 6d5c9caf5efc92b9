"""Datagrams taken one by one, and batches taken as arrays: two ways to the same state."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.transport import endpoint as endpoint_module
from dlcp.transport import single
from dlcp.transport.packets import Frames
from dlcp.transport.screening import Identity, screen
from dlcp.transport.virtual import Weather, as_frames
from dlcp.wire.codec import check_ok, encode_header, encode_headers, header_ok
from dlcp.wire.header import HEADER_BYTES, PacketType
from tests.transport.rig import COOKIE, LOSSY, SECOND, Rig, digest

ME = Identity(rank=1, world=3, cookie=COOKIE)


def play(few, weather, seed, lengths, bound):
    """Plays the same traffic with batches of up to ``few`` taken one by one; returns everything there is to see."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(endpoint_module, "FEW", few)
        rig = Rig(world=3, seed=seed, weather=weather)
        for (source, peer), length in zip(itertools.permutations(range(3), 2), itertools.cycle(lengths)):
            rig.send(source, peer, length, bound=bound)
        rig.net.run(rig.finished, limit_ns=20 * SECOND)
        rig.verify(complete=False)
        return (
            rig.now,
            rig.net.steps,
            rig.net.fate,
            [endpoint.counters() for endpoint in rig.endpoints.values()],
            [digest(endpoint) for endpoint in rig.endpoints.values()],
        )


@settings(max_examples=40, deadline=None)
@given(
    weather=LOSSY,
    seed=st.integers(0, 1000),
    lengths=st.lists(st.integers(0, 6000), min_size=1, max_size=6),
    bound=st.sampled_from([0.0, 0.1]),
)
def test_one_datagram_makes_the_same_of_an_endpoint_either_way(weather, seed, lengths, bound):
    """Batches of one: every verdict, timer, counter and byte of state is the same, whatever the weather."""
    assert play(0, weather, seed, lengths, bound) == play(1, weather, seed, lengths, bound)


@pytest.mark.parametrize("bound", [0.0, 0.1])
def test_small_batches_without_duplicates_make_the_same_of_an_endpoint(bound):
    weather = Weather(drop=0.05, delay_ns=100_000)
    assert play(0, weather, 3, [3000, 700, 5000], bound)[3] == play(single.FEW, weather, 3, [3000, 700, 5000], bound)[3]


SPOILT = st.sampled_from(["", "short", "version", "type", "cookie", "check", "source", "self", "destination"])


@settings(max_examples=200)
@given(st.lists(SPOILT, min_size=1, max_size=single.FEW))
def test_the_gate_gives_the_same_verdicts(faults):
    rows = []
    for number, fault in enumerate(faults):
        values = {"type": PacketType.DATA, "source": 2, "destination": 1, "cookie": COOKIE, "length": 64, "stride": 64}
        values |= {
            "version": {"version": 3},
            "type": {"type": 13},
            "cookie": {"cookie": COOKIE ^ 1},
            "source": {"source": 3},
            "self": {"source": 1},
            "destination": {"destination": 2},
        }.get(fault, {})
        raw = bytearray(encode_header(operation=number, **values) + bytes(64))
        if fault == "check":
            raw[2] ^= 0x40
        rows.append((0, bytes(raw[:30] if fault == "short" else raw)))
    frames = [as_frames(rows)]
    by_one, by_array = Counter(), Counter()
    passed = single.sort_out(frames, ME, by_one)
    screened = screen(frames, ME, by_array)
    assert by_one == by_array
    numbers = [] if screened is None else screened.records["operation"].tolist()
    assert [packet.message >> 32 for packet in passed] == numbers


@pytest.mark.parametrize(
    "change",
    [{"trimmed": 1}, {"stride": 0}, {"offset": 8}, {"offset": 64}, {"length": 63}, {"length": 0}],
    ids=lambda change: next(iter(change)),
)
def test_trimmed_and_malformed_data_goes_the_other_way_uncounted(change):
    values = {"type": PacketType.DATA, "source": 2, "destination": 1, "cookie": COOKIE, "length": 64, "stride": 64} | change
    counters = Counter()
    assert single.sort_out([as_frames([(0, encode_header(**values) + bytes(64))])], ME, counters) is None
    assert not counters


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES), st.booleans())
def test_the_check_of_one_header_is_that_of_many(raw, sealed):
    if sealed:
        raw = encode_headers(1, cookie=int.from_bytes(raw[:8], "big"), sequence=int.from_bytes(raw[8:12], "big")).tobytes()
    assert header_ok(raw) == bool(check_ok(np.frombuffer(raw, np.uint8).reshape(1, -1).copy())[0])


def test_frames_narrower_than_a_header_are_truncated():
    counters = Counter()
    frames = Frames(np.zeros((2, 20), np.uint8), np.array([20, 3]), np.zeros(2, np.uint8))
    assert single.sort_out([frames], ME, counters) == [] and counters == {"truncated": 2}
