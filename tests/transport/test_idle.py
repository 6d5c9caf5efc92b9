"""A network that loses nothing costs nothing: no gradient is given up, however odd the timing, and nothing is sent twice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.transport.virtual import Weather
from dlcp.transport.virtual_link import LinkModel
from dlcp.wire.header import HEADER_BYTES
from tests.transport.rig import MS, SECOND, STRIDE, Rig, policy_of


def nothing_lost(rig):
    rig.run()
    rig.verify()
    assert all(event.lost.size == 0 for event in rig.received().values()), "a network that loses nothing lost something"


def nothing_again(rig):
    assert all(e.counters().get("retransmitted", 0) == 0 for e in rig.endpoints.values()), "sent again without need"


@settings(max_examples=60)
@given(
    st.integers(0, 2**32),
    st.sampled_from([(1_000, 0), (1_000, 20_000), (1_000, 300_000), (50_000, 900_000), (MS, 300_000), (30 * MS, 5 * MS)]),
    st.sampled_from(["dctcp", "delay", "fixed"]),
    st.lists(st.tuples(st.integers(0, 60 * STRIDE), st.sampled_from([0.02, 0.1, 0.5])), min_size=1, max_size=5),
)
def test_nothing_is_given_up_whatever_delay_and_jitter(seed, times, algorithm, messages):
    """As long as packets are late by less than a millisecond, or than a round trip."""
    delay, jitter = times
    policy = policy_of(congestion={"algorithm": algorithm, "rate_mbps": 50.0})
    rig = Rig(seed=seed, weather=Weather(delay_ns=delay, jitter_ns=jitter), policy=policy, greet=True)
    for length, bound in messages:
        for peer in (0, 1):
            rig.send(peer, 1 - peer, length, bound=bound)
    nothing_lost(rig)


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.sampled_from([0.5, 2.0, 20.0]), st.sampled_from([0.02, 0.3]))
def test_nothing_is_given_up_by_a_slow_sender(seed, rate_mbps, bound):
    """A pacer that leaves long gaps, and no floor under the grace period."""
    policy = policy_of(congestion={"algorithm": "fixed", "rate_mbps": rate_mbps}, grace={"floor_ms": 0.0})
    rig = Rig(seed=seed, policy=policy, greet=True)
    rig.send(0, 1, 90 * STRIDE, bound=bound)
    nothing_lost(rig)


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(1, 16), st.sampled_from([50_000, 10 * MS]), st.sampled_from([0.1, 0.5]))
def test_nothing_is_given_up_while_the_window_is_closed(seed, packets, delay, bound):
    """A receiver that grants few packets a round trip: every stall, after a flurry of packets, looks like a silent sender."""
    weather = Weather(delay_ns=delay, jitter_ns=20_000)
    rig = Rig(seed=seed, weather=weather, window=packets * (STRIDE + HEADER_BYTES), greet=True)
    rig.send(0, 1, 90 * STRIDE, bound=bound)
    nothing_lost(rig)


@pytest.mark.parametrize("greet", [True, False])
def test_a_message_that_others_overtake_is_not_given_up(greet):
    """Its last packets wait in the sender behind 40 ms worth of more urgent messages; the grace period is 5 ms."""
    policy = policy_of(congestion={"algorithm": "fixed", "rate_mbps": 100.0})
    rig = Rig(policy=policy, stride=1400, greet=greet)
    rig.send(0, 1, 100_000, bound=0.5, priority=0, share=0.0)
    rig.settle(6 * MS)
    started = rig.endpoints[1].flow(0).incoming
    assert started and next(iter(started.values())).satisfied
    for _ in range(5):
        rig.send(0, 1, 100_000, priority=6)
    nothing_lost(rig)
    nothing_again(rig)


@pytest.mark.parametrize("priorities", [True, False], ids=["strict priority", "one queue"])
@pytest.mark.parametrize("senders", [1, 4])
def test_queues_in_switches_are_not_mistaken_for_loss(priorities, senders):
    """Incast at a slow port with a deep buffer: classes overtake each other, probes must not overtake their data."""
    link = LinkModel(bytes_per_second=125e6, buffer_bytes=64 << 20, threshold_bytes=64 << 20, priorities=priorities)
    policy = policy_of(congestion={"max_window_bytes": 256 << 10})
    rig = Rig(world=senders + 1, policy=policy, stride=1400, link=link, greet=True)
    for sender in range(senders):
        for _ in range(3):
            rig.send(sender, senders, 150_000, bound=0.05)
    nothing_lost(rig)
    nothing_again(rig)


def test_without_loss_a_message_takes_what_the_wire_takes():
    """No wait for a timer anywhere: the last packet completes it, and its STOP ends it."""
    rig = Rig(greet=True)
    keys = [rig.send(0, 1, 6 * STRIDE, bound=bound) for bound in (0.0, 0.3)]
    start = rig.now
    nothing_lost(rig)
    nothing_again(rig)
    for key in keys:
        there, here = rig.when_done(key)
        assert there - start == 50_000 and here - start == 100_000
    assert rig.endpoints[1].counters().get("status_sent", 0) == 0


def test_an_idle_endpoint_rests():
    """Nothing to do: one look a quarter of the peer timeout, and not a datagram."""
    rig = Rig(world=3, greet=True)
    for peer in (1, 2):
        rig.send(0, peer, 50 * STRIDE)
        rig.send(peer, 0, 50 * STRIDE)
    rig.run()
    rig.settle(SECOND)
    sent, steps = rig.net.fate["sent"], rig.net.steps
    rig.settle(100 * SECOND)
    assert rig.net.fate["sent"] == sent
    assert rig.net.steps - steps <= 3 * 100 / 0.5 + 3
    for endpoint in rig.endpoints.values():
        assert len(endpoint._core.timers) == 1
