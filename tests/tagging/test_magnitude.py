"""Magnitude tags against loops over elements."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlcp.tagging.magnitude import PacketLayout, packet_scores, packet_tags, protect

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def oracle(flat, edges, width, sample):
    """Scores as the docstring defines them, one element at a time, in float64."""
    values = flat.double().abs().numpy()
    packets = -(-len(values) // width)
    parts = {}  # (packet, tensor) -> sampled elements
    for packet in range(packets):
        for i in range(packet * width, min((packet + 1) * width, len(values)), sample):
            tensor = next(t for t in range(len(edges) - 1) if edges[t] <= i < edges[t + 1])
            parts.setdefault((packet, tensor), []).append(values[i])
    good = {key: all(map(math.isfinite, part)) for key, part in parts.items()}
    scores = np.zeros(packets)
    for (packet, tensor), part in parts.items():
        if not good[packet, tensor]:
            scores[packet] = math.inf
            continue
        of_tensor = [v for (p, t), vs in parts.items() if t == tensor and good[p, t] for v in vs]
        mean = sum(of_tensor) / len(of_tensor)
        count = sum(len(vs) for (p, _), vs in parts.items() if p == packet)
        scores[packet] += sum(part) / mean / count if mean > 0 else 0
    return scores


@st.composite
def cases(draw):
    lengths = draw(st.lists(st.one_of(st.integers(0, 3), st.integers(0, 120)), min_size=1, max_size=8))
    edges = np.concatenate([[0], np.cumsum(lengths)])
    width = draw(st.integers(1, 50))
    sample = draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = np.repeat(10.0 ** rng.integers(-3, 3, len(lengths)), lengths)
    flat = rng.standard_normal(int(edges[-1])) * scale
    flat[rng.random(flat.size) < 0.2] = 0
    for bad in draw(st.lists(st.tuples(st.integers(0, 900), st.sampled_from([np.nan, np.inf, -np.inf])), max_size=3)):
        if flat.size:
            flat[bad[0] % flat.size] = bad[1]
    return torch.from_numpy(flat), edges, width, sample


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(cases())
def test_scores_are_what_a_loop_finds(dtype, case):
    flat, edges, width, sample = case
    flat = flat.to(dtype)
    scores = packet_scores(flat, edges, width, sample)
    assert scores.dtype == torch.float32 and scores.device == flat.device
    np.testing.assert_allclose(scores.numpy(), oracle(flat, edges, width, sample), rtol=1e-4, atol=1e-7)


@given(cases(), st.floats(0, 1))
def test_the_largest_share_is_protected(case, share):
    flat, edges, width, sample = case
    scores = packet_scores(flat, edges, width, sample)
    chosen = protect(scores, share)
    assert chosen.dtype == torch.bool and chosen.shape == scores.shape
    assert abs(int(chosen.sum()) - share * len(scores)) < 1
    assert int(chosen.sum()) >= share * len(scores) - 1e-6
    order = sorted(range(len(scores)), key=lambda i: (-scores[i].item(), i))
    assert torch.nonzero(chosen).ravel().tolist() == sorted(order[: int(chosen.sum())])


@given(
    st.lists(st.sampled_from([0.0, 1.0, 2.0, math.nan, math.inf, -math.inf]), max_size=40),
    st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]),
)
def test_ties_and_numbers_that_are_not_finite_have_one_order(values, share):
    chosen = protect(torch.tensor(values), share)
    keys = [v if math.isfinite(v) else math.inf for v in values]
    order = sorted(range(len(values)), key=lambda i: (-keys[i], i))
    wanted = math.ceil(share * len(values) - 1e-9)
    assert torch.nonzero(chosen).ravel().tolist() == sorted(order[:wanted])


@pytest.mark.parametrize(
    ("packets", "share", "protected"), [(30, 0.1, 3), (10, 0.1, 1), (3, 0.25, 1), (0, 0.5, 0), (7, 1.0, 7), (7, 0, 0)]
)
def test_the_share_is_rounded_up_once(packets, share, protected):
    assert int(protect(torch.arange(float(packets)), share).sum()) == protected


def test_equal_gradients_get_equal_tags_every_time():
    flat = torch.randn(100_000, generator=torch.Generator().manual_seed(1))
    layout = PacketLayout([0, 10, 777, 60_000, 60_000, 100_000], 89, 8)
    first = layout.scores(flat)
    assert all(torch.equal(layout.scores(flat.clone()), first) for _ in range(3))


def test_a_small_tensor_is_compared_with_itself():
    """A bias with tiny gradients must not lose to a weight with large ones everywhere."""
    flat = torch.cat([torch.full((1000,), 100.0), torch.full((100,), 1e-6)])
    flat[1050] = 1e-3
    scores = packet_scores(flat, [0, 1000, 1100], 10)
    assert scores.argmax().item() == 105
    assert scores[:100].tolist() == pytest.approx([1.0] * 100)


def test_gradients_of_any_size_do_not_overflow_on_the_way():
    for dtype, large in ((torch.float16, 6e4), (torch.float32, 3e37), (torch.float64, 1e300)):
        scores = packet_scores(torch.full((1000,), large, dtype=dtype), [0, 1000], 8)
        assert scores.tolist() == pytest.approx([1.0] * 125)
    tiny = packet_scores(torch.tensor([5e-324, 0, 0], dtype=torch.float64), [0, 3], 1)
    assert not tiny.isnan().any()


@pytest.mark.parametrize("edges", [[], [1, 2], [0, 3, 2], [[0, 1]]])
def test_offsets_must_ascend_from_zero(edges):
    with pytest.raises(ValueError, match="ascend from 0"):
        PacketLayout(edges, 4)


def test_wrong_lengths_and_counts_are_refused():
    with pytest.raises(ValueError, match="the layout is for 5 elements"):
        packet_scores(torch.zeros(4), [0, 5], 2)
    for width, sample in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            PacketLayout([0, 4], width, sample)
    for share in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="between 0 and 1"):
            protect(torch.zeros(3), share)


def test_tags_hold_class_and_protection():
    tags = packet_tags(torch.tensor([0, 6, 3], dtype=torch.uint8), torch.tensor([True, False, True]))
    assert tags.dtype == torch.uint8 and tags.tolist() == [1, 12, 7]


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.5, float("inf"), float("nan")]), min_size=1, max_size=40), st.floats(0, 1))
def test_deterministic_algorithms_choose_the_same_packets(scores, share):
    values = torch.tensor(scores)
    usual = protect(values, share)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(protect(values, share), usual)
    finally:
        torch.use_deterministic_algorithms(False)
