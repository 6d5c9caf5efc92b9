"""HELLO: does a peer answer, and to datagrams of full size?"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.transport.events import PeerReached
from dlcp.transport.virtual import Weather
from dlcp.wire.header import HEADER_BYTES, HELLO_BODY, PacketType
from tests.transport.rig import MS, SECOND, STRIDE, Rig, kind_of

FULL = STRIDE + HEADER_BYTES
SMALL = HEADER_BYTES + HELLO_BODY.size


def reached(rig, rank=0):
    return [(e.peer, e.full_size) for e in rig.events(PeerReached, rank)]


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 0.6]), st.sampled_from([0, 400_000]), st.booleans())
def test_both_sizes_are_reached_once_whatever_the_weather(seed, drop, jitter, duplicates):
    rig = Rig(world=3, seed=seed, weather=Weather(drop=drop, jitter_ns=jitter, duplicate=0.5 * duplicates))
    for peer in (1, 2):
        rig.endpoints[0].greet(peer, 0)
    assert rig.net.run(lambda: len(reached(rig)) == 4, limit_ns=30 * SECOND)
    rig.settle(SECOND)
    assert sorted(reached(rig)) == [(1, False), (1, True), (2, False), (2, True)]
    sent = rig.net.fate["sent"]
    rig.settle(SECOND)
    assert rig.net.fate["sent"] == sent, "who is answered stops asking"


@pytest.mark.parametrize("mtu", [SMALL, FULL - 1])
def test_a_link_with_a_smaller_mtu_lets_only_the_short_one_through(mtu):
    rig = Rig(weather=Weather(mtu=mtu))
    rig.endpoints[0].greet(1, 0)
    rig.settle(5 * SECOND)
    assert reached(rig) == [(1, False)]
    sent = rig.net.fate["sent"]
    assert 5 / 0.05 * 0.8 < sent < 5 / 0.05 * 2.2, "asked about every 50 ms"
    rig.endpoints[0].stop_greeting()
    rig.settle(5 * SECOND)
    assert rig.net.fate["sent"] == sent


def test_a_link_of_exactly_the_right_mtu():
    rig = Rig(weather=Weather(mtu=FULL))
    rig.endpoints[0].greet(1, 0)
    rig.settle(MS)
    assert sorted(reached(rig)) == [(1, False), (1, True)]


def test_a_hello_that_was_cut_short_on_the_way_proves_nothing():
    """A path that truncates carries the header, but not the size that it claims."""

    def meddle(flight):
        return [flight.datagram[: FULL - 8]]

    rig = Rig(meddle=meddle)
    rig.endpoints[0].greet(1, 0)
    rig.settle(SECOND)
    assert reached(rig) == [(1, False)]
    assert rig.endpoints[1].counters()["malformed"] >= 1


def test_answers_are_short_and_carry_their_own_size():
    """Only the way there is probed; and no HELLO draws more bytes than it brought."""
    seen = []

    def meddle(flight):
        seen.append(flight)
        return [flight.datagram]

    rig = Rig(meddle=meddle)
    rig.endpoints[0].greet(1, 0)
    rig.settle(MS)
    sizes = {}
    for flight in seen:
        body = HELLO_BODY.decode_one(flight.datagram[HEADER_BYTES:SMALL])
        assert body["datagram"] == len(flight.datagram)
        sizes.setdefault(kind_of(flight.datagram), []).append(len(flight.datagram))
    assert sorted(sizes[PacketType.HELLO]) == [SMALL, FULL]
    assert sizes[PacketType.HELLO_ACK] == [SMALL, SMALL]


def test_an_answer_to_a_hello_that_was_never_said_is_no_answer():
    rig = Rig(cut=lambda source, destination, now: True)
    rig.endpoints[0].greet(1, 0)
    build = rig.endpoints[1]._core.build
    rig.net.inject(0, build.hello_ack(0, 0, 99).tobytes())
    rig.net.inject(0, build.hello_ack(0, 0, FULL + 8).tobytes())
    rig.settle(SECOND)
    assert reached(rig) == []
    rig.endpoints[0].stop_greeting()
    rig.net.inject(0, build.hello_ack(0, 0, FULL).tobytes())
    rig.settle(SECOND)
    assert reached(rig) == []


def test_greeting_measures_the_round_trip():
    rig = Rig(weather=Weather(delay_ns=3 * MS))
    rig.endpoints[0].greet(1, 0)
    rig.settle(10 * MS)
    assert rig.endpoints[0].flow(1).rtt.minimum == 6 * MS
    assert rig.endpoints[1].flow(0).rtt.minimum is None
