"""Match keys: what the control plane may ask for, and how it is laid out for matching.

A match of several fields becomes one integer under one mask (fields side by side), so that one dictionary lookup per mask
decides; ranges stand beside it.
"""

from __future__ import annotations

from typing import Any

from softswitch.errors import BadValue
from softswitch.program.model import KeyField, Match, TableModel

MAX_PRIORITY = 2**31 - 1

Ranges = tuple[tuple[int, int, int], ...]
"""``(field, low, high)``, both ends included, of each range field that is not "don't care"."""


class KeySchema:
    """The key of one table.

    Attributes:
        exact: All fields are exact.
        prioritized: Entries need a priority (some field is ternary, range or optional).
        shifts: Where each field starts in the integer.
    """

    __slots__ = ("_lpm", "_name", "exact", "fields", "prioritized", "shifts")

    def __init__(self, table: TableModel) -> None:
        self._name = table.name
        self.fields = table.keys
        self.exact = all(key.kind == "exact" for key in table.keys)
        self.prioritized = any(key.kind in ("ternary", "range", "optional") for key in table.keys)
        self._lpm = next((i for i, key in enumerate(table.keys) if key.kind == "lpm"), None)
        shifts = []
        total = 0
        for key in reversed(table.keys):
            shifts.append(total)
            total += key.width
        self.shifts = tuple(reversed(shifts))

    def check(self, match: Match, priority: int) -> Match:
        """The canonical form of ``match``.

        Raises:
            BadValue: Wrong number of fields, a value that does not fit, bits outside prefix or mask, an empty range, or a
                priority where there is none (P4Runtime specification, section 9.1.1).
        """
        if len(match) != len(self.fields):
            raise BadValue(f"{self._name}: the key has {len(self.fields)} fields, not {len(match)}")
        if self.prioritized:
            if not 0 < priority <= MAX_PRIORITY:
                raise BadValue(f"{self._name}: priority {priority} is not in 1..{MAX_PRIORITY}")
        elif priority:
            raise BadValue(f"{self._name}: entries of this table have no priority")
        return tuple([self._field(key, item, strict=True) for key, item in zip(self.fields, match, strict=True)])

    def relax(self, match: Match) -> Match:
        """The canonical form of an entry of the program, where bits outside the mask count for nothing, as in BMv2."""
        return tuple([self._field(key, item, strict=False) for key, item in zip(self.fields, match, strict=True)])

    def _field(self, key: KeyField, item: Any, strict: bool) -> object:
        kind = key.kind
        width = key.width
        if kind == "exact":
            self._fits(key, item)
            return item if key.mask is None else item & key.mask
        if kind == "optional":
            if item is not None:
                self._fits(key, item)
            return item
        if type(item) is not tuple or len(item) != 2:
            raise BadValue(f"{self._name}: field {key.name} takes a pair of numbers")
        first, second = item
        self._fits(key, first)
        if kind == "lpm":
            if type(second) is not int or not 0 <= second <= width:
                raise BadValue(f"{self._name}: prefix of field {key.name} is not in 0..{width}: {second!r}")
            return self._masked(key, first, (1 << width) - (1 << (width - second)), strict), second
        self._fits(key, second)
        if kind == "ternary":
            return self._masked(key, first, second, strict), second
        if first > second:
            raise BadValue(f"{self._name}: range of field {key.name} is empty: {first}..{second}")
        return item

    def _fits(self, key: KeyField, value: object) -> None:
        if type(value) is not int or value < 0 or value >> key.width:
            raise BadValue(f"{self._name}: value of field {key.name} does not fit {key.width} bits: {value!r}")

    def _masked(self, key: KeyField, value: int, mask: int, strict: bool) -> int:
        if strict and value & ~mask:
            raise BadValue(f"{self._name}: field {key.name} has bits outside its mask: {value:#x} under {mask:#x}")
        return value & mask

    def place(self, match: Match) -> tuple[int, int, Ranges]:
        """``(value, mask, ranges)`` of a canonical match in the layout of ``join``."""
        value = mask = 0
        ranges: list[tuple[int, int, int]] = []
        item: Any
        for number, (key, item, shift) in enumerate(zip(self.fields, match, self.shifts, strict=True)):
            full = (1 << key.width) - 1
            kind = key.kind
            if kind == "exact":
                value |= item << shift
                mask |= full << shift
            elif kind == "lpm":
                value |= item[0] << shift
                mask |= ((full >> item[1]) ^ full) << shift
            elif kind == "ternary":
                value |= item[0] << shift
                mask |= item[1] << shift
            elif kind == "optional":
                if item is not None:
                    value |= item << shift
                    mask |= full << shift
            elif item != (0, full):
                ranges.append((number, item[0], item[1]))
        return value, mask, tuple(ranges)

    def rank(self, match: Match, priority: int) -> int:
        """What decides between entries that match: the priority, or without one the length of the prefix."""
        if self.prioritized or self._lpm is None:
            return priority
        item: Any = match[self._lpm]
        return int(item[1])

    def join(self, key: tuple[int, ...]) -> int:
        """One integer of a packet's fields."""
        value = 0
        for field, shift in zip(key, self.shifts, strict=True):
            value |= field << shift
        return value


__all__ = ["MAX_PRIORITY", "KeySchema", "Ranges"]
