"""Sets of elements as ranges: ``int64[k, 2]`` arrays of [start, stop)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ranges = NDArray[np.int64]

# Below this many elements a range, one fancy index over all of them beats one slice each.
_SLICE_ELEMENTS = 64


def union(ranges: ArrayLike, size: int) -> Ranges:
    """Returns the same elements as ascending ranges that neither overlap nor touch; empty ranges vanish.

    Args:
        ranges: ``int64[k, 2]``, in any order; an empty list will do for none.
        size: Elements that there are.

    Raises:
        ValueError: Not pairs of integers, or a range that is reversed or leaves [0, size).
    """
    array = np.asarray(ranges)
    if array.size == 0:
        return np.empty((0, 2), np.int64)
    if array.ndim != 2 or array.shape[1] != 2 or array.dtype.kind not in "iu":
        raise ValueError(f"ranges of shape {array.shape} and dtype {array.dtype}; int64[k, 2] is needed")
    array = array.astype(np.int64, copy=False)
    starts, stops = array[:, 0], array[:, 1]
    if starts.min() < 0 or stops.max() > size or (starts > stops).any():
        raise ValueError(f"a range is reversed or lies outside [0, {size})")
    array = array[starts < stops]
    if len(array) == 0:
        return np.empty((0, 2), np.int64)
    array = array[np.argsort(array[:, 0], kind="stable")]
    reach = np.maximum.accumulate(array[:, 1])
    opens = np.flatnonzero(np.concatenate([[True], array[1:, 0] > reach[:-1]]))
    closes = np.concatenate([opens[1:] - 1, [len(array) - 1]])
    return np.stack([array[opens, 0], reach[closes]], axis=1)


def span(ranges: Ranges) -> int:
    """Returns the number of elements in ranges that do not overlap."""
    return int((ranges[:, 1] - ranges[:, 0]).sum())


def indices(ranges: Ranges) -> NDArray[np.int64]:
    """Returns every element of the ranges, in their order."""
    lengths = ranges[:, 1] - ranges[:, 0]
    before = np.cumsum(lengths) - lengths
    return np.repeat(ranges[:, 0] - before, lengths) + np.arange(int(lengths.sum()))


def gather_ranges(flat: NDArray[Any], ranges: Ranges) -> NDArray[Any]:
    """Returns copies of the elements of all ranges, one after another."""
    if len(ranges) == 0:
        return flat[:0].copy()
    if span(ranges) < _SLICE_ELEMENTS * len(ranges):
        return flat[indices(ranges)]
    return np.concatenate([flat[start:stop] for start, stop in ranges.tolist()])


def add_ranges(flat: NDArray[Any], ranges: Ranges, values: NDArray[Any]) -> None:
    """Adds ``values``, laid out as :func:`gather_ranges` returns them, into ranges that do not overlap, in place."""
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow shows as an infinite gradient, as it would without us
        values = values.astype(flat.dtype, copy=False)
        if span(ranges) < _SLICE_ELEMENTS * len(ranges):
            flat[indices(ranges)] += values
            return
        position = 0
        for start, stop in ranges.tolist():
            flat[start:stop] += values[position : position + stop - start]
            position += stop - start


def split_ranges(ranges: Ranges, edges: NDArray[np.int64]) -> tuple[Ranges, NDArray[np.int64]]:
    """Cuts ranges at the edges of consecutive parts.

    Args:
        ranges: ``int64[k, 2]``, ascending and not overlapping, within [edges[0], edges[-1]).
        edges: ``int64[p + 1]``, ascending: part i is [edges[i], edges[i + 1]).  A part may be empty.

    Returns:
        The pieces, ``int64[m, 2]`` **relative to the start of their part**, and each one's part, ``int64[m]``, ascending.
    """
    if len(ranges) == 0:
        return np.empty((0, 2), np.int64), np.empty(0, np.int64)
    # side="right": a start on an edge belongs to the part that begins there, behind any empty parts at the same place.
    first = np.searchsorted(edges, ranges[:, 0], side="right") - 1
    last = np.searchsorted(edges, ranges[:, 1] - 1, side="right") - 1
    counts = last - first + 1
    owner = np.repeat(np.arange(len(ranges)), counts)
    part = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
    starts = np.maximum(ranges[owner, 0], edges[part]) - edges[part]
    stops = np.minimum(ranges[owner, 1], edges[part + 1]) - edges[part]
    filled = starts < stops
    return np.stack([starts, stops], axis=1)[filled], part[filled]
