"""The lab: a topology as a network of namespaces on this machine, with switches, links and everything that can happen to them."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from dlcp.policy import Policy
from dlcp.topology import Topology
from testbed.lab import namespaces, wiring
from testbed.lab.capabilities import require
from testbed.lab.errors import LabError
from testbed.lab.ledger import Ledger, Remains, clean_up
from testbed.lab.plan import WIRES, PortPlan, check, interface, make_plan
from testbed.lab.processes import MARK
from testbed.lab.reach import wait_until_reachable
from testbed.lab.signals import uninterrupted
from testbed.switches import make_switches, switches_delay, warm_up
from testbed.switches.base import Context, Switches, TraceFile
from testbed.switches.nursery import Nursery
from testbed.switches.relays import Relays

ALL: Final = "all"


@dataclass(frozen=True)
class HostNode:
    """A host.

    Attributes:
        name: Its name in the topology.
        pid: A process in its namespaces, as long as the lab is up.
        address: IPv4 address.
        mac: MAC address.
        interface: Its first interface.
    """

    name: str
    pid: int
    address: str
    mac: str
    interface: str

    @property
    def namespace(self) -> Path:
        """Its network namespace, as a file for setns(2)."""
        return Path(f"/proc/{self.pid}/ns/net")


class Lab:
    """A network; a context manager.

    What earlier runs left whose drivers are gone is taken away first (:attr:`remains`).  Whatever happens, nothing of this
    network is left when the block ends; and if this process is killed, the next run takes away what it left.

    Args:
        topology: The network.
        target: What its switches are: ``softswitch``, ``bmv2``, ``kernel`` or ``bridge``.
        policy: What they carry out.
        run_dir: Folder for logs, traces and statistics of the switches; it is made.
        seed: Of losses.
        lossy: Links that ``link_loss`` or ``link_down`` will change: where switches do not lose by themselves, they get a relay.
        notify: Is told what is going on, in a few words.

    Raises:
        ConfigError: The topology or policy cannot be emulated.
        HostLacks: This host lacks something.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        run_dir: Path,
        target: str = "softswitch",
        policy: Policy | None = None,
        seed: int = 0,
        lossy: Collection[tuple[str, str]] = (),
        notify: Callable[[str], object] = lambda text: None,
    ) -> None:
        self.topology = topology
        self.target = target
        self.policy = Policy() if policy is None else policy
        self.run_dir = Path(run_dir)
        self.seed = seed
        self.hosts: dict[str, HostNode] = {}
        self.remains: list[Remains] = []
        """What was left of earlier runs, and is gone now."""
        self._notify = notify
        check(topology, self.policy, target)
        self.plan = make_plan(topology, switches_delay=switches_delay(target), lossy=lossy)
        require(target, wires=bool(self.plan.wires))
        self._stack = ExitStack()
        self._lock = threading.RLock()
        self._backlog_drops = 0
        self._popen: list[subprocess.Popen[Any]] = []
        self._running: Switches | None = None

    # Up and down

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _build(self) -> None:
        self.remains = clean_up()
        self._backlog_drops = backlog_drops()
        folder = self.run_dir / "switches"
        folder.mkdir(parents=True, exist_ok=True)
        self.ledger = Ledger.open(self.run_dir)
        self._stack.callback(self.ledger.close)
        self.environment = {**os.environ, MARK: self.ledger.run}
        nursery: Nursery | None = None
        warm_up(self.target)
        if self.target == "softswitch" or self.plan.wires:
            # It loads while the nodes are made.
            nursery = Nursery(self.ledger, self.environment, folder / "_zygote.log")
            self._stack.callback(nursery.close)
        self._notify("nodes")
        pids = self._make_nodes()
        self._notify("links")
        wiring.make_links(self.plan, pids)
        wiring.configure(self.plan, pids)
        for name, address in self.topology.addresses.items():
            first = self.topology.graph.leaving(name)[0]
            self.hosts[name] = HostNode(name, pids[name], address, self.topology.macs[name], interface(first.port))
        self._pids = pids
        context = Context(self.plan, self.policy, pids, self.ledger, self.environment, folder, self.seed, notify=self._notify)
        self._notify("switches")
        if self.plan.wires and nursery is not None:
            self._relays = Relays(context, nursery)
            self._relays.start()
        self._running = make_switches(self.target, context, nursery)
        self._stack.callback(self.switches.stop)
        self.switches.start()
        self._notify("checking")
        wait_until_reachable(self)

    def _make_nodes(self) -> dict[str, int]:
        # Only now: Mininet is an extra.
        from testbed.lab.nodes import Cable, LabNode, add_nodes, make_network, stop_network

        self.mininet = make_network()
        wires: list[LabNode] = []
        self._stack.callback(stop_network, self.mininet, wires)
        if self.plan.wires:
            wires.append(LabNode(WIRES, self.environment))
        switches = [switch.name for switch in self.topology.switches]
        add_nodes(self.mininet, self.topology.addresses, switches, self.environment)
        pids = {node.name: self._note(node) for node in (*self.mininet.hosts, *self.mininet.switches, *wires)}
        for index, link in enumerate(self.topology.links):
            there, back = self.topology.graph.arcs[2 * index], self.topology.graph.arcs[2 * index + 1]
            names = {"intfName1": interface(there.port), "intfName2": interface(back.port)}
            macs = {"addr1": self.topology.macs.get(link.a), "addr2": self.topology.macs.get(link.b)}
            cable = self.mininet.addLink(link.a, link.b, there.port, back.port, cls=Cable, **names, **macs)
            for end, name in ((cable.intf1, link.a), (cable.intf2, link.b)):
                end.ip = self.topology.addresses.get(name)
        return pids

    def _note(self, node: Any) -> int:
        self.ledger.add(node.pid, f"node {node.name}")
        return int(node.pid)

    def close(self) -> None:
        """Takes everything down; may be repeated."""
        with self._lock, uninterrupted():
            self._stack.close()
            for process in self._popen:
                process.poll()  # reaps
            self._popen.clear()
            self.hosts.clear()

    @property
    def switches(self) -> Switches:
        """The switches.

        Raises:
            LabError: The network was never up.
        """
        if self._running is None:
            raise LabError("the network is not up")
        return self._running

    # Hosts

    def enter(self, host: str) -> None:
        """Moves the calling process, a forked child with one thread, into a host's namespaces, for good.

        gloo is told which interface is the host's.
        """
        node = self.hosts[host]
        namespaces.enter(node.pid)
        os.environ["GLOO_SOCKET_IFNAME"] = node.interface

    def popen(self, host: str, argv: Sequence[str], **how: Any) -> subprocess.Popen[Any]:
        """Starts a process in a host; it is ended with the lab, if it has not by then.

        Args:
            host: Name of a host, or of a switch.
            argv: Its command line.
            how: What ``subprocess.Popen`` takes; ``env`` is added to this process's environment.
        """
        own = {"GLOO_SOCKET_IFNAME": self.hosts[host].interface} if host in self.hosts else {}
        environment = {**self.environment, **own, **how.pop("env", {})}
        # Whoever interrupts at the terminal means the driver, which ends everything in order.
        how.setdefault("start_new_session", True)
        process = subprocess.Popen(namespaces.inside(self._pids[host], argv), env=environment, **how)
        self.ledger.add(process.pid, f"{host}: {' '.join(argv)[:80]}")
        self._popen.append(process)
        return process

    def run(self, host: str, argv: Sequence[str], **how: Any) -> str:
        """Runs a command in a host and returns what it printed; LabError if it fails."""
        return namespaces.run(namespaces.inside(self._pids[host], argv), what=f"{host}: {' '.join(argv)}", **how)

    def adopt(self, pid: int, what: str) -> None:
        """Notes a process that was started otherwise, by a fork, so that it is ended with the lab or by the next run."""
        self.ledger.add(pid, what)

    def set_congestion(self, host: str, control: str) -> None:
        """Chooses TCP's congestion control for what a host sends, or all hosts if ``host`` is ``all``.

        Raises:
            LabError: The kernel has no such.
        """
        names = list(self.hosts) if host == ALL and ALL not in self.hosts else [host]
        scripts = {}
        for name in names:
            lines = wiring.host_routes(self.topology, name, control)
            scripts[self._pids[name]] = "\n".join(["ip -batch - <<'END'", *lines, "END", "ip route show"])
        for shown in namespaces.run_all(scripts, f"choosing {control}").values():
            if f"congctl {control}" not in shown and len(self.hosts) > 1:
                raise LabError(f"the kernel has no congestion control {control!r}")

    # Links and switches

    def _between(self, a: str, b: str) -> int:
        # Of several that join them, the first.
        links = self.topology.links_between(a, b) if a in self._pids else ()
        if not links:
            raise LabError(f"no link joins {a} and {b}")
        return links[0]

    def _ports(self, link: int) -> list[tuple[str, PortPlan]]:
        """Ports of switches at the ends of a link."""
        return [(name, port) for name, ports in self.plan.ports.items() for port in ports if port.link == link]

    def link_down(self, a: str, b: str) -> None:
        """Takes a link down: both ends lose the carrier, and what is on the way is lost."""
        self._set_link(a, b, "down")

    def link_up(self, a: str, b: str) -> None:
        """Brings a link back."""
        self._set_link(a, b, "up")

    def _set_link(self, a: str, b: str, state: str) -> None:
        link = self._between(a, b)
        wire, ports = self.plan.wire(link), self._ports(link)
        if wire is not None:
            # Both ends see no more than that the carrier is gone.
            script = "\n".join(f"ip link set {name} {state}" for name in wire.ends)
            namespaces.run_all({self._pids[WIRES]: script}, f"{state} {a}-{b}")
            return
        if not ports or not self.switches.bears_link_down:
            kind = self.target if ports else "no"
            raise LabError(f"{a} and {b} are joined by {kind} switches; name their link in Lab(lossy=...)")
        # At a switch: an interface that a host takes down loses its routes.
        name, port = ports[0]
        namespaces.run_all({self._pids[name]: f"ip link set {port.interface} {state}"}, f"{state} {a}-{b}")

    def link_loss(self, a: str, b: str, loss: float) -> None:
        """Changes the losses of a link, both ways."""
        link = self._between(a, b)
        wire = self.plan.wire(link)
        if wire is not None:
            self._relays.set_loss(wire, loss)
            return
        for name, end in self._ports(link):
            self.switches.set_loss(name, end, loss)

    def link_rate(self, a: str, b: str, rate_bps: int | None = None) -> None:
        """Changes the rate of a link, both ways; None: to what the topology says."""
        link = self._between(a, b)
        arcs = (self.topology.graph.arcs[2 * link], self.topology.graph.arcs[2 * link + 1])
        for arc in arcs:
            rate = arc.rate if rate_bps is None else rate_bps
            if self.topology.graph.is_host(arc.source):
                script = "\n".join(["tc -batch - <<'END'", *wiring.shaping(self.topology, arc, rate), "END"])
                namespaces.run_all({self._pids[arc.source]: script}, f"changing the rate of {a}-{b}")
            else:
                port = next(port for port in self.plan.ports[arc.source] if port.number == arc.port)
                self.switches.set_rate(arc.source, port, rate)

    def restart_switch(self, name: str) -> None:
        """Ends a switch as a crash would, and brings it back with what was deployed to it."""
        if name not in self.plan.ports:
            raise LabError(f"there is no switch {name!r}")
        self.switches.restart(name)

    def statistics(self) -> dict[str, Any]:
        """Returns what was counted: ``switches`` by name and port, ``hosts`` (what they sent or lost), ``wires`` by link;
        and ``backlog_drops``, packets that this machine's kernel lost between interfaces since the start, which should be none.
        """
        result: dict[str, Any] = {"target": self.target, "switches": self.switches.statistics()}
        result["hosts"] = self._host_statistics()
        result["backlog_drops"] = backlog_drops() - self._backlog_drops
        if self.plan.wires:
            result["wires"] = self._relays.statistics()
        return result

    def _host_statistics(self) -> dict[str, Any]:
        answers = namespaces.run_all({node.pid: "tc -s -j qdisc show" for node in self.hosts.values()}, "reading statistics")
        found = {}
        for name, node in self.hosts.items():
            roots = [qdisc for qdisc in json.loads(answers[node.pid]) if qdisc.get("root") and qdisc.get("kind") == "htb"]
            found[name] = {
                qdisc["dev"]: {key: qdisc.get(key, 0) for key in ("packets", "bytes", "drops", "backlog", "qlen")}
                for qdisc in roots
            }
        return found

    def check(self) -> None:
        """Makes sure that all switches and wires still run.

        Raises:
            LabError: One does not.
        """
        self.switches.check()
        if self.plan.wires:
            self._relays.check()

    @property
    def trace_files(self) -> list[TraceFile]:
        """Queue depths over time, one file for each start of a switch, where the switches write them; also after the end."""
        return self._running.traces if self._running is not None else []

    @property
    def traces(self) -> list[Path]:
        """The same, just the files."""
        return [trace.path for trace in self.trace_files]


def backlog_drops() -> int:
    """Returns the packets that the kernel has lost between interfaces (second column of ``/proc/net/softnet_stat``)."""
    lines = Path("/proc/net/softnet_stat").read_text().splitlines()
    return sum(int(line.split()[1], 16) for line in lines)


__all__ = ["ALL", "HostNode", "Lab"]
