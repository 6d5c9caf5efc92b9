"""Tags of numpy arrays are those of torch tensors."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlcp.tagging import FlatTags, PacketLayout, packet_classes, packet_tags, protect

tensors = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 6)), min_size=1, max_size=9)


def edges_of(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


@given(tensors, st.integers(1, 40), st.integers(1, 9), st.floats(0, 1), st.integers(0, 2**32 - 1), st.booleans())
def test_the_rule_is_that_of_torch(described, width, sample, share, seed, odd):
    lengths, classes = zip(*described, strict=True)
    edges = edges_of(lengths)
    random = np.random.default_rng(seed)
    # Whole numbers add up to the same whatever the order.
    flat = random.integers(-20, 20, edges[-1]).astype(np.float32)
    if odd and flat.size:
        flat[random.integers(0, flat.size, 3)] = [np.nan, np.inf, 0]
    ours = FlatTags(edges, classes, width, share, sample)
    layout = PacketLayout(edges, width, sample)
    scores = layout.scores(torch.from_numpy(flat))
    assert ours.packets == layout.packets and ours.elements == layout.elements
    np.testing.assert_allclose(ours.scores(flat), scores.double().numpy(), rtol=1e-6)
    of_packets = torch.from_numpy(packet_classes(edges, classes, width))
    tags = ours.tags(flat)
    assert tags.dtype == np.uint8 and tags.shape == (layout.packets,)
    assert tags.tolist() == packet_tags(of_packets, protect(scores, share)).tolist()


@given(st.integers(0, 3000), st.integers(1, 400), st.floats(0, 1))
def test_the_share_is_kept_and_the_largest_are_protected(elements, width, share):
    flat = np.random.default_rng(0).normal(size=elements).astype(np.float64)
    made = FlatTags([0, elements], [2], width, share)
    tags = made.tags(flat)
    protected = tags & 1
    assert protected.sum() == min(int(np.ceil(share * made.packets - 1e-9 * made.packets)), made.packets)
    assert ((tags >> 1) == 2).all()
    if 0 < protected.sum() < made.packets:
        scores = made.scores(flat).astype(np.float32)
        assert scores[protected == 1].min() >= scores[protected == 0].max()


def test_mistakes():
    for arguments in (([1, 2], [0], 4, 0.5), ([0, 3, 2], [0, 0], 4, 0.5), ([0, 2], [0], 0, 0.5), ([0, 2], [0], 4, 1.5)):
        with pytest.raises(ValueError):
            FlatTags(*arguments)
    with pytest.raises(ValueError, match="shape"):
        FlatTags([0, 4], [0], 2, 0.5).scores(np.zeros(5))
