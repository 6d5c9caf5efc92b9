"""DLCP's model: what it promises of every message, and that it agrees with the product on the product's virtual network."""

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.collectives import plan
from dlcp.policy import Policy
from dlcp.topology import Star
from dlcp.transport.events import MessageReceived, message_id
from dlcp.transport.virtual import Weather
from dlcp.units import Buffer, Delay, Rate
from dlcp.wire.header import Phase, WireType
from sim.engine.dlcp_rules import feedback_delay
from sim.engine.layout import (
    D_ALLOWED,
    D_PROTECTED,
    F_CUTS,
    F_END,
    F_GOT,
    F_MISSING,
    F_PACKETS,
    F_PAIR,
    F_RESENT,
    F_START,
    R_RTTMIN,
    R_SRTT,
)
from sim.engine.words import has
from sim.flows import Transport
from sim.messages import Message
from sim.simulation import Simulation
from sim.traffic.primitives import PART_BYTES, PARTS, cut, cut_further
from tests.transport.rig import Rig

STRIDE = 1424
DELAY_NS = 50_000
QUIET = Policy.from_dict({"switch": {"drop_share": 1.0, "mark_share": 1.0}})


def check(run):
    """Every message is complete by its rule."""
    memory = run.memory
    for flow in run.flows:
        packets, missing = memory[flow + F_PACKETS], memory[flow + F_MISSING]
        got = [has(memory, memory[flow + F_GOT], index) != 0 for index in range(packets)]
        assert got.count(False) == missing <= memory[flow + D_ALLOWED]
        assert all(got[: memory[flow + D_PROTECTED]])


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from([0.0, 0.02, 0.2]),
    st.sampled_from([0.0, 0.05, 0.3]),
    st.sampled_from([0.0, 0.25, 1.0]),
    st.sampled_from(["trim", "drop"]),
    st.integers(0, 99),
)
def test_every_message_ends_within_bound_and_protection(loss, bound, protected, overload, seed):
    shape = Star(hosts=4, rate=Rate.parse("10 Gbit/s"), loss=loss, buffer=Buffer(12, "packets")).build()
    messages = [Message(source, 0, 90_000, protected=protected, bound=bound, priority=source) for source in (1, 2, 3)]
    messages += [Message(0, 1, 1, protected=protected, bound=bound), Message(2, 1, 40_000, after=[0, 3])]
    policy = Policy.from_dict({"switch": {"overload": overload}})
    run = Simulation(shape, messages, Transport("dlcp", spray="round-robin"), policy, seed=seed, engine="python")
    assert run.run(until=10**13)
    check(run)


def test_nothing_is_given_up_where_nothing_gets_lost():
    shape = Star(hosts=3, rate=Rate.parse("10 Gbit/s"), buffer=Buffer(500, "packets")).build()
    messages = [Message(source, 0, 300_000, protected=0.25, bound=0.2) for source in (1, 2)]
    run = Simulation(shape, messages, Transport("dlcp"), QUIET, engine="python")
    assert run.run()
    assert [run.memory[flow + F_MISSING] for flow in run.flows] == [0, 0]


def test_a_trimmed_packet_is_asked_for_at_once():
    shape = Star(hosts=9, rate=Rate.parse("10 Gbit/s"), buffer=Buffer(30, "packets")).build()
    messages = [Message(source, 0, 60_000, protected=0.0, bound=0.0) for source in range(1, 9)]
    runs = {}
    for overload in ("trim", "drop"):
        policy = Policy.from_dict({"switch": {"overload": overload}})
        runs[overload] = run = Simulation(shape, messages, Transport("dlcp"), policy, engine="python")
        assert run.run()
        check(run)
    ends = {name: max(run.memory[flow + F_END] for flow in run.flows) for name, run in runs.items()}
    assert sum(runs["trim"].memory[flow + F_CUTS] for flow in runs["trim"].flows) > 0
    assert ends["trim"] < ends["drop"]


def virtual(size, loss, bound, seed):
    rig = Rig(world=2, seed=seed, weather=Weather(drop=loss, delay_ns=DELAY_NS), stride=STRIDE, window=64 << 20, greet=True)
    begin = rig.now
    key = rig.send(0, 1, size, bound=bound, priority=3)
    rig.run()
    at = next(t for t, _, event in rig.net.log if isinstance(event, MessageReceived))
    return (at - begin) / 1e3, len(rig.received()[key].lost), rig.endpoints[0].counters().get("retransmitted", 0)


def simulated(size, loss, bound, seed):
    """The same: links so fast that only their delay counts, half the loss on each of the two."""
    shape = Star(
        hosts=2,
        rate=Rate.parse("100 Tbit/s"),
        delay=Delay(DELAY_NS * 500),
        loss=1 - (1 - loss) ** 0.5,
        buffer=Buffer(10**6, "packets"),
    ).build()
    message = Message(0, 1, size, protected=0.25, bound=bound, priority=3)
    run = Simulation(shape, [message], Transport("dlcp"), QUIET, seed=seed, engine="python")
    assert run.run()
    flow, memory = run.flows[0], run.memory
    return (memory[flow + F_END] - memory[flow + F_START]) / 1e6, memory[flow + F_MISSING], memory[flow + F_RESENT]


