"""Which messages may come in: expected ones always, early ones as far as memory goes, those of past operations never.

A rank may be an operation behind the others.  What they send meanwhile is kept up to ``memory.early_bytes``, from the
first packet until the layer above asks for it, complete or not; beyond that senders are told to try later, and told again as soon
as the message is asked for.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from dlcp.transport.core import Core
from dlcp.transport.events import MessageRefused, operation_of, phase_of
from dlcp.transport.incoming import IncomingMessage
from dlcp.transport.peer import Expected, Peer
from dlcp.transport.serial import ahead
from dlcp.wire.header import Phase

EARLY_OVERHEAD_BYTES: Final = 1024
"""What an early message costs beyond its payload, so that empty ones are not free."""
MAX_REFUSED: Final = 4096
"""Refused messages of one peer that are remembered; the senders of others find out by probing."""


class Admission:
    """Keeps the books on what is expected, early, and over."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._early_bytes = 0
        self._retired: int | None = None
        self._retired_direct: dict[int, int] = {}

    @property
    def early_bytes(self) -> int:
        """Memory charged for messages that nobody here has asked for yet."""
        return self._early_bytes

    def expect(self, flow: Peer, message: int, length: int, buffer: NDArray[np.uint8] | None, now: int) -> int:
        """Announces a message; see :meth:`Receiver.expect`.

        Returns:
            The sequence number of the probe with which its sender asked in vain for room, or 0.

        Raises:
            ValueError: ``buffer`` is not ``length`` bytes long, or the message was expected before.
        """
        if buffer is not None and buffer.size != length:
            raise ValueError(f"buffer of {buffer.size} bytes for a message of {length}")
        if buffer is not None and not (buffer.flags.c_contiguous and buffer.flags.writeable and buffer.dtype == np.uint8):
            raise ValueError("the buffer is not contiguous, writable bytes")
        if message in flow.expected:
            raise ValueError("message is expected already")
        unclaimed = flow.unclaimed.pop(message, None)
        if unclaimed is not None:
            self._release(unclaimed)
            if unclaimed != length:
                self._core.events.append(MessageRefused(flow.rank, message, unclaimed, length))
            return 0
        flow.start_waiting(now)
        flow.expected[message] = Expected(length, buffer)
        known = flow.incoming.get(message)
        if known is None:
            return flow.refused.pop(message, 0)
        if known.length != length:
            self.refuse(flow, message, known.length, length)
            return 0
        known.posted = True
        self._release(known.length)
        if buffer is not None:
            self._core.arrivals.close(known)
            buffer[:] = known.buffer
            known.buffer = buffer
        return 0

    def room(self, length: int) -> bool:
        """Whether a message that nobody here expects yet may be kept."""
        return self._early_bytes + length + EARLY_OVERHEAD_BYTES <= self._core.policy.memory.early_bytes

    def charge(self, length: int) -> None:
        """An early message has begun to come."""
        self._early_bytes += length + EARLY_OVERHEAD_BYTES

    def _release(self, length: int) -> None:
        self._early_bytes -= length + EARLY_OVERHEAD_BYTES

    def remember(self, flow: Peer, message: int, sequence: int) -> None:
        """Notes that a message was refused for want of memory."""
        if sequence and (message in flow.refused or len(flow.refused) < MAX_REFUSED):
            flow.refused[message] = sequence

    def refuse(self, flow: Peer, message: int, length: int, expected: int) -> None:
        """The two ranks disagree about a message: says so, once."""
        if message not in flow.disputed:
            flow.disputed.add(message)
            self._core.events.append(MessageRefused(flow.rank, message, length, expected))

    def completed(self, flow: Peer, incoming: IncomingMessage) -> None:
        """A message is complete: it is expected no more, or waits to be."""
        flow.expected.pop(incoming.message, None)
        if not incoming.posted:
            flow.unclaimed[incoming.message] = incoming.length

    def over(self, peer: int, message: int) -> bool:
        """Whether the operation of a message from ``peer`` is over here."""
        direct = phase_of(message) == Phase.DIRECT
        retired = self._retired_direct.get(peer) if direct else self._retired
        return retired is not None and ahead(operation_of(message), retired) <= 0

    def retire_direct(self, peer: int, number: int) -> None:
        """Declares point-to-point messages of ``peer`` up to this number over; all of them are complete."""
        self._retired_direct[peer] = number

    def retire(self, operation: int) -> list[tuple[int, int]]:
        """Declares operations up to this one over and forgets all their messages.

        Returns:
            (peer, message) of those that were on their way in.
        """
        if self._retired is not None and ahead(operation, self._retired) <= 0:
            return []
        self._retired = operation
        dropped = []
        for flow in self._core.peers.values():
            for message in [m for m in flow.incoming if self.over(flow.rank, m)]:
                incoming = flow.incoming.pop(message)
                self._core.arrivals.close(incoming)
                dropped.append((flow.rank, message))
                if not incoming.posted:
                    self._release(incoming.length)
            for message in [m for m in flow.unclaimed if self.over(flow.rank, m)]:
                self._release(flow.unclaimed.pop(message))
            for book in (flow.expected, flow.refused):
                for message in [m for m in book if self.over(flow.rank, m)]:
                    del book[message]
            flow.disputed = {m for m in flow.disputed if not self.over(flow.rank, m)}
        return dropped

    def drop_all(self) -> None:
        """Forgets everything that is expected or has come too early."""
        self._early_bytes = 0
        for flow in self._core.peers.values():
            flow.expected.clear()
            flow.unclaimed.clear()
            flow.refused.clear()
            flow.disputed.clear()
