"""``dlcp switch`` against real P4Runtime servers of the softswitch, with packets."""

import json
import os
import re
import subprocess
import sys

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from dlcp.cli.main import main
from dlcp.fabric import shell
from dlcp.topology import Topology
from dlcp.wire.codec import encode_header
from softswitch.server import TLSFiles
from softswitch.server.testing import running_switches

NET = """
name = "two-racks"
[generate]
kind = "leaf-spine"
leaves = 2
spines = 2
hosts_per_leaf = 2
rate = "1 Gbit/s"
"""
NAMES = ("leaf0", "leaf1", "spine0", "spine1")


class Net:
    """A topology file and the switches that serve it."""

    def __init__(self, file, switches, capsys, options=()):
        self.file, self.capsys, self.options = file, capsys, list(options)
        self.topology = Topology.from_toml(file)
        self.switches = {name: switches[self.topology.device_ids[name] - 1] for name in NAMES}

    def call(self, verb, *words, code=0):
        at = [f"--at={name}={switch.address}" for name, switch in self.switches.items()]
        found = main(["switch", verb, str(self.file), *words, *at, *self.options])
        out, err = self.capsys.readouterr()
        assert found == code, out + err
        return out if code == 0 else out + err

    def json(self, verb, *words, code=0):
        return json.loads(self.call(verb, *words, "--json", code=code))

    def send(self, source, target, tos=0, payload=b"payload", port=2000):
        """Sends a packet from a host and returns the way it goes, switch by switch."""
        macs, addresses = self.topology.macs, self.topology.addresses
        packet = Ether(src=macs[source], dst=macs[target]) / IP(src=addresses[source], dst=addresses[target], tos=tos)
        data = bytes(packet / UDP(sport=1000, dport=port) / payload)
        arc = self.topology.graph.leaving(source)[0]
        way = []
        while not self.topology.graph.is_host(arc.target):
            way.append(arc.target)
            switch = self.switches[arc.target]
            switch.receive(arc.target_port, data)
            sent = switch.transmit()
            if not sent:
                return [*way, None]
            ((port, data),) = sent
            arc = self.topology.graph.arc(arc.target, port)
        return [*way, arc.target]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.toml"
    path.write_text(NET)
    return path


@pytest.fixture
def net(file, capsys):
    with running_switches(4) as switches:
        yield Net(file, switches, capsys)


def test_plan_deploy_and_traffic(net):
    text = net.call("plan")
    assert "+ set the program" in text and "4 switches of 4" in text and "more; --all shows them" in text
    net.call("plan", "--check", code=1)
    document = net.json("plan")
    assert not document["empty"] and document["switches"]["leaf0"]["program"] == "none"
    assert net.send("h0", "h3")[-1] is None
    done = net.json("deploy")
    assert done["programs"] == 4 and done["written"] == sum(each["insert"] + each["modify"] for each in done["switches"].values())
    assert net.json("deploy") == {
        "written": 0,
        "programs": 0,
        "switches": {
            name: {
                "address": net.switches[name].address,
                "set_program": False,
                "written": 0,
                "insert": 0,
                "modify": 0,
                "delete": 0,
            }
            for name in NAMES
        },
    }
    assert net.call("deploy") == "nothing to change on 4 switches\n"
    assert net.call("plan", "--check") == "nothing to change on 4 switches\n"
    for source in ("h0", "h1", "h2", "h3"):
        for target in ("h0", "h1", "h2", "h3"):
            if source != target:
                assert net.send(source, target)[-1] == target
    assert len(net.send("h0", "h1")) == 2 and len(net.send("h0", "h2")) == 4


def test_packets_of_a_job_are_sprayed_and_flows_of_others_are_not(net, tmp_path):
    def ways(count, **how):
        found = [tuple(net.send("h0", "h2", **how)) for _ in range(count)]
        assert {way[-1] for way in found} == {"h2"}
        return [sum(spine in way for way in found) for spine in ("spine0", "spine1")]

    job = encode_header(version=1, type=0, priority=3, protected=1, cookie=7, length=64, stride=64) + bytes(64)
    net.call("deploy")
    assert ways(20, payload=job) == [10, 10]
    assert sorted(ways(10)) == [0, 10]
    assert sum(min(ways(1, port=port)[0], 1) for port in range(2000, 2040)) in range(5, 36), "flows are spread"
    counted = net.json("counters")["switches"]["leaf0"]["forwarded"]
    assert counted["protected"]["packets"] == [0, 0, 0, 20, 0, 0, 0, 0] and counted["ordinary"]["packets"][0] == 50
    (tmp_path / "flows.toml").write_text('[switch]\nspray = "hash"\n')
    net.call("deploy", "--policy", str(tmp_path / "flows.toml"))
    assert sorted(ways(10, payload=job)) == [0, 10]
    net.call("deploy")
    net.call("drain", "leaf0", "spine0")
    assert ways(10, payload=job) == [0, 10]
    net.call("undrain", "leaf0", "spine0")
    assert ways(10, payload=job) == [5, 5]
    net.switches["leaf0"].set_port_state(3, False)
    assert ways(10, payload=job) == [0, 10], "a port that is down is skipped without being told"


