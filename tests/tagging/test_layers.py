"""Layer classes, and the order in which a model runs."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dlcp.tagging.layers import ExecutionRecorder, FirstForward, assign_classes, packet_classes, record_execution_order

sizes = st.lists(st.one_of(st.just(0), st.integers(1, 10), st.integers(1, 10_000_000)), max_size=40)


@given(sizes, st.integers(1, 7))
def test_classes_fall_from_the_front_and_share_the_bytes(layers, classes):
    dealt = assign_classes(layers, classes)
    assert len(dealt) == len(layers)
    if not layers:
        return
    assert dealt[0] == classes - 1
    assert all(0 <= later <= earlier for earlier, later in pairwise(dealt))
    if sum(layers) == 0:
        return
    # Whole layers are dealt out: a class can be off its share by no more than half a layer at each end.
    for c in range(classes):
        held = [size for size, of in zip(layers, dealt, strict=True) if of == c]
        assert sum(held) <= sum(layers) / classes + max(layers)


@given(st.integers(1, 7), st.integers(1, 5), st.integers(1, 1000))
def test_equal_layers_fill_all_classes_equally(classes, each, size):
    dealt = assign_classes([size] * (classes * each), classes)
    assert dealt == [c for c in reversed(range(classes)) for _ in range(each)]


def test_one_layer_that_outweighs_all_keeps_the_order():
    assert assign_classes([1, 1, 1000]) == [6, 6, 3]
    assert assign_classes([1000, 1, 1]) == [6, 3, 3]
    assert assign_classes([5]) == [6]


def test_odd_arguments():
    assert assign_classes([]) == []
    assert assign_classes([0, 0], 3) == [2, 2]
    for classes in (0, 8):
        with pytest.raises(ValueError, match="1 to 7"):
            assign_classes([1], classes)
    with pytest.raises(ValueError, match="negative"):
        assign_classes([1, -1])


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 6)), min_size=1, max_size=9), st.integers(1, 40))
def test_a_packet_is_as_urgent_as_the_most_urgent_tensor_in_it(tensors, width):
    lengths, classes = zip(*tensors, strict=True)
    edges = np.concatenate([[0], np.cumsum(lengths)])
    by_element = np.repeat(classes, lengths)
    expected = [int(by_element[i : i + width].max()) for i in range(0, len(by_element), width)]
    result = packet_classes(edges, classes, width)
    assert result.dtype == np.uint8 and result.tolist() == expected


class Odd(nn.Module):
    """Runs against the order of its definition, hands an owner's weight to a function, ties weights and leaves one out."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(2, 2)
        self.last = nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.BatchNorm1d(8)
        self.rnn = nn.GRU(8, 8, batch_first=True)
        self.first = nn.Embedding(11, 8)
        self.scale = nn.Parameter(torch.ones(8))
        self.drop = nn.Dropout(0.5)

    def forward(self, x, *, fail=False):
        assert self.scale.dtype == torch.float32  # no use
        y = self.first(x)
        y, _ = self.rnn(y)
        y, _ = self.attention(y, y, y)
        y = self.drop(self.norm(y.mean(1)))
        if fail:
            raise RuntimeError("forward fails")
        y = y * self.scale
        return self.last(y)


def tops(names):
    return list(dict.fromkeys(name.split(".")[0] for name in names))


def test_order_is_that_of_the_first_use():
    order = record_execution_order(Odd(), torch.randint(11, (4, 5)))
    assert tops(order) == ["first", "rnn", "attention", "norm", "scale", "last", "unused"]
    assert sorted(order) == sorted(name for name, _ in Odd().named_parameters())


def test_recording_leaves_no_trace():
    model = Odd().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    record_execution_order(model, torch.randint(11, (4, 5), generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), random)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(RuntimeError, match="forward fails"):
        record_execution_order(model, torch.randint(11, (4, 5)), fail=True)
    assert torch.equal(model.norm.running_mean, before["norm.running_mean"])


def test_tied_weights_count_where_they_are_used_first():
    model = nn.Module()
    model.head = nn.Linear(4, 9, bias=False)
    model.embedding = nn.Embedding(9, 4)
    model.middle = nn.Linear(4, 4)
    model.head.weight = model.embedding.weight
    model.forward = lambda x: model.head(model.middle(model.embedding(x)))
    assert record_execution_order(model, torch.tensor([1, 2])) == ["head.weight", "middle.weight", "middle.bias"]


def test_the_first_forward_is_recorded_once_and_changes_nothing():
    model = Odd().eval()
    x = torch.randint(11, (4, 5), generator=torch.Generator().manual_seed(0))
    expected = model(x)
    first = FirstForward(model)
    assert first.order is None
    assert torch.equal(model(x), expected)
    assert tops(first.order)[0] == "first" and tops(first.order)[-1] == "unused"
    assert not model._forward_pre_hooks and not model._forward_hooks
    assert torch.equal(model(x), expected)


def test_a_forward_pass_that_fails_leaves_no_mode_behind():
    model = Odd()
    first = FirstForward(model)
    with pytest.raises(RuntimeError, match="forward fails"):
        model(torch.randint(11, (4, 5)), fail=True)
    assert torch.overrides._get_current_function_mode_stack() == []
    first.remove()


def test_removed_before_any_forward_pass_records_nothing():
    model = nn.Linear(2, 2)
    first = FirstForward(model)
    first.remove()
    model(torch.zeros(1, 2))
    assert first.order is None


def test_reading_a_shape_is_no_use():
    model = nn.Linear(3, 3)
    with ExecutionRecorder(model) as recorder:
        assert model.bias.shape == (3,) and model.bias.dtype == torch.float32 and model.bias.numel() == 3
        model.weight.sum()
    assert recorder.names == ["weight"]
