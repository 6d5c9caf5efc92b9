"""Ranges against sets of integers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcp.collectives.ranges import add_ranges, gather_ranges, indices, span, split_ranges, union

SIZE = 300


@st.composite
def range_lists(draw, size=SIZE):
    pairs = draw(st.lists(st.tuples(st.integers(0, size), st.integers(0, size)), max_size=12))
    return [sorted(pair) for pair in pairs]


def members(ranges):
    return {i for start, stop in ranges for i in range(start, stop)}


@given(range_lists())
def test_union_holds_the_same_elements_in_ascending_separate_ranges(ranges):
    merged = union(ranges, SIZE)
    assert merged.dtype == np.int64
    assert members(merged.tolist()) == members(ranges)
    assert (np.diff(merged.ravel()) > 0).all()
    assert span(merged) == len(members(ranges))
    assert indices(merged).tolist() == sorted(members(ranges))


@given(range_lists())
def test_add_undoes_gather_whichever_way_is_taken(ranges):
    merged = union(ranges, SIZE)
    flat = np.arange(1.0, SIZE + 1)
    values = gather_ranges(flat, merged)
    assert values.tolist() == [flat[i] for i in sorted(members(ranges))]
    left = flat.copy()
    add_ranges(left, merged, -values)
    assert np.flatnonzero(left == 0).tolist() == sorted(members(ranges))


def test_gather_copies():
    flat = np.ones(500)
    for ranges in ([[0, 500]], [[1, 2]], []):
        values = gather_ranges(flat, union(ranges, 500))
        values[:] = 7
        assert flat.sum() == 500


@given(range_lists(), st.lists(st.integers(0, 90), min_size=1, max_size=8))
def test_split_names_each_element_once_with_its_part(ranges, lengths):
    edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    total = int(edges[-1])
    merged = union([[min(a, total), min(b, total)] for a, b in ranges], total)
    pieces, parts = split_ranges(merged, edges)
    assert (np.diff(parts) >= 0).all()
    found = [(int(part), i) for (start, stop), part in zip(pieces.tolist(), parts, strict=True) for i in range(start, stop)]
    expected = [
        (part, i - edges[part]) for i in indices(merged) for part in [next(p for p in range(len(lengths)) if i < edges[p + 1])]
    ]
    assert found == expected
    assert all(start < stop for start, stop in pieces.tolist())


@pytest.mark.parametrize(
    "ranges",
    [[[0, 11]], [[-1, 3]], [[5, 4]], [[0.0, 3.0]], [0, 1], [[0, 1, 2]]],
    ids=["over", "under", "reversed", "float", "1-d", "3"],
)
def test_union_refuses(ranges):
    with pytest.raises(ValueError, match="range"):
        union(ranges, 10)
