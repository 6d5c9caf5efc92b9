"""Runs collectives on an endpoint: the machine that the I/O thread drives.

Everything here happens in one thread.  A failure is final: the first one ends every operation, now and later, with the same typed
error, and is told to every peer, so that all ranks raise within a moment of each other instead of after their own timeouts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dlcp.collectives.claims import NUMBERS, Claims, overdue
from dlcp.collectives.collective import Collective
from dlcp.collectives.direct import Mailbox
from dlcp.collectives.farewell import Farewell, farewell, reported, typed
from dlcp.collectives.observer import Observer
from dlcp.errors import ClosedError, DLCPError, MismatchError, PeerLostError, RemoteError
from dlcp.policy import Policy
from dlcp.transport.core import MILLISECOND, SECOND
from dlcp.transport.endpoint import Endpoint
from dlcp.transport.events import (
    Event,
    MessageReceived,
    MessageRefused,
    MessageSent,
    MessageUnknown,
    PeerAborted,
    PeerLeft,
    PeerReached,
    PeerSilent,
    describe,
    message_id,
    operation_of,
    phase_of,
)
from dlcp.transport.packets import Burst, Frames
from dlcp.transport.sender import TRANSMIT_BYTES
from dlcp.transport.serial import ahead
from dlcp.wire.header import LAYER_CLASSES, Phase, WireType

ABORT_REPEATS: Final = (20 * MILLISECOND, 100 * MILLISECOND)
"""When an ABORT is said again: it is not acknowledged, and may be lost like anything else."""
SERVED_HISTORY: Final = 256
"""Of how many calls at least a parameter server remembers which contributions it has had."""
CLAIM_TAG: Final = (LAYER_CLASSES - 1) * 2 + 1
GOODBYE_EVERY: Final = 50 * MILLISECOND
"""How often a GOODBYE is repeated while a peer may not have heard it, for the same reason."""


class Engine:
    """Collectives over one endpoint.

    Args:
        rank: Own rank.
        policy: The job's policy.
        endpoint: The transport.
        on_reached: Called with each :class:`~dlcp.transport.events.PeerReached`.
        last_words: Sends bursts at once, bypassing the shell, when the shell has died of an error; must not raise.

    Attributes:
        serve: Makes the collective for an operation that a peer starts, at a parameter server; None: operations are only started
            locally.
        left: Peers that have closed in good order.
        observer: Is shown what happens.
        mailbox: Point-to-point messages.
    """

    def __init__(
        self,
        rank: int,
        policy: Policy,
        endpoint: Endpoint,
        *,
        on_reached: Callable[[PeerReached], None] = lambda event: None,
        last_words: Callable[[Sequence[Burst]], None] = lambda bursts: None,
    ) -> None:
        self.rank = rank
        self.policy = policy
        self.endpoint = endpoint
        self.stride = endpoint.stride
        self.serve: Callable[[MessageReceived], Collective | None] | None = None
        self.left: set[int] = set()
        self.observer: Observer | None = None
        self.mailbox = Mailbox(self)
        self._on_reached = on_reached
        self._last_words = last_words
        self._watchers: list[tuple[Callable[[], bool], Callable[[], None]]] = []
        self._running: dict[int, Collective] = {}
        self._deadlines: dict[int, int] = {}
        self._early: dict[int, list[MessageReceived]] = {}
        self._claims = Claims(rank)
        self._seen: dict[int, set[tuple[int, int]]] = {}
        self._error: DLCPError | None = None
        self._aborts: list[tuple[int, Farewell]] = []
        self._goodbye: int | None = None
        self._now = 0

    # -- collectives -------------------------------------------------------------------------------------------------------

    def start(self, collective: Collective, now: int) -> None:
        """Starts a collective; if this engine has failed, the collective ends with that error at once."""
        self._now = now
        if self._error is not None:
            collective.handle.finish(None, self._error)
            return
        number = collective.number
        if self.observer is not None:
            self.observer.started(number, collective.handle, now)
        collective.handle.runs_in(threading.get_ident())
        self._running[number] = collective
        self._deadlines[number] = now + int(self.policy.timeouts.operation_s * SECOND)
        try:
            if number < NUMBERS:
                self._claims.started(collective, now)
            collective.start(now)
            for event in self._early.pop(number, ()):
                self._give(collective, event, now)
        except Exception as error:
            self._fail(error, now)
        self._reap(number)
        self._reap_direct()
        self._dispatch(now)

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
    ) -> None:
        """See :meth:`Endpoint.send`; nothing leaves after a failure."""
        if self._error is None:
            if self.observer is not None:
                self.observer.sending(peer, message, payload.size, tags, now)
            self.endpoint.send(peer, message, payload, tags=tags, bound=bound, now=now, order=order)

    def expect(self, peer: int, message: int, length: int, *, buffer: NDArray[np.uint8] | None = None, now: int) -> None:
        """See :meth:`Endpoint.expect`; a peer that has left will not send anything that is not here already."""
        if self._error is not None:
            return
        self.endpoint.expect(peer, message, length, buffer=buffer, now=now)
        if peer in self.left:
            self._check_left(peer, now)

    @property
    def error(self) -> DLCPError | None:
        """What ended this engine, or None."""
        return self._error

    @property
    def busy(self) -> bool:
        """An operation runs."""
        return bool(self._running)

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing is on its way out."""
        return not self._running and self.endpoint.idle

    @property
    def aborting(self) -> bool:
        """An ABORT is still to be repeated."""
        return bool(self._aborts)

    def watch(self, condition: Callable[[], bool], then: Callable[[], None]) -> None:
        """Calls ``then`` once, in the I/O thread, as soon as ``condition`` holds."""
        self._watchers.append((condition, then))
        self._look()

    def abort(self, reason: str, now: int) -> None:
        """Fails everything here and at every peer, in this rank's name."""
        self._fail(RemoteError(self.rank, reason), now)
        self._look()

    def leave(self, now: int) -> None:
        """Says goodbye, and again until all peers have left too."""
        self._goodbye = now
        self.endpoint.goodbye(now)
        self._goodbye = now + GOODBYE_EVERY

    # -- the shell's machine -----------------------------------------------------------------------------------------------

    def receive(self, frames: list[Frames], now: int) -> None:
        """Takes datagrams."""
        self._now = now
        try:
            self.endpoint.receive(frames, now)
        except Exception as error:
            self._broken(error, now)
        self._dispatch(now)

    def transmit(self, now: int, room: int = TRANSMIT_BYTES) -> list[Burst]:
        """Returns datagrams to send."""
        try:
            return self.endpoint.transmit(now, room)
        except Exception as error:
            self._broken(error, now)
            return self.endpoint.transmit(now, room)

    def receive_interval(self) -> int:
        """See :meth:`Endpoint.receive_interval`."""
        return self.endpoint.receive_interval()

    def next_timer(self) -> int | None:
        """Returns when :meth:`handle_timer` is due."""
        ends = (at for at, _ in self._aborts)
        times = (self.endpoint.next_timer(), self._goodbye, *self._deadlines.values(), *self._claims.deadlines, *ends)
        return min((at for at in times if at is not None), default=None)

    def handle_timer(self, now: int) -> None:
        """Does what is due: the transport's timers, operation deadlines, repeated farewells."""
        self._now = now
        try:
            self.endpoint.handle_timer(now)
        except Exception as error:
            self._broken(error, now)
        for due in [a for a in self._aborts if a[0] <= now]:
            self._aborts.remove(due)
            self.endpoint.abort(*due[1], now)
        if self._goodbye is not None and self._goodbye <= now:
            self.leave(now)
        for number in self._claims.due(now):
            self._claim(number, now)
        for number, deadline in list(self._deadlines.items()):
            collective = self._running.get(number)
            if deadline <= now and collective is not None:
                self._fail(overdue(collective, self.rank, self.policy.timeouts.operation_s), now)
        self._dispatch(now)

    def fail(self, error: BaseException) -> None:
        """The shell died: everyone who waits learns why, and peers are told if anything still leaves the host."""
        if self._error is None:
            self._error = typed(error)
            # A shell that was stopped has nothing to tell: goodbyes have been said.
            if not isinstance(error, ClosedError):
                self._tell_last(self._error)
        self._aborts.clear()
        self._goodbye = None
        self._end(self._error)
        self._look()

    def _tell_last(self, error: DLCPError) -> None:
        try:
            self.endpoint.drop_all()
            self.endpoint.transmit(self._now)
            for _ in range(1 + len(ABORT_REPEATS)):
                self.endpoint.abort(*farewell(error, self.rank), self._now)
            self._last_words(self.endpoint.transmit(self._now))
        except Exception:
            # The endpoint itself is what broke; peers will notice the silence.
            return

    def _look(self) -> None:
        if self._watchers:
            met = [watcher for watcher in self._watchers if watcher[0]()]
            self._watchers = [watcher for watcher in self._watchers if watcher not in met]
            for _, then in met:
                then()

    # -- events --------------------------------------------------------------------------------------------------------------

    def _dispatch(self, now: int) -> None:
        for event in self.endpoint.events():
            if self.observer is not None:
                self.observer.happened(event, now)
            try:
                self._on_event(event, now)
            except Exception as error:
                self._fail(error, now)
        self._look()

    def _on_event(self, event: Event, now: int) -> None:
        if isinstance(event, MessageReceived | MessageSent) and phase_of(event.message) == Phase.DIRECT:
            if self._error is None:
                self.mailbox.handle(event, now)
                self._reap_direct()
        elif isinstance(event, MessageReceived):
            self._on_received(event, now)
        elif isinstance(event, MessageSent):
            number = operation_of(event.message)
            collective = self._running.get(number)
            if collective is not None:
                collective.on_sent(event, now)
                self._reap(number)
        elif isinstance(event, PeerReached):
            self._on_reached(event)
        elif isinstance(event, PeerSilent):
            raise PeerLostError(event.peer, event.waiting_for, event.seconds)
        elif isinstance(event, PeerAborted):
            if self._error is None:
                self._end(reported(event, self.rank))
        elif isinstance(event, PeerLeft):
            self.left.add(event.peer)
            if self._goodbye is not None:
                # It may be waiting for ours, which may have been lost.
                self.endpoint.goodbye(now)
            self._check_left(event.peer, now)
        elif isinstance(event, MessageRefused):
            raise MismatchError(
                f"rank {event.peer} and rank {self.rank} call the collective with different arguments: {describe(event.message)} "
                f"has {event.length} bytes there, {event.expected} here"
            )
        elif isinstance(event, MessageUnknown):
            self._on_unknown(event)

    def _on_unknown(self, event: MessageUnknown) -> None:
        """A peer has finished an operation of which something is on its way to it, or, if that was a claim, from it."""
        number, what = operation_of(event.message), event.message
        if phase_of(what) == Phase.RAW:
            owed = [message for message in self.endpoint.flow(event.peer).expected if operation_of(message) == number]
            if not owed:
                collective = self._running.get(number)
                if collective is not None:
                    collective.present.add(event.peer)
                return
            what = owed[0]
        raise MismatchError(
            f"rank {event.peer} has finished operation {number} without {describe(what)}, for which rank {self.rank} waits: "
            "ranks call collectives with different arguments"
        )

    def _on_received(self, event: MessageReceived, now: int) -> None:
        if self._error is not None:
            return
        number = operation_of(event.message)
        collective = self._running.get(number)
        if phase_of(event.message) == Phase.RAW:
            self._claims.heard(number, event.peer, event.data.tobytes().decode(errors="replace"), collective)
            return
        # The transport forgets complete messages in time.  A copy of one that was under way for longer is not a new message.
        seen = self._seen.setdefault(number, set())
        if (event.peer, event.message) in seen:
            return
        seen.add((event.peer, event.message))
        if collective is None and self.serve is not None:
            collective = self.serve(event)
            if collective is not None:
                self._running[number] = collective
                self._deadlines[number] = now + int(self.policy.timeouts.operation_s * SECOND)
                self._claims.started(collective, now)
                collective.start(now)
        if collective is None:
            past = self._claims.past(number)
            if past is not None:
                raise MismatchError(
                    f"rank {event.peer} sent {describe(event.message)} of {event.data.size} bytes, but rank {self.rank} has "
                    f"finished operation {number} without it ({past}): ranks call collectives with different arguments"
                )
            self._early.setdefault(number, []).append(event)
            return
        self._give(collective, event, now)
        self._reap(number)

    def _give(self, collective: Collective, event: MessageReceived, now: int) -> None:
        if self._error is None and not collective.on_received(event, now):
            raise MismatchError(
                f"rank {event.peer} sent {describe(event.message)} of {event.data.size} bytes, which is no part of "
                f"{collective.handle.description} as rank {self.rank} calls it: ranks call collectives in different order or "
                "with different arguments"
            )

    def _claim(self, number: int, now: int) -> None:
        """Tells the other callers what this rank thinks a call is."""
        collective = self._running.get(number)
        if collective is None or self._error is not None:
            return
        payload = np.frombuffer(collective.claim.encode()[: self.stride], np.uint8)
        message = message_id(number, Phase.RAW, int(WireType.UINT8), 0)
        for peer in collective.callers:
            if peer != self.rank and peer not in self.left:
                self.endpoint.send(peer, message, payload, tags=np.full(1, CLAIM_TAG, np.uint8), bound=0, now=now)

    def _reap(self, number: int) -> None:
        collective = self._running.get(number)
        if collective is None or not collective.handle.done():
            return
        del self._running[number]
        self._deadlines.pop(number, None)
        if number >= NUMBERS:
            return
        if self.serve is not None:
            self._claims.drop(number)
            if len(self._seen) >= 2 * SERVED_HISTORY:
                self._retire_served(number)
            return
        over = self._claims.ended(collective)
        if over is not None:
            self._retire(over)

    def _reap_direct(self) -> None:
        ended, self.mailbox.ended = self.mailbox.ended, []
        for number in ended:
            self._reap(number)

    def _retire_served(self, latest: int) -> None:
        """A server does not know when a call is over; but it is when every worker is hundreds of calls further on."""
        numbers = sorted(self._seen, key=lambda n: ahead(n, latest))
        over = list(takewhile(lambda number: number not in self._running, numbers[:-SERVED_HISTORY]))
        if over:
            self._retire(over[-1])

    def _retire(self, over: int) -> None:
        self.endpoint.retire(over)
        self._seen = {number: messages for number, messages in self._seen.items() if ahead(number, over) > 0}

    # -- failure -------------------------------------------------------------------------------------------------------------

    def _check_left(self, peer: int, now: int) -> None:
        """A peer leaves when all it has sent is acknowledged: what is still expected of it will never come."""
        waiting = self.endpoint.expected_from(peer)
        if waiting is not None and self._error is None:
            self._fail(PeerLostError(peer, f"it has closed, though {describe(waiting)} is expected from it", 0.0), now)

    def _broken(self, error: Exception, now: int) -> None:
        """The transport itself raised: peers are told, but a second time ends the thread, lest it go on for ever."""
        if self._error is not None:
            raise error
        self._fail(error, now)

    def _fail(self, error: BaseException, now: int) -> None:
        """The first failure wins; peers are told, several times, since nobody acknowledges."""
        if self._error is not None:
            return
        error = typed(error)
        words = farewell(error, self.rank)
        self._aborts = [(now + after, words) for after in ABORT_REPEATS]
        self.endpoint.abort(*words, now)
        self._end(error)

    def _end(self, error: DLCPError) -> None:
        self._error = error
        self._early.clear()
        self._claims.clear()
        self._seen.clear()
        running, self._running = self._running, {}
        self._deadlines.clear()
        self.endpoint.drop_all()
        for collective in running.values():
            collective.handle.finish(None, error)
