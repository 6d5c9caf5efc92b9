"""Co-simulates candidates: the same training over several transports, or with several ways to make up for losses."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from dlcp.errors import ConfigError
from sim.cosim.network import Network, Step
from sim.cosim.task import Options, Task
from sim.cosim.train import Ledger, Point, Trainer
from sim.scenario import Scenario
from sim.scenario_messages import workload_of

COMPENSATIONS: Final = ("error-feedback", "zero", "rescale")
COLUMNS: Final = ("candidate", *(each.name for each in dataclasses.fields(Point)))


@dataclass
class Candidate:
    """One training run.

    Attributes:
        name: What it is called.
        scenario: Its network.
        compensation: What is done about losses; empty is what the policy says.
        points: Its steps.
        simulated: Steps that were simulated for it; the training may have been longer, and then repeated them.
        ledger: Where its gradients went.
        same_as: Another candidate that lost nothing either and therefore learns the same.
    """

    name: str
    scenario: Scenario
    compensation: str = ""
    points: list[Point] = field(default_factory=list)
    simulated: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    same_as: str = ""

    def summary(self, targets: Sequence[float]) -> dict[str, Any]:
        """Returns what it has come to; ``targets`` are accuracies."""
        last = self.points[-1]
        seen = [point for point in self.points if point.accuracy is not None]
        packets = sum(point.packets for point in self.points)
        return {
            "candidate": self.name,
            "compensation": self.compensation,
            "steps": last.step,
            "simulated_steps": self.simulated,
            "time_s": last.time_s,
            "mean_step_s": last.time_s / last.step,
            "accuracy": seen[-1].accuracy if seen else None,
            "test_loss": seen[-1].test_loss if seen else None,
            "missing_share": sum(point.missing for point in self.points) / packets if packets else 0.0,
            "residual": last.residual,
            "ledger": dataclasses.asdict(self.ledger),
            "same_as": self.same_as,
            "time_to_accuracy_s": {
                f"{target:g}": next((point.time_s for point in seen if (point.accuracy or 0.0) >= target), None)
                for target in targets
            },
        }


def candidates(scenario: Scenario, transports: Sequence[str], compensations: Sequence[str]) -> list[Candidate]:
    """Returns a candidate for every transport and compensation; without any, the scenario as it is.

    Raises:
        ConfigError: There is no such transport, or compensation.
    """
    for each in compensations:
        if each not in COMPENSATIONS:
            raise ConfigError("--compensation", each, "is unknown", ", ".join(COMPENSATIONS))
    found = []
    for name in transports or [scenario.transport.name]:
        carrier = dataclasses.replace(scenario.transport, name=name)
        changed = dataclasses.replace(scenario, transport=carrier)
        for compensation in compensations or [""]:
            title = f"{name}, {compensation}" if len(compensations) > 1 else name
            found.append(Candidate(title, changed, compensation))
    return found


def cosimulate(
    each: Candidate,
    folder: Path,
    options: Options,
    *,
    engine: str = "compiled",
    chunk: int = 20,
    warmup: int = 1,
    most: int = 200,
    others: Sequence[Candidate] = (),
    stop: Callable[[], bool] = lambda: False,
    report: Callable[[str, int, int], object] = lambda what, done, total: None,
) -> bool:
    """Trains a candidate; returns whether it came to its end, rather than ``stop`` to True.

    Args:
        each: It is given its points.
        folder: What the scenario's paths are relative to.
        options: Of the training.
        engine, chunk, warmup, most: See :class:`~sim.cosim.network.Network`.
        others: Candidates that have been trained; what is learnt without losses is not learnt twice.
        stop: Asked after every step.
        report: Told what is done, how many steps of it, of how many.

    Raises:
        ConfigError: The scenario and the task do not fit.
        MissingPackage: Something is not installed.
        DLCPError: The simulated time was too short.
    """
    traffic = each.scenario.traffic
    workload = workload_of(each.scenario.workload, folder, traffic)
    network = Network(each.scenario, folder, workload, engine=engine, chunk=chunk, warmup=warmup, most=most, stop=stop)
    each.compensation = each.compensation or network.policy.loss.compensation
    if each.compensation == "rescale" and traffic.algorithm == "ring":
        raise ConfigError("<policy>", "loss.compensation", "rescale does not go with a ring", "error-feedback, or zero")
    task = Task(options)
    trainer = Trainer(task, network, workload, traffic.algorithm, each.compensation)
    total = task.steps_per_epoch(network.world) * options.epochs
    steps: list[Step] = []
    try:
        for step in islice(network.steps(), min(total, most)):
            steps.append(step)
            report("simulating", len(steps), min(total, most))
    except KeyboardInterrupt:
        return False
    each.simulated = network.simulated
    if not any(step.missing for step in steps):
        known = next((other for other in others if _lossless(other, total, traffic.algorithm)), None)
        if known is not None:
            each.points, each.same_as = _retimed(known.points, steps), known.same_as or known.name
            each.ledger = known.ledger
            return True
    each.ledger = trainer.ledger
    for point in trainer.run(steps):
        each.points.append(point)
        report("training", point.step, total)
        if stop():
            return False
    return True


def _lossless(other: Candidate, total: int, algorithm: str) -> bool:
    whole = len(other.points) == total and other.scenario.traffic.algorithm == algorithm
    return whole and not any(point.missing for point in other.points)


def _retimed(points: Sequence[Point], steps: Sequence[Step]) -> list[Point]:
    now, found = 0.0, []
    for point in points:
        step = steps[(point.step - 1) % len(steps)]
        now += step.seconds
        found.append(dataclasses.replace(point, time_s=now, step_s=step.seconds, exposed_s=step.exposed, packets=step.packets))
    return found


def write(folder: Path, found: Sequence[Candidate], options: Options, targets: Sequence[float]) -> dict[str, Any]:
    """Writes ``curves.csv``, ``cosim.json`` and ``cosim.html``; returns the document."""
    from sim.cosim.page import write_page

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "curves.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for each in found:
            writer.writerows({"candidate": each.name, **point.row()} for point in each.points)
    document = {
        "task": dataclasses.asdict(options),
        "candidates": [each.summary(targets) for each in found if each.points],
    }
    (folder / "cosim.json").write_text(json.dumps(document, indent=2, allow_nan=True) + "\n", encoding="utf-8")
    write_page(folder, options.task, found, document)
    return document


__all__ = ["COLUMNS", "COMPENSATIONS", "Candidate", "candidates", "cosimulate", "write"]
