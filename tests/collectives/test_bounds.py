"""What one message may go without, by layer class."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcp.collectives.bounds import PushBounds
from dlcp.policy import Loss, Policy
from dlcp.transport.outgoing import BOUND_SCALE, bound_to_wire
from dlcp.transport.virtual import Weather
from tests.collectives.virtual_job import STRIDE, Job

TAGS = st.lists(st.integers(0, 13), min_size=1, max_size=300).map(lambda tags: np.array(tags, np.uint8))
SHARES = st.lists(st.sampled_from([0.0, 0.01, 0.02, 0.05, 0.1, 0.5]), max_size=7)


def loss_of(push, by_class=()):
    return Loss(push=push, push_by_class=tuple(by_class))


@given(TAGS, st.sampled_from([0.0, 0.02, 0.05, 0.3, 0.5]), SHARES, st.one_of(st.none(), st.floats(0, 1)), st.randoms())
def test_no_class_ever_misses_more_than_its_share_whatever_is_dropped(tags, push, by_class, part, random):
    bound = None if part is None else part * push
    top = push if bound is None else bound
    shares = [min(top, share) for share in by_class] + [top] * (7 - len(by_class))
    sent, wire = PushBounds(loss_of(push, by_class), bound).apply(tags)
    assert 0 <= wire < BOUND_SCALE
    assert ((sent & ~np.uint8(1)) == (tags & ~np.uint8(1))).all() and (sent >= tags).all()
    allowed = tags.size * wire // BOUND_SCALE
    assert allowed <= top * tags.size
    for number in range(7):
        packets = int((tags >> 1 == number).sum())
        droppable = int(((sent >> 1 == number) & (sent & 1 == 0)).sum())
        # The worst that a network can do: all that may be missing is of this class.
        if any(share < top for share in by_class):
            assert min(allowed, droppable) <= shares[number] * packets + 1e-6


@given(TAGS, st.sampled_from([0.0, 0.05, 0.5]))
def test_without_classes_that_bear_less_it_is_the_policys_bound(tags, push):
    for by_class in ((), (0.5,) * 7, (push,)):
        sent, wire = PushBounds(loss_of(push, by_class)).apply(tags)
        assert sent is tags and wire == bound_to_wire(push)


def test_a_class_that_bears_nothing_is_protected_and_holds_nobody_back():
    tags = np.repeat(np.array([0, 2, 12], np.uint8), 100)
    sent, wire = PushBounds(loss_of(0.1, (0.05, 0.0))).apply(tags)
    assert (sent[100:200] == 3).all() and (sent[:100] == 0).all() and 300 * wire // BOUND_SCALE == 5


@pytest.mark.parametrize("bound", [-0.01, 0.11, float("nan"), 1])
def test_a_bound_beyond_the_policys_is_refused(bound):
    with pytest.raises(ValueError, match=r"loss.push = 0.1"):
        PushBounds(loss_of(0.1), bound)


@pytest.mark.parametrize("algorithm", ["sharded", "ring"])
def test_the_network_keeps_to_them(algorithm):
    """Half of all packets are lost for a while, and still no class goes without more than its share."""
    loss = {"push": 0.3, "push_by_class": [0.3, 0.1, 0.0]}
    policy = Policy.from_dict({"loss": loss, "wire": {"message_bytes": 40 * STRIDE}, "grace": {"factor": 0.0, "floor_ms": 0.0}})
    job = Job(2, algorithm=algorithm, policies=policy, weather=Weather(drop=0.3), seed=4)
    width = STRIDE // 8
    arrays = [np.arange(300 * width, dtype=np.float64) + 1 for _ in range(2)]
    tags = np.repeat(np.array([0, 2, 4], np.uint8), 100)
    seen = np.zeros(3)
    for bound in (None, 0.05, 0.0):
        operations = [c.allreduce_async(a, tags=tags, bound=bound) for c, a in zip(job.communicators, arrays, strict=True)]
        assert job.run(operations)
        for operation in operations:
            lost = np.zeros(300, bool)
            for start, stop in operation.result().lost.tolist():
                lost[start // width : -(-stop // width)] = True
            by_class = lost.reshape(3, 100).sum(1)
            seen += by_class
            top = 0.3 if bound is None else bound
            assert (by_class <= np.minimum([30, 10, 0], 100 * top)).all(), (bound, by_class)
    assert seen[0] > 0 and seen[1] > 0 and seen[2] == 0
