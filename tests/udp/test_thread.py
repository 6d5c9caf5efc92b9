"""The loop of the I/O thread: order, fairness, timers and wake-ups."""

import queue
import signal
import socket
import threading
import time
from collections import deque

import numpy as np
import pytest

from dlcp.transport.packets import Burst, Frames, control_burst
from dlcp.udp import IOThread

WAIT = 20.0


def packet(number: int) -> np.ndarray:
    return np.full(48, number, np.uint8)


def test_calls_run_in_order_in_the_thread_and_wake_it(run, recorder):
    machine = recorder()
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


def test_calls_from_many_threads_all_run(run, recorder):
    thread = run(recorder())
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


def test_a_call_may_make_another(run, recorder):
    thread = run(recorder())
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


def test_datagrams_go_through(run, open_port, recorder):
    a, b = open_port(), open_port()
    a.connect_peer(1, b.address)
    b.connect_peer(0, a.address)
    left, right = recorder(), recorder()
    thread = run(left, a)
    run(right, b)

    def send(now: int) -> None:
        left.outbox.append([control_burst(1, 0, packet(number)) for number in range(20) for _ in range(3)])

    thread.call(send)
    for number in range(20):
        for _ in range(3):
            assert right.next("receive") == packet(number).tobytes()


def test_a_timer_fires_when_it_is_due_and_not_before(run, recorder):
    machine = recorder()
    thread = run(machine)

    def arm(now: int) -> None:
        machine.timer = now + 3_000_000

    thread.call(arm)
    machine.next("timer")  # the recorder asserts that it is not early

    left = [9]

    def rearm(now: int) -> None:
        if left[0]:
            left[0] -= 1
            machine.timer = now + 200_000

    machine.on_timer = rearm
    thread.call(arm)
    for _ in range(10):
        machine.next("timer")


def test_a_call_may_bring_the_timer_forward(run, recorder):
    machine = recorder()
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


def test_the_clock_is_the_one_that_was_given(run, recorder):
    machine = recorder()
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

    room = 1 << 20

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


def test_neither_direction_starves_the_other(slow, recorder):
    """The socket always has datagrams and the machine always has bursts: sends and receives alternate, and calls still run."""
    port = slow(flood=True)

    class Endless(recorder):
        def receive(self, frames, now) -> None:
            pass

        def transmit(self, now, room):
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


def test_while_the_send_buffer_is_full_the_machine_is_not_asked_for_more(slow, recorder):
    port = slow(flood=False)
    port.allowed = 3
    machine = recorder()
    asked = []
    batches = deque([[control_burst(0, 0, packet(number)) for number in range(5)], [control_burst(0, 0, packet(9))]])

    def transmit(now: int, room: int):
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


def test_while_the_send_buffer_is_full_the_thread_sleeps_until_there_is_room(slow, recorder):
    """It neither spins nor waits for anything else, even with a timer that is always due."""
    port = slow(flood=False)
    near, far = port._pair
    while True:
        try:
            near.send(bytes(1000))
        except BlockingIOError:
            break
    port.allowed = 0
    machine = recorder()
    machine.next_timer = lambda: 0
    machine.handle_timer = lambda now: None
    machine.outbox.append([control_burst(0, 0, packet(1))])
    done = threading.Event()
    real_send = port.send

    def send(bursts) -> int:
        sent = real_send(bursts)
        if sent:
            done.set()
        return sent

    port.send = send
    thread = IOThread(port, machine)
    thread.start()
    began = time.monotonic()
    assert not done.wait(0.05)
    tries = port.log.count("send")
    # Every pass of the loop tries once, and a pass takes a millisecond at least; a thread that spins makes tens of them.
    assert 1 <= tries <= 20 + 2000 * (time.monotonic() - began)
    port.allowed = 1
    while True:
        try:
            far.recv(2000)
        except BlockingIOError:
            break
    assert done.wait(WAIT)
    machine.next_timer = lambda: None
    assert thread.stop(WAIT) and thread.error is None


def test_a_signal_in_the_thread_is_no_error(run, recorder):
    previous = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        thread = run(recorder())
        for _ in range(20):
            signal.pthread_kill(thread._thread.ident, signal.SIGUSR1)
            # Once the thread has run a call the signal has been delivered, so the handler may go.
            ran = threading.Event()
            thread.call(lambda now, ran=ran: ran.set())
            assert ran.wait(WAIT)
        assert thread.alive
    finally:
        signal.signal(signal.SIGUSR1, previous)


