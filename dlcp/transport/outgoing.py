"""One message on its way out: which packets to send next, and how their headers look.

Life of a message::

    SENDING --all packets handed out--> PROBING --STATUS--> SENDING (what is missing, most valuable first)
       |                                   |
       +-------------- STOP ---------------+----> gone (the endpoint forgets it)

What is to be sent is a stack of rounds: the first transmission, on top of it perhaps packets that a switch has trimmed.

Order: the most urgent class first; inside a class protected packets before droppable ones, so that the tail that a bounded
receiver may cut off is the least valuable part.  Packets are independent of each other: any order will do for the receiver.

A probe travels in the class of the packet before it.  In class 7 it would overtake, in every switch on the way, the very packets
after whose arrival it asks, and these would be called lost while they wait in a queue.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dlcp.compiler.raw import address_of
from dlcp.transport.packets import Burst
from dlcp.wire.codec import encode_header, seal
from dlcp.wire.header import CONTROL_CLASS, HEADER, HEADER_BYTES, VERSION, PacketType

Bytes = NDArray[np.uint8]

_FLAGS_BYTE: Final = HEADER.slots["priority"].byte
_PRIORITY_SHIFT: Final = HEADER.slots["priority"].shift
_PROTECTED_BIT: Final = 1 << HEADER.slots["protected"].shift
_RETRANSMISSION_BIT: Final = 1 << HEADER.slots["retransmission"].shift
_AGAIN: Final = CONTROL_CLASS << _PRIORITY_SHIFT | _RETRANSMISSION_BIT
_FLAGS: Final = np.array([(tag >> 1) << _PRIORITY_SHIFT | (tag & 1) * _PROTECTED_BIT for tag in range(16)], np.uint8)
"""The header's flags byte for each tag."""
_FLAG_NUMBERS: Final = _FLAGS.tolist()
_OFFSET_WORD: Final = HEADER.slots["offset"].byte // 4
_SEQUENCE_WORD: Final = HEADER.slots["sequence"].byte // 4
_TIMESTAMP_WORD: Final = HEADER.slots["timestamp"].byte // 4

BOUND_SCALE: Final = 65536
MAX_PACKETS: Final = 65535


def bound_to_wire(share: float) -> int:
    """Returns a loss bound in 1/65536, rounded down so that the wire never allows more than the policy."""
    return min(int(share * BOUND_SCALE), BOUND_SCALE - 1)


