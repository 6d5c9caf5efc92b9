"""Interfaces: virtual links between the namespaces of nodes, addresses, neighbours, routes, offloads, and the hosts' shaping.

One script for each node, all at once.  Afterwards the kernel is asked what it has: a link that was asked for and is not shaped
is an error and not a faster network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network
from typing import Final

from dlcp.topology import Arc, Topology
from testbed.lab import namespaces
from testbed.lab.errors import LabError
from testbed.lab.plan import LabPlan, interface

OFFLOADS: Final = ("tx", "rx", "gso", "gro", "tso")
"""Switched off everywhere: a queue counts a super-packet of 64 KiB as one packet, and no relay mends checksums."""
HOST_QUEUE: Final = 1000
"""Packets that wait in a host, as in a Linux host's transmit queue (txqueuelen)."""
_BURST_S: Final = 0.0005
_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


def make_links(plan: LabPlan, pids: Mapping[str, int]) -> None:
    """Makes all virtual links, each end in the namespace of its node.

    Args:
        plan: What is built.
        pids: A process in the namespace of each node.
    """
    lines = [
        f"link add name {a.interface} netns {pids[a.node]} mtu {plan.topology.links[link].mtu} type veth"
        f" peer name {b.interface} netns {pids[b.node]} mtu {plan.topology.links[link].mtu}"
        for a, b, link in plan.pairs
    ]
    if lines:
        namespaces.run(["ip", "-batch", "-"], text="\n".join(lines) + "\n", what="making the links")


def configure(plan: LabPlan, pids: Mapping[str, int]) -> None:
    """Configures all interfaces, and reads back what matters.

    Raises:
        LabError: A command failed, or the kernel has not what it was told.
    """
    topology = plan.topology
    interfaces: dict[str, list[str]] = {node: [] for node in pids}
    for a, b, _ in plan.pairs:
        interfaces[a.node].append(a.interface)
        interfaces[b.node].append(b.interface)
    scripts = {}
    for node, names in interfaces.items():
        is_host = topology.graph.is_host(node) if not node.startswith(".") else False
        lines = [_PREPARE, *(f"ethtool -K {name} {' '.join(f'{each} off' for each in OFFLOADS)}" for name in names)]
        if is_host:
            lines += [_QUIET_NAMES, *_batch("ip", host_links(topology, node)), *_batch("ip", host_routes(topology, node))]
            lines += _batch("tc", [line for arc in topology.graph.leaving(node) for line in shaping(topology, arc)])
        else:
            lines += _batch("ip", ["link set lo up", *(f"link set {name} up" for name in names)])
        lines += ["echo '== qdiscs'; tc qdisc show"]
        lines += [
            f"echo '== classes {name}'; tc class show dev {name}; echo '== offloads {name}'; ethtool -k {name}" for name in names
        ]
        scripts[pids[node]] = "\n".join(lines)
    answers = namespaces.run_all(scripts, "configuring the interfaces")
    for node, pid in pids.items():
        _, *sections = re.split(r"^== (.*)\n", answers[pid], flags=re.MULTILINE)
        shown = dict(zip(sections[::2], sections[1::2], strict=True))
        for name in interfaces[node]:
            _check_offloads(node, name, shown[f"offloads {name}"])
        if not node.startswith(".") and topology.graph.is_host(node):
            for arc in topology.graph.leaving(node):
                name = interface(arc.port)
                check_shaped(node, name, arc.rate, shown["qdiscs"], shown[f"classes {name}"])


# Without IPv6 there are no router solicitations, which would fill queues and be counted.
_PREPARE: Final = """\
for f in all default; do
  [ ! -e /proc/sys/net/ipv6/conf/$f/disable_ipv6 ] || echo 1 >/proc/sys/net/ipv6/conf/$f/disable_ipv6
  echo 0 >/proc/sys/net/ipv4/conf/$f/rp_filter
done"""

# Without a reachable name server every look-up of a peer's address would take seconds.
_QUIET_NAMES: Final = "[ ! -e /etc/resolv.conf ] || mount --bind /dev/null /etc/resolv.conf"


