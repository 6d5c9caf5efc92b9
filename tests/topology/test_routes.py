"""Paths against an enumeration of all paths, and what traffic does on them."""

from fractions import Fraction
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.topology import FatTree, Host, LeafSpine, Link, Routes, Star, Topology
from dlcp.units import Rate
from tests.topology.networks import every_path, networks


def cost(path):
    return sum(arc.metric for arc in path)


def pairs(topology):
    return list(permutations(topology.graph.hosts, 2))


@given(networks())
@settings(max_examples=60)
def test_paths_are_all_the_shortest_ones_and_no_others(topology):
    routes = topology.routes
    for a, b in pairs(topology):
        ways = every_path(topology, a, b)
        least = min(map(cost, ways))
        expected = {path for path in ways if cost(path) == least}
        found = list(routes.paths(a, b))
        assert len(found) == len(set(found)) == routes.path_count(a, b)
        assert set(found) == expected
        assert routes.distance(a, b) == least
        assert routes.delay(a, b) == max(sum(int(topology.link(arc).delay) for arc in path) for path in expected)


@given(networks())
@settings(max_examples=60)
def test_next_hops_lead_nearer_so_that_nothing_loops(topology):
    routes, graph = topology.routes, topology.graph
    for switch in graph.switches:
        table = routes.table(switch)
        assert list(table) == list(graph.hosts)
        for host, ports in table.items():
            assert ports and list(ports) == sorted(set(ports))
            for port in ports:
                arc = graph.arc(switch, port)
                assert arc.target == host or not graph.is_host(arc.target)
                assert routes.distance(arc.target, host) == routes.distance(switch, host) - arc.metric
    for a, b in pairs(topology):
        assert routes.next_ports(a, b) == tuple(arc.port for arc in routes.next_hops(a, b)) != ()
        assert routes.next_hops(a, a) == () and routes.distance(a, a) == 0 and routes.path_count(a, a) == 0


@given(networks())
@settings(max_examples=40)
def test_traffic_is_conserved_and_the_bottleneck_is_where_it_is_said_to_be(topology):
    routes, graph = topology.routes, topology.graph
    for a, b in pairs(topology):
        shares = routes.shares(a, b)
        assert set(shares) == {arc.number for path in routes.paths(a, b) for arc in path}
        balance = {}
        for number, share in shares.items():
            arc = graph.arcs[number]
            balance[arc.source] = balance.get(arc.source, 0) - share
            balance[arc.target] = balance.get(arc.target, 0) + share
        assert {node: value for node, value in balance.items() if value} == {a: -1, b: 1}
        rate = Fraction(routes.capacity(a, b))
        limit = min(topology.nics[a], topology.nics[b])
        tightest = min(graph.arcs[number].rate / share for number, share in shares.items())
        assert rate == Fraction(float(min(limit, tightest)))
        narrow = routes.bottleneck(a, b)
        assert narrow.rate / shares[narrow.number] == tightest
        single = max(min(limit, *(arc.rate for arc in path)) for path in routes.paths(a, b))
        assert routes.path_capacity(a, b) == single
        assert routes.loads([(a, b, 2.0)]) == {number: 2 * float(share) for number, share in shares.items()}


@given(networks(), st.data())
@settings(max_examples=40)
def test_without_a_link_paths_are_those_of_a_network_without_it(topology, data):
    down = data.draw(st.sets(st.integers(0, len(topology.links) - 1), max_size=3))
    routes = Routes(topology, down)
    for a, b in pairs(topology):
        ways = [path for path in every_path(topology, a, b) if not any(arc.link in down for arc in path)]
        least = min(map(cost, ways), default=None)
        assert set(routes.paths(a, b)) == {path for path in ways if cost(path) == least}
        assert routes.distance(a, b) == least
        if least is None:
            assert routes.capacity(a, b) == routes.path_capacity(a, b) == 0
            assert routes.next_hops(a, b) == () and routes.bottleneck(a, b) is None and routes.delay(a, b) is None
            with pytest.raises(ValueError, match=f"no path leads from {a} to {b}"):
                routes.loads([(a, b, 1)])


