"""A dedicated parameter server's side of an all-reduce.

It is passive: what it must do stands in the headers of what comes, so it needs to know neither the model nor the order of calls.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dlcp.collectives.collective import Collective, Wires
from dlcp.collectives.elements import MEAN_BIT, item_bytes, to_wire
from dlcp.collectives.operation import Operation, Reduction
from dlcp.collectives.reduce import zero_lost
from dlcp.collectives.sharded import PartReduction
from dlcp.transport.events import MessageReceived, MessageSent, dtype_of, message_id, operation_of, part_of, phase_of
from dlcp.wire.header import Phase, WireType

PULL_CLASS = 3
_EMPTY = Reduction(np.zeros(0, np.float32), np.zeros((0, 2), np.int64), np.zeros(0, np.float32))


class ServedAllReduce(Collective):
    """The parts of one call that this server owns and that are in progress; a part that comes later makes a new one.

    Args:
        wires: Way to the transport.
        number: Number of the call.
        contributors: Ranks that contribute, ascending.
    """

    def __init__(self, wires: Wires, number: int, contributors: Sequence[int]) -> None:
        super().__init__(wires, number, Operation(f"operation {number} served to ranks {list(contributors)}"))
        self._contributors = tuple(contributors)
        self._parts: dict[int, PartReduction] = {}
        self._unacknowledged: set[tuple[int, int]] = set()

    def start(self, now: int) -> None:
        """Everything starts with a contribution."""

    def on_received(self, event: MessageReceived, now: int) -> bool:
        if phase_of(event.message) != Phase.PUSH or event.peer not in self._contributors:
            return False
        key = event.message
        reduction = self._parts.get(key)
        if reduction is None:
            reduction = self._parts[key] = PartReduction(self._contributors)
            for peer in self._contributors:
                if peer != event.peer:
                    self.wires.expect(peer, key, event.data.size, now=now)
        if event.peer not in reduction.waiting:
            return False
        zero_lost(event.data, event.lost, event.stride)
        if reduction.add(event.peer, event.data, event.lost):
            del self._parts[key]
            self._answer(reduction, event, now)
        return True

    def _answer(self, reduction: PartReduction, event: MessageReceived, now: int) -> None:
        dtype = dtype_of(event.message)
        kind = WireType(dtype & 0x0F)
        rescale = self.wires.policy.loss.compensation == "rescale"
        total = reduction.total(kind, event.stride // item_bytes(kind), mean=bool(dtype & MEAN_BIT), rescale=rescale)
        payload = to_wire(total, kind)
        message = message_id(operation_of(event.message), Phase.PULL, dtype, part_of(event.message))
        packets = max(1, -(-payload.size // event.stride))
        tags = np.full(packets, PULL_CLASS * 2 + 1, np.uint8)
        for peer in self._contributors:
            self._unacknowledged.add((peer, message))
            self.wires.send(peer, message, payload, tags=tags, bound=self.bound(Phase.PULL), now=now)

    def on_sent(self, event: MessageSent, now: int) -> None:
        self._unacknowledged.discard((event.peer, event.message))
        if not self._parts and not self._unacknowledged:
            self.handle.finish(_EMPTY)

    def missing(self) -> str:
        ranks = sorted({rank for reduction in self._parts.values() for rank in reduction.waiting})
        unacknowledged = sorted({peer for peer, _ in self._unacknowledged})
        return f"contributions of ranks {ranks}, acknowledgements of ranks {unacknowledged}"
