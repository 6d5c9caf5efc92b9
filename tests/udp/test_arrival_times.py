"""When datagrams reached this host: told by the kernel, in the port's own clock, whatever way they took through the slots."""

import gc
import select
import socket
import time
import weakref
from dataclasses import replace

import numpy as np
import pytest

from dlcp.transport.packets import Burst, Frames
from dlcp.udp import DatagramPort
from dlcp.udp.probe import probe

pytestmark = pytest.mark.skipif(
    not (probe().arrival_times and probe().recvmmsg), reason="this kernel does not tell when datagrams came"
)

TRIES = 2000


class OneClock:
    """Stands for the port's clock and for the wall clock that the kernel's times are converted by: no time lies in between."""

    def __init__(self) -> None:
        self.began = time.time_ns() - 1_000_000_000
        self.held: int | None = None

    def time_ns(self) -> int:
        self.held = time.time_ns()
        return self.held

    def __call__(self) -> int:
        now, self.held = self.held or time.time_ns(), None
        return now - self.began


@pytest.fixture
def clock(monkeypatch):
    one = OneClock()
    monkeypatch.setattr("dlcp.udp.slots.time", one)
    return one


def readable(port: DatagramPort) -> None:
    assert select.select([port], [], [], 20.0)[0]


def settle(sender: DatagramPort, receiver: DatagramPort, clock) -> None:
    """Waits until the kernel stamps datagrams as they come: it begins a moment after it was asked to."""
    for _ in range(TRIES):
        sender.send([equal(1, 10)])
        readable(receiver)
        before = clock()
        (frames,) = receiver.receive()
        assert frames.arrivals is not None
        if int(frames.arrivals[0]) <= before:
            return
    pytest.fail("the kernel tells when datagrams are read, not when they came")


def equal(count: int, size: int, tos: int = 2) -> Burst:
    payload = np.arange(size, dtype=np.uint8)
    headers = np.arange(count * 48, dtype=np.uint32).astype(np.uint8).reshape(count, 48)
    return Burst(0, tos, headers, payload, np.zeros(count, np.int64), np.full(count, size, np.int64))


def times(frames: list[Frames]) -> list[int]:
    """Returns the arrival time of each datagram."""
    found: list[int] = []
    for one in frames:
        assert one.arrivals is not None
        found += np.broadcast_to(one.arrivals, len(one.lengths)).tolist()
    return found


def pair(open_port, clock, offload: bool, **settings) -> tuple[DatagramPort, DatagramPort]:
    found = probe()
    if offload and not (found.receive_offload and found.segmentation):
        pytest.skip("this kernel does not aggregate")
    sender = open_port()
    receiver = open_port(capabilities=replace(found, receive_offload=offload), clock=clock, **settings)
    sender.connect_peer(0, receiver.address)
    settle(sender, receiver, clock)
    return sender, receiver


def make_dense(sender: DatagramPort, receiver: DatagramPort) -> None:
    """Single datagrams until a receiver with offload takes its path for one that does not aggregate."""
    for _ in range(TRIES):
        if receiver._receiver._slots is not receiver._receiver._wide:
            return
        sender.send([equal(1, 10)])
        readable(receiver)
        receiver.receive()
    pytest.fail("the receiver stays with its wide slots")


def exchange(sender: DatagramPort, receiver: DatagramPort, clock, burst: Burst) -> list[Frames]:
    """Sends, sleeps, receives; checks what came and that the sleep counts as waiting here, not as time on the way."""
    begin = clock()
    assert sender.send([burst]) == 1
    readable(receiver)
    queued = clock()
    time.sleep(0.003)
    frames = receiver.receive()
    end = clock()
    got = [row[:size].tobytes() for one in frames for row, size in zip(one.data, one.lengths.tolist(), strict=True)]
    assert got == burst.datagrams()
    seen = times(frames)
    assert begin <= seen[0] <= queued < end
    assert all(begin <= moment <= end for moment in seen)
    for one in frames:
        arrivals = one.arrivals
        assert arrivals is not None and arrivals.dtype == np.int64 and len(arrivals) in (1, len(one.lengths))
        assert one.place[6] == arrivals.ctypes.data and one.place[7] == (8 if len(arrivals) == len(one.lengths) else 0)
    return frames


@pytest.mark.parametrize("offload", [False, True])
def test_single_datagrams(open_port, clock, offload):
    sender, receiver = pair(open_port, clock, offload)
    for _ in range(3):
        exchange(sender, receiver, clock, equal(1, 200))


def test_several_at_once_have_a_time_each(open_port, clock):
    sender, receiver = pair(open_port, clock, False)
    between = []
    for number in range(5):
        sender.send([equal(1, 100 + number)])
        readable(receiver)
        between.append(clock())
    (frames,) = receiver.receive()
    assert frames.lengths.tolist() == [148 + number for number in range(5)]
    seen = times([frames])
    assert seen[0] <= between[0]
    # Loopback may be slow to deliver the later ones, but none came before it was sent.
    assert all(moment >= sent for moment, sent in zip(seen[1:], between, strict=False))


