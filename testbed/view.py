"""What people see of experiments: progress, and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from testbed.candidates import KINDS
from testbed.events import describe
from testbed.experiment import Experiment
from testbed.lab.capabilities import Capability
from testbed.results import Median, Results, RunResult
from testbed.run import Turn


class Progress:
    """Shows, on standard error, how an experiment goes on: one line for each run that has ended, and what is being done now.

    Args:
        experiment: What is run.
        folder: Where its results go.
    """

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self._experiment, self._folder = experiment, folder
        self._console = Console(stderr=True)
        self._planned = experiment.repeats * len(experiment.candidates)
        self._bars: Bars | None = None
        self._task = TaskID(0)
        self._turn = ""
        self._steps = 0
        self._accuracy: float | None = None

    def __enter__(self) -> Self:
        network, count = self._experiment.network, len(self._experiment.candidates)
        self.say(
            f"{self._experiment.name}: {network.world} ranks on {len(network.hosts)} hosts, {len(network.switches)} switches; "
            f"{count} candidate{'s' if count > 1 else ''}, {self._planned} runs; results in {self._folder}"
        )
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
            self._bars = Bars(*columns, TimeElapsedColumn(), console=self._console, transient=True)
            self._bars.start()
            self._task = self._bars.add_task("", total=self._planned, note="")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()

    def say(self, text: str) -> None:
        """Prints a line."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def began(self, number: int, turn: Turn) -> None:
        """A run begins."""
        self._turn = f"{turn.candidate.name}, seed {turn.seed}"
        self._steps, self._accuracy = 0, None
        self._note("network", number)

    def stage(self, text: str) -> None:
        """What is being done."""
        self._note(text)

    def line(self, line: Mapping[str, Any]) -> None:
        """Rank 0 has written a line."""
        if line.get("event") == "step":
            self._steps = int(line["step"]) + 1
        elif line.get("event") == "evaluation":
            self._accuracy = float(line["accuracy"])
        else:
            return
        accuracy = "" if self._accuracy is None else f", accuracy {100 * self._accuracy:.1f} %"
        self._note(f"step {self._steps}{accuracy}")

    def ended(self, number: int, result: RunResult) -> None:
        """A run has ended."""
        self.say(f"[{number + 1}/{self._planned}] {self._turn}: {outcome(result, self._experiment.training.accuracy)}")
        self._note("", number + 1)

    def _note(self, text: str, completed: int | None = None) -> None:
        if self._bars is not None:
            self._bars.update(self._task, description=self._turn, note=text, completed=completed)


def outcome(result: RunResult, goal: float) -> str:
    """Says in a line what came of a run."""
    if result["outcome"] not in ("ok", "killed"):
        return f"{result['outcome']}: {result['error']}"
    reached = result["time_to_accuracy_s"]
    words = [f"{100 * goal:g} % after {reached:.2f} s" if reached is not None else f"{100 * goal:g} % not reached"]
    if result["final_accuracy"] is not None:
        words.append(f"in the end {100 * result['final_accuracy']:.1f} %")
    words.append(f"step {_ms(result['step_s']['p50_s'])} p50, {_ms(result['step_s']['p99_s'])} p99")
    if result["outcome"] == "killed":
        words.append(result["error"])
    return ", ".join(words)


def print_results(results: Results, console: Console) -> None:
    """Prints the table: a line for each candidate."""
    goal = 100 * results["goal"]
    table = Table(title=f"{results['experiment']['name']}, medians", title_justify="left")
    table.add_column("candidate", overflow="fold")
    for name in ("runs", f"time to {goal:g} %", "faster", "accuracy", "step p50", "step p99", "p99 shorter"):
        table.add_column(name, justify="right", overflow="fold")
    for candidate in results["candidates"]:
        summary = candidate["summary"]
        best = candidate["name"] == results["best_baseline"]
        failed = f" ({summary['failed']} failed)" if summary["failed"] else ""
        missed = summary["runs"] - summary["reached"]
        accuracy = summary["final_accuracy"]["median"]
        table.add_row(
            escape(candidate["name"]) + (" [dim](best baseline)[/dim]" if best else ""),
            f"{summary['runs']}{failed}",
            _spread(summary["time_to_accuracy_s"]) + (f", {missed} never" if missed and summary["reached"] else ""),
            _times(summary["speedup"]),
            "-" if accuracy is None else f"{100 * accuracy:.1f} %",
            _ms(summary["step_p50_s"]["median"]),
            _ms(summary["step_p99_s"]["median"]),
            _times(summary["p99_gain"]),
        )
    console.print(table)
    if results["best_baseline"] is None and any(candidate["baseline"] for candidate in results["candidates"]):
        console.print("no baseline reached the goal, so nothing is compared with it", highlight=False)


