"""Reductions that lose nothing: all-reduce, reduce-scatter and reduce, of any operator and type of element.

All three are one machine.  An array is cut into *shards*, each owned by one rank.  Everybody sends its piece of a shard to the
owner; the owner combines a part as soon as all pieces of it are in.  An all-reduce then *spreads* the result.  A reduce-scatter
keeps it, and a reduce is a reduce-scatter in which one rank owns everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlcp.collectives.arithmetic import Arithmetic
from dlcp.collectives.collective import Collective, Wires, empty_reduction
from dlcp.collectives.operation import Operation
from dlcp.collectives.plan import Part, Plan
from dlcp.transport.events import MessageReceived, MessageSent, dtype_of, message_id, part_of, phase_of
from dlcp.wire.header import Phase, WireType

Bytes = NDArray[np.uint8]

BULK_CLASS = 3
"""Class of bulk data that come without one: the middle."""


def cut(length: int, wires: Wires) -> list[Part]:
    """Cuts ``length`` bytes into messages, at least one; elements of up to 8 bytes stay whole."""
    return Plan(length, WireType.UINT8, wires.stride, wires.policy.wire.message_bytes, 1).shard(0)


def reliable_tags(part: Part, priority: int) -> Bytes:
    """Returns the tags of a message all of whose packets are protected."""
    return np.full(part.packets.stop - part.packets.start, priority * 2 + 1, np.uint8)


class ExactReduction(Collective):
    """A reduction at one rank.

    Args:
        wires: Way to the transport.
        number: Number of the call.
        handle: What the caller waits on.
        claim: What the call is, in words.
        inputs: By owner of a shard, ascending: this rank's piece of it, raw bytes; read until the call ends.
        outputs: By owner: where the result goes, raw bytes.  All of them if results are spread, otherwise only this rank's.
            An output may be the same memory as the input of that shard.
        arithmetic: How pieces are combined.
        ranks: All ranks, ascending.
        spread: Whether everybody gets every result.
        result: What the caller gets.
        priority: Class of the messages.
    """

    def __init__(
        self,
        wires: Wires,
        number: int,
        handle: Operation,
        claim: str,
        *,
        inputs: Mapping[int, Bytes],
        outputs: Mapping[int, Bytes],
        arithmetic: Arithmetic,
        ranks: Sequence[int],
        spread: bool,
        result: NDArray[Any],
        priority: int = BULK_CLASS,
    ) -> None:
        super().__init__(wires, number, handle, claim, ranks)
        self._inputs = inputs
        self._outputs = outputs
        self._arithmetic = arithmetic
        self._spread = spread
        self._result = result
        self._priority = priority
        self._shards = {owner: cut(data.size, wires) for owner, data in inputs.items() if data.size}
        parts = max(1, sum(len(parts) for parts in self._shards.values()))
        self._dtype = arithmetic.dtype_field(parts, spread=spread)
        self._own: dict[int, tuple[Part, dict[int, Bytes]]] = {}
        self._pulls: dict[tuple[int, int], Part] = {}
        self._pushes: set[tuple[int, int]] = set()

    def start(self, now: int) -> None:
        me = self.wires.rank
        # Everybody begins with the rank after its own, so that no owner is everybody's first.
        turn = sorted(self._shards, key=lambda owner: (owner - me) % (max(self.callers) + 1))
        for owner in turn:
            for part in self._shards[owner]:
                if owner == me:
                    self._start_own(part, now)
                    continue
                if self._spread:
                    self._pulls[owner, part.index] = part
                    buffer = self._outputs[owner][part.elements]
                    self.wires.expect(owner, self._id(Phase.PULL, part.index), buffer.size, buffer=buffer, now=now)
                self._pushes.add((owner, part.index))
                payload = self._inputs[owner][part.elements]
                tags = reliable_tags(part, self._priority)
                self.wires.send(owner, self._id(Phase.PUSH, part.index), payload, tags=tags, bound=0, now=now)
        self._maybe_finish()

    def _start_own(self, part: Part, now: int) -> None:
        me = self.wires.rank
        pieces = {me: self._inputs[me][part.elements]}
        self._own[part.index] = (part, pieces)
        for peer in self.callers:
            if peer != me:
                self.wires.expect(peer, self._id(Phase.PUSH, part.index), part.bytes(1), now=now)
        self._maybe_reduce(part, pieces, now)

    def on_received(self, event: MessageReceived, now: int) -> bool:
        phase, index = phase_of(event.message), part_of(event.message)
        if dtype_of(event.message) != self._dtype:
            return False
        if phase == Phase.PUSH and index in self._own:
            part, pieces = self._own[index]
            if event.peer in pieces or event.data.size != part.bytes(1):
                return False
            pieces[event.peer] = event.data
            self._maybe_reduce(part, pieces, now)
        elif phase == Phase.PULL and (event.peer, index) in self._pulls:
            part = self._pulls[event.peer, index]
            if event.data.size != part.bytes(1):
                return False
            del self._pulls[event.peer, index]
            target = self._outputs[event.peer][part.elements]
            # A part that came before the call was made stands in a buffer of its own.
            if not np.may_share_memory(target, event.data):
                target[:] = event.data
        else:
            return False
        self._maybe_finish()
        return True

    def _maybe_reduce(self, part: Part, pieces: dict[int, Bytes], now: int) -> None:
        if len(pieces) < len(self.callers):
            return
        del self._own[part.index]
        total = self._arithmetic.combine([pieces[rank] for rank in self.callers])
        self._outputs[self.wires.rank][part.elements] = total
        if self._spread:
            tags = reliable_tags(part, self._priority)
            for peer in self.callers:
                if peer != self.wires.rank:
                    self.wires.send(peer, self._id(Phase.PULL, part.index), total, tags=tags, bound=0, now=now)

    def on_sent(self, event: MessageSent, now: int) -> None:
        if phase_of(event.message) == Phase.PUSH:
            self._pushes.discard((event.peer, part_of(event.message)))
            self._maybe_finish()

    def missing(self) -> str:
        waits = sorted({peer for _, pieces in self._own.values() for peer in self.callers if peer not in pieces})
        parts = []
        if waits:
            parts.append(f"contributions of ranks {waits}")
        if self._pulls:
            parts.append(f"results of ranks {sorted({peer for peer, _ in self._pulls})}")
        if self._pushes:
            parts.append(f"acknowledgements of ranks {sorted({peer for peer, _ in self._pushes})}")
        return ", ".join(parts)

    def _id(self, phase: Phase, index: int) -> int:
        return message_id(self.number, phase, self._dtype, index)

    def _maybe_finish(self) -> None:
        if not (self._own or self._pulls or self._pushes):
            self.handle.finish(empty_reduction(self._result))
