"""The exported script for Linux, run as on a switch: real packets through a bridge whose port is twice overloaded."""

import json
import os
import subprocess
import sys
import uuid

import pytest

from dlcp.errors import ConfigError
from dlcp.fabric.export import export_text
from dlcp.fabric.export.commodity import plan
from dlcp.policy import Classes, Policy, Switches
from dlcp.topology import Topology

RATE = 20_000_000
POLICY = Policy(switch=Switches(mark_share=0.1, drop_share=0.3))

# Tag: class, protected?, share of the packets sent.
TAGS = [(6, 1, 0.15), (3, 1, 0.2), (3, 0, 0.3), (0, 0, 0.35)]

SEND = """
import socket, sys, time
tags = [tuple(map(float, word.split(":"))) for word in sys.argv[3:]]
seconds, rate = float(sys.argv[1]), float(sys.argv[2])
sockets = []
for tos, share in tags:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, int(tos))
    s.connect(("10.9.0.2", 9753))
    sockets.append(s)
sent, owed = [0] * len(tags), [0.0] * len(tags)
payload = bytes(1392)
start = due = time.monotonic()
while due < start + seconds:
    index = max(range(len(tags)), key=lambda i: owed[i] + tags[i][1])
    owed = [o + t[1] for o, t in zip(owed, tags)]
    owed[index] -= 1
    sockets[index].send(index.to_bytes(4, "big") + sent[index].to_bytes(4, "big") + payload)
    sent[index] += 1
    due += 1442 * 8 / rate
    now = time.monotonic()
    if now > due + 0.005:
        start += now - due  # whoever was held up does not catch up in a burst
        due = now
    while time.monotonic() < due:
        time.sleep(0)
print(*sent)
"""

RECEIVE = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 33, 1 << 25)
s.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
s.bind(("10.9.0.2", 9753))
print("ready", flush=True)
got, marked, dscp = [0] * 4, [0] * 4, [set() for _ in range(4)]
s.settimeout(60)
while True:
    data, control, _, _ = s.recvmsg(2048, 64)
    index = int.from_bytes(data[:4], "big")
    if index == 99:
        break
    tos = control[0][2][0]
    got[index] += 1
    marked[index] += tos & 3 == 3
    dscp[index].add(tos >> 2)
