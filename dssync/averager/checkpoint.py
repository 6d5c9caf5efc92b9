"""The averager's part of a checkpoint, in plain types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from dlcp.errors import ConfigError
from dssync.schedule.base import Schedule
from dssync.schedule.make import restore_schedule

_VERSION: Final = 1


class Phase(NamedTuple):
    """Where a run stands.

    Attributes:
        step: Steps so far.
        round: The round that comes next.
        schedule: In use.
        consensus: Whether all ranks held the same model.
    """

    step: int
    round: int
    schedule: Schedule
    consensus: bool


def write_phase(phase: Phase) -> dict[str, Any]:
    """Returns plain values."""
    return {
        "version": _VERSION,
        "step": phase.step,
        "round": phase.round,
        "schedule": phase.schedule.describe(),
        "consensus": phase.consensus,
    }


def read_phase(state: Mapping[str, Any], source: str) -> Phase:
    """Reads what :func:`write_phase` has written; it is not trusted.

    Raises:
        ConfigError: It is malformed.
    """
    if not isinstance(state, Mapping) or state.get("version") != _VERSION:
        raise ConfigError(source, "version", "not an averager's state of this version", f"version {_VERSION}")
    for key in ("step", "round"):
        value = state.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ConfigError(source, key, f"{value!r}", "a count")
    if not isinstance(state.get("consensus"), bool) or not isinstance(state.get("schedule"), Mapping):
        raise ConfigError(source, "consensus, schedule", "missing or malformed", "what state_dict() returns")
    return Phase(state["step"], state["round"], restore_schedule(state["schedule"], source), state["consensus"])


__all__ = ["Phase", "read_phase", "write_phase"]
