"""Virtual workers: N ranks of a job in one process, between which packets get lost as a pattern says.

Everything but the network is what a real job runs: each worker has a :class:`~dlcp.torch.reducer.Reducer`, so that tags,
residuals and compensation are the hook's; packets, shards and the arithmetic of owners are those of the collectives.  Only the
communicator is another one: it has all contributions at hand, and takes packets out instead of waiting for them.
"""

from __future__ import annotations

import threading
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor, nn

from dlcp.collectives.collective import take_ranges
from dlcp.collectives.communicator import Communicator
from dlcp.collectives.elements import from_wire, item_bytes, to_wire, wire_type
from dlcp.collectives.operation import Operation, Reduction
from dlcp.collectives.plan import Plan, packet_ranges
from dlcp.collectives.reduce import reduce_contributions, zero_lost
from dlcp.collectives.residual import ResidualStore
from dlcp.policy import Policy
from dlcp.tagging.magnitude import PacketLayout
from dlcp.tolerance.patterns import Loss
from dlcp.torch.layout import BucketLayout, LayerClasses, ParameterNames
from dlcp.torch.reducer import Reducer

ETHERNET_MTU = 1500
"""Where the policy leaves the packets' size to the interface."""


class Hub:
    """The network and all owners of shards.

    Args:
        policy: Compensation, and what packets look like.
        ranks: Number of workers.
        loss: What gets lost; None for nothing.
        edges: ``int64[P + 1]``, where parameters begin and end.
        random: Decides.

    Attributes:
        packets: Packets that travelled so far.
        lost: Those of them that got lost.
        classes: Classes of droppable packets that travelled.  A parameter smaller than a packet may have a class that no packet
            has: packets have the most urgent class of what they hold.
    """

    def __init__(
        self, policy: Policy, ranks: int, loss: Loss | None, edges: NDArray[np.int64], random: np.random.Generator
    ) -> None:
        self.policy = policy
        self.ranks = ranks
        self.stride = policy.payload_bytes(policy.wire.datagram_mtu(ETHERNET_MTU))
        self.packets = 0
        self.lost = 0
        self.classes: set[int] = set()
        self._loss = loss
        self._edges = edges
        self._random = random
        self._layout: PacketLayout | None = None
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[NDArray[Any], NDArray[Any], NDArray[np.uint8], Operation]] = {}

    def contribute(self, rank: int, array: NDArray[Any], out: NDArray[Any], tags: NDArray[np.uint8]) -> Operation:
        """Takes a worker's contribution, from a thread of that worker; with the last one all get the mean."""
        operation = Operation(f"virtual all-reduce of {array.size} elements", array.nbytes)
        with self._lock:
            self._waiting[rank] = (array, out, tags, operation)
            complete = len(self._waiting) == self.ranks
            if complete:
                waiting, self._waiting = self._waiting, {}
        if complete:
            self._reduce([waiting[rank] for rank in range(self.ranks)])
        return operation

    def _reduce(self, calls: list[tuple[NDArray[Any], NDArray[Any], NDArray[np.uint8], Operation]]) -> None:
        first = calls[0][0]
        kind = wire_type(first.dtype, self.policy.wire.dtype)
        plan = Plan(first.size, kind, self.stride, self.policy.wire.message_bytes, self.ranks)
        lost = [self._choose(rank, array, tags, plan) for rank, (array, _, tags, _) in enumerate(calls)]
        contributions = []
        for (array, _, _, _), packets in zip(calls, lost, strict=True):
            data = to_wire(array, kind).copy()
            zero_lost(data, packets, self.stride)
            contributions.append(data)
        rescale = self.policy.loss.compensation == "rescale"
        total = reduce_contributions(contributions, lost, kind, plan.per_packet, divisor=self.ranks, rescale=rescale)
        mean = from_wire(to_wire(total, kind), kind)
        for (array, out, _, operation), packets in zip(calls, lost, strict=True):
            ranges = packet_ranges(packets, plan.per_packet, plan.elements)
            residual = take_ranges(array, ranges)
            out[:] = mean
            operation.finish(Reduction(out, ranges, residual))

    def _choose(self, rank: int, array: NDArray[Any], tags: NDArray[np.uint8], plan: Plan) -> NDArray[np.int64]:
        travels = np.ones(plan.packets, bool)
        for part in plan.shard(rank):
            travels[part.packets] = False
        self.packets += int(np.count_nonzero(travels))
        self.classes.update(np.unique(tags[travels & (tags & 1 == 0)] >> 1).tolist())
        if self._loss is None:
            return np.zeros(0, np.int64)
        scores = np.zeros(0, np.float32)
        if self._loss.kind in ("smallest", "largest"):
            if self._layout is None:
                self._layout = PacketLayout(self._edges, plan.per_packet, self.policy.protection.sample)
            scores = self._layout.scores(torch.from_numpy(array)).numpy()
        lost = self._loss.choose(tags, travels, scores, rank, self.ranks, self._random)
        self.lost += int(lost.size)
        return lost


