"""What a training run did, from the JSON lines of its ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from dlcp.bench.numbers import counted, total
from dlcp.demo.runs import Scenario
from dlcp.errors import ConfigError

WARMUP_STEPS: Final = 2
"""Steps left out of step times: DDP rebuilds its buckets in the first, and the second uses them for the first time."""

_CLASSES: Final = 7


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Reads JSON lines.

    Raises:
        ConfigError: The file is missing, or a line is not a JSON object.
    """
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise ConfigError(path, "(file)", f"cannot be read: {error}", "JSON lines of a training run") from error
    if not all(isinstance(line, dict) for line in lines):
        raise ConfigError(path, "(file)", "holds lines that are not objects", "JSON lines of a training run")
    return lines


def summarize(scenario: Scenario, logs: Sequence[list[dict[str, Any]]], seconds: float) -> dict[str, Any]:
    """Sums up one run.

    Args:
        scenario: The run.
        logs: Lines of each rank.
        seconds: What the whole run took.

    Returns:
        Plain data.  ``accuracy`` and ``train_loss`` have one number for each epoch; a step's time is that of its slowest rank;
        packets are sums over ranks; ``residual_l1`` is the sum over ranks of |g| still owed at the end, ``lost_l1`` of all that
        did not arrive in its own step.

    Raises:
        ConfigError: The lines are not those of a finished run.
    """
    epochs = [line for line in logs[0] if line.get("event") == "epoch"]
    steps = [[line["step_s"] for line in lines if line.get("event") == "step"] for lines in logs]
    if not epochs or len({len(times) for times in steps}) != 1 or len(steps[0]) <= WARMUP_STEPS:
        raise ConfigError(f"run {scenario.name}", "steps", f"{[len(times) for times in steps]} by rank", "as many on all ranks")
    slowest = np.max(np.asarray(steps, np.float64), axis=0)[WARMUP_STEPS:]
    middle, tail = np.percentile(slowest, (50, 99)).tolist()
    result: dict[str, Any] = {
        "name": scenario.name,
        "title": scenario.title,
        "comm": scenario.comm,
        "loss": scenario.loss,
        "seconds": seconds,
        "gradient_bytes": next((line.get("gradient_bytes") for line in logs[0] if line.get("event") == "start"), None),
        "steps": len(steps[0]),
        "accuracy": [line["accuracy"] for line in epochs],
        "train_loss": [line["train_loss"] for line in epochs],
        "step_p50_s": middle,
        "step_p99_s": tail,
        "packets": None,
        "residual_l1": None,
        "lost_l1": None,
    }
    last = [[line for line in lines if line.get("event") == "epoch"][-1].get("metrics") or {} for lines in logs]
    if all(last):
        result |= _transport(last)
    return result


def _transport(metrics: Sequence[dict[str, Any]]) -> dict[str, Any]:
    whole = total([counted(rank["transport"]) for rank in metrics])
    hook = total([rank["hook"] for rank in metrics])
    counts, drops = whole["transport"], whole.get("faults", {}).get("drop", [])
    sent = [counts.get(f"sent_class_{number}", 0) for number in range(_CLASSES)]
    lost = [counts.get(f"given_up_class_{number}", 0) for number in range(_CLASSES)]
    return {
        "packets": {
            "sent": sum(sent),
            "sent_by_class": sent,
            "lost": sum(lost),
            "lost_by_class": lost,
            "delivered": counts.get("delivered", 0),
            "retransmitted": counts.get("retransmitted", 0),
            "dropped_injected": sum(drops),
        },
        "residual_l1": hook["residual_l1"],
        "residual_elements": hook["residual_elements"],
        "lost_l1": hook["lost_l1"],
        "elements": hook["elements"],
        "lost_elements": hook["lost_elements"],
    }
