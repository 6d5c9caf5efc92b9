"""What every switch should hold: hosts reachable along the routes, groups of exactly the next hops, floods along a tree."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dlcp.errors import ConfigError
from dlcp.fabric.entities import Action, Default, Entry, MulticastGroup, mac_number
from dlcp.fabric.forwarding import FLOOD_GROUP, GROUPS, number_groups
from dlcp.fabric.intent import DRAINED_GROUP, Intent, both_ends, drained_ports, link_of
from dlcp.fabric.treatment import NEVER
from dlcp.policy import Classes, Policy, Switches
from dlcp.topology import LeafSpine, Routes, Star, Topology
from dlcp.units import Buffer
from tests.topology.networks import networks


def table(entities, name):
    return {entry.match: entry.action for entry in entities if isinstance(entry, Entry) and entry.table == name}


def ports_towards(topology, entities, host):
    """The ports out of which a switch with these entities sends what is for a host."""
    action = table(entities, "bridge").get((("dst_addr", mac_number(topology.macs[host])),))
    if action is None:
        return None
    arguments = dict(action.arguments)
    if action.name == "to_port":
        return (arguments["port"],)
    assert action.name == "to_group"
    members = table(entities, "paths")[(("group", arguments["group"]),)]
    assert all(dict(path.action.arguments)["port"] == path.watch_port and path.weight == 1 for path in members)
    return tuple(path.watch_port for path in members)


def test_one_path_of_each_group_is_unwatched_on_bmv2():
    """BMv2 1.15 dies where all paths of a group watch ports that are down."""
    contents = LeafSpine(leaves=2, spines=3, hosts_per_leaf=1).build().to_dict()
    contents["switches"][0]["target"] = "bmv2"
    topology = Topology.from_dict(contents)
    intent = Intent(topology, Policy())
    for switch in topology.switches[:2]:  # the leaves; spines have one way to each host
        groups = table(intent.entities(switch.name), "paths").values()
        unwatched = [sum(path.watch_port == 0 for path in paths) for paths in groups]
        assert unwatched == [1 if switch.target == "bmv2" else 0]


@given(networks())
@settings(max_examples=60)
def test_every_host_is_reached_from_every_switch_over_exactly_the_next_hops(topology):
    intent = Intent(topology, Policy())
    held = {switch.name: intent.entities(switch.name) for switch in topology.switches}
    for switch, entities in held.items():
        assert len({entity.key for entity in entities}) == len(entities)
        for host in topology.hosts:
            ports = ports_towards(topology, entities, host.name)
            assert ports == topology.routes.next_ports(switch, host.name)
            assert ports, "a topology is connected"
            # Whatever path is chosen at every switch, the packet arrives, and never comes by the same switch twice.
            front, met = [switch], set()
            while front:
                node = front.pop()
                if node == host.name or node in met:
                    continue
                met.add(node)
                assert node in held, "hosts do not forward"
                for port in ports_towards(topology, held[node], host.name):
                    following = topology.graph.arc(node, port)
                    here, there = (topology.routes.distance(end, host.name) for end in (node, following.target))
                    assert there < here
                    front.append(following.target)


@given(networks(), st.data())
@settings(max_examples=60)
def test_floods_reach_everything_once(topology, data):
    down = data.draw(st.sets(st.integers(0, len(topology.links) - 1), max_size=2))
    ends = {(arc.source, arc.port) for arc in topology.graph.arcs if arc.link in down and not topology.graph.is_host(arc.source)}
    assume({topology.graph.arc(*end).link for end in ends} == down)
    intent = Intent(topology, Policy(), ends)
    groups = {
        switch.name: next((e.ports for e in intent.entities(switch.name) if e.key == ("multicast", FLOOD_GROUP)), ())
        for switch in topology.switches
    }
    for start in groups:
        got, front = [start], [(start, None)]
        while front:
            node, came = front.pop()
            for port in groups[node]:
                arc = topology.graph.arc(node, port)
                if port == came:
                    continue
                got.append(arc.target)
                assert len(got) <= len(topology.hosts) + len(groups), "a loop"
                if not topology.graph.is_host(arc.target):
                    front.append((arc.target, arc.target_port))
        assert len(set(got)) == len(got), "something came twice"
        reached = {host.name for host in topology.hosts if intent.routes.next_hops(start, host.name)}
        assert reached <= set(got)


def test_floods_end_with_default_and_group():
    topology = Star(hosts=3).build()
    entities = Intent(topology, Policy()).entities("s0")
    assert MulticastGroup(FLOOD_GROUP, (1, 2, 3)) in entities
    assert Default("bridge", Action.of("flood", group=FLOOD_GROUP)) in entities


@given(
    st.sets(
        st.lists(st.integers(1, 510), min_size=2, max_size=4, unique=True).map(lambda ports: tuple(sorted(ports))), max_size=40
    )
)
def test_groups_have_numbers_of_their_own_that_rarely_depend_on_others(sets):
    numbers = number_groups(sets, "s0")
    assert set(numbers) == sets
    assert len(set(numbers.values())) == len(sets) and all(1 <= number < GROUPS for number in numbers.values())
    assert number_groups(sorted(sets, reverse=True), "s0") == numbers


def test_too_many_groups_are_refused():
    sets = {(first, second) for first in range(1, 40) for second in range(first + 1, 70)}
    with pytest.raises(ConfigError, match="at most 1023"):
        number_groups(sets, "s0")


def test_a_group_keeps_its_number_when_others_go():
    sets = {(1, 2), (1, 3), (2, 3), (1, 2, 3)}
    before = number_groups(sets, "s0")
    after = number_groups(sets - {(1, 3)}, "s0")
    assert all(before[ports] == number for ports, number in after.items())


@pytest.mark.parametrize(
    ("rules", "queue", "protected", "expected"),
    [
        (Switches(overload="drop", drop_share=0.5, mark_share=0.25), 3, 0, Action.of("drop_from", drop_at=50, mark_at=25)),
        (
            Switches(overload="trim", drop_share=0.5, mark_share=0.25),
            3,
            0,
            Action.of("trim_from", trim_at=50, mark_at=25, dscp=56),
        ),
        (Switches(overload="trim", drop_share=0.5, mark_share=0.25), 3, 1, Action.of("drop_from", drop_at=NEVER, mark_at=25)),
        (Switches(overload="trim", drop_share=0.5, mark_share=0.25), 7, 0, Action.of("drop_from", drop_at=NEVER, mark_at=25)),
        (Switches(overload="drop", drop_share=0, mark_share=1), 0, 0, Action.of("drop_from", drop_at=1, mark_at=NEVER)),
        (Switches(overload="drop", drop_share=1, mark_share=0), 0, 0, Action.of("drop_from", drop_at=NEVER, mark_at=1)),
    ],
)
def test_thresholds_are_shares_of_the_buffer(rules, queue, protected, expected):
    entities = Intent(Star(hosts=2, buffer=Buffer(100, "packets")).build(), Policy(switch=rules)).entities("s0")
    limits = table(entities, "limits")
    assert len(limits) == 16
    assert limits[("queue", queue), ("protected", protected)] == expected


def test_a_buffer_in_bytes_counts_packets_of_the_mtu():
    topology = Star(hosts=2, buffer=Buffer(15_140, "bytes"), mtu=1500).build()
    policy = Policy(switch=Switches(overload="drop", drop_share=0.5, mark_share=0.1))
    assert table(Intent(topology, policy).entities("s0"), "limits")[("queue", 0), ("protected", 0)] == Action.of(
        "drop_from", drop_at=5, mark_at=1
    )


def test_ports_that_differ_are_listed_beside_what_most_have_in_common():
    links = [{"a": f"h{i}", "b": "s0", "rate": "1 Gbit/s", "buffer": f"{200 if i == 2 else 100} packets"} for i in range(4)]
    hosts = [{"name": f"h{i}"} for i in range(4)]
    topology = Topology.from_dict({"hosts": hosts, "switches": [{"name": "s0"}], "links": links})
    policy = Policy(switch=Switches(overload="drop", drop_share=0.5, mark_share=0.5))
    entries = [e for e in Intent(topology, policy).entities("s0") if isinstance(e, Entry) and e.table == "limits"]
    general = [e for e in entries if e.match[0][0] == "queue"]
    own = [e for e in entries if e.match[0] == ("port", (3, 0x1FF))]
    assert len(general) == len(own) == 16 and len(entries) == 32
    assert min(e.priority for e in own) > max(e.priority for e in general) > 0
    assert dict(own[0].action.arguments)["drop_at"] == 100 and dict(general[0].action.arguments)["drop_at"] == 50


def test_too_many_different_buffers_are_refused():
    hosts = [{"name": f"h{i}"} for i in range(70)]
    links = [{"a": f"h{i}", "b": "s0", "rate": "1 Gbit/s", "buffer": f"{100 + 10 * i} packets"} for i in range(70)]
    topology = Topology.from_dict({"hosts": hosts, "switches": [{"name": "s0"}], "links": links})
    with pytest.raises(ConfigError, match="buffers of 70 sizes"):
        Intent(topology, Policy()).entities("s0")


def test_ports_that_the_program_cannot_name_are_refused():
    for port in (0, 511):
        hosts = [{"name": "a"}, {"name": "b"}]
        links = [{"a": "a", "b": "s0", "rate": "1 Gbit/s", "b_port": port}, {"a": "b", "b": "s0", "rate": "1 Gbit/s"}]
        topology = Topology.from_dict({"hosts": hosts, "switches": [{"name": "s0"}], "links": links})
        with pytest.raises(ConfigError, match=f"port {port} of s0"):
            Intent(topology, Policy()).entities("s0")


@pytest.mark.parametrize(("spray", "number"), [("hash", 0), ("round-robin", 1), ("random", 2)])
def test_classes_go_to_their_queues(spray, number):
    policy = Policy(switch=Switches(spray=spray, stamp_depth=False))
    classes = table(Intent(Star().build(), policy).entities("s0"), "dlcp_classes")
    assert classes == {(("class", c),): Action.of("treat", queue=c, spray=number, stamp=0) for c in range(8)}
    assert not table(Intent(Star().build(), policy).entities("s0"), "dscp_classes")


def test_dscp_is_believed_only_if_the_policy_says_so():
    policy = Policy(classes=Classes(dscp=(0, 0, 8, 8, 16, 24, 32, 40)), switch=Switches(trust_dscp=True))
    found = table(Intent(Star().build(), policy).entities("s0"), "dscp_classes")
    assert found == {
        (("dscp", dscp),): Action.of("assign", queue=queue)
        for dscp, queue in [(0, 1), (8, 3), (16, 4), (24, 5), (32, 6), (40, 7)]
    }


def test_isolation_is_between_hosts_and_switches_only():
    topology = LeafSpine(leaves=2, spines=2, hosts_per_leaf=2).build()
    for isolation, action in (("none", "permit"), ("demote", "demote"), ("refuse", "refuse")):
        intent = Intent(topology, Policy(switch=Switches(isolation=isolation)))
        assert Default("jobs", Action.of(action)) in intent.entities("leaf0")
        trunks = {match[0][1][0] for match in table(intent.entities("leaf0"), "jobs")}
        assert trunks == ({3, 4} if isolation != "none" else set())


@given(networks(), st.data())
@settings(max_examples=40)
def test_a_drained_port_is_no_member_of_anything(topology, data):
    switch = data.draw(st.sampled_from([switch.name for switch in topology.switches]))
    arcs = topology.graph.leaving(switch)
    assume(arcs)
    port = data.draw(st.sampled_from([arc.port for arc in arcs]))
    ends = both_ends(topology, switch, port)
    assert (switch, port) in ends
    intent = Intent(topology, Policy(), ends)
    down = Routes(topology, down=[link_of(topology, switch, port)])
    for name, own in ends:
        entities = intent.entities(name)
        assert drained_ports(name, entities) == {(name, own)} | {end for end in ends if end[0] == name}
        for entity in entities:
            if isinstance(entity, MulticastGroup) and entity.id == FLOOD_GROUP:
                assert own not in entity.ports
            if isinstance(entity, Entry) and entity.table == "paths":
                assert own not in {path.watch_port for path in entity.action}
            if isinstance(entity, Entry) and entity.table == "bridge" and entity.action.name == "to_port":
                assert dict(entity.action.arguments)["port"] != own
    for each in topology.switches:
        for host in topology.hosts:
            found = ports_towards(topology, intent.entities(each.name), host.name)
            assert (found or ()) == down.next_ports(each.name, host.name)
    assert {(s, h) for s, h in intent.cut_off()} == {
        (s.name, h.name) for s in topology.switches for h in topology.hosts if not down.next_hops(s.name, h.name)
    }
    # Nothing remains of it once it is back.
    assert Intent(topology, Policy()).entities(switch) == Intent(topology, Policy(), set()).entities(switch)


def test_draining_twice_and_unknown_ports():
    topology = LeafSpine(leaves=2, spines=2).build()
    assert both_ends(topology, "leaf0", 5) == {("leaf0", 5), ("spine0", 1)}
    assert both_ends(topology, "leaf0", 1) == {("leaf0", 1)}
    assert DRAINED_GROUP != FLOOD_GROUP
    with pytest.raises(ConfigError, match="has no port 99"):
        both_ends(topology, "leaf0", 99)
    with pytest.raises(ConfigError, match="no switch 'leaf9'"):
        Intent(topology, Policy(), {("leaf9", 1)})
