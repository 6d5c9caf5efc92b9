"""Runs an experiment: candidates take turns, every run in a network of its own, and what is finished is always on disk."""

from __future__ import annotations

import datetime
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dlcp.errors import ConfigError, DLCPError
from testbed.experiment import Experiment
from testbed.lab.capabilities import probe, require
from testbed.lab.errors import LabError
from testbed.lab.plan import check as check_plan
from testbed.lab.signals import Ended, uninterrupted
from testbed.ranks.launch import Launcher
from testbed.results import FORMAT, VERSION, Results, RunResult, write_results
from testbed.run import Run, Silent, Turn, Watcher
from testbed.summary import summarize


def turns(experiment: Experiment) -> list[Turn]:
    """Returns all runs in order: each repeat has all candidates, and begins with another one, so that none is always first."""
    candidates = experiment.candidates
    order = []
    for repeat, seed in enumerate(experiment.seeds()):
        first = repeat % len(candidates)
        order += [Turn(candidate, repeat, seed) for candidate in (*candidates[first:], *candidates[:first])]
    return order


def check(experiment: Experiment, launcher: Launcher) -> None:
    """Refuses what cannot be run, before anything is built.

    Raises:
        ConfigError: The network cannot be emulated, or the ranks cannot be placed.
        HostLacks: This host lacks something.
    """
    launcher.check(experiment.network, experiment.jobs)
    for candidate in experiment.candidates:
        target = experiment.target_of(candidate)
        try:
            check_plan(experiment.network, experiment.policy_of(candidate), target)
        except ConfigError as error:
            if not error.source.startswith("topology"):
                raise
            # A network that stands in a file of its own is told by that.
            inside = not isinstance(experiment.topology, str)
            source = experiment.source if inside else str(experiment.topology)
            raise ConfigError(source, f"topology.{error.key}" if inside else error.key, error.problem, error.accepted) from None
        require(target)
    available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    chosen = {candidate.congestion for candidate in experiment.candidates} | {item.congestion for item in experiment.traffic}
    for name in sorted(chosen - set(available)):
        if not _can_load(name):
            raise LabError(f"the kernel has no TCP congestion control {name!r}: modprobe tcp_{name}")


def _can_load(name: str) -> bool:
    """Asks for a congestion control on a socket of our own, which makes the kernel load its module."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe_socket:
        try:
            probe_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except OSError:
            return False
    return True


class Runner:
    """One experiment.

    Args:
        experiment: What is to be done.
        folder: Receives everything; it is made.
        launcher: Starts ranks; it is closed at the end.
        watcher: Is told how it goes on.
        command: Stands in the results: how this was called.
        former: What there is of it already; only runs that are missing or were interrupted are made.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        launcher: Launcher,
        watcher: Watcher | None = None,
        command: Sequence[str] = (),
        former: Results | None = None,
    ) -> None:
        self.experiment = experiment
        self.folder = folder
        self.turns = turns(experiment)
        self._launcher = launcher
        self._watcher: Watcher = watcher or Silent()
        self._before_s = 0.0 if former is None else former["seconds"]
        self.results = _empty(experiment, len(self.turns), launcher.kind, list(command or sys.argv))
        if former is not None:
            self._go_on(former)
        self._begin = time.monotonic() - self._before_s

    def run(self) -> Results:
        """Makes all runs.  An interrupted experiment leaves what is finished, too.

        Raises:
            ConfigError, HostLacks: Nothing was built.
            Ended: A signal came; ``results.json`` is written, and nothing is left running.
        """
        check(self.experiment, self._launcher)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "experiment.toml").write_text(self.experiment.alone().to_toml())
        self._begin = time.monotonic() - self._before_s
        made = {(result["candidate"], result["seed"]) for result in self.results["runs"]}
        left = [(number, turn) for number, turn in enumerate(self.turns) if (turn.candidate.name, turn.seed) not in made]
        try:
            if left:
                self._launcher.prepare()
            for number, turn in left:
                self._watcher.began(number, turn)
                result = self._run(turn)
                self.results["runs"].append(result)
                self._write()
                self._watcher.ended(number, result)
            self.results["complete"] = True
        except (Ended, KeyboardInterrupt) as error:
            self.results["interrupted"] = str(error) or "SIGINT"
            raise
        finally:
            with uninterrupted():
                try:
                    self._launcher.close()
                finally:
                    self._write()
        return self.results

    def _go_on(self, former: Results) -> None:
        """Takes over the runs that were made; what failed stays, so that nobody tries until it goes well."""
        runs = [run for run in former["runs"] if run["outcome"] != "interrupted"]
        here = self.results["machine"]
        where = "the same machine" if former["machine"] == here else f"another machine: {here}"
        note = f"The experiment was gone on with at {self.results['started']}, after {len(runs)} runs, on {where}."
        self.results["runs"] = runs
        self.results["notes"] = [*former.get("notes", []), note]
        self.results["started"], self.results["machine"] = former["started"], former["machine"]

    def _write(self) -> None:
        self.results["seconds"] = time.monotonic() - self._begin
        summarize(self.results)
        write_results(self.results, self.folder)

    def _run(self, turn: Turn) -> RunResult:
        result = self._try(turn)
        if result["outcome"] == "failed" and all(rank["exit_code"] is None for rank in result["ranks"]):
            # The network failed before there were ranks, which says nothing about the candidate; a busy machine does that.
            self.results.setdefault("notes", []).append(
                f"{turn.candidate.name}, seed {turn.seed}, tried again: {result['error']}"
            )
            return self._try(turn)
        return result

    def _try(self, turn: Turn) -> RunResult:
        run = Run(self.experiment, self.folder, turn, self._launcher, self._watcher, self._begin)
        try:
            run.make()
        except (Ended, KeyboardInterrupt):
            with uninterrupted():
                run.note("interrupted", "the experiment was interrupted")
                self.results["runs"].append(run.result())
            raise
        except ConfigError:
            raise  # every run would fail alike
        except DLCPError as error:
            run.note("failed", str(error))
        return run.result()


_KEPT: Final = ("key", "what", "lost")


def _empty(experiment: Experiment, planned: int, launcher: str, command: list[str]) -> Results:
    from dlcp.cli.bench import machine

    network = experiment.network
    return {
        "format": FORMAT,
        "version": VERSION,
        "experiment": experiment.to_dict(),
        "topology": network.to_dict(),
        "hosts": {host.name: list(host.ranks) for host in network.hosts},
        "goal": experiment.training.accuracy,
        "machine": machine(),
        "command": command,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": 0.0,
        "launcher": launcher,
        "complete": False,
        "interrupted": "",
        "planned": planned,
        "best_baseline": None,
        "candidates": [
            {
                "name": candidate.name,
                "comm": candidate.comm,
                "baseline": candidate.baseline,
                "congestion": candidate.congestion,
                "target": experiment.target_of(candidate),
                "algorithm": experiment.algorithm_of(candidate),
                "policy": experiment.policy_of(candidate).to_dict(),
                "summary": None,  # type: ignore[typeddict-item]  # summarize() fills it in
            }
            for candidate in experiment.candidates
        ],
        "runs": [],
        "missing": [{key: str(getattr(found, key)) for key in _KEPT} for found in probe().values() if not found.ok],
    }


__all__ = ["Runner", "check", "turns"]
