"""pFabric: the queue by rank, short before long, nothing idle while something waits, timeouts and probes."""

from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.topology import Dumbbell, LeafSpine, Star
from dlcp.units import Buffer, Delay, Rate
from sim.changes import Change
from sim.engine.layout import (
    A_BACKLOG,
    A_DEEPEST,
    A_FULL,
    A_LIMIT_BYTES,
    A_MASK,
    A_QUEUES,
    F_CREDIT,
    F_END,
    F_LOST,
    F_MISSING,
    F_RESENT,
    F_RTO,
    F_START,
    F_WINDOW,
    KEPT,
    P_EXTRA,
    P_FLAGS,
    P_FLOW,
    P_NEXT,
    P_SEQ,
    Q_BYTES,
    Q_COUNT,
    Q_HEAD,
    Q_TAIL,
    RANKED,
    SIZE_SHIFT,
)
from sim.engine.ports import admit, first_waiting, take_packet
from sim.flows import Transport, ideal_time
from sim.messages import Message
from sim.simulation import Simulation
from sim.traffic import incast

ENGINE = "compiled" if find_spec("llvmlite") else "python"
GBPS = Rate.parse("100 Gbit/s")
US = 10**6
PFABRIC = Transport("pfabric", spray="round-robin")


def star(hosts, buffer=256):
    return Star(hosts=hosts, rate=GBPS, delay=Delay(US), buffer=Buffer(buffer * 1024, "bytes")).build()


def times(run):
    return [run.memory[flow + F_END] - run.memory[flow + F_START] for flow in run.flows]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 3), st.integers(0, 6))), max_size=60), st.integers(1, 6))
def test_the_queue_sends_the_least_and_drops_the_most(steps, room):
    """Against a list that is searched: None takes a packet out, (flow, rank) brings one in."""
    run = Simulation(star(3), [Message(1, 0, 1)] * 4, PFABRIC, engine="python")
    m, memory = run.memory.words, run.memory
    port = run.network.arcs[1]
    queue = port + A_QUEUES
    memory[port + A_LIMIT_BYTES] = room * 1000
    memory[port + 8] = 10**9  # the link is busy, so everything waits
    model, number, dropped = [], 0, 0
    for step in steps:
        if step is None:
            if model:
                least = min(rank for rank, _, _ in model)
                flow = next(f for rank, f, _ in model if rank == least)
                wanted = next(entry for entry in model if entry[1] == flow)
                model.remove(wanted)
                packet = first_waiting(m, port, memory[port + A_MASK], 1)
                assert (memory[packet + P_EXTRA], memory[packet + P_SEQ]) == (wanted[0], wanted[2])
        else:
            flow, rank = step
            number += 1
            packet = take_packet(m)
            memory[packet + P_FLOW], memory[packet + P_SEQ], memory[packet + P_EXTRA] = run.flows[flow], number, rank
            memory[packet + P_FLAGS] = KEPT | RANKED | 1000 << SIZE_SHIFT
            admit(m, port, queue, memory[queue + Q_COUNT], packet, 1)
            model.append((rank, flow, number))
            if len(model) > room:
                most = max(rank for rank, _, _ in model)
                # The newcomer goes unless it is better than the worst of the others.
                others = [entry for entry in model[:-1] if entry[0] == max(r for r, _, _ in model[:-1])]
                model.remove(model[-1] if model[-1][0] >= others[-1][0] else others[-1])
                assert most >= max(rank for rank, _, _ in model)
                dropped += 1
        found, packet, last = [], memory[queue + Q_HEAD] if model else 0, 0
        while packet:
            found.append((memory[packet + P_EXTRA], memory[packet + P_SEQ]))
            last, packet = packet, memory[packet + P_NEXT]
        assert found == [(rank, number) for rank, _, number in model]
        assert memory[queue + Q_COUNT] == len(model) and memory[queue + Q_BYTES] == memory[port + A_BACKLOG] == 1000 * len(model)
        assert memory[port + A_MASK] == (1 if model else 0)
        assert not model or memory[queue + Q_TAIL] == last
    assert memory[port + A_FULL] == dropped


