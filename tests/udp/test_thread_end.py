"""How the I/O thread ends, and that nobody is left waiting when it does."""

import os
import queue
import threading

import numpy as np
import pytest

from dlcp.errors import ClosedError, MtuError
from dlcp.transport.packets import Burst, control_burst
from dlcp.udp import DatagramPort, IOThread

WAIT = 20.0


def packet(number: int) -> np.ndarray:
    return np.full(48, number, np.uint8)


@pytest.mark.parametrize("where", ["receive", "transmit", "next_timer", "handle_timer", "call", "send"])
def test_an_exception_anywhere_ends_the_thread_and_fails_the_machine(run, open_port, where, recorder):
    port = open_port()
    port.connect_peer(0, port.address)
    machine = recorder()
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


def test_too_large_datagrams_fail_with_the_typed_error(run, open_port, recorder):
    port = open_port()
    port.connect_peer(0, port.address)
    machine = recorder()
    thread = run(machine, port)
    thread.call(lambda now: machine.outbox.append([control_burst(0, 0, np.zeros(65508, np.uint8))]))
    assert machine.failed.wait(WAIT)
    assert isinstance(machine.failures[0], MtuError)


def test_a_port_closed_underneath_ends_the_thread(run, open_port, recorder):
    """Whoever closes the port too early gets an error rather than a thread that spins or reads a stranger's descriptor."""
    port = open_port()
    machine = recorder()
    thread = run(machine, port)
    thread.call(lambda now: port.close())
    assert machine.failed.wait(WAIT)
    assert isinstance(machine.failures[0], OSError)


def test_stop_fails_whoever_still_waits(run, recorder):
    machine = recorder()
    thread = run(machine)
    assert thread.stop(WAIT)
    assert thread.error is None
    assert [type(error) for error in machine.failures] == [ClosedError]
    with pytest.raises(ClosedError):
        thread.call(lambda now: None)
    assert thread.stop(WAIT)
    assert len(machine.failures) == 1


def test_what_was_called_before_stop_still_goes_out(run, open_port, recorder):
    a, b = open_port(), open_port()
    a.connect_peer(1, b.address)
    machine, witness = recorder(), recorder()
    thread = run(machine, a)
    thread.call(lambda now: machine.outbox.append([control_burst(1, 0, packet(77))]))
    assert thread.stop(WAIT)
    run(witness, b)
    assert witness.next("receive") == packet(77).tobytes()


def test_stop_from_inside(run, recorder):
    machine = recorder()
    thread = run(machine)
    answers: queue.SimpleQueue = queue.SimpleQueue()
    thread.call(lambda now: answers.put(thread.stop()))
    assert answers.get(timeout=WAIT) is False
    assert machine.failed.wait(WAIT)


def test_stop_before_start(open_port, recorder):
    machine = recorder()
    thread = IOThread(open_port(), machine)
    ran = []
    thread.call(ran.append)
    assert thread.stop()
    # Whoever made the call may already wait: it runs, and the machine is failed once more after it.
    assert len(ran) == 1 and len(machine.failures) == 2


def test_calls_that_never_ran_are_let_in_and_failed(run, recorder):
    """A call that was accepted before the thread died may register a waiter: it must be failed too."""
    machine = recorder()
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


def test_a_machine_that_fails_to_fail_still_lets_the_thread_end(run, recorder):
    machine = recorder()

    def fail(error: BaseException) -> None:
        raise KeyError("worse")

    machine.fail = fail
    thread = run(machine)
    assert thread.stop(WAIT)
    assert isinstance(thread.error, KeyError)


def test_stop_does_not_wait_for_ever(run, recorder):
    machine = recorder()
    thread = run(machine)
    inside, go_on = threading.Event(), threading.Event()

    def hang(now: int) -> None:
        inside.set()
        go_on.wait(WAIT)

    thread.call(hang)
    assert inside.wait(WAIT)
    assert thread.stop(0.01) is False
    go_on.set()


def test_threads_and_ports_leave_no_descriptor(recorder):
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    before = count()
    for _ in range(5):
        port = DatagramPort()
        thread = IOThread(port, recorder())
        thread.start()
        assert thread.stop(WAIT)
        port.close()
    assert count() == before
