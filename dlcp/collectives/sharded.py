"""Sharded all-reduce: every owner reduces one shard.

One hop to the owner, one hop back: what is lost on the way in costs one contribution, never a partial sum.  With every rank an
owner this is the peer-to-peer form; with owners that contribute nothing it is a parameter server.

* A contributor *pushes* its slice of every shard to the shard's owner, and *expects* the reduced slice back.
* An owner adds up a part as soon as all contributions to it are in, and sends the result to every contributor.  The result is
  computed once, so all replicas hold the same bits.
* The call ends at a contributor when all results are in and all its pushes are acknowledged, for only then is it known what
  was lost.  Results on their way to others live in buffers of their own, so the caller may overwrite its array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlcp.collectives.bounds import PushBounds
from dlcp.collectives.collective import Collective, Wires, concatenate_lost, put_ranges, take_ranges
from dlcp.collectives.elements import from_wire, to_wire
from dlcp.collectives.operation import Operation, Reduction
from dlcp.collectives.plan import Part, Plan
from dlcp.collectives.reduce import reduce_contributions, zero_lost
from dlcp.transport.events import MessageReceived, MessageSent, dtype_of, message_id, part_of, phase_of
from dlcp.wire.header import Phase, WireType

_NONE = np.zeros(0, np.int64)


class PartReduction:
    """One part at its owner, until all contributions are in."""

    def __init__(self, contributors: Sequence[int]) -> None:
        self._waiting = set(contributors)
        self._order = tuple(contributors)
        self._data: dict[int, NDArray[Any]] = {}
        self._lost: dict[int, NDArray[np.int64]] = {}

    def add(self, rank: int, data: NDArray[Any], lost: NDArray[np.int64]) -> bool:
        """Takes a contribution; returns whether it was the last one.  A second one of the same rank is refused."""
        if rank not in self._waiting:
            raise ValueError(f"rank {rank} contributes twice or has no business here")
        self._waiting.discard(rank)
        self._data[rank] = data
        self._lost[rank] = lost
        return not self._waiting

    @property
    def waiting(self) -> set[int]:
        return self._waiting

    def total(self, kind: WireType, per_packet: int, *, mean: bool, rescale: bool) -> NDArray[Any]:
        """Sums up and lets go of the contributions."""
        data = [self._data.pop(rank) for rank in self._order]
        lost = [self._lost.pop(rank) for rank in self._order]
        divisor = len(self._order) if mean else 1
        return reduce_contributions(data, lost, kind, per_packet, divisor=divisor, rescale=rescale)


class ShardedAllReduce(Collective):
    """An all-reduce at a contributor, which may be an owner too.

    Args:
        wires: Way to the transport.
        number: Number of the call.
        handle: What the caller waits on.
        array: 1-D contiguous, float32 or float64; read until the call ends.
        output: 1-D, same length and dtype; may be ``array`` itself if no push may be lost.
        plan: The cut.
        tags: ``uint8[packets]``, class * 2 + protected.
        contributors: Ranks that contribute, ascending.
        owners: Ranks that own shards, in shard order.
        mean: Divide by the number of contributors.
        shape: Shape of the result.
        push: What may be missing of the contribution.
    """

    def __init__(
        self,
        wires: Wires,
        number: int,
        handle: Operation,
        *,
        array: NDArray[Any],
        output: NDArray[Any],
        plan: Plan,
        tags: NDArray[np.uint8],
        contributors: Sequence[int],
        owners: Sequence[int],
        mean: bool,
        shape: tuple[int, ...],
        push: PushBounds,
    ) -> None:
        super().__init__(wires, number, handle, plan.claim(array.dtype, mean), contributors)
        self._push = push
        self._array = array
        self._output = output
        self._plan = plan
        self._tags = tags
        self._contributors = tuple(contributors)
        self._owners = tuple(owners)
        self._mean = mean
        self._shape = shape
        self._dtype = plan.dtype_field(mean)
        self._direct = output.dtype.itemsize == plan.item
        self._pushes: dict[tuple[int, int], Part] = {}
        self._pulls: dict[tuple[int, int], Part] = {}
        self._own: dict[int, tuple[Part, PartReduction]] = {}
        self._lost: list[tuple[NDArray[np.int64], NDArray[Any]]] = []

    def start(self, now: int) -> None:
        me = self.wires.rank
        wire = to_wire(self._array, self._plan.kind)
        item = self._plan.item
        turn = sorted(range(len(self._owners)), key=lambda shard: (self._owners[shard] - me) % (max(self._owners) + 1))
        for shard in turn:
            owner = self._owners[shard]
            for part in self._plan.shard(shard):
                if owner == me:
                    self._start_own(part, now)
                    continue
                payload = wire[part.elements.start * item : part.elements.stop * item]
                self._pushes[owner, part.index] = part
                self._pulls[owner, part.index] = part
                buffer = self._output[part.elements].view(np.uint8) if self._direct else None
                self.wires.expect(owner, self._id(Phase.PULL, part), payload.size, buffer=buffer, now=now)
                tags, bound = self._push.apply(self._tags[part.packets])
                self.wires.send(owner, self._id(Phase.PUSH, part), payload, tags=tags, bound=bound, now=now, order=self.order)
        self._maybe_finish()

    def _start_own(self, part: Part, now: int) -> None:
        reduction = PartReduction(self._contributors)
        self._own[part.index] = (part, reduction)
        for peer in self._contributors:
            if peer != self.wires.rank:
                self.wires.expect(peer, self._id(Phase.PUSH, part), part.bytes(self._plan.item), now=now)
        # One's own share takes the same rounding as everybody's, or the result would depend on who owns it.
        own = self._array[part.elements]
        data = own if self._direct else to_wire(own, self._plan.kind)
        if reduction.add(self.wires.rank, data, _NONE):
            self._reduced(part, reduction, now)

    def on_received(self, event: MessageReceived, now: int) -> bool:
        phase, index = phase_of(event.message), part_of(event.message)
        if dtype_of(event.message) != self._dtype:
            return False
        if phase == Phase.PUSH and index in self._own:
            part, reduction = self._own[index]
            if event.peer not in reduction.waiting or event.data.size != part.bytes(self._plan.item):
                return False
            zero_lost(event.data, event.lost, event.stride)
            if reduction.add(event.peer, event.data, event.lost):
                self._reduced(part, reduction, now)
            return True
        if phase == Phase.PULL and (event.peer, index) in self._pulls:
            self._take_result(self._pulls.pop((event.peer, index)), event)
            self._maybe_finish()
            return True
        return False

    def _take_result(self, part: Part, event: MessageReceived) -> None:
        ranges = self._plan.lost_elements(part, event.lost)
        # The best guess at a mean that did not come is one's own share; replicas differ there until they resynchronize.
        guess = take_ranges(self._array, ranges)
        if not self._direct:
            self._output[part.elements] = from_wire(event.data, self._plan.kind)
        if len(ranges):
            with np.errstate(over="ignore", invalid="ignore"):
                put_ranges(self._output, ranges, guess if self._mean else guess * len(self._contributors))

    def _reduced(self, part: Part, reduction: PartReduction, now: int) -> None:
        del self._own[part.index]
        rescale = self.wires.policy.loss.compensation == "rescale"
        total = reduction.total(self._plan.kind, self._plan.per_packet, mean=self._mean, rescale=rescale)
        payload = to_wire(total, self._plan.kind)
        self._output[part.elements] = total if self._direct else from_wire(payload, self._plan.kind)
        bound = self.bound(Phase.PULL)
        tags = self._tags[part.packets] if bound else self._tags[part.packets] | np.uint8(1)
        for peer in self._contributors:
            if peer != self.wires.rank:
                self.wires.send(peer, self._id(Phase.PULL, part), payload, tags=tags, bound=bound, now=now, order=self.order)
        self._maybe_finish()

    def on_sent(self, event: MessageSent, now: int) -> None:
        part = self._pushes.pop((event.peer, part_of(event.message)), None) if phase_of(event.message) == Phase.PUSH else None
        if part is None:
            return
        if event.lost.size:
            ranges = self._plan.lost_elements(part, event.lost)
            self._lost.append((ranges, take_ranges(self._array, ranges)))
        self._maybe_finish()

    def missing(self) -> str:
        waits = sorted({peer for _, r in self._own.values() for peer in r.waiting if peer != self.wires.rank})
        parts = []
        if waits:
            parts.append(f"contributions of ranks {waits}")
        if self._pulls:
            parts.append(f"results of ranks {sorted({peer for peer, _ in self._pulls})}")
        if self._pushes:
            parts.append(f"acknowledgements of ranks {sorted({peer for peer, _ in self._pushes})}")
        return ", ".join(parts)

    def _id(self, phase: Phase, part: Part) -> int:
        return message_id(self.number, phase, self._dtype, part.index)

    def _maybe_finish(self) -> None:
        if not (self._own or self._pulls or self._pushes):
            lost, residual = concatenate_lost(self._lost, self._array.dtype)
            self.handle.finish(Reduction(self._output.reshape(self._shape), lost, residual))
