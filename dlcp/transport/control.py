"""Builds the control packets of one endpoint: everything that is not data and not a probe."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlcp.wire.codec import encode_header
from dlcp.wire.header import (
    ABORT_BODY,
    CONTROL_CLASS,
    FEEDBACK_BODY,
    HEADER_BYTES,
    HELLO_BODY,
    REPORT_BODY,
    AbortKind,
    PacketType,
)

Bytes = NDArray[np.uint8]

MAX_REASON_BYTES = 400


class ControlPackets:
    """Stamps rank, cookie and class 7 on control packets.

    Args:
        source: Own rank.
        cookie: Job cookie.
    """

    def __init__(self, source: int, cookie: int) -> None:
        self._source = source
        self._cookie = cookie

    def _packet(self, kind: PacketType, peer: int, body: bytes = b"", priority: int = CONTROL_CLASS, **values: int) -> Bytes:
        header = encode_header(
            type=kind,
            priority=priority,
            protected=1,
            source=self._source,
            destination=peer,
            cookie=self._cookie,
            **values,
        )
        return np.frombuffer(header + body, np.uint8)

    def feedback(self, peer: int, timestamp: int, columns: dict[str, int]) -> Bytes:
        """FEEDBACK: what has come from ``peer``."""
        return self._packet(PacketType.FEEDBACK, peer, FEEDBACK_BODY.encode_one(**columns), timestamp=timestamp)

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
        return self._packet(
            kind,
            peer,
            body + bitmap.tobytes(),
            timestamp=timestamp,
            operation=message >> 32,
            phase=message >> 24 & 0xFF,
            dtype=message >> 16 & 0xFF,
            part=message & 0xFFFF,
        )

    def ping(self, peer: int, sequence: int, timestamp: int, priority: int) -> Bytes:
        """PING: numbered, so that feedback must follow."""
        return self._packet(PacketType.PING, peer, sequence=sequence, timestamp=timestamp, priority=priority)

    def hello(self, peer: int, timestamp: int, nonce: int, datagram: int) -> Bytes:
        """HELLO padded to ``datagram`` bytes (at least its own size)."""
        whole = max(datagram, HEADER_BYTES + HELLO_BODY.size)
        body = HELLO_BODY.encode_one(nonce=nonce, datagram=whole).ljust(whole - HEADER_BYTES, b"\0")
        return self._packet(PacketType.HELLO, peer, body, timestamp=timestamp)

    def hello_ack(self, peer: int, timestamp: int, nonce: int) -> Bytes:
        """HELLO_ACK, never padded: only the way towards us is probed."""
        body = HELLO_BODY.encode_one(nonce=nonce, datagram=HEADER_BYTES + HELLO_BODY.size)
        return self._packet(PacketType.HELLO_ACK, peer, body, timestamp=timestamp)

    def abort(self, peer: int, timestamp: int, kind: AbortKind, culprit: int, silence_s: float, reason: str) -> Bytes:
        """ABORT with a reason, which is cut at 400 bytes."""
        body = ABORT_BODY.encode_one(kind=kind, culprit=culprit, silence_ms=int(silence_s * 1000))
        text = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore").encode()
        return self._packet(PacketType.ABORT, peer, body + text, timestamp=timestamp)

    def goodbye(self, peer: int, timestamp: int) -> Bytes:
        """GOODBYE."""
        return self._packet(PacketType.GOODBYE, peer, timestamp=timestamp)
