"""A whole job in virtual time: communicators whose engines talk over a virtual network, inside one function call."""

from unittest import mock

import numpy as np

from dlcp.collectives.communicator import Communicator
from dlcp.collectives.engine import Engine
from dlcp.collectives.server import ServedAllReduce
from dlcp.policy import Policy
from dlcp.transport.endpoint import Endpoint
from dlcp.transport.events import operation_of
from dlcp.transport.virtual import VirtualNetwork, Weather

STRIDE = 256
SECOND = 1_000_000_000


class Node(Engine):
    """An engine as the network drives it."""

    def events(self):
        return ()

    def _on_received(self, event, now):
        # Lost packets hold whatever the buffer held before.  Unless that is the caller's own array, it is nothing to be used.
        array = getattr(self._running.get(operation_of(event.message)), "_array", None)
        own = array is not None and np.may_share_memory(array, event.data)
        for packet in () if own else event.lost.tolist():
            event.data[packet * event.stride : (packet + 1) * event.stride] = 0xFF
        super()._on_received(event, now)


class _Thread:
    """Runs calls at once: everything here is one thread."""

    def __init__(self, job):
        self._job = job

    def call(self, function):
        function(self._job.network.now)


class _Link:
    inside = False

    def __init__(self, job, rank):
        self.engine = job.nodes[rank]
        self.thread = _Thread(job)
        self.address = ("virtual", rank)

    def abort(self, reason):
        self.thread.call(lambda now: self.engine.abort(reason, now))

    def close(self):
        self.thread.call(self.engine.leave)


class Job:
    """``world`` communicators and ``servers`` servers.

    Args:
        policies: One for all, or one for each rank.
        cut: ``cut(source, destination, now)``: whether the way is down.
        link: A bottleneck in front of every rank.
    """

    def __init__(
        self,
        world,
        *,
        algorithm="sharded",
        servers=0,
        policies=None,
        weather=None,
        seed=0,
        stride=STRIDE,
        cut=None,
        window=1 << 20,
        link=None,
    ):
        self.world = world
        total = world + servers
        policies = policies or Policy()
        if isinstance(policies, Policy):
            policies = [policies] * total
        self.nodes = {}
        for rank in range(total):
            endpoint = Endpoint(
                rank=rank, world=total, cookie=42, policy=policies[rank], stride=STRIDE, receive_window=1 << 20, now=0
            )
            node = self.nodes[rank] = Node(rank, policies[rank], endpoint)
            if rank >= world:
                endpoint.keep_tags = True
                node.serve = lambda event, node=node: ServedAllReduce(node, operation_of(event.message), range(world))
        kwargs = {} if cut is None else {"cut": cut}
        self.network = VirtualNetwork(self.nodes, np.random.default_rng(seed), weather or Weather(), link=link, **kwargs)
        self.communicators = []
        for rank in range(world):
            with mock.patch("dlcp.collectives.communicator.Link", lambda rank, *args, **kwargs: _Link(self, rank)):
                communicator = Communicator(rank, world, None, policy=policies[rank], algorithm=algorithm, servers=servers)
            self.communicators.append(communicator)

    def run(self, operations, *, limit_s=60.0):
        """Lets time pass until all operations have ended; returns whether they have."""
        return self.network.run(lambda: all(op.done() for op in operations), limit_ns=int(limit_s * SECOND))

    def errors(self, operations, *, limit_s=60.0):
        """Lets time pass until all operations have ended; returns what ended each, and how many seconds that took."""
        begin = self.network.now
        assert self.run(operations, limit_s=limit_s), [op.description for op in operations if not op.done()]
        return [op.exception() for op in operations], (self.network.now - begin) / SECOND

    def settle(self, *, limit_s=30.0):
        """Lets time pass until nothing is on its way any more."""
        return self.network.run(lambda: all(node.idle for node in self.nodes.values()), limit_ns=int(limit_s * SECOND))

    def allreduce(self, arrays, **kwargs):
        """Reduces one array a rank and returns the results."""
        operations = [c.allreduce_async(a, **kwargs) for c, a in zip(self.communicators, arrays, strict=True)]
        assert self.run(operations), [
            (op.description, n._running) for op, n in zip(operations, self.nodes.values(), strict=False)
        ]
        return [op.result() for op in operations]

    def close(self):
        for communicator in self.communicators:
            communicator.close()