def _batch(command: str, lines: Iterable[str]) -> list[str]:
    return [f"{command} -batch - <<'END'", *lines, "END"]


def host_links(topology: Topology, host: str) -> list[str]:
    """Returns the lines for ``ip`` that give a host its addresses and neighbours."""
    prefix = IPv4Network(topology.subnet).prefixlen
    lines = ["link set lo up"]
    for number, arc in enumerate(topology.graph.leaving(host)):
        name = interface(arc.port)
        lines.append(f"link set {name} address {topology.macs[host]} up")
        if number == 0:
            lines.append(f"address add {topology.addresses[host]}/{prefix} dev {name} noprefixroute")
        lines += [
            f"neigh replace {topology.addresses[other.name]} lladdr {topology.macs[other.name]} nud permanent dev {name}"
            for other in topology.hosts
            if other.name != host
        ]
    return lines


def host_routes(topology: Topology, host: str, congestion: str = "") -> list[str]:
    """Returns the lines for ``ip`` that lead to all other hosts; ``congestion``: TCP's congestion control on these routes."""
    control = f" congctl {congestion}" if congestion else ""
    lines = []
    for other in topology.hosts:
        ports = topology.routes.next_ports(host, other.name)
        if other.name != host and ports:
            where = f"dev {interface(ports[0])} src {topology.addresses[host]}"
            lines.append(f"route replace {topology.addresses[other.name]}/32 {where} scope link{control}")
    return lines


def shaping(topology: Topology, arc: Arc, rate_bps: int | None = None) -> list[str]:
    """Returns the lines for ``tc`` that shape what a host sends; with a rate, those that change it later."""
    rate, frame, dev = rate_bps or arc.rate, topology.link(arc).mtu + 14, interface(arc.port)
    burst = max(2 * frame, round(rate / 8 * _BURST_S))
    shape = f"htb rate {rate}bit ceil {rate}bit burst {burst} cburst {burst} quantum {frame}"
    if rate_bps is not None:
        return [f"class change dev {dev} parent 1: classid 1:1 {shape}"]
    return [
        f"qdisc add dev {dev} root handle 1: htb default 1 r2q 1000",
        f"class add dev {dev} parent 1: classid 1:1 {shape}",
        f"qdisc add dev {dev} parent 1:1 handle 10: pfifo limit {HOST_QUEUE}",
    ]


def check_shaped(node: str, dev: str, rate_bps: int, qdiscs: str, classes: str) -> None:
    """Makes sure that an interface is shaped, by what ``tc qdisc show`` and ``tc class show dev`` print.

    Raises:
        LabError: It is not.
    """
    if not re.search(rf"^qdisc htb 1: dev {dev} root ", qdiscs, re.MULTILINE):
        raise LabError(f"{node}: {dev} is not shaped: the kernel has no HTB there")
    if not re.search(rf"^qdisc pfifo 10: dev {dev} parent 1:1 ", qdiscs, re.MULTILINE):
        raise LabError(f"{node}: {dev} has no queue of its own: the kernel has no pfifo there")
    rates = re.findall(r"^class htb 1:1 root .*? rate ([\d.]+)([KMG]?)bit ", classes, re.MULTILINE)
    if not any(abs(float(number) * _UNITS[unit] / rate_bps - 1) < 0.02 for number, unit in rates):
        raise LabError(f"{node}: {dev} is to send at {rate_bps} bit/s, but the kernel has {rates or 'no rate'}")


def _check_offloads(node: str, dev: str, answer: str) -> None:
    wanted = ("tx-checksumming", "generic-segmentation-offload", "generic-receive-offload", "tcp-segmentation-offload")
    left = [each for each in wanted if re.search(rf"^{each}: on", answer, re.MULTILINE)]
    if left:
        raise LabError(f"{node}: {dev} still has {', '.join(left)} on")


__all__ = ["HOST_QUEUE", "check_shaped", "configure", "host_links", "host_routes", "make_links", "shaping"]
