"""The loop of the I/O thread: order, fairness, timers, wake-ups, and how it ends."""

import os
import queue
import socket
import threading
import time
from collections import deque

import numpy as np
import pytest

from dlcp.errors import ClosedError, MtuError
from dlcp.transport.packets import Burst, Frames, control_burst
from dlcp.udp import DatagramPort, IOThread

WAIT = 20.0


class Recorder:
    """A machine that notes what is done to it, and does as it is told."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue = queue.SimpleQueue()
        self.outbox: deque[list[Burst]] = deque()
        self.timer: int | None = None
        self.on_timer = lambda now: None
        self.failures: list[BaseException] = []
        self.failed = threading.Event()
        self.thread: threading.Thread | None = None

    def _here(self) -> None:
        self.thread = self.thread or threading.current_thread()
        assert threading.current_thread() is self.thread

    def receive(self, frames: list[Frames], now: int) -> None:
        self._here()
        for batch in frames:
            for row, length in zip(batch.data, batch.lengths.tolist(), strict=True):
                self.events.put(("receive", row[:length].tobytes(), now))

    def transmit(self, now: int) -> list[Burst]:
        self._here()
        return self.outbox.popleft() if self.outbox else []

    def next_timer(self) -> int | None:
        return self.timer

    def handle_timer(self, now: int) -> None:
        self._here()
        assert self.timer is not None and now >= self.timer
        self.timer = None
        self.events.put(("timer", now))
        self.on_timer(now)

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)
        self.failed.set()

    def next(self, kind: str):
        event = self.events.get(timeout=WAIT)
        assert event[0] == kind
        return event[1]


@pytest.fixture
def run(open_port):
    """Starts threads on ports and stops them after the test."""
    threads: list[IOThread] = []

    def start(machine, port=None, **settings) -> IOThread:
        thread = IOThread(open_port() if port is None else port, machine, **settings)
        threads.append(thread)
        thread.start()
        return thread

    yield start
    for thread in threads:
        assert thread.stop(WAIT)
        assert not thread.alive


def packet(number: int) -> np.ndarray:
    return np.full(48, number, np.uint8)


def test_calls_run_in_order_in_the_thread_and_wake_it(run):
    machine = Recorder()
    thread = run(machine)
    seen: queue.SimpleQueue = queue.SimpleQueue()
    for round_ in range(3):
        for number in range(100):
            thread.call(lambda now, number=number: seen.put((number, now, threading.current_thread())))
        times = []
        for number in range(100):
            got, now, where = seen.get(timeout=WAIT)
            assert got == number and where is not threading.current_thread()
            times.append(now)
        assert times == sorted(times), round_


def test_calls_from_many_threads_all_run(run):
    thread = run(Recorder())
    counts = [0] * 4
    done = threading.Event()

    def bump(index: int) -> None:
        counts[index] += 1
        if sum(counts) == 4 * 500:
            done.set()

    def work(index: int) -> None:
        for _ in range(500):
            thread.call(lambda now: bump(index))

    workers = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(WAIT)
    assert done.wait(WAIT) and counts == [500] * 4


def test_a_call_may_make_another(run):
    thread = run(Recorder())
    done = threading.Event()

    def again(left: int):
        def function(now: int) -> None:
            if left:
                thread.call(again(left - 1))
            else:
                done.set()

        return function

    thread.call(again(50))
    assert done.wait(WAIT)


def test_datagrams_go_through(run, open_port):
    a, b = open_port(), open_port()
    a.connect_peer(1, b.address)
    b.connect_peer(0, a.address)
    left, right = Recorder(), Recorder()
    thread = run(left, a)
    run(right, b)

    def send(now: int) -> None:
        for number in range(20):
            left.outbox.append([control_burst(1, 0, packet(number)) for _ in range(3)])

    thread.call(send)
    for number in range(20):
        for _ in range(3):
            assert right.next("receive") == packet(number).tobytes()


def test_a_timer_fires_when_it_is_due_and_not_before(run):
    machine = Recorder()
    thread = run(machine)

    def arm(now: int) -> None:
        machine.timer = now + 3_000_000

    thread.call(arm)
    machine.next("timer")  # the recorder asserts that it is not early

    def rearm(now: int) -> None:
        if machine.events.qsize() < 9:
            machine.timer = now + 200_000

    machine.on_timer = rearm
    thread.call(arm)
    for _ in range(10):
        machine.next("timer")


def test_a_call_may_bring_the_timer_forward(run):
    machine = Recorder()
    thread = run(machine)
    ready = threading.Event()

    def later(now: int) -> None:
        machine.timer = now + 3_600_000_000_000
        ready.set()

    def sooner(now: int) -> None:
        machine.timer = now

    thread.call(later)
    assert ready.wait(WAIT)
    thread.call(sooner)
    machine.next("timer")


def test_the_clock_is_the_one_that_was_given(run):
    machine = Recorder()
    moments = iter(range(10**6, 10**9))
    thread = run(machine, clock=lambda: next(moments))
    got: queue.SimpleQueue = queue.SimpleQueue()
    thread.call(got.put)
    assert 10**6 <= got.get(timeout=WAIT) < 10**9


class SlowPort:
    """A port in front of a kernel that takes as many bursts as it is allowed to, and whose socket never lacks datagrams."""

    def __init__(self, *, flood: bool) -> None:
        self._pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for end in self._pair:
            end.setblocking(False)
        self.flood = flood
        self.allowed = 1 << 30
        self.sent: list[Burst] = []
        self.log: list[str] = []
        self.frames = [Frames(np.zeros((1, 48), np.uint8), np.array([48]), np.zeros(1, np.uint8))]

    def fileno(self) -> int:
        return self._pair[0].fileno()

    def send(self, bursts) -> int:
        self.log.append("send")
        count = min(len(bursts), self.allowed)
        self.allowed -= count
        self.sent += bursts[:count]
        return count

    def receive(self) -> list[Frames]:
        self.log.append("receive")
        return self.frames if self.flood else []

    def close(self) -> None:
        for end in self._pair:
            end.close()


@pytest.fixture
def slow():
    ports = []

    def make(**settings) -> SlowPort:
        ports.append(SlowPort(**settings))
        return ports[-1]

    yield make
    for port in ports:
        port.close()


def test_neither_direction_starves_the_other(slow):
    """The socket always has datagrams and the machine always has bursts: sends and receives alternate, and calls still run."""
    port = slow(flood=True)

    class Endless(Recorder):
        def receive(self, frames, now) -> None:
            pass

        def transmit(self, now):
            return [control_burst(0, 0, packet(0)) for _ in range(5000)]

    thread = IOThread(port, Endless())
    thread.start()
    enough = threading.Event()

    def look(now: int) -> None:
        if port.log.count("send") < 50:
            thread.call(look)
        else:
            enough.set()

    thread.call(look)
    assert enough.wait(WAIT)
    assert thread.stop(WAIT)
    assert not any(port.log[index] == port.log[index + 1] for index in range(1, len(port.log) - 1))
    # One pass sends a bounded number of datagrams.
    assert len(port.sent) / port.log.count("send") <= 1024


def test_while_the_send_buffer_is_full_the_machine_is_not_asked_for_more(slow):
    port = slow(flood=False)
    port.allowed = 3
    machine = Recorder()
    asked = []
    batches = deque([[control_burst(0, 0, packet(number)) for number in range(5)], [control_burst(0, 0, packet(9))]])

    def transmit(now: int):
        asked.append(list(port.sent))
        return batches.popleft() if batches else []

    machine.transmit = transmit
    thread = IOThread(port, machine)
    done = threading.Event()
    # The socket pair is always writable, so the loop comes back to the refusing port again and again.
    thread.start()

    def look(now: int) -> None:
        if port.log.count("send") < 10:
            thread.call(look)
            return
        assert len(asked) == 1 and len(port.sent) == 3
        port.allowed = 1 << 30
        done.set()

    thread.call(look)
    assert done.wait(WAIT)
    finished = threading.Event()
    thread.call(lambda now: None)

    def check(now: int) -> None:
        if len(port.sent) < 6:
            thread.call(check)
        else:
            finished.set()

    thread.call(check)
    assert finished.wait(WAIT)
    assert thread.stop(WAIT) and thread.error is None
    assert [burst.headers[0, 0] for burst in port.sent] == [0, 1, 2, 3, 4, 9]
    assert len(asked[1]) == 5


@pytest.mark.parametrize("where", ["receive", "transmit", "next_timer", "handle_timer", "call", "send"])
def test_an_exception_anywhere_ends_the_thread_and_fails_the_machine(run, open_port, where):
    port = open_port()
    port.connect_peer(0, port.address)
    machine = Recorder()
    boom = ZeroDivisionError("boom")

    def explode(*_):
        raise boom

    def arrange(now: int) -> None:
        if where == "call":
            explode()
        elif where == "send":
            machine.outbox.append([Burst(0, 0, packet(0).reshape(1, 48), None, np.array([5]), np.array([5]))])
        else:
            setattr(machine, where, explode)
            machine.timer = now
            if where == "receive":
                machine.outbox.append([control_burst(0, 0, packet(0))])

    thread = run(machine, port)
    thread.call(arrange)
    assert machine.failed.wait(WAIT)
    assert thread.stop(WAIT)
    if where == "send":
        assert isinstance(thread.error, ValueError)
    else:
        assert thread.error is boom
    assert machine.failures[0] is thread.error
    with pytest.raises(ClosedError) as caught:
        thread.call(lambda now: None)
    assert caught.value.__cause__ is thread.error


def test_too_large_datagrams_fail_with_the_typed_error(run, open_port):
    port = open_port()
    port.connect_peer(0, port.address)
    machine = Recorder()
    thread = run(machine, port)
    thread.call(lambda now: machine.outbox.append([control_burst(0, 0, np.zeros(65508, np.uint8))]))
    assert machine.failed.wait(WAIT)
    assert isinstance(machine.failures[0], MtuError)


def test_a_port_closed_underneath_ends_the_thread(run, open_port):
    """Whoever closes the port too early gets an error rather than a thread that spins or reads a stranger's descriptor."""
    port = open_port()
    machine = Recorder()
    thread = run(machine, port)
    thread.call(lambda now: port.close())
    assert machine.failed.wait(WAIT)
    assert isinstance(machine.failures[0], OSError)


