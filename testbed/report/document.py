"""Makes sure that ``results.json`` has the shape of :class:`testbed.results.Results`, and keeps what has.

A driver that was killed, a rank that wrote nonsense, a newer version: a report of what is there is worth more than a traceback.
So what does not fit is left out and named, and the report says so on top.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, Literal, NotRequired, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

from testbed.results import CandidateResult, Results, RunResult

LIMIT: Final = 10**18
"""No time, size or count is larger; what is would overflow when it is computed with."""

_PARTS: Final = {"runs": RunResult, "candidates": CandidateResult}


def checked(document: Mapping[str, Any]) -> tuple[Results, list[str]]:
    """Returns a document that has all keys, with values of their types, and what was wrong with the given one.

    Candidates and runs that do not fit are left out; of other keys that do not fit or are missing, nothing is kept.

    Args:
        document: As JSON has it; it is not changed.
    """
    problems: list[str] = []
    sound: dict[str, Any] = {}
    for key, hint in _hints(Results).items():
        optional, inner = _required(hint)
        if key not in document:
            if not optional:
                problems.append(f"{key}: missing")
                sound[key] = _empty(inner)
            continue
        value = document[key]
        if key in _PARTS and isinstance(value, list):
            sound[key] = []
            for index, item in enumerate(value):
                found = list(_misfits(item, _PARTS[key], f"{key}[{index}]"))
                problems += found[:3]
                if not found:
                    sound[key].append(item)
            continue
        found = list(_misfits(value, inner, key))
        problems += found[:3]
        sound[key] = _empty(inner) if found else value
    results = cast(Results, sound)
    names = {candidate["name"] for candidate in results["candidates"]}
    for run in results["runs"]:
        if run["candidate"] not in names:
            problems.append(f"runs: {run['candidate']!r} is no candidate of the document")
    results["runs"] = [run for run in results["runs"] if run["candidate"] in names]
    return results, problems


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _required(hint: Any) -> tuple[bool, Any]:
    return (True, get_args(hint)[0]) if get_origin(hint) is NotRequired else (False, hint)


def _empty(hint: Any) -> Any:
    """Returns a value of a type that says nothing."""
    origin = get_origin(hint) or hint
    if origin in (Union, types.UnionType):
        return None
    return origin() if origin in (str, list, dict, bool, float, int) else None


def _misfits(value: Any, hint: Any, path: str) -> list[str]:
    """Returns what of a value does not have a type, by path."""
    if hint is Any:
        return []
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        misfits = [_misfits(value, option, path) for option in get_args(hint)]
        return min(misfits, key=len) if all(misfits) else []
    if origin is Literal:
        accepted = get_args(hint)
        return [] if value in accepted else [f"{path}: {value!r:.40} is none of {', '.join(map(str, accepted))}"]
    if is_typeddict(hint):
        return _misfits_of_table(value, hint, path)
    if origin is list:
        if not isinstance(value, list):
            return [f"{path}: {_name(value)} in place of a list"]
        (inner,) = get_args(hint)
        return [misfit for index, item in enumerate(value) for misfit in _misfits(item, inner, f"{path}[{index}]")]
    if origin is dict:
        if not isinstance(value, dict):
            return [f"{path}: {_name(value)} in place of a table"]
        _, inner = get_args(hint)
        return [misfit for key, item in value.items() for misfit in _misfits(item, inner, f"{path}.{key}")]
    return _misfits_of_scalar(value, hint, path)


def _misfits_of_table(value: Any, kind: Any, path: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{path}: {_name(value)} in place of a table"]
    found = []
    for key, hint in _hints(kind).items():
        optional, inner = _required(hint)
        if key in value:
            found += _misfits(value[key], inner, f"{path}.{key}")
        elif not optional:
            found.append(f"{path}.{key}: missing")
    return found


def _misfits_of_scalar(value: Any, kind: Any, path: str) -> list[str]:
    if kind is type(None) or kind is None:
        return [] if value is None else [f"{path}: {_name(value)} in place of null"]
    if kind is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return [f"{path}: {_name(value)} in place of a number"]
        if isinstance(value, int) and abs(value) > LIMIT:
            return [f"{path}: {len(str(value))} digits are beyond all measure"]
        if not math.isfinite(value):
            return [f"{path}: {value} is not finite"]
        return [] if abs(value) <= LIMIT else [f"{path}: {value:g} is beyond all measure"]
    if kind is int and isinstance(value, bool):
        return [f"{path}: a flag in place of a whole number"]
    if kind is int and isinstance(value, int) and abs(value) > LIMIT:
        return [f"{path}: {len(str(value))} digits are beyond all measure"]
    words = {int: "a whole number", str: "text", bool: "true or false"}
    return [] if isinstance(value, kind) else [f"{path}: {_name(value)} in place of {words.get(kind, kind.__name__)}"]


def _name(value: Any) -> str:
    names = {dict: "a table", list: "a list", str: "text", bool: "a flag", int: "a number", float: "a number"}
    return names.get(type(value), "null" if value is None else type(value).__name__)


__all__ = ["LIMIT", "checked"]