@given(networks(), st.data())
@settings(max_examples=40)
def test_loads_add_up(topology, data):
    hosts = st.sampled_from(topology.graph.hosts)
    demands = data.draw(st.lists(st.tuples(hosts, hosts, st.integers(0, 1000)), max_size=8))
    expected = {}
    for a, b, amount in demands:
        for number, share in topology.routes.shares(a, b).items():
            expected[number] = expected.get(number, 0) + share * amount
    assert topology.routes.loads(demands) == pytest.approx({number: float(load) for number, load in expected.items()})


def test_same_host_and_ranks():
    topology = Star(hosts=3, ranks_per_host=2, rate=Rate.parse("1 Gbit/s")).build()
    routes = topology.routes
    assert routes.capacity("h0", "h0") == routes.path_capacity("h0", "h0") == routes.rank_capacity(0, 1) == float("inf")
    assert routes.rank_capacity(1, 2) == 10**9
    assert routes.loads([("h0", "h0", 5.0)]) == {} and routes.bottleneck("h0", "h0") is None
    assert list(routes.paths("h0", "h0")) == [] and routes.delay("h0", "h0") == 0
    for wrong in (lambda: routes.distance("h0", "s0"), lambda: routes.next_hops("h9", "h0"), lambda: routes.table("s9")):
        with pytest.raises(KeyError):
            wrong()


def test_uneven_paths_hold_each_other_back():
    # Sprayed evenly over two ways, of which one is slow, a pair gets twice the slow one; a single flow gets the fast one.
    topology = LeafSpine(leaves=2, spines=2, hosts_per_leaf=1, uplink_rate=Rate.parse("10 Gbit/s")).build()
    slow = topology.links_between("leaf0", "spine0")[0]
    links = list(topology.links)
    links[slow] = Link(a="leaf0", b="spine0", rate=Rate.parse("1 Gbit/s"))
    uneven = Topology(hosts=topology.hosts, switches=topology.switches, links=tuple(links))
    assert uneven.routes.capacity("h0", "h1") == 2e9
    assert uneven.routes.path_capacity("h0", "h1") == 1e10
    assert uneven.routes.bottleneck("h0", "h1").target == "spine0"
    assert Routes(uneven, {slow}).capacity("h0", "h1") == 1e10


def test_two_hosts_back_to_back():
    topology = Topology(hosts=(Host(name="a"), Host(name="b")), links=(Link(a="a", b="b", rate=Rate(5000)),))
    (path,) = topology.routes.paths("a", "b")
    assert [arc.target for arc in path] == ["b"] and topology.routes.capacity("b", "a") == 5000


@pytest.mark.parametrize("k", [2, 4, 6])
def test_a_fat_tree_has_its_published_number_of_paths(k):
    topology = FatTree(k=k).build()
    half, routes, hosts = k // 2, topology.routes, topology.graph.hosts
    assert [routes.path_count(hosts[0], host) for host in hosts[1:half]] == [1] * (half - 1)
    assert {routes.path_count(hosts[0], host) for host in hosts[half : half * half]} <= {half}
    assert {routes.path_count(hosts[0], host) for host in hosts[half * half :]} == {half * half}


def test_a_thousand_hosts_are_quick_to_route():
    topology = FatTree(k=16).build()
    routes = topology.routes
    table = routes.table("core63")
    assert len(table) == 1024 and all(len(ports) == 1 for ports in table.values())
    ring = [(topology.places[rank], topology.places[(rank + 1) % 1024], 1.0) for rank in range(1024)]
    loads = routes.loads(ring)
    assert max(loads.values()) == 1.0 and len(loads) > 2048
    for a, b in product(("h0",), ("h1", "h8", "h1023")):
        assert routes.capacity(a, b) == 10**10
