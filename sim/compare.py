"""Compares the summaries of runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dlcp.errors import ConfigError

Found = tuple[str, list[float | None], list[float | None]]

_GROUPS: Final = ("completion_s", "slowdown", "collectives_s", "packets")


def load(path: Path) -> dict[str, Any]:
    """Reads a summary: a file that ``dlcp sim run --json`` has printed, or the folder of ``--out``.

    Raises:
        ConfigError: There is none, or it is no summary.
    """
    file = path / "summary.json" if path.is_dir() else path
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(file, "(file)", f"cannot be read: {error.strerror or error}", "a summary of dlcp sim run") from None
    except ValueError as error:
        raise ConfigError(file, "(file)", f"is not JSON: {error}", "a summary of dlcp sim run") from None
    if not isinstance(found, dict) or not isinstance(found.get("completion_s"), dict):
        raise ConfigError(file, "completion_s", "missing", "a summary of dlcp sim run")
    return found


def metrics(summary: dict[str, Any]) -> dict[str, float]:
    """Returns the numbers of a summary by name, such as ``completion_s.p99``."""
    found: dict[str, float] = {}
    for group in _GROUPS:
        for key, value in summary.get(group, {}).items():
            if _is_number(value):
                found[f"{group}.{key}"] = value
    for group in ("by_size_bytes", "by_class"):
        for part, columns in summary.get(group, {}).items():
            for column, values in columns.items():
                found |= {f"{group}.{part}.{column}.{key}": value for key, value in values.items() if _is_number(value)}
    jobs = summary.get("jobs") or {}
    for name, part in (("", summary), *((f"jobs.{name}.", part) for name, part in jobs.items())):
        for group in ("steps_s", "exposed_s"):
            times = part.get(group) or []
            if times and all(map(_is_number, times)):
                found[f"{name}{group}.mean"] = sum(times) / len(times)
                found[f"{name}{group}.max"] = max(times)
    for name, job in summary.get("jobs", {}).items():
        if times := job["steps_s"]:
            found[f"jobs.{name}.steps_s.mean"] = sum(times) / len(times)
    for key in ("now_s", "complete", "packet_hops", "events"):
        if _is_number(summary.get(key)):
            found[key] = summary[key]
    return found


def table(summaries: Sequence[dict[str, Any]]) -> list[Found]:
    """Returns name, values, and changes against the first (0.1 is a tenth more) of what at least two of them have."""
    found = [metrics(summary) for summary in summaries]
    names = dict.fromkeys(name for each in found for name in each if not name.startswith("by_"))
    rows: list[Found] = []
    for name in names:
        values = [each.get(name) for each in found]
        if sum(value is not None for value in values) >= min(2, len(summaries)):
            first = values[0]
            rows.append((name, values, [value / first - 1 if first and value is not None else None for value in values]))
    return rows


def compare(left: dict[str, Any], right: dict[str, Any]) -> list[tuple[str, float, float, float | None]]:
    """Returns name, both values, and the change from left to right (0.1 is a tenth more) of what the two have in common."""
    rows = []
    for name, (a, b), (_, change) in table((left, right)):
        if a is not None and b is not None:
            rows.append((name, a, b, change))
    return rows


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


__all__ = ["compare", "load", "metrics", "table"]
