"""Jobs over networks of their own: MTU and links that go down."""

import contextlib
import ctypes
import itertools
import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

import dlcp
from dlcp.errors import ConfigError, MtuError, PeerLostError, RemoteError
from tests.collectives.processes import Ranks, note, policy, run_ranks

pytestmark = pytest.mark.root

_names = itertools.count()


def run(*command):
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
    if done.returncode:
        pytest.skip(f"{' '.join(command)}: {done.stderr.strip()}")


def enter(name):
    """Moves the calling process, which has one thread, into a network namespace."""
    with Path(f"/run/netns/{name}").open() as handle:
        if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), 0):
            raise OSError(ctypes.get_errno(), "setns")


@pytest.fixture
def router():
    """Two hosts, 10.0.1.2 and 10.0.2.2, with a router between them; all interfaces take 9000 bytes."""
    number = next(_names)
    left, middle, right = (f"dlcp-c{os.getpid()}-{number}{side}" for side in "lmr")
    with contextlib.ExitStack() as stack:
        for name in (left, middle, right):
            run("ip", "netns", "add", name)
            stack.callback(subprocess.run, ["ip", "netns", "delete", name], capture_output=True, timeout=20, check=False)
            run("ip", "-n", name, "link", "set", "lo", "up")
        for k, host in ((1, left), (2, right)):
            run("ip", "-n", host, "link", "add", "v0", "mtu", "9000", "type", "veth", "peer", "name", f"v{k}", "netns", middle)
            run("ip", "-n", middle, "link", "set", f"v{k}", "mtu", "9000", "up")
            run("ip", "-n", middle, "address", "add", f"10.0.{k}.1/24", "dev", f"v{k}")
            run("ip", "-n", host, "address", "add", f"10.0.{k}.2/24", "dev", "v0")
            run("ip", "-n", host, "link", "set", "v0", "up")
            run("ip", "-n", host, "route", "add", "default", "via", f"10.0.{k}.1")
        run("ip", "netns", "exec", middle, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        yield left, middle, right


def _join(rank, folder, hosts, rules):
    enter(hosts[rank])
    begin = time.monotonic()
    try:
        with dlcp.Communicator(rank, 2, dlcp.FileStore(folder), policy=rules, host=f"10.0.{rank + 1}.2") as communicator:
            return communicator.allreduce(np.ones(200_000, np.float32), op="sum")[-1], communicator.stride
    except dlcp.DLCPError as error:
        return error, time.monotonic() - begin


def test_packets_of_full_size_pass(router):
    left, _, right = router
    assert run_ranks(_join, 2, (left, right), policy(wire={"mtu": 9000})) == [(2.0, 8920)] * 2


def test_the_smallest_interface_decides_when_the_policy_leaves_it_open(router):
    left, middle, right = router
    run("ip", "-n", right, "link", "set", "v0", "mtu", "1500")
    run("ip", "-n", middle, "link", "set", "v2", "mtu", "1500")
    assert run_ranks(_join, 2, (left, right), policy()) == [(2.0, 1424)] * 2


def test_an_interface_that_does_not_take_the_policys_packets(router):
    """Known to both ranks before anything is sent."""
    left, _, right = router
    run("ip", "-n", right, "link", "set", "v0", "mtu", "1500")
    for error, seconds in run_ranks(_join, 2, (left, right), policy(wire={"mtu": 9000})):
        assert isinstance(error, MtuError), error
        assert "wire.mtu is 9000" in str(error) and "rank 1 (10.0.2.2) takes 1500 bytes" in str(error)
        assert seconds < 12.0


@pytest.mark.parametrize("how", ["told", "swallowed"])
def test_a_link_on_the_way_that_does_not_take_the_policys_packets(router, how):
    """Whether the router says so (ICMP), or large packets just disappear."""
    left, middle, right = router
    if how == "told":
        run("ip", "-n", middle, "link", "set", "v2", "mtu", "1500")
    else:
        # A token bucket drops what is larger than the bucket.
        run("tc", "-n", middle, "qdisc", "add", "dev", "v2", "root", "tbf", "rate", "1gbit", "burst", "2000", "latency", "50ms")
    results = run_ranks(_join, 2, (left, right), policy(wire={"mtu": 9000}, timeouts={"connect_s": 1.5}))
    (first, seconds), (second, _) = results
    assert isinstance(first, MtuError), first
    if how == "swallowed":
        assert "rank 1 at 10.0.2.2" in str(first) and "not to datagrams of 8968 bytes" in str(first)
        assert 1.5 <= seconds
    # Nothing is wrong in the other direction: it learns from the first.
    assert isinstance(second, RemoteError | MtuError) and "MtuError" in f"{type(second).__name__} {second}"
    assert all(seconds < 12.0 for _, seconds in results)


def test_an_interface_too_small_for_any_packet(router):
    left, _, right = router
    run("ip", "-n", right, "link", "set", "v0", "mtu", "300")
    (first, _), (second, _) = run_ranks(_join, 2, (left, right), policy())
    assert isinstance(second, ConfigError) and "MTU 300" in str(second) and "256 are needed" in str(second)
    assert isinstance(first, RemoteError) and first.rank == 1 and "256 are needed" in first.reason


def _until_error(rank, folder, hosts):
    enter(hosts[rank])
    communicator = dlcp.Communicator(rank, 2, dlcp.FileStore(folder), policy=policy(), host=f"10.0.{rank + 1}.2")
    step = 0
    begin = time.monotonic()
    try:
        while True:
            begin = time.monotonic()
            communicator.allreduce(np.ones(200_000, np.float32))
            step += 1
            if step == 5:
                note(rank)
    except dlcp.DLCPError as error:
        return error, time.monotonic() - begin
    finally:
        communicator.close()


@pytest.mark.parametrize("how", ["down", "smaller"])
def test_a_link_that_changes_in_the_middle(router, how):
    """Down: both name each other.  Smaller: whoever is told raises MtuError, and its last words still pass."""
    left, middle, right = router
    with Ranks(_until_error, 2, (left, right)) as ranks:
        ranks.notes(2)
        if how == "down":
            run("ip", "-n", middle, "link", "set", "v2", "down")
        else:
            run("ip", "-n", middle, "link", "set", "v2", "mtu", "1500")
        results = ranks.results(20)
    for rank, (error, seconds) in enumerate(results):
        if how == "down":
            assert isinstance(error, PeerLostError) and error.rank == 1 - rank, error
        else:
            assert isinstance(error, MtuError | RemoteError | PeerLostError), error
        assert seconds < 15.0
    if how == "smaller":
        assert any(isinstance(error, MtuError) for error, _ in results), results
