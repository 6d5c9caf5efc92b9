"""What loss costs, in virtual time: round trips, not timeouts; and what thousands of operations leave behind: nothing."""

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.transport.ordering import ORDERLY_RUN
from dlcp.transport.peer import CLEAN_RUN
from dlcp.transport.virtual import Weather
from dlcp.transport.virtual_link import LinkModel
from dlcp.wire.header import HEADER_BYTES, PacketType
from tests.transport.rig import MS, SECOND, STRIDE, Rig, column, kind_of, policy_of

DELAY = 50_000
RTT = 2 * DELAY


def known_to_keep_order(**options):
    """A rig whose flows have lost packets, but kept so many in order that stragglers are not waited for."""
    rig = Rig(greet=True, **options)
    for source in rig.endpoints:
        for peer in rig.endpoints[source].peers:
            rig.send(source, peer, (ORDERLY_RUN + 20) * rig.stride)
    rig.run()
    for endpoint in rig.endpoints.values():
        for peer in endpoint.peers:
            endpoint.flow(peer).ordering.waited_in_vain()
    return rig


def all_to_all(seed, drop, *, bound=0.0, make=known_to_keep_order):
    """Three ranks, three messages of 100 KB each way; returns how long it takes."""
    rig = make(world=3, seed=seed, stride=1400)
    rig.net.weather = Weather(drop=drop, delay_ns=DELAY)
    for source in range(3):
        for peer in range(3):
            if source != peer:
                for _ in range(3):
                    rig.send(source, peer, 100_003, bound=bound)
    took = rig.run()
    rig.verify()
    return took


def test_recovery_takes_round_trips_and_not_timeouts():
    """Losing one packet in twenty costs some round trips.  Every timeout is 2 ms at least, which is 20 of them."""
    lossless = all_to_all(0, 0.0)
    assert lossless < 12 * RTT
    for bound in (0.0, 0.05):
        times = [all_to_all(seed, 0.05, bound=bound) for seed in range(8)]
        assert statistics.median(times) < lossless + 18 * RTT
        # One timeout may happen: if the last probe of a flow is lost twice, or the news of a window.
        assert max(times) < lossless + 18 * RTT + 6 * MS


def test_before_any_round_trip_is_known_recovery_does_not_take_much_longer():
    """The first guess at a timeout is 30 ms; the first feedback replaces it."""
    times = [all_to_all(seed, 0.05, make=Rig) for seed in range(6)]
    assert statistics.median(times) < 10 * MS


def test_a_network_that_loses_a_quarter_still_makes_progress():
    """The window shrinks to what loss allows, and no further; stalls do not add up."""
    times = [all_to_all(seed, 0.25) for seed in range(3)]
    assert statistics.median(times) < 150 * MS
    assert max(times) < 400 * MS


@pytest.mark.parametrize("drop", [0.01, 0.05])
def test_a_loaded_link_loses_little_time_to_loss(drop):
    """Four ranks exchange 3 MB each over a link that is always busy: losses are made up for while other packets leave."""

    def took(drop):
        link = LinkModel(bytes_per_second=1e9, buffer_bytes=64 << 20, threshold_bytes=64 << 20)
        rig = Rig(world=4, stride=16_000, link=link, window=24 << 20, greet=True)
        rig.net.weather = Weather(drop=drop, delay_ns=100_000)
        for source in range(4):
            for peer in range(4):
                if source != peer:
                    for _ in range(4):
                        rig.send(source, peer, 1 << 18, bound=0.05, priority=3)
        time = rig.run()
        rig.verify()
        return time

    assert took(drop) < 1.5 * took(0.0)


def lose_once(kind, which=0):
    """Drops the ``which``-th packet of a kind, once; keeps all in a log."""
    log = []
    seen = []

    def meddle(flight):
        log.append(flight)
        if kind_of(flight.datagram) == kind:
            seen.append(flight)
            if len(seen) == which + 1:
                return []
        return [flight.datagram]

    return meddle, log


@pytest.mark.parametrize("kind", [PacketType.DATA, PacketType.PROBE, PacketType.STATUS, PacketType.STOP, PacketType.FEEDBACK])
def test_any_single_loss_costs_round_trips(kind):
    """One packet of each kind is lost, in a message of which one data packet is lost anyway; others follow."""
    meddle, log = lose_once(kind)
    lost = []

    def with_gap(flight):
        if kind_of(flight.datagram) == PacketType.DATA and column(flight.datagram, "offset") == 0 and not lost:
            lost.append(flight)
            return []
        return meddle(flight)

    rig = known_to_keep_order()
    rig.net.meddle = with_gap
    start = rig.now
    key = rig.send(0, 1, 6 * STRIDE, priority=6)
    for _ in range(3):
        rig.send(0, 1, 3 * STRIDE, priority=2)
    rig.run()
    rig.verify()
    assert rig.when_done(key)[1] - start < 9 * RTT
    assert len([f for f in log if kind_of(f.datagram) == PacketType.PROBE]) < 20


def clean_rig(meddle):
    """A flow that has delivered so much without loss that its sender asks only when it must."""
    rig = Rig(greet=True)
    rig.send(0, 1, (CLEAN_RUN + 100) * STRIDE)
    rig.run()
    assert not rig.endpoints[0].flow(1).lossy
    rig.net.meddle = meddle
    return rig


