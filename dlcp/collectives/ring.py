"""Ring all-reduce: reduce-scatter around the ring, then all-gather around the ring.

Shard ``c`` starts at rank ``c``, gains one contribution a hop and is whole at rank ``c - 1``; the result then goes on around the
ring until every rank has it.  Parts of shards travel independently, so hops overlap.

What is lost on the way in is a partial sum, so the *sender* of the lost packets keeps the partial sum as its residual: mass is
conserved, but one loss delays several ranks' contributions.  That is why :mod:`dlcp.collectives.sharded` is the default.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlcp.collectives.bounds import PushBounds
from dlcp.collectives.collective import Collective, Wires, concatenate_lost, take_ranges
from dlcp.collectives.elements import from_wire, to_wire
from dlcp.collectives.operation import Operation, Reduction
from dlcp.collectives.plan import Part, Plan, packet_ranges
from dlcp.collectives.reduce import zero_lost
from dlcp.transport.events import MessageReceived, MessageSent, dtype_of, message_id, part_of, phase_of
from dlcp.wire.header import Phase


class RingAllReduce(Collective):
    """An all-reduce in which every rank talks to its two neighbours only.

    Args:
        wires: Way to the transport.
        number: Number of the call.
        handle: What the caller waits on.
        array: 1-D contiguous, float32 or float64; read until the call ends.
        output: 1-D, same length and dtype; may be ``array`` itself if no push may be lost.
        plan: The cut, with one shard a rank.
        tags: ``uint8[packets]``, class * 2 + protected.
        world: Number of ranks.
        mean: Divide by it.
        shape: Shape of the result.
        push: What may be missing of what this rank sends on the way in.
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
        world: int,
        mean: bool,
        shape: tuple[int, ...],
        push: PushBounds,
    ) -> None:
        super().__init__(wires, number, handle, plan.claim(array.dtype, mean), range(world))
        self._push = push
        self._array = array
        self._output = output
        self._plan = plan
        self._tags = tags
        self._world = world
        self._mean = mean
        self._shape = shape
        self._dtype = plan.dtype_field(mean)
        self._next = (wires.rank + 1) % world
        self._previous = (wires.rank - 1) % world
        self._shards = [plan.shard(shard) for shard in range(world)]
        self._parts: list[tuple[int, Part]] = [(shard, part) for shard, parts in enumerate(self._shards) for part in parts]
        self._reducing: set[int] = set()
        self._gathering: set[int] = set()
        self._sending: dict[int, NDArray[np.uint8]] = {}
        self._lost: list[tuple[NDArray[np.int64], NDArray[Any]]] = []

    def start(self, now: int) -> None:
        me, item = self.wires.rank, self._plan.item
        for number, (shard, part) in enumerate(self._parts):
            length = part.bytes(item)
            if shard != me:
                self._reducing.add(number)
                self.wires.expect(self._previous, self._id(Phase.RING_REDUCE, number), length, now=now)
            if shard != (me + 1) % self._world:
                self._gathering.add(number)
                self.wires.expect(self._previous, self._id(Phase.RING_GATHER, number), length, now=now)
        for number, (shard, part) in enumerate(self._parts):
            if shard == me:
                self._pass_on(number, part, to_wire(self._array[part.elements], self._plan.kind), now)
        self._maybe_finish()

    def on_received(self, event: MessageReceived, now: int) -> bool:
        phase, number = phase_of(event.message), part_of(event.message)
        if event.peer != self._previous or dtype_of(event.message) != self._dtype or number >= len(self._parts):
            return False
        if event.data.size != self._parts[number][1].bytes(self._plan.item):
            return False
        if phase == Phase.RING_REDUCE and number in self._reducing:
            self._reducing.discard(number)
            self._reduce(number, event, now)
        elif phase == Phase.RING_GATHER and number in self._gathering:
            self._gathering.discard(number)
            self._gather(number, event, now)
        else:
            return False
        self._maybe_finish()
        return True

    def _reduce(self, number: int, event: MessageReceived, now: int) -> None:
        shard, part = self._parts[number]
        zero_lost(event.data, event.lost, event.stride)
        with np.errstate(over="ignore", invalid="ignore"):
            total = np.add(from_wire(event.data, self._plan.kind), self._array[part.elements])
        if shard != (self.wires.rank + 1) % self._world:
            self._pass_on(number, part, to_wire(total, self._plan.kind), now)
            return
        if self._mean:
            np.multiply(total, total.dtype.type(1 / self._world), out=total)
        payload = to_wire(total, self._plan.kind)
        self._output[part.elements] = from_wire(payload, self._plan.kind)
        self._spread(number, part, payload, now)

    def _gather(self, number: int, event: MessageReceived, now: int) -> None:
        shard, part = self._parts[number]
        data = event.data
        if event.lost.size:
            scale = 1 if self._mean else self._world
            for start, stop in packet_ranges(
                event.lost, self._plan.per_packet, part.elements.stop - part.elements.start
            ).tolist():
                with np.errstate(over="ignore", invalid="ignore"):
                    guess = self._array[part.elements.start + start : part.elements.start + stop] * scale
                data[start * self._plan.item : stop * self._plan.item] = to_wire(guess, self._plan.kind)
        self._output[part.elements] = from_wire(data, self._plan.kind)
        # The shard was whole at rank shard - 1, so shard - 2 is the last to hear of it.
        if self.wires.rank != (shard - 2) % self._world:
            self._spread(number, part, data, now)

    def _pass_on(self, number: int, part: Part, payload: NDArray[np.uint8], now: int) -> None:
        self._sending[number] = payload
        tags, bound = self._push.apply(self._tags[part.packets])
        self.wires.send(
            self._next, self._id(Phase.RING_REDUCE, number), payload, tags=tags, bound=bound, now=now, order=self.order
        )

    def _spread(self, number: int, part: Part, payload: NDArray[np.uint8], now: int) -> None:
        bound = self.bound(Phase.RING_GATHER)
        tags = self._tags[part.packets] if bound else self._tags[part.packets] | np.uint8(1)
        self.wires.send(
            self._next, self._id(Phase.RING_GATHER, number), payload, tags=tags, bound=bound, now=now, order=self.order
        )

    def on_sent(self, event: MessageSent, now: int) -> None:
        if phase_of(event.message) != Phase.RING_REDUCE:
            return
        number = part_of(event.message)
        payload = self._sending.pop(number, None)
        if payload is None:
            return
        if event.lost.size:
            _, part = self._parts[number]
            count = part.elements.stop - part.elements.start
            ranges = packet_ranges(event.lost, self._plan.per_packet, count)
            values = take_ranges(from_wire(payload, self._plan.kind), ranges)
            self._lost.append((ranges + part.elements.start, values.astype(self._array.dtype, copy=False)))
        self._maybe_finish()

    def missing(self) -> str:
        parts = []
        if self._reducing or self._gathering:
            parts.append(f"{len(self._reducing)} partial sums and {len(self._gathering)} results of rank {self._previous}")
        if self._sending:
            parts.append(f"{len(self._sending)} acknowledgements of rank {self._next}")
        return ", ".join(parts)

    def _id(self, phase: Phase, number: int) -> int:
        return message_id(self.number, phase, self._dtype, number)

    def _maybe_finish(self) -> None:
        if not (self._reducing or self._gathering or self._sending):
            lost, residual = concatenate_lost(self._lost, self._array.dtype)
            self.handle.finish(Reduction(self._output.reshape(self._shape), lost, residual))
