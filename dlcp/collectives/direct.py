"""Messages from one rank to another: which receive gets which send.

Collectives are numbered the same at all ranks, since all ranks call them in the same order.  Point-to-point calls are not: only
two ranks know of each.  Their messages therefore have a phase of their own, in which ``operation`` counts the messages of one
sender to one receiver.

* A message begins with an *envelope*, part 0, which holds its tag and length; its data are the parts from 1 on.
* Envelopes are looked at in the order of their numbers, whatever order they come in.  A message goes to the first posted receive
  that names its sender, or any, and its tag; otherwise it waits for one.  So messages of one sender and tag do not overtake.
* Data that come before their receive has been called are kept as far as memory goes (``memory.early_bytes``); beyond that their
  sender is told to try later.  The next envelope of a rank from which something is to be received is always let in.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from dlcp.collectives.claims import NUMBERS
from dlcp.collectives.collective import Collective, Wires, empty_reduction
from dlcp.collectives.elements import dtype_field
from dlcp.collectives.exact import BULK_CLASS, cut, reliable_tags
from dlcp.collectives.operation import Operation
from dlcp.collectives.plan import MAX_PARTS
from dlcp.errors import MismatchError
from dlcp.transport.events import MessageReceived, MessageSent, message_id, operation_of, part_of
from dlcp.transport.serial import MASK, ahead
from dlcp.wire.header import Phase, WireType

if TYPE_CHECKING:
    from dlcp.collectives.engine import Engine

Bytes = NDArray[np.uint8]

ENVELOPE: Final = struct.Struct("<qQ")
"""Tag and length of the data."""
RETIRE_EVERY: Final = 64
"""After how many messages of a sender the transport is told to forget them."""


class _Direct(Collective):
    """What sends and receives have in common."""

    def __init__(self, mailbox: Mailbox, handle: Operation) -> None:
        # Nobody else calls it, so there is nobody to compare claims with.
        super().__init__(mailbox.wires, mailbox.new_number(), handle, "", ())
        self.mailbox = mailbox

    def on_received(self, event: MessageReceived, now: int) -> bool:
        return False

    def on_sent(self, event: MessageSent, now: int) -> None:
        """Events come by way of the mailbox."""

    def end(self, result: NDArray[Any]) -> None:
        self.mailbox.ended.append(self.number)
        self.handle.finish(empty_reduction(result))


class Send(_Direct):
    """A message on its way out.

    Args:
        mailbox: The rank's.
        handle: What the caller waits on: it ends when the receiver has the data, whether it has asked for them or not.
        data: Raw bytes; read until then.
        peer: Receiver; may be the rank itself.
        tag: Signed 64-bit number.
        result: What the caller gets.
    """

    def __init__(self, mailbox: Mailbox, handle: Operation, *, data: Bytes, peer: int, tag: int, result: NDArray[Any]) -> None:
        super().__init__(mailbox, handle)
        self._data = data
        self._peer = peer
        self._tag = tag
        self._result = result
        self._unacknowledged: set[int] = set()

    def start(self, now: int) -> None:
        number = self.mailbox.count(self._peer, self)
        if self._peer == self.wires.rank:
            self.mailbox.deliver(number, self._tag, self._data.copy(), now)
            self.end(self._result)
            return
        envelope = np.frombuffer(ENVELOPE.pack(self._tag, self._data.size), np.uint8)
        parts = cut(self._data.size, self.wires) if self._data.size else []
        self._unacknowledged = set(range(len(parts) + 1))
        tags = np.full(1, BULK_CLASS * 2 + 1, np.uint8)
        self.wires.send(self._peer, _id(number, 0), envelope, tags=tags, bound=0, now=now)
        for part in parts:
            tags = reliable_tags(part, BULK_CLASS)
            message = _id(number, part.index + 1)
            self.wires.send(self._peer, message, self._data[part.elements], tags=tags, bound=0, now=now)

    def acknowledged(self, part: int) -> bool:
        """Returns whether that was the last."""
        self._unacknowledged.discard(part)
        if self._unacknowledged:
            return False
        self.end(self._result)
        return True

    def missing(self) -> str:
        return f"acknowledgements of rank {self._peer}"


class Receive(_Direct):
    """A message that is asked for.

    Args:
        mailbox: The rank's.
        handle: What the caller waits on.
        buffer: Where the data go, raw bytes, exactly as many as are sent.
        peer: Sender; None takes what comes first.
        tag: Signed 64-bit number.
        result: What the caller gets.

    Attributes:
        source: The sender, once it is known.
    """

    def __init__(
        self, mailbox: Mailbox, handle: Operation, *, buffer: Bytes, peer: int | None, tag: int, result: NDArray[Any]
    ) -> None:
        super().__init__(mailbox, handle)
        self.peer = peer
        self.tag = tag
        self.source = peer
        self._buffer = buffer
        self._result = result
        self._pieces: dict[int, Bytes] = {}

    def start(self, now: int) -> None:
        self.mailbox.post(self, now)

    def match(self, peer: int, number: int, length: int, now: int) -> bool:
        """Takes a message; returns whether it has no data."""
        self.source = peer
        if length != self._buffer.size:
            raise MismatchError(
                f"rank {peer} sends {length} bytes with tag {self.tag}, but rank {self.wires.rank} receives {self._buffer.size}"
            )
        for part in cut(length, self.wires) if length else ():
            self._pieces[part.index + 1] = piece = self._buffer[part.elements]
            self.wires.expect(peer, _id(number, part.index + 1), piece.size, buffer=piece, now=now)
        if not self._pieces:
            self.end(self._result)
        return not self._pieces

    def wants(self, part: int) -> bool:
        """Whether a part has not come yet."""
        return part in self._pieces

    def take(self, event: MessageReceived) -> bool:
        """Takes a part; returns whether it was the last."""
        piece = self._pieces.pop(part_of(event.message), None)
        if piece is None or piece.size != event.data.size:
            raise MismatchError(f"rank {event.peer} sent a part that is not of the message it announced")
        if not np.may_share_memory(piece, event.data):
            piece[:] = event.data
        if not self._pieces:
            self.end(self._result)
        return not self._pieces

    def take_copy(self, data: Bytes) -> None:
        """Takes a message of the rank to itself."""
        self.source = self.wires.rank
        if data.size != self._buffer.size:
            raise MismatchError(f"rank {self.source} sends itself {data.size} bytes and receives {self._buffer.size}")
        self._buffer[:] = data
        self.end(self._result)

    def missing(self) -> str:
        who = "any rank" if self.source is None else f"rank {self.source}"
        return f"{len(self._pieces)} parts from {who}" if self._pieces else f"a message with tag {self.tag} from {who}"


class _Source:
    """What comes from one rank."""

    def __init__(self) -> None:
        self.next = 1
        self.over = 0
        self.expecting = False
        self.envelopes: dict[int, tuple[int, int]] = {}
        self.early: defaultdict[int, dict[int, MessageReceived]] = defaultdict(dict)
        self.receiving: dict[int, Receive] = {}
        self.done: set[int] = set()


class Mailbox:
    """One rank's point-to-point messages.  Everything but :meth:`new_number` happens in the I/O thread.

    Args:
        engine: Runs the calls.

    Attributes:
        wires: Way to the transport.
        ended: Local numbers of calls that have ended; the engine takes them out.
    """

    def __init__(self, engine: Engine) -> None:
        self.wires: Wires = engine
        self.ended: list[int] = []
        self._endpoint = engine.endpoint
        self._numbers = NUMBERS
        self._counts: defaultdict[int, int] = defaultdict(int)
        self._sending: dict[tuple[int, int], Send] = {}
        self._sources: defaultdict[int, _Source] = defaultdict(_Source)
        self._posted: list[Receive] = []
        self._unmatched: list[tuple[int, int, int, int]] = []
        self._local: dict[int, Bytes] = {}

    def new_number(self) -> int:
        """Returns a local number for a call."""
        self._numbers += 1
        return self._numbers

    def count(self, peer: int, send: Send) -> int:
        """Numbers a message to ``peer``."""
        self._counts[peer] = number = (self._counts[peer] + 1) & MASK
        if peer != self.wires.rank:
            self._sending[peer, number] = send
        return number

    def deliver(self, number: int, tag: int, data: Bytes, now: int) -> None:
        """Takes a message of the rank to itself."""
        self._local[number] = data
        self._offer(self.wires.rank, number, tag, data.size, now)

    def post(self, receive: Receive, now: int) -> None:
        """Finds the message for a receive, now or later."""
        for entry in self._unmatched:
            peer, number, tag, length = entry
            if receive.tag == tag and receive.peer in (None, peer):
                self._unmatched.remove(entry)
                self._match(receive, peer, number, length, now)
                return
        self._posted.append(receive)
        if receive.peer is not None and receive.peer != self.wires.rank:
            self._want(receive.peer, now)

    def handle(self, event: MessageReceived | MessageSent, now: int) -> None:
        """Takes what the transport says of a message of this phase.

        Raises:
            MismatchError: Sender and receiver do not agree about it.
        """
        number, part = operation_of(event.message), part_of(event.message)
        if isinstance(event, MessageSent):
            send = self._sending.get((event.peer, number))
            if send is not None and send.acknowledged(part):
                del self._sending[event.peer, number]
            return
        source = self._sources[event.peer]
        receive = source.receiving.get(number)
        if part and receive is not None and receive.wants(part):
            if receive.take(event):
                self._over(event.peer, number)
        elif receive is not None or ahead(number, source.over) <= 0 or number in source.done:
            # The transport forgets complete messages in time; this is a copy that was under way for longer.
            self._release(event, now)
        elif part:
            source.early[number][event.message] = event
        else:
            self._on_envelope(source, number, event, now)

    def _on_envelope(self, source: _Source, number: int, event: MessageReceived, now: int) -> None:
        if source.expecting and number == source.next:
            source.expecting = False
        else:
            self._release(event, now)
        if ahead(number, source.next) < 0:
            return
        if event.data.size != ENVELOPE.size:
            raise MismatchError(f"rank {event.peer} sent an envelope of {event.data.size} bytes, {ENVELOPE.size} are needed")
        source.envelopes[number] = ENVELOPE.unpack(event.data.tobytes())
        while source.next in source.envelopes:
            first = source.next
            tag, length = source.envelopes.pop(first)
            source.next = (first + 1) & MASK
            self._offer(event.peer, first, tag, length, now)
        self._want(event.peer, now)

    def _release(self, event: MessageReceived, now: int) -> None:
        """Says that a complete message has been asked for, which gives its share of the memory for early ones back."""
        self.wires.expect(event.peer, event.message, event.data.size, now=now)

    def _offer(self, peer: int, number: int, tag: int, length: int, now: int) -> None:
        for receive in self._posted:
            if receive.tag == tag and receive.peer in (None, peer):
                self._posted.remove(receive)
                self._match(receive, peer, number, length, now)
                return
        self._unmatched.append((peer, number, tag, length))

    def _match(self, receive: Receive, peer: int, number: int, length: int, now: int) -> None:
        if peer == self.wires.rank:
            receive.take_copy(self._local.pop(number))
            return
        source = self._sources[peer]
        if receive.match(peer, number, length, now):
            self._over(peer, number)
            return
        source.receiving[number] = receive
        for event in source.early.pop(number, {}).values():
            if receive.take(event):
                self._over(peer, number)

    def _want(self, peer: int, now: int) -> None:
        """Lets the next envelope in, whatever the memory, if something is to be received from ``peer``, and watches over it."""
        source = self._sources[peer]
        if not source.expecting and any(receive.peer == peer for receive in self._posted):
            source.expecting = True
            self.wires.expect(peer, _id(source.next, 0), ENVELOPE.size, now=now)

    def _over(self, peer: int, number: int) -> None:
        source = self._sources[peer]
        source.receiving.pop(number, None)
        source.done.add(number)
        while (after := (source.over + 1) & MASK) in source.done:
            source.done.discard(after)
            source.over = after
            if after % RETIRE_EVERY == 0:
                self._endpoint.retire_direct(peer, after)


def check_parts(length: int, wires: Wires) -> None:
    """Refuses data that need more messages than the header can number.

    Raises:
        ValueError: They do.
    """
    if len(cut(length, wires)) >= MAX_PARTS:
        raise ValueError(f"{length} bytes need more than {MAX_PARTS - 1} messages; raise wire.message_bytes")


def _id(number: int, part: int) -> int:
    return message_id(number, Phase.DIRECT, dtype_field(WireType.UINT8), part)
