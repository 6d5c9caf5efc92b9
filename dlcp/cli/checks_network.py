"""Tries network namespaces and queueing disciplines for real, inside a namespace that is made for it and removed again."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dlcp.cli.checks import Check, output_of

_QDISCS: Final = (
    ("netem", "netem delay 1ms", "delay and random loss by the kernel; an emulated switch adds them instead", "sch_netem"),
    ("htb", "htb default 1", "links with a set rate", "sch_htb"),
    ("tbf", "tbf rate 10mbit burst 32kb latency 10ms", "links with a set rate and a bounded queue", "sch_tbf"),
    ("prio", "prio bands 8 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0", "strict priority by the kernel; HTB stands in", "sch_prio"),
    ("fq", "fq", "pacing by the kernel; the transport paces itself", "sch_fq"),
    (
        "red",
        "red limit 60000 min 5000 max 10000 avpkt 1000 burst 10 bandwidth 10mbit ecn",
        "ECN marks from the kernel, as a commodity switch sets them",
        "sch_red",
    ),
    ("clsact", "", "dropping by class at egress without P4 (tc-bpf)", "sch_ingress"),
)


@contextmanager
def namespace() -> Iterator[tuple[str, str]]:
    """Makes a network namespace and yields its name and, if it could not be made, the reason; removes it again."""
    name = f"dlcp-doctor-{os.getpid()}-{secrets.token_hex(3)}"
    code, output = output_of(["ip", "netns", "add", name])
    try:
        yield name, "" if code == 0 else _last_line(output) or f"ip netns add: exit code {code}"
    finally:
        if code == 0:
            output_of(["ip", "netns", "del", name])


def network() -> Iterator[Check]:
    """Yields what namespaces, virtual links and queueing disciplines this kernel gives this user."""
    with namespace() as (name, failure):
        inside = ["ip", "netns", "exec", name]
        made = not failure
        yield Check(
            "netns",
            "Network",
            "Network namespaces",
            made,
            failure or "made one and removed it",
            "emulated networks on this host",
            "run as root, with iproute2 installed and kernel option NET_NS",
        )
        pairs = (
            ("veth", "type veth peer name dlcp1", "Virtual links (veth)", "VETH"),
            ("bridge", "type bridge", "Bridges", "BRIDGE"),
        )
        for kind, arguments, what, option in pairs:
            ok, detail = _attempt([*inside, "ip", "link", "add", f"dlcp-{kind}", *arguments.split()], failure)
            yield Check(
                f"link.{kind}",
                "Network",
                what,
                ok,
                detail,
                "emulated networks on this host",
                f"kernel option {option}, as root",
            )
        for kind, arguments, lost, module in _QDISCS:
            place = ["clsact"] if kind == "clsact" else ["root", *arguments.split()]
            ok, detail = _attempt([*inside, "tc", "qdisc", "replace", "dev", "lo", *place], failure)
            if ok:
                # tc may succeed without effect; what counts is what the kernel lists afterwards.
                _, listed = output_of([*inside, "tc", "qdisc", "show", "dev", "lo"])
                ok = f"qdisc {kind} " in listed
                detail = "works" if ok else "accepted, but not in effect"
                output_of([*inside, "tc", "qdisc", "del", "dev", "lo", "clsact" if kind == "clsact" else "root"])
            yield Check(
                f"tc.{kind}",
                "Network",
                f"Queue discipline {kind}",
                ok,
                detail,
                lost,
                f"modprobe {module} (kernel module), as root",
            )


def _attempt(command: list[str], failure: str) -> tuple[bool, str]:
    if failure:
        return False, "not tried: there is no namespace to try it in"
    code, output = output_of(command)
    return code == 0, "works" if code == 0 else _last_line(output) or f"exit code {code}"


def _last_line(output: str) -> str:
    lines = output.splitlines()
    return lines[-1][:80] if lines else ""
