"""The I/O thread: waits for datagrams, wake-ups and timers, and drives a sans-IO machine with them.

Theory of operation.  One pass of the loop runs the queued calls, receives at most one batch, handles the timers that are due,
and sends at most a bounded number of datagrams.  So neither direction can starve the other, and calls wait for at most one pass.
As long as datagrams come in, or the machine hands out as much as it was asked for, the loop goes on without waiting.  A machine
that handed out less is asked again after the next call, datagram or timer.  While bursts are queued behind a full send buffer it
is not asked for more.

The clock is read again before each step, because a step may take as long as the delays that congestion control measures.

Whatever goes wrong in here ends the thread, and :meth:`Machine.fail` hands the error to everyone who waits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from dlcp.errors import ClosedError
from dlcp.transport.packets import Burst, Frames
from dlcp.udp.syscalls import Poller, Waker, precise_timers

_SEND_BUDGET: Final = 1024
"""Datagrams sent between two looks at the socket."""

_TRICKLE: Final = 8
"""A batch so small came off an empty queue: there is no need to look at once whether there is more."""

_PLENTY_BYTES: Final = 1 << 20
"""A machine that hands out less than this, and less than it was asked for, has nothing more for now."""

_BLOCKED_PAUSE: Final = 1_000_000
"""Nanoseconds that a due timer waits at least while the send buffer is full."""


class Machine(Protocol):
    """What the shell drives.  All methods run in the I/O thread; ``now`` is in nanoseconds of a monotonic clock."""

    def receive(self, frames: list[Frames], now: int) -> None:
        """Takes datagrams; the frames are valid only during the call."""

    def transmit(self, now: int, room: int, /) -> list[Burst]:
        """Returns what may be sent now: all of it, but not much more than ``room`` bytes; what is left is asked for again."""

    def next_timer(self) -> int | None:
        """Returns when :meth:`handle_timer` wants to run, or None."""

    def receive_interval(self) -> int:
        """Returns for how many nanoseconds what comes in may wait for more to come, so that it costs fewer passes of the loop.

        Timers that are due meanwhile wait for the end of it, too; calls do not.
        """

    def handle_timer(self, now: int) -> None:
        """Does what is due."""

    def fail(self, error: BaseException) -> None:
        """The shell is gone: everyone who waits must get ``error``.  May be called more than once, and with calls in between."""


class Port(Protocol):
    """What the thread needs of a :class:`~dlcp.udp.port.DatagramPort`, or of something that wraps one."""

    @property
    def room(self) -> int: ...

    def fileno(self) -> int: ...

    def send(self, bursts: Sequence[Burst], /) -> int: ...

    def receive(self) -> list[Frames]: ...


class DelayingPort(Port, Protocol):
    """A port that holds datagrams back, and must be called when their time has come."""

    def next_release(self) -> int | None:
        """Returns when the first of them is due, in nanoseconds of the thread's clock, or None."""

    def release(self, now: int) -> None:
        """Sends those that are due."""

    def blocked(self) -> bool:
        """Tells whether some that are due wait for room in the kernel."""


