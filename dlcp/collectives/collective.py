"""What every collective is to the engine: a small state machine fed with transport events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dlcp.collectives.operation import Operation, Reduction
from dlcp.policy import Policy
from dlcp.transport.events import MessageReceived, MessageSent
from dlcp.transport.outgoing import bound_to_wire
from dlcp.wire.header import Phase

PULL_PHASES = (Phase.PULL, Phase.RING_GATHER)


class Wires(Protocol):
    """What the engine offers a collective."""

    rank: int
    policy: Policy
    stride: int

    def send(
        self,
        peer: int,
        message: int,
        payload: NDArray[np.uint8],
        *,
        tags: NDArray[np.uint8],
        bound: int,
        now: int,
        order: int = 0,
    ) -> None: ...

    def expect(self, peer: int, message: int, length: int, *, buffer: NDArray[np.uint8] | None = None, now: int) -> None: ...


class Collective(ABC):
    """One call of a collective operation at this rank.

    Args:
        wires: Way to the transport.
        number: The call's number, the header's ``operation``.
        handle: What the caller waits on.
        claim: What the call is, in words; the same at every rank that calls it.  Empty at a server, which does not know.
        callers: Ranks that call it.

    Attributes:
        order: Its messages' place among others of their class: lower goes first.
        present: Ranks that have said that they call it too, or have done so; only known when the call takes long.
    """

    def __init__(self, wires: Wires, number: int, handle: Operation, claim: str, callers: Sequence[int]) -> None:
        self.wires = wires
        self.order = 0
        self.number = number
        self.handle = handle
        self.claim = claim
        self.callers = tuple(callers)
        self.present: set[int] = set()

    @abstractmethod
    def start(self, now: int) -> None:
        """Sends the first messages."""

    @abstractmethod
    def on_received(self, event: MessageReceived, now: int) -> bool:
        """Takes a message of this operation; returns False if this collective has no use for it."""

    @abstractmethod
    def on_sent(self, event: MessageSent, now: int) -> None:
        """Learns that a message has been acknowledged."""

    @abstractmethod
    def missing(self) -> str:
        """Says in words what it still waits for."""

    def bound(self, phase: Phase) -> int:
        """Returns the policy's loss bound for a leg, as it stands in the header."""
        loss = self.wires.policy.loss
        return bound_to_wire(loss.pull if phase in PULL_PHASES else loss.push)


def concatenate_lost(
    pieces: Sequence[tuple[NDArray[np.int64], NDArray[Any]]], dtype: np.dtype[Any]
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Joins (ranges, values) of several messages into one ascending list of ranges and their values."""
    ranges = [r for r, _ in pieces if len(r)]
    if not ranges:
        return np.zeros((0, 2), np.int64), np.zeros(0, dtype)
    order = np.argsort(np.concatenate([r[:, 0] for r in ranges]), kind="stable")
    all_ranges = np.concatenate(ranges)[order]
    chunks: list[NDArray[Any]] = []
    for r, values in pieces:
        if len(r):
            chunks.extend(np.split(values, np.cumsum(r[:, 1] - r[:, 0])[:-1]))
    return all_ranges, np.concatenate([chunks[i] for i in order.tolist()])


def take_ranges(flat: NDArray[Any], ranges: NDArray[np.int64]) -> NDArray[Any]:
    """Copies the values of ``ranges`` (``int64[m, 2]``) out of ``flat``."""
    if not len(ranges):
        return np.zeros(0, flat.dtype)
    return np.concatenate([flat[start:stop] for start, stop in ranges.tolist()])


def put_ranges(flat: NDArray[Any], ranges: NDArray[np.int64], values: NDArray[Any]) -> None:
    """Writes ``values``, laid out as :func:`take_ranges` returns them, back to ``ranges`` of ``flat``."""
    position = 0
    for start, stop in ranges.tolist():
        flat[start:stop] = values[position : position + stop - start]
        position += stop - start


def empty_reduction(output: NDArray[Any]) -> Reduction:
    """Returns a result with nothing lost."""
    return Reduction(output, np.zeros((0, 2), np.int64), np.zeros(0, output.dtype))
