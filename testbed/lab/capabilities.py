"""What this host and this process can do for an emulated network, found out by trying, and what is lost without it.

Everything is tried in a network namespace that is gone at the end, and read back: ``tc`` may succeed without effect.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Final

from testbed.lab.errors import HostLacks


@dataclass(frozen=True)
class Capability:
    """One thing.

    Attributes:
        key: Short name.
        what: In words.
        ok: Whether it is there.
        lost: What is lost without it.
        remedy: How to get it.
        detail: What was found.
    """

    key: str
    what: str
    ok: bool
    lost: str
    remedy: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.what}{f' ({self.detail})' if self.detail else ''}: {self.lost}; {self.remedy}"


_COMMANDS: Final = {
    "mnexec": ("mininet", "no emulated networks"),
    "ip": ("iproute2", "no emulated networks"),
    "tc": ("iproute2", "no shaped links"),
    "bridge": ("iproute2", "no bridge or kernel switches"),
    "ethtool": ("ethtool", "offloads stay on, and queues count super-packets"),
    "ping": ("iputils-ping", "networks are not checked before use"),
}
_MODULES: Final = {
    "mininet": ("testbed", "no emulated networks"),
    "finsy": ("p4", "no P4 switches"),
    "grpc": ("p4", "no P4 switches"),
}
_KERNEL: Final = {
    "veth": ("virtual links", "no emulated networks", "kernel option VETH"),
    "htb": ("queueing discipline htb", "no shaped links", "modprobe sch_htb"),
    "pfifo": ("queueing disciplines pfifo and bfifo", "no bounded queues", "a kernel with NET_SCHED"),
    "bridge_link": ("bridges", "no bridge or kernel switches", "modprobe bridge"),
    "netem": ("queueing discipline netem", "delay and loss by the switch or a relay in user space instead", "modprobe sch_netem"),
    "cls_bpf": ("classifier bpf", "no kernel switches", "modprobe cls_bpf"),
}
_SCRIPT: Final = """\
try() { key=$1; shift; if said=$("$@" 2>&1); then echo "$key ok"; else echo "$key no $(echo $said | tail -c 100)"; fi; }
shown() { tc qdisc show dev $1 | grep -q "qdisc $2 "; }
try veth ip link add pa type veth peer name pb
try bridge_link ip link add pbr type bridge
class() { tc class add dev pa parent 1: classid 1:1 htb rate 1mbit; }
htb() { tc qdisc add dev pa root handle 1: htb default 1 && class && shown pa htb; }
try htb htb
pfifo() { tc qdisc add dev pa parent 1:1 handle 10: pfifo limit 5 && shown pa pfifo; }
try pfifo pfifo
try cls_bpf tc filter add dev pa parent 1: protocol all prio 1 bpf bytecode '1,6 0 0 4294967295,'
netem() { tc qdisc add dev pb root netem delay 1ms && shown pb netem; }
try netem netem
"""

_ALWAYS: Final = ("namespaces", "mnexec", "ip", "tc", "ethtool", "ping", "mininet", "veth", "htb", "pfifo")
_NEEDS: Final = {
    "softswitch": ("finsy", "grpc", "packet_socket"),
    "bmv2": ("finsy", "grpc", "simple_switch_grpc", "packet_socket"),
    "kernel": ("bridge", "bridge_link", "cls_bpf", "bpf"),
    "bridge": ("bridge", "bridge_link"),
}


@cache
def probe() -> dict[str, Capability]:
    """Tries everything once in the life of this process, and returns what was found, by key."""
    found: dict[str, Capability] = {}

    def add(key: str, what: str, ok: bool, lost: str, remedy: str, detail: str = "") -> None:
        found[key] = Capability(key, what, ok, lost, remedy, detail)

    for command, (package, lost) in _COMMANDS.items():
        path = shutil.which(command)
        add(command, f"the command {command}", path is not None, lost, f"install {package}", "" if path else "missing")
    for module, (extra, lost) in _MODULES.items():
        there = find_spec(module) is not None
        add(module, f"the module {module}", there, lost, f"pip install 'dlcp[{extra}]'", "" if there else "missing")
    bmv2 = shutil.which("simple_switch_grpc")
    add(
        "simple_switch_grpc",
        "the command simple_switch_grpc",
        bmv2 is not None,
        "no BMv2 switches",
        "build BMv2 and put it on PATH",
        "" if bmv2 else "missing",
    )
    said = _in_namespace(_SCRIPT)
    refused = isinstance(said, str)
    add(
        "namespaces",
        "network namespaces",
        not refused,
        "no emulated networks",
        "run as root, or where the kernel lets users make user namespaces",
        said if isinstance(said, str) else "",
    )
    for key, (what, lost, remedy) in _KERNEL.items():
        answer = "not tried" if isinstance(said, str) else said.get(key, "not tried")
        add(key, what, answer == "ok", lost, remedy, "" if answer == "ok" else answer)
    problem = _packet_socket()
    add("packet_socket", "packet sockets", not problem, "no switches in user space", "run as root (CAP_NET_RAW)", problem)
    problem = _bpf()
    add("bpf", "bpf(2)", not problem, "no kernel switches", "run as real root (CAP_BPF), not in a user namespace", problem)
    return found


def require(target: str, *, wires: bool = False) -> None:
    """Makes sure that this host can do what a network needs.

    Args:
        target: What its switches are.
        wires: Whether it has relays in user space.

    Raises:
        HostLacks: It cannot.
    """
    found = probe()
    keys = [*_ALWAYS, *_NEEDS[target], *(["packet_socket"] if wires else [])]
    if not found["namespaces"].ok:
        keys = [key for key in keys if key not in _KERNEL]  # could not be tried
    missing = [str(found[key]) for key in dict.fromkeys(keys) if not found[key].ok]
    if missing:
        raise HostLacks(missing)


def _in_namespace(script: str) -> dict[str, str] | str:
    """Runs a script in a network namespace and returns its answers by key; or why there is no namespace."""
    if shutil.which("unshare") is None:
        return "the command unshare is missing (util-linux)"
    try:
        done = subprocess.run(
            ["unshare", "--net", "sh", "-s"], input=script, capture_output=True, text=True, timeout=30, check=False
        )
    except subprocess.TimeoutExpired:
        return "no answer within 30 s"
    if done.returncode and not done.stdout:
        return " ".join(done.stderr.split())[-100:] or f"exit code {done.returncode}"
    answers = {}
    for line in done.stdout.splitlines():
        key, verdict, *detail = line.split(maxsplit=2)
        answers[key] = "ok" if verdict == "ok" else (detail[0].strip() if detail else "refused")
    return answers


def _packet_socket() -> str:
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    except (OSError, AttributeError) as error:
        return str(error)
    return ""


def _bpf() -> str:
    from dlcp.fabric.export.tc_script import BPF_MAP_CREATE, BPF_MAP_TYPE_ARRAY, Failed, bpf

    try:
        os.close(bpf(BPF_MAP_CREATE, BPF_MAP_TYPE_ARRAY.to_bytes(4, "little") + b"\4\0\0\0" + b"\4\0\0\0" + b"\1\0\0\0", "a map"))
    except Failed as error:
        return str(error)
    return ""


__all__ = ["Capability", "probe", "require"]
