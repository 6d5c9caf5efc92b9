"""Writes a description as a TOML file, with or without an explanation of every key."""

from __future__ import annotations

import dataclasses
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from dlcp.schema import Record
from dlcp.schema_kinds import Items, join

_WIDTH = 100
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def scalar(value: object) -> str:
    """Writes one value; lists and tables may be nested.

    Raises:
        TypeError: TOML has no such value.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        # TOML's basic strings are JSON's, except that DEL has to be escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + ", ".join(map(scalar, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {scalar(inner)}" for key, inner in value.items()) + "}"
    raise TypeError(f"{type(value).__name__} cannot be written as TOML")


def write(document: Any, *, title: str, comments: bool) -> str:
    """Returns the text; it reads back to an equal description."""
    lines = [*_comment(title), ""] if comments and title else []
    lines += _table(document, "", comments)
    return "\n".join(lines).strip("\n") + "\n"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH - 2)]


def _table(value: Any, path: str, comments: bool) -> Iterator[str]:
    nested = []
    for field in dataclasses.fields(value):
        kind = field.metadata["kind"]
        tables = isinstance(kind, Items) and isinstance(kind.kind, Record) and len(getattr(value, field.name)) > 0
        if isinstance(kind, Record) or tables:
            nested.append(field)
            continue
        if comments:
            yield from _comment(field.metadata["doc"])
            yield from _comment(f"Accepted: {kind.accepted}.")
        yield f"{_key(field.name)} = {scalar(kind.dump(getattr(value, field.name)))}"
    for field in nested:
        inner = getattr(value, field.name)
        here = join(path, _key(field.name))
        if comments:
            yield from ("", *_comment(field.metadata["doc"]))
        if isinstance(inner, tuple):
            for item in inner:
                yield from ("", f"[[{here}]]")
                yield from _table(item, here, comments)
        else:
            yield from (f"[{here}]",) if comments else ("", f"[{here}]")
            yield from _table(inner, here, comments)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else scalar(name)
