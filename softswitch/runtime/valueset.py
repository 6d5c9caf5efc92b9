"""Parser value sets (P4Runtime specification, section 9.6).

A member is ``(value, mask)`` over all fields of the set side by side, ``model.width`` bits in all; an exact member has a full
mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from softswitch.errors import BadValue, DuplicateEntry, OutOfRoom
from softswitch.program.model import ValueSetModel
from softswitch.runtime.journal import Journal

CACHE_SIZE = 4096


class _Matches(dict[int, bool]):
    """Verdicts by key, bounded; cleared when the members change.  ``mask`` is that of the parser's transition."""

    __slots__ = ("mask", "members")

    mask: int
    members: tuple[tuple[int, int], ...]

    def __missing__(self, key: int) -> bool:
        mask = self.mask
        verdict = any(not (key ^ value) & mask & own for value, own in self.members)
        if len(self) >= CACHE_SIZE:
            self.clear()
        self[key] = verdict
        return verdict


class ValueSet:
    """A value set, empty at first.

    Attributes:
        members: ``(value, mask)`` pairs in the order given.
    """

    def __init__(self, model: ValueSetModel, journal: Journal) -> None:
        self.model = model
        self.name = model.name
        self.members: tuple[tuple[int, int], ...] = ()
        self._journal = journal
        self._full = (1 << model.width) - 1
        self._matchers: list[_Matches] = []

    def matcher(self, mask: int | None = None) -> Callable[[int], bool]:
        """A test for compiled code to bind once: whether a key, under the transition's mask, matches some member.  One C-level
        call."""
        matches = _Matches()
        matches.mask = self._full if mask is None else mask
        matches.members = self.members
        self._matchers.append(matches)
        lookup: Callable[[Any], bool] = matches.__getitem__
        return lookup

    def set(self, members: Sequence[int | tuple[int, int]]) -> None:
        """Replace all members; a bare int is exact.

        Raises:
            BadValue: A member does not fit ``model.width`` bits or has bits outside its mask.
            DuplicateEntry: A member stands twice.
            OutOfRoom: More than ``model.size`` members.
        """
        pairs = tuple((member, self._full) if isinstance(member, int) else member for member in members)
        for value, mask in pairs:
            if value < 0 or mask < 0 or (value | mask) > self._full or value & ~mask:
                raise BadValue(f"{self.name}: member {value:#x} under mask {mask:#x} does not fit {self.model.width} bits")
        if len(set(pairs)) != len(pairs):
            raise DuplicateEntry(f"{self.name}: a member stands twice")
        if 0 < self.model.size < len(pairs):
            raise OutOfRoom(f"{self.name}: {len(pairs)} members are more than {self.model.size}")
        self._journal.record(self._put, self.members)
        self._put(pairs)

    @property
    def values(self) -> frozenset[int]:
        """The exact members."""
        return frozenset(value for value, mask in self.members if mask == self._full)

    def _put(self, members: tuple[tuple[int, int], ...]) -> None:
        self.members = members
        for matches in self._matchers:
            matches.members = members
            matches.clear()


__all__ = ["ValueSet"]
