"""Stand-ins: a communicator that loses exactly what a test says, and a device that is the host.

The communicator has the interface of dlcp.Communicator as far as the hook uses it.  Contributions are added up by gloo, in a
group of its own, by a thread of its own, as the real one completes operations from its I/O thread.
"""

import queue
import threading
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist

from dlcp.collectives.operation import Operation, Reduction
from dlcp.collectives.ranges import gather_ranges, union
from dlcp.policy import Policy


class FakeCommunicator:
    """Args:
    losses: Called with (number of the operation, rank, contribution); returns the lost element ranges.
    width: Elements a packet.
    """

    def __init__(self, losses=lambda number, rank, array: [], *, policy=None, width=8):
        self.policy = policy or Policy()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.calls = []
        self.orders = []
        self.aborted = None
        self._losses = losses
        self._width = width
        self._group = dist.new_group(list(range(self.world)))
        self._queue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def elements_per_packet(self, dtype):
        return self._width

    def take_notices(self):
        return []

    def allreduce_async(self, array, *, op="mean", tags=None, out=None, bound=None, order=0):
        assert op == "mean" and array.flags.c_contiguous and array.dtype in (np.float32, np.float64)
        assert tags.dtype == np.uint8 and tags.size == -(-array.size // self._width) and not np.may_share_memory(array, out)
        operation = Operation(f"fake {len(self.calls)}")
        self.calls.append((array.copy(), tags.copy()))
        self.orders.append(order)
        self._queue.put((len(self.calls) - 1, array, out, operation))
        return operation

    def broadcast(self, array, root=0):
        tensor = torch.from_numpy(array)
        dist.broadcast(tensor, root, group=self._group)
        return array

    def abort(self, reason):
        self.aborted = reason

    def metrics(self):
        return {"fake": len(self.calls)}

    def close(self):
        self._queue.put(None)
        self._thread.join()

    def _run(self):
        while (item := self._queue.get()) is not None:
            number, array, out, operation = item
            try:
                lost = union(self._losses(number, self.rank, array), array.size)
                values = gather_ranges(array, lost)
                arrived = torch.from_numpy(array.copy())
                for start, stop in lost.tolist():
                    arrived[start:stop] = 0
                dist.all_reduce(arrived, group=self._group)
                out[:] = (arrived / self.world).numpy()
            except BaseException as error:
                operation.finish(None, error)
            else:
                operation.finish(Reduction(out, lost, values))


class AsideDevice:
    """A device with streams, with the host in its place: copies are done when they are asked for, and noted."""

    immediate = False
    pinned = False

    def __init__(self):
        self.log = []
        self.stream = "training"

    def collecting(self, buffer):
        return self._aside("collecting")

    def returning(self, buffer):
        return self._aside("returning")

    @contextmanager
    def _aside(self, stream):
        self.log.append(f"{stream} begins")
        before, self.stream = self.stream, stream
        yield
        self.stream = before
        self.log.append(f"{stream} ends")

    def upload(self, array):
        self.log.append(f"upload on {self.stream}")
        return torch.from_numpy(array)

    def mark(self):
        mark = f"mark on {self.stream}"
        self.log.append(mark)
        return lambda: self.log.append(f"waited for {mark}")

    def future(self):
        return torch.futures.Future()
