"""Counters that wrap around: sequence numbers, counts, timestamps, operation numbers (RFC 1982)."""

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dlcp.transport.events import MessageReceived, message_id, operation_of
from dlcp.transport.intake_layout import P_HIGHEST
from dlcp.transport.serial import MASK, ahead
from dlcp.transport.virtual import Weather
from dlcp.wire.header import PacketType
from tests.transport.rig import LOSSY, STRIDE, Rig, column, kind_of

NEAR = st.one_of(st.integers(0, 400), st.integers(2**32 - 400, 2**32 - 1), st.integers(2**31 - 300, 2**31 + 300))


@given(st.integers(0, MASK), st.integers(-(2**31), 2**31 - 1))
def test_distance(start, step):
    end = (start + step) & MASK
    assert ahead(end, start) == step
    if step != -(2**31):
        assert ahead(start, end) == -step


def shift(rig, source, peer, by):
    """As if so many numbered packets had gone from ``source`` to ``peer`` before."""
    out, there = rig.endpoints[source].flow(peer), rig.endpoints[peer].flow(source)
    out.next_sequence = (out.next_sequence + by) & MASK
    out.acknowledged = (out.acknowledged + by) & MASK
    there.block[P_HIGHEST] = (there.highest + by) & MASK
    # The counts wrap on their own, at another time.
    there.received = (there.received + 3 * by) & MASK
    out._reported_received = (out._reported_received + 3 * by) & MASK
    there.marked = (there.marked - by) & MASK
    out._reported_marked = (out._reported_marked - by) & MASK


@settings(max_examples=20)
@given(st.integers(0, 2**32), LOSSY, NEAR, NEAR)
def test_everything_works_across_the_wrap(seed, weather, first, second):
    rig = Rig(seed=seed, weather=weather)
    shift(rig, 0, 1, first)
    shift(rig, 1, 0, second)
    for _ in range(2):
        for peer in (0, 1):
            rig.send(peer, 1 - peer, 60 * STRIDE + 1, bound=0.05, operation=MASK)
            rig.send(peer, 1 - peer, 30 * STRIDE, operation=0)
    rig.run()
    rig.verify()
    rig.no_one_is_silent()


@settings(max_examples=15)
@given(NEAR, st.sampled_from([Weather(), Weather(mark=0.3)]))
def test_the_wrap_changes_nothing(first, weather):
    """In a network without loss the story is the same wherever the numbers start."""

    probes = []

    def meddle(flight):
        if kind_of(flight.datagram) == PacketType.PROBE:
            probes.append(column(flight.datagram, "sequence"))
        return [flight.datagram]

    def story(by):
        rig = Rig(seed=1, weather=weather, meddle=meddle, greet=True)
        shift(rig, 0, 1, by)
        for _ in range(3):
            rig.send(0, 1, 200 * STRIDE, bound=0.05)
        rig.run()
        rig.verify()
        counters = [e.counters() for e in rig.endpoints.values()]
        return [(t, r, type(e)) for t, r, e in rig.net.log], counters, rig.endpoints[0].flow(1).control.window

    plain = story(0)
    # Zero stands for no probe, so that one is skipped where a probe would have it, which counts as a lost packet.
    assume(-first & MASK not in probes)
    assert story(first) == plain


def test_no_probe_is_number_zero():
    """In a report zero means that no probe is answered."""
    for offset in range(1, 20):
        probes = []

        def meddle(flight, probes=probes):
            if kind_of(flight.datagram) == PacketType.PROBE:
                probes.append(column(flight.datagram, "sequence"))
            lost = kind_of(flight.datagram) == PacketType.DATA and not column(flight.datagram, "retransmission")
            return [] if lost and flight.source == 0 and column(flight.datagram, "offset") == 0 else [flight.datagram]

        rig = Rig(meddle=meddle)
        shift(rig, 0, 1, -offset & MASK)
        rig.send(0, 1, 9 * STRIDE)
        rig.send(0, 1, 5 * STRIDE)
        rig.run()
        rig.verify()
        assert probes and 0 not in probes


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(-3, 3))
def test_timestamps_wrap(seed, milliseconds):
    """The header's clock wraps every 71 minutes; round trips are measured across it."""
    rig = Rig(seed=seed, weather=Weather(delay_ns=2_000_000))
    wrap = (2**32) * 1000
    rig.net.now = wrap + milliseconds * 1_000_000 - 3_000_000
    for endpoint in rig.endpoints.values():
        endpoint.handle_timer(rig.now)
    rig.send(0, 1, 300 * STRIDE)
    rig.send(1, 0, 300 * STRIDE)
    rig.run()
    rig.verify()
    for peer in (0, 1):
        rtt = rig.endpoints[peer].flow(1 - peer).rtt
        assert 4_000_000 <= rtt.minimum <= rtt.smoothed <= 5_000_000


def test_operations_wrap():
    rig = Rig()
    receiver = rig.endpoints[1]._receiver.admission
    rig.endpoints[1].retire(MASK - 1)
    assert receiver.over(1, message_id(MASK - 1, 0, 1, 1)) and receiver.over(1, message_id(MASK - 5, 0, 1, 1))
    assert not receiver.over(1, message_id(MASK, 0, 1, 1)) and not receiver.over(1, message_id(0, 0, 1, 1))
    rig.endpoints[1].retire(1)
    assert receiver.over(1, message_id(0, 0, 1, 1)) and receiver.over(1, message_id(MASK, 0, 1, 1))
    assert not receiver.over(1, message_id(2, 0, 1, 1))
    rig.send(0, 1, 1000, operation=2)
    rig.run()
    assert operation_of(rig.events(MessageReceived)[0].message) == 2
