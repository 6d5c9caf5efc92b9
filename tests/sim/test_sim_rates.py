"""Senders with a rate: RoCE's go-back-N, DCQCN's control, and datagrams with a deadline."""

from importlib.util import find_spec

import pytest

from dlcp.policy import Policy
from dlcp.topology import LeafSpine, Star
from dlcp.units import Buffer, Delay, Rate
from sim.engine.layout import (
    A_FULL,
    A_MARKED,
    A_WAIT,
    F_END,
    F_LOST,
    F_MARKS,
    F_MISSING,
    F_PACKETS,
    F_RESENT,
    F_START,
)
from sim.engine.layout_rates import (
    V_ALPHA,
    V_BOUND,
    V_LINE,
    V_RATE,
)
from sim.engine.rate import on_decay, on_notice, on_rise
from sim.flows import Transport, ideal_time
from sim.messages import Message
from sim.network import Buffers
from sim.simulation import Simulation
from sim.traffic import incast

ENGINE = "compiled" if find_spec("llvmlite") else "python"
GBPS = Rate.parse("100 Gbit/s")
US = 10**6
OPEN = Policy.from_dict({"switch": {"drop_share": 1.0, "mark_share": 1.0}})


def star(hosts, buffer=256, loss=0.0):
    return Star(hosts=hosts, rate=GBPS, delay=Delay(US), buffer=Buffer(buffer * 1024, "bytes"), loss=loss).build()


def sums(run, what):
    return sum(run.memory[flow + what] for flow in run.flows)


def times(run):
    return [run.memory[flow + F_END] - run.memory[flow + F_START] for flow in run.flows]


@pytest.mark.parametrize("name", ["roce", "dcqcn", "timeout"])
@pytest.mark.parametrize("size", [1, 1500, 700_000])
def test_one_flow_sends_at_line_rate(name, size):
    shape = star(2)
    transport = Transport(name, deadline=10**9 if name == "timeout" else 0)
    message = Message(0, 1, size)
    run = Simulation(shape, [message], transport, OPEN, engine=ENGINE)
    assert run.run()
    assert times(run) == [ideal_time(shape, message, transport)]
    assert sums(run, F_RESENT) == sums(run, F_MISSING) == 0


def rate_of(run, flow=0):
    return run.memory[run.flows[flow] + V_RATE]


