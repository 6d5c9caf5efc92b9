"""A network namespace for a benchmark: nothing in it is seen outside, and it is gone when the benchmark ends."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dlcp.errors import DLCPError

_CLONE_NEWNET: Final = 0x40000000
_PATIENCE_S: Final = 10.0


class HostLacks(DLCPError):
    """This host, or this process, cannot do what the benchmark needs."""


@contextmanager
def private_network() -> Iterator[None]:
    """Puts this thread, and the processes and threads that it starts meanwhile, into a network namespace of their own.

    Raises:
        HostLacks: Not permitted.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as here:
        if libc.unshare(_CLONE_NEWNET):
            raise HostLacks(
                f"a network namespace cannot be made ({os.strerror(ctypes.get_errno())}):"
                " run as root, or inside `unshare --user --map-root-user --net`"
            )
        try:
            _ip("link", "set", "lo", "up")
            yield
        finally:
            if libc.setns(here.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")


def make_pair(left: str, right: str) -> None:
    """Makes a pair of virtual Ethernet interfaces without offloads or addresses.

    Raises:
        HostLacks: The kernel or the ``ip`` command cannot.
    """
    _ip("link", "add", left, "type", "veth", "peer", "name", right)
    for name in (left, right):
        # Without an IPv6 address there are no router solicitations, which would be counted as forwarded packets.
        _ip("link", "set", name, "addrgenmode", "none")
        _ip("link", "set", name, "up")
    # Until the kernel has noticed the carrier, what is sent is lost without a word.
    deadline = time.monotonic() + _PATIENCE_S
    while not all("state UP" in _ip("-o", "link", "show", name) for name in (left, right)):
        if time.monotonic() > deadline:
            raise HostLacks(f"the interfaces {left} and {right} do not come up")
        time.sleep(0.001)


def _ip(*arguments: str) -> str:
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, timeout=30)
    except FileNotFoundError:
        raise HostLacks("the command `ip` is missing; install iproute2") from None
    if done.returncode:
        raise HostLacks(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


class ArrivalCounter:
    """Counts what arrives at interfaces, whether or not anybody listens there."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = {f"{name}:".encode(): index for index, name in enumerate(names)}
        # Kept open: it stays that of the namespace in which it was opened.
        self._file = Path("/proc/thread-self/net/dev").open("rb", buffering=0)

    def read(self) -> list[int]:
        """Returns the packets received at each interface since it was made."""
        self._file.seek(0)
        counts = [0] * len(self._names)
        for line in self._file.read(1 << 20).splitlines()[2:]:
            fields = line.split()
            index = self._names.get(fields[0])
            if index is not None:
                counts[index] = int(fields[2])
        return counts

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


__all__ = ["ArrivalCounter", "HostLacks", "make_pair", "private_network"]
