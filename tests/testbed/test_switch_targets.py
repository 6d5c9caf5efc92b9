"""The four kinds of switches behind one interface: each carries, shapes, can be changed, and says what it has counted."""

import json
import re
import shutil
import signal
import subprocess
import time

import pytest

from dlcp.policy import Policy, Switches
from dlcp.topology import LeafSpine, Star, Topology
from dlcp.units import Delay
from testbed.events import Events
from testbed.experiment import Event
from testbed.lab.errors import LabError
from testbed.lab.network import Lab
from testbed.lab.processes import Process
from testbed.switches.kernel import forwarding

KINDS = [
    "softswitch",
    pytest.param("bmv2", marks=pytest.mark.skipif(shutil.which("simple_switch_grpc") is None, reason="no simple_switch_grpc")),
    "kernel",
    "bridge",
]
root = pytest.mark.root
pytestmark = pytest.mark.timeout(120)

# Sends datagrams with a ToS byte, as fast as the host lets them out.
BURST = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, int(sys.argv[2]))
for _ in range(int(sys.argv[3])):
    s.sendto(bytes(1400), (sys.argv[1], 9753))
"""


def star(hosts=2, **how):
    return Star(hosts=hosts, **{"rate": "20 Mbit/s", **how}).build()


def ping(lab, source, target, *words):
    command = ["ping", "-q", *words, lab.topology.addresses[target]]
    process = lab.popen(source, command, stdout=subprocess.PIPE, text=True)
    said, _ = process.communicate(timeout=30)
    lost = float(re.search(r"([\d.]+)% packet loss", said)[1])
    times = re.search(r"= ([\d.]+)/", said)
    return lost, float(times[1]) if times else None


def reaches(lab, source, target):
    return ping(lab, source, target, "-c", "1", "-W", "0.4")[0] == 0


def until(true, seconds=10):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came true"


@root
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_carries_delays_loses_and_counts(kind, tmp_path, nothing_left):
    topology = star(delay="2 ms", buffer="30 packets")
    with Lab(topology, target=kind, run_dir=tmp_path / "run", lossy=[("h0", "s0"), ("h1", "s0")], seed=3) as lab:
        nothing_left(lab)
        lost, fastest = ping(lab, "h0", "h1", "-c", "10", "-i", "0.02")
        # ping waits for the last answers twice as long as for others: on a busy machine they count as lost.
        assert lost <= 30 and fastest >= 8, "twice two links of 2 ms"
        lab.link_loss("h0", "s0", 0.5)
        lost, _ = ping(lab, "h0", "h1", "-c", "60", "-i", "0.01")
        assert 45 < lost < 98, "half of them each way"
        lab.link_loss("s0", "h0", 0.0)
        assert ping(lab, "h0", "h1", "-c", "10", "-i", "0.02")[0] <= 30
        lab.link_down("h1", "s0")
        until(lambda: "NO-CARRIER" in lab.run("h1", ["ip", "link"]))
        assert not reaches(lab, "h0", "h1")
        lab.link_up("h1", "s0")
        until(lambda: reaches(lab, "h0", "h1"))
        counted = lab.statistics()
        ports = counted["switches"]["s0"]["ports"]
        assert ports["1"]["out_packets"] > 20 and ports["2"]["out_packets"] > 20
        assert len(ports["1"]["queues"]) == (1 if kind in ("bridge", "bmv2") else 8)
        if kind in ("softswitch", "bmv2"):
            forwarded = counted["switches"]["s0"]["program"]["forwarded"]
            assert sum(forwarded["ordinary"]["packets"]) > 40
        json.dumps(counted)
        assert counted["backlog_drops"] >= 0
        if kind != "softswitch":
            assert set(counted["wires"]) == {f"{link.a} - {link.b}" for link in topology.links}
            assert all(end["packets"] > 20 for wire in counted["wires"].values() for end in wire.values())
            assert counted["wires"][f"{topology.links[0].a} - {topology.links[0].b}"]["from_a"]["drops"]["link-loss"] > 5
        traces = lab.trace_files
        assert bool(traces) == (kind == "softswitch")
    for trace in traces:
        assert (trace.switch, trace.ports) == ("s0", {"1": "h0", "2": "h1"}) and trace.path in lab.traces
        lines = [json.loads(line) for line in trace.path.read_text().splitlines()]
        assert len(lines) > 20 and {"1", "2"} <= set(lines[-1]["ports"])
        assert abs(trace.started_s + lines[-1]["t_us"] / 1e6 - time.monotonic()) < 20


@root
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "kernel"])
def test_rates_can_be_changed(kind, tmp_path, nothing_left):
    def seconds(lab, count=30):
        before = lab.statistics()["switches"]["s0"]["ports"]["2"]["out_packets"]
        begin = time.monotonic()
        lab.run("h0", [shutil.which("python3"), "-c", BURST, lab.topology.addresses["h1"], "0", str(count)])
        until(lambda: lab.statistics()["switches"]["s0"]["ports"]["2"]["out_packets"] >= before + count)
        return time.monotonic() - begin

    # The machine may be busy: slower is no mistake, faster would be.
    shortest = 8 * 1442 * 27 / 1_000_000
    with Lab(star(), target=kind, run_dir=tmp_path / "run") as lab:
        nothing_left(lab)
        seconds(lab)
        lab.link_rate("s0", "h1", 1_000_000)
        assert seconds(lab) >= shortest
        shown = lab.run("h1", ["tc", "class", "show", "dev", "eth0"])
        assert "rate 1Mbit" in shown
        lab.link_rate("s0", "h1")
        assert "rate 20Mbit" in lab.run("h1", ["tc", "class", "show", "dev", "eth0"])
        with pytest.raises(LabError, match="no link joins h0 and h1"):
            lab.link_rate("h0", "h1")


@root
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("kernel", "bridge")])
def test_a_switch_that_restarts_has_its_program_and_entries_again(kind, tmp_path, nothing_left):
    with Lab(star(), target=kind, run_dir=tmp_path / "run") as lab:
        nothing_left(lab)
        running = {process.pid for process in lab.ledger.running()}
        lab.restart_switch("s0")
        until(lambda: reaches(lab, "h0", "h1"))
        assert {process.pid for process in lab.ledger.running()} != running
        lab.check()
        if kind == "softswitch":
            lab.link_loss("h0", "s0", 1.0)
            lab.restart_switch("s0")
            assert not reaches(lab, "h0", "h1"), "what events changed stays in force"
            assert len(lab.traces) == 3 and len({trace.started_s for trace in lab.trace_files}) == 3
        with pytest.raises(LabError, match="no switch 'nobody'"):
            lab.restart_switch("nobody")


@root
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("kernel", "bridge")])
def test_a_restart_in_between_is_no_failure(kind, tmp_path, nothing_left):
    """As an experiment does it: events in a thread, while the driver looks after the switches and reads them."""
    event = Event(at=Delay.parse("10 ms"), kind="switch-restart", switch="s0")
    with Lab(star(), target=kind, run_dir=tmp_path / "run") as lab, Events(lab, [event, event], print) as events:
        nothing_left(lab)
        events.begin()
        deadline = time.monotonic() + 60
        while len(events.happened) < 2 and time.monotonic() < deadline:
            lab.check()
            time.sleep(0.001)
        assert [each.error for each in events.stop()] == ["", ""]
        until(lambda: reaches(lab, "h0", "h1"))
        assert sum(lab.statistics()["switches"]["s0"]["program"]["forwarded"]["ordinary"]["packets"]) > 0


@root
def test_what_a_kind_cannot_do_it_says(tmp_path, nothing_left):
    with Lab(star(), target="kernel", run_dir=tmp_path / "run") as lab:
        nothing_left(lab)
        with pytest.raises(LabError, match="rate of a kernel switch cannot be changed"):
            lab.link_rate("h0", "s0", 1_000_000)
        with pytest.raises(LabError, match="cannot be restarted"):
            lab.restart_switch("s0")
        with pytest.raises(LabError, match=r"name the link in Lab\(lossy=...\)"):
            lab.link_loss("h0", "s0", 0.1)
        with pytest.raises(LabError, match="no link joins h0 and x"):
            lab.link_down("h0", "x")
        lab.link_down("h0", "s0")
        assert not reaches(lab, "h0", "h1")
        lab.link_up("h0", "s0")
        until(lambda: reaches(lab, "h0", "h1"))


@root
def test_a_switch_that_dies_is_noticed(tmp_path, nothing_left):
    with Lab(star(), target="softswitch", run_dir=tmp_path / "run") as lab:
        nothing_left(lab)
        pid = lab.switches._nursery.pids["s0"]
        Process.of(pid).signal(signal.SIGKILL)
        until(lambda: Process.of(pid) is None)

        def noticed():
            try:
                lab.check()
            except LabError as error:
                return "s0 has ended with code -9" in str(error)
            return False

        until(noticed)


@root
@pytest.mark.parametrize("kind", ["softswitch", "kernel"])
def test_queues_and_classes_are_those_of_the_policy(kind, tmp_path, nothing_left):
    """Bursts into a port ten times as slow: first protected packets of class 3, then droppable ones of the same class."""
    policy = Policy(switch=Switches(mark_share=0.2, drop_share=0.4, trust_dscp=True))
    links = [{"a": f"h{n}", "b": "s0", "rate": rate, "buffer": "40 packets"} for n, rate in enumerate(["20 Mbit/s", "2 Mbit/s"])]
    topology = Topology.from_dict({"hosts": [{"name": "h0"}, {"name": "h1"}], "switches": [{"name": "s0"}], "links": links})
    with Lab(topology, target=kind, policy=policy, run_dir=tmp_path / "run") as lab:
        nothing_left(lab)
        for protected, count in ((True, 30), (False, 100)):
            words = [shutil.which("python3"), "-c", BURST, topology.addresses["h1"], str(policy.tos(3, protected)), str(count)]
            lab.run("h0", words)
        until(lambda: lab.statistics()["hosts"]["h0"]["eth0"]["qlen"] == 0)
        port = lab.statistics()["switches"]["s0"]["ports"]["2"]
    if kind == "kernel":
        assert port["classes"][3]["marked"] > 0 and port["classes"][3]["dropped"] > 30
        assert port["classes"][3]["packets"] >= 30, "protected ones are not dropped"
    else:
        # They are no packets of DLCP, so they only get the queue of their class.
        assert port["queues"][3]["high_water"] == 40 and port["drops"]["queue-full"] > 30
        assert [queue["enqueued"] for queue in port["queues"]][1:3] == [0, 0]


@root
def test_many_wires_share_several_processes(tmp_path, nothing_left):
    topology = LeafSpine(leaves=2, spines=2, hosts_per_leaf=3, rate="10 Mbit/s", delay="1 ms").build()
    with Lab(topology, target="bridge", run_dir=tmp_path / "run") as lab:
        nothing_left(lab)
        assert len(lab.plan.wires) == 10 and len(lab.hosts) == 6
        last = topology.links[-1]
        before = lab.statistics()["wires"][f"{last.a} - {last.b}"]
        for link in topology.links:
            if "spine" in link.a + link.b:
                lab.link_loss(link.a, link.b, 1.0)
        assert not reaches(lab, "h0", "h5") and reaches(lab, "h0", "h1")
        for link in topology.links:
            lab.link_loss(link.a, link.b, 0.0)
        assert ping(lab, "h0", "h5", "-c", "5", "-i", "0.02")[1] >= 8, "four links there and back"
        counted = lab.statistics()["wires"]
        assert len(counted) == 10 and counted[f"{last.a} - {last.b}"].keys() == before.keys() == {"from_a", "from_b"}
        lab.check()
        name, pid = next((name, pid) for name, pid in lab._relays._nursery.pids.items())
        Process.of(pid).signal(signal.SIGKILL)

        def noticed():
            try:
                lab.check()
            except LabError as error:
                return "wires has ended with code -9" in str(error)
            return False

        until(noticed)
        assert name == ".wires0"


def test_bridges_know_one_way_to_every_host_and_spread_hosts_over_equal_ones():
    topology = LeafSpine(leaves=2, spines=4, hosts_per_leaf=16, rate="10 Mbit/s").build()
    used = set()
    for switch in topology.switches:
        lines = forwarding(topology, switch.name)
        table = dict(
            re.fullmatch(r"fdb replace (\S+) dev eth(\d+) master static", line).groups() for line in lines if "fdb" in line
        )
        assert set(table) == set(topology.macs.values())
        for host, mac in topology.macs.items():
            assert int(table[mac]) in topology.routes.next_ports(switch.name, host)
        assert sum("learning off flood off" in line for line in lines) == len(topology.graph.leaving(switch.name))
        if switch.name == "leaf0":
            used = {port for mac, port in table.items() if mac in {topology.macs[f"h{n}"] for n in range(16, 32)}}
    assert len(used) == 4, "all spines are used"
