"""Priority flow control: nothing is lost, pauses end, hosts obey, classes are paused apart, and lost frames stop nothing."""

from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.topology import LeafSpine, Star
from dlcp.units import Buffer, Delay, Rate
from sim.changes import Change
from sim.engine.layout import (
    A_ASKED,
    A_BYTES,
    A_DEEPEST,
    A_FULL,
    A_INGRESS,
    A_PACKETS,
    A_PAUSED,
    A_PAUSES,
    A_PENDING,
    A_QUANTA,
    A_SPACE,
    A_XOFF,
    F_END,
    F_LOST,
    F_RESENT,
    PAUSED_SHIFT,
)
from sim.engine.loop import obey
from sim.flows import Transport
from sim.messages import Message
from sim.network import Buffers
from sim.ports_table import ports
from sim.simulation import Simulation
from sim.traffic import incast, permutation

ENGINE = "compiled" if find_spec("llvmlite") else "python"
GBPS = Rate.parse("100 Gbit/s")
US = 10**6


def total(run, counter):
    return sum(run.memory[arc + counter] for arc in run.network.arcs)


def at_rest(run):
    """After everything has arrived no switch holds anything, asks for a pause, or is paused."""
    run.drain()
    for arc in run.network.arcs:
        assert [run.memory[arc + A_INGRESS + number] for number in range(8)] == [0] * 8
        assert run.memory[arc + A_ASKED] == 0
        assert run.memory[arc + A_PENDING] >> PAUSED_SHIFT == 0


def leaf_spine(delay=1, buffer=64, rate=100, loss=0.0):
    return LeafSpine(
        leaves=3,
        spines=2,
        hosts_per_leaf=4,
        rate=Rate.parse(f"{rate} Gbit/s"),
        delay=Delay(delay * US),
        buffer=Buffer(buffer * 1024, "bytes"),
        loss=loss,
    ).build()


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["incast", "permutation", "both"]),
    st.sampled_from(["roce", "dcqcn", "dctcp", "raw"]),
    st.sampled_from(["hash", "random", "round-robin"]),
    st.integers(0, 20),
    st.sampled_from([16, 64, 256]),
    st.sampled_from([1, 10, 100]),
    st.integers(0, 99),
)
def test_a_network_with_pauses_loses_nothing(pattern, transport, spray, delay, buffer, rate, seed):
    messages = [] if pattern == "permutation" else incast(12, 9, 200_000, receiver=seed % 12)
    messages += [] if pattern == "incast" else permutation(12, 200_000, seed)
    # What passes others on the way looks lost to a receiver in order; only the network is under test.
    spray = "hash" if transport in ("roce", "dcqcn") else spray
    carrier = Transport(transport, spray=spray, initial_window=500, reordering=10_000, least_timeout=10**12)
    run = Simulation(leaf_spine(delay, buffer, rate), messages, carrier, engine=ENGINE, buffers=Buffers(pfc=True), seed=seed)
    assert run.run(until=10**13)
    assert total(run, A_FULL) == 0
    assert sum(run.memory[flow + F_LOST] + run.memory[flow + F_RESENT] for flow in run.flows) == 0
    at_rest(run)


def test_without_pauses_the_same_traffic_loses_packets():
    lost = []
    for pfc in (False, True):
        run = Simulation(
            leaf_spine(), incast(12, 11, 200_000), Transport("roce"), engine=ENGINE, buffers=Buffers(pfc=pfc, xoff=20_000)
        )
        assert run.run(until=10**12)
        lost.append(total(run, A_FULL))
        assert (total(run, A_PAUSES) > 0) == pfc
    assert lost[0] > lost[1] == 0


def test_a_storm_of_pauses_ends_and_the_link_stays_busy():
    run = Simulation(leaf_spine(), incast(12, 11, 400_000), Transport("raw"), engine=ENGINE, buffers=Buffers(pfc=True))
    assert run.run()
    assert total(run, A_FULL) == 0 < total(run, A_PAUSES) < 2000
    # The last link is never idle while somebody has something to send.
    assert max(run.memory[flow + F_END] for flow in run.flows) < 11 * 272 * 1514 * 80 * 1.01 + 20 * US
    at_rest(run)
    rows = ports(run)
    assert sum(row["pauses_sent"] for row in rows) == total(run, A_PAUSES)
    assert max(row["paused_s"] for row in rows) == pytest.approx(max(run.memory[a + A_PAUSED] for a in run.network.arcs) / 1e12)


