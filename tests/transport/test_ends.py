"""Whatever the weather: every message ends, exact or within its bound, and both ends agree on what was lost."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dlcp.transport.events import MessageReceived, MessageSent, PeerAborted, PeerSilent
from dlcp.transport.virtual import Weather
from dlcp.wire.header import AbortKind
from tests.transport.rig import LOSSY, MS, SECOND, STRIDE, Rig, policy_of

LENGTHS = st.sampled_from([0, 1, STRIDE - 1, STRIDE, STRIDE + 1, 40 * STRIDE, 77 * STRIDE + 5])
BOUNDS = st.sampled_from([0.0, 0.01, 0.05, 0.5])
MESSAGES = st.lists(st.tuples(LENGTHS, BOUNDS, st.sampled_from([0.0, 0.25, 1.0])), min_size=1, max_size=4)


@settings(max_examples=60)
@given(st.integers(0, 2**32), LOSSY, MESSAGES, st.sampled_from(["dctcp", "delay", "fixed"]))
@example(
    3, Weather(drop=0.3, duplicate=0.2, corrupt=0.1, truncate=0.05, mark=0.1, jitter_ns=300_000), [(20_000, 0.1, 0.25)], "dctcp"
)
def test_every_message_ends_and_keeps_its_promise(seed, weather, messages, algorithm):
    rig = Rig(world=3, seed=seed, weather=weather, policy=policy_of(congestion={"algorithm": algorithm, "rate_mbps": 500.0}))
    for source in range(3):
        for length, bound, share in messages:
            rig.send(source, (source + 1) % 3, length, bound=bound, share=share)
    rig.run()
    rig.verify()
    rig.no_one_is_silent()
    packets = sum(sent.tags.size for sent in rig.sent.values())
    assert rig.net.steps < 400 * packets + 4000, "the event loop runs without getting anywhere"
    for endpoint in rig.endpoints.values():
        assert endpoint.idle


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(0, 6 * MS), st.integers(1, 1500), st.sampled_from([0.0, 0.05]), st.booleans())
def test_a_partition_that_heals_costs_only_time(seed, start, length_ms, bound, both_ways):
    end = start + length_ms * MS

    def cut(source, destination, now):
        return start <= now < end and (both_ways or source == 0)

    rig = Rig(seed=seed, weather=Weather(drop=0.02), cut=cut)
    for peer in (0, 1):
        for _ in range(3):
            rig.send(peer, 1 - peer, 50_000, bound=bound)
    took = rig.run()
    rig.verify()
    rig.no_one_is_silent()
    # Probes go out at least every 200 ms, twice; some are lost to the weather.
    assert took < end + 2 * SECOND


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(0, 4 * MS), st.sampled_from([0.0, 0.05]), st.sampled_from(["both", "there", "back"]))
def test_a_partition_that_stays_is_told_within_the_peer_timeout(seed, start, bound, way):
    def cut(source, destination, now):
        return now >= start and (way == "both" or (source == 0) == (way == "there"))

    rig = Rig(seed=seed, cut=cut)
    for peer in (0, 1):
        for _ in range(3):
            rig.send(peer, 1 - peer, 50_000, bound=bound)

    told = {}

    def over():
        """As the layer above does: who learns that a peer is gone says so to everybody, and gives up."""
        for at, rank, event in rig.net.log:
            if isinstance(event, PeerSilent | PeerAborted) and rank not in told:
                told[rank] = (at, event)
                if isinstance(event, PeerSilent):
                    rig.endpoints[rank].abort(AbortKind.PEER_LOST, event.peer, event.seconds, "gone", rig.now)
                rig.endpoints[rank].drop_all()
        return all(r in told or (rig.endpoints[r].idle and rig.endpoints[r].expected_from(1 - r) is None) for r in (0, 1))

    rig.net.run(over, limit_ns=5 * SECOND)
    assert over()
    rig.verify(complete=False)
    # The timeout, and how long a peer must have been silent before it is asked at all.
    assert rig.now <= start + 2 * SECOND + 500 * MS + 100 * MS
    for _, event in told.values():
        if isinstance(event, PeerSilent):
            assert 2.0 <= event.seconds < 2.6
            assert "operation 1, push, part" in event.waiting_for
    assert not told or any(isinstance(event, PeerSilent) for _, event in told.values())


def test_without_an_answer_an_endpoint_does_not_keep_itself_busy():
    """Nobody acts upon PeerSilent: it is said once, and probes go out as slowly as the policy says."""
    rig = Rig(cut=lambda source, destination, now: now > 100_000)
    for peer in (0, 1):
        for _ in range(3):
            rig.send(peer, 1 - peer, 50_000)
    rig.settle(30 * SECOND)
    assert len(rig.events(PeerSilent, 0)) == 1 == len(rig.events(PeerSilent, 1))
    # Two probes or pings every 200 ms, and liveness pings during the first two seconds.
    assert rig.net.fate["sent"] < 2 * (2 * 5 * 30 * 1.5 + 200)
    assert rig.net.steps < 1000


@settings(max_examples=40)
@given(st.integers(0, 2**32), LOSSY, st.integers(1, 400), st.sampled_from([0.01, 0.05, 0.3]))
def test_mass_is_conserved_to_the_last_bit(seed, weather, packets, bound):
    """Contributed = delivered + lost, in float64, by the books of both ends: the sender keeps what the receiver lacks."""
    rig = Rig(seed=seed, weather=weather)
    item, per_packet = 8, STRIDE // 8
    values = rig.random.standard_normal(packets * per_packet - int(rig.random.integers(per_packet)))
    key = rig.send(0, 1, values.size * item, bound=bound)
    rig.sent[key].payload[:] = values.view(np.uint8)
    rig.run()
    rig.verify()
    event = rig.received()[key]
    delivered = event.data.view(np.float64).copy()
    residual = np.zeros_like(values)
    for packet in rig.acknowledged()[key].lost.tolist():
        residual[packet * per_packet : (packet + 1) * per_packet] = values[packet * per_packet : (packet + 1) * per_packet]
    for packet in event.lost.tolist():
        delivered[packet * per_packet : (packet + 1) * per_packet] = 0.0
    assert np.array_equal((delivered + residual).view(np.uint64), values.view(np.uint64))


@settings(max_examples=8)
@given(st.integers(0, 2**32), LOSSY)
def test_the_same_seed_tells_the_same_story(seed, weather):
    def story():
        rig = Rig(world=3, seed=seed, weather=weather)
        for source in range(3):
            for length, bound in ((9_000, 0.05), (3_333, 0.0)):
                rig.send(source, (source + 1) % 3, length, bound=bound)
                rig.send(source, (source + 2) % 3, length, bound=bound, expect=False)
        rig.run()
        events = [
            (t, r, type(e).__name__, e.peer, getattr(e, "message", None), getattr(e, "lost", np.zeros(0)).tolist())
            for t, r, e in rig.net.log
        ]
        return events, rig.net.fate, rig.net.steps, [e.counters() for e in rig.endpoints.values()]

    assert story() == story()


@pytest.mark.parametrize("drop", [0.0, 0.05, 0.3])
def test_a_stop_that_is_lost_is_said_again(drop):
    """The first STOPs never arrive; the sender asks until it has one, and the message is not received twice."""
    stopped = []

    def meddle(flight):
        if flight.datagram[0] & 15 == 3 and len(stopped) < 5:
            stopped.append(flight)
            return []
        return [flight.datagram]

    rig = Rig(weather=Weather(drop=drop), meddle=meddle)
    rig.send(0, 1, 30_000)
    rig.run()
    rig.verify()
    assert len(stopped) == 5
    assert len(rig.events(MessageReceived)) == 1 == len(rig.events(MessageSent))
