"""The thread of a switch: waits for frames, for timers and for calls from other threads, and drives the switch.

All state of a switch is touched by this one thread only; whoever else wants something changed or read hands over a function with
``call``.  Waits end on time to about the precision of the kernel's high-resolution timers.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from softswitch.arrivals import Arrivals
from softswitch.errors import SwitchError
from softswitch.ports.base import PacketIO
from softswitch.ports.syscalls import POLLOUT, Poller, set_timer_slack
from softswitch.switch import Switch
from softswitch.traffic.port import Port

T = TypeVar("T")

_LONGEST_WAIT_NS: Final = 1_000_000_000


@dataclass(eq=False)
class _Call:
    function: Callable[[], Any]
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.function()
        except BaseException as error:
            self.error = error
        self.done.set()


@dataclass
class _Timer:
    due: int
    interval: int
    function: Callable[[int], object]


class SwitchLoop:
    """Runs a switch between its ports.

    Args:
        switch: Already told its ports; ``attach`` says what is behind each.
        device_id: P4Runtime's number for the switch.
        clock: Monotonic nanoseconds.
        wall_clock: Nanoseconds of CLOCK_REALTIME.
    """

    def __init__(
        self,
        switch: Switch,
        *,
        device_id: int = 0,
        clock: Callable[[], int] = time.monotonic_ns,
        wall_clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.switch = switch
        self.device_id = device_id
        self.on_receive: Callable[[PacketIO, list[bytes]], object] | None = None
        """Sees every batch that arrives, before the switch does."""
        self.on_send: Callable[[PacketIO, list[bytes]], object] | None = None
        """Sees every batch that leaves."""
        self._clock = clock
        self._wall_clock = wall_clock
        self._arrivals = Arrivals()
        self._poller = Poller()
        self._ports: dict[int, tuple[Port, PacketIO]] = {}
        """By descriptor."""
        self._outsides: dict[int, PacketIO] = {}
        """By port number."""
        self._watched: dict[int, Callable[[], object]] = {}
        self._timers: list[_Timer] = []
        self._lock = threading.RLock()
        self._calls: deque[_Call] = deque()
        self._owner: int | None = None
        self._stopping = False
        self._started = threading.Event()
        self._wake_up, self._woken = socket.socketpair()
        self._wake_up.setblocking(False)
        self._woken.setblocking(False)
        self._poller.watch(self._woken.fileno())

    # Setting up (before ``run``, or inside ``call``)

    def attach(self, number: int, io: PacketIO) -> None:
        """Connects a port of the switch with the outside.

        Raises:
            UnknownObject: The switch has no such port.
        """
        port = self.switch.traffic.port(number)
        self._ports[io.fileno()] = (port, io)
        self._outsides[number] = io
        self._poller.watch(io.fileno())

    def detach(self, io: PacketIO) -> None:
        """Takes what ``attach`` connected away; ``io`` is not closed."""
        port, _ = self._ports.pop(io.fileno())
        del self._outsides[port.number]
        self._poller.forget(io.fileno())
        if port.blocked:
            self.switch.traffic.set_blocked(port.number, False, self._clock())

    def outsides(self) -> dict[int, PacketIO]:
        """What is attached, by port."""
        return dict(self._outsides)

    def watch(self, descriptor: int, function: Callable[[], object]) -> None:
        """Calls ``function`` whenever ``descriptor`` is readable."""
        self._watched[descriptor] = function
        self._poller.watch(descriptor)

    def every(self, interval_ns: int, function: Callable[[int], object]) -> None:
        """Calls ``function(now)`` again and again."""
        self._timers.append(_Timer(self._clock() + interval_ns, interval_ns, function))

    # From any thread

    def call(self, function: Callable[[], T]) -> T:
        """Runs ``function`` in the switch's thread and returns what it returns, or raises what it raises.

        While the loop does not run, the function runs in the caller's thread.
        """
        if self._owner == threading.get_ident():
            return function()
        with self._lock:
            if self._owner is None:
                return function()
            call = _Call(function)
            self._calls.append(call)
        self.wake()
        call.done.wait()
        if call.error is not None:
            raise call.error
        result: T = call.result
        return result

    def soon(self, function: Callable[[], object]) -> None:
        """Runs ``function`` in the switch's thread later, without waiting for it; safe in a signal handler."""
        self._calls.append(_Call(function))
        self.wake()

    def stop(self) -> None:
        """Ends ``run`` soon; safe in a signal handler."""
        self._stopping = True
        self.wake()

    def wake(self) -> None:
        """Ends the current wait."""
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake_up.send(b"\0")

    @property
    def wake_descriptor(self) -> int:
        """For ``signal.set_wakeup_fd``."""
        return self._wake_up.fileno()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Runs the loop in a thread of its own for the length of a ``with`` block, and raises what ended it early."""
        failures: list[BaseException] = []

        def body() -> None:
            try:
                self.run()
            except BaseException as error:
                failures.append(error)
                self._started.set()

        self._started.clear()
        thread = threading.Thread(target=body, name=f"switch-{self.device_id}", daemon=True)
        thread.start()
        # From here on calls run in that thread.
        self._started.wait()
        try:
            yield
        finally:
            self.stop()
            thread.join()
            if failures:
                raise failures[0]

    def close(self) -> None:
        """Closes all ports."""
        for _, io in self._ports.values():
            io.close()
        self._ports.clear()
        self._outsides.clear()
        self._wake_up.close()
        self._woken.close()

    # The thread

    def run(self) -> None:
        """Runs until ``stop``.

        Raises:
            SwitchError: It runs already.
        """
        with self._lock:
            if self._owner is not None:
                raise SwitchError("this switch runs already")
            self._owner = threading.get_ident()
        self._started.set()
        set_timer_slack(1)
        try:
            while not self._stopping:
                self._turn()
        finally:
            with self._lock:
                self._owner = None
                self._stopping = False
                self._run_calls()

    def _turn(self) -> None:
        switch, clock = self.switch, self._clock
        due = switch.next_timer()
        for timer in self._timers:
            if due is None or timer.due < due:
                due = timer.due
        if self._calls or self._arrivals.waiting:
            due = 0
        wait = _LONGEST_WAIT_NS if due is None else min(_LONGEST_WAIT_NS, due - clock())
        ready = self._poller.wait(wait)
        for descriptor, events in ready:
            found = self._ports.get(descriptor)
            if found is None:
                self._notice(descriptor)
                continue
            port, io = found
            if events & POLLOUT and port.blocked:
                self._unblock(port, io, clock())
            if events & ~POLLOUT:
                packets = io.receive()
                if packets:
                    if self.on_receive is not None:
                        self.on_receive(io, packets)
                    if switch.traffic.shaped:
                        self._note(port.number, io, packets)
                    else:
                        switch.receive_batch(port.number, packets, clock())
        now = self._enter(clock())
        if self._calls:
            self._run_calls()
        due = switch.next_timer()
        if due is not None and due <= now:
            switch.advance(now)
        for timer in self._timers:
            if timer.due <= now:
                timer.function(now)
                timer.due = max(timer.due + timer.interval, now)
        for port in switch.ports.values():
            if port.out and not port.blocked:
                self._send(port, now)

    def _note(self, number: int, io: PacketIO, packets: list[bytes]) -> None:
        """Keeps frames until it is known what arrived before them."""
        now, stamps = self._clock(), io.times(len(packets))
        if stamps is None:
            self._arrivals.add(number, packets, [now] * len(packets), False)
        else:
            # The kernel's stamps are of another clock.  A step of that clock must neither stop time nor let frames come early.
            shift = now - self._wall_clock()
            self._arrivals.add(number, packets, [min(stamp + shift, now) for stamp in stamps], io.more)

    def _enter(self, now: int) -> int:
        """Lets the frames in whose turn it is, each at the time at which it arrived; returns the time up to which all are in."""
        ready, now = self._arrivals.take(now)
        for time_ns, _, number, packet in ready:
            self.switch.receive_batch(number, (packet,), time_ns)
        return now

    def _notice(self, descriptor: int) -> None:
        function = self._watched.get(descriptor)
        if function is not None:
            function()
            return
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)

    def _run_calls(self) -> None:
        while self._calls:
            self._calls.popleft().run()

    def _send(self, port: Port, now: int) -> None:
        out = port.out
        io = self._outsides.get(port.number)
        if io is None:
            port.drops["no-interface"] += len(out)
            port.out_packets -= len(out)
            port.out_bytes -= sum(map(len, out))
            out.clear()
            return
        sent = io.send(out)
        if self.on_send is not None:
            self.on_send(io, out[:sent])
        if sent == len(out):
            out.clear()
            return
        del out[:sent]
        if not port.blocked:
            self._poller.watch(io.fileno(), write=True)
            self.switch.traffic.set_blocked(port.number, True, now)

    def _unblock(self, port: Port, io: PacketIO, now: int) -> None:
        self._send(port, now)
        if not port.out:
            self._poller.watch(io.fileno())
            self.switch.traffic.set_blocked(port.number, False, now)


__all__ = ["SwitchLoop"]
