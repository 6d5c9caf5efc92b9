"""All-reduces: what every rank sends, whom everybody waits for, and that nobody knows what has not reached it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.policy import Policy
from dlcp.topology import LeafSpine, Star
from dlcp.units import Buffer, Rate
from sim.engine.layout import F_END
from sim.flows import Transport
from sim.simulation import Simulation
from sim.traffic import COLLECTIVES, Job, rounds_of
from sim.traffic.primitives import HALVES, cut

WORLDS = st.integers(2, 33)
INNER = st.sampled_from(sorted(HALVES))


def racks_of_sizes(sizes):
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return [list(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)]


@st.composite
def jobs(draw, algorithm):
    """A job for an algorithm, of any shape it takes."""
    if algorithm == "hierarchical":
        sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=5).filter(lambda sizes: sum(sizes) > 1))
        return Job(range(sum(sizes)), racks=racks_of_sizes(sizes), inner=draw(INNER), across=draw(INNER))
    world = draw(WORLDS)
    servers = range(world, world + draw(st.integers(1, 5))) if algorithm == "ps" else ()
    job = Job(range(world), servers=servers, inner=draw(INNER))
    if algorithm == "ds-sync":
        job.rounds = rounds_of("base-k", world, draw(st.integers(2, 4)), [])
    return job


def build(job, algorithm, size, iteration=0, ready=None):
    ready = ready or [[job.compute(rank, 1)] for rank in range(job.world)]
    return COLLECTIVES[algorithm](job, size, ready, iteration=iteration)


def heard(job):
    """For every message the ranks whose first node it waits for, as bits; asserts that messages wait for earlier ones only."""
    known = []
    for number, message in enumerate(job.messages):
        mine = 0
        for other in message.after:
            assert other < number, "no message waits for a later one, so there is no cycle"
            mine |= known[other]
        known.append(mine | (0 if message.after else 1 << message.source))
    return known


def sent(job):
    """Bytes that every rank and server sends."""
    total = [0] * (job.world + len(job.servers))
    for message in job.messages:
        if message.source != message.destination:
            total[message.source] += message.size
    return total


@pytest.mark.parametrize("algorithm", sorted(set(COLLECTIVES) - {"ds-sync"}))
@settings(max_examples=40)
@given(data=st.data())
def test_every_rank_waits_for_every_contribution(algorithm, data):
    job = data.draw(jobs(algorithm))
    results = build(job, algorithm, data.draw(st.integers(1, 100_000)))
    known = heard(job)
    for rank, mine in enumerate(results):
        assert mine
        bits = 0
        for number in mine:
            bits |= known[number]
            assert job.messages[number].destination == rank
        assert bits == (1 << job.world) - 1


@pytest.mark.parametrize("algorithm", sorted(COLLECTIVES))
@settings(max_examples=40)
@given(data=st.data())
def test_a_rank_waits_for_what_reaches_it(algorithm, data):
    job = data.draw(jobs(algorithm))
    build(job, algorithm, 10_000)
    for message in job.messages:
        assert all(job.messages[other].destination == message.source for other in message.after)


@settings(max_examples=40)
@given(data=st.data())
def test_after_as_many_rounds_as_the_schedule_says_all_have_heard_of_all(data):
    job = data.draw(jobs("ds-sync"))
    ready = None
    for round_, groups in enumerate(job.rounds):
        assert sorted(rank for group in groups for rank in group) == list(range(job.world))
        ready = build(job, "ds-sync", 5000, round_, ready)
    known = heard(job)
    assert all(_union(known, mine) == (1 << job.world) - 1 for mine in ready)


def _union(known, numbers):
    bits = 0
    for number in numbers:
        bits |= known[number]
    return bits


@settings(max_examples=60)
@given(WORLDS, st.integers(33, 10**6))
def test_a_ring_sends_what_its_closed_form_says(world, size):
    job, lengths = Job(range(world)), cut(size, world)
    build(job, "ring", size)
    # A rank leaves out the shard that it ends with in the first half, and the one that its neighbour begins with in the second.
    assert sent(job) == [2 * size - lengths[rank] - lengths[(rank + 1) % world] for rank in range(world)]
    assert all(abs(mine - 2 * (world - 1) / world * size) < 2 for mine in sent(job))


@settings(max_examples=60)
@given(WORLDS, st.integers(33, 10**6))
def test_a_sharded_all_reduce_does(world, size):
    job, lengths = Job(range(world)), cut(size, world)
    build(job, "sharded", size)
    assert sent(job) == [size - mine + (world - 1) * mine for mine in lengths]


@settings(max_examples=60)
@given(WORLDS, st.integers(1, 9), st.integers(33, 10**6))
def test_parameter_servers_do(world, servers, size):
    job = Job(range(world), servers=range(world, world + servers))
    build(job, "ps", size)
    assert sent(job) == [size] * world + [world * length for length in cut(size, servers)]


@settings(max_examples=60)
@given(WORLDS, st.integers(33, 10**6))
def test_halving_and_doubling_does(world, size):
    job = Job(range(world))
    build(job, "halving-doubling", size)
    power = 1 << (world.bit_length() - 1)
    extra = world - power
    policy = Policy()
    total = sent(job)
    assert sum(total) == 2 * (power - 1) * size + 2 * extra * size
    assert sum(m.size for m in job.messages if m.bound == policy.loss.push) == (power - 1) * size + extra * size
    for rank, mine in enumerate(total):
        if rank < 2 * extra:
            expected = size if rank % 2 == 0 else 2 * (power - 1) / power * size + size
        else:
            expected = 2 * (power - 1) / power * size
        assert abs(mine - expected) <= 2 * power.bit_length()
    # Two messages a rank for every halving: as few steps as there can be.
    assert len([m for m in job.messages if m.source != m.destination]) == 2 * power * (power.bit_length() - 1) + 2 * extra


@settings(max_examples=60)
@given(st.integers(1, 6), st.integers(1, 6), INNER, INNER, st.integers(1000, 10**6))
def test_racks_of_one_size_send_little_to_each_other(count, each, inner, across, size):
    if count * each < 2:
        return
    job = Job(range(count * each), racks=racks_of_sizes([each] * count), inner=inner, across=across)
    build(job, "hierarchical", size)
    within = [0] * job.world
    between = [0] * job.world
    for message in job.messages:
        if message.source != message.destination:
            same = message.source // each == message.destination // each
            (within if same else between)[message.source] += message.size
    # Parts differ by one byte, of which a rank sends as many as it has messages.
    slack = 2 * (each + count)
    assert all(abs(mine - 2 * (each - 1) / each * size) <= slack for mine in within)
    assert all(abs(mine - 2 * (count - 1) / count * size / each) <= slack for mine in between)
    assert sum(within) == 2 * count * (each - 1) * size
    assert sum(between) == 2 * (count - 1) * size


@given(st.lists(st.integers(1, 8), min_size=2, max_size=5), INNER, st.integers(1000, 10**6))
@settings(max_examples=40)
def test_racks_of_any_size_carry_the_array_once_in_each_direction(sizes, inner, size):
    job = Job(range(sum(sizes)), racks=racks_of_sizes(sizes), inner=inner)
    build(job, "hierarchical", size)
    rack = [number for number, each in enumerate(sizes) for _ in range(each)]
    between = sum(m.size for m in job.messages if rack[m.source] != rack[m.destination])
    assert between == 2 * (len(sizes) - 1) * size
    assert sum(sent(job)) == between + 2 * (sum(sizes) - len(sizes)) * size


@pytest.mark.parametrize("inner", sorted(HALVES))
@pytest.mark.parametrize("algorithm", sorted(COLLECTIVES))
def test_they_run_to_the_end_on_a_network(algorithm, inner):
    shape = LeafSpine(leaves=2, spines=2, hosts_per_leaf=4, rate=Rate.parse("100 Gbit/s"), buffer=Buffer(200, "packets")).build()
    policy = Policy.from_dict({"loss": {"push": 0.0}})
    job = Job(range(7), policy, servers=[7], racks=[[0, 1, 2, 3], [4, 5, 6]], inner=inner)
    job.rounds = rounds_of("topology", 7, 0, job.racks)
    results = build(job, algorithm, 70_000)
    run = Simulation(shape, job.messages, Transport("dctcp"), policy, engine="python")
    assert run.run(10**12)
    assert all(run.memory[run.flows[number] + F_END] for mine in results for number in mine)


def test_halving_and_doubling_beats_a_ring_where_only_delays_count():
    shape = Star(hosts=16, rate=Rate.parse("10 Tbit/s"), buffer=Buffer(1000, "packets")).build()
    ends = {}
    for algorithm in ("ring", "halving-doubling", "sharded"):
        job = Job(range(16))
        results = build(job, algorithm, 1600)
        run = Simulation(shape, job.messages, Transport("raw"), engine="python")
        assert run.run()
        ends[algorithm] = max(run.memory[run.flows[number] + F_END] for mine in results for number in mine)
    # 2 (N - 1), 2 log N and 2 steps of 2 us.
    assert ends["ring"] == pytest.approx(30 * 2e6, rel=0.05)
    assert ends["halving-doubling"] == pytest.approx(8 * 2e6, rel=0.05)
    assert ends["sharded"] == pytest.approx(2 * 2e6, rel=0.05)


def test_what_a_job_lacks_is_said():
    for algorithm, text in (("ps", "without servers"), ("ds-sync", "without rounds")):
        with pytest.raises(ValueError, match=text):
            build(Job(range(3)), algorithm, 10)