def test_stop_fails_whoever_still_waits(run):
    machine = Recorder()
    thread = run(machine)
    assert thread.stop(WAIT)
    assert thread.error is None
    assert [type(error) for error in machine.failures] == [ClosedError]
    with pytest.raises(ClosedError):
        thread.call(lambda now: None)
    assert thread.stop(WAIT)
    assert len(machine.failures) == 1


def test_what_was_called_before_stop_still_goes_out(run, open_port):
    a, b = open_port(), open_port()
    a.connect_peer(1, b.address)
    machine, witness = Recorder(), Recorder()
    thread = run(machine, a)
    thread.call(lambda now: machine.outbox.append([control_burst(1, 0, packet(77))]))
    assert thread.stop(WAIT)
    run(witness, b)
    assert witness.next("receive") == packet(77).tobytes()


def test_stop_from_inside(run):
    machine = Recorder()
    thread = run(machine)
    answers: queue.SimpleQueue = queue.SimpleQueue()
    thread.call(lambda now: answers.put(thread.stop()))
    assert answers.get(timeout=WAIT) is False
    assert machine.failed.wait(WAIT)


def test_stop_before_start(open_port):
    machine = Recorder()
    thread = IOThread(open_port(), machine)
    ran = []
    thread.call(ran.append)
    assert thread.stop()
    # Whoever made the call may already wait: it runs, and the machine is failed once more after it.
    assert len(ran) == 1 and len(machine.failures) == 2


