"""Congestion control: each algorithm against simple models, the registry, and flows through a bottleneck."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.policy import Policy
from dlcp.transport.congestion import CongestionControl, FlowParameters, Sample, create, names, register
from dlcp.transport.congestion.algorithms import excess_loss
from dlcp.transport.virtual_link import LinkModel
from dlcp.wire.header import HEADER_BYTES
from tests.transport.rig import MS, Rig, policy_of

PACKET = 1448
RTT = 100_000


def parameters(**changes):
    fields = {"packet_bytes": PACKET, "initial_window": 16, "max_window": 10_000, "rate": 1e8} | changes
    return FlowParameters(**fields)


def sample(now, delivered=10, lost=0, marked=0, rtt=RTT, queueing=0, limited=True):
    return Sample(
        now=now,
        delivered=delivered,
        lost=lost,
        marked=marked,
        rtt=rtt,
        smoothed_rtt=rtt or RTT,
        queueing=queueing,
        limited=limited,
    )


def rounds(control, count, *, lost=0.0, marked=0.0, now=0, limited=True):
    """Plays whole windows, a round trip each, of which shares are lost and marked; returns the windows and the time."""
    windows = []
    if now == 0:
        # The first feedback opens the first round.
        control.on_feedback(sample(now, 0, limited=limited))
    for _ in range(count):
        now += RTT + 1
        total = int(control.window)
        gone = round(total * lost)
        control.on_feedback(sample(now, total - gone, gone, round((total - gone) * marked), limited=limited))
        windows.append(control.window)
    return windows, now


# -- the registry ------------------------------------------------------------------------------------------------------------


def test_the_policy_accepts_exactly_what_is_registered():
    for name in names():
        policy = Policy.from_dict({"congestion": {"algorithm": name, "rate_mbps": 1.0}})
        control = create(policy.congestion.algorithm, parameters())
        assert control.name == name and isinstance(control, CongestionControl)
    with pytest.raises(ValueError, match="no-such") as refused:
        Policy.from_dict({"congestion": {"algorithm": "no-such"}})
    assert all(name in refused.value.accepted for name in names())
    assert refused.value.accepted.count(",") + refused.value.accepted.count(" or ") <= len(names())


def test_a_name_is_registered_once_and_an_unknown_one_is_refused():
    with pytest.raises(ValueError, match="registered already"):
        register("dctcp")(type("Other", (CongestionControl,), {}))
    with pytest.raises(KeyError, match="known: dctcp, delay, fixed"):
        create("vegas", parameters())


# -- any algorithm -----------------------------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(st.sampled_from(names()), st.integers(1, 100), st.integers(2, 200), st.data())
def test_the_window_stays_within_its_limits_whatever_is_reported(name, initial, most, data):
    control = create(name, parameters(initial_window=initial, max_window=most, loss_tolerance=0.05))
    assert control.window <= most
    now = 0
    for _ in range(data.draw(st.integers(1, 30))):
        if data.draw(st.integers(0, 9)) == 0:
            control.on_timeout()
        now += data.draw(st.integers(0, 5 * RTT))
        delivered = data.draw(st.integers(0, 2**31))
        control.on_feedback(
            sample(
                now,
                delivered,
                data.draw(st.integers(0, 2**31)),
                data.draw(st.integers(0, delivered)),
                data.draw(st.one_of(st.none(), st.integers(1000, 10**10))),
                data.draw(st.one_of(st.none(), st.integers(0, 10**10))),
                limited=data.draw(st.booleans()),
            )
        )
        assert min(CongestionControl.MINIMUM_WINDOW, most) <= control.window <= most
        rate = control.pacing_rate(RTT)
        assert rate is None or (rate > 0 and math.isfinite(rate))


@pytest.mark.parametrize("name", ["dctcp", "delay"])
def test_a_flow_that_its_application_holds_back_does_not_grow(name):
    control = create(name, parameters())
    windows, _ = rounds(control, 20, limited=False)
    assert windows == [16.0] * 20


@pytest.mark.parametrize("name", ["dctcp", "delay"])
@pytest.mark.parametrize(("loss", "shrinks"), [(0.04, False), (0.05, False), (0.25, True)])
def test_loss_is_a_signal_only_beyond_what_is_tolerated(name, loss, shrinks):
    control = create(name, parameters(loss_tolerance=0.05))
    _, now = rounds(control, 8)
    grown = control.window
    windows, _ = rounds(control, 10, lost=loss, now=now)
    assert (min(windows) < grown) == shrinks


@pytest.mark.parametrize("name", ["dctcp", "delay"])
def test_without_tolerance_every_loss_is_a_signal(name):
    control = create(name, parameters(loss_tolerance=0.0))
    _, now = rounds(control, 4)
    control.on_feedback(sample(now + 1, 0))
    grown = control.window
    control.on_feedback(sample(now + RTT + 2, 1, 1))
    assert control.window < grown


@given(st.integers(1, 5000), st.floats(0.0, 0.5), st.data())
def test_excess_loss(total, tolerance, data):
    lost = data.draw(st.integers(0, total))
    excess = excess_loss(lost, total, tolerance)
    if lost <= tolerance * total:
        assert excess == 0
    if excess:
        assert excess == pytest.approx(lost / total - tolerance)
    if lost > tolerance * total + 4 * math.sqrt(tolerance * (1 - tolerance) * total) + 1:
        assert excess > 0
    if tolerance == 0:
        assert excess == lost / total


# -- DCTCP -------------------------------------------------------------------------------------------------------------------


def test_dctcp_doubles_each_round_until_the_first_mark_and_then_adds_one():
    control = create("dctcp", parameters())
    windows, now = rounds(control, 4)
    assert windows == [32, 64, 128, 256]
    (halved,), now = rounds(control, 1, marked=1.0, now=now)
    assert halved == pytest.approx(256 / 2 + 1)
    windows, _ = rounds(control, 3, now=now)
    assert windows == pytest.approx([halved + 1, halved + 2, halved + 3])


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_dctcp_reduces_in_proportion_to_the_marked_share(share):
    control = create("dctcp", parameters(max_window=100_000))
    control.window, control.threshold = 1000.0, 1000.0
    control.alpha = share
    before = control.window
    rounds(control, 1, marked=share)
    assert control.window == pytest.approx(before * (1 - share / 2) + 1, rel=1e-3)
    assert control.alpha == pytest.approx(share, rel=1e-2)


def test_dctcp_averages_the_marked_share_with_the_policys_gain():
    control = create("dctcp", parameters(gain=0.25))
    _, now = rounds(control, 1, marked=0.0)
    assert control.alpha == pytest.approx(0.75)
    rounds(control, 1, marked=0.5, now=now)
    assert control.alpha == pytest.approx(0.75 * 0.75 + 0.25 * 0.5)


@pytest.mark.parametrize("kind", ["marked", "lost"])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
def test_dctcp_settles_at_two_packets_per_marked_or_lost_one(kind, share):
    control = create("dctcp", parameters())
    # Fractional shares, so that rounding small windows does not blur the fixed point.
    now = 0
    for _ in range(600):
        now += RTT + 1
        hit = 1000 * share
        fields = {"marked": int(hit)} if kind == "marked" else {"lost": int(hit)}
        control.on_feedback(sample(now, 1000 - fields.get("lost", 0), **fields))
    assert control.window == pytest.approx(2 / share, rel=0.15)


def test_dctcp_after_persistent_congestion_starts_slowly_up_to_half_of_what_it_had():
    control = create("dctcp", parameters())
    rounds(control, 3)
    assert control.window == 128
    control.on_timeout()
    assert control.window == CongestionControl.MINIMUM_WINDOW
    windows, _ = rounds(control, 8, now=10**9)
    assert windows == [4, 8, 16, 32, 65, 66, 67, 68]


# -- delay -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [20, 100, 1000])
@pytest.mark.parametrize("target_us", [50, 500])
def test_delay_keeps_the_queue_near_its_target(capacity, target_us):
    """A queue that takes ``capacity`` packets a base round trip: the rest of the window waits in it."""
    control = create("delay", parameters(target_delay_ns=target_us * 1000))
    now, queues = 0, []
    for step in range(800):
        queue = max(control.window - capacity, 0.0)
        rtt = int(RTT * (1 + queue / capacity))
        now += rtt + 1
        control.on_feedback(sample(now, int(control.window), rtt=rtt, queueing=rtt - RTT))
        if step > 400:
            queues.append(rtt - RTT)
    average = sum(queues) / len(queues)
    # One packet more or less is a step of RTT / capacity.
    assert average <= 2 * target_us * 1000 + 2 * RTT / capacity
    assert average >= 0.3 * target_us * 1000 - 2 * RTT / capacity
    assert control.window >= capacity * 0.8


def test_delay_never_takes_more_than_half_away_at_once():
    control = create("delay", parameters())
    control.window = 1000.0
    control.on_feedback(sample(1, 10, rtt=RTT))
    control.on_feedback(sample(1 + RTT, 10, lost=990, marked=10, rtt=1000 * RTT, queueing=999 * RTT))
    assert control.window >= 500


def test_delay_goes_by_queues_and_not_by_round_trips():
    """A round trip a hundred times as long as the target changes nothing as long as hosts are what takes it."""
    target, grown = 10 * RTT, {}
    for name, rtt, queueing in (("short", RTT, 0), ("slow host", 1000 * RTT, target), ("unknown", RTT, None)):
        control = create("delay", parameters(target_delay_ns=target))
        control.on_feedback(sample(1, 10, rtt=rtt, queueing=queueing))
        control.on_feedback(sample(2 + rtt, 10, rtt=rtt, queueing=queueing))
        grown[name] = control.window
    assert grown["short"] == grown["slow host"] > 16 == grown["unknown"]


def test_delay_takes_the_shortest_queueing_of_a_round():
    """A busy host delays some packets, a queue all of them."""
    for delays, shrinks in (([50 * RTT, RTT // 2, 50 * RTT], False), ([50 * RTT, 5 * RTT, 50 * RTT], True)):
        control = create("delay", parameters(target_delay_ns=RTT))
        control.window = 100.0
        for step, queueing in enumerate(delays):
            control.on_feedback(sample(1 + step * RTT // 2, 10, queueing=queueing, limited=False))
        assert (control.window < 100) == shrinks
        if shrinks:
            over = 4 * RTT
            assert control.window == pytest.approx(100 * (1 - min(0.8 * over / (5 * RTT), 0.5)))


def test_delay_forgets_the_queueing_of_past_rounds():
    control = create("delay", parameters(target_delay_ns=RTT))
    control.window = 100.0
    control.on_feedback(sample(1, 10, queueing=0, limited=False))
    control.on_feedback(sample(1 + RTT, 10, queueing=0, limited=False))
    assert control.window == 100
    control.on_feedback(sample(2 + 2 * RTT, 10, queueing=9 * RTT, limited=False))
    assert control.window == 50


# -- fixed -------------------------------------------------------------------------------------------------------------------


def test_fixed_does_not_react():
    control = create("fixed", parameters(rate=12345.0))
    rounds(control, 5, lost=0.5, marked=1.0)
    control.on_timeout()
    assert control.window == 10_000 and control.pacing_rate(1) == control.pacing_rate(10**9) == 12345.0
    with pytest.raises(ValueError, match="rate > 0"):
        create("fixed", parameters(rate=0.0))


@pytest.mark.parametrize("rate_mbps", [10.0, 400.0])
def test_a_fixed_flow_sends_at_its_rate(rate_mbps):
    rig = Rig(policy=policy_of(congestion={"algorithm": "fixed", "rate_mbps": rate_mbps}), greet=True)
    key = rig.send(0, 1, 100_000)
    start = rig.now
    rig.run()
    sent = 100_000 * (1 + HEADER_BYTES / rig.stride)
    expected = sent / (rate_mbps * 1e6 / 8) * 1e9
    assert rig.when_done(key)[0] - start == pytest.approx(expected, rel=0.1, abs=1.2 * MS)


# -- flows through a bottleneck ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["dctcp", "delay"])
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_incast_fills_the_link_and_not_the_buffer(algorithm, share):
    """Three senders, one port that marks protected packets and drops the others above 150 KB, and takes 2 MB at most."""
    link = LinkModel(bytes_per_second=1e9, buffer_bytes=2 << 20, threshold_bytes=150_000, priorities=False)
    rig = Rig(world=4, policy=policy_of(congestion={"algorithm": algorithm}), stride=1400, link=link, greet=True)
    for sender in (1, 2, 3):
        for _ in range(2):
            rig.send(sender, 0, 1 << 19, bound=0.05, share=share, priority=3)
    start = rig.now
    rig.run()
    rig.verify()
    ideal = 6 * (1 << 19) * (1400 + HEADER_BYTES) / 1400 / 1e9 * 1e9
    assert rig.now - start < 1.55 * ideal
    assert rig.net.links[0].deepest < 600_000
    datagrams = sum(rig.net.fate[f"link_{fate}"] for fate in ("queued", "marked", "dropped"))
    assert rig.net.fate["link_dropped"] < 0.12 * datagrams
    if share == 1.0:
        assert rig.net.fate["link_dropped"] == 0
        assert all(event.lost.size == 0 for event in rig.received().values())


@pytest.mark.parametrize("name", ["dctcp", "delay"])
def test_bad_luck_is_not_congestion(name):
    """Exactly the tolerated share is lost, at random: small windows often lose far more in one round."""
    unlucky = 0
    for seed in range(10):
        random = np.random.default_rng(seed)
        control, now = create(name, parameters(loss_tolerance=0.05, max_window=400)), 0
        for _ in range(200):
            now += RTT + 1
            total = int(control.window)
            lost = int(random.binomial(total, 0.05))
            before = control.window
            control.on_feedback(sample(now, total - lost, lost))
            unlucky += control.window < before
    assert unlucky <= 4, "in two thousand rounds"


def test_loss_far_beyond_tolerance_settles_the_window_too():
    """A quarter lost at random, a twentieth tolerated: about two packets for each one lost beyond that."""
    random = np.random.default_rng(1)
    control, now, windows = create("dctcp", parameters(loss_tolerance=0.05)), 0, []
    for step in range(1500):
        now += RTT + 1
        total = int(control.window)
        lost = int(random.binomial(total, 0.25))
        control.on_feedback(sample(now, total - lost, lost))
        if step > 300:
            windows.append(control.window)
    assert 6 <= sum(windows) / len(windows) <= 20
