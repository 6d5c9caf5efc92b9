"""Switches that cut the payload off: the receiver learns of the loss at once, and asks for what it cannot do without."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.transport.incoming import IncomingMessage
from dlcp.transport.virtual import Weather
from dlcp.wire.codec import seal
from dlcp.wire.header import CONTROL_CLASS, HEADER, HEADER_BYTES, REPORT_BODY, PacketType
from tests.transport.rig import LOSSY, MS, STRIDE, Rig, column, kind_of

PRIORITY, TRIMMED = HEADER.slots["priority"], HEADER.slots["trimmed"]


def trim(datagram):
    """What a trimming switch makes of a data packet: its header, in class 7, with the trimmed bit set."""
    raw = bytearray(datagram[:HEADER_BYTES])
    raw[PRIORITY.byte] |= CONTROL_CLASS << PRIORITY.shift | 1 << TRIMMED.shift
    return bytes(raw)


def trimmer(random, share, log=None):
    def meddle(flight):
        is_first = kind_of(flight.datagram) == PacketType.DATA and not column(flight.datagram, "retransmission")
        if is_first and random.random() < share:
            return [trim(flight.datagram)]
        if log is not None:
            log.append(flight)
        return [flight.datagram]

    return meddle


@settings(max_examples=30)
@given(st.integers(0, 2**32), LOSSY, st.sampled_from([0.02, 0.3, 1.0]), st.sampled_from([0.0, 0.05, 0.3]))
def test_trimmed_messages_arrive_in_any_weather(seed, weather, share, bound):
    rig = Rig(seed=seed, weather=weather, meddle=trimmer(np.random.default_rng(seed), share))
    for peer in (0, 1):
        rig.send(peer, 1 - peer, 50 * STRIDE + 9, bound=bound)
    rig.run()
    rig.verify()
    rig.no_one_is_silent()


def test_a_trimmed_packet_is_asked_for_at_once_and_comes_again_in_class_seven():
    """One round trip after the header came, without a probe."""
    log = []
    once = []

    def meddle(flight):
        log.append(flight)
        if kind_of(flight.datagram) == PacketType.DATA and not once:
            once.append(flight)
            return [trim(flight.datagram)]
        return [flight.datagram]

    rig = Rig(weather=Weather(delay_ns=MS), meddle=meddle, greet=True)
    key = rig.send(0, 1, 100 * STRIDE, share=1.0, priority=2)
    start = rig.now
    rig.run()
    rig.verify()
    asked = [f for f in log if f.source == 1 and kind_of(f.datagram) == PacketType.STATUS]
    assert asked[0].at == start + MS
    body = REPORT_BODY.decode_one(asked[0].datagram[HEADER_BYTES : HEADER_BYTES + REPORT_BODY.size])
    assert (body["missing"], body["needed"], body["echo"]) == (1, 1, 0)
    again = [f for f in log if kind_of(f.datagram) == PacketType.DATA and column(f.datagram, "retransmission")]
    assert [f.at for f in again] == [start + 2 * MS]
    assert column(again[0].datagram, "priority") == CONTROL_CLASS
    first = [f for f in log if kind_of(f.datagram) == PacketType.DATA and not column(f.datagram, "retransmission")]
    assert len(first) == 100, "the rest of the first transmission goes on"
    assert rig.endpoints[1].counters()["trimmed"] == 1
    assert rig.endpoints[0].counters()["trim_requests"] == 1
    assert rig.received()[key].lost.size == 0


def test_what_the_bound_covers_is_not_asked_for():
    rig = Rig(meddle=trimmer(np.random.default_rng(0), 1.0), greet=True)
    key = rig.send(0, 1, 100 * STRIDE, bound=0.25, share=0.5, priority=2)
    rig.run()
    rig.verify()
    lost = rig.received()[key].lost
    assert lost.size == 25
    assert rig.endpoints[0].counters()["trim_requests"] == 75
    assert rig.endpoints[0].counters()["retransmitted"] == 75


def test_trimming_counts_as_a_congestion_mark():
    """A switch that trims is full."""
    rig = Rig(meddle=trimmer(np.random.default_rng(0), 0.5), greet=True)
    window = rig.endpoints[0].flow(1).control.window
    rig.send(0, 1, 400 * STRIDE)
    rig.run()
    trimmed, untouched = rig.endpoints[0].flow(1).control, Rig(greet=True)
    untouched.send(0, 1, 400 * STRIDE)
    untouched.run()
    assert trimmed.window < untouched.endpoints[0].flow(1).control.window
    assert window == 16


@settings(max_examples=60)
@given(st.data())
def test_each_packet_is_asked_for_once_and_only_beyond_the_bound(data):
    count = data.draw(st.integers(1, 60))
    allowed = data.draw(st.integers(0, count // 2))
    protected = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    bound = -(-allowed * 65536 // count)
    message = IncomingMessage(0, 1, count * 8, 8, bound, int(protected.sum()), np.zeros(count * 8, np.uint8), 0)
    assert message.allowed == allowed
    asked: set[int] = set()
    trimmed: set[int] = set()
    for _ in range(data.draw(st.integers(1, 6))):
        batch = np.array(sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1))), np.int64)
        wanted = message.note_trimmed(batch, protected[batch]).tolist()
        assert not asked & set(wanted) and set(wanted) <= set(batch.tolist())
        asked |= set(wanted)
        trimmed |= set(batch.tolist())
        assert {i for i in trimmed if protected[i]} <= asked
    assert len(trimmed - asked) <= allowed
    assert len(trimmed - asked) == min(allowed, len({i for i in trimmed if not protected[i]}))


def test_a_trimmed_packet_outside_the_message_is_malformed():
    def meddle(flight):
        yield flight.datagram
        if kind_of(flight.datagram) == PacketType.DATA:
            raw = np.frombuffer(trim(flight.datagram), np.uint8)[None].copy()
            raw[:, HEADER.slots["offset"].byte : HEADER.slots["offset"].byte + 4] = 0xFF
            yield seal(raw)[0].tobytes()

    rig = Rig(meddle=meddle, greet=True)
    rig.send(0, 1, 20 * STRIDE)
    rig.run()
    rig.verify()
    assert rig.endpoints[1].counters()["malformed"] >= 1
    assert rig.endpoints[1].counters().get("trimmed", 0) == 0


def test_a_peer_that_asks_for_everything_again_and_again_is_not_given_everything():
    rig = Rig(cut=lambda source, destination, now: source == 1)
    key = rig.send(0, 1, 100 * STRIDE)
    sender = rig.endpoints[0]
    packet = rig.endpoints[1]._core.build.report(
        PacketType.STATUS, 0, key[2], 0, np.packbits(np.ones(100, bool)), packets=100, missing=100, needed=100, echo=0
    )
    for _ in range(1000):
        rig.net.inject(0, packet.tobytes())
    rig.settle(1)
    assert sender.flow(1).outgoing[key[2]].remaining <= 300
    rig.net.cut = lambda source, destination, now: False
    rig.run()
    rig.verify()
