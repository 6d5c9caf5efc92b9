"""Starting ranks in hosts, hearing how they end, and ending them: two ways behind one interface."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from dlcp.errors import ConfigError
from testbed.lab.errors import LabError
from testbed.lab.forks import PACKET, ROOT, last_line, spawn, with_packages
from testbed.lab.ledger import Ledger
from testbed.lab.processes import MARK, Process, end, wait
from testbed.ranks.zygote import THREADS

if TYPE_CHECKING:
    from dlcp.topology import Topology
    from testbed.lab.network import Lab

MASTER_PORT: Final = 29_500
"""torchrun's own default; the namespace is the run's alone."""
_LOADING_S: Final = 120.0
_PATIENCE_S: Final = 30.0


@dataclass(frozen=True)
class RankJob:
    """One rank to start.

    Attributes:
        number: Its number in the topology.
        rank: Its rank in its job.
        world: Ranks of its job.
        host: Where it runs.
        arguments: Of examples/train.py.
        output: Receives what it prints.
    """

    number: int
    rank: int
    world: int
    host: str
    arguments: tuple[str, ...]
    output: Path


@dataclass
class RankState:
    """A rank that was started: its pid as long as it is known, and its exit code as soon as it is."""

    pid: int | None = None
    code: int | None = None
    ended: bool = False


@dataclass
class Started:
    """The ranks of one run, by their numbers in the topology."""

    states: dict[int, RankState] = field(default_factory=dict)

    @property
    def running(self) -> list[int]:
        """Ranks that have not ended."""
        return [rank for rank, state in self.states.items() if not state.ended]


class Launcher(ABC):
    """A way to start ranks; it serves one run after another."""

    kind: ClassVar[str]

    def prepare(self) -> None:  # noqa: B027  most have nothing to prepare
        """Begins with what takes time and needs no network."""

    def check(self, topology: Topology, jobs: int) -> None:  # noqa: B027  most start anything
        """Refuses a placement of ranks that it cannot start; ConfigError says why."""

    @abstractmethod
    def start(self, lab: Lab, jobs: Sequence[RankJob]) -> Started:
        """Starts all ranks of a run."""

    @abstractmethod
    def poll(self, started: Started, seconds: float) -> None:
        """Takes in who has ended, waiting up to ``seconds`` for news."""

    @abstractmethod
    def kill(self, started: Started, rank: int) -> None:
        """Kills a rank, as a crash would."""

    @abstractmethod
    def end(self, started: Started) -> None:
        """Ends all ranks of a run that are still there, at once."""

    def close(self) -> None:  # noqa: B027
        """Ends whatever it has running between runs."""


class ForkLauncher(Launcher):
    """Forks ranks from one process that has everything loaded: 25 MB and tens of milliseconds for each.

    Args:
        folder: Receives what that process itself says.
    """

    kind: ClassVar[str] = "fork"

    def __init__(self, folder: Path) -> None:
        self._log = folder / "zygote.log"
        self._folder = folder
        self._ledger: Ledger | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._ready = False
        self._pids: dict[int, int] = {}
        self._codes: dict[int, int] = {}

    def prepare(self) -> None:
        """Starts the process; it loads while the network is built."""
        if self._process is not None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        self._ledger = Ledger.open(self._folder)
        environment = {**rank_environment(os.environ), MARK: self._ledger.run}
        self._process, self._channel = spawn("testbed.ranks.zygote", environment, self._log)
        self._ledger.add(self._process.pid, "zygote of the ranks")

    def start(self, lab: Lab, jobs: Sequence[RankJob]) -> Started:
        """Forks all ranks."""
        self.prepare()
        deadline = time.monotonic() + _LOADING_S
        while not self._ready:
            self._take(deadline)
        started = Started()
        for job in jobs:
            node = lab.hosts[job.host]
            request = {
                "name": job.number,
                "arguments": list(job.arguments),
                "environment": {
                    "RANK": str(job.rank),
                    "WORLD_SIZE": str(job.world),
                    "GLOO_SOCKET_IFNAME": node.interface,
                },
                "namespaces": node.pid,
                "log": str(job.output.resolve()),
            }
            self._pids.pop(job.number, None)
            assert self._channel is not None
            try:
                self._channel.send(json.dumps(request).encode())
            except OSError:
                raise self._broken() from None
            deadline = time.monotonic() + _PATIENCE_S
            while job.number not in self._pids:
                self._take(deadline)
            pid = self._pids[job.number]
            lab.adopt(pid, f"rank {job.number}")
            started.states[job.number] = RankState(pid)
        return started

    def poll(self, started: Started, seconds: float) -> None:
        """See the class."""
        if self._channel is not None and select.select([self._channel], [], [], max(seconds, 0.0))[0]:
            self._take(time.monotonic())
            while select.select([self._channel], [], [], 0)[0]:
                self._take(time.monotonic())
        for state in started.states.values():
            if not state.ended and state.pid in self._codes:
                state.code, state.ended = self._codes.pop(state.pid), True

    def kill(self, started: Started, rank: int) -> None:
        """See the class."""
        state = started.states[rank]
        # The zygote reaps and tells at once; the number could be another's only within that moment.
        process = Process.of(state.pid) if state.pid is not None and not state.ended else None
        if process is not None:
            process.signal(signal.SIGKILL)

    def end(self, started: Started) -> None:
        """See the class."""
        for rank in started.running:
            self.kill(started, rank)
        deadline = time.monotonic() + 5.0
        while started.running and time.monotonic() < deadline:
            try:
                self.poll(started, 0.2)
            except LabError:
                return  # the zygote is gone, and its children with it

    def close(self) -> None:
        """Ends the process, and with it what it has forked."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            try:
                self._process.wait(0.5 if self._ready else 0.0)
            except subprocess.TimeoutExpired:
                # While it loads it does not listen; whoever it has forked ends with it.
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None
        self._ready = False

    def _take(self, deadline: float) -> None:
        """Takes one message in; LabError if there is none until ``deadline`` (monotonic)."""
        assert self._channel is not None
        if not select.select([self._channel], [], [], max(deadline - time.monotonic(), 0.0))[0]:
            raise LabError("the process that ranks are forked from does not answer")
        packet = self._channel.recv(PACKET)
        if not packet:
            raise self._broken()
        message: dict[str, Any] = json.loads(packet)
        if "ready" in message:
            self._ready = True
        elif "started" in message:
            self._pids[message["started"]] = message["pid"]
        else:
            self._codes[message["pid"]] = message["code"]

    def _broken(self) -> LabError:
        return LabError(f"the process that ranks are forked from has ended: {last_line(self._log)}")


