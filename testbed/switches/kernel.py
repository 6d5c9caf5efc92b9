"""Switches that are the kernel's: a bridge with a static table in the namespace of each.

Kind ``bridge``: one FIFO before each link, as in a network that knows nothing of the job.  Kind ``kernel``: strict-priority
queues, and a classifier that marks and drops, from the same exporter that writes the configuration of real Linux switches
(:mod:`dlcp.fabric.export`).

A bridge sends what is for one host one way: where several are equally near, hosts are spread over them.
"""

from __future__ import annotations

import json
import re
import sys
import zlib
from collections.abc import Iterable
from typing import Any, ClassVar, Final

from dlcp.fabric.export import export_text
from dlcp.topology import Topology
from testbed.lab import namespaces
from testbed.lab.errors import LabError
from testbed.lab.plan import PortPlan
from testbed.switches.base import Context, Switches

BRIDGE: Final = "br0"
_BURST_S: Final = 0.0005


def forwarding(topology: Topology, switch: str) -> list[str]:
    """Returns the lines for ``bridge`` that make its table: every host behind one port, nothing learnt, nothing flooded.

    A network with several paths has loops, in which a flooded frame would go round for ever.
    """
    lines = []
    for arc in topology.graph.leaving(switch):
        lines.append(f"link set dev eth{arc.port} learning off flood off mcast_flood off bcast_flood off")
    for host in topology.hosts:
        ports = topology.routes.next_ports(switch, host.name)
        if ports:
            port = ports[zlib.crc32(f"{switch} {host.name}".encode()) % len(ports)]
            lines.append(f"fdb replace {topology.macs[host.name]} dev eth{port} master static")
    return lines


class Bridges(Switches):
    """Plain bridges with a FIFO before each link."""

    kind: ClassVar[str] = "bridge"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._names = list(context.plan.ports)

    def start(self) -> None:
        """Makes and configures all bridges, at once."""
        topology = self.context.plan.topology
        scripts = {}
        for name in self._names:
            ports = self.context.plan.ports[name]
            lines = [f"link add {BRIDGE} type bridge stp_state 0 mcast_snooping 0", f"link set {BRIDGE} up"]
            lines += [f"link set {port.interface} master {BRIDGE}" for port in ports]
            script = ["ip -batch - <<'END'", *lines, "END", "bridge -batch - <<'END'", *forwarding(topology, name), "END"]
            scripts[self.context.pids[name]] = "\n".join([*script, *self.queues(name)])
        namespaces.run_all(scripts, "making the bridges")
        self._check()

    def queues(self, name: str) -> list[str]:
        """Returns the part of a switch's script that makes its queues."""
        lines = ["tc -batch - <<'END'"]
        for port in self.context.plan.ports[name]:
            lines += [
                f"qdisc add dev {port.interface} root handle 1: htb default 1 r2q 1000",
                f"class add dev {port.interface} parent 1: classid 1:1 {shape(port, port.rate_bps)}",
                f"qdisc add dev {port.interface} parent 1:1 handle 10: pfifo limit {port.queue_packets}",
            ]
        return [*lines, "END"]

    def leaves(self) -> tuple[str, int]:
        """Returns what a port's queues are, and how many there are."""
        return "pfifo", 1

    def _check(self) -> None:
        """Reads back what the kernel has: ``tc`` does not always complain."""
        answers = namespaces.run_all(
            {self.context.pids[name]: f"tc qdisc show; bridge fdb show br {BRIDGE}" for name in self._names}, "reading queues"
        )
        leaf, count = self.leaves()
        topology = self.context.plan.topology
        for name in self._names:
            shown = answers[self.context.pids[name]]
            for port in self.context.plan.ports[name]:
                dev = port.interface
                found = len(re.findall(rf"^qdisc {leaf} \S+ dev {dev} ", shown, re.MULTILINE))
                if not re.search(rf"^qdisc htb \S+ dev {dev} root ", shown, re.MULTILINE) or found != count:
                    raise LabError(
                        f"{name}: {dev} has {found} queues, not {count}, or is not shaped: the kernel lacks HTB or {leaf}"
                    )
            missing = [host.name for host in topology.hosts if topology.macs[host.name] not in shown]
            if missing:
                raise LabError(f"{name}: the bridge does not know the way to {missing[0]}")

    def restart(self, switch: str) -> None:
        """Deletes the bridge with its queues, and makes it again."""
        raise LabError(f"{switch}: a {self.kind} switch is the kernel's and cannot be restarted")

    def set_rate(self, switch: str, port: PortPlan, rate_bps: int) -> None:
        """Changes the rate of a port."""
        script = f"tc class change dev {port.interface} parent 1: classid 1:1 {shape(port, rate_bps)}"
        namespaces.run_all({self.context.pids[switch]: script}, f"changing the rate of {switch}")

    def statistics(self) -> dict[str, Any]:
        """Returns for each port what its queues have sent, dropped and hold."""
        return port_statistics(self.context, self._names)

    def stop(self) -> None:
        """Does nothing: the bridges go with their namespaces."""


