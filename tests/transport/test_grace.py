"""The tail that never comes: a bounded message is complete when enough is in and its sender has fallen silent."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.transport.events import MessageReceived, MessageSent
from dlcp.transport.incoming import IncomingMessage
from dlcp.wire.header import PacketType
from tests.transport.rig import MS, SECOND, STRIDE, Rig, column, kind_of, policy_of


def cut_after(packets, also=()):
    """The way from 0 to 1 carries so many data packets, and no probe or anything else after them."""
    seen = []

    def meddle(flight):
        if flight.source == 0 and kind_of(flight.datagram) == PacketType.DATA and len(seen) < packets:
            seen.append(flight.at)
            return [flight.datagram]
        return [flight.datagram] if flight.source == 1 or kind_of(flight.datagram) in also else []

    return meddle


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(25, 200), st.sampled_from([0.05, 0.1, 0.4]), st.sampled_from([5.0, 1.0, 50.0]))
def test_a_tail_that_is_cut_off_is_given_up_after_the_grace_period(seed, packets, bound, floor_ms):
    """Neither the tail nor any probe arrives.  Protected packets leave first, so the rule can be met without them."""
    arrive = packets - packets * int(bound * 65536) // 65536
    rig = Rig(seed=seed, meddle=cut_after(arrive), policy=policy_of(grace={"floor_ms": floor_ms}), greet=True)
    key = rig.send(0, 1, packets * STRIDE, bound=bound, priority=3)
    start = rig.now
    rig.net.run(lambda: key in rig.received(), limit_ns=SECOND)
    there = next(t for t, r, e in rig.net.log if isinstance(e, MessageReceived))
    last = there - start
    assert rig.received()[key].lost.size == packets - arrive
    # A few milliseconds of sending, then the period: never less than the floor, not much more either.
    assert floor_ms * MS <= last <= (floor_ms + 30) * MS
    # The way back works, so the sender learns of it.
    rig.run(limit_s=1)
    rig.verify()


def test_one_packet_less_and_nothing_is_given_up():
    """Unsatisfied, and silent: there is nothing to do but wait for the sender to ask."""
    packets, bound = 100, 0.1
    rig = Rig(meddle=cut_after(packets - packets * int(bound * 65536) // 65536 - 1), greet=True)
    key = rig.send(0, 1, packets * STRIDE, bound=bound, priority=3)
    rig.settle(SECOND)
    assert key not in rig.received()
    assert rig.endpoints[1].flow(0).incoming[key[2]].needed == 1


def test_a_protected_packet_is_never_given_up():
    """Half of the message may be missing, but not the one packet that does not get through."""
    rig = Rig(greet=True)
    lost = []

    def meddle(flight):
        protected = flight.datagram[1] & 0x10
        if flight.source == 0 and kind_of(flight.datagram) == PacketType.DATA and protected and flight.at < start + 300 * MS:
            lost.append(flight.at)
            return []
        return [flight.datagram]

    start = rig.now
    rig.net.meddle = meddle
    key = rig.send(0, 1, 60 * STRIDE, bound=0.5, share=0.05)
    rig.run()
    assert len(lost) > 10 and rig.when_done(key)[0] > start + 300 * MS
    rig.verify()
    assert rig.received()[key].lost.size == 0 or not rig.sent[key].tags[rig.received()[key].lost].max() & 1


def test_the_tail_is_the_least_valuable_part():
    """What is cut off is droppable and of the lowest class that there is."""
    packets, bound = 100, 0.1
    arrive = packets - packets * int(bound * 65536) // 65536
    rig = Rig(meddle=cut_after(arrive), greet=True)
    key = rig.send(0, 1, packets * STRIDE, bound=bound, share=0.5)
    rig.net.run(lambda: key in rig.received(), limit_ns=SECOND)
    tags, lost = rig.sent[key].tags, rig.received().get(key)
    expected = np.argsort(-tags.astype(int), kind="stable")[arrive:]
    if (tags[expected] & 1).any():
        assert lost is None, "the tail holds protected packets"
    else:
        assert set(lost.lost.tolist()) == set(expected.tolist())


@pytest.mark.parametrize("probe_lost", [False, True])
def test_a_satisfied_message_does_not_wait_for_the_grace_period_once_its_sender_has_probed(probe_lost):
    """The second half of the rule: all was sent.  A lost probe is made up for by the next."""
    packets, probes = 100, []

    def meddle(flight):
        if flight.source == 1:
            return [flight.datagram]
        if kind_of(flight.datagram) == PacketType.PROBE:
            probes.append(flight.at)
            return [] if probe_lost and len(probes) == 1 else [flight.datagram]
        last = kind_of(flight.datagram) == PacketType.DATA and column(flight.datagram, "offset") == 99 * STRIDE
        return [] if last else [flight.datagram]

    rig = Rig(meddle=meddle, policy=policy_of(grace={"floor_ms": 500.0}), greet=True)
    key = rig.send(0, 1, packets * STRIDE, bound=0.1, priority=3, share=0.0)
    rig.run()
    assert rig.received()[key].lost.tolist() == [99]
    assert len(rig.events(MessageSent)) == 1
    assert rig.when_done(key)[0] - probes[0] < (10 if probe_lost else 3) * MS


@settings(max_examples=60)
@given(
    st.integers(0, 100),
    st.integers(0, 10**9),
    st.floats(0, 1000),
    st.integers(0, 10**9),
    st.integers(1, 10**7),
    st.integers(0, 10**9),
)
def test_deadlines(arrived, at, factor, floor, window, last_data):
    message = IncomingMessage(0, 1, 100 * STRIDE, STRIDE, 65536 // 10 + 1, 0, np.zeros(100 * STRIDE, np.uint8), 0)
    for index in range(arrived):
        message.have[index] = True
        message.account(1, 0, at)
    deadline = message.deadline(factor, floor, window, last_data)
    if arrived < 90:
        assert deadline is None
    else:
        assert deadline >= max(at, last_data) + floor
        assert deadline <= max(at, last_data) + max(floor, factor * at + 1)
    message.note_probe(5, at + 10)
    message.note_probe(6, at + 20)
    assert message.deadline(factor, floor, window, last_data) == at + 10 + window
    assert message.probe_echo == 6
