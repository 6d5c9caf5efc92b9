"""Strict access to parsed JSON: every value knows its path, so that an error names the place.

Nothing here knows what the values mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NoReturn

from softswitch.errors import ProgramError, UnsupportedConstruct

MAX_DEPTH = 200
"""Nesting of the JSON; a compiler's output stays far below it."""


class Source:
    """A JSON value and its path.

    Args:
        value: The value.
        where: Its path, such as ``pipelines[0].tables[3]``.
    """

    __slots__ = ("value", "where")

    def __init__(self, value: object, where: str = "") -> None:
        self.value = value
        self.where = where

    def fail(self, problem: str) -> NoReturn:
        """Raises ProgramError about this value."""
        raise ProgramError(self.where, problem)

    def unsupported(self, problem: str) -> NoReturn:
        """Raises UnsupportedConstruct about this value."""
        raise UnsupportedConstruct(self.where, problem)

    def _shown(self) -> str:
        text = json.dumps(self.value)
        return text if len(text) <= 60 else text[:57] + "..."

    @property
    def is_null(self) -> bool:
        """Whether the value is null."""
        return self.value is None

    def has(self, key: str) -> bool:
        """Whether this object has the key, with a value other than null."""
        return isinstance(self.value, dict) and self.value.get(key) is not None

    def __getitem__(self, key: str | int) -> Source:
        """Attribute of an object, or item of an array; ProgramError without."""
        if isinstance(key, int):
            items = self.array()
            if key >= len(items):
                self.fail(f"expected at least {key + 1} items, not {len(items)}")
            return items[key]
        if not isinstance(self.value, dict):
            self.fail(f"expected an object, not {self._shown()}")
        if key not in self.value:
            self.fail(f"has no attribute '{key}'")
        return Source(self.value[key], f"{self.where}.{key}" if self.where else key)

    def get(self, key: str) -> Source:
        """Attribute of an object; null if it is missing."""
        if isinstance(self.value, dict) and key not in self.value:
            return Source(None, f"{self.where}.{key}" if self.where else key)
        return self[key]

    def array(self, length: int | None = None) -> list[Source]:
        """Items of an array, of ``length`` where that is given."""
        if not isinstance(self.value, list):
            self.fail(f"expected an array, not {self._shown()}")
        if length is not None and len(self.value) != length:
            self.fail(f"expected {length} items, not {len(self.value)}")
        return [Source(item, f"{self.where}[{position}]") for position, item in enumerate(self.value)]

    def items(self, key: str) -> list[Source]:
        """Items of the array under ``key``; none if it is missing."""
        return self.get(key).array() if self.has(key) else []

    def entries(self) -> Iterator[tuple[str, Source]]:
        """Attributes of an object."""
        if not isinstance(self.value, dict):
            self.fail(f"expected an object, not {self._shown()}")
        for key in self.value:
            yield key, self[key]

    def text(self) -> str:
        """The value as a string."""
        if not isinstance(self.value, str):
            self.fail(f"expected a string, not {self._shown()}")
        return self.value

    def optional_text(self) -> str | None:
        """The value as a string, or None for null."""
        return None if self.value is None else self.text()

    def integer(self, low: int = 0, high: int = 2**32 - 1) -> int:
        """The value as an integer within limits."""
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            self.fail(f"expected an integer, not {self._shown()}")
        if not low <= self.value <= high:
            self.fail(f"expected a number from {low} to {high}, not {self.value}")
        return self.value

    def boolean(self, default: bool | None = None) -> bool:
        """The value as a Boolean, for which p4c also writes 0 and 1; ``default`` for null, where given."""
        if self.value is None and default is not None:
            return default
        if not isinstance(self.value, bool) and self.value not in (0, 1):
            self.fail(f"expected true or false, not {self._shown()}")
        return bool(self.value)

    def hexadecimal(self) -> int:
        """The value of a hexadecimal string, such as ``0x0800`` or ``-0x1``."""
        text = self.text()
        digits = text.removeprefix("-").removeprefix("0x")
        if not digits or len(digits) > 20_000 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
            self.fail(f"expected a hexadecimal number, not {self._shown()}")
        value = int(digits, 16)
        return -value if text.startswith("-") else value


def parse(text: str | bytes) -> Source:
    """Parses JSON text.

    Raises:
        ProgramError: It is no JSON object, or nested too deep.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProgramError("", f"not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ProgramError("", "expected a JSON object")
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for outer in level
            for item in (outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ())
            if isinstance(item, dict | list)
        ]
        if not level:
            return Source(value)
    raise ProgramError("", f"nested deeper than {MAX_DEPTH} levels")