def test_a_drained_link_carries_nothing_until_it_is_back(net):
    net.call("deploy")
    assert {net.send("h0", "h2", tos)[1] for tos in range(4)} <= {"spine0", "spine1"}
    assert "changed" in net.call("drain", "leaf0", "spine0")
    for source, target in (("h0", "h2"), ("h2", "h0"), ("h1", "h3"), ("h3", "h1")):
        assert net.send(source, target)[1:] == ["spine1", "leaf1" if source in ("h0", "h1") else "leaf0", target]
    status = {row["switch"]: row for row in net.json("status", "--check")}
    assert status["leaf0"]["drained"] == [3] and status["spine0"]["drained"] == [1] and status["leaf1"]["drained"] == []
    # A deployment keeps what is drained, and says so.
    assert net.json("deploy")["written"] == 0
    assert net.json("plan")["drained"] == [{"switch": "leaf0", "port": 3}, {"switch": "spine0", "port": 1}]
    refused = net.call("drain", "leaf0", "spine1", code=2)
    assert "cannot reach" in refused and "--force" in refused
    net.call("drain", "leaf0", "spine1", "--force")
    assert net.send("h0", "h2")[-1] != "h2" and net.send("h0", "h1")[-1] == "h1"
    net.call("undrain", "leaf0", "4")
    net.call("undrain", "spine0", "leaf0")
    assert all(row["drained"] == [] and row["as_planned"] for row in net.json("status"))
    assert net.json("plan")["empty"]
    assert net.send("h0", "h2")[-1] == "h2"


def test_status_and_counters(net):
    rows = net.json("status")
    assert [row["program"] for row in rows] == ["none"] * 4 and not any(row["as_planned"] for row in rows)
    assert "it does not run this program" in net.call("counters", code=4)
    net.call("deploy")
    rows = net.json("status")
    assert all(row["program"] == "dlcp" and row["as_planned"] and row["p4runtime"] for row in rows)
    table = net.call("status")
    assert "leaf0" in table and "yes" in table
    for _ in range(5):
        net.send("h0", "h1")
    counted = net.json("counters")
    assert counted["switches"]["leaf0"]["forwarded"]["ordinary"]["packets"][0] == 5
    assert counted["total"]["forwarded"]["ordinary"]["packets"] == [5, 0, 0, 0, 0, 0, 0, 0]
    assert counted["switches"]["spine0"]["discarded"] == dict.fromkeys(counted["total"]["discarded"], 0)
    assert "protected" in net.call("counters") and "spine1" in net.call("counters", "--each")
    lines = net.call("counters", "--watch", "--count", "2", "--interval", "0.05", "--json").splitlines()
    assert len(lines) == 2 and json.loads(lines[1])["total"]["forwarded"]["ordinary"]["packets"][0] == 5
    assert "per second" in net.call("counters", "--watch", "--count", "1", "--interval", "0.05")


def test_remove(net):
    net.call("deploy")
    assert "--yes" in net.call("remove", code=2)
    net.call("remove", "--yes", "--only", "leaf0")
    rows = {row["switch"]: row for row in net.json("status")}
    assert not rows["leaf0"]["as_planned"] and rows["leaf1"]["as_planned"]
    assert net.send("h0", "h1")[-1] is None
    net.call("deploy")
    assert net.send("h0", "h1")[-1] == "h1"


