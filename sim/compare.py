"""Compares the summaries of two runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dlcp.errors import ConfigError


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


def compare(left: dict[str, Any], right: dict[str, Any]) -> list[tuple[str, float, float, float | None]]:
    """Returns name, both values, and the change from left to right (0.1 is a tenth more) of what the two have in common."""
    rows: list[tuple[str, float, float, float | None]] = []

    def add(name: str, a: object, b: object) -> None:
        if isinstance(a, int | float) and isinstance(b, int | float) and not isinstance(a, bool) and not isinstance(b, bool):
            rows.append((name, a, b, b / a - 1 if a else None))

    for group in ("completion_s", "slowdown", "packets"):
        for key, value in left.get(group, {}).items():
            add(f"{group}.{key}", value, right.get(group, {}).get(key))
    steps = [summary.get("steps_s") or [] for summary in (left, right)]
    if all(steps):
        add("steps_s.mean", *(sum(times) / len(times) for times in steps))
    add("now_s", left.get("now_s"), right.get("now_s"))
    return rows


__all__ = ["compare", "load"]
