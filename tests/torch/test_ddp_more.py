"""The hook where DDP does something special: uneven inputs, activation checkpoints, compiled models."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from dlcp.policy import Policy
from dlcp.torch import DLCPState
from tests.torch.ranks import run_ranks

RELIABLE = Policy.from_dict({"loss": {"push": 0.0}})


class Block(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(10, 40), nn.Linear(40, 40), nn.Linear(40, 10)
        self.kind = kind

    def middle(self, x):
        return torch.tanh(self.second(torch.tanh(x)))

    def forward(self, x):
        x = self.first(x)
        if self.kind is None:
            return self.third(self.middle(x))
        return self.third(checkpoint(self.middle, x, use_reentrant=self.kind == "reentrant"))


def train(rank, model, steps, *, join=False):
    generator = torch.Generator().manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # Ranks that join early shadow the others' collectives with zeros, in passes that are no backward passes.
    with model.join() if join else contextlib.nullcontext():
        for _ in range(steps + (rank if join else 0)):
            optimizer.zero_grad()
            model(torch.randn(6, 10, generator=generator)).square().mean().backward()
            optimizer.step()
    return torch.cat([p.detach().ravel() for p in model.parameters()])


def compare(rank, world, kind, static, join, compiled):
    results = []
    with DLCPState.from_process_group(policy=RELIABLE) as state:
        for attach in (False, True):
            torch.manual_seed(2)
            net = Block(kind)
            if compiled == "inside":
                net = torch.compile(net, backend="eager")
            model = DistributedDataParallel(net, bucket_cap_mb=25 if compiled else 0.001, static_graph=static)
            if attach:
                state.attach(model)
            run = torch.compile(model, backend="eager") if compiled == "outside" else model
            results.append(train(rank, run, 4, join=join))
        metrics = state.metrics()["hook"]
    assert torch.equal(*results), (results[0] - results[1]).abs().max()
    return results[0].numpy().tobytes(), metrics["passes"], metrics["buckets"]


@pytest.mark.parametrize(("kind", "static"), [("reentrant", True), ("simple", False), ("simple", True)])
def test_activation_checkpoints(kind, static):
    first, second = run_ranks(compare, kind, static, False, None)
    assert first == second and first[1] == 4 and first[2] > 4


def test_uneven_inputs():
    results = run_ranks(compare, None, False, True, None)
    assert len({digest for digest, _, _ in results}) == 1
    assert [passes for _, passes, _ in results] == [5, 5]


@pytest.mark.parametrize("compiled", ["inside", "outside"])
def test_compiled_models(compiled):
    first, second = run_ranks(compare, None, False, False, compiled)
    assert first == second and first[1] == 4
