"""How long a gap may be a straggler: what was late, by how much, class by class."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.transport import intake
from dlcp.transport.arrivals import Arrivals, Identity
from dlcp.transport.congestion import FlowParameters, Sample, create
from dlcp.transport.finished import FinishedMessages
from dlcp.transport.intake_layout import (
    I_NOW,
    I_WORDS,
    P_ECHO,
    P_EXTENT,
    P_HIGHEST,
    P_IN_ORDER,
    P_PACKETS,
    P_WAITED,
    P_WORDS,
)
from dlcp.transport.ordering import LOSSLESS_RUN, MAX_PATIENCE, MIN_WINDOW_NS, ORDERLY_RUN, UNKNOWN_WINDOW_NS, Ordering
from dlcp.transport.peer import Peer
from dlcp.transport.rtt import RttEstimator
from dlcp.transport.serial import MASK
from tests.transport.rig import COOKIE, MS

RTT = 8 * MS


def estimator(sampled=True):
    rtt = RttEstimator(initial_ns=10 * MS, floor_ns=MS, ceiling_ns=200 * MS)
    if sampled:
        rtt.sample(RTT)
    return rtt


def block_of(start=0):
    """A peer's block, as if ``start`` had been the highest number so far."""
    block = Arrivals(Identity(0, 2, COOKIE), use_compiled=False).peer(1)
    block[P_HIGHEST] = start
    return block


def fresh():
    return Ordering(block_of())


def take(ordering, packets, now, waited_us=0):
    """Packets are (sequence, timestamp in microseconds, class), in order of arrival."""
    memory = ordering._block.obj.data
    memory[I_NOW] = now
    at = I_WORDS + P_WORDS
    for sequence, timestamp, priority in packets:
        intake.count(memory, at, sequence, timestamp, priority, 0, 0, waited_us)


def test_nothing_known_means_a_fixed_wait():
    assert fresh().window(estimator(sampled=False), False) == UNKNOWN_WINDOW_NS


