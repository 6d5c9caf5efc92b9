"""One training in a lab: starts the ranks, watches them, and ends them in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dlcp.policy import Policy
from examples.reporting import log_path
from testbed.candidates import Place, arguments, places_of, write_inputs
from testbed.experiment import Candidate, Experiment
from testbed.lab.errors import LabError
from testbed.lab.network import Lab
from testbed.ranks.follow import Follower, parse_lines
from testbed.ranks.launch import Launcher, RankJob, Started
from testbed.results import Outcome

LOG: Final = "rank.jsonl"
_QUICK_S: Final = 0.02
_SLOW_S: Final = 0.1
_CHECK_EVERY_S: Final = 1.0
_GRACE_S: Final = 5.0
"""How long ranks that lost another may take beyond the policy's silence, before they are ended."""


@dataclass
class Trained:
    """What became of the ranks of a run.

    Attributes:
        folder: With the ranks' files.
        places: Where each rank of the topology is.
        codes: Exit code of each of them; None for one that had to be ended.
        outcome: See :data:`testbed.results.Outcome`.
        error: In words; empty if all went well.
        began: When the ranks were started (monotonic, seconds).
        zero: When rank 0 began its first step; None if it never did.
        ended: When the last rank ended.
        killed: Ranks that an event killed.
    """

    folder: Path
    places: dict[int, Place]
    codes: dict[int, int | None] = field(default_factory=dict)
    outcome: Outcome = "ok"
    error: str = ""
    began: float = 0.0
    zero: float | None = None
    ended: float = 0.0
    killed: list[int] = field(default_factory=list)


class Training:
    """The ranks of one run.

    Args:
        lab: The network, which is up.
        experiment: What is trained.
        candidate: How gradients travel.
        seed: Of weights and order of samples.
        folder: Of the run; it is there.
        launcher: Starts the ranks.
    """

    def __init__(
        self, lab: Lab, experiment: Experiment, candidate: Candidate, seed: int, folder: Path, launcher: Launcher
    ) -> None:
        self._lab, self._launcher = lab, launcher
        self._experiment, self._candidate = experiment, candidate
        self._policy: Policy = experiment.policy_of(candidate)
        self._seed = seed
        self._folder = folder.resolve()
        self._started = Started()
        self.result = Trained(self._folder, places_of(experiment))

    def run(
        self,
        on_first_step: Callable[[float], object] = lambda zero: None,
        watch: Callable[[Mapping[str, Any]], object] = lambda line: None,
        check: Callable[[], object] = lambda: None,
    ) -> Trained:
        """Trains to the end, or until the experiment's timeout is over or something else has ended it.

        Args:
            on_first_step: Called once with the time (monotonic, seconds) at which rank 0 began its first step.
            watch: Sees each line that rank 0 writes.
            check: Called now and then; what it raises as a LabError ends the run.
        """
        result = self.result
        result.began = time.monotonic()
        try:
            self._started = self._launcher.start(self._lab, self._jobs())
            self._wait(on_first_step, watch, check)
        except LabError as error:
            result.outcome, result.error = "failed", str(error)
        finally:
            self._launcher.end(self._started)
            result.ended = time.monotonic()
            result.codes = {rank: state.code for rank, state in sorted(self._started.states.items())}
        if result.outcome == "ok":
            self._judge()
        return result

    def kill(self, rank: int) -> None:
        """Kills a rank, as a crash would.

        Raises:
            LabError: There is none that runs.
        """
        state = self._started.states.get(rank)
        if state is None or state.ended:
            raise LabError(f"rank {rank} does not run")
        if state.pid is None:
            # Under another launcher only the rank itself knows.
            begun = [line for line in self._lines(rank) if line.get("event") == "start"]
            if not begun:
                raise LabError(f"rank {rank} has not said which process it is")
            state.pid = int(begun[-1]["pid"])
        self.result.killed.append(rank)
        self._launcher.kill(self._started, rank)

    def _jobs(self) -> list[RankJob]:
        folder = self._folder
        jobs = []
        for number, place in self.result.places.items():
            own = place.folder(folder)
            if place.rank == 0:
                (own / "ranks").mkdir(parents=True, exist_ok=True)
                write_inputs(self._experiment, self._candidate, own)
            store = own / "store" if self._launcher.kind == "fork" else None
            address = self._lab.hosts[place.host].address
            words = arguments(self._experiment, self._candidate, self._seed + place.job, own, address, store)
            jobs.append(RankJob(number, place.rank, place.world, place.host, tuple(words), self._output(number)))
        return jobs

    def _output(self, number: int) -> Path:
        place = self.result.places[number]
        return place.folder(self._folder) / "ranks" / f"{place.rank}.log"

    def _wait(
        self,
        on_first_step: Callable[[float], object],
        watch: Callable[[Mapping[str, Any]], object],
        check: Callable[[], object],
    ) -> None:
        result, started = self.result, self._started
        follower = Follower(log_path(self._folder / LOG, 0))
        deadline = result.began + self._experiment.timeout.seconds
        checked = result.began
        while started.running:
            # Until the first step others wait for, news must be quick.
            self._launcher.poll(started, _QUICK_S if result.zero is None else _SLOW_S)
            for line in follower.lines():
                if line.get("event") == "training" and result.zero is None:
                    result.zero = float(line["t"])
                    on_first_step(result.zero)
                watch(line)
            now = time.monotonic()
            if now >= checked + _CHECK_EVERY_S:
                checked = now
                self._lab.check()
                check()
            if any(state.ended and state.code != 0 for state in started.states.values()):
                deadline = min(deadline, now + self._policy.timeouts.peer_s + _GRACE_S)
            if now >= deadline:
                self._too_late(now)
                return
        for line in follower.lines():
            if line.get("event") == "training" and result.zero is None:
                result.zero = float(line["t"])
            watch(line)

    def _too_late(self, now: float) -> None:
        running = self._started.running
        if now - self.result.began >= self._experiment.timeout.seconds:
            self.result.outcome = "timeout"
            self.result.error = f"ranks {running} had not ended after {self._experiment.timeout}"
        else:
            self._judge(f"; ranks {running} did not notice")

    def _judge(self, more: str = "") -> None:
        """Says what the exit codes mean."""
        result = self.result
        bad = [rank for rank, state in self._started.states.items() if state.code != 0 and rank not in result.killed]
        if result.killed:
            result.outcome = "killed"
            result.error = f"an event killed rank {', '.join(map(str, result.killed))}{more}"
        elif bad:
            result.outcome = "failed"
            first = next((rank for rank in bad if self._said(rank)), bad[0])
            code = self._started.states[first].code
            result.error = f"rank {first} ended with code {code}: {self._said(first) or 'it said nothing'}{more}"

    def _said(self, rank: int) -> str:
        return last_words(self._output(rank))

    def _lines(self, rank: int) -> list[dict[str, Any]]:
        place = self.result.places[rank]
        path = log_path(place.folder(self._folder) / LOG, place.rank)
        return parse_lines(path.read_bytes()) if path.exists() else []


def last_words(path: Path) -> str:
    """Returns the last line of a file that says something, or an empty string."""
    if not path.exists():
        return ""
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:400] if lines else ""


__all__ = ["LOG", "Trained", "Training", "last_words"]
