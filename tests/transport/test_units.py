"""The small parts: timers, round trips, placement, grouping, screening, bookkeeping of what is finished."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.transport.arrivals import arrange
from dlcp.transport.events import part_of
from dlcp.transport.finished import HEARD_INTERVALS, FinishedMessages
from dlcp.transport.incoming import IncomingMessage, unpack_bitmap
from dlcp.transport.packets import Frames
from dlcp.transport.rtt import IMPLAUSIBLE, RttEstimator
from dlcp.transport.screening import Identity, screen
from dlcp.transport.timers import Timers
from dlcp.wire.codec import encode_headers
from dlcp.wire.header import HEADER_BYTES, PacketType
from tests.transport.rig import COOKIE, MS, SECOND

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


# -- placement ---------------------------------------------------------------------------------------------------------------

STRIDE = 24


def message_of(length, protected=0, stride=STRIDE, bound=0):
    return IncomingMessage(0, 7, length, stride, bound, protected, np.full(length, 0xEE, np.uint8), 0)


@settings(max_examples=200)
@given(st.data())
def test_placing_agrees_with_a_loop(data):
    """Any order, duplicates across and inside batches, a short last packet, rows by slice or by index."""
    length = data.draw(st.integers(0, 12 * STRIDE))
    message = message_of(length)
    content = np.random.default_rng(length).integers(0, 200, max(length, 1)).astype(np.uint8)[:length]
    naive = np.full(length, 0xEE, np.uint8)
    have: set[int] = set()
    now = 0
    for _ in range(data.draw(st.integers(1, 6))):
        now += 10
        indices = np.array(data.draw(st.lists(st.integers(0, message.packets - 1), min_size=1, max_size=20)), np.int64)
        if data.draw(st.booleans()):
            indices = np.unique(indices)
        payload = np.full((indices.size + 2, STRIDE + 8), 0xAA, np.uint8)
        for row, index in enumerate(indices.tolist()):
            piece = content[index * STRIDE : (index + 1) * STRIDE]
            payload[row + 1, : piece.size] = piece
        as_slice = data.draw(st.booleans())
        rows = slice(1, 1 + indices.size) if as_slice else np.arange(1, 1 + indices.size)
        protected = indices % 3 == 0
        before = set(have)
        new = message.place(payload, rows, indices, protected, now)
        for index in indices.tolist():
            have.add(index)
            naive[index * STRIDE : (index + 1) * STRIDE] = content[index * STRIDE : (index + 1) * STRIDE]
        assert new == len(have - before)
        assert np.array_equal(message.buffer, naive)
        assert message.missing == message.packets - len(have)
        assert message.protected_missing == -len({i for i in have if i % 3 == 0})
        assert set(message.lost().tolist()) == set(range(message.packets)) - have
        assert message.last_arrival == (now if new else message.last_arrival)
        listed = unpack_bitmap(message.bitmap(), message.packets)
        assert np.array_equal(listed, message.lost())


def batch(random, messages, world=4):
    """Datagrams of several messages, mixed, with everything a network does to their order; and what they say."""
    rows = []
    for source, part, length, stride in messages:
        count = max(1, -(-length // stride))
        for index in random.integers(0, count, int(random.integers(1, 2 * count + 2))).tolist():
            size = min(stride, length - index * stride)
            rows.append((source, part, length, stride, index, size))
    if random.random() < 0.5:
        random.shuffle(rows)
    elif random.random() < 0.5:
        rows = sorted(set(rows))
    return rows


@settings(max_examples=120)
@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 3))
def test_grouping_keeps_every_packet_with_its_message(seed, messages, frames):
    random = np.random.default_rng(seed)
    described = [(int(random.integers(1, 4)), part, int(random.integers(0, 300)), 24) for part in range(messages)]
    rows = batch(random, described)
    pitch = HEADER_BYTES + 32
    parts = [p for p in np.array_split(np.arange(len(rows)), frames) if p.size]
    built = []
    for part in parts:
        data = np.zeros((len(part), pitch), np.uint8)
        lengths = np.zeros(len(part), np.int64)
        for at, k in enumerate(part.tolist()):
            source, number, length, stride, index, size = rows[k]
            data[at, :HEADER_BYTES] = encode_headers(
                1,
                type=PacketType.DATA,
                source=source,
                destination=0,
                cookie=np.uint64(COOKIE),
                operation=3,
                part=number,
                length=length,
                stride=stride,
                offset=index * stride,
                protected=index % 2,
            )[0]
            data[at, HEADER_BYTES : HEADER_BYTES + size] = (number * 50 + index) % 256
            lengths[at] = HEADER_BYTES + size
        built.append(Frames(data, lengths, np.zeros(len(part), np.uint8)))
    screened = screen(built, Identity(0, 4, COOKIE), Counter())
    groups = list(arrange(screened, np.arange(len(rows), dtype=np.int64)))
    expected = Counter((source, 3 << 32 | number, index) for source, number, _, _, index, _ in rows)
    assert Counter((g.source, g.message, i) for g in groups for i in g.indices.tolist()) == expected
    assert len({(g.source, g.message) for g in groups}) == len(groups)
    for group in groups:
        steps = np.diff(group.indices)
        assert group.ascending == bool((steps > 0).all())
        assert group.protected.tolist() == [bool(i % 2) for i in group.indices.tolist()]
        covered = []
        for frame, start, stop, first in group.runs:
            for row in range(start, stop):
                covered.append(first + row - start)
                size = int(built[frame].lengths[row]) - HEADER_BYTES
                payload = built[frame].data[row, HEADER_BYTES : HEADER_BYTES + size]
                assert (payload == (part_of(group.message) * 50 + covered[-1]) % 256).all()
        assert covered == group.indices.tolist()
        message = message_of(group.length, stride=24)
        arguments = (built, group.runs, group.indices, group.ascending, group.protected)
        got = set(group.indices.tolist())
        placed = message.place_runs(*arguments, 5)
        assert placed == (len(got) == group.size), "duplicates are for place()"
        if placed:
            for index in range(message.packets):
                piece = message.buffer[index * 24 : (index + 1) * 24]
                assert (piece == ((part_of(group.message) * 50 + index) % 256 if index in got else 0xEE)).all()
            assert message.missing == message.packets - len(got)
            assert not message.place_runs(*arguments, 6)
        else:
            assert (message.buffer == 0xEE).all() and not message.have.any()
        assert message.last_arrival == (5 if placed else 0)


@pytest.mark.parametrize(
    "fields",
    [{"trimmed": 1}, {"stride": 0}, {"offset": 12}, {"offset": 480}, {"length": 50}],
    ids=lambda f: next(iter(f.items())),
)
def test_odd_packets_are_not_grouped(fields):
    columns = {"length": 240, "stride": 24, "offset": 48} | fields
    header = encode_headers(1, type=PacketType.DATA, source=1, destination=0, cookie=np.uint64(COOKIE), **columns)
    data = np.concatenate([header, np.zeros((1, 24), np.uint8)], axis=1)
    frames = [Frames(data, np.array([HEADER_BYTES + 24]), np.zeros(1, np.uint8))]
    assert arrange(screen(frames, Identity(0, 4, COOKIE), Counter()), np.array([0])) is None


def test_screening_counts_each_verdict_and_keeps_order():
    fields = {"type": PacketType.PING, "source": 1, "destination": 0, "cookie": np.uint64(COOKIE)}
    good = encode_headers(1, **fields)[0]
    variants = {
        "version": encode_headers(1, **fields, version=2)[0],
        "foreign": encode_headers(1, **fields | {"cookie": np.uint64(5)})[0],
        "misaddressed": encode_headers(1, **fields | {"destination": 3})[0],
    }
    check = good.copy()
    check[30] ^= 1
    rows = [good, variants["version"], variants["foreign"], check, variants["misaddressed"], good, good]
    lengths = np.array([48, 48, 48, 48, 48, 47, 48])
    counters: Counter[str] = Counter()
    frames = [
        Frames(np.stack(rows[:3]), lengths[:3], np.array([0, 1, 2], np.uint8)),
        Frames(np.stack(rows[3:]), lengths[3:], np.array([0, 1, 2, 3], np.uint8)),
    ]
    screened = screen(frames, Identity(0, 2, COOKIE), counters)
    assert counters == {"truncated": 1, "version": 1, "foreign": 1, "check": 1, "misaddressed": 1}
    assert screened.frame.tolist() == [0, 1] and screened.row.tolist() == [0, 3]
    assert screened.ecn.tolist() == [0, 3] and screened.sources.tolist() == [1, 1]
    assert screen([], Identity(0, 2, COOKIE), counters) is None


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
