"""What all runs of a candidate come to, and how it compares with the best of today."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from testbed.results import CandidateResult, Median, Results, RunResult, Summary


def summarize(results: Results) -> None:
    """Fills in the summaries, from the runs that there are so far.

    Runs that were interrupted do not count; those that failed count as runs that did not reach the goal.
    """
    for candidate in results["candidates"]:
        runs = [run for run in results["runs"] if run["candidate"] == candidate["name"] and run["outcome"] != "interrupted"]
        candidate["summary"] = _summary(runs)
    baseline = _best([candidate for candidate in results["candidates"] if candidate["baseline"]])
    results["best_baseline"] = baseline["name"] if baseline is not None else None
    if baseline is None:
        return
    for candidate in results["candidates"]:
        summary, yardstick = candidate["summary"], baseline["summary"]
        summary["speedup"] = _ratio(yardstick["time_to_accuracy_s"]["median"], summary["time_to_accuracy_s"]["median"])
        summary["p99_gain"] = _ratio(yardstick["step_p99_s"]["median"], summary["step_p99_s"]["median"])


def _summary(runs: Sequence[RunResult]) -> Summary:
    times = median([run["time_to_accuracy_s"] for run in runs])
    return {
        "runs": len(runs),
        "failed": sum(run["outcome"] != "ok" for run in runs),
        "reached": sum(value is not None for value in times["values"]),
        "time_to_accuracy_s": times,
        "final_accuracy": median([run["final_accuracy"] for run in runs]),
        "step_p50_s": median([run["step_s"]["p50_s"] for run in runs]),
        "step_p99_s": median([run["step_s"]["p99_s"] for run in runs]),
        "speedup": None,
        "p99_gain": None,
    }


def _best(baselines: Sequence[CandidateResult]) -> CandidateResult | None:
    """Returns the one that reaches the goal most often, and among these soonest; none if none does."""
    able = [each for each in baselines if each["summary"]["time_to_accuracy_s"]["median"] is not None]

    def rank(candidate: CandidateResult) -> tuple[float, float]:
        summary = candidate["summary"]
        return (-summary["reached"] / summary["runs"], summary["time_to_accuracy_s"]["median"] or 0.0)

    return min(able, key=rank) if able else None


def median(values: Sequence[float | None]) -> Median:
    """Describes values of which some may be missing."""
    found = [value for value in values if value is not None]
    return {
        "median": statistics.median(found) if found else None,
        "min": min(found) if found else None,
        "max": max(found) if found else None,
        "values": list(values),
    }


def _ratio(base: float | None, value: float | None) -> float | None:
    return base / value if base is not None and value else None


__all__ = ["median", "summarize"]