class IOThread:
    """Runs a machine on a port, in a daemon thread.

    The port stays the caller's: close it after :meth:`stop` has returned True.

    Args:
        port: Where datagrams come and go.
        machine: What to drive.
        clock: Monotonic nanoseconds.
        name: Name of the thread.
    """

    def __init__(
        self, port: Port, machine: Machine, *, clock: Callable[[], int] = time.monotonic_ns, name: str = "dlcp-io"
    ) -> None:
        self._port = port
        self._machine = machine
        self._clock = clock
        self._delaying: DelayingPort | None = port if hasattr(port, "next_release") else None  # type: ignore[assignment]
        self._calls: deque[Callable[[int], None]] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self._stopping = False
        self._asleep = False
        self._error: BaseException | None = None
        self._queue: list[Burst] = []
        self._received = 0
        self._waker = Waker()
        self._poller = Poller(port.fileno(), self._waker.fileno())
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    @property
    def error(self) -> BaseException | None:
        """What ended the thread, or None."""
        return self._error

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def call(self, function: Callable[[int], None]) -> None:
        """Runs ``function(now)`` in the I/O thread, soon; from any thread, without waiting for it.

        An exception in it ends the thread.  Calls run in the order in which they were made.

        Raises:
            ClosedError: The thread has been stopped, or has ended after an error, which is the cause.
        """
        with self._lock:
            if self._closed or self._stopping:
                raise ClosedError("the I/O thread has ended") from self._error
            self._calls.append(function)
            # The thread says that it goes to sleep before it looks at the calls for the last time.
            if self._asleep:
                self._asleep = False
                self._waker.wake()

    def stop(self, timeout: float = 5.0) -> bool:
        """Ends the thread: it runs the calls already made, sends what may be sent at once, and fails whoever still waits.

        May be repeated, and called from the I/O thread itself (which then ends after the current pass).

        Args:
            timeout: Seconds to wait for the end.

        Returns:
            Whether the thread has ended.
        """
        with self._lock:
            self._stopping = True
            if not self._closed:
                self._waker.wake()
        if threading.current_thread() is self._thread:
            return False
        if self._thread.ident is None:
            self._end(ClosedError("the I/O thread was stopped before it started"))
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _main(self) -> None:
        error: BaseException = ClosedError("the I/O thread was stopped")
        try:
            precise_timers()
            self._loop()
        except BaseException as problem:
            error = self._error = problem
        finally:
            self._end(error)

    def _end(self, error: BaseException) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._waker.close()
        self._fail(error)
        # Calls that were accepted but never ran may belong to someone who waits: let them in, and fail them too.
        if self._calls:
            while self._calls:
                try:
                    self._calls.popleft()(self._clock())
                except Exception:
                    continue
            self._fail(error)
        self._queue.clear()

    def _fail(self, error: BaseException) -> None:
        try:
            self._machine.fail(error)
        except Exception as problem:
            if self._error is None:
                self._error = problem

    def _loop(self) -> None:
        port, machine, clock, delaying = self._port, self._machine, self._clock, self._delaying
        readable = True
        while True:
            stopping = self._stopping
            for _ in range(len(self._calls)):
                self._calls.popleft()(clock())
            if readable:
                frames = port.receive()
                readable = bool(frames)
                if frames:
                    self._received = now = clock()
                    machine.receive(frames, now)
            timer = machine.next_timer()
            if timer is not None:
                now = clock()
                if timer <= now:
                    machine.handle_timer(now)
            if delaying is not None:
                release = delaying.next_release()
                if release is not None and release <= (now := clock()):
                    delaying.release(now)
            busy = self._transmit()
            if stopping:
                return
            if busy or readable:
                # Only a wait tells whether datagrams came in while this pass was sending.
                readable = True
                if not busy and len(frames) == 1 and len(frames[0].lengths) <= _TRICKLE:
                    readable = self._wait()
                continue
            readable = self._wait()

    def _transmit(self) -> bool:
        """Sends up to the budget; tells whether there may be more to send at once."""
        delaying = self._delaying
        if delaying is not None and delaying.blocked():
            delaying.release(self._clock())
            if delaying.blocked():
                return False
        queue, more = self._queue, True
        if not queue:
            room = self._port.room
            queue = self._queue = list(self._machine.transmit(self._clock(), room))
            if not queue:
                return False
            more = sum(burst.most_bytes for burst in queue) >= min(room, _PLENTY_BYTES)
        count = packets = 0
        for burst in queue:
            count += 1
            packets += len(burst)
            if packets >= _SEND_BUDGET:
                break
        sent = self._port.send(queue if count == len(queue) else queue[:count])
        del queue[:sent]
        return sent == count and (more or bool(queue))

    def _wait(self) -> bool:
        """Sleeps until something happens; tells whether the port is readable."""
        with self._lock:
            self._asleep = not self._calls and not self._stopping
            if not self._asleep:
                return True
        due = self._machine.next_timer()
        blocked = bool(self._queue)
        if self._delaying is not None:
            release = self._delaying.next_release()
            if release is not None and (due is None or release < due):
                due = release
            blocked = blocked or self._delaying.blocked()
        now = self._clock()
        timeout = None if due is None else max(0, due - now)
        rest = self._received + self._machine.receive_interval() - now
        if 0 < rest and not blocked:
            # As network cards do it (interrupt moderation): the first datagram is taken at once, the next ones together.  What is
            # due meanwhile waits too, for that is a small part of a round trip.
            _, _, woken = self._poller.wait(rest, for_write=False, for_read=False)
            if woken:
                self._asleep = False
                self._waker.drain()
                return False
            timeout = None if due is None else max(0, due - self._clock())
        if blocked and timeout is not None:
            # A timer that only wants to send stays due while it cannot, and must not keep the loop spinning.
            timeout = max(timeout, _BLOCKED_PAUSE)
        readable, _, woken = self._poller.wait(timeout, for_write=blocked)
        self._asleep = False
        if woken:
            self._waker.drain()
        return readable
