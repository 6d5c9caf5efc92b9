"""The hook under real DistributedDataParallel, two ranks over loopback: what plain DDP computes, bit for bit."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dlcp.torch.reducer
from dlcp.policy import Policy
from dlcp.torch import DLCPState
from dlcp.torch.staging import Stage
from tests.torch.fake import AsideDevice
from tests.torch.ranks import run_ranks

RELIABLE = {"loss": {"push": 0.0}, "timeouts": {"peer_s": 5.0, "connect_s": 20.0}}


class Net(nn.Module):
    """Several layers, in buckets of about a kilobyte; one that only odd steps use, and one that is frozen."""

    def __init__(self, unused=False, frozen=False, dtype=torch.float32):
        super().__init__()
        self.head = nn.Linear(40, 5, dtype=dtype)
        self.front = nn.Linear(30, 60, dtype=dtype)
        self.norm = nn.BatchNorm1d(60, dtype=dtype)
        self.back = nn.Linear(60, 40, dtype=dtype)
        self.odd = nn.Linear(40, 40, dtype=dtype) if unused else None
        if frozen:
            self.back.weight.requires_grad_(False)

    def forward(self, x, step=0):
        y = torch.relu(self.back(self.norm(torch.tanh(self.front(x)))))
        if self.odd is not None and step % 2 == 1:
            y = y + self.odd(y)
        return self.head(y)


def train(rank, steps, model, *, no_sync=False, dtype=torch.float32):
    """Trains on data of this rank, with no_sync accumulating over three steps; returns the parameters after each."""
    generator = torch.Generator().manual_seed(100 + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    trace = []
    for step in range(steps):
        accumulate = no_sync and step % 3 != 2
        x = torch.randn(16, 30, generator=generator, dtype=dtype)
        with model.no_sync() if accumulate else contextlib.nullcontext():
            model(x, step).square().mean().backward()
        if not accumulate:
            optimizer.step()
            optimizer.zero_grad()
        trace.append(torch.cat([p.detach().double().ravel() for p in model.parameters()]))
    return trace


def compare(rank, world, options, ddp_options):
    options = dict(options)
    algorithm = options.pop("algorithm", "sharded")
    no_sync = options.pop("no_sync", False)
    if options.pop("device", False):
        dlcp.torch.reducer.stage_for = lambda device: Stage(AsideDevice())
    dtype = options.get("dtype", torch.float32)

    def run(attach):
        torch.manual_seed(1)
        model = DistributedDataParallel(Net(**options), bucket_cap_mb=0.001, **ddp_options)
        attach(model)
        return train(rank, 6, model, no_sync=no_sync, dtype=dtype)

    plain = run(lambda model: None)
    with DLCPState.from_process_group(policy=Policy.from_dict(RELIABLE), algorithm=algorithm) as state:
        ours = run(state.attach)
        metrics = state.metrics()["hook"]
    for step, (a, b) in enumerate(zip(plain, ours, strict=True)):
        assert torch.equal(a, b), f"step {step}: {(a - b).abs().max()}"
    assert metrics["lost_elements"] == 0 and metrics["residual_elements"] == 0
    return metrics["passes"], metrics["buckets"]


CASES = {
    "plain": ({}, {}),
    "ring": ({"algorithm": "ring"}, {}),
    "view": ({}, {"gradient_as_bucket_view": True}),
    "static": ({}, {"static_graph": True}),
    "device": ({"device": True}, {}),
    "device-static-view": ({"device": True}, {"static_graph": True, "gradient_as_bucket_view": True}),
    "float64": ({"dtype": torch.float64}, {}),
    "bfloat16": ({"dtype": torch.bfloat16}, {}),
    "frozen": ({"frozen": True}, {}),
    "unused": ({"unused": True}, {"find_unused_parameters": True}),
    # pytorch issue 69031: both together.
    "unused-no_sync": ({"unused": True, "no_sync": True}, {"find_unused_parameters": True}),
    "no_sync-view": ({"no_sync": True}, {"gradient_as_bucket_view": True}),
}


@pytest.mark.parametrize(("options", "ddp_options"), CASES.values(), ids=CASES)
def test_without_loss_training_is_bit_identical_to_plain_ddp(options, ddp_options):
    (passes, buckets), other = run_ranks(compare, options, ddp_options)
    assert (passes, buckets) == other
    assert passes == (2 if options.get("no_sync") else 6)
    assert buckets > passes, "the model was never cut into several buckets"
