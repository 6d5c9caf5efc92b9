"""Queues and links alone: order, room, exact times."""

import random
from collections import deque
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softswitch.errors import BadValue
from softswitch.traffic import Item, Link, PriorityQueues


def item(priority, length=100, phv=None):
    return Item(priority, length, phv, 0, 0)


steps = st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 3), st.integers(1, 1500))), max_size=80)


@given(steps, st.none() | st.integers(1, 6), st.none() | st.integers(1, 5000))
def test_queues_are_strict_first_in_first_out_and_bounded(moves, depth, depth_bytes):
    queues = PriorityQueues(4, depth, depth_bytes)
    model = [deque() for _ in range(4)]
    dropped = pushed = 0
    high = [0] * 4
    for serial, move in enumerate(moves):
        if move is None:
            expected = next((queue.popleft() for queue in reversed(model) if queue), None)
            if expected is None:
                with pytest.raises(IndexError):
                    queues.pop()
            else:
                got = queues.pop()
                assert (got.priority, got.length, got.phv) == expected
        else:
            priority, length = move
            queue = model[priority]
            fits = (depth is None or len(queue) < depth) and (
                depth_bytes is None or sum(entry[1] for entry in queue) + length <= depth_bytes
            )
            assert queues.push(item(priority, length, serial)) == fits
            if fits:
                queue.append((priority, length, serial))
                pushed += 1
                high[priority] = max(high[priority], len(queue))
            else:
                dropped += 1
        assert queues.depths() == [len(queue) for queue in model]
        assert queues.bytes == [sum(entry[1] for entry in queue) for queue in model]
        assert queues.packets == sum(queues.depths())
    assert sum(queues.dropped) == dropped
    assert sum(queues.enqueued) == pushed
    assert queues.high_water == high
    assert queues.clear() == sum(len(queue) for queue in model)
    assert queues.packets == 0 and not any(queues.depths()) and not any(queues.bytes)


@pytest.mark.parametrize("arguments", [(0,), (8, 0), (8, None, 0), (8, -3)])
def test_impossible_queues_are_refused(arguments):
    with pytest.raises(BadValue):
        PriorityQueues(*arguments)


@given(st.lists(st.integers(1, 9000), min_size=1, max_size=60), st.integers(1, 10**11), st.integers(0, 10**12))
def test_a_busy_link_ends_each_packet_exactly_on_time(lengths, rate, start):
    link = Link(rate, 0, 0.0, random.Random(0))
    bits = 0
    for length in lengths:
        link.send(bytes(length), start)
        bits += 8 * length
        # The smallest integer that is not before the exact time.
        exact = start + Fraction(bits * 10**9, rate)
        assert exact <= link.free_at < exact + 1
    assert link.busy_ns == link.free_at - start
    assert [due for due, _ in link.line] == sorted(due for due, _ in link.line)


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 1500)), min_size=1, max_size=40),
    st.integers(10**6, 10**10),
    st.integers(0, 10**7),
)
def test_an_idle_link_starts_a_packet_when_it_comes_and_delays_it_after_serialization(arrivals, rate, delay):
    link = Link(rate, delay, 0.0, random.Random(0))
    now = 0
    for gap, length in arrivals:
        now += gap
        before = link.free_at
        link.send(bytes(length), now)
        duration = Fraction(8 * length * 10**9, rate)
        assert max(now, before) + duration - 1 < link.free_at < max(now, before) + duration + 1
        assert link.line[-1][0] == link.free_at + delay


def test_a_shorter_delay_does_not_let_packets_overtake():
    link = Link(None, 1000, 0.0, random.Random(0))
    link.send(b"a", 0)
    link.configure(rate_bps=None, delay_ns=10, loss=0.0)
    link.send(b"b", 5)
    assert list(link.line) == [(1000, b"a"), (1000, b"b")]


def test_losses_depend_on_the_seed_alone_and_have_the_frequency_asked_for():
    def pattern(seed):
        link = Link(None, 0, 0.25, random.Random(seed))
        return [link.send(b"x", 0) for _ in range(4000)]

    assert pattern(1) == pattern(1) != pattern(2)
    assert 880 < pattern(1).count(False) < 1120


@pytest.mark.parametrize("options", [(0, 0, 0.0), (-5, 0, 0.0), (None, -1, 0.0), (None, 0, 1.5), (None, 0, -0.1)])
def test_impossible_links_are_refused(options):
    with pytest.raises(BadValue):
        Link(*options, random.Random(0))