def test_aggregated_ones_share_the_time_of_the_first(open_port, clock):
    sender, receiver = pair(open_port, clock, True)
    for count in (10, 7):
        (frames,) = exchange(sender, receiver, clock, equal(count, 500))
        assert len(frames.arrivals) == 1 and len(frames.lengths) == count


@pytest.mark.parametrize("count, size", [(10, 500), (1, 12000)])
def test_what_spills_out_of_dense_slots_with_offload(open_port, clock, count, size):
    sender, receiver = pair(open_port, clock, True, datagram_bytes=600)
    make_dense(sender, receiver)
    (frames,) = exchange(sender, receiver, clock, equal(count, size))
    assert not np.shares_memory(frames.data, receiver._receiver._wide.buffer)


def test_what_spills_without_offload(open_port, clock):
    sender, receiver = pair(open_port, clock, False, datagram_bytes=100)
    exchange(sender, receiver, clock, equal(1, 5000))
    exchange(sender, receiver, clock, equal(1, 5000))


def test_frames_that_are_kept_and_handed_out_again_tell_the_new_time(open_port, clock):
    sender, receiver = pair(open_port, clock, True)
    (first,) = exchange(sender, receiver, clock, equal(10, 500))
    then = int(first.arrivals[0])
    (second,) = exchange(sender, receiver, clock, equal(10, 500))
    assert second is first and int(second.arrivals[0]) > then
    # Two aggregates in one batch lie in two slots, each with its own time.
    sender.send([equal(10, 500)])
    readable(receiver)
    between = clock()
    sender.send([equal(10, 500)])
    frames: list[Frames] = []
    seen: list[int] = []
    while len(frames) < 2:
        readable(receiver)
        got = receiver.receive()
        frames += got
        seen += [int(one.arrivals[0]) for one in got]
    assert seen[0] <= between <= seen[1]


@pytest.mark.parametrize("dense", [False, True])
def test_slots_that_are_replaced_live_as_long_as_their_frames(open_port, clock, dense):
    """A datagram longer than expected makes the receiver change its slots, in the very call that hands it out."""
    sender, receiver = pair(open_port, clock, dense, datagram_bytes=100)
    if dense:
        make_dense(sender, receiver)
    inside = receiver._receiver
    old = weakref.ref(inside._slots)
    bursts = [equal(1, 40), equal(1, 5000, tos=0), equal(1, 41)]
    begin = clock()
    for burst in bursts:
        sender.send([burst])
        readable(receiver)
    # A receive takes at once what has come: with the last, which is short, all three.
    frames = receiver.receive()
    end = clock()
    assert inside._slots is not old()
    gc.collect()
    assert old() is None
    before = times(frames)
    churn = [np.full(1 << size, 0xAA, np.uint8) for size in range(10, 24) for _ in range(4)]
    expected = [datagram for burst in bursts for datagram in burst.datagrams()]
    got = [row[:size].tobytes() for one in frames for row, size in zip(one.data, one.lengths.tolist(), strict=True)]
    assert got == expected[: len(got)] and len(got) >= 2
    assert times(frames) == before and all(begin <= moment <= end for moment in before)
    del churn


@pytest.mark.parametrize("missing", ["arrival_times", "recvmmsg"])
@pytest.mark.parametrize("offload", [False, True])
def test_without_the_capability_there_are_none(open_port, missing, offload):
    found = probe()
    receiver = open_port(capabilities=replace(found, receive_offload=offload and found.receive_offload, **{missing: False}))
    sender = open_port()
    sender.connect_peer(0, receiver.address)
    count = 0
    for burst in (equal(1, 100), equal(20, 500), equal(1, 9000)):
        sender.send([burst])
        count += len(burst)
    while count:
        readable(receiver)
        for one in receiver.receive():
            assert one.arrivals is None and one.place[6:] == (0, 0)
            count -= len(one.lengths)


@pytest.mark.parametrize("family", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("late", ["before", "after", "never"])
def test_a_thread_that_is_kept_from_running_makes_no_datagram_come_before_it_was_sent(open_port, family, late):
    """Two clocks are read, one after the other: whatever passes in between, times lie between sending and receiving."""
    if family == "::1" and not probe(socket.AF_INET6).arrival_times:
        pytest.skip("no IPv6 loopback")

    def clock() -> int:
        if late == "before":
            time.sleep(0.003)
        now = time.monotonic_ns()
        if late == "after":
            time.sleep(0.003)
        return now

    sender, receiver = open_port(family), open_port(family, clock=clock)
    sender.connect_peer(0, receiver.address)
    for count in (1, 10, 1, 10):
        begin = time.monotonic_ns()
        sender.send([equal(count, 300)])
        readable(receiver)
        frames = receiver.receive()
        end = time.monotonic_ns()
        assert all(begin <= moment <= end for moment in times(frames))