class KernelSwitches(Bridges):
    """Bridges with strict-priority queues and the exported classifier on each port."""

    kind: ClassVar[str] = "kernel"

    def queues(self, name: str) -> list[str]:
        """Returns the call of the exported script, which reads back by itself what it made."""
        return [f"'{sys.executable}' -I '{self._script(name)}' up >/dev/null"]

    def start(self) -> None:
        """Writes the scripts, and runs them where the bridges are."""
        for name in self._names:
            text = export_text("tc", self.context.plan.topology, self.context.policy, name, "eth{port}")
            self._script(name).write_text(text, encoding="utf-8")
        super().start()

    def leaves(self) -> tuple[str, int]:
        """Eight, limited in bytes."""
        return "bfifo", 8

    def set_rate(self, switch: str, port: PortPlan, rate_bps: int) -> None:
        """Refuses: the classifier's model of the queues has the rate built in."""
        raise LabError(f"{switch}: the rate of a kernel switch cannot be changed while it runs")

    def statistics(self) -> dict[str, Any]:
        """Adds what the classifier has counted, by class."""
        found = super().statistics()
        scripts = {self.context.pids[name]: f"'{sys.executable}' -I '{self._script(name)}' status --json" for name in self._names}
        answers = namespaces.run_all(scripts, "reading the classifiers")
        for name in self._names:
            for port in json.loads(answers[self.context.pids[name]]):
                found[name]["ports"][str(port["port"])]["classes"] = port["classes"]
        return found

    def _script(self, name: str) -> Any:
        return self.context.folder / f"{name}.tc.py"


def shape(port: PortPlan, rate_bps: int) -> str:
    """Returns the words for ``tc class`` that give a port a rate."""
    burst = max(2 * (port.mtu + 14), round(rate_bps / 8 * _BURST_S))
    return f"htb rate {rate_bps}bit ceil {rate_bps}bit burst {burst} cburst {burst} quantum {port.mtu + 14}"


def port_statistics(context: Context, names: Iterable[str]) -> dict[str, Any]:
    """Returns what the kernel's queues behind each port of switches have sent, dropped and hold (``tc -s``)."""
    answers = namespaces.run_all({context.pids[name]: "tc -s -j qdisc show" for name in names}, "reading statistics")
    return {
        name: {
            "ports": {
                str(port.number): _of_port(json.loads(answers[context.pids[name]]), port) for port in context.plan.ports[name]
            }
        }
        for name in names
    }


def _of_port(qdiscs: Iterable[dict[str, Any]], port: PortPlan) -> dict[str, Any]:
    own = [qdisc for qdisc in qdiscs if qdisc.get("dev") == port.interface]
    root = next((qdisc for qdisc in own if qdisc.get("root")), {})
    leaves = [qdisc for qdisc in own if qdisc.get("kind") in ("pfifo", "bfifo")]
    # The leaves of a kernel switch stand in the order of their classes, the least urgent first.
    leaves.sort(key=lambda qdisc: int(str(qdisc.get("parent", ":0")).rpartition(":")[2] or "0", 16))
    return {
        "rate_bps": port.rate_bps,
        "out_packets": root.get("packets", 0),
        "out_bytes": root.get("bytes", 0),
        "drops": {"queue-full": root.get("drops", 0)},
        "queues": [
            {
                "priority": number,
                "packets": leaf.get("qlen", 0),
                "bytes": leaf.get("backlog", 0),
                "sent": leaf.get("packets", 0),
                "dropped": leaf.get("drops", 0),
            }
            for number, leaf in enumerate(leaves)
        ],
    }


__all__ = ["Bridges", "KernelSwitches", "forwarding", "port_statistics", "shape"]
