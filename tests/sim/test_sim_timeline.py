"""Collectives as messages: who has to have heard of whom when it is through, and how many bytes that takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.readers.found import POLICY, stuck
from sim.readers.timeline import KINDS, Timeline, TooMany, cost

EVERYBODY = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")


def made(kind, members, size, root=0):
    line = Timeline()
    begun = [line.compute(rank, 1000) for rank in members]
    done = line.collective(kind, members, size, [[message] for message in begun], root=root, group="g", iteration=3)
    return line.messages, begun, done


def ancestors(messages, message, seen=None):
    seen = set() if seen is None else seen
    for other in messages[message].after:
        if other not in seen:
            seen.add(other)
            ancestors(messages, other, seen)
    return seen


groups = st.lists(st.integers(0, 50), min_size=1, max_size=9, unique=True)


@pytest.mark.parametrize("kind", KINDS)
@given(members=groups, size=st.integers(1, 10_000), data=st.data())
def test_who_has_to_have_heard_of_whom(kind, members, size, data):
    root = data.draw(st.integers(0, len(members) - 1))
    messages, begun, done = made(kind, members, size, root)
    assert stuck(messages) is None and len(messages) - len(members) <= cost(kind, len(members))
    assert [messages[end].source for end in done] == members
    heard = [{begun.index(other) for other in ancestors(messages, end) if other in begun} for end in done]
    everybody = set(range(len(members)))
    for place in everybody:
        if kind in EVERYBODY or (kind in ("reduce", "gather") and place == root):
            assert heard[place] == everybody
        else:
            assert place in heard[place]
            assert kind in ("reduce", "gather") or root in heard[place]
    # Nobody sends before it takes part itself.
    for number, message in enumerate(messages):
        assert number in begun or begun[members.index(message.source)] in ancestors(messages, number)


@pytest.mark.parametrize(
    ("kind", "total"),
    [
        ("all_reduce", 2 * 3 * 4000),
        ("all_gather", 3 * 4000),
        ("reduce_scatter", 3 * 4000),
        ("all_to_all", 3 * 4000),
        ("broadcast", 3 * 4000),
        ("reduce", 3 * 4000),
        ("gather", 3 * 1000),
        ("scatter", 3 * 1000),
        ("barrier", 8),
    ],
)
def test_bytes_and_losses(kind, total):
    messages, _, _ = made(kind, [5, 2, 9, 0], 4000)
    sent = [message for message in messages if message.source != message.destination]
    assert sum(message.size for message in sent) == total
    lossy = kind in ("all_reduce", "reduce_scatter", "reduce")
    assert {(message.bound, message.protected) for message in sent} == {(POLICY, POLICY) if lossy else (0.0, 1.0)}
    assert {(message.group, message.iteration) for message in sent} == {("g", 3)}


def test_there_is_an_end_to_messages():
    line = Timeline(limit=100)
    with pytest.raises(TooMany, match="more than 100 messages"):
        line.collective("all_to_all", range(10_000), 5, [[]] * 10_000)
    assert not line.messages
    for _ in range(100):
        line.compute(0, 1)
    with pytest.raises(TooMany):
        line.send(0, 1, 5)