def test_the_rate_falls_by_half_of_alpha_and_comes_back_in_stages():
    run = Simulation(star(2), [Message(0, 1, 10**6)], Transport("dcqcn"), engine="python")
    m, flow = run.memory.words, run.flows[0]
    line = run.memory[flow + V_LINE]
    assert rate_of(run) == line == 100_000_000
    on_notice(m, flow, US)
    assert rate_of(run) == line // 2
    on_notice(m, flow, 60 * US)
    assert rate_of(run) == line // 4
    for _ in range(200):
        on_decay(m, flow, 100 * US)
    alpha = run.memory[flow + V_ALPHA] / 65536
    assert alpha == pytest.approx((255 / 256) ** 200, rel=0.01)
    missing = line // 4
    for _ in range(5):
        # Fast recovery: half of the way to the rate before the last cut, each time.
        on_rise(m, flow, 200 * US)
        missing /= 2
        assert rate_of(run) == pytest.approx(line // 2 - missing, rel=1e-5)
    before = rate_of(run)
    on_rise(m, flow, 300 * US)
    assert before < rate_of(run) < line // 2 + line // 1000 + 2
    for _ in range(3000):
        on_rise(m, flow, 400 * US)
    assert rate_of(run) == line
    on_notice(m, flow, 500 * US)
    assert rate_of(run) == pytest.approx(line * (1 - alpha / 2), rel=0.01)


def test_two_flows_of_dcqcn_share_a_link():
    policy = Policy.from_dict({"switch": {"mark_share": 0.1, "drop_share": 1.0}})
    messages = [Message(1, 0, 40_000_000), Message(2, 0, 40_000_000, start=300 * US)]
    run = Simulation(star(3, 1024), messages, Transport("dcqcn"), policy, engine=ENGINE, buffers=Buffers(pfc=True))
    port = run.network.arcs[1]
    run.run(until=2_000 * US)
    # Both have found their rates: from here on they differ by little on average.
    got = [run.memory[flow + F_PACKETS] - run.memory[flow + F_MISSING] for flow in run.flows]
    run.run(until=5_000 * US)
    later = [
        run.memory[flow + F_PACKETS] - run.memory[flow + F_MISSING] - before for flow, before in zip(run.flows, got, strict=True)
    ]
    assert 0.7 < later[0] / later[1] < 1.4
    assert sum(later) * 1514 * 80 > 0.75 * 3_000 * US
    assert run.run()
    assert sums(run, F_RESENT) == 0 < sums(run, F_MARKS)
    assert run.memory[port + A_MARKED] > 0
    assert 1 < run.memory[port + A_WAIT] / max(run.memory[flow + F_END] for flow in run.flows) < 200


@pytest.mark.parametrize("name", ["roce", "dcqcn"])
def test_loss_costs_go_back_n_and_pauses_avoid_it(name):
    took = {}
    for pfc in (False, True):
        run = Simulation(star(9, 128), incast(9, 8, 300_000), Transport(name), engine=ENGINE, buffers=Buffers(pfc=pfc))
        assert run.run()
        full = sum(run.memory[arc + A_FULL] for arc in run.network.arcs)
        assert (full == 0) == pfc
        if pfc:
            assert sums(run, F_RESENT) == 0
        else:
            # Everything behind a loss is sent again.
            assert sums(run, F_RESENT) > sums(run, F_LOST) > 0
        took[pfc] = max(times(run))
    assert took[True] < took[False]
    if name == "roce":
        assert took[True] == pytest.approx(8 * 300_000 / 1456 * 1514 * 80, rel=0.03)


def test_a_refusal_goes_back_at_once_and_a_timeout_later():
    # The middle packets are lost with the buffer: a refusal brings them back in a round trip; the last ones need the timer.
    for loss, seed in ((0.02, 1), (0.1, 2)):
        run = Simulation(star(2, loss=loss), [Message(0, 1, 300_000)], Transport("roce"), engine=ENGINE, seed=seed)
        assert run.run()
        assert sums(run, F_MISSING) == 0 < sums(run, F_RESENT)


def rounds(count, senders, size, gap=2_000 * US, **more):
    """Incasts one after another."""
    return [Message(sender, 0, size, start=gap * number, **more) for number in range(count) for sender in range(1, senders + 1)]


def test_a_deadline_bounds_the_tail_and_counts_what_is_missing():
    bound = 150 * US
    for loss in (0.0, 0.05):
        run = Simulation(star(9, 64, loss), rounds(3, 8, 300_000), Transport("timeout", deadline=bound), engine=ENGINE, seed=3)
        assert run.run()
        assert max(times(run)) <= bound + 1
        missing = [run.memory[flow + F_MISSING] for flow in run.flows]
        # Eight times 300 kB take 198 us on the last link.
        assert 0.15 < sum(missing) / sums(run, F_PACKETS) < 0.35
        assert sums(run, F_RESENT) == 0


def test_in_an_idle_network_nothing_is_missing():
    shape = LeafSpine(leaves=2, spines=2, hosts_per_leaf=3, rate=GBPS, buffer=Buffer(256 * 1024, "bytes")).build()
    messages = [
        Message(number % 6, (number + 3) % 6, 200_000 if number % 2 else 900, start=number * 300 * US) for number in range(90)
    ]
    run = Simulation(shape, messages, Transport("timeout"), engine=ENGINE)
    assert run.run()
    assert sums(run, F_MISSING) == sums(run, F_LOST) == 0


def test_the_bound_is_what_the_first_messages_took():
    run = Simulation(star(5, 64, 0.001), rounds(12, 4, 100_000), Transport("timeout"), engine=ENGINE, seed=2)
    assert run.run()
    first, rest = run.flows[:20], run.flows[20:]
    took = sorted(run.memory[flow + F_END] - run.memory[flow + F_START] for flow in first)
    known = run.memory[run.flows[0] + V_BOUND]
    bound = run.memory[known + 1]
    assert took[18] <= bound <= took[18] * 17 / 16
    # Those were carried reliably, later ones not.
    assert sum(run.memory[flow + F_MISSING] for flow in first) == 0
    assert sum(run.memory[flow + F_MISSING] for flow in rest) > 0
    assert max(run.memory[flow + F_END] - run.memory[flow + F_START] for flow in rest) <= bound + 1


def test_the_last_packets_end_the_wait_early():
    # Without the early timeout a message that misses a packet would last until its deadline.
    bound = 2_000 * US
    run = Simulation(star(2, loss=0.002), rounds(30, 1, 500_000), Transport("timeout", deadline=bound), engine=ENGINE, seed=5)
    assert run.run()
    whole = next(number for number, flow in enumerate(run.flows) if run.memory[flow + F_MISSING] == 0)
    incomplete = [flow for flow in run.flows[whole:] if run.memory[flow + F_MISSING]]
    assert len(incomplete) > 5
    assert max(run.memory[flow + F_END] - run.memory[flow + F_START] for flow in incomplete) < bound // 10


def test_training_steps_are_carried_reliably_at_first():
    messages = []
    for step in range(5):
        messages += rounds(5, 4, 100_000, gap=500 * US, iteration=step)
        for message in messages[-20:]:
            message.start += step * 4_000 * US
    for warmup in (1, 3):
        run = Simulation(star(5, 64, 0.01), messages, Transport("timeout", warmup=warmup), engine=ENGINE, seed=2)
        assert run.run()
        missing = [run.memory[flow + F_MISSING] for flow in run.flows]
        assert sum(missing[: 20 * warmup]) == 0 < sum(missing[20 * warmup :])