class TorchrunLauncher(Launcher):
    """One torchrun a host, as on a cluster: seconds to start, and hundreds of megabytes for each rank."""

    kind: ClassVar[str] = "torchrun"

    def __init__(self) -> None:
        self._launchers: dict[int, tuple[subprocess.Popen[Any], tuple[int, ...]]] = {}

    def check(self, topology: Topology, jobs: int) -> None:
        """torchrun numbers ranks by itself: host by host, as many on each."""
        if jobs > 1:
            raise ConfigError("experiment", "jobs", f"{jobs} jobs under torchrun", "1, or the launcher fork")
        _by_host([(rank, host) for host, ranks in placement(topology).items() for rank in ranks])

    def start(self, lab: Lab, jobs: Sequence[RankJob]) -> Started:
        """Starts torchrun in every host."""
        hosts = _by_host([(job.rank, job.host) for job in jobs])
        by_rank = {job.rank: job for job in jobs}
        started = Started({job.rank: RankState() for job in jobs})
        self._launchers.clear()
        first = lab.hosts[next(iter(hosts))]
        for number, (host, ranks) in enumerate(hosts.items()):
            job = by_rank[ranks[0]]
            words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(hosts)), "--node-rank", str(number)]
            words += ["--nproc-per-node", str(len(ranks)), "--master-addr", first.address, "--master-port", str(MASTER_PORT)]
            words += ["-m", "examples.train", *job.arguments]
            with job.output.open("wb") as output:
                process = lab.popen(
                    host, words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=rank_environment({}), cwd=ROOT
                )
            self._launchers[number] = (process, ranks)
        return started

    def poll(self, started: Started, seconds: float) -> None:
        """A host's torchrun ends when all its ranks have, or one has failed."""
        deadline = time.monotonic() + seconds
        while True:
            news = False
            for process, ranks in self._launchers.values():
                if process.poll() is not None:
                    for rank in ranks:
                        state = started.states[rank]
                        news |= not state.ended
                        state.code, state.ended = process.returncode, True
            left = deadline - time.monotonic()
            if news or left <= 0:
                return
            time.sleep(min(left, 0.05))

    def kill(self, started: Started, rank: int) -> None:
        """Kills a rank by the pid that it has written into its log, which the caller notes in its state."""
        pid = started.states[rank].pid
        process = Process.of(pid) if pid is not None else None
        if process is not None:
            process.signal(signal.SIGKILL)

    def end(self, started: Started) -> None:
        """See the class."""
        running = [found for process, _ in self._launchers.values() if (found := Process.of(process.pid)) is not None]
        ranks = [found for state in started.states.values() if state.pid and (found := Process.of(state.pid)) is not None]
        # torchrun takes SIGTERM as a reason to wait for its ranks in peace: they go first.
        for process in ranks:
            process.signal(signal.SIGKILL)
        end(running, patience_s=0.3)
        wait(ranks, 1.0)
        self.poll(started, 0.0)


def placement(topology: Topology) -> dict[str, tuple[int, ...]]:
    """Returns the ranks on each host that has any, in the order of the topology."""
    return {host.name: tuple(host.ranks) for host in topology.hosts if host.ranks}


def rank_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of ranks: one thread each, and the packages where this process found them."""
    return with_packages({**base, **dict.fromkeys(THREADS, "1")})


def _by_host(ranks: Sequence[tuple[int, str]]) -> dict[str, tuple[int, ...]]:
    hosts: dict[str, tuple[int, ...]] = {}
    for rank, host in sorted(ranks):
        hosts[host] = (*hosts.get(host, ()), rank)
    sizes = {len(found) for found in hosts.values()}
    ordered = [rank for found in hosts.values() for rank in found]
    if len(sizes) != 1 or ordered != sorted(ordered):
        raise ConfigError(
            "topology", "hosts", "torchrun cannot place these ranks", "equally many ranks on each host, numbered host by host"
        )
    return hosts


__all__ = ["ForkLauncher", "Launcher", "RankJob", "RankState", "Started", "TorchrunLauncher", "placement", "rank_environment"]
