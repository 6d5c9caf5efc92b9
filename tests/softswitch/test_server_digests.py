"""Digest lists: buffering, deduplication, acknowledgement, timeouts; the specification's pseudocode is the model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("finsy", reason="needs the extra p4")

from softswitch.server.digests import MAX_LIST, MAX_UNACKNOWLEDGED, DigestLists
from softswitch.server.target import DigestConfig


def values(batches):
    return [batch.values for batch in batches]


def test_without_timeout_each_digest_goes_at_once():
    lists = DigestLists()
    configs = {7: DigestConfig(max_timeout_ns=0, max_list_size=100)}
    sent = lists.add([(7, (1,)), (7, (2,)), (7, (1,))], configs, now=0)
    assert values(sent) == [((1,),), ((2,),), ((1,),)]
    assert [batch.list_id for batch in sent] == [1, 2, 3]
    assert lists.next_due(configs) is None


def test_a_list_goes_when_it_is_full_or_old():
    lists = DigestLists()
    configs = {7: DigestConfig(max_timeout_ns=100, max_list_size=3)}
    assert not lists.add([(7, (1,)), (7, (1,)), (7, (2,))], configs, now=10)
    assert lists.next_due(configs) == 110
    assert values(lists.add([(7, (3,)), (7, (4,))], configs, now=50)) == [((1,), (2,), (3,))]
    assert lists.next_due(configs) == 150
    assert not lists.due(configs, now=149)
    assert values(lists.due(configs, now=150)) == [((4,),)]


def test_what_is_unacknowledged_is_not_sent_again_until_it_is_old():
    lists = DigestLists()
    configs = {7: DigestConfig(max_list_size=1, ack_timeout_ns=100)}
    (first,) = lists.add([(7, (1,))], configs, now=0)
    assert not lists.add([(7, (1,))], configs, now=99)
    assert values(lists.add([(7, (1,))], configs, now=100)) == [((1,),)]
    lists.acknowledge(7, first.list_id)
    assert not lists.add([(7, (1,))], configs, now=101)
    lists.acknowledge(7, first.list_id + 1)
    assert values(lists.add([(7, (1,))], configs, now=102)) == [((1,),)]
    lists.acknowledge(8, 1)


def test_a_digest_that_is_off_is_dropped_with_all_that_waits():
    lists = DigestLists()
    configs = {7: DigestConfig(max_timeout_ns=100)}
    assert not lists.add([(7, (1,)), (8, (1,))], configs, now=0)
    assert not lists.due({}, now=1000)
    assert lists.next_due(configs) is None
    assert not lists.add([(7, (2,))], configs, now=0)
    lists.clear()
    assert not lists.due(configs, now=1000)


def test_memory_is_bounded():
    lists = DigestLists()
    configs = {7: DigestConfig(max_timeout_ns=10**9)}
    sent = lists.add([(7, (number,)) for number in range(MAX_LIST + 1)], configs, now=0)
    assert [len(batch.values) for batch in sent] == [MAX_LIST]
    configs = {8: DigestConfig(max_list_size=1, ack_timeout_ns=10**18)}
    for number in range(MAX_UNACKNOWLEDGED + 1):
        lists.add([(8, (number,))], configs, now=0)
    assert values(lists.add([(8, (0,)), (8, (1,)), (8, (MAX_UNACKNOWLEDGED,))], configs, now=0)) == [((0,),), ((1,),)]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5), st.booleans()), max_size=40),
    st.integers(0, 60),
    st.integers(0, 4),
    st.integers(0, 80),
)
def test_against_the_pseudocode(steps, timeout, size, ack_timeout):
    configs = {7: DigestConfig(timeout, size, ack_timeout)}
    lists = DigestLists()
    now = 0
    buffer, first, cache = [], 0, {}
    for wait, value, acknowledge in steps:
        now += wait
        got = lists.due(configs, now)
        expected = []
        if buffer and now - first >= timeout:
            expected.append(tuple(buffer))
            buffer = []
        for batch in got:
            if ack_timeout:
                cache[batch.list_id] = (now, batch.values)
        assert values(got) == expected
        cache = {key: item for key, item in cache.items() if now - item[0] < ack_timeout}
        if acknowledge and cache:
            key = min(cache)
            del cache[key]
            lists.acknowledge(7, key)
        got = lists.add([(7, (value,))], configs, now)
        expected = []
        if (value,) not in buffer and not any((value,) in item for _, item in cache.values()):
            if not buffer:
                first = now
            buffer.append((value,))
            if timeout == 0 or (size and len(buffer) >= size):
                expected.append(tuple(buffer))
                buffer = []
        assert values(got) == expected
        for batch in got:
            if ack_timeout:
                cache[batch.list_id] = (now, batch.values)
