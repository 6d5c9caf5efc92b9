"""Error feedback: what did not arrive waits here and leaves with the next step.

A lost range of a contribution is copied into the store under the name of its tensor (:meth:`ResidualStore.record`) and added back
into that tensor's next contribution (:meth:`ResidualStore.add_to`).  Nothing is scaled, averaged or rounded in between, so that

    sum of all contributions = sum of all deliveries + what the store holds

is exact whenever the additions themselves are.  This is the memory of error-feedback SGD (Karimireddy et al., arXiv 1901.09847),
kept sparse because a loss bound of a few per cent leaves most elements without a residual.

Entries are never changed in place: each change puts a new one.  A snapshot is therefore one shallow copy of a dictionary, and a
step that fails half-way is undone by putting the old dictionary back.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dlcp.collectives.ranges import add_ranges, gather_ranges, span, split_ranges, union
from dlcp.errors import ConfigError

Values = NDArray[np.float32] | NDArray[np.float64]

_VERSION = 1
_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


class Mass(NamedTuple):
    """How much waits: the sum of absolute values, and the number of elements it is spread over."""

    l1: float
    elements: int


@dataclass(frozen=True, slots=True)
class Residual:
    """What one tensor still owes.

    Attributes:
        size: Elements of the whole tensor.
        ranges: ``int64[k, 2]``, element ranges [start, stop), ascending, neither overlapping nor touching.
        values: ``float32`` or ``float64``, the elements of all ranges one after another; all finite.
    """

    size: int
    ranges: NDArray[np.int64]
    values: Values


Snapshot = tuple[Mapping[Hashable, Residual], int]
"""What :meth:`ResidualStore.restore` takes; opaque."""


class ResidualStore:
    """Residuals by tensor.

    Every method may be called from any thread.

    Attributes:
        nonfinite: Lost elements so far that were infinite or NaN.  They are dropped: an overflow of one mixed-precision step must
            not come back in all later ones.
    """

    def __init__(self) -> None:
        self._entries: dict[Hashable, Residual] = {}
        self._lock = threading.Lock()
        self.nonfinite = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def keys(self) -> tuple[Hashable, ...]:
        """Returns the tensors that owe something."""
        with self._lock:
            return tuple(self._entries)

    def get(self, key: Hashable) -> Residual | None:
        """Returns what a tensor owes; to be read only."""
        return self._entries.get(key)

    def record(self, key: Hashable, flat: Values, ranges: ArrayLike) -> int:
        """Stores copies of the parts of a contribution that did not arrive.

        Args:
            key: Name of the tensor, stable over steps and restarts.
            flat: ``float32[n]`` or ``float64[n]``, what was contributed.
            ranges: ``int64[k, 2]``, the missing element ranges [start, stop), in any order.  An element listed twice counts once.

        Returns:
            The number of missing elements.  If the tensor already owes some of them, the two debts add up.

        Raises:
            ValueError: ``flat`` is not a vector of those dtypes, a range lies outside it, or the tensor has changed its size.
        """
        _check_flat(key, flat)
        merged = union(ranges, flat.size)
        return self._put(key, Residual(flat.size, merged, gather_ranges(flat, merged)))

    def record_values(self, key: Hashable, size: int, ranges: ArrayLike, values: Values) -> int:
        """Like :meth:`record`, from the missing elements alone.

        Args:
            key: Name of the tensor.
            size: Elements of the whole tensor.
            ranges: ``int64[k, 2]``, ascending and not overlapping.
            values: The elements of all ranges, one after another.

        Raises:
            ValueError: Lengths do not agree, or ranges overlap, descend or lie outside the tensor.
        """
        _check_flat(key, values)
        merged = union(ranges, size)
        if span(merged) != values.size:
            raise ValueError(f"{key}: {values.size} values for ranges of {span(merged)} different elements")
        if not np.array_equal(np.ravel(ranges), np.sort(np.ravel(ranges))):
            raise ValueError(f"{key}: ranges are not in ascending order")
        return self._put(key, Residual(size, merged, values.copy()))

    def add_to(self, key: Hashable, flat: Values) -> int:
        """Adds what a tensor owes into ``flat``, in place, and forgets the debt.

        Args:
            key: Name of the tensor.
            flat: ``float32[n]`` or ``float64[n]``, the tensor's next contribution.

        Returns:
            The number of elements that were added to; 0 if nothing was owed.

        Raises:
            ValueError: ``flat`` is not a vector of those dtypes or has another size than the tensor had.  Nothing has changed.
        """
        _check_flat(key, flat)
        ranges, values = self.take_parts((key,), np.array([0, flat.size]), (0,))
        add_ranges(flat, ranges, values)
        return values.size

    def record_parts(self, keys: Sequence[Hashable], edges: NDArray[np.int64], ranges: NDArray[np.int64], values: Values) -> int:
        """Like :meth:`record_values`, for several tensors that travelled end to end as one array.

        Args:
            keys: Names of the T tensors, all different.
            edges: ``int64[T + 1]``, ascending from 0: tensor i is [edges[i], edges[i + 1]) of the array.
            ranges: ``int64[k, 2]`` of the array, ascending and not overlapping; they may cross from tensor to tensor.
            values: The elements of all ranges, one after another.

        Raises:
            ValueError: Ranges, values and edges do not fit, or a tensor has changed its size.
        """
        _check_flat("parts", values)
        if len(ranges) and (ranges[0, 0] < 0 or ranges[-1, 1] > edges[-1] or (np.diff(ranges.ravel()) < 0).any()):
            raise ValueError(f"ranges overlap, descend or leave [0, {edges[-1]})")
        if span(ranges) != values.size:
            raise ValueError(f"{values.size} values for ranges of {span(ranges)} elements")
        pieces, owners = split_ranges(union(ranges, int(edges[-1])), edges)
        if len(pieces) == 0:
            return 0
        finite = bool(np.isfinite(values).all())
        # Pieces ascend, so that those of one tensor are neighbours, and so are their values.
        offsets = np.concatenate([[0], np.cumsum(pieces[:, 1] - pieces[:, 0])]).tolist()
        firsts = np.flatnonzero(np.concatenate([[True], owners[1:] != owners[:-1]])).tolist()
        for first, stop in zip(firsts, [*firsts[1:], len(owners)], strict=True):
            i = int(owners[first])
            part = values[offsets[first] : offsets[stop]].copy()
            self._put(keys[i], Residual(int(edges[i + 1] - edges[i]), pieces[first:stop].copy(), part), finite)
        return values.size

    def take_parts(
        self, keys: Sequence[Hashable], edges: NDArray[np.int64], which: Iterable[int]
    ) -> tuple[NDArray[np.int64], Values]:
        """Returns what some of several tensors owe, and forgets it; the counterpart of :meth:`record_parts`.

        Args:
            keys: Names of the T tensors.
            edges: ``int64[T + 1]``, as for :meth:`record_parts`.
            which: Indices of the tensors to take from.

        Returns:
            Ranges ``int64[k, 2]`` of the array, which do not overlap, and their elements, one after another.

        Raises:
            ValueError: A tensor had another size.  Nothing has changed.
        """
        with self._lock:
            found = [(i, self._entries[keys[i]]) for i in which if keys[i] in self._entries]
            for i, entry in found:
                _check_size(keys[i], entry, int(edges[i + 1] - edges[i]))
            for i, _ in found:
                del self._entries[keys[i]]
        if not found:
            return np.empty((0, 2), np.int64), np.empty(0, np.float32)
        ranges = np.concatenate([entry.ranges + edges[i] for i, entry in found])
        return ranges, np.concatenate([entry.values for _, entry in found])

    def scale(self, factor: float) -> None:
        """Multiplies all residuals, for example by the change of a mixed-precision loss scale.

        Raises:
            ValueError: The factor is not a finite number above 0.
        """
        if not (math.isfinite(factor) and factor > 0):
            raise ValueError(f"scale factor {factor}; a finite number above 0 is needed")
        with self._lock:
            for key, entry in self._entries.items():
                with np.errstate(over="ignore"):
                    scaled = entry.values * entry.values.dtype.type(factor)
                self._entries[key], dropped = _without_nonfinite(Residual(entry.size, entry.ranges, scaled))
                self.nonfinite += dropped

    def clear(self) -> None:
        """Forgets everything that is owed."""
        with self._lock:
            self._entries = {}

    def mass(self) -> Mass:
        """Returns how much waits in all tensors together."""
        with self._lock:
            entries = list(self._entries.values())
        l1 = math.fsum(float(np.abs(entry.values).sum(dtype=np.float64)) for entry in entries)
        return Mass(l1, sum(entry.values.size for entry in entries))

    def snapshot(self) -> Snapshot:
        """Returns the present contents, at the cost of one reference a tensor."""
        with self._lock:
            return dict(self._entries), self.nonfinite

    def restore(self, snapshot: Snapshot) -> None:
        """Returns to the contents of a snapshot."""
        entries, nonfinite = snapshot
        with self._lock:
            self._entries = dict(entries)
            self.nonfinite = nonfinite

    def state_dict(self) -> dict[str, Any]:
        """Returns everything as nested dictionaries of integers and numpy arrays (copies)."""
        with self._lock:
            return {
                "version": _VERSION,
                "nonfinite": self.nonfinite,
                "entries": {
                    key: {"size": entry.size, "ranges": entry.ranges.copy(), "values": entry.values.copy()}
                    for key, entry in self._entries.items()
                },
            }

    def load_state_dict(self, state: Mapping[str, Any], source: str = "<residuals>") -> None:
        """Replaces everything by what :meth:`state_dict` returned.

        Args:
            state: The dictionary; nothing in it is trusted.
            source: Where it came from, for error messages.

        Raises:
            ConfigError: It is malformed.  The store is as it was.
        """
        if not isinstance(state, Mapping) or state.get("version") != _VERSION:
            raise ConfigError(source, "version", "not a residual store of this version", f"version {_VERSION}")
        nonfinite, entries = state.get("nonfinite"), state.get("entries")
        if not isinstance(nonfinite, int) or isinstance(nonfinite, bool) or nonfinite < 0:
            raise ConfigError(source, "nonfinite", f"{nonfinite!r}", "a count")
        if not isinstance(entries, Mapping):
            raise ConfigError(source, "entries", f"a {type(entries).__name__}", "a mapping of tensor names")
        loaded = {key: _entry(entry, f"entries.{key}", source) for key, entry in entries.items()}
        with self._lock:
            self._entries = loaded
            self.nonfinite = nonfinite

    def _put(self, key: Hashable, new: Residual, finite: bool = False) -> int:
        elements = new.values.size
        new, dropped = (new, 0) if finite else _without_nonfinite(new)
        with self._lock:
            old = self._entries.get(key)
            if old is not None:
                _check_size(key, old, new.size)
                new, overflown = _without_nonfinite(_add(old, new))
                dropped += overflown
            self.nonfinite += dropped
            if new.values.any():
                self._entries[key] = new
            elif old is not None:
                del self._entries[key]
        return elements


def _check_flat(key: Hashable, flat: Values) -> None:
    if flat.ndim != 1 or flat.dtype not in _DTYPES:
        raise ValueError(f"{key}: {flat.dtype} array of {flat.ndim} dimensions; a float32 or float64 vector is needed")


def _check_size(key: Hashable, entry: Residual, size: int) -> None:
    if entry.size != size:
        raise ValueError(f"{key}: has {size} elements, but its residual was recorded for {entry.size}")


def _without_nonfinite(entry: Residual) -> tuple[Residual, int]:
    """Returns the entry with zeros for what is not finite, and how many those were."""
    good = np.isfinite(entry.values)
    if good.all():
        return entry, 0
    values = np.where(good, entry.values, entry.values.dtype.type(0))
    return Residual(entry.size, entry.ranges, values), int(good.size - np.count_nonzero(good))


def _add(a: Residual, b: Residual) -> Residual:
    ranges = union(np.concatenate([a.ranges, b.ranges]), a.size)
    # Works on a dense window rather than the tensor: two debts of one tensor are rare, and short when they happen.
    first = int(ranges[0, 0]) if len(ranges) else 0
    last = int(ranges[-1, 1]) if len(ranges) else 0
    window = np.zeros(last - first, np.result_type(a.values, b.values))
    add_ranges(window, a.ranges - first, a.values)
    add_ranges(window, b.ranges - first, b.values)
    return Residual(a.size, ranges, gather_ranges(window, ranges - first))


def _entry(entry: object, key: str, source: str) -> Residual:
    if not isinstance(entry, Mapping):
        raise ConfigError(source, key, f"a {type(entry).__name__}", "a mapping of size, ranges and values")
    size, ranges, values = entry.get("size"), entry.get("ranges"), entry.get("values")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ConfigError(source, f"{key}.size", f"{size!r}", "a number of elements")
    if not isinstance(ranges, np.ndarray) or ranges.dtype != np.int64 or ranges.ndim != 2 or ranges.shape[1] != 2:
        raise ConfigError(source, f"{key}.ranges", "not an array of ranges", "int64[k, 2]")
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype not in _DTYPES:
        raise ConfigError(source, f"{key}.values", "not a vector of elements", "float32[n] or float64[n]")
    if not np.isfinite(values).all():
        raise ConfigError(source, f"{key}.values", "infinite or not a number", "finite elements")
    edges = ranges.ravel()
    inside = not edges.size or (edges[0] >= 0 and edges[-1] <= size)
    if not inside or (np.diff(edges) <= 0).any():
        raise ConfigError(source, f"{key}.ranges", "overlapping, empty, unsorted or outside", f"ascending ones in [0, {size})")
    if span(ranges) != values.size:
        raise ConfigError(source, f"{key}.values", f"{values.size} of them", f"the {span(ranges)} that the ranges hold")
    return Residual(size, ranges.copy(), values.copy())
