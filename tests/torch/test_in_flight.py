"""How many buckets are under way at once, and which of them goes first."""

import threading

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import skip_init

from dlcp.errors import ClosedError
from dlcp.policy import Policy
from dlcp.torch import DLCPState
from dlcp.torch.reducer import HOST_IN_FLIGHT, HOST_IN_FLIGHT_BYTES
from tests.torch.fake import FakeCommunicator
from tests.torch.ranks import run_ranks

MIB = 1 << 20


class Noting(threading.Condition):
    """Notes what is under way whenever somebody has to wait."""

    def __init__(self, reducer, waits):
        super().__init__(threading.RLock())
        self._reducer, self._waits = reducer, waits
        self.waited = threading.Event()

    def wait(self, timeout=None):
        self._waits.append((self._reducer._in_flight, self._reducer._bytes_in_flight))
        self.waited.set()
        return super().wait(timeout)


class Brief(FakeCommunicator):
    """Keeps no copies: the arrays are large."""

    def allreduce_async(self, array, **more):
        operation = super().allreduce_async(array, **more)
        self.calls[-1] = None
        return operation


def first_wait(rank, world, mib, layers, most):
    """Returns what is under way when a pass first waits, if nothing arrives until then."""
    sides = (mib << 8, 1 << 10)
    model = nn.Sequential(*(skip_init(nn.Linear, *sides[:: 1 - i % 2 * 2], bias=False) for i in range(layers)))
    for parameter in model.parameters():
        parameter.data.fill_(0.5**12)
    ddp = DistributedDataParallel(model, bucket_cap_mb=1, gradient_as_bucket_view=True)
    waits, hold = [], threading.Event()
    communicator = Brief(lambda number, rank, array: [] if hold.wait(60) else None, width=512)
    with DLCPState(communicator, max_in_flight=most) as state:
        state.attach(ddp)
        reducer = state.reducer
        # DDP's first pass has one bucket.
        hold.set()
        ddp(torch.ones(1, mib << 8)).sum().backward()
        hold.clear()
        reducer._changed = Noting(reducer, waits)
        reducer._changed.waited = hold
        ddp(torch.ones(1, mib << 8)).sum().backward()
    communicator.close()
    return waits[0]


@pytest.mark.parametrize(
    ("mib", "layers", "most", "expected"),
    [(20, 4, None, 3), (16, 4, None, 4), (40, 3, None, 2), (20, 4, 1, 1), (20, 4, 4, 4)],
    ids=["more than two below 64 MiB", "64 MiB exactly", "two whatever they hold", "as many as asked for", "more if asked for"],
)
def test_a_hook_waits_only_for_room(mib, layers, most, expected):
    """A pass that does not wait in a hook waits at its end, when all its buckets are under way."""
    assert HOST_IN_FLIGHT == 2 and HOST_IN_FLIGHT_BYTES == 64 * MIB
    assert run_ranks(first_wait, mib, layers, most, world=1) == [(expected, expected * mib * MIB)]


def orders(rank, world, count):
    ddp = DistributedDataParallel(nn.Sequential(*(nn.Linear(40, 40) for _ in range(4))), bucket_cap_mb=0.005)
    communicator = FakeCommunicator(policy=Policy.from_dict({"classes": {"count": count}}))
    found = []
    with DLCPState(communicator) as state:
        state.attach(ddp)
        for _ in range(3):
            ddp(torch.ones(1, 40)).sum().backward()
            found.append(communicator.orders[:])
            communicator.orders.clear()
    communicator.close()
    return found


@pytest.mark.parametrize("count", [1, 2, 5])
def test_what_the_next_forward_pass_needs_first_goes_first(count):
    """Within a class: the last bucket of a pass has the lowest order.  A policy without classes keeps the order of the calls."""
    (found,) = run_ranks(orders, count, world=1)
    assert [len(passed) for passed in found] == [1, 4, 4]
    for passed in found:
        assert passed == [-(number + 1) if count > 1 else 0 for number in range(len(passed))]


def fails(rank, world, early):
    """Fails just before or just after a bucket takes what is owed; returns that before the pass, at its end and in the end."""
    ddp = DistributedDataParallel(nn.Sequential(*(nn.Linear(40, 40) for _ in range(4))), bucket_cap_mb=0.005)
    communicator = FakeCommunicator(lambda number, rank, array: [[0, array.size // 2]])
    with DLCPState(communicator) as state:
        state.attach(ddp)
        for _ in range(2):
            ddp(torch.ones(1, 40)).sum().backward()
        reducer, loads = state.reducer, []
        before = state.residuals.mass()
        load = reducer._load

        def failing(*arguments):
            loads.append(None)
            if len(loads) == 2 and early:
                reducer.fail(ClosedError("just before"))
            staged = load(*arguments)
            if len(loads) == 2 and not early:
                reducer.fail(ClosedError("just after"))
            return staged

        reducer._load = failing
        with pytest.raises(ClosedError, match="just"):
            ddp(torch.ones(1, 40)).sum().backward()
    found = before.elements, before == state.residuals.mass(), len(loads)
    communicator.close()
    return found


@pytest.mark.parametrize("early", [True, False])
def test_a_failure_while_buckets_are_packed_leaves_debts_as_they_were(early):
    ((owed, same, loads),) = run_ranks(fails, early, world=1)
    assert owed > 0 and same
    assert loads == 2, "no bucket is packed any more"