def test_a_switch_holds_no_more_than_its_room_and_asks_above_xoff():
    xoff = 30_000
    run = Simulation(
        leaf_spine(), incast(12, 11, 200_000), Transport("raw"), engine=ENGINE, buffers=Buffers(pfc=True, xoff=xoff, xon=10_000)
    )
    most = [0] * len(run.network.arcs)
    end = 0
    while not run.run(until=end):
        end += 200_000
        for number, arc in enumerate(run.network.arcs):
            held = run.memory[arc + A_INGRESS]
            most[number] = max(most[number], held)
            assert held <= run.memory[arc + A_SPACE]
            assert run.memory[arc + A_XOFF] == xoff
            if held > xoff:
                assert run.memory[arc + A_ASKED] == 1
            if held <= 10_000:
                assert run.memory[arc + A_ASKED] == 0
    assert max(most) > xoff


def test_a_host_obeys_and_a_pause_ends_by_itself():
    shape = Star(hosts=2, rate=GBPS, delay=Delay(US), buffer=Buffer(10**6, "packets")).build()
    run = Simulation(shape, [Message(0, 1, 10**7)], Transport("raw"), engine="python", buffers=Buffers(pfc=True))
    port = run.network.arcs[0]
    run.run(until=10 * US)
    sent = run.memory[port + A_PACKETS]
    assert sent > 70
    obey(run.memory.words, port, 1, 10 * US)
    quanta = run.memory[port + A_QUANTA]
    # 65535 quanta of 512 bit times at 100 Gbit/s.
    assert quanta == pytest.approx(335.5 * US, rel=0.001)
    run.run(until=10 * US + quanta)
    assert run.memory[port + A_PACKETS] == sent
    run.run(until=20 * US + quanta)
    assert run.memory[port + A_PACKETS] > sent + 70
    assert run.memory[port + A_PAUSED] == quanta


def test_a_pause_of_one_class_leaves_the_others_alone():
    shape = Star(hosts=4, rate=GBPS, delay=Delay(US), buffer=Buffer(64 * 1024, "bytes")).build()
    messages = [Message(1, 0, 10**6, priority=2), Message(2, 0, 10**6, priority=2), Message(1, 3, 10**6, priority=1)]
    run = Simulation(shape, messages, Transport("raw", trust_class=True), engine=ENGINE, buffers=Buffers(pfc=True, xoff=20_000))
    assert run.run()
    assert total(run, A_FULL) == 0
    # Both senders of class 2 get half of the link; what host 1 sends meanwhile to host 3 gets the rest of its own.
    ends = [run.memory[flow + F_END] for flow in run.flows]
    assert ends[2] < 1.1 * max(ends[:2])
    assert run.memory[run.network.arcs[2] + A_PAUSED] > 20 * US


def test_pause_frames_take_their_place_on_the_link():
    run = Simulation(leaf_spine(), incast(12, 11, 200_000), Transport("raw"), engine=ENGINE, buffers=Buffers(pfc=True))
    assert run.run()
    down = next(a.number for a in run.topology.graph.arcs if a.source.startswith("leaf") and a.target == "h11")
    port = run.network.arcs[down]
    # Datagrams are answered by nobody: all that went to this host are pause frames, of 64 bytes.
    assert run.memory[port + A_PACKETS] == run.memory[port + A_PAUSES] > 0
    assert run.memory[port + A_BYTES] == 64 * run.memory[port + A_PAUSES]
    assert run.memory[port + A_DEEPEST] == 0


@settings(max_examples=10, deadline=None)
@given(st.sampled_from([0.01, 0.2]), st.integers(0, 9), st.booleans())
def test_lost_pause_frames_and_failures_stop_nothing_for_good(loss, seed, flap):
    changes = [Change(5 * US, 13, up=False), Change(60 * US, 13, up=True), Change(20 * US, 0, rate=10**10, delay=5 * US)]
    run = Simulation(
        leaf_spine(loss=loss),
        incast(12, 11, 60_000),
        Transport("dctcp", least_timeout=10**8),
        engine=ENGINE,
        buffers=Buffers(pfc=True, xoff=10_000),
        changes=changes if flap else (),
        seed=seed,
    )
    assert run.run(until=10**14)
    at_rest(run)
