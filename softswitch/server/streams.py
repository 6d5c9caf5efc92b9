"""One StreamChannel: what waits to be sent on it, and who is at the other end.

Messages are put in by any thread and taken out by the one that gRPC gives to the stream.  A client that does not read loses
packets and notifications first; if it lets even arbitration messages pile up, its stream ends.
"""

from __future__ import annotations

from collections import Counter
from queue import SimpleQueue
from typing import Any

from finsy.proto import p4r

from softswitch.server.arbitration import Notice, Session
from softswitch.server.codes import SPACE, Code, Refusal

BACKLOG = 4096
"""Messages that may wait before packets, digests and idle notifications are dropped."""
HARD_BACKLOG = 2 * BACKLOG


class Stream:
    """A stream to a controller.

    Attributes:
        session: Its part in the arbitration.
        device_id: The device it is for, once it has said so.
        refusal: Why the server ends it, or None.
        dropped: Messages that did not fit into the backlog, by kind.
    """

    def __init__(self) -> None:
        self.session = Session()
        self.device_id: int | None = None
        self.refusal: Refusal | None = None
        self.dropped: Counter[str] = Counter()
        self._queue: SimpleQueue[p4r.StreamMessageResponse | None] = SimpleQueue()

    def send(self, message: p4r.StreamMessageResponse) -> None:
        """Queues a message that may be lost."""
        if self._queue.qsize() >= BACKLOG:
            self.dropped[str(message.WhichOneof("update"))] += 1
        else:
            self._queue.put(message)

    def notify(self, notice: Notice, device_id: int) -> None:
        """Queues an arbitration message, which may not be lost."""
        if self._queue.qsize() >= HARD_BACKLOG:
            self.close(Refusal(Code.RESOURCE_EXHAUSTED, "the client does not read its stream"))
        self._queue.put(arbitration_message(notice, device_id))

    def next(self) -> p4r.StreamMessageResponse | None:
        """Waits for the next message; None when the stream is to end."""
        return self._queue.get()

    def close(self, refusal: Refusal | None = None) -> None:
        """Ends the stream after what is queued, with an error if one is given."""
        self.refusal = self.refusal or refusal
        self._queue.put(None)


def arbitration_message(notice: Notice, device_id: int) -> p4r.StreamMessageResponse:
    """Returns the message of an arbitration notice."""
    response = p4r.StreamMessageResponse()
    update = response.arbitration
    update.device_id = device_id
    session = notice.session
    if session.named:
        update.role.name = session.role or ""
        if notice.config is not None:
            update.role.config.CopyFrom(notice.config)
    if notice.election_id is not None:
        update.election_id.high = notice.election_id >> 64
        update.election_id.low = notice.election_id & 0xFFFFFFFFFFFFFFFF
        update.election_id.SetInParent()
    update.status.code = notice.code
    update.status.message = notice.message
    return response


def stream_error(refusal: Refusal, request: p4r.StreamMessageRequest) -> p4r.StreamMessageResponse:
    """Returns the ``StreamError`` for a request on the stream that failed."""
    error = p4r.StreamError(canonical_code=refusal.code, message=refusal.message, space=SPACE)
    kind: Any = request.WhichOneof("update")
    if kind == "packet":
        # Not its payload: an error should not be as large as what caused it.
        error.packet_out.packet_out.metadata.extend(request.packet.metadata)
    elif kind == "digest_ack":
        error.digest_list_ack.digest_list_ack.CopyFrom(request.digest_ack)
    else:
        error.other.SetInParent()
    return p4r.StreamMessageResponse(error=error)


__all__ = ["Stream", "arbitration_message", "stream_error"]
