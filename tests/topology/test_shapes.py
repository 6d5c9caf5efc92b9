"""Regular networks have the sizes and the capacities that they promise; measures agree with slow but obvious ones."""

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.topology import (
    Dumbbell,
    FatTree,
    Host,
    LeafSpine,
    Link,
    Routes,
    Star,
    Switch,
    Topology,
    bisection,
    fast_domains,
    oversubscription,
    worst_loads,
)
from dlcp.topology import cuts as cuts_module
from dlcp.units import Rate
from tests.topology.networks import RATE, greatest_flow, networks

RATES = st.sampled_from([Rate.parse(text) for text in ("25 Mbit/s", "10 Gbit/s", "100 Gbit/s")])


def degrees(topology):
    return {node: len(topology.graph.leaving(node)) for node in (*topology.graph.hosts, *topology.graph.switches)}


@given(hosts=st.integers(1, 40), rate=RATES, each=st.integers(0, 3))
@settings(max_examples=25)
def test_star(hosts, rate, each):
    topology = Star(hosts=hosts, rate=rate, ranks_per_host=each).build()
    assert (len(topology.hosts), len(topology.switches), len(topology.links)) == (hosts, 1, hosts)
    assert topology.world == hosts * each
    assert [topology.places[rank] for rank in range(topology.world)] == [f"h{rank // each}" for rank in range(topology.world)]
    found = bisection(topology)
    assert found.exact and found.rate == hosts // 2 * rate and len(found.side) in (hosts // 2, (hosts + 1) // 2)
    assert oversubscription(topology) == pytest.approx(1 if hosts > 1 else 0)
    assert fast_domains(topology).domains == ((tuple(range(topology.world)),) if topology.world else ())


