"""``dlcp switch bench``: it measures what it says, in a network of its own, and leaves nothing behind."""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("finsy")

from dlcp.bench.switch.network import ArrivalCounter, HostLacks, make_pair, private_network
from dlcp.bench.switch.targets import TargetDied, TargetProcess
from dlcp.bench.switch.traffic import BurstSender, drive, make_frames
from dlcp.wire.codec import check_ok
from dlcp.wire.header import HEADER, HEADER_BYTES

ROOT = Path(__file__).resolve().parents[2]
ENDS = (("02:00:00:00:00:01", "10.0.0.1"), ("02:00:00:00:00:02", "10.0.0.2"))


def bench(*arguments):
    command = [sys.executable, "-m", "dlcp.cli.main", "switch", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=110)


def interfaces():
    return sorted(path.name for path in Path("/sys/class/net").iterdir())


@pytest.mark.root
def test_it_measures_packets_cpu_time_and_writes():
    before = interfaces()
    done = bench("--json", "--rounds", "2", "--seconds", "0.3", "--entries", "300", "--target", "softswitch", "--paths", "4")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["softswitch_pps"] > 0 and report["softswitch_pps_core"] > 0 and report["writes_per_s"] > 0
    assert report["bmv2_pps"] is None and report["ratio"] is None
    assert report["lost"] == {"softswitch": 0}
    # Sprayed: no path carries more than 26 % (round robin takes exact turns).
    assert max(report["path_shares"]["softswitch"]) <= 0.26
    assert len(report["rounds"]) == 2
    for entry in report["rounds"]:
        assert entry["packets"] == sum(entry["by_path"]) > 0
        assert 0 < entry["thread_cpu_s"] <= entry["cpu_s"]
    assert interfaces() == before


@pytest.mark.root
def test_the_report_for_people_names_the_figures():
    done = bench("--rounds", "1", "--seconds", "0.1", "--entries", "0", "--target", "softswitch")
    assert done.returncode == 0, done.stderr
    assert "packets/s" in done.stdout and "softswitch" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--rounds", "0"], 2, "--rounds is from 1 to 1000"),
        (["--size", "2000"], 2, "--size is from 90 to 1514"),
        (["--size", "big"], 2, "invalid int value"),
    ],
)
def test_wrong_usage_is_told(arguments, code, message):
    done = bench(*arguments)
    assert done.returncode == code
    assert message in done.stderr


def test_a_missing_bmv2_is_exit_code_3(monkeypatch, capsys):
    from dlcp.bench.switch import add_arguments, run

    monkeypatch.setenv("PATH", "/nonexistent")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert run(parser.parse_args(["--target", "bmv2"])) == 3
    assert "simple_switch_grpc is not on PATH" in capsys.readouterr().err


def test_frames_are_right_in_every_field():
    scapy = pytest.importorskip("scapy.all")
    for size in (90, 91, 1450):
        for index, frame in enumerate(make_frames(28, size, *ENDS)):
            assert len(frame) == size
            packet = scapy.Ether(frame)
            again = packet.copy()
            del again[scapy.IP].chksum, again[scapy.IP].len, again[scapy.UDP].chksum, again[scapy.UDP].len
            assert bytes(again) == frame
            header = bytes(packet[scapy.UDP].payload)[:HEADER_BYTES]
            fields = HEADER.decode_one(header)
            assert (fields["priority"], fields["protected"]) == (index % 7, index // 7 % 2)
            assert packet[scapy.IP].tos >> 5 == index % 7

            assert check_ok(np.frombuffer(header, np.uint8).reshape(1, -1)).all()


class Swallower:
    """A switch that loses every tenth packet, in virtual time."""

    def __init__(self, every=0):
        self.every = every
        self.sent = 0
        self.time = 0.0
        self.most = 0

    def send(self, count):
        self.sent += count
        return count

    def read(self):
        self.time += 0.001
        out = max(0, self.sent - self.sent // self.every if self.every else self.sent)
        return [out // 2, out - out // 2]

    def clock(self):
        return self.time


def test_the_driver_counts_what_comes_out_and_notices_what_does_not(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    for every in (0, 10):
        switch = Swallower(every)
        result = drive(switch, switch, seconds=2, window=64, burst=16, clock=switch.clock)
        assert result.packets == sum(result.by_path) == switch.read()[0] + switch.read()[1]
        assert result.packets + result.lost == switch.sent
        assert bool(result.lost) == bool(every)
        assert 2 <= result.seconds < 3


@pytest.mark.root
def test_a_network_of_its_own_is_entered_and_left():
    def namespace():
        return Path("/proc/thread-self/ns/net").readlink()

    here = namespace()
    with private_network():
        assert namespace() != here
        make_pair("a0", "b0")
        counter = ArrivalCounter(["b0", "lo"])
        sender = BurstSender("a0", make_frames(8, 200, *ENDS))
        assert [sender.send(3) for _ in range(4)] == [3, 3, 2, 3]
        while sum(counter.read()) < 11:
            pass
        assert counter.read() == [11, 0]
        counter.close()
        sender.close()
        with pytest.raises(HostLacks, match="link add"):
            make_pair("a0", "b0")
    assert namespace() == here


@pytest.mark.root
def test_a_target_that_does_not_start_or_ends_is_told(tmp_path):
    with private_network(), (tmp_path / "log").open("wb") as log:
        with TargetProcess("softswitch", {1: "nosuchif"}, 9559, log) as target:
            with pytest.raises(HostLacks, match="softswitch did not start: softswitch: there is no network interface"):
                target.wait_until_listening()
            with pytest.raises(TargetDied, match="ended with exit code 2"):
                target.check()
        with TargetProcess("softswitch", {}, 9560, log) as target:
            target.wait_until_listening()
            target.check()
            os.kill(target.pid, signal.SIGKILL)
            os.waitid(os.P_PID, target.pid, os.WEXITED | os.WNOWAIT)
            with pytest.raises(TargetDied, match="ended by SIGKILL"):
                target.check()
