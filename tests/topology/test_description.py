"""The topology file: what it may say, how mistakes are named, and what is derived from it."""

import dataclasses
import json
import pickle
import tomllib
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.errors import ConfigError
from dlcp.topology import Host, Link, Star, Switch, Topology
from dlcp.topology.builders import SHAPES
from dlcp.units import Rate
from tests.topology.networks import networks

HOSTS = [{"name": "a", "ranks": [0]}, {"name": "b", "ranks": [1]}]
SWITCHES = [{"name": "s"}]
LINKS = [{"a": "a", "b": "s", "rate": "1 Gbit/s"}, {"a": "b", "b": "s", "rate": "1 Gbit/s"}]


def read(hosts=HOSTS, switches=SWITCHES, links=LINKS, **others):
    return Topology.from_dict({"hosts": hosts, "switches": switches, "links": links, **others}, "net.toml")


def plus(items, *more, at=None, **changes):
    """The list with further items, and with changes to the one at ``at``."""
    items = [dict(item) for item in items]
    if at is not None:
        items[at].update(changes)
    return [*items, *more]


@given(networks(), st.booleans())
@settings(max_examples=30)
def test_a_topology_comes_back_from_dict_json_and_toml(topology, comments):
    assert Topology.from_dict(topology.to_dict()) == topology
    assert Topology.from_dict(json.loads(json.dumps(topology.to_dict()))) == topology
    again = Topology.from_dict(tomllib.loads(topology.to_toml(comments=comments)))
    assert again == topology and again.digest() == topology.digest() and again.difference(topology) == []
    assert pickle.loads(pickle.dumps(topology)) == topology


@given(networks(), networks())
@settings(max_examples=30)
def test_digests_are_equal_exactly_for_equal_topologies(one, two):
    assert (one.digest() == two.digest()) == (one == two) == (one.difference(two) == [])


