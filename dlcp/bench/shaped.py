"""A star of shaped links between network namespaces of its own, for measurements where the network is to be the limit.

Each rank has a namespace; a bridge in one more joins them.  Both ends of every link are shaped with HTB.  Hosts have a FIFO of a
given number of packets; so has the switch, or it is set up as ``dlcp switch export --vendor tc`` says: queues by class, selective
dropping, congestion marks.  Offloads are off: a queue would count a super-packet of 64 KB as one packet.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dlcp.errors import DLCPError

if TYPE_CHECKING:
    from dlcp.policy import Policy

_CLONE_NEWNET: Final = 0x40000000
_CLONE_NEWNS: Final = 0x00020000
_MS_BIND: Final = 4096
_MS_REC: Final = 16384
_MS_PRIVATE: Final = 1 << 18
_PREFIX: Final = "dlcp-bench-"
INTERFACE: Final = "eth0"
"""Name of the interface in every rank's namespace."""


class NoNamespacesError(DLCPError):
    """This process may not make network namespaces, or lacks the tools."""


class ShapedStar:
    """The network; a context manager that takes it down again.

    Args:
        ranks: Number of leaves.
        rate_bps: Rate of each link in each direction.
        queue_packets: Room before each link.
        policy: What the switch enforces; None: it is a plain one.

    Raises:
        NoNamespacesError: It cannot be built; the message says what is missing.
    """

    def __init__(self, ranks: int, rate_bps: int, queue_packets: int = 100, policy: Policy | None = None) -> None:
        for tool in ("ip", "tc", "ethtool"):
            if shutil.which(tool) is None:
                raise NoNamespacesError(f"{tool} is missing; install iproute2 and ethtool")
        if os.geteuid() != 0:
            raise NoNamespacesError("only root may make network namespaces")
        sweep()
        mark = f"{_PREFIX}{os.getpid()}-{secrets.token_hex(3)}"
        self._middle = f"{mark}-switch"
        self.names = [f"{mark}-{rank}" for rank in range(ranks)]
        self.addresses = [f"10.77.0.{rank + 1}" for rank in range(ranks)]
        self._made: list[str] = []
        try:
            self._build(rate_bps, queue_packets)
            if policy is not None:
                self._enforce(rate_bps, queue_packets, policy)
        except BaseException:
            self.close()
            raise

    def _build(self, rate_bps: int, queue_packets: int) -> None:
        for name in (self._middle, *self.names):
            _run("ip", "netns", "add", name)
            self._made.append(name)
        self._in(self._middle, "ip", "link", "add", "bridge", "type", "bridge", "mcast_snooping", "0")
        self._in(self._middle, "ip", "link", "set", "bridge", "up")
        for rank, (name, address) in enumerate(zip(self.names, self.addresses, strict=True)):
            port = f"eth{rank + 1}"
            self._in(name, "ip", "link", "add", INTERFACE, "type", "veth", "peer", "name", port, "netns", self._middle)
            self._in(self._middle, "ip", "link", "set", port, "master", "bridge", "up")
            self._in(name, "ip", "address", "add", f"{address}/24", "dev", INTERFACE)
            for link in ("lo", INTERFACE):
                self._in(name, "ip", "link", "set", link, "up")
            for where, link in ((name, INTERFACE), (self._middle, port)):
                self._in(where, "ethtool", "-K", link, *"tx off rx off gso off gro off tso off".split())
                self._in(where, *f"tc qdisc add dev {link} root handle 1: htb default 1 r2q 1000".split())
                rate = f"{rate_bps}bit"
                self._in(where, *f"tc class add dev {link} parent 1: classid 1:1 htb rate {rate} burst 3k quantum 3000".split())
                self._in(where, *f"tc qdisc add dev {link} parent 1:1 handle 10: pfifo limit {queue_packets}".split())
        shown = self._in(self._middle, "tc", "qdisc", "show")
        if shown.count("htb") != len(self.names):
            raise NoNamespacesError("the kernel has no HTB, so links cannot be shaped")

    def _enforce(self, rate_bps: int, queue_packets: int, policy: Policy) -> None:
        """Sets the switch up as a DLCP switch, by the script that would do so on a real one."""
        from dlcp.fabric.export import export_text
        from dlcp.topology import Star
        from dlcp.units import Buffer, Rate

        star = Star(hosts=len(self.names), rate=Rate(rate_bps), buffer=Buffer(queue_packets, "packets")).build()
        with tempfile.NamedTemporaryFile("w", prefix=_PREFIX, suffix=".tc.py", encoding="utf-8") as script:
            script.write(export_text("tc", star, policy, star.switches[0].name, "eth{port}"))
            script.flush()
            self._in(self._middle, sys.executable, "-I", script.name, "up")

    def _in(self, name: str, *command: str) -> str:
        return _run("ip", "netns", "exec", name, *command)

    def enter(self, rank: int) -> None:
        """Moves the calling process, which must have one thread, into a rank's namespace, for good."""
        libc = ctypes.CDLL(None, use_errno=True)
        with Path("/run/netns", self.names[rank]).open() as handle:
            _check(libc.setns(handle.fileno(), _CLONE_NEWNET), "setns")
        # Without a reachable name server every reverse look-up of a peer's address would take seconds.
        _check(libc.unshare(_CLONE_NEWNS), "unshare")
        _check(libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "mount /")
        with suppress(OSError):
            _check(libc.mount(b"/dev/null", b"/etc/resolv.conf", None, _MS_BIND, None), "mount resolv.conf")
        os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE

    def close(self) -> None:
        """Takes it all down; may be repeated."""
        for name in self._made:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
        self._made = []

    def __enter__(self) -> ShapedStar:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def sweep() -> list[str]:
    """Removes what killed processes have left behind, and nothing else; returns the names."""
    left = []
    for path in Path("/run/netns").glob(f"{_PREFIX}*"):
        pid = path.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            subprocess.run(["ip", "netns", "delete", path.name], capture_output=True, check=False)
            left.append(path.name)
    return left


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Lets SIGTERM leave by way of every ``finally`` on its way, as Ctrl-C does."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoNamespacesError(f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


__all__ = ["INTERFACE", "NoNamespacesError", "ShapedStar", "ended_by_sigterm", "sweep"]
