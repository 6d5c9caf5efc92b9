"""What is known in closed form: one flow, many to one, a queue with random arrivals, a ring."""

import itertools
import random

import pytest

from dlcp.policy import Policy
from dlcp.topology import Host, LeafSpine, Link, Star, Switch, Topology
from dlcp.units import Buffer, Delay, Rate
from sim.engine.layout import A_MARKED, A_PACKETS, A_WAIT, A_WAITED, F_CUTS, F_END, F_LOST, F_RESENT, F_START
from sim.flows import Transport, ideal_time
from sim.messages import Message
from sim.simulation import Simulation
from sim.traffic import Job, incast, permutation, ring

GBPS = Rate.parse("100 Gbit/s")
US = 10**6
LARGE = Buffer(10**6, "packets")
OPEN = Policy.from_dict({"switch": {"drop_share": 1.0, "mark_share": 1.0}})


def times(run):
    return [run.memory[flow + F_END] - run.memory[flow + F_START] for flow in run.flows]


@pytest.mark.parametrize("size", [1, 1460, 1461, 500_000])
def test_a_flow_alone_takes_the_ideal_time(size):
    shape = Star(hosts=2, rate=GBPS, delay=Delay(US), buffer=LARGE).build()
    transport = Transport("dctcp", initial_window=400)
    message = Message(0, 1, size)
    run = Simulation(shape, [message], transport, engine="python", policy=OPEN)
    assert run.run()
    assert times(run) == [ideal_time(shape, message, transport)]


def test_the_ideal_time_by_hand():
    shape = Star(hosts=2, rate=GBPS, delay=Delay(US)).build()
    # 80 ps a byte; packets of 1514 and, the shortest frame, 64 bytes: the second follows the first over both links.
    assert ideal_time(shape, Message(0, 1, 1461), Transport("tcp")) == 2 * 1514 * 80 + 64 * 80 + 2 * US


@pytest.mark.parametrize("senders", [2, 7, 15])
def test_an_incast_takes_what_its_bytes_take_on_the_last_link(senders):
    shape = Star(hosts=16, rate=GBPS, delay=Delay(US), buffer=LARGE).build()
    size = 146_000
    run = Simulation(shape, incast(16, senders, size), Transport("dctcp", initial_window=100), engine="python", policy=OPEN)
    assert run.run()
    wanted = senders * 100 * 1514 * 80 + 1514 * 80 + 2 * US
    assert max(times(run)) == wanted
    assert sum(run.memory[flow + F_RESENT] for flow in run.flows) == 0


def random_arrivals(load, count, seed):
    """Datagrams of one size at random times from many hosts whose own links are so fast that they hardly matter."""
    rng = random.Random(seed)
    sources = 50
    links = [Link(a=f"h{i}", b="s", rate=Rate.parse("100 Tbit/s"), buffer=LARGE) for i in range(1, sources + 1)]
    links.insert(0, Link(a="h0", b="s", rate=GBPS, buffer=LARGE))
    hosts = tuple(Host(name=f"h{i}") for i in range(sources + 1))
    topology = Topology(hosts=hosts, switches=(Switch(name="s"),), links=tuple(links))
    service = 1514 * 80
    now, messages, arrivals = 0.0, [], []
    for _ in range(count):
        now += rng.expovariate(load / service)
        messages.append(Message(rng.randint(1, sources), 0, 1472, start=int(now) + 1))
        arrivals.append(int(now) + 1)
    return topology, messages, arrivals, service


def test_a_queue_with_random_arrivals_waits_as_long_as_it_has_to():
    topology, messages, arrivals, service = random_arrivals(0.7, 4000, 3)
    run = Simulation(topology, messages, Transport("raw"), engine="python", policy=OPEN)
    assert run.run()
    port = run.network.arcs[1]
    assert run.memory[port + A_PACKETS] == 4000
    # Lindley's recursion on the same arrivals, all of them later by the time on the fast link.
    wait = total = waited = 0
    for before, after in itertools.pairwise(arrivals):
        wait = max(0, wait + service - (after - before))
        total += wait
        waited += wait > 0
    assert run.memory[port + A_WAIT] == pytest.approx(total, rel=0.002)
    assert run.memory[port + A_WAITED] == pytest.approx(waited, rel=0.002)


