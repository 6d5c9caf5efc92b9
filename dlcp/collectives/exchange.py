"""Exchanges: every rank sends some ranks bytes of its own, reliably: all-gather, gather, scatter, all-to-all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlcp.collectives.collective import Collective, Wires, empty_reduction
from dlcp.collectives.elements import dtype_field
from dlcp.collectives.exact import BULK_CLASS, cut, reliable_tags
from dlcp.collectives.operation import Operation
from dlcp.collectives.plan import Part
from dlcp.transport.events import MessageReceived, MessageSent, message_id
from dlcp.wire.header import Phase, WireType

Bytes = NDArray[np.uint8]


class Exchange(Collective):
    """An exchange at one rank.  Both ends of each transfer list it, empty ones too.

    Args:
        wires: Way to the transport.
        number: Number of the call.
        handle: What the caller waits on.
        claim: What the call is, in words.
        sends: By receiver: raw bytes, read until the call ends.
        receives: By sender: where its bytes go.  No send may overlap any of them; after a failure their contents are unspecified.
        ranks: All ranks, ascending.
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
        sends: Mapping[int, Bytes],
        receives: Mapping[int, Bytes],
        ranks: tuple[int, ...],
        result: NDArray[Any],
        priority: int = BULK_CLASS,
    ) -> None:
        super().__init__(wires, number, handle, claim, ranks)
        self._sends = sends
        self._receives = receives
        self._result = result
        self._priority = priority
        self._waiting: dict[tuple[int, int], Part] = {}
        self._unacknowledged: set[tuple[int, int]] = set()

    def start(self, now: int) -> None:
        me = self.wires.rank
        for peer, buffer in self._receives.items():
            if peer == me:
                buffer[:] = self._sends[me]
                continue
            parts = cut(buffer.size, self.wires)
            for part in parts:
                message = self._id(parts, part)
                self._waiting[peer, message] = part
                piece = buffer[part.elements]
                self.wires.expect(peer, message, piece.size, buffer=piece, now=now)
        for peer in sorted(self._sends, key=lambda rank: (rank - me) % (max(self.callers) + 1)):
            if peer == me:
                continue
            data = self._sends[peer]
            parts = cut(data.size, self.wires)
            for part in parts:
                message = self._id(parts, part)
                self._unacknowledged.add((peer, message))
                tags = reliable_tags(part, self._priority)
                self.wires.send(peer, message, data[part.elements], tags=tags, bound=0, now=now)
        self._maybe_finish()

    def on_received(self, event: MessageReceived, now: int) -> bool:
        part = self._waiting.get((event.peer, event.message))
        if part is None or event.data.size != part.bytes(1):
            return False
        del self._waiting[event.peer, event.message]
        piece = self._receives[event.peer][part.elements]
        # A part that came before the call was made stands in a buffer of its own.
        if not np.may_share_memory(piece, event.data):
            piece[:] = event.data
        self._maybe_finish()
        return True

    def on_sent(self, event: MessageSent, now: int) -> None:
        self._unacknowledged.discard((event.peer, event.message))
        self._maybe_finish()

    def missing(self) -> str:
        parts = []
        if self._waiting:
            parts.append(f"data of ranks {sorted({peer for peer, _ in self._waiting})}")
        if self._unacknowledged:
            parts.append(f"acknowledgements of ranks {sorted({peer for peer, _ in self._unacknowledged})}")
        return ", ".join(parts)

    def _id(self, parts: list[Part], part: Part) -> int:
        return message_id(self.number, Phase.EXCHANGE, dtype_field(WireType.UINT8, parts=len(parts)), part.index)

    def _maybe_finish(self) -> None:
        if not (self._waiting or self._unacknowledged):
            self.handle.finish(empty_reduction(self._result))