class _Communicator:
    """What a reducer needs of a communicator."""

    def __init__(self, rank: int, hub: Hub) -> None:
        self.rank, self.world, self.policy = rank, hub.ranks, hub.policy
        self._hub = hub

    def elements_per_packet(self, dtype: DTypeLike) -> int:
        return self._hub.stride // item_bytes(wire_type(np.dtype(dtype), self.policy.wire.dtype))

    def allreduce_async(
        self,
        array: NDArray[Any],
        *,
        op: str,
        tags: NDArray[np.uint8],
        out: NDArray[Any],
        bound: float | None = None,
        order: int = 0,
    ) -> Operation:
        return self._hub.contribute(self.rank, array, out, tags)

    def abort(self, reason: str) -> None:
        """There is nobody to tell."""


class VirtualJob:
    """N workers that train one model.

    Args:
        model: All workers' model: they never differ.
        policy: See :class:`Hub`; residuals only count with error feedback.
        ranks: Number of workers.
        loss: What gets lost; None for nothing.
        seed: Of what gets lost.
        order: Names of parameters in the order of their first use, which decides classes; None: that of the model.

    Attributes:
        hub: The network between them.
        residuals: What each worker still owes.
        classes: Class of each parameter.
    """

    def __init__(
        self, model: nn.Module, policy: Policy, ranks: int, loss: Loss | None, seed: int, order: list[str] | None = None
    ) -> None:
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        names = ParameterNames(model)
        self.classes = LayerClasses(names, policy.classes.count)
        if order is not None:
            self.classes.record(order)
        # DDP's buckets hold back layers first; here one holds all.
        self.layout = BucketLayout(self.parameters[::-1], names)
        self.hub = Hub(policy, ranks, loss, self.layout.edges, np.random.default_rng([seed, 1]))
        self.residuals = [ResidualStore() for _ in range(ranks)]
        self._reducers = [
            Reducer(
                cast(Communicator, _Communicator(rank, self.hub)),
                self.residuals[rank],
                names,
                self.classes,
                max_in_flight=1,
                began=_nothing,
                ended=_nothing,
            )
            for rank in range(ranks)
        ]

    def reduce(self, gradients: list[Tensor]) -> Tensor:
        """Returns the mean of the workers' gradients, as far as it arrives.

        Args:
            gradients: One vector a worker, as :meth:`gradient` returns them; overwritten.
        """
        for reducer, gradient in zip(self._reducers, gradients, strict=True):
            reducer.begin()
            reducer.launch(gradient, self.layout)
        for reducer in self._reducers:
            reducer.finish()
        return gradients[0]

    def gradient(self, loss: Tensor) -> Tensor:
        """Returns the gradient of a worker's loss as one vector, in the order of the bucket."""
        found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        flat = [
            torch.zeros_like(parameter) if gradient is None else gradient
            for parameter, gradient in zip(self.parameters, found, strict=True)
        ]
        return torch.cat([gradient.reshape(-1) for gradient in flat[::-1]])

    def give(self, mean: Tensor) -> None:
        """Sets the parameters' gradients."""
        sizes = [parameter.numel() for parameter in self.layout.parameters]
        for parameter, part in zip(self.layout.parameters, mean.split(sizes), strict=True):
            parameter.grad = part.view_as(parameter)

    def close(self) -> None:
        """Ends what runs in the background."""
        for reducer in self._reducers:
            reducer.close()


def _nothing() -> None:
    pass
