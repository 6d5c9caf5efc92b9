"""Networks for real: what is built, what can happen to it, and that nothing of it is left, however it ends."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dlcp.topology import Star, Topology
from testbed.lab import capabilities, wiring
from testbed.lab.errors import HostLacks, LabError
from testbed.lab.ledger import STATE, clean_up
from testbed.lab.network import Lab
from testbed.lab.processes import Process
from testbed.lab.signals import Ended, unwinding
from tests.testbed.conftest import marked_processes

SCRIPT = Path(__file__).with_name("lab_script.py")
ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]


def star(hosts=2, **how):
    return Star(hosts=hosts, **{"rate": "50 Mbit/s", **how}).build()


def round_trip_ms(lab, source, target, count=5):
    said = lab.run(source, ["ping", "-q", "-c", str(count), "-i", "0.02", "-W", "2", lab.topology.addresses[target]])
    return float(re.search(r"= ([\d.]+)/", said)[1])


def pings(lab, source, target):
    command = ["ping", "-q", "-c", "1", "-W", "0.3", lab.topology.addresses[target]]
    process = lab.popen(source, command, stdout=subprocess.DEVNULL)
    return process.wait(10) == 0


@pytest.mark.parametrize("target", ["softswitch", "bridge"])
def test_a_network_is_as_its_topology_says(target, tmp_path, nothing_left):
    topology = star(3, delay="2 ms", buffer="20 packets")
    with Lab(topology, target=target, run_dir=tmp_path / "run") as lab:
        nothing_left(lab)
        assert list(lab.hosts) == ["h0", "h1", "h2"]
        assert 8 <= round_trip_ms(lab, "h0", "h2") < 100, "twice two links of 2 ms"
        for name, host in lab.hosts.items():
            assert (host.address, host.mac, host.interface) == (topology.addresses[name], topology.macs[name], "eth0")
            assert host.namespace.readlink() != Path("/proc/self/ns/net").readlink()
            link = lab.run(name, ["ip", "link", "show", "eth0"])
            assert host.mac in link and "mtu 1500" in link
            assert "inet6" not in lab.run(name, ["ip", "address"])
            assert lab.run(name, ["cat", "/etc/resolv.conf"]) == ""
            assert lab.run(name, ["ip", "neigh"]).count("PERMANENT") == 2
            shown = lab.run(name, ["tc", "qdisc", "show"]), lab.run(name, ["tc", "class", "show", "dev", "eth0"])
            wiring.check_shaped(name, "eth0", 50_000_000, *shown)
            with pytest.raises(LabError, match="is to send at 25000000 bit/s, but the kernel has"):
                wiring.check_shaped(name, "eth0", 25_000_000, *shown)
        # Mininet knows the same network.
        assert [node.name for node in lab.mininet.hosts] == ["h0", "h1", "h2"]
        assert [node.name for node in lab.mininet.switches] == ["s0"]
        assert lab.mininet["h1"].IP() == topology.addresses["h1"]
        assert lab.mininet["h0"].cmd("echo hello").strip() == "hello"
        counted = lab.statistics()
        assert set(counted["switches"]["s0"]["ports"]) >= {"1", "2", "3"}
        assert counted["hosts"]["h0"]["eth0"]["packets"] >= 5
        json.dumps(counted)
        lab.check()
    lab.close()
    assert not lab.hosts


def test_processes_in_hosts_are_ended_with_the_network(tmp_path, nothing_left):
    with Lab(star(), target="bridge", run_dir=tmp_path / "run") as lab:
        nothing_left(lab)
        asked = lab.popen(
            "h0", ["sh", "-c", "echo $GLOO_SOCKET_IFNAME $MORE; ip -br link"], stdout=subprocess.PIPE, env={"MORE": "x"}
        )
        said = asked.communicate(timeout=10)[0].decode()
        assert said.startswith("eth0 x\n") and "eth0@" in said and "eth1" not in said
        running = lab.popen("h1", ["sleep", "1000"])
        here = Path.cwd()
        child = os.fork()
        if child == 0:
            try:
                lab.enter("h1")
                assert os.environ["GLOO_SOCKET_IFNAME"] == "eth0"
                assert Path("/proc/self/ns/net").readlink() == lab.hosts["h1"].namespace.readlink()
                assert Path("/etc/resolv.conf").read_bytes() == b"" and Path("/sys/class/net/eth0").exists()
                assert Path.cwd() == here
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                time.sleep(1000)
            finally:
                os._exit(3)
        lab.adopt(child, "a fork")
        with pytest.raises(LabError, match="h1: false"):
            lab.run("h1", ["false"])
        time.sleep(0.2)  # for the fork to get somewhere
        assert Process.of(child) is not None
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    assert running.wait(5) == -signal.SIGTERM


def test_an_error_in_between_leaves_nothing(tmp_path, nothing_left):
    lab = Lab(star(), target="softswitch", run_dir=tmp_path / "run")
    with pytest.raises(ZeroDivisionError), lab:
        nothing_left(lab)
        lab.popen("h0", ["sleep", "1000"])
        raise ZeroDivisionError


def test_an_error_while_it_is_built_leaves_nothing(tmp_path, state, monkeypatch):
    steps = []

    def fail(text):
        steps.append(text)
        if text == "checking":
            raise RuntimeError("not today")

    lab = Lab(star(), target="softswitch", run_dir=tmp_path / "run", notify=fail)
    with pytest.raises(RuntimeError, match="not today"), lab:
        pass
    assert steps[:3] == ["nodes", "links", "switches"]
    assert sorted(path.name for path in state.iterdir()) == ["lock"]
    # The same where the kernel does not do what it is told.
    monkeypatch.setattr(wiring, "shaping", lambda *arguments: ["qdisc add dev eth0 root handle 1: htb default 1"])
    with pytest.raises(LabError, match="has no queue of its own"), Lab(star(), target="bridge", run_dir=tmp_path / "run"):
        pass
    assert sorted(path.name for path in state.iterdir()) == ["lock"]


class Driver:
    """A driver process; a context manager that ends it."""

    def __init__(self, tmp_path, target="softswitch"):
        self._errors = tmp_path / "errors.txt"
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), target, str(tmp_path / "driver")],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        assert self.process.stdout.readline() == "begin\n"

    def wait_until_up(self):
        line = self.process.stdout.readline()
        assert line.startswith("up "), self._errors.read_text()

    def end(self, number):
        # What it started may still have its output open: only its own end is waited for.
        self.process.send_signal(number)
        self.process.wait(30)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def left(state):
    """Processes of any run whose ledger is, or was, in this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
                zombie = (entry / "stat").read_text().rpartition(") ")[2].startswith("Z")
            except OSError:
                continue
            if f"{STATE}={state}\0".encode() in environment and not zombie and int(entry.name) != os.getpid():
                found.append((int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ")))
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_takes_everything_down(number, tmp_path, state):
    with Driver(tmp_path) as driver:
        driver.wait_until_up()
        assert len(left(state)) > 5
        driver.end(number)
    assert driver.process.returncode == 128 + number
    assert not left(state)
    assert [path.name for path in state.iterdir()] == ["lock"]


def test_after_a_kill_the_next_run_cleans_up(tmp_path, nothing_left, state):
    with Driver(tmp_path) as driver, Lab(star(), target="bridge", run_dir=tmp_path / "other") as other:
        nothing_left(other)
        driver.wait_until_up()
        assert clean_up() == [] and not other.remains, "a driver at work is left alone"
        driver.end(signal.SIGKILL)
        (remains,) = clean_up()
        assert remains.run_dir == str(tmp_path / "driver") and remains.processes >= 2
        assert all(Process.of(host.pid) for host in other.hosts.values())
        assert pings(other, "h0", "h1"), "the other network still works"
        assert clean_up() == []
    assert not left(state)


def test_kills_at_any_moment_leave_nothing_after_the_next_clean_up(tmp_path, state):
    """DLCP_TESTBED_KILLS says how many."""
    chance = random.Random(7)
    for _ in range(int(os.environ.get("DLCP_TESTBED_KILLS", "3"))):
        with Driver(tmp_path) as driver:
            time.sleep(chance.uniform(0, 2.0))
            driver.end(signal.SIGKILL)
        clean_up()
        # What tries this host's capabilities belongs to no run yet, and ends by itself.
        deadline = time.monotonic() + 10
        while (rest := left(state)) and time.monotonic() < deadline:
            assert not {pid for pid, _ in rest} & set(marked_processes())
            time.sleep(0.01)
        assert not rest
        assert [path.name for path in state.iterdir()] == ["lock"]


def test_signals_wait_while_it_is_taken_down(tmp_path, nothing_left):
    with pytest.raises(Ended) as caught, unwinding():
        lab = Lab(star(), target="bridge", run_dir=tmp_path / "run")
        with lab:
            nothing_left(lab)
            lab._stack.callback(os.kill, os.getpid(), signal.SIGTERM)
    assert caught.value.number == signal.SIGTERM and str(caught.value) == "SIGTERM"
    assert not lab.hosts, "it was taken down to the end before the signal took effect"


def test_congestion_control_is_chosen_for_each_host(tmp_path, nothing_left):
    with Lab(star(3), target="bridge", run_dir=tmp_path / "run") as lab:
        nothing_left(lab)
        available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
        other = next((name for name in available if name not in ("cubic", "reno")), "reno")
        lab.set_congestion("all", "cubic")
        lab.set_congestion("h1", other)
        routes = {name: lab.run(name, ["ip", "route", "show"]) for name in lab.hosts}
        assert routes["h0"].count("congctl cubic") == routes["h2"].count("congctl cubic") == 2
        assert routes["h1"].count(f"congctl {other}") == 2
        assert pings(lab, "h0", "h1")
        with pytest.raises(LabError):
            lab.set_congestion("all", "no-such-thing")


def test_a_host_with_two_links_uses_the_shorter_one_for_each_peer(tmp_path, nothing_left):
    links = [("a", "s", {}), ("a", "t", {"metric": 3}), ("b", "s", {}), ("c", "t", {}), ("s", "t", {"metric": 9})]
    topology = Topology.from_dict(
        {
            "hosts": [{"name": name} for name in "abc"],
            "switches": [{"name": "s"}, {"name": "t"}],
            "links": [{"a": a, "b": b, "rate": "20 Mbit/s", **more} for a, b, more in links],
        }
    )
    with Lab(topology, target="softswitch", run_dir=tmp_path / "run") as lab:
        nothing_left(lab)
        routes = lab.run("a", ["ip", "route", "show"])
        assert f"{topology.addresses['b']} dev eth0" in routes and f"{topology.addresses['c']} dev eth1" in routes
        assert all(pings(lab, source, target) for source in "abc" for target in "abc" if source != target)


def test_what_is_missing_is_said_with_what_is_lost(tmp_path, state, monkeypatch):
    found = capabilities.probe()
    assert found["namespaces"].ok and found["htb"].ok and all(each.lost and each.remedy for each in found.values())
    folder = tmp_path / "bin"
    folder.mkdir()
    for command in ("ip", "tc", "bridge", "ping", "unshare", "sh", "grep", "tail"):
        (folder / command).symlink_to(shutil.which(command))
    monkeypatch.setenv("PATH", str(folder))
    capabilities.probe.cache_clear()
    try:
        with pytest.raises(HostLacks) as caught:
            Lab(star(), target="softswitch", run_dir=tmp_path / "run")
        assert len(caught.value.missing) == 2
        assert "mnexec (missing): no emulated networks; install mininet" in str(caught.value)
        assert "ethtool (missing)" in str(caught.value)
        with pytest.raises(HostLacks, match="simple_switch_grpc"):
            Lab(star(), target="bmv2", run_dir=tmp_path / "run")
    finally:
        monkeypatch.undo()
        capabilities.probe.cache_clear()
    assert not (tmp_path / "run").exists()


def test_without_root_it_runs_in_a_user_namespace_or_says_why_not(tmp_path):
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is missing")
    # The interpreter of this environment may stand where only root can read.
    paths = os.pathsep.join([str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))])
    code = "import numpy, mininet, finsy; from testbed.lab import privileges; print(privileges.refusal() or 'granted')"
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", STATE: ""}
        environment.pop("XDG_RUNTIME_DIR", None)
        command = [*nobody, "sh", "-c", '"$@"', "sh", python, "-c", code]
        asked = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if asked.returncode == 0:
            break
    else:
        pytest.skip("no interpreter that an ordinary user may run")
    place = Path(f"/tmp/dlcp-lab-user-{os.getpid()}")
    place.mkdir(mode=0o700)
    try:
        shutil.chown(place, 65534, 65534)
        script = "from testbed.lab.privileges import become_root; become_root(); import runpy, sys\n"
        script += f"sys.argv = ['x', 'softswitch', {str(place / 'run')!r}, 'error']; runpy.run_path({str(SCRIPT)!r})"
        done = subprocess.run(
            [*nobody, "sh", "-c", '"$@"', "sh", python, "-c", script],
            capture_output=True,
            text=True,
            check=False,
            env={**environment, STATE: str(place / "state")},
            timeout=60,
        )
        if asked.stdout.strip() == "granted":
            assert "up " in done.stdout and "RuntimeError: as asked for" in done.stderr, done.stderr
            assert [path.name for path in (place / "state").iterdir()] == ["lock"]
        else:
            assert "only root may make network namespaces" in done.stderr
            assert "up " not in done.stdout
        assert not left(place / "state")
    finally:
        shutil.rmtree(place)


def test_the_page_about_networks_runs(project, tmp_path, state):
    text = (project / "docs" / "emulation.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "3 packets transmitted" in done.stdout and "'out_packets'" in done.stdout
    assert [path.name for path in state.iterdir()] == ["lock"]
