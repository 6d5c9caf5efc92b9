"""Cross traffic of a run: an agent in each host that sends or receives any, and what they have counted."""

from __future__ import annotations

import json
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self, cast

from testbed.experiment import Traffic
from testbed.lab.errors import LabError
from testbed.lab.network import Lab
from testbed.traffic.flows import Flow, flows_of
from testbed.traffic.iperf import COMMAND, FIRST_PORT

TOOLS: Final = ("auto", "sockets", "iperf3")
"""What sends TCP: ``auto`` is iperf3 where it is installed; the other kinds are always sockets."""
_PATIENCE_S: Final = 15.0
_LAST_BREATH_S: Final = 0.5
_RUN: Final = "import sys, runpy; sys.path.insert(0, sys.argv[1]); runpy.run_module('testbed.traffic.agent', None, '__main__')"
_ROOT: Final = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True)
class FlowResult:
    """What one flow has come to.

    Attributes:
        flow: The flow.
        tool: What carried it: ``sockets`` or ``iperf3``.
        sent: What its source has counted: ``bytes``, and for TCP ``retransmits`` and ``rtt_us``, for datagrams ``packets`` and
            ``skipped`` (those that a sender that was held up did not send).
        received: What its sink has counted: ``bytes``, and for datagrams ``packets``, ``lost``, ``delay_ns`` (sum), and
            ``longest_delay_ns``.
        errors: What went wrong at either end.
    """

    flow: Flow
    tool: str
    sent: dict[str, float]
    received: dict[str, float]
    errors: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return {
            **self.flow.to_dict(),
            "tool": self.tool,
            "sent": self.sent,
            "received": self.received,
            "errors": list(self.errors),
        }


class CrossTraffic:
    """All flows of an experiment; a context manager that ends them.

    Args:
        lab: The network, which is up.
        traffic: From the experiment.
        folder: Receives a log for each host: bytes so far of each flow, every 100 ms.
        seed: Of the phases of bursts.
        tool: One of :data:`TOOLS`.

    Raises:
        LabError: iperf3 is asked for and missing.
    """

    def __init__(self, lab: Lab, traffic: Sequence[Traffic], folder: Path, *, seed: int = 0, tool: str = "auto") -> None:
        if tool not in TOOLS:
            raise ValueError(f"tool {tool!r} is none of {', '.join(TOOLS)}")
        there = shutil.which(COMMAND) is not None
        if tool == "iperf3" and not there:
            raise LabError("iperf3 is missing; install it, or let sockets carry TCP")
        self.tcp_tool = "iperf3" if tool == "iperf3" or (tool == "auto" and there) else "sockets"
        self.flows = flows_of(traffic, lab.topology, seed)
        self._lab = lab
        self._folder = folder
        self._agents: dict[str, subprocess.Popen[str]] = {}
        self._began = False

    def prepare(self) -> None:
        """Starts the agents, and connects all flows; none sends yet.

        Raises:
            LabError: An agent failed.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        by_host: dict[str, list[dict[str, Any]]] = {}
        addresses = self._lab.topology.addresses
        for number, flow in enumerate(self.flows):
            plain = {**flow.to_dict(), "tool": self._tool(flow), "port": FIRST_PORT + number, "address": addresses[flow.sink]}
            for host in (flow.source, flow.sink):
                by_host.setdefault(host, []).append(plain)
        for host in by_host:
            self._agents[host] = self._start(host)
        for host, plain_flows in by_host.items():
            log = str(self._folder / f"{host}.jsonl")
            self._tell(host, {"flows": plain_flows, "host": host, "address": addresses[host], "log": log})
        ports: dict[str, int] = {}
        for host in by_host:
            ports.update(self._hear(host, "listening"))
        where = {flow.id: [addresses[flow.sink], ports[flow.id]] for flow in self.flows}
        for host in by_host:
            self._tell(host, {"connect": where})
        for host in by_host:
            self._hear(host, "ready")

    def begin(self, at_ns: int | None = None) -> None:
        """Lets time begin for all flows, at ``at_ns`` of ``time.monotonic_ns``, or now."""
        beginning = time.monotonic_ns() if at_ns is None else at_ns
        for host in self._agents:
            self._tell(host, {"go": beginning})
        self._began = True

    def check(self) -> None:
        """Makes sure that all agents run.

        Raises:
            LabError: One has ended.
        """
        for host, agent in self._agents.items():
            if agent.poll() is not None:
                raise self._broken(host)

    def stop(self) -> list[FlowResult]:
        """Ends all flows, and returns what they have come to; a second time, nothing.

        Raises:
            LabError: An agent failed.
        """
        found: dict[str, dict[str, Any]] = {}
        for host in self._agents:
            self._tell(host, {"stop": True})
        for host in self._agents:
            found.update(self._hear(host, "done"))
        self._end()
        return [self._result(flow, found) for flow in self.flows] if found else []

    def _result(self, flow: Flow, found: dict[str, dict[str, Any]]) -> FlowResult:
        ends = {role: dict(found.get(f"{flow.id} {role}", {})) for role in ("source", "sink")}
        errors = tuple(f"{role}: {error}" for role, counts in ends.items() if (error := counts.pop("error", "")))
        return FlowResult(flow, self._tool(flow), ends["source"], ends["sink"], errors)

    def _tool(self, flow: Flow) -> str:
        return self.tcp_tool if flow.kind == "tcp" else "sockets"

    def _start(self, host: str) -> subprocess.Popen[str]:
        errors = (self._folder / f"{host}.log").open("w")
        with errors:
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors, "text": True}
            # Without the site: an agent needs the standard library only, and is there in a third of the time.
            command = [sys.executable, "-S", "-E", "-c", _RUN, _ROOT]
            return cast("subprocess.Popen[str]", self._lab.popen(host, command, **pipes))

    def _tell(self, host: str, request: dict[str, Any]) -> None:
        channel = cast("IO[str]", self._agents[host].stdin)
        try:
            channel.write(json.dumps(request) + "\n")
            channel.flush()
        except OSError:
            raise self._broken(host) from None

    def _hear(self, host: str, key: str) -> Any:
        channel = cast("IO[str]", self._agents[host].stdout)
        readable, _, _ = select.select([channel], [], [], _PATIENCE_S)
        line = channel.readline() if readable else ""
        answer = json.loads(line) if line.endswith("\n") else {}
        if key not in answer:
            raise self._broken(host)
        return answer[key]

    def _broken(self, host: str) -> LabError:
        file = self._folder / f"{host}.log"
        lines = file.read_text(errors="replace").strip().splitlines() if file.exists() else []
        with suppress(subprocess.TimeoutExpired):
            self._agents[host].wait(_LAST_BREATH_S)  # its pipe is closed a moment before it is gone
        state = "does not answer" if self._agents[host].poll() is None else "has ended"
        return LabError(f"cross traffic in {host} {state}: {lines[-1] if lines else 'it said nothing'}")

    def _end(self) -> None:
        for agent in self._agents.values():
            for channel in (agent.stdin, agent.stdout):
                if channel is not None:
                    channel.close()
        for agent in self._agents.values():
            try:
                agent.wait(2)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
        self._agents.clear()

    def __enter__(self) -> Self:
        try:
            self.prepare()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()


__all__ = ["TOOLS", "CrossTraffic", "FlowResult"]
