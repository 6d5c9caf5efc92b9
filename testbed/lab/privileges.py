"""Without root: the lab in a user namespace, where its user is root over its own networks and nothing else.

Some things stay out of reach there: no bpf(2), so no kernel switches, and no socket buffers beyond the machine's limit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from testbed.lab.errors import HostLacks

_INSIDE: Final = "DLCP_TESTBED_USER_NAMESPACE"
_COMMAND: Final = ("unshare", "--user", "--map-root-user", "--net", "--mount")


def become_root(argv: Sequence[str] | None = None) -> None:
    """Returns if this process is root; else starts this command once more, inside a user namespace, in place of this process.

    To be called early: nothing that was done before lasts.

    Args:
        argv: The command; this process's own if left out.

    Raises:
        HostLacks: The kernel does not let this user do that; the message says so.
    """
    if os.geteuid() == 0:
        return
    problem = refusal()
    if problem:
        raise HostLacks([problem])
    command = [*_COMMAND, *(argv or [sys.executable, *sys.orig_argv[1:]])]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(command[0], command, {**os.environ, _INSIDE: "1"})


def refusal() -> str:
    """Returns why this process cannot get a user namespace with a network in it; empty if it can."""
    if shutil.which(_COMMAND[0]) is None:
        return "only root may make network namespaces, and unshare (util-linux) is missing, which makes them for other users"
    done = subprocess.run([*_COMMAND, "true"], capture_output=True, text=True, check=False, timeout=30)
    if done.returncode == 0:
        return ""
    said = " ".join(done.stderr.split())[-200:]
    knobs = {
        "/proc/sys/kernel/unprivileged_userns_clone": "0",
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",
        "/proc/sys/user/max_user_namespaces": "0",
    }
    closed = [name.removeprefix("/proc/sys/").replace("/", ".") for name, value in knobs.items() if _holds(name, value)]
    why = f" ({', '.join(closed)} forbids it)" if closed else ""
    return f"only root may make network namespaces, and this kernel makes no user namespaces for others{why}: {said}; run as root"


def inside() -> bool:
    """Whether this process is root only in a user namespace."""
    return outer_uid() != os.getuid() or os.environ.get(_INSIDE) == "1"


def outer_uid() -> int:
    """Returns this user's number outside of the user namespace, by ``/proc/self/uid_map``."""
    try:
        for line in Path("/proc/self/uid_map").read_text().splitlines():
            first, outside, count = (int(word) for word in line.split())
            if first <= os.getuid() < first + count:
                return outside + os.getuid() - first
    except (OSError, ValueError):
        pass
    return os.getuid()


def _holds(name: str, value: str) -> bool:
    try:
        return Path(name).read_text().strip() == value
    except OSError:
        return False


__all__ = ["become_root", "inside", "outer_uid", "refusal"]
