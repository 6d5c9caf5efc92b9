"""What is built for a topology, and what is refused before anything is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcp.errors import ConfigError
from dlcp.policy import Classes, Policy
from dlcp.topology import LeafSpine, Star, Topology
from testbed.lab.plan import WIRES, check, make_plan

STAR = {"hosts": [{"name": "a"}, {"name": "b"}], "switches": [{"name": "s"}]}


def star(**link):
    links = [{"a": "a", "b": "s", "rate": "10 Mbit/s", **link}, {"a": "s", "b": "b", "rate": "20 Mbit/s"}]
    return Topology.from_dict({**STAR, "links": links})


@given(delay=st.integers(0, 5000), loss=st.sampled_from([0.0, 0.01, 0.5]), buffer=st.integers(1, 500))
def test_switches_that_delay_do_so_for_both_ways_of_a_hosts_link(delay, loss, buffer):
    plan = make_plan(star(delay=f"{delay} us", loss=loss, buffer=f"{buffer} packets"), switches_delay=True)
    assert not plan.wires and len(plan.pairs) == 2
    to_a, to_b = plan.ports["s"]
    assert (to_a.peer, to_a.delay_ns, to_a.loss, to_a.loss_in) == ("a", 2000 * delay, loss, loss)
    assert to_a.queue_packets == buffer
    assert (to_b.peer, to_b.delay_ns, to_b.loss, to_b.loss_in) == ("b", 0, 0.0, 0.0)
    assert (to_a.rate_bps, to_b.rate_bps) == (10_000_000, 20_000_000)


@given(delay=st.integers(0, 5000), loss=st.sampled_from([0.0, 0.01]), changing=st.booleans())
def test_other_switches_get_a_wire_where_there_is_a_delay_or_loss(delay, loss, changing):
    lossy = [("s", "b")] if changing else []
    plan = make_plan(star(delay=f"{delay} us", loss=loss), switches_delay=False, lossy=lossy)
    wanted = ([0] if delay >= 100 or loss else []) + ([1] if changing else [])
    assert [wire.link for wire in plan.wires] == wanted
    for wire in plan.wires:
        assert (wire.delay_ns, wire.loss) == ((1000 * delay, loss) if wire.link == 0 else (0, 0.0))
        assert plan.wire(wire.link) is wire
    assert len(plan.pairs) == 2 + len(wanted)
    names = [(end.node, end.interface) for a, b, _ in plan.pairs for end in (a, b)]
    assert len(set(names)) == len(names)
    assert sum(node == WIRES for node, _ in names) == 2 * len(wanted)
    assert all(port.delay_ns == 0 and port.loss == 0 and port.loss_in == 0 for port in plan.ports["s"])


def test_links_between_switches_delay_each_way_for_itself():
    topology = LeafSpine(leaves=2, spines=1, hosts_per_leaf=1, rate="10 Mbit/s", delay="3 ms").build()
    plan = make_plan(topology, switches_delay=True)
    for ports in plan.ports.values():
        for port in ports:
            to_host = topology.graph.is_host(port.peer)
            assert port.delay_ns == (6_000_000 if to_host else 3_000_000)
            assert port.loss_in == 0


def test_hosts_that_are_joined_directly_get_a_wire():
    link = {"a": "a", "b": "b", "rate": "1 Mbit/s", "delay": "1 ms"}
    topology = Topology.from_dict({"hosts": STAR["hosts"], "links": [link]})
    assert [wire.delay_ns for wire in make_plan(topology, switches_delay=True).wires] == [1_000_000]


@pytest.mark.parametrize(
    ("topology", "target", "key", "words"),
    [
        (star(rate="20 Gbit/s"), "softswitch", r"links\[0\]\.rate", "20 Gbit/s.*8 kbit/s to 10 Gbit/s"),
        (star(rate="1 kbit/s"), "bridge", r"links\[0\]\.rate", "1 kbit/s"),
        (star(delay="20 s"), "softswitch", r"links\[0\]\.delay", "20 s.*at most 10 s"),
        (Star(hosts=300).build(), "bridge", "hosts", "300 hosts.*at most 256"),
        (
            Topology.from_dict({**star().to_dict(), "switches": [{"name": "s", "target": "linux"}]}),
            "softswitch",
            r"switches\[0\]\.target",
            "'linux'.*'softswitch'",
        ),
        (
            Topology.from_dict({**star().to_dict(), "switches": [{"name": "s", "target": "p4runtime"}]}),
            "bmv2",
            r"switches\[0\]\.target",
            "p4runtime",
        ),
    ],
)
def test_what_cannot_be_emulated_is_refused_by_key(topology, target, key, words):
    with pytest.raises(ConfigError, match=f"{key}.*{words}") as caught:
        check(topology, Policy(), target)
    assert caught.value.source == f"topology {topology.name}"


def test_a_policy_that_the_kernel_cannot_carry_out_is_refused_for_it_only():
    policy = Policy(classes=Classes(ecn_droppable="ect1"))
    check(star(), policy, "bridge")
    check(star(), policy, "softswitch")
    with pytest.raises(ConfigError, match="ecn_droppable"):
        check(star(), policy, "kernel")
