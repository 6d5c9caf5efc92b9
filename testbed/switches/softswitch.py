"""Switches that are this project's own P4 target: a process each, in the namespace of its switch."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, ClassVar, Final

from testbed.lab.errors import LabError
from testbed.lab.plan import PortPlan
from testbed.switches.base import Context, Switches, TraceFile, ask
from testbed.switches.deploy import counters, deploy
from testbed.switches.nursery import Nursery

CPU_PORT: Final = 510
TRACE_INTERVAL: Final = "10ms"


class Softswitches(Switches):
    """A process for each; ports shape, delay and lose."""

    kind: ClassVar[str] = "softswitch"
    delays: ClassVar[bool] = True

    def __init__(self, context: Context, nursery: Nursery) -> None:
        super().__init__(context)
        self._nursery = nursery
        self._names = list(context.plan.ports)
        self._losses: dict[tuple[str, int], float] = {}
        self._rates: dict[tuple[str, int], int] = {}
        self._traces: list[TraceFile] = []
        self._starts: dict[str, int] = dict.fromkeys(self._names, 0)

    def start(self) -> None:
        """Starts all, and deploys to all at once."""
        for name in self._names:
            self._launch(name)
        self._deploy(self._names)

    def _launch(self, name: str) -> None:
        context = self.context
        self._starts[name] += 1
        for path in (self._socket(name, "grpc"), self._socket(name, "control")):
            path.unlink(missing_ok=True)
        self._nursery.start(
            name, "softswitch", self.arguments(name), namespaces=context.pids[name], log=context.folder / f"{name}.log"
        )

    def arguments(self, name: str) -> list[str]:
        """Returns the command line of a switch, without the program's name."""
        context = self.context
        words = ["--no-p4", "--device-id", str(context.plan.topology.device_ids[name]), "--cpu-port", str(CPU_PORT)]
        for port in context.plan.ports[name]:
            loss, loss_in = port.loss, port.loss_in
            if (name, port.number) in self._losses:
                loss = self._losses[name, port.number]
                loss_in = loss if self._from_host(port) else 0.0
            values = {
                "rate": self._rates.get((name, port.number), port.rate_bps),
                "queue-depth": port.queue_packets,
                "delay": f"{port.delay_ns}ns" if port.delay_ns else "",
                "loss": loss or "",
                "loss-in": loss_in or "",
            }
            words += ["-i", f"{port.number}@{port.interface}"]
            words += [word for key, value in values.items() if value != "" for word in (f"--{key}", f"{port.number}={value}")]
        # Another one for each switch and start: the same would lose the same packets everywhere.
        words += ["--seed", str((context.seed << 20) + context.plan.topology.device_ids[name] % 4096 * 256 + self._starts[name])]
        words += ["--trace", str(self._trace(name, self._starts[name])), "--trace-interval", TRACE_INTERVAL]
        words += ["--grpc", f"unix:{self._socket(name, 'grpc')}", "--control", str(self._socket(name, "control"))]
        return words

    def _deploy(self, names: list[str]) -> None:
        sockets = {name: self._socket(name, "grpc") for name in names}
        try:
            self._nursery.wait_for(lambda: all(path.exists() for path in sockets.values()), names)
        except LabError as error:
            raise LabError(f"{error}; {self._last_words(names)}") from error
        for name in names:
            started = ask(self._socket(name, "control"), {"do": "statistics"})["start_ns"] / 1e9
            ports = {str(port.number): port.peer for port in self.context.plan.ports[name]}
            self._traces.append(TraceFile(name, self._trace(name, self._starts[name]), started, ports))
        topology, policy = self.context.plan.topology, self.context.policy
        deploy(topology, policy, sockets, lambda switch, stage: self.context.notify(f"{switch}: {stage}"))

    def _last_words(self, names: list[str]) -> str:
        said = []
        for name in names:
            file = self.context.folder / f"{name}.log"
            lines = file.read_text(errors="replace").strip().splitlines() if file.exists() else []
            if lines:
                said.append(f"{name}: {lines[-1]}")
        return "; ".join(said) or "they said nothing"

    def restart(self, switch: str) -> None:
        """Kills a switch, starts another one and deploys to it; events that changed its links stay in force."""
        self._nursery.end(switch, signal.SIGKILL)
        self._launch(switch)
        self._deploy([switch])

    def set_rate(self, switch: str, port: PortPlan, rate_bps: int) -> None:
        """Changes the rate of a port."""
        self._rates[switch, port.number] = rate_bps
        self._change(switch, port, rate_bps=rate_bps)

    def set_loss(self, switch: str, port: PortPlan, loss: float) -> None:
        """Changes the losses of a port."""
        self._losses[switch, port.number] = loss
        self._change(switch, port, loss=loss, loss_in=loss if self._from_host(port) else 0.0)

    def _from_host(self, port: PortPlan) -> bool:
        return self.context.plan.topology.graph.is_host(port.peer)

    def _change(self, switch: str, port: PortPlan, **what: Any) -> None:
        ask(self._socket(switch, "control"), {"do": "link", "port": port.number, **what})

    def statistics(self) -> dict[str, Any]:
        """Returns what each switch's ``--stats`` has, and under ``program`` what its program has counted."""
        found = {name: ask(self._socket(name, "control"), {"do": "statistics"}) for name in self._names}
        sockets = {name: self._socket(name, "grpc") for name in self._names}
        for name, counts in counters(self.context.plan.topology, self.context.policy, sockets).items():
            found[name]["program"] = counts
        return found

    @property
    def traces(self) -> list[TraceFile]:
        """The files that ``--trace`` writes, one for each start of a switch, in order."""
        return list(self._traces)

    def check(self) -> None:
        """Makes sure that all still run."""
        self._nursery.poll()
        ended = [name for name in self._names if name in self._nursery.ended]
        if ended:
            raise LabError(f"{ended[0]} has ended with code {self._nursery.ended[ended[0]]}; {self._last_words(ended)}")

    def stop(self) -> None:
        """Ends all; their traces are complete then."""
        self._nursery.poll()
        for name in self._names:
            self._nursery.signal(name, signal.SIGTERM)
        self._nursery.wait_until_ended(self._names, 0.5)
        for name in self._names:
            self._nursery.end(name, signal.SIGKILL)

    def _socket(self, name: str, kind: str) -> Path:
        return self.context.ledger.scratch / f"{self.context.plan.topology.device_ids[name]}.{kind}"

    def _trace(self, name: str, number: int) -> Path:
        return self.context.folder / (f"{name}.trace.jsonl" if number == 1 else f"{name}.trace.{number}.jsonl")


__all__ = ["CPU_PORT", "Softswitches"]