@given(left=st.integers(1, 12), right=st.integers(1, 12), rate=RATES, slower=st.sampled_from([1, 2, 5]))
@settings(max_examples=25)
def test_dumbbell(left, right, rate, slower):
    topology = Dumbbell(left=left, right=right, rate=rate, bottleneck=Rate(rate // slower)).build()
    hosts = left + right
    assert (len(topology.hosts), len(topology.switches), len(topology.links)) == (hosts, 2, hosts + 1)
    assert topology.routes.capacity("h0", f"h{hosts - 1}") == rate // slower
    assert oversubscription(topology) == pytest.approx(max(min(left, right) * slower, 1))
    found = bisection(topology)
    wrong_side = abs(left - right) // 2  # hosts to be cut off from their switch to make halves
    assert found.exact and found.rate == min(hosts // 2 * rate, wrong_side * rate + rate // slower)
    domains = fast_domains(topology)
    if min(left, right) * slower > 1.5:
        assert domains.domains == (tuple(range(left)), tuple(range(left, hosts)))
        assert [topology.links[link].a for link in domains.boundaries] == ["left"]
    else:
        assert domains.domains == (tuple(range(hosts)),) and domains.boundaries == ()


@given(
    leaves=st.integers(1, 8),
    spines=st.integers(1, 5),
    each=st.integers(1, 6),
    uplinks=st.integers(1, 2),
    over=st.sampled_from([0.5, 1.0, 1.25, 2.0, 4.0, 7.0]),
    rate=RATES,
)
@settings(max_examples=40)
def test_leaf_spine(leaves, spines, each, uplinks, over, rate):
    shape = LeafSpine(
        leaves=leaves, spines=spines, hosts_per_leaf=each, uplinks=uplinks, oversubscription=over, rate=rate, ranks_per_host=2
    )
    topology = shape.build("fabric", subnet="172.16.0.0/20")
    hosts = leaves * each
    assert (topology.name, topology.subnet) == ("fabric", "172.16.0.0/20")
    assert (len(topology.hosts), len(topology.switches)) == (hosts, leaves + spines)
    assert len(topology.links) == hosts + leaves * spines * uplinks
    up = shape.rate_up()
    assert each * rate / (spines * uplinks * up) == pytest.approx(over)
    if leaves == 1:
        assert oversubscription(topology) == pytest.approx(1 if hosts > 1 else 0)
    else:
        assert oversubscription(topology) == pytest.approx(max(over, 1))
        assert topology.routes.path_count("h0", f"h{hosts - 1}") == spines * uplinks**2
    found = bisection(topology)
    assert found.exact
    if leaves % 2 == 0:
        assert found.rate == min(hosts // 2 * rate, leaves // 2 * spines * uplinks * up)
    domains = fast_domains(topology)
    if leaves > 1 and over > 1.5:
        assert domains.domains == tuple(tuple(range(2 * each * leaf, 2 * each * (leaf + 1))) for leaf in range(leaves))
        assert len(domains.boundaries) == leaves * spines * uplinks
    else:
        assert domains.domains == (tuple(range(2 * hosts)),)


@pytest.mark.parametrize(("k", "each"), [(2, "auto"), (4, "auto"), (4, 6), (6, "auto"), (8, "auto")])
def test_fat_tree(k, each):
    topology = FatTree(k=k, hosts_per_edge=each, rate=Rate.parse("1 Gbit/s")).build()
    half = k // 2
    count = half if each == "auto" else each
    hosts = k * half * count
    assert (len(topology.hosts), len(topology.switches), len(topology.links)) == (
        hosts,
        5 * k * k // 4,
        hosts + 2 * k * half * half,
    )
    if each == "auto":
        assert hosts == k**3 // 4
        assert set(degrees(topology).values()) == {1, k}
    tiers = Counter(topology.graph.tiers().values())
    assert tiers == {0: hosts, 1: k * half, 2: k * half, 3: half * half}
    assert oversubscription(topology) == pytest.approx(count / half)
    found = bisection(topology)
    assert found.rate == min(hosts // 2, k * half * half // 2) * 10**9
    assert found.exact == (k <= 4)
    domains = fast_domains(topology).domains
    if count > 1.5 * half:
        assert domains == tuple(tuple(range(count * edge, count * (edge + 1))) for edge in range(k * half))
    else:
        assert domains == (tuple(range(hosts)),)


def halves(topology):
    """The bisection by trying all halves of the hosts."""
    hosts = topology.graph.hosts
    return min(
        greatest_flow(topology, set(side), set(hosts) - set(side))
        for size in {len(hosts) // 2, (len(hosts) + 1) // 2}
        for side in combinations(hosts, size)
    )


@given(networks(most_switches=5, most_hosts=6))
@settings(max_examples=60)
def test_bisection_is_that_of_the_worst_halves(topology):
    found = bisection(topology)
    others = set(topology.graph.hosts) - set(found.side)
    assert found.exact and abs(len(found.side) - len(others)) <= 1
    assert found.rate == halves(topology) == greatest_flow(topology, set(found.side), others)


@given(networks(most_switches=6, most_hosts=6))
@settings(max_examples=40)
def test_the_search_for_large_networks_never_claims_too_little(topology):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts_module, "_WORK", 0)
        found = bisection(topology)
    others = set(topology.graph.hosts) - set(found.side)
    assert not found.exact
    # It is the capacity of a cut between these halves, so that no traffic between them gets more.
    assert found.rate >= greatest_flow(topology, set(found.side), others) >= bisection(topology).rate


def test_hosts_joined_directly_can_be_parted():
    hosts = tuple(Host(name=name) for name in "abc")
    links = tuple(Link(a=a, b=b, rate=Rate(rate)) for a, b, rate in (("a", "b", 3000), ("b", "c", 2000), ("c", "a", 7000)))
    topology = Topology(hosts=hosts, links=links)
    assert bisection(topology).rate == halves(topology) == 5000
    assert fast_domains(topology).domains == () and oversubscription(topology) == pytest.approx(2.5)


@given(networks(nics=False), st.data())
@settings(max_examples=60)
def test_no_traffic_exceeds_the_worst(topology, data):
    hose = {host: float(rate) for host, rate in topology.nics.items()}
    bounds = worst_loads(topology.routes, topology, hose)
    assert set(bounds) == {arc.number for arc in topology.graph.arcs}
    hosts = list(topology.graph.hosts)
    targets = data.draw(st.permutations(hosts))
    demands = [(a, b, min(hose[a], hose[b])) for a, b in zip(hosts, targets, strict=True)]
    for number, load in topology.routes.loads(demands).items():
        assert load <= bounds[number] * (1 + 1e-9)


@given(networks(), st.sampled_from([1.2, 1.5, 4.0]), st.data())
@settings(max_examples=60)
def test_within_a_fast_domain_nothing_is_slow(topology, slowdown, data):
    found = fast_domains(topology, slowdown)
    assert sorted(rank for domain in found.domains for rank in domain) == list(range(topology.world))
    assert list(found.domains) == sorted(found.domains)
    routes = Routes(topology, found.boundaries)
    shares = sorted(topology.nics[host] / len(topology.host(host).ranks) for host in topology.places)
    if not shares:
        return
    middle = len(shares) // 2
    typical = shares[middle] if len(shares) % 2 else (shares[middle - 1] + shares[middle]) / 2
    total = {}
    for domain in found.domains:
        receivers = data.draw(st.permutations(domain))
        demands = [(topology.places[a], topology.places[b], typical) for a, b in zip(domain, receivers, strict=True)]
        assert all(routes.distance(a, b) is not None for a, b, _ in demands), "a domain holds together without slow links"
        for number, load in routes.loads(demands).items():
            total[number] = total.get(number, 0) + load
    for number, load in total.items():
        assert load / topology.graph.arcs[number].rate <= slowdown * (1 + 1e-6)


def test_a_slow_host_and_a_slow_rack_stand_apart():
    straggler = Topology.from_dict(
        {"generate": {"kind": "star", "hosts": 5}, "override": [{"a": "h2", "b": "s0", "rate": "1 Gbit/s"}]}
    )
    assert fast_domains(straggler).domains == ((0, 1, 3, 4), (2,))
    assert fast_domains(straggler, slowdown=20).domains == ((0, 1, 2, 3, 4),)
    rack = Topology.from_dict(
        {
            "generate": {"kind": "leaf-spine", "leaves": 3, "hosts_per_leaf": 2, "spines": 2},
            "override": [{"a": "leaf1", "b": f"spine{index}", "rate": "1 Gbit/s"} for index in (0, 1)],
        }
    )
    found = fast_domains(rack)
    assert found.domains == ((0, 1, 4, 5), (2, 3))
    assert {rack.links[link].a for link in found.boundaries} == {"leaf1"}
    with pytest.raises(ValueError, match="slowdown 1"):
        fast_domains(rack, 1)


def test_one_bad_path_of_several_does_not_part_racks():
    topology = Topology.from_dict(
        {
            "generate": {"kind": "leaf-spine", "leaves": 2, "hosts_per_leaf": 4, "spines": 4},
            "override": [{"a": "leaf0", "b": "spine1", "rate": "100 Mbit/s"}],
        }
    )
    found = fast_domains(topology)
    assert found.domains == (tuple(range(8)),)
    assert [(topology.links[link].a, topology.links[link].b) for link in found.boundaries] == [("leaf0", "spine1")]


def test_a_host_on_two_bodies_of_switches_does_not_join_them():
    hosts = tuple(Host(name=name, ranks=(rank,)) for rank, name in enumerate(("both", "left1", "left2", "right")))
    wires = [("both", "p", 9), ("both", "q", 9), ("left1", "p", 9), ("left2", "p", 9), ("right", "q", 9), ("p", "q", 1)]
    topology = Topology(
        hosts=hosts,
        switches=(Switch(name="p"), Switch(name="q")),
        links=tuple(Link(a=a, b=b, rate=Rate.parse(f"{rate} Gbit/s")) for a, b, rate in wires),
    )
    assert fast_domains(topology).domains == ((0, 1, 2), (3,))
    clique = Topology(
        hosts=hosts, links=tuple(Link(a=a.name, b=b.name, rate=Rate.parse("1 Gbit/s")) for a, b in combinations(hosts, 2))
    )
    assert fast_domains(clique, slowdown=5).domains == ((0, 1, 2, 3),)


def test_two_tiers_of_oversubscription_part_into_the_smallest_domains():
    switches = tuple(Switch(name=name) for name in ("core", "pod0", "pod1", "rack0", "rack1", "rack2", "rack3"))
    wires = [("pod0", "core", 1), ("pod1", "core", 1)] + [(f"rack{index}", f"pod{index // 2}", 4) for index in range(4)]
    wires += [(f"h{index}", f"rack{index // 4}", 2) for index in range(16)]
    topology = Topology(
        hosts=tuple(Host(name=f"h{index}", ranks=(index,)) for index in range(16)),
        switches=switches,
        links=tuple(Link(a=a, b=b, rate=Rate.parse(f"{rate} Gbit/s")) for a, b, rate in wires),
    )
    assert oversubscription(topology) == pytest.approx(16)
    assert [len(domain) for domain in fast_domains(topology).domains] == [4, 4, 4, 4]
    assert [len(domain) for domain in fast_domains(topology, slowdown=2.5).domains] == [8, 8]
    assert [len(domain) for domain in fast_domains(topology, slowdown=16.5).domains] == [16]


def test_hosts_on_two_switches_spread_their_load():
    hosts = tuple(Host(name=f"h{index}", ranks=(index,)) for index in range(4))
    links = tuple(Link(a=host.name, b=plane, rate=Rate.parse("1 Gbit/s")) for host in hosts for plane in ("p", "q"))
    topology = Topology(hosts=hosts, switches=(Switch(name="p"), Switch(name="q")), links=links)
    assert topology.nics["h0"] == 2 * 10**9
    assert oversubscription(topology) == pytest.approx(1)
    assert topology.routes.capacity("h0", "h1") == 2e9
    assert bisection(topology).rate == 4 * 10**9


@given(rate=RATE, count=st.integers(1, 4))
@settings(max_examples=10)
def test_parts_can_be_put_together_by_hand(rate, count):
    parts = Star(hosts=count, rate=rate).parts()
    assert (
        Topology(name="star", hosts=parts.hosts, switches=parts.switches, links=parts.links)
        == Star(hosts=count, rate=rate).build()
    )
