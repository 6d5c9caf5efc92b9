"""An experiment as its figures look at it: candidates, their runs, and the run that stands for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from dlcp.errors import ConfigError
from dlcp.report.numbers import Spread
from dlcp.topology import Topology
from testbed.report.document import checked
from testbed.report.records import PortTrace, inside, read_ports, step_times
from testbed.results import CandidateResult, Results, RunResult

DLCP_COMMS = ("dlcp", "pipelined")
"""Ways that carry gradients over DLCP in every step."""

TCP_COMMS = ("gloo", "gloo-fp16", "powersgd", "postlocalsgd")
"""Ways that a policy says nothing about."""


@dataclass(frozen=True)
class Contender:
    """A candidate with its runs.

    Attributes:
        result: What the document says of it.
        runs: All its runs.
        place: Position among the candidates of its role, which chooses its colour.
        best: Whether it is the yardstick.
    """

    result: CandidateResult
    runs: tuple[RunResult, ...]
    place: int
    best: bool

    @property
    def name(self) -> str:
        return self.result["name"]

    @property
    def baseline(self) -> bool:
        return self.result["baseline"]

    @property
    def style(self) -> str:
        """Class of its marks: ``b0``, ``b1``... for baselines (``best`` for the yardstick), ``s0``, ``s1``... for the rest."""
        if self.best:
            return "best"
        return f"{'b' if self.baseline else 's'}{self.place}"

    @cached_property
    def shown(self) -> tuple[RunResult, ...]:
        """Runs that count: all that made a step and were not interrupted by the user (as in :mod:`testbed.summary`).

        A run that failed counts with what it did until then; leaving it out would make the candidate look better.
        """
        return tuple(run for run in self.runs if run["steps"] > 0 and run["outcome"] != "interrupted")

    def spread(self, value: Callable[[RunResult], float | None]) -> Spread | None:
        """Returns the spread of something over the runs that count."""
        return Spread.of(value(run) for run in self.shown)

    @cached_property
    def representative(self) -> RunResult | None:
        """The run nearest the median, in time to accuracy or else in the time that training took."""
        if not self.shown:
            return None
        values: list[Callable[[RunResult], float | None]] = [
            lambda run: run["time_to_accuracy_s"],
            lambda run: run["training_s"],
        ]
        for value in values:
            spread = self.spread(value)
            if spread is not None:
                known = [(found, run) for run in self.shown if (found := value(run)) is not None]
                middle = spread.median
                return min(known, key=lambda pair: (abs(pair[0] - middle), pair[1]["repeat"]))[1]
        return max(self.shown, key=lambda run: run["steps"])


@dataclass
class View:
    """All that a report is made from.

    Attributes:
        results: The document, checked.
        folder: The folder of the experiment.
        problems: What could not be read, for people; it grows while files are read.
    """

    results: Results
    folder: Path
    problems: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, document: Mapping[str, Any], folder: Path) -> View:
        """Checks a document."""
        results, problems = checked(document)
        return cls(results, folder, [f"results.json: {problem}" for problem in problems])

    @cached_property
    def contenders(self) -> tuple[Contender, ...]:
        """All candidates, in the order of the experiment's file."""
        places = {True: 0, False: 0}
        found = []
        for candidate in self.results["candidates"]:
            best = candidate["name"] == self.results["best_baseline"]
            runs = tuple(run for run in self.results["runs"] if run["candidate"] == candidate["name"])
            found.append(Contender(candidate, runs, places[candidate["baseline"]], best))
            if not best:
                places[candidate["baseline"]] += 1
        return tuple(found)

    @cached_property
    def best_baseline(self) -> Contender | None:
        """The yardstick."""
        return next((contender for contender in self.contenders if contender.best), None)

    @cached_property
    def winner(self) -> Contender | None:
        """The candidate that is no baseline with the smallest median time to accuracy."""
        reached = [
            (spread.median, contender)
            for contender in self.contenders
            if not contender.baseline and (spread := time_to_accuracy(contender)) is not None
        ]
        return min(reached, key=lambda pair: pair[0])[1] if reached else None

    @cached_property
    def featured(self) -> tuple[Contender, ...]:
        """The candidates that the network's figures begin with: the yardstick and the winner, or whatever ran."""
        first = self.best_baseline or self.quickest(baseline=True)
        second = self.winner or self.quickest(baseline=False)
        return tuple(contender for contender in (first, second) if contender is not None)

    def quickest(self, *, baseline: bool) -> Contender | None:
        """Returns the candidate with the smallest median time of a step."""
        found = [
            (spread.median, contender)
            for contender in self.contenders
            if contender.baseline == baseline and (spread := contender.spread(lambda run: run["step_s"]["p50_s"])) is not None
        ]
        return min(found, key=lambda pair: pair[0])[1] if found else None

    @cached_property
    def peers(self) -> dict[str, dict[str, str]]:
        """What each port of each switch leads to, by name of the switch and number of the port."""
        try:
            graph = Topology.from_dict(self.results["topology"]).graph
        except ConfigError as error:
            self.tell(f"results.json: topology: {error.problem}")
            return {}
        return {name: {str(arc.port): arc.target for arc in graph.leaving(name)} for name in graph.switches}

    @cached_property
    def ports(self) -> dict[str, list[PortTrace]]:
        """Queues over time in the representative run of each candidate that has traces."""
        found = {}
        for contender in self.contenders:
            run = contender.representative
            if run is not None and run["traces"]:
                ports = read_ports(self.folder, run["traces"], self.tell)
                if ports:
                    found[contender.name] = ports
        return found

    @cached_property
    def steps(self) -> dict[str, list[float]]:
        """Seconds of all steps that count of all runs, ascending, by candidate; see ``step_s`` of a run."""
        training = self.results["experiment"].get("training")
        every = training.get("eval_every") if isinstance(training, Mapping) else None
        every = every if isinstance(every, int) and every > 0 else None
        found = {}
        for contender in self.contenders:
            times = [time for run in contender.shown for time in step_times(self.folder, run, self.tell, every)]
            if times:
                found[contender.name] = sorted(times)
        return found

    def tell(self, problem: str) -> None:
        """Notes something that could not be read."""
        if problem not in self.problems:
            self.problems.append(problem)

    def has(self, name: str) -> bool:
        """Tells whether a file of the experiment exists."""
        path = inside(self.folder, name)
        return path is not None and path.is_file()


def time_to_accuracy(contender: Contender) -> Spread | None:
    """Returns the spread of the times to accuracy over the runs that count and reached it."""
    return contender.spread(lambda run: run["time_to_accuracy_s"])


def paired(contender: Contender, other: Contender, value: Callable[[RunResult], float | None]) -> Spread | None:
    """Returns the spread of ``other`` over ``contender``, repeat by repeat: runs that took turns and have the same seed."""
    theirs = {run["repeat"]: value(run) for run in other.shown}
    ratios = []
    for run in contender.shown:
        mine, their = value(run), theirs.get(run["repeat"])
        if mine and their is not None:
            ratios.append(their / mine)
    return Spread.of(ratios)


__all__ = ["DLCP_COMMS", "TCP_COMMS", "Contender", "View", "paired", "time_to_accuracy"]
