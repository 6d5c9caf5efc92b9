"""Matching by masks: tuple-space search, for longest prefix, ternary, optional and range tables alike.

Entries with the same mask share a dictionary from masked value to entries.  A lookup tries the masks by falling best rank and
stops when no later mask can win.  An entry's rank is its priority or, in a longest-prefix table, its prefix length.  Writing
touches one dictionary; the order of the masks is made again on the first lookup after a write that changed it.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from softswitch.runtime.entry import Entry
from softswitch.runtime.keys import KeySchema, Ranges

Rule = tuple[int, int, Ranges, Entry]
"""``(-rank, serial, ranges, entry)``: sorts by who wins; the serial is unique, so that the rest is never compared."""

Bucket = dict[int, list[Rule]]


class _Space:
    """All rules with one mask; ``best`` is no higher than the lowest ``-rank`` among them (it may lag behind removals)."""

    __slots__ = ("best", "buckets", "mask")

    def __init__(self, mask: int, best: int) -> None:
        self.mask = mask
        self.best = best
        self.buckets: Bucket = {}


class TupleSpace:
    """The rules of one table."""

    __slots__ = ("_order", "_schema", "_single", "_spaces")

    def __init__(self, schema: KeySchema) -> None:
        self._schema = schema
        self._single = len(schema.fields) == 1
        self._spaces: dict[int, _Space] = {}
        self._order: list[tuple[int, int, Bucket]] | None = None

    def add(self, entry: Entry) -> None:
        """Add an entry, whose match is canonical and not in here with this priority."""
        value, mask, ranges = self._schema.place(entry.match)
        best = -self._schema.rank(entry.match, entry.priority)
        space = self._spaces.get(mask)
        if space is None:
            space = self._spaces[mask] = _Space(mask, best)
            self._order = None
        elif best < space.best:
            space.best = best
            self._order = None
        rule = (best, entry.serial, ranges, entry)
        bucket = space.buckets.get(value)
        if bucket is None:
            space.buckets[value] = [rule]
        else:
            insort(bucket, rule)

    def remove(self, entry: Entry) -> None:
        """Remove an entry that is in here."""
        value, mask, _ranges = self._schema.place(entry.match)
        space = self._spaces[mask]
        bucket = space.buckets[value]
        del bucket[bisect_left(bucket, (-self._schema.rank(entry.match, entry.priority), entry.serial))]
        if not bucket:
            del space.buckets[value]
            if not space.buckets:
                del self._spaces[mask]
                self._order = None

    def find(self, key: int | tuple[int, ...]) -> Entry | None:
        """The entry that wins for a packet's key (an int for a single field, otherwise a tuple)."""
        if type(key) is int:
            joined = key
            fields: tuple[int, ...] = (key,)
        else:
            fields = key  # type: ignore[assignment]
            joined = self._schema.join(fields)
        order = self._order
        if order is None:
            order = self._order = sorted(
                ((space.best, space.mask, space.buckets) for space in self._spaces.values()), key=lambda space: space[0]
            )
        found: Rule | None = None
        for best, mask, buckets in order:
            if found is not None and found[0] < best:
                break
            for rule in buckets.get(joined & mask, ()):
                if found is not None and rule > found:
                    break
                for field, low, high in rule[2]:
                    if not low <= fields[field] <= high:
                        break
                else:
                    found = rule
                    break
        return None if found is None else found[3]


__all__ = ["TupleSpace"]