def test_patience_runs_out_with_losses_and_comes_back_with_stragglers():
    ordering, rtt = fresh(), estimator()
    windows = []
    for _ in range(6):
        windows.append(ordering.window(rtt, False))
        ordering.waited_in_vain()
    assert windows == [RTT, RTT * 3 // 4, RTT // 2, RTT // 4, RTT // 4, RTT // 4]
    ordering.straggler_came()
    assert ordering.window(rtt, False) == RTT * MAX_PATIENCE // 4


def test_a_path_that_loses_but_keeps_order_is_not_waited_for():
    ordering, rtt = fresh(), estimator()
    take(ordering, [(i, 0, 3) for i in range(ORDERLY_RUN - 1)], MS)
    ordering.waited_in_vain()
    assert ordering.window(rtt, False) == RTT * 3 // 4
    take(ordering, [(ORDERLY_RUN, 0, 3)], MS)
    assert ordering.window(rtt, False) == RTT // 16
    fast = RttEstimator(initial_ns=MS, floor_ns=MS, ceiling_ns=MS)
    fast.sample(20_000)
    assert ordering.window(fast, False) == MIN_WINDOW_NS
    ordering.straggler_came()
    assert ordering.window(rtt, False) == RTT


def test_where_nothing_gets_lost_a_gap_is_a_straggler():
    """Whatever the order: giving it up would be for good, and comes up once in a thousand packets at most."""
    ordering, rtt, fast = fresh(), estimator(), RttEstimator(initial_ns=MS, floor_ns=MS, ceiling_ns=MS)
    fast.sample(20_000)
    assert ordering.window(fast, True) == UNKNOWN_WINDOW_NS
    ordering.waited_in_vain()
    take(ordering, [(i, 0, 3) for i in range(LOSSLESS_RUN - 1)], MS)
    assert ordering.window(fast, True) == MIN_WINDOW_NS
    take(ordering, [(LOSSLESS_RUN, 0, 3)], MS)
    assert ordering.window(fast, True) == UNKNOWN_WINDOW_NS and ordering.window(rtt, True) == RTT
    assert ordering.window(fast, False) == MIN_WINDOW_NS, "asking for it is cheap"


def test_urgent_packets_may_overtake_others():
    """Strict priority is no disorder; inside a class it would be."""
    ordering, rtt = fresh(), estimator()
    packets = [(i * 3 + lag, 0, kind) for i in range(100) for kind, lag in ((7, 300), (3, 150), (0, 0))]
    ordering.waited_in_vain()
    take(ordering, packets, MS)
    assert ordering.window(rtt, False) == RTT // 16
    take(ordering, [(5000, 900, 3), (4999, 800, 3)], 2 * MS)
    assert ordering.window(rtt, False) > RTT // 16


@settings(max_examples=60)
@given(st.integers(0, MASK), st.integers(0, MASK), st.integers(1, 60_000), st.integers(0, 10_000))
def test_a_packet_that_was_late_is_waited_for_as_long_again_and_a_quarter(first, clock, late_us, apart_us):
    """Packet 2 leaves ``apart_us`` after packet 1, and overtakes it by ``late_us``; clocks need not agree, and wrap."""
    ordering, rtt = fresh(), estimator()
    ordering._block[P_HIGHEST] = (first - 1) & MASK
    delay_us = 500
    arrival_2 = (clock + apart_us + delay_us) * 1000
    arrival_1 = arrival_2 + late_us * 1000
    sent_elsewhere = 123_456
    take(ordering, [((first + 1) & MASK, (clock + apart_us + sent_elsewhere) & MASK, 2)], arrival_2)
    take(ordering, [(first, (clock + sent_elsewhere) & MASK, 2)], arrival_1)
    extra = (late_us + apart_us) * 1000
    assert ordering.window(rtt, False) == max(RTT, extra * 5 // 4)
    for _ in range(40):
        ordering.waited_in_vain()
    assert ordering.window(rtt, False) == RTT // 4, "forgotten in time"


@settings(max_examples=100)
@given(st.data())
def test_the_count_agrees_with_a_model_that_knows_all(data):
    """Class by class, in any order and across the wrap: which packet was first, what came late, and by how much."""
    count = data.draw(st.integers(1, 60))
    disorder = data.draw(st.sampled_from([0, 0, 3, 20]))
    start = data.draw(st.sampled_from([0, MASK - 20]))
    base = np.arange(count)
    order = np.argsort(base + np.random.default_rng(disorder).integers(0, disorder + 1, count), kind="stable")
    classes = np.random.default_rng(count).integers(0, data.draw(st.sampled_from([1, 3])), count)
    ordering, now = fresh(), 5 * MS
    block = ordering._block
    block[P_HIGHEST] = (start - 1) & MASK
    kinds = classes[order].tolist()
    highest, top, delays, run, extent = start - 1, {}, {}, 0, 0
    for step, (index, kind) in enumerate(zip(order.tolist(), kinds, strict=True)):
        sequence, timestamp, waited = start + index, index * 10, data.draw(st.integers(0, 300))
        now += 1000 * data.draw(st.integers(0, 40))
        take(ordering, [(sequence & MASK, timestamp & MASK, kind)], now, waited)
        delay = now // 1000 - waited - timestamp
        run += 1
        if sequence > highest:
            highest = sequence
            assert block[P_ECHO] == timestamp and block[P_WAITED] == waited
        if sequence > top.get(kind, -1):
            top[kind], delays[kind] = sequence, delay
        else:
            extent, run = max(extent, (delay - delays[kind]) * 1000), 0
        assert block[P_HIGHEST] == highest & MASK
        assert (block[P_PACKETS], block[P_IN_ORDER], block[P_EXTENT]) == (step + 1, run, extent)


# -- what the sender makes of it ---------------------------------------------------------------------------------------------


class Listener:
    """A congestion control that only listens."""

    def __init__(self):
        self.inner = create("dctcp", FlowParameters(packet_bytes=100, initial_window=1000, max_window=1000))
        self.window = 1000.0
        self.lost = self.delivered = 0
        self.samples: list[Sample] = []

    def on_feedback(self, sample):
        self.samples.append(sample)
        self.lost += sample.lost
        self.delivered += sample.delivered

    def pacing_rate(self, smoothed_rtt):
        return None

    def on_timeout(self):
        self.window = 2.0


def sender():
    peer = Peer(1, Listener(), estimator(), 100, FinishedMessages(10**9, 10**8), block_of(), 0)
    peer.number(1000, 0, 0)
    return peer


def body(highest, received, window=1 << 30):
    return {
        "highest_sequence": highest,
        "received": received,
        "marked": 0,
        "trimmed": 0,
        "timestamp_echo": 0,
        "delay": 0,
        "window": window,
        "queue_depth": 0,
        "wait": 0,
    }


def test_what_is_passed_over_is_lost_at_once_while_order_is_kept():
    peer = sender()
    assert peer.on_feedback(body(10, 8), MS)
    assert peer.control.lost == 2 and peer.in_flight == 990


def test_what_is_passed_over_stays_in_flight_where_packets_have_been_late():
    """Overtaken by a hundred, and in the end all there: nothing was lost, and the window was not exceeded meanwhile."""
    peer = sender()
    assert peer.on_feedback(body(10, 8), MS)
    peer.control.lost = 0
    assert peer.on_feedback(body(11, 11), 2 * MS), "the two come after all"
    assert peer.control.lost == 0 and peer._late_seen
    assert peer.on_feedback(body(111, 20), 3 * MS)
    assert peer.in_flight == 1000 - 111 + 91
    assert peer.on_feedback(body(120, 119), 4 * MS)
    assert peer.control.lost == 0 and peer.in_flight == 1000 - 120 + 1


def test_what_has_been_missing_for_a_round_trip_is_lost_after_all():
    peer = sender()
    peer.on_feedback(body(10, 8), MS)
    peer.on_feedback(body(11, 11), 2 * MS)
    peer.control.lost = 0
    now = 3 * MS
    peer.on_feedback(body(50, 40), now)
    for _ in range(3):
        now += peer.rtt.smoothed + 4 * peer.rtt.variation + MS
        peer.on_feedback(body(50, 40), now)
    assert peer.control.lost == 10 and peer.in_flight == 950


@settings(max_examples=100)
@given(st.data())
def test_losses_are_never_counted_twice_and_never_more_than_there_are(data):
    peer = sender()
    highest = received = 0
    now = 0
    for _ in range(data.draw(st.integers(1, 40))):
        now += data.draw(st.integers(0, 50 * MS))
        highest = min(highest + data.draw(st.integers(0, 50)), 1000)
        received = min(received + data.draw(st.integers(0, 50)), highest)
        peer.on_feedback(body(highest, received), now)
        assert 0 <= peer.in_flight <= 1000
        assert peer.in_flight >= 1000 - highest
    assert peer.control.lost <= 1000
    if not peer._late_seen:
        assert peer.control.lost == highest - received


def test_persistent_congestion_needs_loss_and_silence():
    for received, silence, collapses in ((10, 10**9, False), (1, MS, False), (1, 10**9, True)):
        peer = sender()
        echo = max(silence - RTT, 0) // 1000
        peer.on_feedback(body(20, received) | {"timestamp_echo": echo}, silence)
        assert (peer.control.window == 2.0) == collapses, (received, silence)


def test_stale_and_impossible_feedback_is_refused():
    peer = sender()
    assert peer.on_feedback(body(500, 500), MS)
    assert not peer.on_feedback(body(499, 499), MS)
    assert not peer.on_feedback(body(1001, 600), MS)
    assert not peer.on_feedback(body(500, 499), MS)
    assert peer.on_feedback(body(501, 400), MS), "what was believed about the count was wrong"
    assert peer.acknowledged == 501


def test_time_on_hosts_counts_for_the_round_trip_and_not_for_the_path():
    """What packets waited on either host is in the round trip, by which timers go, and not in the delay of queues."""
    peer = sender()
    samples = [(500, 0, 0), (900, 40, 0), (900, 0, 400), (900, 20, 200), (900, 0, 0)]
    for step, (elapsed_us, wait_tens, waited_us) in enumerate(samples):
        now = (step + 1) * 10 * MS
        fields = {"timestamp_echo": now // 1000 - elapsed_us - 70, "delay": 70, "wait": wait_tens}
        assert peer.on_feedback(body(10 + step, 10 + step) | fields, now, waited_us)
    assert [s.rtt for s in peer.control.samples] == [e * 1000 for e, _, _ in samples]
    assert [s.queueing for s in peer.control.samples] == [0, 0, 0, 0, 400_000]


def test_feedback_that_measures_nothing_tells_nothing_of_queues():
    peer = sender()
    peer.on_feedback(body(10, 10) | {"timestamp_echo": MASK}, MS)
    peer.on_feedback(body(10, 10), 2 * MS)
    assert peer.control.samples[1].rtt is None and peer.control.samples[1].queueing is None
