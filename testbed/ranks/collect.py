"""From the files that ranks wrote to what stands in ``results.json``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from examples.reporting import log_path
from testbed.ranks.follow import parse_lines
from testbed.ranks.training import LOG, Trained, last_words
from testbed.results import Completion, Distribution, Evaluation, JobResult, Packets, RankResult, Residual

CURVE_POINTS: Final = 1000

Line = dict[str, Any]


class Records:
    """All lines of all ranks of a job.

    Args:
        trained: The run.
        eval_every: Steps between evaluations.
        job: The job.
    """

    def __init__(self, trained: Trained, eval_every: int, job: int = 0) -> None:
        self._trained = trained
        self._every = eval_every
        self._lines: dict[int, dict[str, list[Line]]] = {}
        self._places = {number: place for number, place in trained.places.items() if place.job == job}
        self._folder = next(iter(self._places.values())).folder(trained.folder)
        for rank in (place.rank for place in self._places.values()):
            by_event: dict[str, list[Line]] = {}
            path = log_path(self._folder / LOG, rank)
            for line in parse_lines(path.read_bytes()) if path.exists() else []:
                by_event.setdefault(str(line.get("event")), []).append(line)
            self._lines[rank] = by_event

    def of(self, event: str, rank: int | None = None) -> list[Line]:
        """Returns the lines of an event, of one rank or all."""
        ranks = self._lines if rank is None else (rank,)
        return [line for each in ranks for line in self._lines[each].get(event, [])]

    def steps(self) -> int:
        """Number of steps that all ranks made."""
        return min((len(self.of("step", rank)) for rank in self._lines), default=0)

    def step_times(self) -> Distribution:
        """Of all steps but the first, which also sets up, and those after an evaluation, in which others wait for rank 0."""
        return distribution(line["step_s"] for line in self.of("step") if line["step"] > 0 and line["step"] % self._every != 0)

    def losses(self) -> list[list[float | None]]:
        """Loss over time."""
        values: dict[int, list[float]] = {}
        for line in self.of("step"):
            if line["loss"] is not None:
                values.setdefault(line["step"], []).append(line["loss"])
        steps = self.of("step", 0)
        every = max(1, -(-len(steps) // CURVE_POINTS))
        return [
            [line["clock_s"], float(np.mean(found)) if (found := values.get(line["step"])) else None] for line in steps[::every]
        ]

    def evaluations(self) -> list[Evaluation]:
        """Accuracy over time."""
        return [
            {"clock_s": line["clock_s"], "step": line["step"], "accuracy": line["accuracy"], "test_loss": line["test_loss"]}
            for line in self.of("evaluation", 0)
            if line["test_loss"] is not None
        ]

    def buckets(self) -> Completion:
        """Of all buckets of all ranks."""
        return completion(self.of("bucket"))

    def classes(self) -> dict[str, Completion]:
        """Of messages, by class."""
        by_class: dict[str, list[Line]] = {}
        for line in self.of("message"):
            by_class.setdefault(str(line["class"]), []).append(line)
        return {number: completion(lines) for number, lines in sorted(by_class.items())}

    def packets(self) -> dict[str, Packets]:
        """By class, as of each rank's last epoch."""
        total: dict[str, Packets] = {}
        for rank in self._lines:
            epochs = self.of("epoch", rank)
            for number, row in (epochs[-1].get("packets", {}) if epochs else {}).items():
                sums = total.setdefault(number, {"protected": 0, "droppable": 0, "lost_protected": 0, "lost_droppable": 0})
                for key in sums:
                    sums[key] += row[key]  # type: ignore[literal-required]
        return dict(sorted(total.items()))

    def residual(self) -> list[Residual]:
        """What is owed over time, summed over ranks."""
        found: dict[int, Residual] = {}
        for rank in self._lines:
            for line in self.of("residual", rank):
                at = found.setdefault(line["step"], {"clock_s": line["clock_s"], "step": line["step"], "l1": 0.0, "elements": 0})
                at["l1"] += line["l1"] or 0.0
                at["elements"] += line["elements"]
        return [found[step] for step in sorted(found)]

    def transport(self) -> dict[str, int]:
        """DLCP's counters, summed."""
        total: Counter[str] = Counter()
        for rank in self._lines:
            epochs = self.of("epoch", rank)
            metrics = epochs[-1].get("metrics", {}) if epochs else {}
            transport = metrics.get("transport", {}) if isinstance(metrics, Mapping) else {}
            counters = transport.get("transport", {}) if isinstance(transport, Mapping) else {}
            total.update({key: value for key, value in counters.items() if isinstance(value, int)})
        return dict(sorted(total.items()))

    def ranks(self, root: Path) -> list[RankResult]:
        """What became of each rank."""
        folder = self._folder
        return [
            {
                "rank": place.rank,
                "host": place.host,
                "exit_code": self._trained.codes.get(number),
                "steps": len(self.of("step", place.rank)),
                "log": relative(log_path(folder / LOG, place.rank), root),
                "output": relative(folder / "ranks" / f"{place.rank}.log", root),
                "said": last_words(folder / "ranks" / f"{place.rank}.log"),
            }
            for number, place in self._places.items()
        ]

    def job(self, number: int, goal: float) -> JobResult:
        """In short."""
        evaluations = self.evaluations()
        return {
            "job": number,
            "steps": self.steps(),
            "step_s": self.step_times(),
            "time_to_accuracy_s": time_to(goal, evaluations),
            "final_accuracy": evaluations[-1]["accuracy"] if evaluations else None,
        }


def time_to(goal: float, evaluations: Sequence[Evaluation]) -> float | None:
    """Returns the clock at the first evaluation that reached a goal."""
    return next((each["clock_s"] for each in evaluations if each["accuracy"] >= goal), None)


def relative(path: Path, root: Path) -> str:
    """Returns a path as it is seen from the folder of results.json."""
    return str(path.resolve().relative_to(root.resolve()))


def distribution(times: Iterable[float]) -> Distribution:
    """Describes times in seconds."""
    values = np.fromiter(times, float)
    if not values.size:
        return dict.fromkeys(Distribution.__annotations__, None) | {"count": 0}  # type: ignore[return-value]
    p50, p95, p99 = (float(value) for value in np.quantile(values, (0.5, 0.95, 0.99)))
    return {
        "count": int(values.size),
        "mean_s": float(values.mean()),
        "p50_s": p50,
        "p95_s": p95,
        "p99_s": p99,
        "min_s": float(values.min()),
        "max_s": float(values.max()),
    }


def completion(lines: Sequence[Line]) -> Completion:
    """Describes buckets or messages."""
    times = np.array([line["end_s"] - line["begin_s"] for line in lines])
    return {
        "count": len(lines),
        "bytes": sum(line["bytes"] for line in lines),
        "lost_packets": sum(line.get("lost", 0) for line in lines),
        "quantiles_s": np.quantile(times, np.linspace(0, 1, 101)).tolist() if times.size else [],
    }


__all__ = ["Records", "completion", "distribution", "relative", "time_to"]
