"""What goes into a checkpoint, what is accepted from one, and what rounding does."""

import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dlcp.errors import ClosedError, ConfigError
from dlcp.torch import DLCPState
from dlcp.torch.compress import round_to


def state_with_debts():
    state = DLCPState(model=nn.Linear(4, 3))
    state.residuals.record("weight", np.arange(12, dtype=np.float32), [[1, 5], [7, 8]])
    state.residuals.record("bias", np.array([1, np.nan, 3], np.float32), [[0, 2]])
    state.passes = 41
    return state


def test_a_checkpoint_needs_no_trust():
    state = state_with_debts()
    file = io.BytesIO()
    torch.save(state.state_dict(), file)
    file.seek(0)
    other = DLCPState(model=nn.Linear(4, 3))
    other.load_state_dict(torch.load(file, weights_only=True), "rank0.pt")
    assert other.passes == 41 and other.residuals.nonfinite == 1
    assert other.residuals.mass() == state.residuals.mass() == (1 + 2 + 3 + 4 + 7 + 1.0, 7)
    assert other.metrics()["hook"]["residual_elements"] == 7


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("version", lambda s: s.update(version=0)),
        ("passes", lambda s: s.update(passes=-1)),
        ("passes", lambda s: s.update(passes=None)),
        ("order", lambda s: s.update(order="weight")),
        ("order", lambda s: s.update(order=[1])),
        ("version", lambda s: s.update(residuals=None)),
        ("entries", lambda s: s["residuals"].update(entries=None)),
        ("entries.weight", lambda s: s["residuals"]["entries"].update(weight=None)),
        ("entries.weight.ranges", lambda s: s["residuals"]["entries"]["weight"].update(ranges=torch.zeros(2))),
        (
            "entries.weight.values",
            lambda s: s["residuals"]["entries"]["weight"].update(values=torch.zeros(5).bfloat16()),
        ),
        ("residuals.other", lambda s: s["residuals"]["entries"].update(other=s["residuals"]["entries"].pop("bias"))),
        ("residuals.weight", lambda s: s["residuals"]["entries"]["weight"].update(size=13)),
    ],
)
def test_malformed_checkpoints_are_refused_whole(key, change):
    saved = state_with_debts().state_dict()
    change(saved)
    state = DLCPState(model=nn.Linear(4, 3))
    state.residuals.record("bias", np.ones(3), [[0, 1]])
    with pytest.raises(ConfigError) as caught:
        state.load_state_dict(saved, "rank0.pt")
    assert caught.value.key == key and caught.value.source.startswith("rank0.pt")
    assert state.passes == 0 and state.residuals.keys() == ("bias",)


def test_without_a_model_any_names_are_taken():
    state = DLCPState()
    state.load_state_dict(state_with_debts().state_dict())
    assert set(state.residuals.keys()) == {"weight", "bias"}


def test_without_a_communicator_only_what_needs_one_fails():
    state = state_with_debts()
    assert state.error is None
    state.scale_residuals(2.0)
    assert state.residuals.mass().l1 == 36
    for use in (state.check, lambda: state.communicator, lambda: state.abort("no")):
        with pytest.raises(ClosedError):
            use()
    with pytest.raises(LookupError), state.guard():
        raise LookupError("passes through")
    with state as same:
        assert same is state


def test_in_flight_is_at_least_one():
    with pytest.raises(ValueError, match="at least 1"):
        DLCPState(max_in_flight=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@given(st.lists(st.floats(width=32), max_size=20))
def test_rounding_keeps_finite_what_is_finite(dtype, values):
    original = torch.tensor(values, dtype=torch.float32)
    rounded = round_to(original, dtype)
    assert rounded.dtype == dtype
    limit = torch.finfo(dtype).max
    for before, after in zip(values, rounded.tolist(), strict=True):
        if math.isnan(before):
            assert math.isnan(after)
        elif math.isinf(before):
            assert after == before
        else:
            assert math.isfinite(after) and after == max(-limit, min(limit, torch.tensor(before).to(dtype).item()))
