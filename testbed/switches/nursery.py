"""The driver's side of the zygote: asks for switch processes, and hears when one has ended."""

from __future__ import annotations

import json
import select
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from testbed.lab.errors import LabError
from testbed.lab.forks import PACKET, last_line, spawn
from testbed.lab.ledger import Ledger
from testbed.lab.processes import Process

_PATIENCE_S: Final = 30.0
_SLICE_S: Final = 0.02


class Nursery:
    """A zygote and its children.

    Args:
        ledger: Notes every process.
        environment: Of all of them.
        log: Receives what the zygote itself says.
    """

    def __init__(self, ledger: Ledger, environment: Mapping[str, str], log: Path) -> None:
        self._ledger = ledger
        self._log = log
        self._process, self._channel = spawn("testbed.switches.zygote", environment, log)
        ledger.add(self._process.pid, "zygote of the switches")
        self.pids: dict[str, int] = {}
        """Of the children that run."""
        self.ended: dict[str, int] = {}
        """Exit codes of those that have ended by themselves."""
        self._expected: set[str] = set()
        self._lock = threading.Lock()

    def start(self, name: str, run: str, arguments: Sequence[str], *, namespaces: int, log: Path) -> int:
        """Starts a process and returns its pid.

        Args:
            name: What it is called here.
            run: ``softswitch`` or ``wires``.
            arguments: Its command line.
            namespaces: A process in whose namespaces it runs.
            log: Receives what it prints.

        Raises:
            LabError: The zygote has ended.
        """
        self.ended.pop(name, None)
        request = {"name": name, "run": run, "arguments": list(arguments), "namespaces": namespaces, "log": str(log)}
        try:
            self._channel.send(json.dumps(request).encode())
        except OSError:
            raise self._broken() from None
        deadline = time.monotonic() + _PATIENCE_S
        while (pid := self.pids.get(name)) is None:
            self._take(_SLICE_S)
            if time.monotonic() > deadline:
                raise LabError(f"{name}: no answer from the zygote of the switches within {_PATIENCE_S:g} s")
        return pid

    def end(self, name: str, signal_number: int, seconds: float = 5.0) -> None:
        """Sends a signal to a process, and waits until it has ended.

        Raises:
            LabError: It has not.
        """
        self._expected.add(name)
        try:
            self.signal(name, signal_number)
            if not self.wait_until_ended([name], seconds):
                raise LabError(f"{name} did not end within {seconds:g} s")
        finally:
            self._expected.discard(name)
            self.ended.pop(name, None)

    def signal(self, name: str, number: int) -> None:
        """Sends a signal to a process, if it runs."""
        self.poll()
        pid = self.pids.get(name)
        if pid is not None:
            # The zygote reaps and tells at once; the number could be another's only within that moment.
            process = Process.of(pid)
            if process is not None:
                process.signal(number)

    def wait_until_ended(self, names: Sequence[str], seconds: float) -> bool:
        """Waits until processes have ended, and returns whether they have in time."""
        deadline = time.monotonic() + seconds
        while any(name in self.pids for name in names):
            if time.monotonic() > deadline:
                return False
            self._take(min(_SLICE_S, seconds))
        return True

    def poll(self) -> None:
        """Takes in what the zygote has said meanwhile."""
        while self._take(0):
            pass

    def wait_for(self, condition: Callable[[], bool], names: Sequence[str], seconds: float = _PATIENCE_S) -> None:
        """Waits until something is true, as long as the processes named run.

        Raises:
            LabError: One has ended, or it takes too long.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            self._take(0.005)
            dead = [name for name in names if name in self.ended]
            if dead:
                raise LabError(f"{dead[0]} has ended with code {self.ended[dead[0]]}")
            if time.monotonic() > deadline:
                raise LabError(f"{', '.join(names)}: not ready after {seconds:g} s")

    def close(self) -> None:
        """Ends all of them."""
        self._channel.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _take(self, seconds: float) -> bool:
        """Takes one message in, if there is one within ``seconds``; returns whether there was.

        Several threads may wait at the same time, and any may get what another one waits for.
        """
        with self._lock:
            readable, _, _ = select.select([self._channel], [], [], max(seconds, 0))
            if not readable:
                return False
            packet = self._channel.recv(PACKET)
            if not packet:
                raise self._broken()
            self._note(json.loads(packet))
        return True

    def _note(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            return
        if "started" in message:
            self.pids[message["started"]] = message["pid"]
            self._ledger.add(message["pid"], message["started"])
        elif self.pids.get(message["ended"]) == message["pid"]:
            if message["ended"] not in self._expected:
                self.ended[message["ended"]] = message["code"]
            del self.pids[message["ended"]]

    def _broken(self) -> LabError:
        return LabError(f"the zygote of the switches has ended: {last_line(self._log)}")


__all__ = ["Nursery"]
