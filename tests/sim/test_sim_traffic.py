"""Traffic: who sends what to whom, in which order."""

from itertools import pairwise
from math import log
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.policy import Policy
from dlcp.topology import LeafSpine, Star
from dlcp.units import Buffer, Rate
from dlcp.workload import Workload
from sim.engine.layout import F_END, F_START
from sim.flows import Transport
from sim.results import steps
from sim.simulation import Simulation
from sim.traffic import COLLECTIVES, SCHEDULES, Job, Pace, buckets, by_layer, incast, permutation, rounds_of, training

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


def test_buckets_hold_all_layers_in_the_order_of_the_backward_pass():
    found = buckets(MODEL, 100_000)
    assert [unit.layers for unit in found] == [[3, 1], [0]]
    assert sum(sum(unit.sizes) for unit in found) == MODEL.bytes
    assert [unit.when for unit in found] == [72 * US, 92 * US]


def trained(algorithm="ring", rate="100 Tbit/s", iterations=3, credit=None, local_steps=1, **more):
    shape = Star(hosts=4, rate=Rate.parse(rate), buffer=Buffer(1000, "packets")).build()
    policy = Policy.from_dict({"loss": {"push": 0.0}})
    job = Job(range(3), policy, servers=[3], credit=credit, local_steps=local_steps)
    job.rounds = rounds_of("base-k", 3, 2, [])
    training(job, MODEL, algorithm, iterations, 100_000, **more)
    run = Simulation(shape, job.messages, Transport("dctcp", initial_window=1000), engine="python")
    assert run.run()
    return run


@pytest.mark.parametrize("algorithm", sorted(COLLECTIVES))
def test_with_a_very_fast_network_a_step_is_its_computing(algorithm):
    run = trained(algorithm)
    assert steps(run) == pytest.approx([MODEL.compute / 1e12] * 3, rel=0.15)


def test_the_slowest_rank_sets_the_pace_and_a_slow_network_does():
    quick, slow, narrow = trained(), trained(pace=Pace((1.0, 2.0))), trained(rate="1 Gbit/s")
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


def bytes_by_iteration(run):
    found = {}
    for message in run.messages:
        if message.source != message.destination:
            found[message.iteration] = found.get(message.iteration, 0) + message.size
    return found


@settings(max_examples=30)
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=8).filter(any), st.integers(1, 50_000))
def test_layers_and_chunks_are_the_whole_model(elements, chunk):
    model = Workload.from_layers("any", [(f"l{index}", count, "1 us", "2 us") for index, count in enumerate(elements)])
    for found, most in ((by_layer(model), model.bytes), (by_layer(model, chunk), chunk)):
        assert sum(sum(unit.sizes) for unit in found) == model.bytes
        assert all(0 < size <= most for unit in found for size in unit.sizes)
        assert [unit.layers for unit in found] == [[index] for index in reversed(range(len(elements))) if elements[index]]
        assert [unit.when for unit in found] == sorted(unit.when for unit in found)
    assert all(max(unit.sizes) - min(unit.sizes) <= 1 for unit in by_layer(model, chunk))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_send_the_same_bytes(schedule):
    run = trained(schedule=schedule, chunk_bytes=7000)
    # A ring of three sends four thirds of the model from each.
    assert bytes_by_iteration(run) == {iteration: 4 * MODEL.bytes for iteration in range(3)}


def test_local_steps_send_nothing_in_between():
    run = trained(iterations=5, local_steps=2)
    assert bytes_by_iteration(run) == {1: 4 * MODEL.bytes, 3: 4 * MODEL.bytes}
    assert sum(steps(run)) <= sum(steps(trained(iterations=5)))


