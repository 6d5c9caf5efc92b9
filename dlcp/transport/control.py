"""Builds the control packets of one endpoint: everything that is not data and not a probe."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlcp.wire.codec import encode_headers
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
        self._cookie = np.uint64(cookie)

    def _packet(self, kind: PacketType, peer: int, body: Bytes | None = None, **columns: int) -> Bytes:
        header = encode_headers(
            1,
            type=int(kind),
            priority=CONTROL_CLASS,
            protected=1,
            source=self._source,
            destination=peer,
            cookie=self._cookie,
            **columns,
        )[0]
        return header if body is None else np.concatenate([header, body])

    def feedback(self, peer: int, timestamp: int, columns: dict[str, int]) -> Bytes:
        """FEEDBACK: what has come from ``peer``."""
        return self._packet(PacketType.FEEDBACK, peer, FEEDBACK_BODY.encode(1, **columns)[0], timestamp=timestamp)

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
        busy: bool = False,
    ) -> Bytes:
        """STATUS or STOP about ``message``, which came from ``peer``."""
        body = REPORT_BODY.encode(1, missing=missing, needed=needed, packets=packets, busy=int(busy), echo=echo)[0]
        return self._packet(
            kind,
            peer,
            np.concatenate([body, bitmap]),
            timestamp=timestamp,
            operation=message >> 32,
            phase=message >> 24 & 0xFF,
            dtype=message >> 16 & 0xFF,
            part=message & 0xFFFF,
        )

    def ping(self, peer: int, sequence: int, timestamp: int) -> Bytes:
        """PING: numbered, so that feedback must follow."""
        return self._packet(PacketType.PING, peer, sequence=sequence, timestamp=timestamp)

    def hello(self, peer: int, timestamp: int, nonce: int, datagram: int) -> Bytes:
        """HELLO padded to ``datagram`` bytes (at least its own size)."""
        padding = np.zeros(max(datagram - HEADER_BYTES - HELLO_BODY.size, 0), np.uint8)
        whole = HEADER_BYTES + HELLO_BODY.size + padding.size
        body = HELLO_BODY.encode(1, nonce=np.uint64(nonce), datagram=whole)[0]
        return self._packet(PacketType.HELLO, peer, np.concatenate([body, padding]), timestamp=timestamp)

    def hello_ack(self, peer: int, timestamp: int, nonce: int) -> Bytes:
        """HELLO_ACK, never padded: only the way towards us is probed."""
        body = HELLO_BODY.encode(1, nonce=np.uint64(nonce), datagram=HEADER_BYTES + HELLO_BODY.size)[0]
        return self._packet(PacketType.HELLO_ACK, peer, body, timestamp=timestamp)

    def abort(self, peer: int, timestamp: int, kind: AbortKind, culprit: int, silence_s: float, reason: str) -> Bytes:
        """ABORT with a reason, which is cut at 400 bytes."""
        body = ABORT_BODY.encode(1, kind=int(kind), culprit=culprit, silence_ms=int(silence_s * 1000))[0]
        text = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore").encode()
        return self._packet(PacketType.ABORT, peer, np.concatenate([body, np.frombuffer(text, np.uint8)]), timestamp=timestamp)

    def goodbye(self, peer: int, timestamp: int) -> Bytes:
        """GOODBYE."""
        return self._packet(PacketType.GOODBYE, peer, timestamp=timestamp)