@pytest.mark.parametrize("load", [0.3, 0.5])
def test_the_mean_wait_is_that_of_an_m_d_1_queue(load):
    pytest.importorskip("llvmlite")
    topology, messages, _, service = random_arrivals(load, 60_000, 1)
    run = Simulation(topology, messages, Transport("raw"), engine="compiled", policy=OPEN)
    assert run.run()
    mean = run.memory[run.network.arcs[1] + A_WAIT] / len(messages)
    assert mean == pytest.approx(load * service / (2 * (1 - load)), rel=0.03)


@pytest.mark.parametrize("world", [2, 5, 8])
def test_a_ring_takes_its_steps(world):
    shape = Star(hosts=world, rate=GBPS, delay=Delay(US), buffer=LARGE).build()
    size = 1_000_000
    job = Job(range(world), OPEN)
    ring(job, size, [[] for _ in range(world)])
    assert len(job.messages) == 2 * (world - 1) * world
    run = Simulation(shape, job.messages, Transport("dctcp", initial_window=1000), engine="python", policy=OPEN)
    assert run.run()
    packets = -(-size // world // 1460)
    # A link carries the data of one neighbour and the acknowledgements of the other.
    step = (size / world + packets * (54 + 64)) * 80 + 1514 * 80 + 2 * US
    assert max(run.memory[flow + F_END] for flow in run.flows) == pytest.approx(2 * (world - 1) * step, rel=0.02)


def test_the_queue_of_dctcp_stays_near_its_threshold():
    shape = Star(hosts=3, rate=GBPS, delay=Delay(2 * US), buffer=Buffer(300, "packets")).build()
    policy = Policy.from_dict({"switch": {"mark_share": 0.1, "drop_share": 1.0}})
    run = Simulation(shape, incast(3, 2, 6_000_000), Transport("dctcp"), engine="python", policy=policy)
    assert run.run()
    port = run.network.arcs[1]
    busy = max(run.memory[flow + F_END] for flow in run.flows)
    assert 10 < run.memory[port + A_WAIT] / busy < 45
    assert run.memory[port + A_MARKED] > 0
    assert sum(run.memory[flow + F_LOST] for flow in run.flows) == 0


def test_a_sprayed_permutation_is_almost_ideal():
    shape = LeafSpine(leaves=3, spines=3, hosts_per_leaf=3, rate=GBPS, buffer=Buffer(200, "packets")).build()
    transport = Transport("dctcp", spray="round-robin", reordering=100)
    messages = permutation(9, 1_500_000, seed=2)
    run = Simulation(shape, messages, transport, engine="python")
    assert run.run()
    for took, message in zip(times(run), messages, strict=True):
        assert 1 <= took / ideal_time(shape, message, transport) < 1.4


def test_an_incast_of_ndp_loses_nothing_and_hardly_waits():
    shape = Star(hosts=17, rate=GBPS, delay=Delay(US), buffer=Buffer(64, "packets")).build()
    policy = Policy.from_dict({"switch": {"drop_share": 0.125, "mark_share": 1.0}})
    size = 69 * 1460
    run = Simulation(shape, incast(17, 16, size), Transport("ndp", spray="round-robin"), policy, engine="python")
    assert run.run()
    cut, again, lost = (sum(run.memory[flow + what] for flow in run.flows) for what in (F_CUTS, F_RESENT, F_LOST))
    assert cut == again > 0 == lost
    assert 1 < max(times(run)) / (16 * 69 * 1514 * 80) < 1.1


@pytest.mark.parametrize("overload", ["trim", "drop"])
def test_ndp_recovers_from_what_no_header_tells_of(overload):
    shape = Star(hosts=5, rate=GBPS, loss=0.02, buffer=Buffer(16, "packets")).build()
    policy = Policy.from_dict({"switch": {"overload": overload}})
    run = Simulation(shape, incast(5, 4, 100_000), Transport("ndp", spray="round-robin"), policy, engine="python")
    assert run.run(until=10**13)