@pytest.mark.parametrize("size", [1, 20_000, 100_000])
def test_without_loss_it_takes_as_long_as_the_product(size):
    # A round trip is 100 us; the virtual network delivers bursts whole, so feedback about half of one can make that difference.
    assert simulated(size, 0, 0, 0)[0] == pytest.approx(virtual(size, 0, 0, 0)[0], abs=101)
    assert simulated(size, 0, 0, 0)[1:] == (0, 0)


@pytest.mark.parametrize(("loss", "bound"), [(0.02, 0.0), (0.1, 0.0), (0.1, 0.2)])
def test_with_loss_it_takes_as_long_and_loses_as_much(loss, bound):
    seeds = range(25)
    real, model = ([one(200_000, loss, bound, seed) for seed in seeds] for one in (virtual, simulated))
    for column, tolerance in ((0, {"rel": 0.15}), (1, {"rel": 0.5, "abs": 2}), (2, {"rel": 0.5, "abs": 3})):
        wanted, got = (statistics.mean(row[column] for row in rows) for rows in (real, model))
        if column == 0:
            wanted, got = (statistics.median(row[0] for row in rows) for rows in (real, model))
        assert got == pytest.approx(wanted, **tolerance)


WIDE = Policy.from_dict({"switch": {"drop_share": 1.0, "mark_share": 1.0}, "congestion": {"initial_window_packets": 1000}})


def product_order(messages):
    """Returns the numbers of the messages in the order in which the product hands out their last packets."""
    rig = Rig(world=3, policy=WIDE, stride=STRIDE, window=64 << 20, greet=True)
    ids = {}
    for number, message in enumerate(messages):
        name = message_id(1, Phase.PUSH, 0, number)
        ids[message.destination, name] = number
        tags = np.full(message.size // STRIDE, 2 * message.priority + 1, np.uint8)
        payload = np.zeros(message.size, np.uint8)
        rig.endpoints[0].send(message.destination, name, payload, tags=tags, bound=0, now=rig.now, order=message.order)
    last = {}
    for place, burst in enumerate(rig.endpoints[0].transmit(rig.now)):
        if hasattr(burst, "message"):
            last[ids[burst.peer, burst.message.message]] = place
    assert len(last) == len(messages)
    return sorted(last, key=last.get)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 6), st.integers(-2, 2), st.integers(2, 6)), min_size=1, max_size=12))
def test_messages_go_in_the_order_of_the_product(drawn):
    messages = [Message(0, peer, packets * STRIDE, priority=priority, order=order) for peer, priority, order, packets in drawn]
    shape = Star(hosts=3, rate=Rate.parse("10 Gbit/s"), buffer=Buffer(500, "packets")).build()
    run = Simulation(shape, messages, Transport("dlcp"), WIDE, engine="python")
    assert run.run()
    model = sorted(range(len(messages)), key=lambda number: run.memory[run.flows[number] + F_END])
    real = product_order(messages)
    for peer in (1, 2):
        mine, theirs = ([n for n in order if messages[n].destination == peer] for order in (model, real))
        assert mine == theirs, "by class, then by order, then first come first served"
    classes = sorted((message.priority for message in messages), reverse=True)
    assert [messages[n].priority for n in model] == [messages[n].priority for n in real] == classes, "whoever they are for"


@settings(max_examples=50, deadline=None)
@given(st.integers(10_000, 50_000_000), st.integers(0, 50_000_000))
def test_feedback_is_held_back_for_as_long_as_in_the_product(least, queued):
    rig = Rig()
    flow = rig.endpoints[0].flow(1)
    flow.rtt.minimum, flow.rtt.smoothed = least, least + queued
    run = Simulation(Star(hosts=2).build(), [Message(0, 1, 1)], Transport("dlcp"), QUIET, engine="python")
    memory, pair = run.memory, run.memory[run.flows[0] + F_PAIR]
    memory[pair + R_RTTMIN], memory[pair + R_SRTT] = least * 1000, (least + queued) * 1000
    assert feedback_delay(memory, pair) == pytest.approx(flow.feedback_delay() * 1000, abs=1000)


@given(st.integers(1, 64), st.integers(2, 12))
def test_shards_are_cut_into_as_many_parts_as_in_the_product(units, owners):
    # In whole packets, as many in every shard: there the two agree exactly.
    size = units * 25 * STRIDE * owners
    assert (PARTS, PART_BYTES) == (plan.PIECES, plan.PIECE_PACKETS * STRIDE)
    wanted = plan.Plan(size, WireType.UINT8, STRIDE, 4 << 20, owners)
    parts = cut_further(cut(size, owners))
    assert len(parts) == len(wanted.shard(0))
    assert [sum(lengths) for lengths in zip(*parts, strict=True)] == [size // owners] * owners
