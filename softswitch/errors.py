"""Errors of the switch.

What a user can cause has an error of its own; the P4Runtime server maps each to the canonical code that the specification names.
"""

from __future__ import annotations


class SwitchError(Exception):
    """Base of all errors of this package."""


class ProgramError(SwitchError):
    """The program is no valid BMv2 JSON.

    Args:
        where: Path inside the JSON, such as ``pipelines[0].tables[3].key[1]``.
        problem: What is wrong there.
    """

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}" if where else problem)
        self.where = where
        self.problem = problem


class UnsupportedConstruct(ProgramError):
    """The program is valid but uses what this target lacks; found when the pipeline is set, never at packet time."""


class RuntimeStateError(SwitchError):
    """The control plane asked for something that cannot be done; nothing was changed."""


class UnknownObject(RuntimeStateError):
    """There is no such table, action, profile, counter, meter, register or session (NOT_FOUND)."""


class NoSuchEntry(RuntimeStateError):
    """The entry, member or group to change does not exist (NOT_FOUND)."""


class DuplicateEntry(RuntimeStateError):
    """An entry, member or group with this key exists already (ALREADY_EXISTS)."""


class OutOfRoom(RuntimeStateError):
    """The table, profile, group or session list is full (RESOURCE_EXHAUSTED)."""


class BadValue(RuntimeStateError):
    """A value does not fit: width, prefix, mask, range, priority, index, parameter count (INVALID_ARGUMENT or OUT_OF_RANGE)."""


class OutOfBounds(BadValue):
    """An index beyond the end of an array (OUT_OF_RANGE)."""


class Immutable(RuntimeStateError):
    """A const entry or a const default action (PERMISSION_DENIED)."""


class InUse(RuntimeStateError):
    """A member or group that entries still refer to (FAILED_PRECONDITION)."""
