"""Runs collectives on an endpoint: the machine that the I/O thread drives.

Everything here happens in one thread.  A failure is final: the first one ends every operation, now and later, with the same typed
error, and is told to every peer, so that all ranks raise within a moment of each other instead of after their own timeouts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dlcp.collectives.collective import Collective
from dlcp.errors import DLCPError, MismatchError, OperationTimeoutError, PeerLostError, RemoteError
from dlcp.policy import Policy
from dlcp.transport.core import MILLISECOND, SECOND
from dlcp.transport.endpoint import Endpoint
from dlcp.transport.events import (
    Event,
    MessageReceived,
    MessageRefused,
    MessageSent,
    PeerAborted,
    PeerLeft,
    PeerReached,
    PeerSilent,
    describe,
    operation_of,
)
from dlcp.transport.packets import Burst, Frames
from dlcp.transport.serial import MASK
from dlcp.wire.header import AbortKind

ABORT_REPEATS: Final = (0, 20 * MILLISECOND, 100 * MILLISECOND)
"""When an ABORT is said: it is not acknowledged, and may be lost like anything else."""


class Engine:
    """Collectives over one endpoint.

    Args:
        rank: Own rank.
        policy: The job's policy.
        endpoint: The transport.
        on_reached: Called with each :class:`~dlcp.transport.events.PeerReached`.

    Attributes:
        serve: Makes the collective for an operation that a peer starts, at a parameter server; None: operations are only started
            locally.
        left: Peers that have closed in good order.
    """

    def __init__(
        self,
        rank: int,
        policy: Policy,
        endpoint: Endpoint,
        *,
        on_reached: Callable[[PeerReached], None] = lambda event: None,
    ) -> None:
        self.rank = rank
        self.policy = policy
        self.endpoint = endpoint
        self.stride = endpoint.stride
        self.left: set[int] = set()
        self._watchers: list[tuple[Callable[[], bool], Callable[[], None]]] = []
        self._on_reached = on_reached
        self.serve: Callable[[MessageReceived], Collective | None] | None = None
        self._running: dict[int, Collective] = {}
        self._deadlines: dict[int, int] = {}
        self._early: dict[int, list[MessageReceived]] = {}
        self._retired = 0
        self._ended: set[int] = set()
        self._error: BaseException | None = None
        self._aborts: list[tuple[int, AbortKind, int, float, str]] = []

    # -- collectives -------------------------------------------------------------------------------------------------------

    def start(self, collective: Collective, now: int) -> None:
        """Starts a collective; if this engine has failed, the collective ends with that error at once."""
        if self._error is not None:
            collective.handle.finish(None, self._error)
            return
        number = collective.number
        self._running[number] = collective
        self._deadlines[number] = now + int(self.policy.timeouts.operation_s * SECOND)
        try:
            collective.start(now)
            for event in self._early.pop(number, ()):
                self._give(collective, event, now)
        except Exception as error:
            self._fail(error, AbortKind.FAILURE, self.rank, 0.0, now)
        self._reap(number)
        self._dispatch(now)

    def send(self, peer: int, message: int, payload: NDArray[np.uint8], *, tags: NDArray[np.uint8], bound: int, now: int) -> None:
        """See :meth:`Endpoint.send`."""
        self.endpoint.send(peer, message, payload, tags=tags, bound=bound, now=now)

    def expect(self, peer: int, message: int, length: int, *, buffer: NDArray[np.uint8] | None = None, now: int) -> None:
        """See :meth:`Endpoint.expect`; a peer that has left will not send anything."""
        self.endpoint.expect(peer, message, length, buffer=buffer, now=now)
        if peer in self.left:
            self._lose(peer, f"it has left; {describe(message)} was expected from it", 0.0, now)

    @property
    def error(self) -> BaseException | None:
        """What ended this engine, or None."""
        return self._error

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
        self._fail(RemoteError(self.rank, reason), AbortKind.FAILURE, self.rank, 0.0, now, reason)

    # -- the shell's machine -----------------------------------------------------------------------------------------------

    def receive(self, frames: list[Frames], now: int) -> None:
        """Takes datagrams."""
        self.endpoint.receive(frames, now)
        self._dispatch(now)

    def transmit(self, now: int) -> list[Burst]:
        """Returns datagrams to send."""
        return self.endpoint.transmit(now)

    def next_timer(self) -> int | None:
        """Returns when :meth:`handle_timer` is due."""
        times = [t for t in (self.endpoint.next_timer(),) if t is not None]
        times.extend(self._deadlines.values())
        times.extend(at for at, *_ in self._aborts)
        return min(times, default=None)

    def handle_timer(self, now: int) -> None:
        """Does what is due: the transport's timers, operation deadlines, repeated aborts."""
        self.endpoint.handle_timer(now)
        for due in [a for a in self._aborts if a[0] <= now]:
            self._aborts.remove(due)
            self.endpoint.abort(*due[1:], now)
        for number, deadline in list(self._deadlines.items()):
            if deadline <= now and number in self._running:
                collective = self._running[number]
                text = (
                    f"{collective.handle.description} has not finished within the operation timeout of "
                    f"{self.policy.timeouts.operation_s:g} s, still waiting for {collective.missing()}"
                )
                self._fail(OperationTimeoutError(text), AbortKind.TIMEOUT, self.rank, 0.0, now)
        self._dispatch(now)

    def _look(self) -> None:
        if self._watchers:
            met = [watcher for watcher in self._watchers if watcher[0]()]
            self._watchers = [watcher for watcher in self._watchers if watcher not in met]
            for _, then in met:
                then()

    def fail(self, error: BaseException) -> None:
        """The shell died: nothing can be sent any more, but everyone who waits learns why."""
        if self._error is None:
            self._error = error
        running, self._running = self._running, {}
        self._deadlines.clear()
        for collective in running.values():
            collective.handle.finish(None, self._error)

    # -- events --------------------------------------------------------------------------------------------------------------

    def _dispatch(self, now: int) -> None:
        for event in self.endpoint.events():
            try:
                self._on_event(event, now)
            except Exception as error:
                self._fail(error, AbortKind.FAILURE, self.rank, 0.0, now)
        self._look()

    def _on_event(self, event: Event, now: int) -> None:
        if isinstance(event, MessageReceived):
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
            self._lose(event.peer, event.waiting_for, event.seconds, now)
        elif isinstance(event, PeerAborted):
            self._on_aborted(event, now)
        elif isinstance(event, PeerLeft):
            self.left.add(event.peer)
            waiting = self.endpoint.expected_from(event.peer)
            if waiting is not None:
                self._lose(event.peer, f"it has left; {describe(waiting)} was expected from it", 0.0, now)
        elif isinstance(event, MessageRefused):
            raise MismatchError(
                f"rank {event.peer} and rank {self.rank} call the collective with different arguments: {describe(event.message)} "
                f"has {event.length} bytes there, {event.expected} here"
            )

    def _on_received(self, event: MessageReceived, now: int) -> None:
        number = operation_of(event.message)
        collective = self._running.get(number)
        if collective is None and self.serve is not None and self._error is None:
            collective = self.serve(event)
            if collective is not None:
                self._running[number] = collective
                self._deadlines[number] = now + int(self.policy.timeouts.operation_s * SECOND)
                collective.start(now)
        if collective is None:
            if self._error is None:
                self._early.setdefault(number, []).append(event)
            return
        self._give(collective, event, now)
        self._reap(number)

    def _give(self, collective: Collective, event: MessageReceived, now: int) -> None:
        if not collective.on_received(event, now):
            raise MismatchError(
                f"rank {event.peer} sent {describe(event.message)}, which does not belong to {collective.handle.description} "
                "here: ranks call collectives in different order or with different arguments"
            )

    def _reap(self, number: int) -> None:
        collective = self._running.get(number)
        if collective is None or not collective.handle.done():
            return
        del self._running[number]
        self._deadlines.pop(number, None)
        if self.serve is not None:
            return
        self._ended.add(number)
        while (self._retired + 1) & MASK in self._ended:
            self._retired = (self._retired + 1) & MASK
            self._ended.discard(self._retired)
            self.endpoint.retire(self._retired)

    # -- failure -------------------------------------------------------------------------------------------------------------

    def _lose(self, peer: int, message: str, seconds: float, now: int) -> None:
        self._fail(PeerLostError(peer, message, seconds), AbortKind.PEER_LOST, peer, seconds, now, message)

    def _on_aborted(self, event: PeerAborted, now: int) -> None:
        error: DLCPError
        if event.kind is AbortKind.PEER_LOST and event.culprit != self.rank:
            error = PeerLostError(event.culprit, f"rank {event.peer} reports: {event.reason}", event.silence_s)
        elif event.kind is AbortKind.TIMEOUT:
            error = OperationTimeoutError(f"rank {event.peer} reports: {event.reason}")
        else:
            error = RemoteError(event.peer, event.reason)
        if self._error is None:
            self._end(error)

    def _fail(
        self, error: BaseException, kind: AbortKind, culprit: int, silence_s: float, now: int, reason: str | None = None
    ) -> None:
        """The first failure wins; peers are told, several times, since nobody acknowledges."""
        if self._error is not None:
            return
        text = reason or f"{type(error).__name__}: {error}"
        for after in ABORT_REPEATS:
            if after:
                self._aborts.append((now + after, kind, culprit, silence_s, text))
            else:
                self.endpoint.abort(kind, culprit, silence_s, text, now)
        self._end(error)

    def _end(self, error: BaseException) -> None:
        self._error = error
        self._early.clear()
        running, self._running = self._running, {}
        self._deadlines.clear()
        self.endpoint.drop_all()
        for collective in running.values():
            collective.handle.finish(None, error)
