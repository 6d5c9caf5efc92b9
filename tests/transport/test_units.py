"""The small parts: timers, round trips, what is in of a message, bookkeeping of what is finished."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.transport.finished import HEARD_INTERVALS, FinishedMessages
from dlcp.transport.incoming import UNKNOWN_TAG, IncomingMessage, unpack_bitmap
from dlcp.transport.rtt import IMPLAUSIBLE, PathDelay, RttEstimator
from dlcp.transport.timers import Timers
from tests.transport.rig import MS, SECOND

# -- timers ------------------------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(st.sampled_from(["set", "set", "earlier", "cancel", "pop", "next"]), st.integers(0, 5), st.integers(0, 30)),
        max_size=80,
    )
)
def test_timers_agree_with_a_dictionary(actions):
    timers, model = Timers(), {}
    for action, key, time in actions:
        if action == "set":
            timers.set(key, time)
            model[key] = time
        elif action == "earlier":
            timers.set_earlier(key, time)
            model[key] = min(model.get(key, time), time)
        elif action == "cancel":
            timers.cancel(key)
            model.pop(key, None)
        elif action == "pop":
            due = timers.pop_due(time)
            assert sorted(due) == sorted(k for k, t in model.items() if t <= time)
            assert [model[k] for k in due] == sorted(model[k] for k in due)
            model = {k: t for k, t in model.items() if t > time}
        assert timers.next() == min(model.values(), default=None)
        assert len(timers) == len(model) and all(k in timers for k in model)
    timers.clear()
    assert timers.next() is None and len(timers) == 0


def test_timers_that_are_moved_all_the_time_do_not_pile_up():
    timers = Timers()
    timers.set("far", 10**12)
    for step in range(100_000):
        timers.set("near", 10**9 + step)
        timers.set(step % 7, 10**10 + step)
        timers.cancel(step % 7)
    assert len(timers._heap) < 200
    assert timers.next() == 10**9 + 99_999


# -- round trips -------------------------------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(st.lists(st.integers(1_000, 10**8), min_size=1, max_size=60))
def test_the_estimate_follows_rfc_6298(samples):
    rtt = RttEstimator(initial_ns=10 * MS, floor_ns=MS, ceiling_ns=SECOND)
    smoothed, variation = float(samples[0]), samples[0] / 2
    rtt.sample(samples[0])
    for value in samples[1:]:
        rtt.sample(value)
        variation = 0.75 * variation + 0.25 * abs(smoothed - value)
        smoothed = 0.875 * smoothed + 0.125 * value
    assert rtt.minimum == min(samples) and rtt.latest == samples[-1]
    assert rtt.smoothed == pytest.approx(smoothed, abs=len(samples) + 8)
    assert rtt.variation == pytest.approx(variation, abs=4 * len(samples) + 8)


def test_probe_timeouts_double_between_floor_and_ceiling():
    rtt = RttEstimator(initial_ns=10 * MS, floor_ns=2 * MS, ceiling_ns=200 * MS)
    assert rtt.probe_timeout() == 30 * MS
    rtt.sample(100_000)
    assert [rtt.probe_timeout(a) for a in (0, 1, 2, 6, 7, 100)] == [2 * MS, 4 * MS, 8 * MS, 128 * MS, 200 * MS, 200 * MS]
    rtt.sample(-5)
    assert rtt.minimum == 1_000
    rtt.sample(IMPLAUSIBLE * 200 * MS + 1)
    assert rtt.latest == 1_000, "no path is that slow; a mistake must not slow the pacer for minutes"


def test_the_paths_delay_is_what_exceeds_the_least_of_some_time():
    path = PathDelay()
    assert [path.sample(delay, now) for now, delay in enumerate([500, 700, 400, 400, 1000])] == [0, 200, 0, 0, 600]


def test_a_path_that_has_become_longer_is_believed_after_twice_the_memory_at_most():
    """Its least delay is remembered for so long, and not a moment less than once."""
    path, memory = PathDelay(), PathDelay.MEMORY_NS
    path.sample(100, 0)
    step, believed = memory // 50, None
    for now in range(step, 3 * memory, step):
        queueing = path.sample(900, now)
        assert queueing in (0, 800)
        if now <= memory:
            assert queueing == 800
        if queueing == 0:
            believed = believed or now
        else:
            assert believed is None
    assert believed is not None and memory < believed <= 2 * memory + 2 * step


@given(st.lists(st.tuples(st.integers(0, 8 * SECOND), st.integers(0, 10**7)), min_size=1, max_size=60))
def test_queueing_is_measured_against_a_least_of_the_last_ten_to_twenty_seconds(steps):
    """Never negative, always against something measured, and never against more than the least within the memory."""
    path, now, seen = PathDelay(), 0, []
    for pause, delay in steps:
        now += pause
        seen.append((now, delay))
        queueing = path.sample(delay, now)
        least = delay - queueing
        assert queueing >= 0
        assert least in {d for _, d in seen}
        assert least <= min(d for t, d in seen if t >= now - path.MEMORY_NS), "nothing recent was less"


# -- messages on their way in ------------------------------------------------------------------------------------------------

STRIDE = 24


def message_of(length, protected=0, stride=STRIDE, bound=0):
    return IncomingMessage(0, 7, length, stride, bound, protected, np.full(length, 0xEE, np.uint8), 0)


@given(st.integers(1, 40), st.integers(0, 10), st.data())
def test_the_account_agrees_with_what_is_in(packets, allowed_share, data):
    """Packets are placed elsewhere; here they count, and silence is measured from those that were new."""
    protected = set(range(0, packets, 3))
    message = message_of(packets * STRIDE, len(protected), bound=allowed_share * 65536 // 20)
    now, last, have = 0, 0, set()
    for _ in range(data.draw(st.integers(1, 8))):
        now += data.draw(st.integers(0, 50))
        came = data.draw(st.sets(st.integers(0, packets - 1), max_size=8)) - have
        have |= came
        message.have[list(came)] = True
        message.account(len(came), len(came & protected), now)
        last = now if came else last
        assert message.missing == packets - len(have) and message.protected_missing == len(protected - have)
        assert message.last_arrival == last
        assert message.satisfied == (protected <= have and packets - len(have) <= message.allowed)
        assert message.needed == max(len(protected - have), packets - len(have) - message.allowed, 0)
        assert set(message.lost().tolist()) == set(range(packets)) - have
        assert np.array_equal(unpack_bitmap(message.bitmap(), packets), message.lost())


def test_tags_are_kept_from_the_first_packet_on_only_if_asked_for():
    message = message_of(3 * STRIDE)
    assert message.tags is None
    message.keep_tags()
    assert message.tags.tolist() == [UNKNOWN_TAG] * 3
    message.tags[1] = 4
    message.keep_tags()
    assert message.tags.tolist() == [UNKNOWN_TAG, 4, UNKNOWN_TAG]


def test_a_bitmap_that_is_too_short_is_refused():
    assert unpack_bitmap(np.array([0b10100000], np.uint8), 3).tolist() == [0, 2]
    with pytest.raises(ValueError, match="bitmap of 1 bytes for 9 packets"):
        unpack_bitmap(np.zeros(1, np.uint8), 9)


# -- what is finished --------------------------------------------------------------------------------------------------------


def finish(book, number, now, missing=0):
    message = IncomingMessage(0, number, 10 * STRIDE, STRIDE, 0, 0, np.zeros(10 * STRIDE, np.uint8), 0)
    message.have[missing:] = True
    message.missing = missing
    return book.add(message, now)


def test_records_last_as_long_as_a_sender_may_ask():
    book = FinishedMessages(horizon_ns=10 * SECOND, interval_ns=200 * MS)
    record = finish(book, 1, 0, missing=3)
    assert (record.packets, record.missing) == (10, 3) and np.unpackbits(record.bitmap)[:10].tolist() == [1] * 3 + [0] * 7
    assert finish(book, 2, 0).bitmap.tolist() == [0, 0]
    book.forget(10 * SECOND - 1)
    assert len(book) == 2, "a silent sender may still be cut off"
    book.forget(10 * SECOND)
    assert len(book) == 0


def test_records_of_a_sender_that_is_heard_and_does_not_ask_go_sooner():
    book = FinishedMessages(horizon_ns=3600 * SECOND, interval_ns=200 * MS)
    finish(book, 1, 0)
    now = 0
    while len(book):
        now += MS
        book.heard(now)
        book.forget(now)
    assert HEARD_INTERVALS * 200 * MS - 200 * MS <= now <= (HEARD_INTERVALS + 1) * 200 * MS


def test_records_do_not_pile_up():
    """A million messages at 10,000 a second: what is kept is some seconds' worth."""
    book = FinishedMessages(horizon_ns=3600 * SECOND, interval_ns=200 * MS)
    for number in range(100_000):
        now = number * 100_000
        book.heard(now)
        finish(book, number, now)
    assert len(book) <= (HEARD_INTERVALS + 2) * 2000
