"""The engine: order of events, equality of Python and machine code, growth, and that nothing gets lost unseen."""

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.topology import Dumbbell, LeafSpine, Star
from dlcp.units import Buffer, Delay, Rate
from sim.changes import Change
from sim.engine import words
from sim.engine.agenda import advance, arm, fires, schedule
from sim.engine.layout import (
    A_DOWN,
    A_ERRORS,
    A_FULL,
    A_PACKETS,
    E_KIND,
    E_WORDS,
    F_END,
    F_LOST,
    H_BITS,
    H_BUDGET,
    H_FREE_COUNT,
    H_NEAR,
    H_NOW,
    H_SHIFT,
    H_SLOTS,
    H_UNTIL,
    H_WHEEL,
    K_ARRIVE,
    K_WINDOW,
)
from sim.flows import Transport
from sim.memory import Memory
from sim.messages import Message
from sim.simulation import Simulation


def agenda_of(slots=64, shift=4):
    memory = Memory("python")
    memory[H_NEAR] = memory.take(3 * 256)
    memory[H_SLOTS], memory[H_SHIFT] = slots, shift
    memory[H_WHEEL] = memory.take(slots)
    memory[H_BITS] = memory.take(slots // 32)
    memory[H_UNTIL] = 1 << 60
    memory.add_events(512)
    return memory


delays = st.one_of(st.integers(0, 40), st.integers(0, 2_000), st.integers(0, 100_000))


@given(st.lists(st.tuples(delays, st.booleans(), delays), min_size=1, max_size=60), st.integers(0, 3))
def test_events_come_in_order_of_time_and_then_of_entry(entries, each):
    memory = agenda_of()
    words_ = memory.words
    expected, got, waiting = [], [], list(entries)
    timers = {}

    def enter():
        time, is_timer, again = waiting.pop()
        event = memory.take(E_WORDS)
        time += memory[H_NOW]
        if is_timer:
            memory[event + E_KIND] = K_WINDOW
            arm(words_, event, time + 1)
            # Moved: forward or back, only the last word counts.
            arm(words_, event, time + 1 + again)
            timers[event] = time + 1 + again
        else:
            memory[event + E_KIND] = K_ARRIVE
            schedule(words_, event, time)
            expected.append((time, len(expected), event))

    enter()
    heapq.heapify(expected)
    before = (0, 0)
    while True:
        event = advance(words_)
        if event == 0:
            if not waiting:
                break
            enter()
            continue
        now = memory[H_NOW]
        assert (now, memory[0]) > before
        before = (now, memory[0])
        if memory[event + E_KIND] == K_ARRIVE:
            got.append((now, event))
        elif fires(words_, event, memory[0], now):
            assert timers.pop(event) == now
        for _ in range(min(each, len(waiting))):
            enter()
    assert sorted(got) == sorted((time, event) for time, _, event in expected)
    assert not timers


@given(st.integers(1, words.MASK63))
def test_bits(value):
    assert value >> words.lowest(value) & 1
    assert value & ((1 << words.lowest(value)) - 1) == 0
    assert 1 << words.highest(value) <= value < 2 << words.highest(value)
    assert 0 <= words.mix(value) <= words.MASK63


def test_the_memory_is_watched():
    memory = Memory("python")
    for at in (-1, len(memory.words)):
        with pytest.raises(IndexError):
            words.ld(memory.words, at)
        with pytest.raises(IndexError):
            words.st(memory.words, at, 0)
    with pytest.raises(OverflowError):
        words.st(memory.words, 0, 1 << 63)
    with pytest.raises(ValueError, match="compiled, python"):
        Memory("c")


GBPS = Rate.parse("100 Gbit/s")


def small(transport="dctcp", *, engine="python", spray="hash", size=60_000, seed=0, loss=0.0, **more):
    shape = LeafSpine(leaves=2, spines=2, hosts_per_leaf=3, rate=GBPS, buffer=Buffer(40, "packets"), loss=loss)
    messages = [Message(i, (i + 3) % 6, size, start=1000 * i, priority=i, protected=0.25, bound=0.05) for i in range(6)]
    messages += [Message(i, 0, size // 2, after=[i], delay=10**6, priority=6, protected=0.25) for i in range(1, 6)]
    return Simulation(shape.build(), messages, Transport(transport, spray=spray), seed=seed, engine=engine, **more)


FLAP = [Change(4 * 10**6, 6, up=False), Change(9 * 10**6, 6, up=True), Change(5 * 10**6, 0, rate=10**10, loss=0.02)]


KINDS = (
    ("dctcp", "hash"),
    ("tcp", "random"),
    ("cubic", "round-robin"),
    ("raw", "least-queue"),
    ("dlcp", "round-robin"),
    ("ndp", "random"),
    ("roce", "hash"),
    ("dcqcn", "hash"),
    ("pfabric", "round-robin"),
    ("timeout", "random"),
)


def test_python_and_machine_give_the_same_memory():
    for transport, spray in KINDS:
        states = []
        for engine in ("python", "compiled"):
            run = small(transport, engine=engine, spray=spray, loss=0.001, changes=FLAP, reroute=10**6, seed=5)
            run.run(until=10**12)
            run.memory[H_BUDGET] = 0  # differs: Python looks at the clock more often
            states.append((run.progress(), np.array(run.memory.words[: run.memory.used], np.int64)))
        assert states[0][0] == states[1][0]
        assert np.array_equal(states[0][1], states[1][1])


def test_the_same_seed_gives_the_same_and_another_another():
    runs = [small(spray="random", seed=seed, loss=0.01) for seed in (1, 1, 2)]
    for run in runs:
        assert run.run(until=10**12)
    assert runs[0].memory.words == runs[1].memory.words != runs[2].memory.words


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([name for name, _ in KINDS]),
    st.sampled_from(["hash", "random", "round-robin", "least-queue"]),
    st.sampled_from([0.0, 0.01, 0.1]),
    st.integers(0, 9),
    st.booleans(),
)
def test_no_packet_vanishes(transport, spray, loss, seed, flap):
    run = small(transport, spray=spray, loss=loss, seed=seed, size=30_000, changes=FLAP if flap else ())
    done = run.run(until=10**13)
    memory = run.memory
    if transport != "raw":
        assert done
    run.drain()
    assert memory[H_FREE_COUNT] == memory.packets
    lost = sum(memory[flow + F_LOST] for flow in run.flows)
    at_arcs = sum(memory[arc + cause] for arc in run.network.arcs for cause in (A_FULL, A_ERRORS, A_DOWN))
    assert lost <= at_arcs  # acknowledgements get lost too
    if loss == 0 and not flap:
        assert sum(memory[arc + A_ERRORS] for arc in run.network.arcs) == 0


def test_pools_grow_and_nothing_else_changes():
    shape = Star(hosts=9, rate=GBPS, buffer=Buffer(10**6, "packets")).build()
    messages = [Message(source, 0, 1_500_000) for source in range(1, 9)]
    ends = []
    for engine in ("python", "compiled"):
        run = Simulation(shape, messages, Transport("raw"), engine=engine)
        begun = run.memory.packets
        assert run.run()
        assert run.memory.packets > begun
        assert run.memory[run.network.arcs[1] + A_PACKETS] == sum(-(-1_500_000 // 1472) for _ in messages)
        ends.append([run.memory[flow + F_END] for flow in run.flows])
    assert ends[0] == ends[1]


def test_a_pause_changes_nothing():
    whole, parts = small(), small()
    assert whole.run()
    for pause in range(10**6, 10**9, 3_333_333):
        parts.memory.add_events(7)  # moves the heap
        parts.memory.add_packets(3)
        if parts.run(until=pause):
            break
    ends = [[run.memory[flow + F_END] for flow in run.flows] for run in (whole, parts)]
    assert ends[0] == ends[1]


def test_whoever_asks_can_stop_it_and_go_on():
    run = small(size=2_000_000)
    seen = []

    def stop(progress):
        seen.append(progress)
        return True

    assert not run.run(report=stop)
    assert seen[0].events > 0 and not run.finished
    assert run.run()


def test_a_dead_network_ends():
    shape = Dumbbell(left=1, right=1, rate=GBPS, delay=Delay.parse("1 us")).build()
    middle = shape.links_between("left", "right")[0]
    run = Simulation(
        shape, [Message(0, 1, 10**6)], Transport("dctcp"), engine="python", changes=[Change(5 * 10**6, middle, up=False)]
    )
    assert not run.run(until=10**12)
    assert run.memory[H_NOW] == 10**12
