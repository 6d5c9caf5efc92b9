"""Among calls of one class those with the lowest order go first."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.transport.virtual_link import LinkModel
from tests.collectives.virtual_job import STRIDE, Job

SLOW = LinkModel(bytes_per_second=2e6, buffer_bytes=1 << 20, threshold_bytes=1 << 16)


def ended(algorithm, world, calls):
    """Queues a call for each (order, class) at once; returns the numbers of the calls as they end at rank 0."""
    job = Job(world, algorithm=algorithm, link=SLOW)
    order, operations = [], []
    for number, (place, priority) in enumerate(calls):
        for rank, communicator in enumerate(job.communicators):
            array = np.full(40 * STRIDE * world // 4, rank + number, np.float32)
            tags = np.full(communicator.packets(array.size, np.float32), priority * 2, np.uint8)
            more = {} if place is None else {"order": place}
            operation = communicator.allreduce_async(array, tags=tags, **more)
            if rank == 0:
                operation.add_done_callback(lambda done, number=number: order.append(number))
            operations.append(operation)
    assert job.run(operations)
    for number, operation in enumerate(operations):
        assert (operation.result().output == (world - 1) / 2 + number // world).all()
    job.close()
    return order


@pytest.mark.parametrize("algorithm", ["sharded", "ring"])
def test_the_lower_order_ends_first(algorithm):
    assert ended(algorithm, 2, [(0, 3), (-1, 3)]) == [1, 0]
    assert ended(algorithm, 2, [(7, 3), (7, 3)]) == [0, 1]


@pytest.mark.parametrize("algorithm", ["sharded", "ring"])
def test_calls_without_an_order_go_as_they_came(algorithm):
    assert ended(algorithm, 3, [(None, 3)] * 4) == [0, 1, 2, 3]


@settings(max_examples=15)
@given(st.permutations([-9, -2, 0, 4]), st.sampled_from(["sharded", "ring"]))
def test_calls_end_by_their_order(orders, algorithm):
    assert ended(algorithm, 2, [(order, 3) for order in orders]) == sorted(range(4), key=lambda number: orders[number])


@pytest.mark.parametrize("algorithm", ["sharded", "ring"])
def test_a_class_says_more_than_an_order(algorithm):
    assert ended(algorithm, 3, [(-5, 1), (5, 6)]) == [1, 0]