def test_an_idle_thread_sleeps(run, open_port, recorder):
    """It uses no processor while nothing happens, and makes no system call."""
    port = open_port()
    machine = recorder()
    thread = run(machine, port)
    settled = threading.Event()
    thread.call(lambda now: settled.set())
    assert settled.wait(WAIT)
    before = port.metrics()["receive_calls"]
    time.sleep(0.05)
    assert port.metrics()["receive_calls"] - before <= 2


def test_what_trickles_in_is_taken_together(open_port, recorder):
    """The first datagram at once; those that come within the interval after it in one batch."""
    here, there = open_port(), open_port()
    there.connect_peer(0, here.address)
    machine = recorder()
    machine.interval = 200_000_000
    thread = IOThread(here, machine)
    thread.start()
    times = []
    there.send([control_burst(0, 0, packet(0))])
    times.append(machine.events.get(timeout=WAIT)[2])
    for number in range(1, 6):
        there.send([control_burst(0, 0, packet(number))])
    times += [machine.events.get(timeout=WAIT)[2] for _ in range(5)]
    assert times[1] - times[0] >= machine.interval
    assert len(set(times[1:])) == 1
    # A call does not wait for it.
    called = threading.Event()
    there.send([control_burst(0, 0, packet(6))])
    thread.call(lambda now: called.set())
    assert called.wait(WAIT)
    assert thread.stop(WAIT)


def test_a_machine_that_hands_out_what_it_was_asked_for_is_asked_again_at_once(slow, recorder):
    """Nothing else happens: no call, no datagram, no timer."""
    port = slow(flood=False)
    port.room = 48 * 3
    machine = recorder()
    sent = threading.Event()
    batches = deque([control_burst(0, 0, packet(number)) for _ in range(3)] for number in range(200))

    def transmit(now: int, room: int):
        assert room == port.room
        if not batches:
            sent.set()
        return batches.popleft() if batches else []

    machine.transmit = transmit
    thread = IOThread(port, machine)
    thread.start()
    assert sent.wait(WAIT)
    assert thread.stop(WAIT) and thread.error is None
    assert [burst.headers[0, 0] for burst in port.sent] == [number for number in range(200) for _ in range(3)]


def test_a_machine_that_has_less_is_asked_again_when_something_happens(run, open_port, recorder):
    """A call, a timer and a datagram each bring one more look at what there is to send, and none is lost."""
    here, there = open_port(), open_port()
    here.connect_peer(1, there.address)
    there.connect_peer(0, here.address)
    left, right = recorder(), recorder()
    left.interval = 2_000_000
    thread = run(left, here)
    run(right, there)
    for number in range(0, 60, 3):
        thread.call(lambda now, number=number: left.outbox.append([control_burst(1, 0, packet(number))]))
        assert right.next("receive") == packet(number).tobytes()

        left.on_timer = lambda now, number=number: left.outbox.append([control_burst(1, 0, packet(number + 1))])
        thread.call(lambda now: setattr(left, "timer", now + 100_000))
        left.next("timer")
        assert right.next("receive") == packet(number + 1).tobytes()

        # Put there without a word to the thread, which then sleeps until the datagram comes.
        left.outbox.append([control_burst(1, 0, packet(number + 2))])
        there.send([control_burst(0, 0, packet(0))])
        left.next("receive")
        assert right.next("receive") == packet(number + 2).tobytes()


def test_a_timer_waits_for_the_end_of_the_interval_and_no_longer(run, open_port, recorder):
    """It is due while the thread rests after a datagram: it comes with no call and no further datagram to help."""
    here, there = open_port(), open_port()
    there.connect_peer(0, here.address)
    machine = recorder()
    machine.interval = 30_000_000
    take = machine.receive

    def receive(frames, now: int) -> None:
        take(frames, now)
        machine.timer = now + 1_000_000

    machine.receive = receive
    run(machine, here)
    for number in range(5):
        there.send([control_burst(0, 0, packet(number))])
        assert machine.events.get(timeout=WAIT)[0] == "receive"
        assert machine.events.get(timeout=WAIT)[0] == "timer"