def test_the_last_probe_of_a_lossy_flow_goes_twice():
    """With nothing behind it only a timeout would tell that it was lost."""
    meddle, log = lose_once(PacketType.PROBE)
    rig = Rig(greet=True, meddle=meddle)
    start = rig.now
    rig.send(0, 1, 6 * STRIDE, bound=0.0)
    rig.run()
    probes = [f for f in log if kind_of(f.datagram) == PacketType.PROBE]
    assert len(probes) == 2 and probes[0].at == probes[1].at
    assert rig.now - start < 3 * RTT


def test_feedback_that_would_have_opened_a_window_is_said_again():
    """The window takes 16 packets a round trip; all feedback about one of them is lost, on a path that loses packets."""
    seen, cut = [], []

    def meddle(flight):
        kind = kind_of(flight.datagram)
        if kind == PacketType.DATA:
            seen.append(flight)
            return [] if len(seen) == 3 else [flight.datagram]
        if kind == PacketType.FEEDBACK and flight.source == 1 and len(seen) > 60 and (not cut or cut == [flight.at]):
            cut[:] = [flight.at]
            return []
        return [flight.datagram]

    rig = known_to_keep_order(window=16 * (STRIDE + HEADER_BYTES))
    rig.net.meddle = meddle
    start = rig.now
    key = rig.send(0, 1, 160 * STRIDE, priority=3)
    rig.run()
    assert cut and rig.when_done(key)[1] - start < 18 * RTT


def test_news_of_the_first_copy_is_enough():
    """The second copy of the last probe is lost, and so is the answer to the first: feedback about the first tells."""
    probes, answers, log = [], [], []

    def meddle(flight):
        log.append(flight)
        kind = kind_of(flight.datagram)
        if kind == PacketType.DATA and column(flight.datagram, "offset") == 0 and not column(flight.datagram, "retransmission"):
            return []
        if kind == PacketType.PROBE:
            probes.append(flight)
            return [] if len(probes) == 2 else [flight.datagram]
        if kind == PacketType.STATUS:
            answers.append(flight)
            return [] if len(answers) == 1 else [flight.datagram]
        return [flight.datagram]

    rig = known_to_keep_order()
    rig.net.meddle = meddle
    start = rig.now
    key = rig.send(0, 1, 6 * STRIDE)
    rig.run()
    assert rig.when_done(key)[1] - start < 7 * RTT


def test_on_a_clean_path_the_first_loss_is_seen_by_feedback():
    """No probe follows a message there; but once feedback passes its last packet and no STOP came, one does."""
    meddle, log = lose_once(PacketType.DATA, 3)
    rig = clean_rig(meddle)
    start = rig.now
    key = rig.send(0, 1, 16 * STRIDE, share=1.0)
    rig.run()
    rig.verify()
    assert rig.when_done(key)[1] - start < 10 * RTT
    assert [kind_of(f.datagram) for f in log].count(PacketType.PROBE) >= 1


def test_a_clean_path_carries_no_probes():
    meddle, log = lose_once(None)
    rig = clean_rig(meddle)
    for _ in range(5):
        rig.send(0, 1, 50 * STRIDE, bound=0.05)
    rig.run()
    assert not [f for f in log if kind_of(f.datagram) in (PacketType.PROBE, PacketType.PING, PacketType.STATUS)]


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.sampled_from([0.05, 0.2, 0.4]))
def test_control_traffic_stays_in_proportion(seed, drop):
    """However bad it gets, probes and pings do not flood: they are small, and bounded by what is lost and by the time taken."""
    rig = Rig(seed=seed, weather=Weather(drop=drop), greet=False)
    for _ in range(4):
        rig.send(0, 1, 50 * STRIDE)
    took = rig.run()
    counters = rig.endpoints[0].counters()
    asked = counters.get("probes", 0) + counters.get("pings", 0)
    assert asked < 100 + 2 * took / (100_000)
    assert asked < 4 * 200


def test_thousands_of_operations_leave_nothing_behind():
    """State after the last of many operations is what it was after the first few."""
    rig = Rig(weather=Weather(drop=0.02, duplicate=0.02), policy=policy_of(timeouts={"peer_s": 1.0}))
    random = np.random.default_rng(0)
    sizes = []
    for operation in range(1, 2001):
        keys = [rig.send(peer, 1 - peer, int(random.integers(0, 3 * STRIDE)), bound=0.3, operation=operation) for peer in (0, 1)]
        rig.run()
        for endpoint in rig.endpoints.values():
            endpoint.retire(operation)
        for key in keys:
            del rig.sent[key]
        rig.net.log.clear()
        if operation in (1000, 2000):
            rig.settle(4 * SECOND)
            sizes.append(held(rig))
    assert sizes[0] == sizes[1]
    assert sizes[1]["finished"] == 0 and sizes[1]["messages"] == 0 and sizes[1]["early"] == 0


def held(rig):
    """How many things the endpoints hold on to."""
    count = {"finished": 0, "messages": 0, "early": 0, "timers": 0, "heap": 0, "queue": 0}
    for endpoint in rig.endpoints.values():
        core = endpoint._core
        count["timers"] += len(core.timers)
        count["early"] += endpoint._receiver.admission.early_bytes
        for flow in core.peers.values():
            count["finished"] += len(flow.finished)
            count["queue"] += len(flow._ready) + len(flow.probing) + len(flow.refused) + len(flow.disputed) + len(flow.unclaimed)
            count["messages"] += len(flow.outgoing) + len(flow.incoming) + len(flow.expected)
    return count
