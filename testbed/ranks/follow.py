"""Files of JSON lines that are being written."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any


class Follower:
    """Hands out the whole lines that have been appended to a file since the last time; the file need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def lines(self) -> list[dict[str, Any]]:
        """Returns the new ones."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        return parse_lines(whole)


def parse_lines(data: bytes) -> list[dict[str, Any]]:
    """Returns the objects of JSON lines; what is none, such as the last words of a rank that was killed, is left out."""
    found = []
    for line in data.split(b"\n"):
        if line:
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    found.append(value)
    return found


__all__ = ["Follower", "parse_lines"]
