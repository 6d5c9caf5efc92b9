"""Reads scenario files, with changes from the command line."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dlcp.errors import ConfigError
from dlcp.schema import read_toml
from sim.scenario import Scenario


def read(path: Path, overrides: Sequence[str] = ()) -> Scenario:
    """Reads a file and changes keys of it.

    Args:
        path: The file.
        overrides: ``key=value``, the key with points, the value as TOML has it, or a string without quotes.

    Raises:
        ConfigError: The file or a change is wrong.
    """
    fields = read_toml(path)
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError("--set", text, "has no value", "KEY=VALUE, such as transport.name=dctcp")
        *sections, name = key.split(".")
        table: Any = fields
        for part in sections:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError("--set", key, f"{part} is no table", "a key of the file")
        table[name] = _value(value)
    return Scenario.from_dict(fields, str(path))


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


__all__ = ["read"]
