"""Any small network, any transports, any failures: it ends, no packet vanishes, and both engines do the very same."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.policy import Policy
from dlcp.topology import Dumbbell, FatTree, LeafSpine, Star
from dlcp.units import Buffer, Delay, Rate
from sim.changes import Change
from sim.engine.layout import (
    A_ASKED,
    A_BACKLOG,
    A_INGRESS,
    A_MASK,
    A_PENDING,
    F_END,
    F_MISSING,
    F_PACKETS,
    H_BUDGET,
    H_DONE_COUNT,
    H_FREE_COUNT,
    H_OPEN,
    N_ROOM,
    N_SENDERS,
    N_USED,
    PAUSED_SHIFT,
    SERVICE,
)
from sim.flows import Transport
from sim.messages import Message
from sim.network import Buffers
from sim.simulation import Simulation
from sim.transports import KINDS, SPRAYS

US = 10**6


@st.composite
def topologies(draw):
    common = {
        "rate": Rate.parse(f"{draw(st.sampled_from([1, 10, 100]))} Gbit/s"),
        "delay": Delay(draw(st.sampled_from([0, 500_000, 7_000_000]))),
        "buffer": Buffer(draw(st.sampled_from([4, 20, 200])), "packets"),
        "loss": draw(st.sampled_from([0.0, 0.0, 0.01, 0.2])),
    }
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return Star(hosts=draw(st.integers(2, 5)), **common).build()
    if kind == 1:
        return Dumbbell(left=draw(st.integers(1, 3)), right=draw(st.integers(1, 3)), **common).build()
    if kind == 2:
        return LeafSpine(leaves=2, spines=draw(st.integers(1, 3)), hosts_per_leaf=draw(st.integers(1, 3)), **common).build()
    return FatTree(k=4, **common).build()


@st.composite
def scenarios(draw):
    """What a simulation is made of, but for its engine."""
    topology = draw(topologies())
    hosts, links = len(topology.hosts), len(topology.links)
    names = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3))
    carriers = [
        Transport(
            name,
            spray=draw(st.sampled_from(sorted(SPRAYS))) if name != "dlcp" else "round-robin",
            trust_class=draw(st.booleans()) if name != "dlcp" else False,
            deadline=draw(st.sampled_from([0, 1, 300 * US])) if name == "timeout" else 0,
            scale=0.01,
        )
        for name in names
    ]
    messages = []
    for number in range(draw(st.integers(1, 9))):
        ends = draw(st.lists(st.integers(0, hosts - 1), min_size=2, max_size=2, unique=draw(st.integers(0, 5)) > 0))
        messages.append(
            Message(
                *ends,
                size=draw(st.sampled_from([1, 1460, 9_000, 40_000])),
                start=draw(st.integers(0, 40)) * US,
                priority=draw(st.integers(0, 6)),
                after=draw(st.lists(st.integers(0, number - 1), max_size=2, unique=True)) if number else [],
                delay=draw(st.sampled_from([0, 3 * US])),
                protected=draw(st.sampled_from([0.0, 0.25, 1.0])),
                bound=draw(st.sampled_from([0.0, 0.1])),
                transport=draw(st.sampled_from(carriers)),
            )
        )
    changes = []
    for _ in range(draw(st.integers(0, 3))):
        link, at = draw(st.integers(0, links - 1)), draw(st.integers(0, 60)) * US
        if draw(st.booleans()):
            changes += [Change(at, link, up=False), Change(at + draw(st.integers(1, 900)) * US, link, up=True)]
        else:
            changes.append(
                Change(at, link, rate=draw(st.sampled_from([10**9, 10**11])), delay=draw(st.sampled_from([1, 9 * US])))
            )
            changes.append(Change(at + 50 * US, link, loss=draw(st.sampled_from([0.0, 0.1]))))
    return {
        "topology": topology,
        "messages": messages,
        "transport": carriers[0],
        "policy": Policy.from_dict(
            {"switch": {"overload": draw(st.sampled_from(["trim", "drop"])), "drop_share": 0.3, "mark_share": 0.1}}
        ),
        "seed": draw(st.integers(0, 99)),
        "buffers": Buffers(draw(st.booleans()), 1.0, draw(st.booleans()), draw(st.sampled_from([0, 5_000]))),
        "changes": changes,
        "reroute": draw(st.sampled_from([0, 20 * US])),
    }


def finish(parts, engine):
    run = Simulation(engine=engine, **parts)
    done = run.run(until=10**15)
    # Senders may wait for a link that comes up only after the last message is complete.
    run.memory[H_OPEN] += 1
    run.run(until=10**15 + 10**13)
    run.memory[H_OPEN] -= 1
    run.memory[H_BUDGET] = 0  # differs: Python looks at the clock more often
    return run, done


@settings(max_examples=40, deadline=None)
@given(scenarios())
def test_whatever_happens_it_ends_nothing_vanishes_and_both_engines_agree(parts):
    pytest.importorskip("llvmlite")
    run, done = finish(parts, "compiled")
    memory = run.memory
    reliable = all(message.transport.name != "raw" for message in run.messages)
    assert done or not reliable
    assert memory[H_DONE_COUNT] == sum(memory[flow + F_END] > 0 for flow in run.flows)
    # Every packet has come back to the pool, and nothing is held, counted or paused any more.
    assert memory[H_FREE_COUNT] == memory.packets
    for arc in run.network.arcs:
        assert memory[arc + A_MASK] == memory[arc + A_BACKLOG] == memory[arc + A_ASKED] == 0
        assert memory[arc + A_PENDING] >> PAUSED_SHIFT == memory[arc + A_PENDING] & SERVICE == 0
        assert [memory[arc + A_INGRESS + number] for number in range(8)] == [0] * 8
    for node in run.network.nodes.values():
        assert memory[node + N_USED] == 0 or memory[node + N_ROOM] <= 0
        assert memory[node + N_SENDERS] == 0
    for flow, message in zip(run.flows, run.messages, strict=True):
        missing, packets = memory[flow + F_MISSING], memory[flow + F_PACKETS]
        assert 0 <= missing <= packets
        if message.source == message.destination or not memory[flow + F_END]:
            continue
        if message.transport.name == "dlcp":
            assert missing <= packets * message.bound + 1e-9
        elif message.transport.name != "timeout":
            assert missing == 0
    other, _ = finish(parts, "python")
    used = other.memory.used
    assert used == memory.used
    assert np.array_equal(np.array(other.memory.words[:used], np.int64), np.array(memory.words[:used]))