@pytest.mark.parametrize("size", [1, 1460, 1461, 500_000])
def test_a_flow_alone_takes_the_ideal_time(size):
    shape, message = star(2), Message(0, 1, size)
    run = Simulation(shape, [message], PFABRIC, engine=ENGINE)
    assert run.run()
    # Its window is a product of bandwidth and delay, rounded up: no pause.
    assert times(run) == [ideal_time(shape, message, PFABRIC)]


def test_its_window_its_timeout_and_its_ports_follow_from_the_network():
    run = Simulation(star(3), [Message(0, 1, 10**6)], PFABRIC, engine=ENGINE)
    trip = 4 * US + 2 * (1514 + 64) * 80
    memory, flow = run.memory, run.flows[0]
    assert memory[flow + F_RTO] == 3 * trip
    product = trip // 80
    assert memory[flow + F_WINDOW] == -(-product // 1514) * 1024
    assert memory[run.network.arcs[1] + A_LIMIT_BYTES] == 2 * product


def test_short_messages_overtake_long_ones():
    shape = LeafSpine(leaves=2, spines=2, hosts_per_leaf=5, rate=GBPS, buffer=Buffer(256 * 1024, "bytes")).build()
    long = [Message(host, 0, 3_000_000) for host in range(5, 9)]
    short = [Message(9, 0, 15_000, start=start * US) for start in range(50, 900, 50)]
    took = {}
    for name in ("pfabric", "dctcp"):
        run = Simulation(shape, [*long, *short], Transport(name, spray="round-robin", reordering=1000), engine=ENGINE)
        assert run.run()
        took[name] = times(run)
    ideal = ideal_time(shape, short[0], PFABRIC)
    # A packet that is being sent at each hop is all that stands in the way.
    assert sorted(took["pfabric"][4:])[len(short) // 2] < 1.1 * ideal
    assert max(took["pfabric"][4:]) < 1.5 * ideal
    assert sum(took["dctcp"][4:]) > 2 * sum(took["pfabric"][4:])


def test_the_link_is_never_idle_for_long_while_somebody_has_something_to_send():
    run = Simulation(star(13), incast(13, 12, 1_000_000), PFABRIC, engine=ENGINE)
    assert run.run()
    memory = run.memory
    assert sum(memory[flow + F_MISSING] for flow in run.flows) == 0
    assert sum(memory[flow + F_LOST] for flow in run.flows) > 0
    work = 12 * 1_000_000 / 1460 * 1514 * 80
    assert max(times(run)) < 1.15 * work
    # One after another, not all at the end.
    assert sorted(times(run))[5] < 0.65 * work
    assert memory[run.network.arcs[1] + A_DEEPEST] <= memory[run.network.arcs[1] + A_LIMIT_BYTES]


def test_a_flow_that_hears_nothing_only_probes_until_it_does():
    shape = Dumbbell(left=1, right=1, rate=GBPS, delay=Delay(US)).build()
    (middle,) = shape.links_between("left", "right")
    changes = [Change(5 * US, middle, up=False), Change(2_000 * US, middle, up=True)]
    run = Simulation(shape, [Message(0, 1, 10**6)], PFABRIC, engine=ENGINE, changes=changes, reroute=0)
    memory, flow = run.memory, run.flows[0]
    run.run(until=1_000 * US)
    assert memory[flow + F_CREDIT] == 1
    resent = memory[flow + F_RESENT]
    run.run(until=1_900 * US)
    assert memory[flow + F_RESENT] == resent
    assert run.run(until=10_000 * US)
    assert memory[flow + F_CREDIT] == 0
    # It is back within a timeout and then takes what it would have taken, slow start included.
    assert memory[flow + F_END] < 2_000 * US + memory[flow + F_RTO] + 300 * US
