"""Cross traffic for real: flows between hosts of a small network."""

import json
import shutil
import time

import pytest

from dlcp.topology import Star
from dlcp.units import Delay, Rate
from testbed.experiment import Traffic
from testbed.lab.errors import LabError
from testbed.lab.network import Lab
from testbed.lab.processes import Process
from testbed.traffic.cross import CrossTraffic

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Three hosts at a bridge."""
    topology = Star(hosts=3, rate="20 Mbit/s", buffer="50 packets").build()
    with Lab(topology, target="bridge", run_dir=tmp_path_factory.mktemp("run")) as lab:
        yield lab


def traffic(name, kind, source, sink, **how):
    return Traffic(name=name, kind=kind, sources=(source,), sinks=(sink,), **how)


def until(true, seconds=20):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def bytes_so_far(folder, host, key):
    file = folder / f"{host}.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return max((json.loads(line).get(key, 0) for line in lines if line.endswith("}")), default=0)


TOOLS = ["sockets", pytest.param("iperf3", marks=pytest.mark.skipif(shutil.which("iperf3") is None, reason="no iperf3"))]


@pytest.mark.parametrize("tool", TOOLS)
def test_every_kind_of_flow_sends_and_is_counted(tool, lab, tmp_path):
    items = [
        traffic("bulk", "tcp", "h1", "h0", dscp=8),
        traffic("steady", "tcp", "h2", "h1", rate=Rate(2_000_000), congestion="reno"),
        traffic("constant", "udp", "h1", "h2", rate=Rate(2_000_000)),
        traffic("bursts", "on-off", "h0", "h2", rate=Rate(5_000_000), on=Delay.parse("20 ms"), off=Delay.parse("20 ms"), flows=2),
        traffic("incast", "incast", "h2", "h0", burst_packets=5, off=Delay.parse("50 ms")),
    ]
    folder = tmp_path / "traffic"
    with CrossTraffic(lab, items, folder, seed=5, tool=tool) as cross:
        assert cross.tcp_tool == tool
        cross.begin()
        # Long enough for iperf3, which takes its time to start on a busy machine.
        until(lambda: bytes_so_far(folder, "h2", "constant.0 sink") > 400_000)
        cross.check()
        results = {result.flow.id: result for result in cross.stop()}
        assert cross.stop() == []
    assert list(results) == ["bulk.0", "steady.0", "constant.0", "bursts.0", "bursts.1", "incast.0"]
    assert not [error for result in results.values() for error in result.errors]
    for name, result in results.items():
        assert result.sent["bytes"] > 10_000, name
        assert result.tool == (tool if result.flow.kind == "tcp" else "sockets")
        assert 0 < result.received["bytes"] <= result.sent["bytes"]
        json.dumps(result.to_dict())
    assert {"retransmits", "rtt_us"} <= set(results["bulk.0"].sent)
    constant = results["constant.0"]
    assert constant.received["packets"] * 1472 == constant.received["bytes"]
    assert constant.received["longest_delay_ns"] >= constant.received["delay_ns"] / constant.received["packets"] > 0
    assert results["incast.0"].sent["packets"] % 5 == 0
    samples = [json.loads(line) for line in (folder / "h1.jsonl").read_text().splitlines()]
    own = [sample["bulk.0 source"] for sample in sorted(samples, key=lambda each: each["t_us"]) if "bulk.0 source" in sample]
    assert len(own) >= 3 and own == sorted(own)


def test_flows_keep_their_times(lab, tmp_path):
    items = [
        traffic("early", "udp", "h0", "h1", rate=Rate(1_000_000), stop=Delay.parse("100 ms")),
        traffic("stopped", "tcp", "h1", "h0", stop=Delay.parse("100 ms")),
        traffic("late", "udp", "h0", "h2", rate=Rate(1_000_000), start=Delay.parse("3000 s")),
        traffic("later", "tcp", "h0", "h2", start=Delay.parse("3000 s")),
    ]
    with CrossTraffic(lab, items, tmp_path / "traffic", tool="sockets") as cross:
        cross.begin(time.monotonic_ns() + 50_000_000)
        until(lambda: bytes_so_far(tmp_path / "traffic", "h1", "stopped.0 source") > 0)
        time.sleep(0.3)
        early, stopped, late, later = cross.stop()
    # 12.5 kB in 100 ms, and the first one at once.
    assert 0 < early.sent["packets"] <= 10
    assert 0 < stopped.received["bytes"] == stopped.sent["bytes"], "what was sent by then is received"
    assert late.sent["packets"] == late.received["packets"] == later.sent["bytes"] == 0
    assert not early.errors and not later.errors


def test_a_link_that_fails_does_not_end_a_constant_rate(lab, tmp_path):
    folder = tmp_path / "traffic"
    with CrossTraffic(lab, [traffic("constant", "udp", "h0", "h1", rate=Rate(1_000_000))], folder) as cross:
        cross.begin()
        until(lambda: bytes_so_far(folder, "h1", "constant.0 sink") > 0)
        lab.link_down("h1", "s0")
        time.sleep(0.3)
        lab.link_up("h1", "s0")
        before = bytes_so_far(folder, "h1", "constant.0 sink")
        until(lambda: bytes_so_far(folder, "h1", "constant.0 sink") > before + 20_000)
        (result,) = cross.stop()
    assert result.received["lost"] > 5


def test_what_goes_wrong_is_said(lab, tmp_path):
    with pytest.raises(LabError, match=r"cross traffic in h0 has ended: .*no-such-thing|cross traffic in h0 has ended: "):
        with CrossTraffic(lab, [traffic("bulk", "tcp", "h0", "h1", congestion="dctcp")], tmp_path / "a", tool="sockets") as cross:
            # Whether the kernel has dctcp or not, an agent that is gone is noticed.
            agent = cross._agents["h0"]
            Process.of(agent.pid).signal(9)
            agent.wait()
            cross.check()
    with pytest.raises(ValueError, match="auto, sockets, iperf3"):
        CrossTraffic(lab, [], tmp_path / "b", tool="netcat")


def test_without_iperf3_sockets_carry_tcp(lab, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert CrossTraffic(lab, [], tmp_path / "a").tcp_tool == "sockets"
    with pytest.raises(LabError, match="iperf3 is missing"):
        CrossTraffic(lab, [], tmp_path / "a", tool="iperf3")


def test_agents_end_with_their_driver(lab, tmp_path):
    with CrossTraffic(lab, [traffic("bulk", "tcp", "h0", "h1")], tmp_path / "traffic", tool="sockets") as cross:
        cross.begin()
        agents = [Process.of(agent.pid) for agent in cross._agents.values()]
        assert all(agent.alive for agent in agents)
    assert not any(agent.alive for agent in agents)