def print_list(experiments: Mapping[str, Experiment]) -> None:
    """Prints what comes with the testbed."""
    table = Table()
    for name in ("experiment", "what it shows", "network"):
        table.add_column(name, overflow="fold")
    table.add_column("runs", justify="right")
    for name, experiment in experiments.items():
        network = experiment.network
        table.add_row(
            name,
            escape(experiment.summary),
            f"{len(network.hosts)} hosts, {len(network.switches)} switches, {network.world} ranks",
            f"{len(experiment.candidates)} x {experiment.repeats}",
        )
    Console().print(table)


def print_check(experiment: Experiment, lacks: Sequence[str], notes: Sequence[str]) -> None:
    """Prints what an experiment would do."""
    console = Console()
    network, training = experiment.network, experiment.training

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    say(f"{experiment.name}: {experiment.summary}")
    rates = sorted({str(link.rate) for link in network.links})
    say(
        f"network: {len(network.hosts)} hosts, {len(network.switches)} switches, {len(network.links)} links of {', '.join(rates)}"
    )
    say(
        f"training: {training.task}, width {training.width}, {network.world} ranks, {training.batch_size} samples each, "
        f"{training.epochs} epochs; timed until {100 * training.accuracy:g} %"
    )
    table = Table()
    for name in ("candidate", "what it is", "switches", "TCP", "policy"):
        table.add_column(name, overflow="fold")
    for candidate in experiment.candidates:
        policy = ", ".join(
            f"{key}.{inner} = {value}" for key, found in candidate.policy.items() for inner, value in found.items()
        )
        name = f"{candidate.name} (baseline)" if candidate.baseline else candidate.name
        table.add_row(name, KINDS[candidate.comm].summary, experiment.target_of(candidate), candidate.congestion, escape(policy))
    console.print(table)
    for item in experiment.traffic:
        rate = "" if item.rate == "auto" else f" at {item.rate}"
        say(f"traffic {item.name}: {item.flows} x {item.kind}{rate}, {', '.join(item.sources)} to {', '.join(item.sinks)}")
    for event in experiment.events:
        say(f"after {event.at}: {describe(event)}")
    say(f"{experiment.repeats * len(experiment.candidates)} runs, each at most {experiment.timeout}")
    for line in notes:
        say(f"on this machine {line}")
    for line in lacks:
        say(f"this machine lacks: {line}")


def print_capabilities(found: Sequence[Capability]) -> None:
    """Prints what this machine can do."""
    table = Table()
    for name in ("", "what", "lost without it, and how to get it"):
        table.add_column(name, overflow="fold")
    for each in found:
        verdict = "[green]ok[/green]" if each.ok else "[yellow]missing[/yellow]"
        advice = "" if each.ok else escape(f"{each.lost}; {each.remedy}")
        table.add_row(verdict, escape(each.what + (f" ({each.detail})" if each.detail and not each.ok else "")), advice)
    Console().print(table)


def _spread(median: Median) -> str:
    if median["median"] is None:
        return "never"
    assert median["min"] is not None and median["max"] is not None
    return f"{median['median']:.2f} s [{median['min']:.2f}–{median['max']:.2f}]"  # noqa: RUF001  a range


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f} x"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.0f} ms"


__all__ = ["Progress", "outcome", "print_capabilities", "print_check", "print_list", "print_results"]
