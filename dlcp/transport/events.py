"""What the transport tells the layer above: frozen facts, never callbacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlcp.wire.header import AbortKind, Phase

Bytes = NDArray[np.uint8]
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A message is complete by its own rule.

    Attributes:
        peer: Sender.
        message: 64-bit message id, see :func:`message_id`.
        data: ``uint8[length]``.  Bytes of lost packets are whatever the buffer held before.
        stride: Payload bytes of a packet; packet ``k`` covers ``[k * stride, (k + 1) * stride)``.
        lost: Indices of the packets that will not come, ascending; empty for a reliable message.
        tags: ``uint8[packets]``, class * 2 + protected of each packet as it came, class 7 where only a retransmission or nothing
            came; None unless :attr:`Endpoint.keep_tags`.
    """

    peer: int
    message: int
    data: Bytes
    stride: int
    lost: Indices
    tags: Bytes | None = None


@dataclass(frozen=True, slots=True)
class MessageSent:
    """The receiver has acknowledged a message for good; ``lost`` is what it went without."""

    peer: int
    message: int
    lost: Indices


@dataclass(frozen=True, slots=True)
class MessageRefused:
    """A peer sent a message of another length than was expected: the two ranks call a collective with different arguments."""

    peer: int
    message: int
    length: int
    expected: int


@dataclass(frozen=True, slots=True)
class MessageUnknown:
    """The receiver of a message has finished the message's operation without it; it is not sent any more."""

    peer: int
    message: int


@dataclass(frozen=True, slots=True)
class PeerReached:
    """A HELLO came back; ``full_size`` tells whether a datagram of the largest size did."""

    peer: int
    full_size: bool


@dataclass(frozen=True, slots=True)
class PeerSilent:
    """A peer that something waits for has said nothing for the peer timeout."""

    peer: int
    seconds: float
    waiting_for: str


@dataclass(frozen=True, slots=True)
class PeerAborted:
    """A peer gave up; ``culprit`` is the rank whose failure it reports."""

    peer: int
    kind: AbortKind
    culprit: int
    silence_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class PeerLeft:
    """A peer closed its communicator in good order."""

    peer: int


Event = MessageReceived | MessageSent | MessageRefused | MessageUnknown | PeerReached | PeerSilent | PeerAborted | PeerLeft


def message_id(operation: int, phase: int, dtype: int, part: int) -> int:
    """Packs the four header fields that identify a message between two ranks into 64 bits."""
    return (operation & 0xFFFFFFFF) << 32 | phase << 24 | dtype << 16 | part


def operation_of(message: int) -> int:
    """Returns the operation field of a message id."""
    return message >> 32


def phase_of(message: int) -> int:
    """Returns the phase field of a message id."""
    return message >> 24 & 0xFF


def dtype_of(message: int) -> int:
    """Returns the dtype field of a message id."""
    return message >> 16 & 0xFF


def part_of(message: int) -> int:
    """Returns the part field of a message id."""
    return message & 0xFFFF


def describe(message: int) -> str:
    """Names a message for humans."""
    phase: Any = phase_of(message)
    if phase in Phase._value2member_map_:
        phase = Phase(phase).name.lower()
    return f"operation {operation_of(message)}, {phase}, part {part_of(message)}"