def test_jobs_where_they_are_isolated(net, tmp_path):
    policy = tmp_path / "job.toml"
    policy.write_text('[switch]\nisolation = "refuse"\n')
    net.call("deploy", "--policy", str(policy))
    job = encode_header(version=1, type=0, priority=3, protected=1, cookie=0x1234, length=64, stride=64) + bytes(64)
    assert net.send("h1", "h2", payload=job) == ["leaf0", None] and net.send("h1", "h2")[-1] == "h2"
    net.call("permit", "0x1234", "--rate", "1 Gbit/s", "--hard")
    assert net.send("h1", "h2", payload=job)[-1] == "h2"
    net.call("permit", "--host", "h0")
    rows = {row["switch"]: row for row in net.json("status", "--policy", str(policy))}
    assert rows["leaf0"]["jobs"] == 2 and rows["leaf1"]["jobs"] == 1 and all(row["as_planned"] for row in rows.values())
    net.call("forbid", "0x1234")
    assert net.send("h1", "h2", payload=job) == ["leaf0", None] and net.send("h0", "h2", payload=job)[-1] == "h2"
    net.call("forbid", "--host", "h0")
    assert all(row["jobs"] == 0 for row in net.json("status", "--policy", str(policy)))
    assert "'1 Gbit'" in net.call("permit", "7", "--rate", "1 Gbit", code=2)


def test_a_dead_switch_is_one_line_and_changes_nothing(net):
    found = main(["switch", "deploy", str(net.file), *[f"--at={name}=127.0.0.1:1" for name in NAMES]])
    out, err = net.capsys.readouterr()
    assert found == 4 and out == "" and err.count("\n") == 1
    assert "switch leaf0 at 127.0.0.1:1" in err and "no switch was changed" in err and "3 more" in err


