"""Collectives that lose nothing: broadcast and barrier."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlcp.collectives.collective import Collective, Wires, empty_reduction
from dlcp.collectives.elements import dtype_field
from dlcp.collectives.operation import Operation
from dlcp.collectives.plan import Part, Plan
from dlcp.transport.events import MessageReceived, MessageSent, message_id
from dlcp.wire.header import Phase, WireType

PLAIN_CLASS = 6
"""Both block everybody, so they travel with the front layers."""


class Broadcast(Collective):
    """Sends ``array`` of ``root`` to the others, in place and reliably.

    It is received into memory of its own and copied at the end: a failure must not leave an array half overwritten.

    Args:
        wires: Way to the transport.
        number: Number of the call.
        handle: What the caller waits on.
        array: What the result shows.
        data: Its bytes, ``uint8[n]``.
        plan: The cut, with one shard.
        root: Rank that sends.
        ranks: All ranks.
    """

    def __init__(
        self,
        wires: Wires,
        number: int,
        handle: Operation,
        *,
        array: NDArray[Any],
        data: NDArray[np.uint8],
        plan: Plan,
        root: int,
        ranks: tuple[int, ...],
    ) -> None:
        super().__init__(wires, number, handle, f"broadcast of {data.size} bytes from rank {root}", ranks)
        self._array = array
        self._data = data
        self._received = data if wires.rank == root else np.empty_like(data)
        self._plan = plan
        self._root = root
        self._ranks = ranks
        self._waiting: dict[tuple[int, int], Part] = {}

    def start(self, now: int) -> None:
        dtype = self._plan.dtype_field()
        for part in self._plan.shard(0):
            piece = self._received[part.elements]
            message = message_id(self.number, Phase.BROADCAST, dtype, part.index)
            if self.wires.rank != self._root:
                self._waiting[self._root, message] = part
                self.wires.expect(self._root, message, piece.size, buffer=piece, now=now)
                continue
            tags = np.full(part.packets.stop - part.packets.start, PLAIN_CLASS * 2 + 1, np.uint8)
            for peer in self._ranks:
                if peer != self._root:
                    self._waiting[peer, message] = part
                    self.wires.send(peer, message, piece, tags=tags, bound=0, now=now)
        self._maybe_finish()

    def on_received(self, event: MessageReceived, now: int) -> bool:
        part = None if self.wires.rank == self._root else self._waiting.get((event.peer, event.message))
        if part is None:
            return False
        piece = self._received[part.elements]
        if event.data.size != piece.size:
            return False
        del self._waiting[event.peer, event.message]
        # A part that came before the call was made stands in a buffer of its own.
        if not np.may_share_memory(piece, event.data):
            piece[:] = event.data
        self._maybe_finish()
        return True

    def on_sent(self, event: MessageSent, now: int) -> None:
        if self.wires.rank == self._root:
            self._waiting.pop((event.peer, event.message), None)
            self._maybe_finish()

    def missing(self) -> str:
        if self.wires.rank == self._root:
            return f"acknowledgements of ranks {sorted({peer for peer, _ in self._waiting})}"
        return f"{len(self._waiting)} parts from rank {self._root}"

    def _maybe_finish(self) -> None:
        if not self._waiting and not self.handle.done():
            if self._received is not self._data:
                self._data[:] = self._received
            self.handle.finish(empty_reduction(self._array))


class Barrier(Collective):
    """Ends when every rank has called it: all report to the lowest rank, which then releases all."""

    def __init__(self, wires: Wires, number: int, handle: Operation, *, ranks: tuple[int, ...]) -> None:
        super().__init__(wires, number, handle, "barrier", ranks)
        self._head = ranks[0]
        self._others = ranks[1:]
        self._reports: set[int] = set()
        self._released = False

    def start(self, now: int) -> None:
        if self.wires.rank == self._head:
            self._reports = set(self._others)
            for peer in self._others:
                self.wires.expect(peer, self._id(Phase.PUSH), 0, now=now)
            self._maybe_release(now)
        else:
            self.wires.expect(self._head, self._id(Phase.PULL), 0, now=now)
            self._empty(self._head, Phase.PUSH, now)

    def on_received(self, event: MessageReceived, now: int) -> bool:
        if event.data.size:
            return False
        if event.message == self._id(Phase.PUSH) and event.peer in self._reports:
            self._reports.discard(event.peer)
            self._maybe_release(now)
            return True
        if event.message == self._id(Phase.PULL) and event.peer == self._head:
            self.handle.finish(empty_reduction(np.zeros(0, np.float32)))
            return True
        return False

    def on_sent(self, event: MessageSent, now: int) -> None:
        """Nothing depends on acknowledgements."""

    def missing(self) -> str:
        return f"calls of ranks {sorted(self._reports)}" if self._reports else f"the release by rank {self._head}"

    def _maybe_release(self, now: int) -> None:
        if not self._reports:
            for peer in self._others:
                self._empty(peer, Phase.PULL, now)
            self.handle.finish(empty_reduction(np.zeros(0, np.float32)))

    def _empty(self, peer: int, phase: Phase, now: int) -> None:
        tags = np.full(1, PLAIN_CLASS * 2 + 1, np.uint8)
        self.wires.send(peer, self._id(phase), np.zeros(0, np.uint8), tags=tags, bound=0, now=now)

    def _id(self, phase: Phase) -> int:
        return message_id(self.number, phase, dtype_field(WireType.UINT8), 0)