def packets_of(length: int, stride: int) -> int:
    """Returns the number of packets of a message; an empty message still takes one."""
    return max(1, -(-length // stride))


class _Round:
    """Packets to hand out in order, as first transmission or again."""

    __slots__ = ("cursor", "queue", "retransmission")

    def __init__(self, queue: NDArray[np.int64], retransmission: bool) -> None:
        self.queue = queue
        self.cursor = 0
        self.retransmission = retransmission


class DataBurst(Burst):
    """Packets of a message, whose headers are made when they are needed: by :mod:`dlcp.udp.describe` in place, or here.

    Attributes:
        message: The message.
        indices: ``int64[n]``, which of its packets; all have the same tag.
        again: They were sent before.
        sequence: Number of the first.
        timestamp: Microseconds.
    """

    __slots__ = ("again", "indices", "message", "sequence", "timestamp")

    def __init__(
        self, tos: int, message: OutgoingMessage, indices: NDArray[np.int64], again: bool, sequence: int, timestamp: int
    ) -> None:
        self.peer = message.peer
        self.tos = tos
        self.payload = message.payload
        self.message = message
        self.indices = indices
        self.again = again
        self.sequence = sequence
        self.timestamp = timestamp

    def __len__(self) -> int:
        return len(self.indices)

    def __getattr__(self, name: str) -> Any:
        # The slots of these three are empty until somebody asks.
        if name == "headers":
            self.headers = self.message.headers(self.indices, self.again, self.sequence, self.timestamp)
        elif name == "offsets":
            self.offsets = self.indices * self.message.stride
        elif name == "sizes":
            self.sizes = self.message.sizes(self.indices)
        else:
            raise AttributeError(name)
        return getattr(self, name)

    @property
    def place(self) -> tuple[int, ...]:
        """See :attr:`Burst.place`."""
        message, indices = self.message, self.indices
        flags = message.flags(int(indices[0]), self.again)
        return (
            self.tos,
            len(indices),
            1,
            *message.place,
            address_of(indices),
            0,
            message.stride,
            flags,
            self.sequence,
            self.timestamp,
        )

    @property
    def most_bytes(self) -> int:
        """See :attr:`Burst.most_bytes`."""
        return len(self.indices) * (HEADER_BYTES + self.message.stride)


class OutgoingMessage:
    """A message to one peer.

    Args:
        source: Own rank.
        peer: Receiver's rank.
        cookie: Job cookie.
        message: 64-bit message id.
        payload: ``uint8[length]``, contiguous; not copied, must not change until the message is acknowledged.
        stride: Payload bytes per packet.
        tags: ``uint8[packets]``, class * 2 + protected.
        bound: Loss bound in 1/65536.
        order: Tie-breaker between messages of equal precedence: lower goes first.
    """

    __slots__ = (
        "_described",
        "_rounds",
        "_short",
        "_template",
        "_uniform",
        "attempt",
        "bound",
        "busy",
        "length",
        "message",
        "nudges",
        "order",
        "packets",
        "payload",
        "peer",
        "place",
        "probe_priority",
        "probe_round",
        "queued_precedence",
        "remaining",
        "stride",
        "tags",
        "ticket",
    )

    def __init__(
        self,
        source: int,
        peer: int,
        cookie: int,
        message: int,
        payload: Bytes,
        stride: int,
        tags: NDArray[np.uint8],
        bound: int,
        order: int,
    ) -> None:
        self.peer = peer
        self.message = message
        self.payload = payload
        self.length = payload.size
        self.stride = stride
        self.packets = packets_of(self.length, stride)
        if self.packets > MAX_PACKETS:
            raise ValueError(f"{self.packets} packets in one message, at most {MAX_PACKETS}; cut it into parts")
        if tags.shape != (self.packets,):
            raise ValueError(f"tags have shape {tags.shape}, one for each of {self.packets} packets is needed")
        if tags.max() >= CONTROL_CLASS * 2:
            raise ValueError(f"tag {tags.max()}: class {CONTROL_CLASS} is for control, data has classes 0 to {CONTROL_CLASS - 1}")
        if not 0 <= bound < BOUND_SCALE:
            raise ValueError(f"loss bound {bound} is not in [0, {BOUND_SCALE})")
        self.tags = tags
        self.bound = bound
        self.order = order
        self.attempt = 0
        self.nudges = 0
        self.busy = False
        self.probe_round: int | None = None
        self.probe_priority = CONTROL_CLASS
        self.ticket = 0
        self.queued_precedence = 0
        self._short = self.length != self.packets * stride
        self._uniform = self.packets == 1 or bool((tags == tags[0]).all())
        queue = np.arange(self.packets, dtype=np.int64)
        if not self._uniform:
            queue = np.argsort(-tags.astype(np.int16), kind="stable").astype(np.int64)
        self._rounds = [_Round(queue, False)]
        self.remaining = self.packets
        self._described = {
            "version": VERSION,
            "source": source,
            "destination": peer,
            "cookie": cookie,
            "operation": message >> 32,
            "phase": message >> 24 & 0xFF,
            "dtype": message >> 16 & 0xFF,
            "part": message & 0xFFFF,
            "length": self.length,
            "stride": stride,
            "bound": bound,
            "protected_packets": int((tags & 1).sum()),
        }
        template = HEADER.encode_one(type=PacketType.DATA, **self._described)
        self._template = np.frombuffer(template, np.uint8)
        self.place = (address_of(self._template), HEADER_BYTES, address_of(payload), self.length)

    @property
    def retransmitting(self) -> bool:
        """The next packets have been sent before."""
        return bool(self._rounds) and self._rounds[-1].retransmission

    @property
    def urgency(self) -> int:
        """Class of the next packet, 7 for retransmissions."""
        if not self._rounds or self._rounds[-1].retransmission:
            return CONTROL_CLASS
        top = self._rounds[-1]
        return int(self.tags[top.queue[top.cursor]]) >> 1

    @property
    def standing(self) -> int:
        """Class of the next packet, whether it has been sent before or not: the one whose window it needs."""
        top = self._rounds[-1]
        return int(self.tags[top.queue[top.cursor]]) >> 1

    @property
    def precedence(self) -> int:
        """Rank among messages to one peer: by class, and in a class what was sent before goes first.

        Not by the class that packets travel in: what is sent again needs the window of its own class, and while that is closed it
        would keep more urgent packets from leaving.
        """
        top = self._rounds[-1]
        return (int(self.tags[top.queue[top.cursor]]) >> 1) * 2 + top.retransmission

    def take(self, limit: int) -> tuple[NDArray[np.int64], bool]:
        """Hands out the next packets of one round and one tag, at most ``limit``.

        Behind them another message may be more urgent.

        Returns:
            ``int64[n]`` packet indices with n >= 1, and whether they are retransmissions.
        """
        top = self._rounds[-1]
        chosen = top.queue[top.cursor : top.cursor + limit]
        if not self._uniform and len(chosen) > 1:
            # Sorted by tag, those of the first and the last packet are alike only if all are.
            tags = self.tags[chosen]
            if tags[0] != tags[-1]:
                chosen = chosen[: int((tags != tags[0]).argmax())]
        top.cursor += int(chosen.size)
        self.remaining -= int(chosen.size)
        if top.cursor == top.queue.size:
            self._rounds.pop()
        return chosen, top.retransmission

    def headers(self, indices: NDArray[np.int64], retransmission: bool, sequence: int, timestamp: int) -> Bytes:
        """Builds ``uint8[n, 48]`` headers for ``indices``, numbered from ``sequence``."""
        count = int(indices.size)
        headers = np.empty((count, HEADER_BYTES), np.uint8)
        headers[:] = self._template
        words = headers.view(">u4")
        words[:, _OFFSET_WORD] = indices * self.stride
        words[:, _SEQUENCE_WORD] = np.arange(sequence, sequence + count, dtype=np.int64) & 0xFFFFFFFF
        words[:, _TIMESTAMP_WORD] = timestamp
        tags = self.tags[0] if self._uniform else self.tags[indices]
        if retransmission:
            headers[:, _FLAGS_BYTE] = (tags & 1) * np.uint8(_PROTECTED_BIT) | np.uint8(_AGAIN)
        else:
            headers[:, _FLAGS_BYTE] = _FLAGS[tags]
        return seal(headers)

    def sizes(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the payload bytes of each packet."""
        if not self._short:
            return np.full(indices.size, self.stride, np.int64)
        last = self.packets - 1
        sizes = np.full(indices.size, self.stride, np.int64)
        sizes[indices == last] = self.length - last * self.stride
        return sizes

    def flags(self, index: int, again: bool) -> int:
        """Returns the header's flags byte of a packet."""
        tag = int(self.tags[index])
        flags: int = (tag & 1) * _PROTECTED_BIT | _AGAIN if again else _FLAG_NUMBERS[tag]
        return flags

    def probe(self, sequence: int, timestamp: int) -> Bytes:
        """Builds the PROBE, ``uint8[48]``; the first one of a round is remembered to tell fresh answers from stale ones."""
        if self.probe_round is None:
            self.probe_round = sequence
        packet = encode_header(
            type=PacketType.PROBE,
            priority=self.probe_priority,
            protected=1,
            sequence=sequence,
            timestamp=timestamp,
            **self._described,
        )
        return np.frombuffer(packet, np.uint8)

    def may_lack(self, missing: NDArray[np.int64]) -> bool:
        """Whether a receiver that keeps the rules may be done without these packets."""
        allowed = self.packets * self.bound // BOUND_SCALE
        return missing.size <= allowed and not bool((self.tags[missing] & 1).any())

    def resend(self, missing: NDArray[np.int64], needed: int) -> None:
        """Starts another round with the ``needed`` most valuable of the ``missing`` packets.

        Protected packets come first, since the receiver cannot do without them; then value is class.  ``missing`` is not empty.
        """
        if missing.size and not self._uniform:
            tags = self.tags[missing].astype(np.int16)
            missing = missing[np.argsort(-((tags & 1) << 8 | tags), kind="stable")]
        chosen = missing[: max(needed, 1)]
        self.remaining += int(chosen.size)
        self._rounds.append(_Round(chosen, True))
        self.probe_round = None
        self.attempt = self.nudges = 0
        self.busy = False
