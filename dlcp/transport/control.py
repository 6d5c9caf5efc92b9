"""Builds the control packets of one endpoint: everything that is not data and not a probe."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from dlcp.wire.codec import seal_number
from dlcp.wire.header import (
    ABORT_BODY,
    CONTROL_CLASS,
    FEEDBACK_BODY,
    HEADER,
    HEADER_BYTES,
    HELLO_BODY,
    REPORT_BODY,
    VERSION,
    AbortKind,
    PacketType,
)

Bytes = NDArray[np.uint8]

MAX_REASON_BYTES = 400
_MESSAGE_BEHIND: Final = HEADER.slots["part"].behind
_SEQUENCE_BEHIND: Final = HEADER.slots["sequence"].behind
_TIMESTAMP_BEHIND: Final = HEADER.slots["timestamp"].behind


class ControlPackets:
    """Stamps rank, cookie and class 7 on control packets.

    Args:
        source: Own rank.
        cookie: Job cookie.
    """

    def __init__(self, source: int, cookie: int) -> None:
        self._source = source
        self._cookie = cookie
        self._started: dict[tuple[PacketType, int, int], int] = {}

    def _packet(
        self,
        kind: PacketType,
        peer: int,
        timestamp: int,
        body: bytes = b"",
        *,
        priority: int = CONTROL_CLASS,
        message: int = 0,
        sequence: int = 0,
    ) -> Bytes:
        """Returns a packet.  What is the same in all of a kind to a peer is kept, as the number that the header's bytes are."""
        key = (kind, peer, priority)
        header = self._started.get(key)
        if header is None:
            fixed = HEADER.encode_one(
                version=VERSION,
                type=kind,
                priority=priority,
                protected=1,
                source=self._source,
                destination=peer,
                cookie=self._cookie,
            )
            header = self._started[key] = int.from_bytes(fixed, "big")
        header |= message << _MESSAGE_BEHIND | sequence << _SEQUENCE_BEHIND | timestamp << _TIMESTAMP_BEHIND
        return np.frombuffer(seal_number(header) + body, np.uint8)

    def feedback(self, peer: int, timestamp: int, columns: dict[str, int]) -> Bytes:
        """FEEDBACK: what has come from ``peer``."""
        return self._packet(PacketType.FEEDBACK, peer, timestamp, FEEDBACK_BODY.encode_one(**columns))

    def report(
        self,
        kind: PacketType,
        peer: int,
        message: int,
        timestamp: int,
        bitmap: Bytes,
        *,
        packets: int,
        missing: int,
        needed: int,
        echo: int,
        busy: int = 0,
    ) -> Bytes:
        """STATUS or STOP about ``message``, which came from ``peer``."""
        body = REPORT_BODY.encode_one(missing=missing, needed=needed, packets=packets, busy=busy, echo=echo)
        return self._packet(kind, peer, timestamp, body + bitmap.tobytes(), message=message)

    def ping(self, peer: int, sequence: int, timestamp: int, priority: int) -> Bytes:
        """PING: numbered, so that feedback must follow."""
        return self._packet(PacketType.PING, peer, timestamp, sequence=sequence, priority=priority)

    def hello(self, peer: int, timestamp: int, nonce: int, datagram: int) -> Bytes:
        """HELLO padded to ``datagram`` bytes (at least its own size)."""
        whole = max(datagram, HEADER_BYTES + HELLO_BODY.size)
        body = HELLO_BODY.encode_one(nonce=nonce, datagram=whole).ljust(whole - HEADER_BYTES, b"\0")
        return self._packet(PacketType.HELLO, peer, timestamp, body)

    def hello_ack(self, peer: int, timestamp: int, nonce: int) -> Bytes:
        """HELLO_ACK, never padded: only the way towards us is probed."""
        body = HELLO_BODY.encode_one(nonce=nonce, datagram=HEADER_BYTES + HELLO_BODY.size)
        return self._packet(PacketType.HELLO_ACK, peer, timestamp, body)

    def abort(self, peer: int, timestamp: int, kind: AbortKind, culprit: int, silence_s: float, reason: str) -> Bytes:
        """ABORT with a reason, which is cut at 400 bytes."""
        body = ABORT_BODY.encode_one(kind=kind, culprit=culprit, silence_ms=int(silence_s * 1000))
        text = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore").encode()
        return self._packet(PacketType.ABORT, peer, timestamp, body + text)

    def goodbye(self, peer: int, timestamp: int) -> Bytes:
        """GOODBYE."""
        return self._packet(PacketType.GOODBYE, peer, timestamp)
