"""One run of an experiment: a network, a training in it, and what came of both."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from testbed.candidates import places_of
from testbed.events import Events, Happened, lossy_links
from testbed.experiment import Candidate, Experiment
from testbed.lab.load import Ticks, share, ticks
from testbed.lab.network import ALL, Lab
from testbed.ranks.collect import Records, relative, time_to
from testbed.ranks.launch import Launcher
from testbed.ranks.training import Trained, Training
from testbed.results import HappenedEvent, Outcome, RunResult, TraceFile
from testbed.traffic.cross import CrossTraffic


@dataclass(frozen=True)
class Turn:
    """One run that is to be made."""

    candidate: Candidate
    repeat: int
    seed: int


class Watcher(Protocol):
    """Is told how an experiment goes on."""

    def began(self, number: int, turn: Turn) -> None:
        """A run begins; ``number`` counts from 0."""

    def stage(self, text: str) -> None:
        """What is being done, in a few words."""

    def line(self, line: Mapping[str, Any]) -> None:
        """Rank 0 has written a line."""

    def ended(self, number: int, result: RunResult) -> None:
        """A run has ended."""


class Silent:
    """A watcher that shows nothing."""

    def began(self, number: int, turn: Turn) -> None:
        """Does nothing."""

    def stage(self, text: str) -> None:
        """Does nothing."""

    def line(self, line: Mapping[str, Any]) -> None:
        """Does nothing."""

    def ended(self, number: int, result: RunResult) -> None:
        """Does nothing."""


class Run:
    """One run: builds the network, trains, and takes everything down.

    Its numbers are filled in as they become known, so that there is a result whatever happens.

    Args:
        experiment: What is run.
        root: The experiment's folder.
        turn: Which run this is.
        launcher: Starts the ranks.
        watcher: Is told how it goes on.
        begin: When the experiment began (monotonic, seconds).
    """

    def __init__(
        self, experiment: Experiment, root: Path, turn: Turn, launcher: Launcher, watcher: Watcher, begin: float
    ) -> None:
        self._experiment, self._root, self._turn = experiment, root, turn
        self._launcher, self._watcher, self._begin = launcher, watcher, begin
        self.folder = root / turn.candidate.name / str(turn.seed)
        self._started = time.monotonic()
        self._up: float | None = None
        self._closing: float | None = None
        self._down: float | None = None
        self._problem: tuple[Outcome, str] | None = None
        self._trained: Trained | None = None
        self._network: dict[str, Any] = {}
        self._traces: list[TraceFile] = []
        self._happened: list[Happened] = []
        self._traffic: list[dict[str, Any]] = []
        self._ticks: list[Ticks] = []

    def note(self, outcome: Outcome, error: str) -> None:
        """Notes what went wrong; the first is what counts."""
        if self._problem is None:
            self._problem = (outcome, error)

    def make(self) -> None:
        """Does it."""
        experiment, turn, stage = self._experiment, self._turn, self._watcher.stage
        if self.folder.exists():
            shutil.rmtree(self.folder)  # of a first attempt
        self.folder.mkdir(parents=True)
        lab = Lab(
            experiment.network,
            target=experiment.target_of(turn.candidate),
            policy=experiment.policy_of(turn.candidate),
            run_dir=self.folder,
            seed=turn.seed,
            lossy=lossy_links(experiment.events),
            notify=stage,
        )
        try:
            with lab:
                self._up = time.monotonic()
                try:
                    lab.set_congestion(ALL, turn.candidate.congestion)
                    self._train(lab)
                finally:
                    self._closing = time.monotonic()
                    stage("taking the network down")
        finally:
            self._down = time.monotonic()

    def _train(self, lab: Lab) -> None:
        experiment, turn, watcher = self._experiment, self._turn, self._watcher
        training = Training(lab, experiment, turn.candidate, turn.seed, self.folder, self._launcher)
        self._trained = training.result
        with ExitStack() as stack:
            traffic: CrossTraffic | None = None
            if experiment.traffic:
                watcher.stage("cross traffic")
                traffic = CrossTraffic(lab, experiment.traffic, self.folder / "traffic", seed=turn.seed)
                stack.enter_context(traffic)
            events = stack.enter_context(Events(lab, experiment.events, training.kill))

            def first_step(zero: float) -> None:
                at_ns = round(zero * 1e9)
                self._ticks = [ticks()]
                if traffic is not None:
                    traffic.begin(at_ns)
                events.begin(at_ns)

            def still_there() -> None:
                if traffic is not None:
                    traffic.check()

            watcher.stage("ranks meet")
            try:
                training.run(first_step, watcher.line, still_there)
            finally:
                self._ticks.append(ticks())
                self._happened = events.stop()
            if training.result.outcome != "ok":
                self.note(training.result.outcome, training.result.error)
            watcher.stage("collecting")
            if traffic is not None:
                self._traffic = [flow.to_dict() for flow in traffic.stop()]
            self._look(lab, training.result.zero or training.result.began)

    def _look(self, lab: Lab, zero: float) -> None:
        """Takes down what the network has counted."""
        self._network = lab.statistics()
        now = time.monotonic()
        for path in lab.traces:
            name = path.name.partition(".trace")[0]
            ports = {str(port.number): port.peer for port in lab.plan.ports[name]}
            start = _start_of_trace(path, self._network["switches"].get(name, {}), now, path == _last(lab.traces, name))
            self._traces.append({"switch": name, "file": relative(path, self._root), "start_s": start - zero, "ports": ports})

    def result(self) -> RunResult:
        """Returns what is known."""
        turn, experiment, root = self._turn, self._experiment, self._root
        trained = self._trained or Trained(self.folder.resolve(), places_of(experiment))
        records = Records(trained, experiment.training.eval_every)
        evaluations = records.evaluations()
        goal = experiment.training.accuracy
        problem: tuple[Outcome, str] = self._problem or ("ok", "")
        now = time.monotonic()
        closing = self._closing or now
        zero, ended = trained.zero, trained.ended or now
        result: RunResult = {
            "candidate": turn.candidate.name,
            "repeat": turn.repeat,
            "seed": turn.seed,
            "folder": relative(self.folder, root),
            "outcome": problem[0],
            "error": problem[1],
            "started_s": self._started - self._begin,
            "zero_s": zero,
            "bring_up_s": (self._up or self._down or now) - self._started,
            "meeting_s": zero - trained.began if zero is not None else None,
            "training_s": ended - zero if zero is not None else None,
            "tear_down_s": (self._down or now) - closing if self._closing is not None else 0.0,
            "steps": records.steps(),
            "step_s": records.step_times(),
            "losses": records.losses(),
            "evaluations": evaluations,
            "time_to_accuracy_s": time_to(goal, evaluations),
            "final_accuracy": evaluations[-1]["accuracy"] if evaluations else None,
            "final_loss": evaluations[-1]["test_loss"] if evaluations else None,
            "buckets": records.buckets(),
            "classes": records.classes(),
            "packets": records.packets(),
            "residual": records.residual(),
            "transport": records.transport(),
            "ranks": records.ranks(root),
            "network": self._network,
            "traces": self._traces,
            "events": [_plain(event) for event in self._happened],
            "traffic": self._traffic,
            "processors_busy": share(*self._ticks) if len(self._ticks) == 2 else None,
        }
        if experiment.jobs > 1:
            others = range(1, experiment.jobs)
            result["jobs"] = [Records(trained, experiment.training.eval_every, job).job(job, goal) for job in others]
        return result


def _plain(event: Happened) -> HappenedEvent:
    return {"at_s": event.at_s, "kind": event.kind, "what": event.what, "error": event.error}


def _last(traces: Sequence[Path], switch: str) -> Path | None:
    own = [path for path in traces if path.name.partition(".trace")[0] == switch]
    return own[-1] if own else None


def _start_of_trace(path: Path, statistics: Mapping[str, Any], now: float, running: bool) -> float:
    """Returns the monotonic time at which the switch started that wrote a trace."""
    elapsed = statistics.get("elapsed_ns")
    if running and elapsed is not None:
        return now - float(elapsed) / 1e9
    # It was restarted since: its last line is as old as the file, give or take the interval at which it is written out.
    lines = path.read_bytes().splitlines()
    t_us = next((json.loads(line)["t_us"] for line in reversed(lines) if line.endswith(b"}")), 0)
    return path.stat().st_mtime - time.time() + time.monotonic() - float(t_us) / 1e6


__all__ = ["Run", "Silent", "Turn", "Watcher"]