import json
print(json.dumps({"got": got, "marked": marked, "dscp": [sorted(d) for d in dscp]}))
"""


def network(rate=RATE, buffer="100 packets"):
    links = [{"a": host, "b": "s0", "rate_bps": rate, "buffer": buffer} for host in ("a", "b")]
    return Topology.from_dict({"hosts": [{"name": "a"}, {"name": "b"}], "switches": [{"name": "s0"}], "links": links})


def run(*command, **how):
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **how)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def lab():
    """Namespaces a - sw - b; the switch is a bridge with the ports p1 and p2."""
    tail = f"{os.getpid()}-{uuid.uuid4().hex[:4]}"
    names = {node: f"dlcp-{node}-{tail}" for node in ("a", "sw", "b")}

    class Lab:
        def ip(self, node, *words):
            return run("ip", "-n", names[node], *words)

        def start(self, node, *command):
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            return subprocess.Popen(["ip", "netns", "exec", names[node], *command], **pipes)

        def run(self, node, *command):
            return run("ip", "netns", "exec", names[node], *command)

    lab = Lab()
    made = []
    try:
        for node, name in names.items():
            run("ip", "netns", "add", name)
            made.append(name)
            lab.run(node, "sysctl", "-q", "-w", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")
        lab.ip("sw", "link", "add", "name", "bridge0", "type", "bridge", "stp_state", "0")
        for node, port, address in (("a", "p1", "10.9.0.1/24"), ("b", "p2", "10.9.0.2/24")):
            lab.ip(node, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", names["sw"])
            lab.ip("sw", "link", "set", port, "master", "bridge0", "up")
            lab.ip(node, "addr", "add", address, "dev", "eth0")
            lab.ip(node, "link", "set", "eth0", "up")
            lab.ip(node, "link", "set", "lo", "up")
        lab.ip("sw", "link", "set", "bridge0", "up")
        yield lab
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False)


@pytest.mark.root
def test_protected_packets_lose_nothing_while_droppable_ones_lose(lab, tmp_path):
    file = tmp_path / "s0.tc.py"
    file.write_text(export_text("tc", network(), POLICY, "s0"))
    dev = ["--dev", "1=p1", "--dev", "2=p2"]
    assert lab.run("sw", sys.executable, str(file), "up", *dev) == "port 1: p1 up\nport 2: p2 up\n"
    receiver = lab.start("b", sys.executable, "-c", RECEIVE)
    try:
        assert receiver.stdout.readline() == "ready\n"
        lab.run("a", "ping", "-c", "1", "-W", "5", "10.9.0.2")
        words = [f"{POLICY.tos(priority, bool(protected))}:{share}" for priority, protected, share in TAGS]
        sent = [int(word) for word in lab.run("a", sys.executable, "-c", SEND, "1.0", str(2 * RATE), *words).split()]
        end = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setsockopt(0, 1, 7 << 5)\n"
        end += "s.sendto((99).to_bytes(4, 'big'), ('10.9.0.2', 9753))"
        status = json.loads(lab.run("sw", sys.executable, str(file), "status", "--json", *dev, "2"))
        lab.run("a", sys.executable, "-c", f"import time; time.sleep(0.2)\n{end}")  # the queues are 60 ms long
        result = json.loads(receiver.communicate(timeout=30)[0])
    finally:
        receiver.kill()
        receiver.wait()
    lost = [one - two for one, two in zip(sent, result["got"], strict=True)]
    counted = status[0]["classes"]
    assert lost[0] == 0 and lost[1] == 0, (sent, result, counted)
    assert lost[2] > 0 and lost[3] > 0
    assert lost[3] / sent[3] > lost[2] / sent[2], "the less urgent class is served with what is left"
    assert result["marked"][1] > 0 and result["marked"][2] == result["marked"][3] == 0
    assert result["dscp"] == [[48], [24], [24], [0]]
    # What the classifier gave up is what did not arrive: the queues behind it lost nothing.
    assert [counted[priority]["dropped"] for priority in (6, 3, 0)] == [0, lost[2], lost[3]]
    assert counted[7]["packets"] > 0, "ARP goes with control traffic"
    assert counted[3]["marked"] == result["marked"][1]
    assert lab.run("sw", sys.executable, str(file), "down", *dev).count("down") == 2
    assert "htb" not in lab.run("sw", "tc", "qdisc", "show")


@pytest.mark.root
def test_the_script_says_what_is_wrong_in_a_line(lab, tmp_path):
    file = tmp_path / "s0.tc.py"
    file.write_text(export_text("tc", network(), POLICY, "s0"))

    def fails(*arguments):
        done = lab.start("sw", sys.executable, str(file), *arguments)
        output = done.communicate(timeout=30)[0]
        assert done.returncode == 1 and output.count("\n") == 1, output
        return output

    assert "there is no interface swp1" in fails("up")
    assert "there is no port 7" in fails("up", "7")
    assert "PORT=INTERFACE" in fails("up", "--dev", "p1")
    assert "not configured" in fails("status", "--dev", "1=p1", "1")


@pytest.mark.parametrize(
    ("rate", "share"), [(1000, 0), (1000, 1), (100_000_000, 0.3), (100_000_000_000, 0), (1_600_000_000_000, 1)]
)
@pytest.mark.root
def test_the_kernel_accepts_the_classifier_at_any_rate(lab, tmp_path, rate, share):
    policy = Policy(switch=Switches(mark_share=share, drop_share=share))
    file = tmp_path / "s0.tc.py"
    file.write_text(export_text("tc", network(rate), policy, "s0"))
    lab.run("sw", sys.executable, str(file), "up", "1", "--dev", "1=p1")


def test_ecn_has_to_tell_packets_apart():
    for classes in (Classes(ecn_droppable="ect0"), Classes(ecn_droppable="ect1"), Classes(ecn_protected="not-ect")):
        with pytest.raises(ConfigError, match="ecn_droppable"):
            plan(network(), Policy(classes=classes), "s0")
