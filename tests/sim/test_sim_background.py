"""Background flows, gates, several jobs, transports side by side."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.policy import Policy
from dlcp.topology import LeafSpine, Star, bisection
from dlcp.units import Buffer, Rate
from sim.engine.layout import F_END, F_MARKS, F_START, H_OPEN
from sim.flows import KINDS, Transport
from sim.messages import Gate, Message
from sim.network import PICOSECONDS
from sim.results import summarize
from sim.simulation import AHEAD, Simulation
from sim.traffic import SIZES, Background, Job, ring, together
from sim.traffic.layout import chosen, places, racks_of
from sim.traffic.sizes import fixed

RACKS = LeafSpine(leaves=4, spines=2, hosts_per_leaf=4, rate=Rate.parse("100 Gbit/s"), oversubscription=2.0).build()
US = 10**6


@pytest.mark.parametrize("name", sorted(SIZES))
def test_sizes_have_the_mean_and_the_points_that_they_say(name):
    sizes = SIZES[name]
    shares = [share for _, share in sizes.points]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] == 1
    steps = 1_000_000
    assert sum(sizes.at((index + 0.5) / steps) for index in range(0, steps, 5)) * 5 / steps == pytest.approx(sizes.mean, rel=0.01)
    for size, share in sizes.points:
        assert sizes.at(share) == pytest.approx(max(size, 1), abs=1)


def test_the_distributions_are_the_published_ones():
    # Most flows of data mining are tiny, most bytes in the largest; web search has none of 100 MB.
    assert SIZES["data-mining"].at(0.5) == 1100 and SIZES["data-mining"].at(0.99) > 100_000_000
    assert SIZES["web-search"].mean == pytest.approx(1_711_250)
    assert SIZES["storage"].at(0.6) < 8000


@pytest.mark.parametrize(
    ("name", "between", "of"),
    [
        ("data-mining", "hosts", "hosts"),
        *itertools.product(["web-search", "storage"], ["hosts", "racks"], ["hosts", "bisection"]),
    ],
)
def test_the_load_is_offered(name, between, of):
    load = 0.4
    flows = Background(load, SIZES[name], of=of, between=between).flows(RACKS, seed=3)
    # Half of the bytes of data mining are in one flow of a hundred.
    count = 400_000 if name == "data-mining" else 40_000
    names, side = RACKS.graph.hosts, set(bisection(RACKS).side)
    total, last = 0, 0
    for message in itertools.islice(flows, count):
        crosses = (names[message.source] in side) != (names[message.destination] in side)
        if of == "hosts" or crosses:
            total += message.size
        last = message.start
    capacity = sum(map(int, RACKS.nics.values())) if of == "hosts" else 2 * int(bisection(RACKS).rate)
    assert 8 * total / (last / PICOSECONDS) == pytest.approx(load * capacity, rel=0.03)


@given(st.integers(0, 999), st.sampled_from(["hosts", "racks"]), st.sets(st.integers(0, 15), min_size=5))
@settings(max_examples=30)
def test_flows_repeat_and_are_in_order_between_the_hosts_that_were_chosen(seed, between, hosts):
    source = Background(0.5, SIZES["storage"], between=between, hosts=sorted(hosts), start=7 * US)
    first, again, other = (list(itertools.islice(source.flows(RACKS, number), 50)) for number in (seed, seed, seed + 1))
    assert first == again != other
    starts = [message.start for message in first]
    assert starts == sorted(starts) and starts[0] >= 7 * US
    for message in first:
        assert {message.source, message.destination} <= hosts and message.source != message.destination
        assert between == "hosts" or message.source // 4 != message.destination // 4
        assert message.extra


def test_a_duration_ends_them():
    flows = list(Background(0.5, fixed(1000), duration=100 * US, start=50 * US, required=True).flows(RACKS))
    assert len(flows) == pytest.approx(0.5 * 1.6e12 / 8000 * 1e-4, rel=0.1)
    assert all(50 * US <= message.start < 150 * US and not message.extra for message in flows)


def test_what_has_nobody_to_send_to_is_refused():
    for source in (Background(1, fixed(1), hosts=[3]), Background(1, fixed(1), hosts=[0, 1], between="racks")):
        with pytest.raises(ValueError, match="nobody to send to"):
            source.rate(RACKS)
    with pytest.raises(ValueError, match="crosses the bisection"):
        Background(1, fixed(1), hosts=[0, 1], of="bisection").rate(RACKS)


STAR = Star(hosts=4, rate=Rate.parse("10 Gbit/s"), buffer=Buffer(100, "packets")).build()


def noisy(engine="python", duration=0, messages=None, seed=0, load=0.3, size=2000, **more):
    source = Background(load, fixed(size), transport=Transport("dctcp"), duration=duration, required=duration > 0, **more)
    mine = [Message(0, 1, 300_000), Message(2, 1, 300_000, after=[0])] if messages is None else messages
    background = together([source.flows(STAR, seed)])
    return Simulation(STAR, mine, Transport("dlcp", scale=0.01), seed=seed, engine=engine, background=background)


def test_a_run_ends_with_what_it_waits_for_and_background_goes_on_until_then():
    run = noisy()
    assert run.run() and run.finished
    progress = run.progress()
    assert progress.done == progress.total == 2
    extra = [at for at, message in zip(run.flows, run.messages, strict=True) if message.extra]
    assert len(run.messages) > AHEAD
    started = [run.memory[at + F_START] for at in extra]
    ended = [at for at in extra if run.memory[at + F_END]]
    # Flows arrive to the end: nearly all that have begun are complete, and there are as many as the load says.
    arrived = sum(start <= progress.now for start in started)
    assert len(ended) >= 0.9 * arrived
    assert arrived == pytest.approx(0.3 * 40e9 / 16_000 * progress.now / PICOSECONDS, rel=0.15)
    summary = summarize(run)
    assert summary["messages"] == summary["complete"] == 2
    assert summary["background"]["completion_s"]["count"] == len(ended)
    assert not any(run.messages[number].extra for number in range(2))


def test_background_alone_ends_when_the_last_flow_is_complete():
    run = noisy(messages=[], duration=2000 * US)
    assert not run.finished
    assert run.run()
    assert AHEAD < len(run.messages) == run.progress().done == run.progress().total
    assert all(run.memory[at + F_END] for at in run.flows)


def test_pauses_do_not_change_what_happens():
    whole, parts = noisy(), noisy()
    whole.run()
    until = 0
    while not parts.finished:
        until += 77 * US
        parts.run(until)
    ends = [[run.memory[at + F_END] for at in run.flows[:500]] for run in (whole, parts)]
    assert ends[0] == ends[1]


def test_every_message_keeps_to_its_transport():
    run = noisy(load=0.6, size=20_000)
    run.run(2000 * US)
    marks = {message.extra: 0 for message in run.messages}
    for at, message in zip(run.flows, run.messages, strict=True):
        marks[message.extra] += run.memory[at + F_MARKS]
    assert marks[True] > 0
    assert summarize(run)["transport"] == "dlcp"
    with pytest.raises(ValueError, match="two different settings"):
        Simulation(STAR, [Message(0, 1, 10), Message(1, 2, 10, transport=Transport("dlcp", scale=0.5))], Transport("dlcp"))


# Gates


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 40_000), st.integers(0, 9), st.integers(0, 60)), min_size=1, max_size=12
    ),
    st.integers(1, 60_000),
    st.sampled_from(sorted(KINDS)),
)
def test_no_more_than_the_credit_is_under_way_and_the_urgent_goes_first(plan, credit, transport):
    gate = Gate(credit)
    messages = [Message(0, to, size, start=at * US, urgency=urgency, gate=gate, bound=0.0) for to, size, urgency, at in plan]
    run = Simulation(STAR, messages, Transport(transport, scale=0.01), engine="python")
    assert run.run(PICOSECONDS)
    spans = [(run.memory[at + F_START], run.memory[at + F_END]) for at in run.flows]
    for begin, _ in spans:
        under_way = [message.size for message, (start, end) in zip(messages, spans, strict=True) if start <= begin < end]
        assert sum(under_way) <= credit or len(under_way) == 1
    for (message, (begin, _)), (other, (start, _)) in itertools.permutations(zip(messages, spans, strict=True), 2):
        # Nothing begins while something more urgent waits at the gate.
        if max(message.start, 1) < start and other.urgency > message.urgency:
            assert begin <= start
    assert run.memory[H_OPEN] == 0


def test_a_more_urgent_message_overtakes():
    gate = Gate(100_000)
    messages = [
        Message(0, 1, 100_000, gate=gate, urgency=5),
        Message(0, 2, 100_000, gate=gate, urgency=4, start=10 * US),
        Message(0, 3, 100_000, gate=gate, urgency=1, start=40 * US),
    ]
    run = Simulation(STAR, messages, Transport("dctcp"), engine="python")
    assert run.run()
    begin = [run.memory[at + F_START] for at in run.flows]
    end = [run.memory[at + F_END] for at in run.flows]
    # One after another, each once its sender has heard of the end of the one before: 2 us later.
    assert begin[2] == end[0] + 2 * US and begin[1] == end[2] + 2 * US


def test_credit_of_a_job_is_that_of_each_rank():
    job = Job(range(4), Policy.from_dict({"loss": {"push": 0.0}}), credit=1)
    ring(job, 40_000, [[] for _ in range(4)])
    assert len({id(message.gate) for message in job.messages}) == 4
    run = Simulation(STAR, job.messages, Transport("dctcp"), engine="python")
    assert run.run()


def test_python_and_machine_give_the_same_memory():
    pytest.importorskip("llvmlite")
    states = []
    gates = [Gate(30_000), Gate(10_000)]
    for engine in ("python", "compiled"):
        messages = [
            Message(i % 2, 2 + i % 2, 20_000, gate=gates[i % 2], urgency=-i, protected=0.25, bound=0.05) for i in range(8)
        ]
        run = noisy(engine, messages=messages)
        run.run()
        states.append(([run.memory[at + F_END] for at in run.flows], run.progress()))
    assert states[0] == states[1]


# Where jobs run


def test_hosts_are_named_one_by_one_or_as_a_range():
    assert chosen(RACKS, ["h3", "h5..h7"], "hosts") == [3, 5, 6, 7]
    assert chosen(RACKS, [], "hosts") == list(range(16))
    for names, text in ((["h3", "h2..h4"], "twice"), (["h9..h8"], "range"), (["x"], "no host 'x'"), (["h1..y"], "no host 'y'")):
        with pytest.raises(ValueError, match=text):
            chosen(RACKS, names, "hosts")


def test_servers_run_no_ranks_and_racks_are_those_of_the_network():
    ranks = places(RACKS, range(2, 9), [8])
    assert ranks == [2, 3, 4, 5, 6, 7]
    assert racks_of(RACKS, ranks) == [[0, 1], [2, 3, 4, 5]]
    two = Star(hosts=2, ranks_per_host=2).build()
    assert places(two, [0, 1], []) == [0, 0, 1, 1] and racks_of(two, [0, 0, 1, 1]) == [[0, 1, 2, 3]]
