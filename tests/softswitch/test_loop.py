"""The thread of a switch: frames, timers, calls, and ends."""

import signal
import threading
import time

import pytest

from softswitch.errors import SwitchError
from softswitch.loop import SwitchLoop
from softswitch.ports import MemoryIO
from softswitch.switch import Switch
from tests.softswitch.scripted import ScriptedPipeline, send

MS = 1_000_000


class Sink:
    """Collects what a port sends, and lets a test wait for it."""

    def __init__(self):
        self.packets = []
        self.times = []
        self._more = threading.Condition()

    def __call__(self, packet):
        with self._more:
            self.times.append(time.monotonic_ns())
            self.packets.append(packet)
            self._more.notify_all()

    def wait(self, count):
        with self._more:
            assert self._more.wait_for(lambda: len(self.packets) >= count, 20), f"{len(self.packets)} of {count} came"
        return self.packets


@pytest.fixture
def rig():
    switch = Switch()
    loop = SwitchLoop(switch, device_id=7)
    sinks = {}
    ios = {}
    for number in (1, 2):
        switch.add_port(number)
        sinks[number] = Sink()
        ios[number] = MemoryIO(f"m{number}", sinks[number])
        loop.attach(number, ios[number])
    switch.set_pipeline(ScriptedPipeline())
    yield switch, loop, ios, sinks
    loop.close()


def test_frames_pass_from_port_to_port_in_order(rig):
    switch, loop, ios, sinks = rig
    with loop.running():
        ios[1].inject(send(2, index % 8, tag=index) for index in range(500))
        ios[2].inject([send(1, 0, tag=9)])
        assert [int.from_bytes(data[:4], "big") for data in sinks[2].wait(500)] == list(range(500))
        assert len(sinks[1].wait(1)) == 1
    assert switch.received == 501


def test_a_shaped_port_keeps_its_rate_and_delay_in_real_time(rig):
    switch, loop, ios, sinks = rig
    switch.traffic.set_link(2, time.monotonic_ns(), rate_bps=1_000_000, delay_ns=20 * MS)
    with loop.running():
        begin = time.monotonic_ns()
        # 250 bytes take 2 ms.
        ios[1].inject(send(2, 0, length=250) for _ in range(10))
        sinks[2].wait(10)
    # Never early, however late the machine makes it.
    assert all(at - begin >= (index + 1) * 2 * MS + 20 * MS for index, at in enumerate(sinks[2].times))


def test_calls_run_in_the_thread_of_the_switch_one_at_a_time(rig):
    _, loop, _, _ = rig
    assert loop.call(threading.get_ident) == threading.get_ident()
    inside = []
    with loop.running():
        owner = loop.call(threading.get_ident)
        assert owner != threading.get_ident()
        # A call from within a call does not wait for itself.
        assert loop.call(lambda: loop.call(threading.get_ident)) == owner
        with pytest.raises(ZeroDivisionError):
            loop.call(lambda: 1 / 0)
        counter = [0]

        def add():
            seen = counter[0]
            inside.append(threading.get_ident())
            counter[0] = seen + 1

        threads = [threading.Thread(target=lambda: [loop.call(add) for _ in range(50)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counter == [400]
    assert set(inside) == {owner}
    assert loop.call(threading.get_ident) == threading.get_ident()


def test_a_call_that_comes_while_the_loop_ends_is_answered(rig):
    _, loop, _, _ = rig
    for _ in range(20):
        answers = []
        with loop.running():
            thread = threading.Thread(target=lambda answers=answers: answers.extend(loop.call(lambda: 5) for _ in range(50)))
            thread.start()
        thread.join(20)
        assert answers == [5] * 50


def test_what_a_call_sends_leaves_without_another_packet_coming(rig):
    switch, loop, _, sinks = rig
    with loop.running():
        loop.call(lambda: switch.receive(1, send(2, tag=3), time.monotonic_ns()))
        sinks[2].wait(1)


def test_a_port_that_takes_no_more_makes_its_packets_wait_by_priority(rig):
    switch, loop, ios, sinks = rig
    full = threading.Event()
    opened = threading.Event()
    plain = ios[2].send

    def refuse(packets):
        if opened.is_set():
            return plain(packets)
        full.set()
        return 0

    ios[2].send = refuse
    with loop.running():
        ios[1].inject([send(2, 0, tag=99)])
        assert full.wait(20)
        ios[1].inject(send(2, priority, tag=priority) for priority in (1, 5, 3))
        while loop.call(lambda: switch.ports[2].queues.packets) < 3:
            pass
        opened.set()
        # The eventfd of a port in memory is always writable, so the loop tries again by itself.
        assert [data[3] for data in sinks[2].wait(4)] == [99, 5, 3, 1]
    assert not switch.ports[2].blocked


def test_packets_for_a_port_without_an_outside_are_counted(rig):
    switch, loop, ios, _ = rig
    switch.add_port(3)
    with loop.running():
        ios[1].inject([send(3)] * 4)
        while loop.call(lambda: switch.ports[3].drops["no-interface"]) < 4:
            pass
    assert switch.ports[3].out_packets == 0


def test_a_port_can_be_taken_away_and_given_back(rig):
    switch, loop, ios, sinks = rig
    with loop.running():
        loop.call(lambda: loop.detach(ios[2]))
        ios[1].inject([send(2)])
        while loop.call(lambda: switch.ports[2].drops["no-interface"]) < 1:
            pass
        loop.call(lambda: loop.attach(2, ios[2]))
        ios[1].inject([send(2)])
        sinks[2].wait(1)


def test_timers_come_again_and_again_and_never_early(rig):
    _, loop, _, _ = rig
    times = []
    enough = threading.Event()
    begin = time.monotonic_ns()

    def tick(now):
        times.append(now)
        if len(times) == 5:
            enough.set()

    loop.every(2 * MS, tick)
    with loop.running():
        assert enough.wait(20)
    assert all(at >= begin + (index + 1) * 2 * MS for index, at in enumerate(times))


def test_one_loop_runs_once_and_a_stop_before_the_start_holds(rig):
    _, loop, _, _ = rig
    with loop.running():
        loop.call(lambda: None)
        with pytest.raises(SwitchError, match="runs already"):
            loop.run()
    loop.stop()
    loop.run()


def test_what_ends_the_loop_early_is_raised(rig):
    _, loop, ios, _ = rig
    ended = threading.Event()

    def fail(io, packets):
        ended.set()
        raise RuntimeError("a disk that is full")

    loop.on_receive = fail
    with pytest.raises(RuntimeError, match="a disk"), loop.running():
        ios[1].inject([send(2)])
        assert ended.wait(20)


def test_a_signal_ends_a_loop_that_waits(rig):
    _, loop, _, _ = rig
    before = signal.signal(signal.SIGUSR2, lambda number, frame: loop.stop())
    wakeup = signal.set_wakeup_fd(loop.wake_descriptor)
    try:
        loop.soon(lambda: threading.Thread(target=signal.raise_signal, args=(signal.SIGUSR2,)).start())
        loop.run()
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGUSR2, before)
