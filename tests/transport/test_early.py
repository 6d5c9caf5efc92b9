"""Messages that come before anybody here has asked for them: kept, bounded, claimed; and lengths on which two ranks disagree."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.transport.admission import EARLY_OVERHEAD_BYTES
from dlcp.transport.events import MessageReceived, MessageRefused, MessageUnknown
from dlcp.transport.virtual import Weather
from tests.transport.rig import LOSSY, MS, SECOND, STRIDE, Rig, policy_of

SMALL = 64 * 1024
"""The least that a policy may grant to early messages."""


def books(rig, rank=1):
    return rig.endpoints[rank]._receiver.admission


@settings(max_examples=60)
@given(
    st.integers(0, 2**32), LOSSY, st.sampled_from([0, 30_000, 60_000, 200_000, 3 * MS, 300 * MS]), st.booleans(), st.booleans()
)
def test_asking_before_during_or_after_arrival_makes_no_difference(seed, weather, when, own_buffer, bounded):
    rig = Rig(seed=seed, weather=weather)
    length = 60 * STRIDE + 3
    key = rig.send(0, 1, length, bound=0.05 if bounded else 0.0, expect=False)
    rig.settle(when)
    rig.net.now = max(rig.net.now, when)
    already = bool(rig.received())
    buffer = np.full(length, 7, np.uint8) if own_buffer else None
    rig.expect(key, buffer=buffer)
    rig.run()
    rig.verify()
    data = rig.received()[key].data
    if own_buffer and not already:
        assert np.shares_memory(data, buffer), "packets go where they were asked to go"
    elif own_buffer:
        assert (buffer == 7).all(), "what was complete before stays in its own buffer"
    assert books(rig).early_bytes == 0
    assert rig.endpoints[1].expected_from(0) is None


@settings(max_examples=6)
@given(st.integers(0, 2**32), st.sampled_from([Weather(), Weather(drop=0.1, duplicate=0.1, jitter_ns=200_000)]))
def test_memory_for_early_messages_is_bounded_and_every_message_arrives_in_the_end(seed, weather):
    """Far more than there is room for; the layer above asks for one message after the other."""
    rig = Rig(seed=seed, weather=weather, policy=policy_of(memory={"early_bytes": SMALL}))
    keys = [rig.send(0, 1, 20_000, expect=False, operation=1 + i) for i in range(10)]
    most = 0

    def watch(done):
        def check():
            nonlocal most
            most = max(most, books(rig).early_bytes)
            kept = sum(m.buffer.nbytes for m in rig.endpoints[1].flow(0).incoming.values() if not m.posted)
            kept += sum(rig.endpoints[1].flow(0).unclaimed.values())
            assert kept <= books(rig).early_bytes <= SMALL
            return done()

        return check

    rig.net.run(watch(lambda: False), limit_ns=50 * MS)
    assert len(rig.received()) == 3 == SMALL // (20_000 + EARLY_OVERHEAD_BYTES)
    assert rig.endpoints[0].counters()["busy"] > 0
    for number, key in enumerate(keys):
        rig.expect(key)
        limit = 3 * SECOND
        assert rig.net.run(watch(lambda key=key: key in rig.received()), limit_ns=limit), f"message {number}"
    rig.run()
    rig.verify()
    assert books(rig).early_bytes == 0
    assert most > SMALL // 2


def test_a_refused_message_is_sent_as_soon_as_it_is_asked_for():
    """Without being told, its sender would find out by its next probe, up to probe_max_ms later."""
    rig = Rig(policy=policy_of(memory={"early_bytes": SMALL}))
    filler = [rig.send(0, 1, 20_000, expect=False) for _ in range(3)]
    late = rig.send(0, 1, 20_000, expect=False)
    rig.settle(SECOND)
    assert late not in rig.received()
    asked = rig.now
    rig.expect(late)
    rig.run()
    assert rig.when_done(late)[1] - asked < 5 * MS
    for key in filler:
        rig.expect(key)
    assert books(rig).early_bytes == 0
    assert not rig.endpoints[1].flow(0).refused


def test_a_receiver_without_memory_is_not_pestered():
    """It said that it is busy, and will say when it is not: its senders ask a few times a second."""
    rig = Rig(policy=policy_of(memory={"early_bytes": SMALL}), greet=True)
    for _ in range(13):
        rig.send(0, 1, 20_000, expect=False)
    rig.settle(SECOND)
    before = rig.endpoints[0].counters()["probes"]
    rig.settle(10 * SECOND)
    assert 10 * 10 * 4 <= rig.endpoints[0].counters()["probes"] - before <= 10 * 10 * 5 * 2 * 1.2


def test_messages_without_bytes_are_not_free():
    """A peer that is far ahead, or mad, may open as many empty messages as fit, and no more."""
    rig = Rig(policy=policy_of(memory={"early_bytes": SMALL}))
    keys = [rig.send(0, 1, 0, expect=False) for _ in range(200)]
    rig.settle(100 * MS)
    assert len(rig.received()) == SMALL // EARLY_OVERHEAD_BYTES
    for key in keys:
        rig.expect(key)
    rig.run()
    rig.verify()


def test_retiring_gives_memory_back_that_nobody_will_ask_for():
    rig = Rig()
    rig.send(0, 1, 20_000, expect=False, operation=4)
    other = rig.send(0, 1, 20_000, expect=False, operation=5)
    rig.run()
    rig.endpoints[1].retire(4)
    assert books(rig).early_bytes == 20_000 + EARLY_OVERHEAD_BYTES
    rig.expect(other)
    assert books(rig).early_bytes == 0


def test_a_message_bigger_than_all_early_memory_waits_to_be_asked_for():
    rig = Rig(policy=policy_of(memory={"early_bytes": SMALL}))
    key = rig.send(0, 1, 100_000, expect=False)
    rig.settle(SECOND)
    assert not rig.received() and not rig.endpoints[1].flow(0).incoming
    rig.expect(key)
    rig.run()
    rig.verify()


@pytest.mark.parametrize("first", ["expected", "partly here", "complete"])
def test_two_ranks_that_disagree_about_a_length_are_told_once(first):
    rig = Rig()
    length = 500 * STRIDE
    if first == "expected":
        key = rig.send(0, 1, length, expect=False)
        rig.expect(key, length=length - 8)
    elif first == "partly here":
        key = rig.send(0, 1, length, expect=False)
        rig.settle(60_000)
        assert rig.endpoints[1].flow(0).incoming
        rig.expect(key, length=length - 8)
    else:
        key = rig.send(0, 1, length, expect=False)
        rig.run()
        rig.expect(key, length=length - 8)
    rig.settle(SECOND)
    refused = rig.events(MessageRefused, 1)
    assert [(e.peer, e.message, e.length, e.expected) for e in refused] == [(0, key[2], length, length - 8)]


def test_asking_twice_or_with_a_buffer_that_does_not_fit_is_an_error():
    rig = Rig()
    key = rig.send(0, 1, 1000)
    with pytest.raises(ValueError, match="expected already"):
        rig.expect(key)
    other = rig.send(0, 1, 1000, expect=False)
    with pytest.raises(ValueError, match="buffer of 999 bytes for a message of 1000"):
        rig.expect(other, buffer=np.zeros(999, np.uint8))
    rig.expect(other, buffer=np.zeros(1000, np.uint8))
    rig.run()
    rig.verify()


def test_a_message_of_an_operation_that_is_over_is_told_to_its_sender():
    """The two ranks call collectives with different arguments: one sends what the other has no use for."""
    rig = Rig()
    rig.endpoints[1].retire(1)
    key = rig.send(0, 1, 1000, expect=False)
    rig.settle(20 * MS)
    assert {(e.peer, e.message) for e in rig.events(MessageUnknown, 0)} == {(1, key[2])}
    assert not rig.events(MessageReceived)
