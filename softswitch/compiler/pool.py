"""Objects that generated source refers to by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Pool:
    """Gives names to objects.

    Attributes:
        names: Object by name: the globals of the generated module.
    """

    def __init__(self) -> None:
        self.names: dict[str, object] = {}
        self._known: dict[object, str] = {}

    def add(self, letter: str, item: object) -> str:
        """A new name, a letter and a number, for an object."""
        name = f"{letter}{sum(1 for other in self.names if other[0] == letter and other[1:].isdigit())}"
        self.names[name] = item
        return name

    def shared(self, letter: str, key: object, make: Callable[[], object]) -> str:
        """Name of the object for ``key``, made when first asked for."""
        if key not in self._known:
            self._known[key] = self.add(letter, make())
        return self._known[key]

    def function(self, item: Callable[..., Any]) -> str:
        """Name of a function; the same function always has the same name."""
        return self.shared("Y", item, lambda: item)