def test_groups_change_from_one_synchronization_to_the_next():
    job_rounds = rounds_of("base-k", 3, 2, [])
    for local_steps in (1, 2):
        run = trained("ds-sync", iterations=6, local_steps=local_steps)
        pairs = {}
        for message in run.messages:
            if message.source != message.destination:
                pairs.setdefault(message.iteration, set()).add(frozenset((message.source, message.destination)))
        for iteration, found in pairs.items():
            groups = job_rounds[iteration // local_steps % len(job_rounds)]
            assert found == {frozenset(group) for group in groups if len(group) == 2}
        assert len(pairs) <= 6 // local_steps


def test_parameters_leave_after_the_step_of_the_optimizer():
    model = Workload.from_layers("one", [("a", 1000, "10 us", "20 us")], optimizer="7 us")
    for local_steps, begin in ((1, 30), (2, 2 * 37)):
        job = Job(range(2), local_steps=local_steps)
        training(job, model, "ring", 2, 10**6)
        shape = Star(hosts=2, rate=Rate.parse("100 Tbit/s")).build()
        run = Simulation(shape, job.messages, Transport("raw"), engine="python")
        assert run.run()
        first = min(run.memory[at + F_START] for at, m in zip(run.flows, run.messages, strict=True) if m.group == "bucket0")
        assert first == pytest.approx(begin * US, rel=0.01)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 99))
def test_paces_repeat_and_do_not_depend_on_how_many_steps_follow(world, count, seed):
    pace = Pace((1.5,), jitter=0.3, probability=0.5, factor=4.0, seed=seed)
    found = pace.factors(world, count)
    assert found == pace.factors(world, count) == pace.factors(world, count + 3)[:count]
    assert len(found) == count and all(len(row) == world and min(row) > 0 for row in found)
    assert Pace((1.5, 2.0)).factors(world, 1) == [[1.5, 2.0, 1.0, 1.0, 1.0, 1.0][:world]]


def test_random_stragglers_are_as_frequent_and_as_slow_as_said():
    drawn = [factor for row in Pace(probability=0.1, factor=5.0).factors(10, 2000) for factor in row]
    assert sum(factor == 5.0 for factor in drawn) / len(drawn) == pytest.approx(0.1, rel=0.05)
    drawn = [factor for row in Pace(jitter=0.4).factors(10, 5000) for factor in row]
    assert fmean(drawn) == pytest.approx(1, rel=0.02)
    assert stdev(map(log, drawn)) == pytest.approx(0.4, rel=0.02)


def test_random_stragglers_slow_the_steps_down():
    assert sum(steps(trained(iterations=6, pace=Pace(probability=0.5, factor=3.0, seed=1)))) > 1.5 * sum(
        steps(trained(iterations=6))
    )


def test_a_job_begins_at_its_time():
    job = Job(range(2), start=500 * US)
    training(job, MODEL, "ring", 1, 10**6)
    run = Simulation(Star(hosts=2).build(), job.messages, Transport("dctcp"), engine="python")
    assert run.run()
    assert min(run.memory[at + F_END] for at in run.flows) > 500 * US


def test_credit_lets_front_layers_overtake():
    """A large back layer is ready first; with one queue for all, only its sender can let the front layer pass its chunks."""
    model = Workload.from_layers("lopsided", [("front", 5_000, "3 ms", "3 ms"), ("back", 100_000, "100 us", "200 us")])
    shape = Star(hosts=3, rate=Rate.parse("500 Mbit/s"), buffer=Buffer(400, "packets")).build()
    mean = {}
    for credit in (None, 20_000):
        job = Job(range(3), credit=credit)
        training(job, model, "sharded", 1, 1, schedule="chunks", chunk_bytes=20_000, pipelined=True)
        run = Simulation(shape, job.messages, Transport("dctcp", trust_class=False), engine="python")
        assert run.run()
        mean[credit] = fmean(steps(run))
    assert mean[20_000] < 0.85 * mean[None]


def test_racks_that_reduce_first_spare_the_spines():
    shape = LeafSpine(leaves=2, spines=1, hosts_per_leaf=4, rate=Rate.parse("40 Gbit/s"), oversubscription=8.0).build()
    times = {}
    # A ring in an unlucky order of the ranks crosses at every step.
    for algorithm in ("ring", "hierarchical"):
        job = Job([0, 4, 1, 5, 2, 6, 3, 7], racks=[[0, 2, 4, 6], [1, 3, 5, 7]])
        training(job, MODEL, algorithm, 1, 10**6)
        run = Simulation(shape, job.messages, Transport("dctcp"), engine="python")
        assert run.run()
        times[algorithm] = steps(run)[0]
    assert times["hierarchical"] < times["ring"] / 2