@pytest.mark.parametrize("verb", ["plan", "deploy", "status", "counters"])
def test_a_wrong_device_id_is_not_taken_for_an_empty_switch(net, verb):
    hosts, switches = 'hosts = [{ name = "h0" }, { name = "h1" }]', 'switches = [{ name = "leaf0", device_id = 77 }]'
    links = 'links = [{ a = "h0", b = "leaf0" }, { a = "h1", b = "leaf0" }]'
    net.file.write_text(f'{hosts}\n{switches}\n{links}\n[link_defaults]\nrate = "1 Gbit/s"\n')
    found = main(["switch", verb, str(net.file), f"--at=leaf0={net.switches['leaf0'].address}"])
    out, err = net.capsys.readouterr()
    assert found == 4 and "it has no device 77" in out + err and "device_id in the topology" in out + err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["plan", "NET"], "has no address; accepted: grpc in the topology, or --at leaf0=HOST:PORT"),
        (["plan", "NET", "--at", "leaf0"], "NAME=HOST:PORT"),
        (["plan", "NET", "--at", "leaf9=127.0.0.1:1"], "there is no switch 'leaf9'"),
        (["plan", "NET", "--only", "nobody"], "there is no switch 'nobody'"),
        (["plan", "NET", "--only", "leaf0", "--at", "leaf0=192.0.2.1:9559"], "--insecure"),
        (["plan", "NET", "--only", "leaf0", "--at", "leaf0=192.0.2.1:9559", "--tls-ca", "nowhere.pem"], "cannot be read"),
        (["plan", "NET", "--only", "leaf0", "--at", "leaf0=127.0.0.1:1", "--tls-cert", "x.pem"], "--tls-key: is missing"),
        (["plan", "nowhere.toml"], "cannot be read"),
        (["plan", "NET", "--policy", "nowhere.toml"], "cannot be read"),
        (["export", "NET", "leaf0", "--vendor", "acme"], "sonic, nvue, eos, tc"),
        (["export", "NET", "leaf9", "--vendor", "tc"], "there is no switch 'leaf9'"),
        (["export", "NET", "leaf0", "--vendor", "tc", "--interface", "eth0"], "gives several ports one name"),
        (["export", "NET", "leaf0", "--vendor", "tc", "--interface", "a b{port}"], "makes no name"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(file, capsys, words, expected):
    assert main(["switch", *(str(file) if word == "NET" else word for word in words)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and expected in err


@pytest.mark.parametrize(
    "words", [["plan"], ["counters", "x", "--interval", "0"], ["permit", "x", "cookie"], ["deploy", "x", "--election-id", "0"]]
)
def test_wrong_arguments(words):
    with pytest.raises(SystemExit) as caught:
        main(["switch", *words])
    assert caught.value.code == 2


def test_tls_and_mutual_tls(file, tmp_path, capsys):
    def openssl(*words):
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=tmp_path)

    openssl(
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
        "-subj",
        "/CN=ca",
        "-days",
        "2",
    )
    (tmp_path / "san").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for name in ("server", "client"):
        openssl(
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.csr",
            "-subj",
            f"/CN={name}",
        )
        openssl(
            "x509",
            "-req",
            "-in",
            f"{name}.csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-out",
            f"{name}.pem",
            "-days",
            "2",
            "-extfile",
            "san",
        )
    tls = TLSFiles(tmp_path / "server.pem", tmp_path / "server.key", tmp_path / "ca.pem")
    with running_switches(4, tls=tls) as switches:
        mutual = [
            f"--tls-ca={tmp_path / 'ca.pem'}",
            f"--tls-cert={tmp_path / 'client.pem'}",
            f"--tls-key={tmp_path / 'client.key'}",
        ]
        assert Net(file, switches, capsys, mutual).json("deploy")["programs"] == 4
        assert "switch leaf0" in Net(file, switches, capsys, mutual[:1]).call("status", code=4)
        assert "switch leaf0" in Net(file, switches, capsys).call("status", code=4)


def test_without_the_extra_it_says_what_to_install(file):
    code = "import sys; sys.modules['finsy'] = None; sys.argv = ['dlcp', 'switch', 'plan', sys.argv[1]]\n"
    code += "from dlcp.cli.main import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "dlcp[p4]" in done.stderr and done.stderr.count("\n") == 1


def test_the_pure_part_needs_no_extra(file):
    code = (
        "import sys; sys.modules.update(finsy=None, grpc=None, google=None); sys.argv = ['dlcp', *sys.argv[1:]]\n"
        "from dlcp.fabric.intent import Intent; import dlcp.fabric.diff, dlcp.fabric.jobs\n"
        "from dlcp.cli.main import main; sys.exit(main())"
    )
    for vendor in ("sonic", "tc"):
        command = [sys.executable, "-c", code, "switch", "export", str(file), "leaf0", "--vendor", vendor]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and done.stdout, done.stderr


def test_the_shell_gets_the_program_only_if_the_switch_has_none(net, monkeypatch, tmp_path):
    """With a stand-in for p4runtime-shell."""
    place = tmp_path / "dlcp" / shell.environment({"HOME": "/x"}).name
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "python").write_text('#!/bin/sh\necho "$@" > "$CALLED"\nexit 7\n')
    (place / "bin" / "python").chmod(0o755)
    (place / ".complete").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CALLED", str(tmp_path / "called"))
    net.call("shell", "leaf0", code=7)
    called = (tmp_path / "called").read_text()
    assert f"--grpc-addr {net.switches['leaf0'].address} --device-id 1 --election-id 1," in called
    assert re.search(r"--config \S+/dlcp.p4info.txtpb,\S+/dlcp.json", called)
    net.call("deploy")
    net.call("shell", "leaf0", code=7)
    assert "--config" not in (tmp_path / "called").read_text()


def test_the_real_shell_knows_the_names_of_the_program(net):
    """Installs p4runtime-shell in the user's cache the first time."""
    try:
        shell.prepare(shell.environment(os.environ))
    except shell.ShellError as error:
        pytest.skip(str(error))
    net.call("deploy")
    at = [f"--at={name}={switch.address}" for name, switch in net.switches.items()]
    command = [sys.executable, "-m", "dlcp", "switch", "shell", str(net.file), "leaf0", *at]
    table = "SwitchIngress.classification.dlcp_classes"
    words = f'table_entry["{table}"].read(lambda entry: print("ENTRY", entry.action.action_name))\nexit\n'
    done = subprocess.run(command, input=words, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ENTRY") == 8, done.stdout + done.stderr
    assert net.json("plan")["empty"]


def test_an_environment_that_cannot_be_made_is_an_error_in_a_line(tmp_path, monkeypatch):
    pip = tmp_path / "pip"
    pip.write_text("#!/bin/sh\necho 'ERROR: No matching distribution found' >&2\nexit 1\n")
    maker = tmp_path / "maker"  # a stand-in for an interpreter: it makes an environment whose pip finds nothing
    maker.write_text(f'#!/bin/sh\nmkdir -p "$3/bin" && cp {pip} "$3/bin/python"\n')
    for file in (pip, maker):
        file.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(maker))
    with pytest.raises(shell.ShellError, match=r"could not be installed .*No matching .*is the package index within reach"):
        shell.prepare(tmp_path / "place")
    assert not (tmp_path / "place").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(shell.ShellError, match="cannot be written"):
        shell.prepare(tmp_path / "file" / "place")
