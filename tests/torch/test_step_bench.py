"""``dlcp bench step``: what it measures adds up, over loopback and over shaped links."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dlcp.bench.shaped import NoNamespacesError, ShapedStar, sweep
from dlcp.bench.sleeper import Sleeper
from dlcp.policy import Policy

SMALL = ["--ranks", "2", "--bytes", "200e3", "--layers", "4", "--compute", "0.02", "--steps", "2", "--turns", "4", "--json"]
NEEDS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "ethtool"))),
    reason="needs root, ip, tc and ethtool for network namespaces",
)


def run(*options):
    command = [sys.executable, "-m", "dlcp", "bench", "step", *SMALL, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)


@pytest.mark.parametrize("rate", ["none", pytest.param("50 Mbit/s", marks=NEEDS_ROOT)])
def test_the_report_adds_up(rate):
    done = run("--rate", rate)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    for name in ("pipelined", "pipelined_flat", "hook", "gloo"):
        found = report["candidates"][name]
        assert len(found["times_s"]) == 4 and report[f"{name}_s"] == found["p50_s"] >= 0.02
        assert found["min_s"] <= found["p50_s"] <= found["max_s"]
    assert report["ratio_hook"] == report["pipelined_s"] / report["hook_s"]
    assert report["ratio_gloo"] == report["pipelined_s"] / report["gloo_s"]
    assert report["switch"] == (None if rate == "none" else "dlcp")
    assert report["communication_ideal_s"] == (None if rate == "none" else 8 * 200e3 / 50e6)


@NEEDS_ROOT
@pytest.mark.parametrize("switch", ["dlcp", "fifo"])
def test_the_switch_is_a_plain_one_or_enforces_classes(switch):
    done = run("--rate", "50 Mbit/s", "--switch", switch, "--turns", "1", "--steps", "2")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["switch"] == switch
    assert set(report["candidates"]) == {"pipelined", "pipelined_flat", "hook", "gloo"}
    assert all(len(found["times_s"]) == 1 and found["p50_s"] >= 0.02 for found in report["candidates"].values())
    assert not [name for name in left_by_benchmarks() if not Path("/proc", name.split("-")[2]).exists()]


@NEEDS_ROOT
@pytest.mark.parametrize("policy", [None, Policy()], ids=["fifo", "dlcp"])
def test_queues_at_the_switch(policy):
    """A plain switch has one FIFO a port; a DLCP switch has the queues that the exported script makes."""
    with ShapedStar(2, 10_000_000, 10, policy) as star:
        shown = subprocess.run(
            ["ip", "netns", "exec", star._middle, "tc", "-j", "qdisc", "show", "dev", "eth1"],
            capture_output=True,
            text=True,
            check=True,
        )
        kinds = [entry["kind"] for entry in json.loads(shown.stdout)]
    assert kinds.count("pfifo") == (policy is None) and (len(kinds) > 2) == (policy is not None), kinds


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--rate", "fast"], "not a number with a unit"), (["--ranks", "1"], "from 2"), (["--switch", "hub"], "invalid choice")],
)
def test_wrong_usage(options, message):
    done = run(*options)
    assert done.returncode == 2 and message in done.stderr


@NEEDS_ROOT
def test_a_star_leaves_nothing_behind():
    def namespaces():
        return subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout

    with ShapedStar(2, 10_000_000, 10) as star:
        assert all(name in namespaces() for name in star.names)
        sent = subprocess.run(
            ["ip", "netns", "exec", star.names[0], *"ping -c 1 -W 5".split(), star.addresses[1]],
            capture_output=True,
            check=False,
        )
        assert sent.returncode == 0
        made = [*star.names]
    assert not any(name in namespaces() for name in made)


def left_by_benchmarks():
    return [path.name for path in Path("/run/netns").glob("dlcp-bench-*")]


def mine(pid):
    return [path.name for path in Path("/run/netns").glob(f"dlcp-bench-{pid}-*")]


@NEEDS_ROOT
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_killed_it_leaves_nothing_or_the_next_one_clears_up(number):
    code = """if True:
        import sys, time
        from dlcp.bench.shaped import ShapedStar, ended_by_sigterm
        with ended_by_sigterm(), ShapedStar(2, 10_000_000):
            print("up", flush=True)
            sys.stdin.read()"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"up\n" and len(mine(process.pid)) == 3
        process.send_signal(number)
        process.wait(timeout=30)
    if number == signal.SIGTERM:
        assert process.returncode == 128 + number
    else:
        sweep()
    assert not mine(process.pid)


def test_without_tools_it_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NoNamespacesError, match="ip is missing"):
        ShapedStar(2, 1_000_000)


def test_the_model_sleeps_and_has_its_size():
    model = Sleeper(4, 40_000, 0.0)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(40_000, rel=0.05)
