"""The network: paths, spraying, failures, degraded links, buffers."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.policy import Policy
from dlcp.topology import Dumbbell, FatTree, LeafSpine, Star, Topology
from dlcp.units import Buffer, Delay, Rate
from sim.changes import Change
from sim.engine.layout import (
    A_DEEPEST,
    A_DOWN,
    A_FULL,
    A_PACKETS,
    F_END,
    F_HASH,
    F_RESENT,
    H_NO_ROUTE,
    P_FLAGS,
    P_FLOW,
    P_TO,
    SPRAY_SHIFT,
)
from sim.engine.ports import take_packet
from sim.engine.routing import route
from sim.flows import SPRAYS, Transport
from sim.messages import Message
from sim.network import Buffers
from sim.simulation import Simulation
from sim.traffic import incast
from tests.conftest import ROOT

GBPS = Rate.parse("100 Gbit/s")
OPEN = Policy.from_dict({"switch": {"drop_share": 1.0, "mark_share": 1.0}})
FILES = ["dumbbell-8", "fat-tree-4", "leaf-spine-4to1", "two-sites", "star-congested"]


def still(topology, **more):
    """A simulation in which nothing has happened yet."""
    return Simulation(topology, [Message(0, 1, 1)], Transport("raw"), engine="python", **more)


def packet_to(run, node, spray="hash", flow_hash=0):
    memory = run.memory
    packet = take_packet(memory.words)
    memory[run.flows[0] + F_HASH] = flow_hash
    memory[packet + P_FLOW] = run.flows[0]
    memory[packet + P_TO] = run.network.nodes[node]
    memory[packet + P_FLAGS] = SPRAYS[spray] << SPRAY_SHIFT
    return packet


@pytest.mark.parametrize("name", FILES)
def test_switches_know_the_next_hops_of_the_topology(name):
    topology = Topology.from_toml(ROOT / "topologies" / f"{name}.toml")
    run = still(topology)
    for switch in topology.graph.switches:
        for host in topology.graph.hosts:
            wanted = {run.network.arcs[arc.number] for arc in topology.routes.next_hops(switch, host)}
            packet = packet_to(run, host, "round-robin")
            assert {route(run.memory.words, run.network.nodes[switch], packet) for _ in range(64)} == wanted


def leaf_spine(spines=4):
    return LeafSpine(leaves=2, spines=spines, hosts_per_leaf=2, rate=GBPS).build()


@settings(max_examples=8)
@given(st.lists(st.integers(0, (1 << 63) - 1), min_size=200, max_size=200, unique=True))
def test_hashes_spread_and_flows_keep_their_path(hashes):
    run = still(leaf_spine())
    leaf = run.network.nodes["leaf0"]
    found = Counter()
    for value in hashes:
        arcs = {route(run.memory.words, leaf, packet_to(run, "h3", flow_hash=value)) for _ in range(3)}
        assert len(arcs) == 1
        found += Counter(arcs)
    assert len(found) == 4


def test_round_robin_takes_turns_and_random_is_fair():
    run = still(leaf_spine())
    leaf = run.network.nodes["leaf0"]
    for spray, least in (("round-robin", 250), ("random", 190), ("least-queue", 250)):
        packet = packet_to(run, "h3", spray)
        counts = Counter(route(run.memory.words, leaf, packet) for _ in range(1000))
        assert len(counts) == 4
        assert min(counts.values()) >= least


@pytest.mark.parametrize("spray", sorted(SPRAYS))
def test_paths_that_are_down_are_passed_over_at_once(spray):
    run = still(leaf_spine())
    leaf = run.network.nodes["leaf0"]
    packet = packet_to(run, "h3", spray, flow_hash=3)
    before = {route(run.memory.words, leaf, packet) for _ in range(200)}
    (link,) = run.topology.links_between("leaf0", "spine2")
    run.network.cut(link)
    after = {route(run.memory.words, leaf, packet) for _ in range(200)}
    assert not after & {run.network.arcs[2 * link], run.network.arcs[2 * link + 1]}
    run.network.mend(link)
    assert {route(run.memory.words, leaf, packet) for _ in range(200)} == before


def test_a_failure_elsewhere_costs_packets_until_routes_follow():
    topology = leaf_spine(2)
    (link,) = topology.links_between("leaf1", "spine0")
    lost = {}
    for reroute in (0, 10**9):
        changes = [Change(5 * 10**6, link, up=False)]
        messages = [Message(0, 2, 400_000)]
        transport = Transport("dctcp", spray="round-robin", reordering=60, initial_window=200)
        run = Simulation(topology, messages, transport, OPEN, engine="python", changes=changes, reroute=reroute)
        assert run.run()
        lost[reroute] = sum(run.memory[flow + F_RESENT] for flow in run.flows)
    assert 0 < lost[0] < lost[10**9]


def test_a_cut_off_host_is_told_of_by_no_route():
    topology = Star(hosts=3, rate=GBPS).build()
    run = Simulation(
        topology, [Message(0, 1, 10**6)], Transport("raw"), engine="python", changes=[Change(10**6, 1, up=False)], reroute=0
    )
    run.run(until=10**9)
    memory = run.memory
    assert memory[H_NO_ROUTE] + sum(memory[arc + A_DOWN] for arc in run.network.arcs) > 100


def test_a_flap_delays_and_loses_nothing_for_good():
    topology = Dumbbell(left=2, right=2, rate=GBPS, delay=Delay(10**6)).build()
    (middle,) = topology.links_between("left", "right")
    messages = [Message(0, 2, 300_000), Message(3, 1, 300_000)]
    ends = []
    for changes in ([], [Change(10 * 10**6, middle, up=False), Change(60 * 10**6, middle, up=True)]):
        run = Simulation(topology, messages, Transport("dctcp"), OPEN, engine="python", changes=changes)
        assert run.run(until=10**12)
        ends.append(max(run.memory[flow + F_END] for flow in run.flows))
    assert ends[1] > ends[0]


def test_a_degraded_link_is_as_slow_as_it_says():
    topology = Star(hosts=2, rate=GBPS, delay=Delay(0), buffer=Buffer(2000, "packets")).build()
    took, ends = [], []
    for rate in (10**11, 10**10):
        run = Simulation(
            topology, [Message(0, 1, 1_472_000)], Transport("raw"), OPEN, engine="python", changes=[Change(1, 1, rate=rate)]
        )
        run.run(until=10**12)
        ends.append(run.memory[run.flows[0] + F_END])
        took.append(run.memory[run.network.arcs[3] + A_PACKETS])
    assert took == [1000, 1000]
    assert ends[1] - ends[0] == pytest.approx(1000 * 1514 * 8 * (100 - 10), rel=0.01)


@pytest.mark.parametrize("shared", [False, True])
def test_no_queue_holds_more_than_its_room(shared):
    topology = Star(hosts=9, rate=GBPS, buffer=Buffer(20_000, "bytes")).build()
    run = Simulation(
        topology, incast(9, 8, 60_000), Transport("raw"), OPEN, engine="python", buffers=Buffers(shared=shared, alpha=0.5)
    )
    run.run(until=10**10)
    port = run.network.arcs[1]
    room = 9 * 20_000 // 3 + 1514 // 3 if shared else 20_000  # alpha = 1/2: q <= (B - q before) / 2
    assert room - 1514 < run.memory[port + A_DEEPEST] <= room
    assert run.memory[port + A_FULL] > 0


def test_a_fat_tree_is_used_to_the_full():
    topology = FatTree(k=4, rate=GBPS, buffer=Buffer(200, "packets")).build()
    messages = [Message(host, (host + 8) % 16, 150_000) for host in range(16)]
    run = Simulation(topology, messages, Transport("dctcp", spray="least-queue", reordering=100), engine="python")
    assert run.run()
    core = [run.network.arcs[arc.number] for arc in topology.graph.arcs if arc.source.startswith("core")]
    counts = [run.memory[arc + A_PACKETS] for arc in core]
    assert max(counts) < 1.3 * min(counts)


def test_the_neighbours_of_a_host_that_is_cut_off_are_still_reached():
    topology = leaf_spine(2)
    (link,) = topology.links_between("leaf0", "h0")
    changes = [Change(10**6, link, up=False)]
    messages = [Message(2, 1, 100_000, start=5 * 10**6), Message(1, 3, 100_000, start=5 * 10**6)]
    run = Simulation(topology, messages, Transport("dctcp"), OPEN, engine="python", changes=changes, reroute=0)
    assert run.run(until=10**9)
