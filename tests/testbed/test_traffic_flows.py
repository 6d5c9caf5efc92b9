"""Flows and when they send: what an experiment's traffic comes to."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcp.topology import Star, Topology
from dlcp.units import Delay, Rate
from testbed.experiment import Traffic
from testbed.traffic.flows import flows_of
from testbed.traffic.iperf import client_command, server_command, summary
from testbed.traffic.pacing import FRAME_OVERHEAD, Pacer

MS = 1_000_000
TOPOLOGY = Star(hosts=4, rate=Rate.parse("50 Mbit/s")).build()


def traffic(kind="tcp", **how):
    return Traffic(name="some", kind=kind, **{"sources": ("h1", "h2"), "sinks": ("h0",), **how})


def pacer(**how):
    flow = {"kind": "udp", "on_ns": 0, "off_ns": 0, "phase_ns": 0, "burst_packets": 1, "payload": 1458, "rate_bps": 12_000_000}
    return Pacer({**flow, **how})


def test_flows_go_round_sources_and_sinks():
    flows = flows_of([traffic(flows=5, sinks=("h0", "h3", "h0"))], TOPOLOGY, seed=1)
    assert [(flow.source, flow.sink) for flow in flows] == [("h1", "h0"), ("h2", "h3"), ("h1", "h0"), ("h2", "h0"), ("h1", "h3")]
    assert [flow.id for flow in flows] == [f"some.{number}" for number in range(5)]
    assert {flow.rate_bps for flow in flows} == {None} and {flow.payload for flow in flows} == {1472}
    json.dumps([flow.to_dict() for flow in flows])


def test_units_are_nanoseconds_and_bits():
    item = traffic(
        "on-off", rate=Rate(3_000_000), on=Delay.parse("20 ms"), off=Delay.parse("30 ms"), start=Delay.parse("1 s"), dscp=46
    )
    (flow,) = flows_of([item], TOPOLOGY, seed=1)
    assert (flow.rate_bps, flow.on_ns, flow.off_ns, flow.start_ns, flow.stop_ns) == (3_000_000, 20 * MS, 30 * MS, 1000 * MS, None)
    assert (flow.tos, flow.phase_ns) == (184, 0)


def test_bursts_do_not_coincide_and_a_seed_repeats_them():
    item = traffic("on-off", rate=Rate(3_000_000), flows=8)
    phases = [[flow.phase_ns for flow in flows_of([item], TOPOLOGY, seed)] for seed in (1, 1, 2)]
    assert phases[0] == phases[1] != phases[2]
    assert len(set(phases[0])) == 8 and all(0 <= phase < 100 * MS for phase in phases[0])


def test_datagrams_fit_the_smaller_of_both_links():
    links = [{"a": "a", "b": "s", "rate": "1 Mbit/s", "mtu": 9000}, {"a": "b", "b": "s", "rate": "1 Mbit/s", "mtu": 600}]
    topology = Topology.from_dict({"hosts": [{"name": "a"}, {"name": "b"}], "switches": [{"name": "s"}], "links": links})
    (flow,) = flows_of([traffic("udp", rate=Rate(9600), sources=("a",), sinks=("b",))], topology, seed=1)
    assert flow.payload == 572


@given(st.integers(8_000, 10**9), st.integers(64, 8000), st.lists(st.integers(0, 10**10), min_size=2, max_size=20))
def test_a_constant_rate_is_kept_to_a_packet(rate, payload, times):
    one = pacer(rate_bps=rate, payload=payload)
    counts = [one.owed(time) for time in sorted(times)]
    assert counts == sorted(counts)
    for time, count in zip(sorted(times), counts, strict=True):
        exact = time * rate / (8e9 * (payload + FRAME_OVERHEAD))
        assert exact - 1e-3 <= count <= exact + 1 + 1e-3
    assert one.owed(-1) == 0


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 599), st.integers(1, 20_000))
def test_bursts_send_while_they_last(on, off, phase, time):
    one = pacer(kind="on-off", on_ns=on * MS, off_ns=off * MS, phase_ns=phase % (on + off) * MS)
    active = sum((at + phase % (on + off)) % (on + off) < on for at in range(time))
    assert abs(one.owed(time * MS) - 1 - active) <= 1, "12 Mbit/s is a frame of 1500 bytes each millisecond"


@given(st.integers(1, 500), st.integers(1, 500), st.integers(0, 1000), st.integers(0, 10**9))
def test_waits_end_when_something_is_owed(on, off, phase, now):
    for one in (
        pacer(kind="on-off", on_ns=on * MS, off_ns=off * MS, phase_ns=phase * MS),
        pacer(kind="incast", off_ns=off * MS, burst_packets=3),
        pacer(),
    ):
        after = one.next(now)
        assert now < after, "time goes on"
        # Nothing that is owed between now and then is sent more than one packet's time late.
        assert one.owed(after - 1) - one.owed(now) <= (0 if one._kind == "incast" else 1)


def test_an_incast_answers_at_the_same_moments_in_all_hosts():
    one = pacer(kind="incast", off_ns=100 * MS, burst_packets=8, rate_bps=None)
    assert [one.owed(time * MS) for time in (0, 99, 100, 250)] == [8, 8, 16, 24]
    assert one.next(250 * MS) == 300 * MS
    assert pacer(kind="incast", off_ns=0, burst_packets=8).owed(10**12) == 8, "without a period it is once"


def test_iperf3_is_told_the_same():
    flow = {**flows_of([traffic(congestion="bbr", dscp=8, stop=Delay.parse("3 s"))], TOPOLOGY, 1)[0].to_dict()}
    command = " ".join(client_command(flow, "10.0.0.1", 5201, 0.1))
    assert "--client 10.0.0.1 --port 5201 --time 3 --interval 0.1 --congestion bbr --tos 32 --json" in command
    assert "--bitrate" not in command
    assert "--bitrate 5000" in " ".join(client_command({**flow, "rate_bps": 5000, "stop_ns": None}, "10.0.0.1", 5201, 0.1))
    assert "--server --one-off --bind 10.0.0.1 --port 7 " in " ".join(server_command("10.0.0.1", 7, 0.1))


@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        ({"error": "interrupt - the server has terminated"}, ({"bytes": 0, "retransmits": 0, "rtt_us": 0}, [], "")),
        ({"error": "unable to connect"}, ({"bytes": 0, "retransmits": 0, "rtt_us": 0}, [], "unable to connect")),
        (
            {
                "intervals": [
                    {"sum": {"end": 0.1, "bytes": 10, "retransmits": 1}, "streams": [{"rtt": 5}]},
                    {"sum": {"end": 0.2, "bytes": 20, "retransmits": 0}, "streams": [{"rtt": 7}]},
                ],
                "error": "interrupt - the client has terminated",
            },
            ({"bytes": 30, "retransmits": 1, "rtt_us": 7}, [(0.1, 10), (0.2, 30)], ""),
        ),
    ],
)
def test_what_iperf3_says_is_understood(document, wanted):
    assert summary(document) == wanted