def test_reading_a_file(tmp_path):
    path = tmp_path / "net.toml"
    path.write_text(read().to_toml())
    assert Topology.from_toml(path) == read()
    path.write_text("hosts = [{ name = 'a', rank = [0] }]")
    with pytest.raises(ConfigError, match=r"net.toml: hosts\[0\].rank: unknown key \(did you mean 'ranks'\?\)"):
        Topology.from_toml(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        Topology.from_toml(tmp_path / "none.toml")
    path.write_text("hosts = ")
    with pytest.raises(ConfigError, match="is not TOML"):
        Topology.from_toml(path)


REFUSED = [
    # names
    ({"hosts": plus(HOSTS, {"name": "a"})}, "hosts[2].name", "'a' is also the name of hosts[0]"),
    ({"switches": plus(SWITCHES, {"name": "b"})}, "switches[1].name", "'b' is also the name of hosts[1]"),
    ({"switches": [{"name": "0s"}]}, "switches[0].name", "'0s' does not fit"),
    ({"hosts": plus(HOSTS, at=0, name="a" * 33)}, "hosts[0].name", "does not fit"),
    ({"hosts": []}, "hosts", "[] has 0 items"),
    ({"hosts": 3}, "hosts", "3 is not a list"),
    ({"switch": []}, "switch", "unknown key (did you mean 'switches'?)"),
    ({"name": ""}, "name", "'' does not fit"),
    # links
    ({"links": plus(LINKS, {"a": "b", "b": "ss", "rate": "1 Gbit/s"})}, "links[2].b", "there is no node 'ss'"),
    (
        {"hosts": [{"name": "left"}], "links": [{"a": "lef", "b": "s", "rate": "1 Gbit/s"}]},
        "links[0].a",
        "(did you mean 'left'?)",
    ),
    ({"links": plus(LINKS, {"a": "s", "b": "s", "rate": "1 Gbit/s"})}, "links[2].b", "'s' is joined to itself"),
    ({"links": plus(LINKS, {"a": "s", "b": "a", "rate": "2 Gbit/s"})}, "links[2]", "s and a are joined by links[0] already"),
    ({"links": plus(LINKS, at=1, parallel=True)}, "links[1].parallel", "no link before it joins b and s"),
    ({"links": [{"a": "a", "b": "s"}, LINKS[1]]}, "links[0].rate", "missing"),
    ({"links": plus(LINKS, at=1, rate="1 Gbit")}, "links[1].rate", None),
    ({"links": plus(LINKS, at=1, rate=1000)}, "links[1].rate", "1000 has no unit"),
    ({"links": plus(LINKS, at=1, rate="0 bit/s")}, "links[1].rate", "'0 bit/s' is out of range"),
    ({"links": plus(LINKS, at=1, delay="1 hour")}, "links[1].delay", "unknown unit 'hour'"),
    ({"links": plus(LINKS, at=1, buffer="none")}, "links[1].buffer", "'none' is not a number with a unit"),
    ({"links": plus(LINKS, at=1, loss=1.5)}, "links[1].loss", "1.5 is out of range"),
    ({"links": plus(LINKS, at=1, mtu=100)}, "links[1].mtu", "100 is out of range"),
    ({"links": plus(LINKS, at=1, metric=0)}, "links[1].metric", "0 is out of range"),
    # ports
    ({"links": plus(plus(LINKS, at=0, b_port=4), at=1, b_port=4)}, "links[1].b_port", "port 4 of s is in use by links[0].b_port"),
    ({"links": plus(LINKS, at=0, a_port=65_536)}, "links[0].a_port", "65536 is out of range"),
    ({"links": plus(LINKS, at=0, a_port="first")}, "links[0].a_port", "'first' is not a whole number"),
    # ranks
    ({"hosts": plus(HOSTS, at=1, ranks=[1, 0])}, "hosts[1].ranks[1]", "rank 0 stands at hosts[0].ranks[0] too"),
    ({"hosts": plus(HOSTS, at=1, ranks=[1, 1])}, "hosts[1].ranks[1]", "rank 1 stands at hosts[1].ranks[0] too"),
    ({"hosts": plus(HOSTS, at=1, ranks=[2])}, "hosts[1].ranks[0]", "there is a rank 2, but no rank 1"),
    ({"hosts": plus(HOSTS, at=0, ranks=[2])}, "hosts[0].ranks[0]", "there is a rank 2, but no rank 0"),
    ({"hosts": plus(HOSTS, at=1, ranks=[-1])}, "hosts[1].ranks[0]", "-1 is out of range"),
    ({"hosts": plus(HOSTS, at=1, ranks=1)}, "hosts[1].ranks", "1 is not a list"),
    # addresses
    (
        {"hosts": plus(plus(HOSTS, at=0, ipv4="10.0.0.5"), at=1, ipv4="10.0.0.5")},
        "hosts[1].ipv4",
        "is also the address of hosts[0]",
    ),
    ({"hosts": plus(HOSTS, at=1, ipv4="10.0.0.256")}, "hosts[1].ipv4", "'10.0.0.256' is not an IPv4 address"),
    ({"hosts": plus(HOSTS, at=1, ipv4="224.0.0.1")}, "hosts[1].ipv4", "is no address of one host"),
    ({"hosts": plus(HOSTS, at=1, ipv4="10.0.255.255")}, "hosts[1].ipv4", "is the network or broadcast address of 10.0.0.0/16"),
    ({"hosts": plus(HOSTS, at=1, ipv4=7)}, "hosts[1].ipv4", "7 is not a string"),
    ({"subnet": "10.0.0.1/16"}, "subnet", "'10.0.0.1/16' is not an IPv4 network"),
    ({"subnet": "10.0.0.0/31"}, "subnet", "holds no addresses for hosts, or too many"),
    ({"subnet": "10.0.0.0/30", "hosts": plus(HOSTS, {"name": "c"})}, "subnet", "10.0.0.0/30 has no room for 3 hosts"),
    ({"hosts": plus(HOSTS, at=1, mac="02:00:0a:00:00:01")}, "hosts[1].mac", "is also the address of hosts[0]"),
    ({"hosts": plus(HOSTS, at=1, mac="03:00:00:00:00:01")}, "hosts[1].mac", "is a group address, or zero"),
    ({"hosts": plus(HOSTS, at=1, mac="02-00-00-00-00-01")}, "hosts[1].mac", "is not a MAC address"),
    ({"hosts": plus(HOSTS, at=1, nic=10)}, "hosts[1].nic", "10 has no unit"),
    # switches
    ({"switches": plus(SWITCHES, at=0, target="tofino")}, "switches[0].target", "'tofino' is not one of them"),
    ({"switches": plus(SWITCHES, at=0, grpc="localhost")}, "switches[0].grpc", "is not an address with a port"),
    ({"switches": plus(SWITCHES, at=0, grpc="localhost:0")}, "switches[0].grpc", "is not an address with a port"),
    ({"switches": plus(SWITCHES, at=0, device_id=-1)}, "switches[0].device_id", "-1 is out of range"),
    (
        {"switches": [{"name": "s", "device_id": 3}, {"name": "t", "device_id": 3}]},
        "switches[1].device_id",
        "3 is also the device id of switches[0]",
    ),
    # connection
    ({"hosts": plus(HOSTS, {"name": "c"})}, "hosts[2].name", "no link leads to c"),
    ({"switches": plus(SWITCHES, {"name": "t"})}, "switches[1].name", "no link leads to t"),
    (
        {"hosts": plus(HOSTS, {"name": "c"}), "links": plus(LINKS, {"a": "b", "b": "c", "rate": "1 Gbit/s"})},
        "hosts[2].name",
        "no path of switches leads from a to c",
    ),
    ({"links": LINKS[:1]}, "hosts[1].name", "no link leads to b"),
    ({"links": []}, "hosts[1].name", "no link leads to b"),
]


@pytest.mark.parametrize(("changes", "key", "problem"), REFUSED)
def test_mistakes_are_named(changes, key, problem):
    with pytest.raises(ConfigError) as caught:
        read(**changes)
    error = caught.value
    assert (error.source, error.key) == ("net.toml", key)
    assert problem is None or problem in error.problem
    assert error.accepted


def test_hosts_behind_a_host_are_cut_off_whichever_comes_first():
    for names in ("abc", "acb", "bac", "bca", "cab", "cba"):
        hosts = [{"name": name} for name in names]
        links = [*LINKS, {"a": "b", "b": "c", "rate": "1 Gbit/s"}]
        with pytest.raises(ConfigError, match="no path of switches leads from"):
            read(hosts=hosts, links=links)
    everyone = [*LINKS, {"a": "b", "b": "c", "rate": "1 Gbit/s"}, {"a": "c", "b": "a", "rate": "1 Gbit/s"}]
    assert read(hosts=[*HOSTS, {"name": "c"}], links=everyone).routes.distance("a", "c") == 1


def test_separate_planes_are_connected():
    hosts = [{"name": name} for name in "ab"]
    links = [{"a": host, "b": plane, "rate": "1 Gbit/s"} for host in "ab" for plane in ("p", "q")]
    topology = read(hosts=hosts, switches=[{"name": "p"}, {"name": "q"}], links=links)
    assert topology.routes.next_ports("a", "b") == (0, 1)


def test_parallel_links_are_allowed_if_said_so():
    topology = read(links=[*LINKS, {"a": "s", "b": "a", "rate": "2 Gbit/s", "parallel": True}])
    assert topology.links_between("a", "s") == (0, 2)
    assert topology.routes.next_ports("s", "a") == (1, 3)


def test_one_host_alone_needs_a_link_only_to_the_switches_there_are():
    assert Topology(hosts=(Host(name="a", ranks=(0,)),)).world == 1
    with pytest.raises(ConfigError, match="no link leads to s"):
        Topology(hosts=(Host(name="a", ranks=(0,)),), switches=(Switch(name="s"),))


@given(networks())
@settings(max_examples=30)
def test_derived_numbers_are_unique_and_stable(topology):
    graph = topology.graph
    ports = [(arc.source, arc.port) for arc in graph.arcs]
    assert len(set(ports)) == len(ports)
    for node in (*graph.hosts, *graph.switches):
        first = 0 if graph.is_host(node) else 1
        assert [arc.port for arc in graph.leaving(node)] == list(range(first, first + len(graph.leaving(node))))
        for arc in graph.leaving(node):
            assert graph.arc(node, arc.port) == arc and arc.source == node
            back = graph.back(arc)
            assert (back.source, back.port, back.target, back.target_port) == (arc.target, arc.target_port, arc.source, arc.port)
            assert topology.link(arc) == topology.links[arc.link] and arc.number // 2 == arc.link
    assert len(set(topology.addresses.values())) == len(set(topology.macs.values())) == len(topology.hosts)
    network = IPv4Network(topology.subnet)
    assert all(IPv4Address(address) in network for address in topology.addresses.values())
    assert list(topology.device_ids.values()) == list(range(1, len(topology.switches) + 1))
    assert topology.world == len(topology.places)
    for rank, place in enumerate(topology.places):
        assert rank in topology.host(place).ranks
        assert topology.rank_addresses()[rank] == topology.addresses[place]
    again = Topology.from_dict(topology.to_dict())
    assert (again.addresses, again.macs, again.graph.arcs) == (topology.addresses, topology.macs, graph.arcs)


def test_given_numbers_stand_and_the_others_fill_the_gaps():
    topology = read(
        hosts=[{"name": "a", "mac": "0A:00:00:00:00:01"}, {"name": "b", "ipv4": "10.0.0.1"}, {"name": "c", "ipv4": "192.0.2.1"}],
        switches=[{"name": "s"}, {"name": "t", "device_id": 1}, {"name": "u", "device_id": 1, "grpc": "[::1]:9559"}],
        links=[
            {"a": "a", "b": "s", "rate": "1 Gbit/s"},
            {"a": "b", "b": "s", "rate": "1 Gbit/s", "b_port": 1, "a_port": 0},
            {"a": "c", "b": "s", "rate": "1 Gbit/s", "b_port": 3},
            {"a": "s", "b": "t", "rate": "1 Gbit/s"},
            {"a": "t", "b": "u", "rate": "1 Gbit/s", "a_port": 0},
        ],
    )
    assert topology.addresses == {"a": "10.0.0.2", "b": "10.0.0.1", "c": "192.0.2.1"}
    assert topology.macs == {"a": "0a:00:00:00:00:01", "b": "02:00:0a:00:00:01", "c": "02:00:c0:00:02:01"}
    assert topology.device_ids == {"s": 2, "t": 1, "u": 1}
    assert {arc.target: arc.port for arc in topology.graph.leaving("s")} == {"b": 1, "a": 2, "c": 3, "t": 4}
    assert {arc.target: arc.port for arc in topology.graph.leaving("t")} == {"s": 1, "u": 0}
    assert topology.graph.neighbours("s") == ("b", "a", "c", "t")
    assert topology.switch("u").grpc == "[::1]:9559" and topology.nics["a"] == Rate.parse("1 Gbit/s")
    for missing in (lambda: topology.host("s"), lambda: topology.switch("a"), lambda: topology.graph.arc("s", 9)):
        with pytest.raises(KeyError):
            missing()


def test_an_interface_limits_its_links():
    topology = read(hosts=[{"name": "a", "nic": "100 Mbit/s"}, {"name": "b"}])
    assert [arc.rate for arc in topology.graph.arcs] == [10**8, 10**8, 10**9, 10**9]
    assert topology.nics == {"a": 10**8, "b": 10**9}


# Shorthands of the file


def test_generate_makes_what_the_shape_makes():
    for kind, shape in SHAPES.items():
        topology = Topology.from_dict({"generate": {"kind": kind, "rate": "1 Gbit/s"}})
        assert topology == shape(rate=Rate.parse("1 Gbit/s")).build()
        assert topology.name == kind


def test_listed_nodes_come_after_generated_ones():
    topology = Topology.from_dict(
        {
            "name": "both",
            "hosts": [{"name": "x"}],
            "links": [{"a": "x", "b": "s0", "rate_mbps": 5}],
            "generate": {"kind": "star", "hosts": 2},
        }
    )
    assert [host.name for host in topology.hosts] == ["h0", "h1", "x"]
    assert topology.links[-1] == Link(a="x", b="s0", rate=Rate(5_000_000))
    assert (topology.name, topology.world) == ("both", 2)


def test_link_defaults_hold_where_a_link_is_silent():
    links = [{"a": "a", "b": "s"}, {"a": "b", "b": "s", "rate_gbps": 2, "loss": 0.5, "delay": "1 s"}]
    topology = read(links=links, link_defaults={"rate_mbps": 100, "delay_ms": 2, "buffer": "9 packets", "metric": 3, "loss": 0.1})
    one, two = topology.links
    assert (one.rate, one.delay, one.loss, one.metric) == (10**8, 2 * 10**9, 0.1, 3)
    assert (two.rate, two.delay, two.loss, two.metric) == (2 * 10**9, 10**12, 0.5, 3)
    assert one.buffer == two.buffer and one.buffer.amount == 9


def test_override_changes_every_link_between_two_nodes():
    generate = {"kind": "leaf-spine", "uplinks": 2, "leaves": 2, "hosts_per_leaf": 1}
    plain = Topology.from_dict({"generate": generate})
    changed = Topology.from_dict({"generate": generate, "override": [{"a": "spine1", "b": "leaf0", "rate_mbps": 1, "loss": 0.2}]})
    positions = plain.links_between("leaf0", "spine1")
    assert len(positions) == 2
    for index, (before, after) in enumerate(zip(plain.links, changed.links, strict=True)):
        changes = {"rate": Rate(10**6), "loss": 0.2} if index in positions else {}
        assert after == dataclasses.replace(before, **changes)
    listed = read(override=[{"a": "s", "b": "a", "mtu": 9000}])
    assert [link.mtu for link in listed.links] == [9000, 1500]


@pytest.mark.parametrize(
    ("mapping", "key", "problem"),
    [
        ({"generate": {"kind": "ring"}}, "generate.kind", "'ring' is not one of them"),
        ({"generate": {"kind": "fat_tree"}}, "generate.kind", "(did you mean 'fat-tree'?)"),
        ({"generate": {"kind": ["star"]}}, "generate.kind", "['star'] is not one of them"),
        ({"generate": {}}, "generate.kind", "missing"),
        ({"generate": []}, "generate", "[] is not a table"),
        ({"generate": {"kind": "star", "host": 3}}, "generate.host", "unknown key (did you mean 'hosts'?)"),
        ({"generate": {"kind": "star", "hosts": 0}}, "generate.hosts", "0 is out of range"),
        ({"generate": {"kind": "star", "rate": "1"}}, "generate.rate", "'1' has no unit"),
        ({"generate": {"kind": "fat-tree", "k": 5}}, "generate.k", "5 is odd"),
        ({"generate": {"kind": "fat-tree", "k": 64, "hosts_per_edge": 1000}}, "generate.hosts_per_edge", "hosts"),
        (
            {"generate": {"kind": "leaf-spine", "leaves": 1024, "hosts_per_leaf": 1024}},
            "generate.hosts_per_leaf",
            "1048576 hosts",
        ),
        (
            {"generate": {"kind": "leaf-spine", "oversubscription": 2, "uplink_rate": "1 Gbit/s"}},
            "generate.uplink_rate",
            "is given besides oversubscription",
        ),
        (
            {"generate": {"kind": "leaf-spine", "oversubscription": 1000, "rate": "1 kbit/s"}},
            "generate.oversubscription",
            "out of range",
        ),
        # positions count what stands in the file
        ({"generate": {"kind": "star"}, "hosts": [{"name": "x"}]}, "hosts[0].name", "no link leads to x"),
        ({"generate": {"kind": "star"}, "hosts": [{"name": "h1"}]}, "hosts[0].name", "is also the name of generate (hosts[1])"),
        ({"generate": {"kind": "star"}, "hosts": [{"name": "x", "ranks": [9]}]}, "hosts[0].ranks[0]", "a rank 9, but no rank 4"),
        ({"generate": {"kind": "star"}, "links": [{"a": "h0", "b": "s0", "rate_mbps": 1}]}, "links[0]", "generate (links[0])"),
        ({"generate": {"kind": "star"}, "links": [{"a": "h0"}]}, "links[0].b", "missing"),
        ({"generate": {"kind": "star"}, "links": {}}, "links", "{} is not a list"),
        (
            {"generate": {"kind": "star"}, "links": [{"a": "h0", "rate_mbps": "x"}], "link_defaults": {"mtu": 9000}},
            "links[0].rate_mbps",
            "'x' is not a number",
        ),
        ({"generate": {"kind": "star"}, "links": [3], "override": [{"a": "h0", "b": "s0"}]}, "links[0]", "3 is not a table"),
        ({"generate": {"kind": "star", "hosts": 4}, "subnet": "10.0.0.0/30"}, "subnet", "no room for 4 hosts"),
        (
            {"generate": {"kind": "star"}, "hosts": [{"name": "x", "mac": "02:00:0a:00:00:01"}]},
            "hosts[0].mac",
            "generate (hosts[0])",
        ),
        ({"generate": {"kind": "star"}, "override": {}}, "override", "{} is not a list"),
        ({"generate": {"kind": "star"}, "override": [3]}, "override[0]", "3 is not a table"),
        ({"generate": {"kind": "star"}, "override": [{"a": "h0", "b": "h1"}]}, "override[0]", "no link joins h0 and h1"),
        ({"generate": {"kind": "star"}, "override": [{"a": "h0"}]}, "override[0].b", "missing"),
        ({"generate": {"kind": "star"}, "override": [{"a": 0, "b": "h1"}]}, "override[0].a", "0 is not a string"),
        (
            {"generate": {"kind": "star"}, "override": [{"a": "h0", "b": "s0", "rat": "1 Gbit/s"}]},
            "override[0].rat",
            "unknown key (did you mean 'rate'?)",
        ),
        ({"generate": {"kind": "star"}, "override": [{"a": "h0", "b": "s0", "rate": 1}]}, "override[0].rate", "1 has no unit"),
        ({"generate": {"kind": "star"}, "link_defaults": {"rate": 1}}, "link_defaults.rate", "1 has no unit"),
        ({"generate": {"kind": "star"}, "link_defaults": {"a": "h0"}}, "link_defaults.a", "unknown key"),
        ({"generate": {"kind": "star"}, "link_defaults": 3}, "link_defaults", "3 is not a table"),
        ({}, "hosts", "missing"),
        ([], "(top level)", "[] is not a table"),
        ({3: 4}, "3", "unknown key"),
    ],
)
def test_mistakes_in_shorthands_are_named(mapping, key, problem):
    with pytest.raises(ConfigError) as caught:
        Topology.from_dict(mapping, "net.toml")
    error = caught.value
    assert (error.source, error.key) == ("net.toml", key)
    assert problem in error.problem and error.accepted


def test_samples_are_valid(project):
    files = sorted((project / "topologies").glob("*.toml"))
    assert len(files) >= 10
    for file in files:
        topology = Topology.from_toml(file)
        assert topology.name == file.stem
        assert Topology.from_dict(tomllib.loads(topology.to_toml())) == topology


def test_a_written_file_is_short():
    lines = Star(hosts=8).build().to_toml().splitlines()
    assert sum("h3" in line for line in lines) == 2
    assert len(lines) < 32


WORDS = st.sampled_from(
    ["a", "s", "h0", "s0", "auto", "star", "leaf-spine", "1 Gbit/s", "1 us", "9 packets", "10.0.0.1", "10.0.0.0/24", "", "x" * 40]
)
SCALARS = st.one_of(
    WORDS, st.integers(-2, 5), st.just(10**30), st.floats(), st.booleans(), st.text(max_size=3), st.none(), st.dates()
)
NAMES = {field.name for cls in (Topology, Host, Switch, Link, *SHAPES.values()) for field in dataclasses.fields(cls)}
OTHERS = {"generate", "kind", "link_defaults", "override", "rate_mbps", "delay_us", "buffer_kib", "unknown"}
KEYS = st.sampled_from(sorted(NAMES | OTHERS))
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)), max_leaves=12
)
TABLES = st.dictionaries(KEYS, VALUES, max_size=5)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "hosts": st.one_of(VALUES, st.lists(TABLES | st.sampled_from(HOSTS), max_size=3)),
            "switches": st.one_of(VALUES, st.just(SWITCHES)),
            "links": st.one_of(VALUES, st.lists(TABLES | st.sampled_from(LINKS), max_size=3)),
            "generate": st.one_of(VALUES, st.builds(lambda table: {**table, "kind": "star"}, TABLES)),
            "link_defaults": TABLES,
            "override": st.lists(st.builds(lambda table: {**table, "a": "h0", "b": "s0"}, TABLES), max_size=2),
            "name": SCALARS,
            "subnet": SCALARS,
        },
    )
)
@settings(max_examples=100)
def test_whatever_a_file_says_it_is_read_or_refused_by_key(mapping):
    try:
        topology = Topology.from_dict(mapping, "net.toml")
    except ConfigError as error:
        assert error.source == "net.toml" and error.key and error.accepted
    else:
        assert Topology.from_dict(topology.to_dict()) == topology
