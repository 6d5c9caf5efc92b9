"""Collects lines of generated source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

MAX_INDENT = 80
"""Python's own limit is 100."""


class TooDeep(Exception):
    """Nesting beyond what Python accepts; the caller generates another form."""


class Writer:
    """Lines of source, and the current indentation."""

    def __init__(self, depth: int = 0) -> None:
        self.lines: list[str] = []
        self._depth = depth

    def line(self, text: str) -> None:
        """Adds a line at the current indentation."""
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """A compound statement; gets a ``pass`` if nothing is added inside."""
        self.line(head)
        before = len(self.lines)
        self._depth += 1
        if self._depth > MAX_INDENT:
            raise TooDeep
        yield
        if len(self.lines) == before:
            self.line("pass")
        self._depth -= 1

    @property
    def position(self) -> int:
        """Number of lines so far."""
        return len(self.lines)

    @property
    def depth(self) -> int:
        """Current indentation."""
        return self._depth
