"""Switches that are BMv2's ``simple_switch_grpc``, with the same program and entries as the others.

BMv2 can limit a queue to packets per second, but each priority by itself, so that priorities never compete.  So a port is shaped
in the kernel, behind BMv2: when the link is busy, the socket's buffer fills (about 90 frames), BMv2's sending waits, and what
comes meanwhile waits in its queues, by priority.  What follows from that, and differs from a real switch:

- about 90 frames in a FIFO, behind the priorities;
- one thread transmits for all ports, so while one is full the others wait too;
- queues are 64 packets, unless ``simple_switch_CLI`` is on PATH to set them.

Delay and loss are those of wires; so is a link that goes down, because BMv2 never receives again at an interface that was down.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, ClassVar, Final

from testbed.lab import namespaces
from testbed.lab.errors import LabError
from testbed.lab.plan import PortPlan
from testbed.lab.privileges import inside
from testbed.lab.processes import Process, end
from testbed.switches.base import Context, Switches
from testbed.switches.deploy import counters, deploy
from testbed.switches.kernel import port_statistics, shape
from testbed.switches.zygote import NICENESS

COMMAND: Final = "simple_switch_grpc"
CLI: Final = "simple_switch_CLI"
CPU_PORT: Final = 510
_THRIFT: Final = 9090
_FRAMES: Final = 1000
"""Room of the kernel's queue: more than the socket's buffer lets in, so that it drops nothing."""
_READY_S: Final = 30.0


class Bmv2Switches(Switches):
    """A process for each."""

    kind: ClassVar[str] = "bmv2"
    bears_link_down: ClassVar[bool] = False

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._names = list(context.plan.ports)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Shapes the ports, starts all, and deploys to all at once."""
        scripts = {}
        for name in self._names:
            lines = ["tc -batch - <<'END'"]
            for port in self.context.plan.ports[name]:
                lines += [
                    f"qdisc add dev {port.interface} root handle 1: htb default 1 r2q 1000",
                    f"class add dev {port.interface} parent 1: classid 1:1 {shape(port, port.rate_bps)}",
                    f"qdisc add dev {port.interface} parent 1:1 handle 10: pfifo limit {_FRAMES}",
                ]
            scripts[self.context.pids[name]] = "\n".join([*lines, "END", "tc qdisc show"])
        for shown in namespaces.run_all(scripts, "shaping the ports").values():
            if "qdisc htb" not in shown:
                raise LabError("the ports are not shaped: the kernel has no HTB")
        for name in self._names:
            self._launch(name)
        self._deploy(self._names)

    def _launch(self, name: str) -> None:
        context = self.context
        self._socket(name).unlink(missing_ok=True)
        interfaces = [word for port in context.plan.ports[name] for word in ("-i", f"{port.number}@{port.interface}")]
        command = ["nice", "-n", str(NICENESS)] if os.geteuid() == 0 and not inside() else []
        command += [COMMAND, "--no-p4", "--device-id", str(context.plan.topology.device_ids[name]), "--log-level", "off"]
        command += ["--thrift-port", str(_THRIFT), *interfaces, "--", "--grpc-server-addr", f"unix:{self._socket(name)}"]
        command += ["--cpu-port", str(CPU_PORT), "--priority-queues", "8"]
        with (context.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                namespaces.inside(context.pids[name], command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(context.environment),
                start_new_session=True,
            )
        self._processes[name] = process
        context.ledger.add(process.pid, name)

    def _deploy(self, names: list[str]) -> None:
        deadline = time.monotonic() + _READY_S
        while not all(self._socket(name).exists() for name in names):
            self.check()
            if time.monotonic() > deadline:
                raise LabError(f"{', '.join(names)}: not ready after {_READY_S:g} s")
            time.sleep(0.01)
        self._set_depths(names)
        topology, policy = self.context.plan.topology, self.context.policy
        sockets = {name: self._socket(name) for name in names}
        deploy(topology, policy, sockets, lambda switch, stage: self.context.notify(f"{switch}: {stage}"))

    def _set_depths(self, names: list[str]) -> None:
        if shutil.which(CLI) is None:
            return
        for name in names:
            lines = [f"set_queue_depth {port.queue_packets} {port.number}" for port in self.context.plan.ports[name]]
            command = namespaces.inside(self.context.pids[name], [CLI, "--thrift-port", str(_THRIFT)])
            namespaces.run(command, text="\n".join(lines) + "\n", what=f"setting the queues of {name}")

    def restart(self, switch: str) -> None:
        """Kills a switch, starts another one and deploys to it."""
        process = self._processes.pop(switch)  # that it ends is no news
        process.kill()
        process.wait()
        self._launch(switch)
        self._deploy([switch])

    def set_rate(self, switch: str, port: PortPlan, rate_bps: int) -> None:
        """Changes the rate of a port."""
        script = f"tc class change dev {port.interface} parent 1: classid 1:1 {shape(port, rate_bps)}"
        namespaces.run_all({self.context.pids[switch]: script}, f"changing the rate of {switch}")

    def statistics(self) -> dict[str, Any]:
        """Returns what the kernel's queues behind each port have sent, and what the program has counted."""
        found = port_statistics(self.context, self._names)
        sockets = {name: self._socket(name) for name in self._names}
        for name, counts in counters(self.context.plan.topology, self.context.policy, sockets).items():
            found[name]["program"] = counts
        return found

    def check(self) -> None:
        """Makes sure that all still run."""
        for name, process in list(self._processes.items()):
            code = process.poll()
            if code is not None:
                lines = (self.context.folder / f"{name}.log").read_text(errors="replace").strip().splitlines()
                raise LabError(f"{name} has ended with code {code}: {lines[-1] if lines else 'it said nothing'}")

    def stop(self) -> None:
        """Ends all."""
        alive = {name: Process.of(process.pid) for name, process in self._processes.items() if process.poll() is None}
        end([process for process in alive.values() if process is not None])
        for process in self._processes.values():
            process.wait()
        self._processes.clear()

    def _socket(self, name: str) -> Path:
        return self.context.ledger.scratch / f"{self.context.plan.topology.device_ids[name]}.grpc"


__all__ = ["Bmv2Switches"]
