"""What follows from the findings: a bound, a policy, a document, a statement."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import Any

from dlcp.policy import Policy
from dlcp.tolerance.patterns import KINDS
from dlcp.tolerance.search import Cell, Column, Findings, Plan, describe


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a policy may allow.

    Attributes:
        push: For ``loss.push``.
        push_by_class: For ``loss.push_by_class``; empty if no class bears less, or none was looked at.
        limited_by: What keeps ``push`` from being larger.
    """

    push: float
    push_by_class: tuple[float, ...]
    limited_by: str


def conclude(plan: Plan, found: Findings) -> Bounds:
    """Derives bounds for the compensation of the plan's own run.

    A message's bound is per sender: it must hold if all ranks lose that much (``tagged``), and if one rank does and no other, for
    which ``uneven`` with a share s stands, where one rank loses ranks * s.
    """
    own = {(c.kind, c.layer_class): c for c in found.columns if c.compensation == plan.base.compensation}
    candidates = {}
    if ("tagged", 0) in own:
        candidates["loss at all ranks"] = own["tagged", 0].tolerated
    if ("uneven", 0) in own:
        column = own["uneven", 0]
        # Where all that was tried is tolerated it was still less than one rank can lose: it limits nothing.
        if column.high < len(column.cells):
            candidates["loss at one rank alone"] = column.tolerated * plan.base.ranks
    push = min(candidates.values(), default=0.0)
    # No list, no bound: the policy's limit is half of a contribution.
    push = min(push, 0.5)
    limit = min(candidates, key=lambda name: candidates[name], default="neither tagged nor uneven having been tried")
    if ("tagged", 0) in own and own["tagged", 0].high == len(own["tagged", 0].cells) and limit == "loss at all ranks":
        limit = "the largest loss that was tried"
    classes = {number: c.tolerated for (kind, number), c in own.items() if kind == "class"}
    by_class = tuple(min(push, classes.get(number, push)) for number in range(max(classes, default=-1) + 1))
    return Bounds(push, by_class if any(share < push for share in by_class) else (), limit)


def policy_text(plan: Plan, found: Findings, bounds: Bounds) -> str:
    """Returns a policy file: the plan's policy with the bounds that were found, and in comments where they come from."""
    policy = Policy.from_dict(plan.base.policy)
    loss = replace(
        policy.loss, push=bounds.push, push_by_class=bounds.push_by_class, compensation=plan.base.compensation, bound="fixed"
    )
    lines = [f"# {line}" for line in statement(plan, found, bounds)]
    return "\n".join(lines) + "\n\n" + replace(policy, loss=loss).to_toml()


def statement(plan: Plan, found: Findings, bounds: Bounds) -> list[str]:
    """Says in sentences what was found, and under which conditions."""
    accuracies = [outcome.accuracy for outcome in found.baseline.values()]
    spread = statistics.stdev(accuracies)
    run = plan.base
    lines = [
        f"{run.task}: {run.ranks} ranks, {plan.seeds} seeds; without loss the accuracy is "
        f"{100 * statistics.mean(accuracies):.2f} %, with a standard deviation of {100 * spread:.2f} points over seeds.",
        f"A loss is tolerated if it costs at most {100 * plan.margin:g} points of accuracy, with {100 * plan.confidence:g} % "
        "confidence (one-sided paired t-test over seeds), each loss tested by itself.",
        f"With {run.compensation} a bound of {100 * bounds.push:g} % is tolerated (limited by {bounds.limited_by}).",
    ]
    if bounds.push_by_class:
        shares = ", ".join(f"class {number}: {100 * share:g} %" for number, share in enumerate(bounds.push_by_class))
        lines.append(f"Some classes bear less: {shares}.")
    return lines


def document(plan: Plan, found: Findings, bounds: Bounds, machine: dict[str, Any]) -> dict[str, Any]:
    """Returns everything in plain values, for JSON."""
    run = plan.base
    baseline = [found.baseline[seed].accuracy for seed in sorted(found.baseline)]
    return {
        "task": run.task,
        "machine": machine,
        "arguments": {
            "ranks": run.ranks,
            "epochs": run.epochs,
            "batch_size": run.batch_size,
            "losses": list(plan.losses),
            "seeds": plan.seeds,
            "margin": plan.margin,
            "confidence": plan.confidence,
            "burst": plan.burst,
            "compensation": list(plan.compensations),
            "jobs": plan.jobs,
        },
        "policy": run.policy,
        "baseline": {"accuracy": baseline, "mean": statistics.mean(baseline), "stdev": statistics.stdev(baseline)},
        "ways": [_column(column) for column in found.columns],
        "bounds": {
            "push": bounds.push,
            "push_by_class": list(bounds.push_by_class),
            "compensation": run.compensation,
            "limited_by": bounds.limited_by,
        },
        "statement": statement(plan, found, bounds),
        "runs": found.runs,
        "seconds": found.seconds,
    }


def _column(column: Column) -> dict[str, Any]:
    return {
        "kind": column.kind,
        "meaning": KINDS[column.kind],
        "class": column.layer_class if column.kind == "class" else None,
        "compensation": column.compensation,
        "tolerated": column.tolerated,
        "refused": column.cells[column.high].loss.share if column.high < len(column.cells) else None,
        "cells": [_cell(cell) for cell in column.cells if cell.verdict is not None],
    }


def _cell(cell: Cell) -> dict[str, Any]:
    assert cell.verdict is not None
    outcomes = [cell.outcomes[seed] for seed in sorted(cell.outcomes)]
    return {
        "loss": cell.loss.share,
        "lost_share": sum(outcome.lost for outcome in outcomes) / max(sum(outcome.packets for outcome in outcomes), 1),
        "judgement": cell.verdict.judgement,
        "mean_drop": cell.verdict.mean,
        "lower": cell.verdict.lower,
        "upper": cell.verdict.upper,
        "accuracy": [outcome.accuracy for outcome in outcomes],
        "diverged": sum(outcome.diverged for outcome in outcomes),
    }


__all__ = ["Bounds", "conclude", "describe", "document", "policy_text", "statement"]
