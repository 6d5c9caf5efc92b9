"""Traffic: who sends what to whom, in which order."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.policy import Policy
from dlcp.topology import Star
from dlcp.units import Buffer, Rate
from dlcp.workload import Workload
from sim.engine.layout import F_END
from sim.flows import Transport
from sim.results import steps
from sim.simulation import Simulation
from sim.traffic import COLLECTIVES, Job, buckets, incast, permutation, training

MODEL = Workload.from_layers(
    "small",
    [
        ("a", 10_000, "10 us", "20 us"),
        ("b", 40_000, "30 us", "60 us"),
        ("relu", 0, "1 us", "2 us"),
        ("c", 5_000, "5 us", "10 us"),
    ],
)
US = 10**6


@given(st.integers(2, 60), st.integers(0, 9))
def test_a_permutation_is_one(hosts, seed):
    messages = permutation(hosts, 10, seed)
    assert sorted(m.source for m in messages) == sorted(m.destination for m in messages) == list(range(hosts))
    assert all(m.source != m.destination for m in messages)


def test_an_incast_has_one_receiver():
    assert [(m.source, m.destination) for m in incast(4, 2, 10, receiver=1)] == [(0, 1), (2, 1)]
    for fan_in in (0, 4):
        with pytest.raises(ValueError, match="from 1 to 3"):
            incast(4, fan_in, 10)
    with pytest.raises(ValueError, match="nobody"):
        permutation(1, 10)


def reached(messages, number, seen):
    """Everything that a message depends on."""
    for other in messages[number].after:
        if other not in seen:
            seen.add(other)
            reached(messages, other, seen)
    return seen


@pytest.mark.parametrize("algorithm", sorted(COLLECTIVES))
@settings(max_examples=25)
@given(st.integers(2, 6), st.integers(1, 10_000))
def test_an_all_reduce_moves_what_it_must_and_waits_for_everybody(algorithm, world, size):
    job = Job(range(world))
    begins = [job.compute(rank, 1) for rank in range(world)]
    results = COLLECTIVES[algorithm](job, size, [[node] for node in begins])
    sent = [m for m in job.messages if m.source != m.destination]
    # Two times (N - 1) / N of the array for each rank; empty parts still take a byte.
    assert sum(m.size for m in sent) >= 2 * (world - 1) * size
    assert sum(m.size for m in sent) <= 2 * (world - 1) * size + len(sent)
    for mine in results:
        needed = set().union(*({number} | reached(job.messages, number, set()) for number in mine))
        assert set(begins) <= needed
    policy = Policy()
    assert sum(m.bound == policy.loss.push for m in sent) == sum(m.bound == policy.loss.pull for m in sent)


def test_buckets_hold_all_layers_in_the_order_of_the_backward_pass():
    found = buckets(MODEL, 100_000)
    assert [layers for _, layers, _ in found] == [[3, 1], [0]]
    assert sum(size for size, _, _ in found) == MODEL.bytes
    assert [when for _, _, when in found] == [72 * US, 92 * US]


def trained(algorithm="ring", rate="100 Tbit/s", **more):
    shape = Star(hosts=3, rate=Rate.parse(rate), buffer=Buffer(1000, "packets")).build()
    job = Job(range(3), Policy.from_dict({"loss": {"push": 0.0}}))
    training(job, MODEL, algorithm, 3, 100_000, **more)
    run = Simulation(shape, job.messages, Transport("dctcp", initial_window=1000), engine="python")
    assert run.run()
    return run


@pytest.mark.parametrize("algorithm", sorted(COLLECTIVES))
def test_with_a_very_fast_network_a_step_is_its_computing(algorithm):
    run = trained(algorithm)
    assert steps(run) == pytest.approx([MODEL.compute / 1e12] * 3, rel=0.15)


def test_the_slowest_rank_sets_the_pace_and_a_slow_network_does():
    quick, slow, narrow = trained(), trained(slowness=(1.0, 2.0)), trained(rate="1 Gbit/s")
    assert steps(slow)[1] == pytest.approx(2 * steps(quick)[1], rel=0.15)
    assert steps(narrow)[1] > 2 * steps(quick)[1]


def test_pipelining_hides_what_the_front_layers_need_not_wait_for():
    for rate in ("1 Gbit/s", "5 Gbit/s"):
        plain, pipelined = trained(rate=rate), trained(rate=rate, pipelined=True)
        assert sum(steps(pipelined)) <= sum(steps(plain)) * 1.02


def test_forward_passes_follow_each_other():
    run = trained()
    ends = [
        (message.iteration, run.memory[flow + F_END])
        for flow, message in zip(run.flows, run.messages, strict=True)
        if message.group == "forward"
    ]
    assert all(before[1] <= after[1] for before, after in pairwise(sorted(ends)))
