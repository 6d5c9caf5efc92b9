"""A network namespace with veth pairs for one test, and ways into it."""

import ctypes
import os
import shutil
import socket
import subprocess
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def _enter(descriptor):
    if _libc.setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def hear(name):
    """A raw socket at an interface, which does not hear itself."""
    handle = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    handle.setsockopt(263, 23, 1)  # PACKET_IGNORE_OUTGOING
    handle.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE
    handle.bind((name, 3))
    handle.settimeout(10)
    return handle


class Lab:
    """One namespace; ``s1`` is the switch's end of a pair and ``h1`` the other.  Offloads are off, IPv6 keeps quiet."""

    def __init__(self):
        self.name = f"sw-{os.getpid()}-{uuid.uuid4().hex[:8]}"

    def run(self, *command, check=True):
        return subprocess.run(
            ["ip", "netns", "exec", self.name, *command], check=check, capture_output=True, text=True, timeout=30
        ).stdout

    def ip(self, *command):
        self.run("ip", *command)

    def pair(self, number, *, offload=False, mtu=1500):
        left, right = f"s{number}", f"h{number}"
        self.ip("link", "add", left, "mtu", str(mtu), "type", "veth", "peer", "name", right, "mtu", str(mtu))
        for name in (left, right):
            if not offload:
                self.run("ethtool", "-K", name, "tx", "off", "rx", "off")
            self.ip("link", "set", name, "up")
        # Until the kernel has noticed the carrier, what is sent is lost without a word.
        while not all("state UP" in self.run("ip", "-o", "link", "show", name) for name in (left, right)):
            pass

    @contextmanager
    def inside(self):
        """Sockets that this thread opens meanwhile belong to the namespace."""
        with Path("/proc/thread-self/ns/net").open() as here, Path(f"/run/netns/{self.name}").open() as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(here.fileno())

    def host(self, number):
        """A raw socket at the far end of a pair."""
        with self.inside():
            return hear(f"h{number}")


@contextmanager
def make_lab(*numbers, **options):
    if os.geteuid() or shutil.which("ip") is None or shutil.which("ethtool") is None:
        pytest.skip("needs root, ip and ethtool")
    lab = Lab()
    done = subprocess.run(["ip", "netns", "add", lab.name], capture_output=True, text=True, timeout=30)
    if done.returncode:
        pytest.skip(f"no network namespaces here: {done.stderr}")
    try:
        lab.run("sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1", check=False)
        lab.ip("link", "set", "lo", "up")
        for number in numbers:
            lab.pair(number, **options)
        yield lab
    finally:
        subprocess.run(["ip", "netns", "del", lab.name], check=True, capture_output=True, timeout=30)