def test_calls_that_never_ran_are_let_in_and_failed(run):
    """A call that was accepted before the thread died may register a waiter: it must be failed too."""
    machine = Recorder()
    waiting: list[str] = []
    outcome: dict[str, BaseException] = {}

    def fail(error: BaseException) -> None:
        outcome.update((name, error) for name in waiting)
        waiting.clear()
        machine.failures.append(error)
        if "late" in outcome:
            machine.failed.set()

    machine.fail = fail
    thread = run(machine)
    boom = RuntimeError("boom")

    def die(now: int) -> None:
        # Queued behind the call that fails, so it cannot run any more.
        thread.call(lambda now: waiting.append("late"))
        thread.call(lambda now: 1 / 0)
        waiting.append("early")
        raise boom

    thread.call(die)
    assert machine.failed.wait(WAIT)
    assert outcome == {"early": boom, "late": boom}


def test_a_machine_that_fails_to_fail_still_lets_the_thread_end(run):
    machine = Recorder()

    def fail(error: BaseException) -> None:
        raise KeyError("worse")

    machine.fail = fail
    thread = run(machine)
    assert thread.stop(WAIT)
    assert isinstance(thread.error, KeyError)


def test_stop_does_not_wait_for_ever(run):
    machine = Recorder()
    thread = run(machine)
    inside, go_on = threading.Event(), threading.Event()

    def hang(now: int) -> None:
        inside.set()
        go_on.wait(WAIT)

    thread.call(hang)
    assert inside.wait(WAIT)
    assert thread.stop(0.01) is False
    go_on.set()


def test_an_idle_thread_sleeps(run, open_port):
    """It uses no processor while nothing happens, and makes no system call."""
    port = open_port()
    machine = Recorder()
    thread = run(machine, port)
    settled = threading.Event()
    thread.call(lambda now: settled.set())
    assert settled.wait(WAIT)
    before = port.metrics()["receive_calls"]
    time.sleep(0.05)
    assert port.metrics()["receive_calls"] - before <= 2


def test_threads_and_ports_leave_no_descriptor():
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    before = count()
    for _ in range(5):
        port = DatagramPort()
        thread = IOThread(port, Recorder())
        thread.start()
        assert thread.stop(WAIT)
        port.close()
    assert count() == before
