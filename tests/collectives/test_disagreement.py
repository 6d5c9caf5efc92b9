"""Ranks that call collectives with different arguments: each of them raises, at once, and nobody gets a wrong result."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlcp.errors import MismatchError
from dlcp.policy import Policy
from dlcp.transport.events import message_id
from dlcp.transport.virtual import Weather
from dlcp.wire.header import Phase
from tests.collectives.virtual_job import STRIDE, Job

F32, F64 = np.float32, np.float64
E = STRIDE // 4
SMALL = Policy.from_dict({"wire": {"message_bytes": 4 * STRIDE}, "loss": {"push": 0.0}})


def reduce_of(size, dtype=F32, op="sum"):
    return lambda c: c.allreduce_async(np.ones(size, dtype), op=op)


def broadcast_of(size, root=0, dtype=F32):
    return lambda c: c.broadcast_async(np.ones(size, dtype), root=root)


def barrier():
    return lambda c: c.barrier_async()


def assert_mismatch(job, calls):
    """Everybody raises MismatchError, within a few round trips."""
    operations = [call(c) for c, call in zip(job.communicators, calls, strict=True)]
    errors, seconds = job.errors(operations)
    # A rank that needs nothing of the others may have ended before it could know; then it knows the next time.
    late = [rank for rank, error in enumerate(errors) if error is None]
    for rank in late:
        assert calls[rank].__qualname__.startswith(("broadcast", "barrier")), f"rank {rank} got a result"
        errors[rank] = job.errors([job.communicators[rank].barrier_async()])[0][0]
    assert [type(e) for e in errors] == [MismatchError] * job.world, errors
    assert seconds < 1.5
    again = [c.barrier_async() for c in job.communicators]
    assert all(op.exception() is error for op, error in zip(again, errors, strict=True))
    return [str(e) for e in errors]


DIFFERENT = {
    "length": (reduce_of(10), reduce_of(11)),
    "length by one packet": (reduce_of(8 * E), reduce_of(9 * E)),
    "length by one part for every rank": (reduce_of(4 * E), reduce_of(8 * E)),
    "empty": (reduce_of(0), reduce_of(1)),
    "dtype, same bytes": (reduce_of(2 * E), reduce_of(E, F64)),
    "dtype, same elements": (reduce_of(2 * E), reduce_of(2 * E, F64)),
    "op": (reduce_of(5, op="sum"), reduce_of(5, op="mean")),
    "collective": (reduce_of(5), broadcast_of(5)),
    "collective, empty": (barrier(), broadcast_of(0)),
    "collective, empty array": (barrier(), reduce_of(0)),
    "barrier": (barrier(), reduce_of(3)),
    "barrier and broadcast": (barrier(), broadcast_of(3)),
}


@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize(("algorithm", "servers"), [("sharded", 0), ("ring", 0), ("ps", 1), ("ps", 2)])
@pytest.mark.parametrize("name", DIFFERENT)
def test_one_rank_differs(name, algorithm, servers, odd):
    first, second = DIFFERENT[name]
    for most, one in ((first, second), (second, first)):
        calls = [most] * 3
        calls[odd] = one
        assert_mismatch(Job(3, algorithm=algorithm, servers=servers, policies=SMALL), calls)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([("sharded", 0), ("ring", 0), ("ps", 1), ("ps", 3)]),
    st.integers(2, 5),
    st.integers(0, 40 * E),
    st.integers(-40, 40),
    st.integers(-3, 3),
    st.integers(0, 4),
    st.integers(0, 2**32 - 1),
)
def test_any_two_lengths(kind, world, length, packets, more, odd, seed):
    """Also in bad weather; and whichever rank it is that differs."""
    other = max(length + packets * E + more, 0)
    if other == length:
        return
    algorithm, servers = kind
    calls = [reduce_of(length)] * world
    calls[odd % world] = reduce_of(other)
    weather = Weather(drop=0.05, jitter_ns=500_000, duplicate=0.05)
    assert_mismatch(Job(world, algorithm=algorithm, servers=servers, policies=SMALL, weather=weather, seed=seed), calls)


def test_the_message_says_what_differs():
    length = assert_mismatch(Job(2, policies=SMALL), [reduce_of(100), reduce_of(120)])
    assert any("rank 1" in text and "rank 0" in text and "bytes" in text for text in length)
    order = assert_mismatch(Job(2, policies=SMALL), [reduce_of(100), broadcast_of(100, root=1)])
    assert any("different order or with different arguments" in text and "operation 1" in text for text in order)
    served = assert_mismatch(Job(2, policies=SMALL, algorithm="ps", servers=1), [reduce_of(9), reduce_of(9, F64)])
    assert any("sum of float32" in text and "sum of float64" in text for text in served)


def test_order_differs():
    """The second call of one rank is the first of the other."""
    job = Job(2, policies=SMALL)
    calls = [[reduce_of(100), broadcast_of(7)], [broadcast_of(7), reduce_of(100)]]
    operations = [call(c) for c, mine in zip(job.communicators, calls, strict=True) for call in mine]
    errors, _ = job.errors(operations)
    # The root of the broadcast is done with it as soon as the others' transport has it.
    assert all(isinstance(e, MismatchError) for e in errors)


def test_different_roots():
    job = Job(3, policies=SMALL)
    assert_mismatch(job, [broadcast_of(5, 0), broadcast_of(5, 0), broadcast_of(5, 2)])


@pytest.mark.parametrize("later", [0, 10, 100])
def test_a_rank_that_has_finished_tells_those_who_wait_in_vain(later):
    """The number of parts is in every message's identity, but folded into three bits: some pairs it does not tell apart.

    Rank 0 has one part and rank 1 has eight, which fold alike, and all that rank 0 expects comes: it ends, with the sum of what
    both gave for these elements.  But rank 1 waits for more, and must not do so until the operation timeout.
    """
    job = Job(2, policies=SMALL, algorithm="ps", servers=1)
    first = [reduce_of(4 * E)(job.communicators[0]), reduce_of(32 * E)(job.communicators[1])]
    job.run(first[:1])
    assert first[0].exception() is None
    more = [c.allreduce_async(np.ones(1, F32)) for _ in range(later) for c in job.communicators]
    errors, seconds = job.errors([first[1], *more, job.communicators[0].barrier_async()], limit_s=700)
    assert isinstance(errors[0], MismatchError) and isinstance(errors[-1], MismatchError)
    if later < 64:
        assert "operation 1 differently" in str(errors[0])
        assert "256 elements" in str(errors[0]) and "2048 elements" in str(errors[0])
    else:
        assert "rank 0 has finished operation 1 without operation 1, push" in str(errors[0])
    assert seconds < 1.5


def test_a_message_of_an_operation_that_is_long_over():
    """Beyond the history the transport answers that it is over, and then the sender knows."""
    job = Job(2, policies=SMALL)
    for _ in range(100):
        job.run([c.barrier_async() for c in job.communicators])
    node = job.nodes[1]
    payload, tags = np.zeros(STRIDE, np.uint8), np.zeros(1, np.uint8)
    node.endpoint.send(0, message_id(3, Phase.PUSH, 0x11, 9), payload, tags=tags, bound=0, now=job.network.now)
    assert job.network.run(lambda: all(n.error for n in job.nodes.values()))
    for node in job.nodes.values():
        assert isinstance(node.error, MismatchError) and "rank 0 has finished operation 3" in str(node.error)
