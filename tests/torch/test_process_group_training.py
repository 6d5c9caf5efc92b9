"""Training over the process group: plain DDP, torch's hooks, FSDP2, DeviceMesh, the hook and dlcp's own state beside it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import dlcp.torch
from dlcp.policy import Policy
from tests.torch.groups import run_group
from tests.torch.ranks import run_ranks
from tests.torch.test_train_example import RELIABLE, trained


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.BatchNorm1d(64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))


def train(model, rank, steps=5):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    inputs, losses = torch.randn(8, 20, generator=generator), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    return [p.detach() for p in model.parameters()]


def flatten(tensors):
    return torch.cat([t.flatten() for t in tensors]).numpy()


HOOKS = {
    "none": lambda: (None, None),
    "fp16": lambda: (None, default_hooks.fp16_compress_hook),
    "powersgd": lambda: (
        powerSGD_hook.PowerSGDState(dist.group.WORLD, 2, start_powerSGD_iter=2, min_compression_rate=0.5),
        powerSGD_hook.powerSGD_hook,
    ),
}


def _ddp(rank, world):
    results = {}
    for name, make in HOOKS.items():
        model = DistributedDataParallel(net())
        state, hook = make()
        if hook is not None:
            model.register_comm_hook(state, hook)
        results[name] = flatten(train(model, rank))
    if dist.get_backend() == "dlcp":
        model = DistributedDataParallel(net())
        with dlcp.torch.DLCPState.from_process_group(policy=Policy.from_dict({"loss": {"push": 0.0}})) as state:
            state.attach(model)
            results["dlcp_hook"] = flatten(train(model, rank))
    return results


def test_ddp_trains_as_over_gloo_whatever_the_hook():
    ours, theirs = run_group(_ddp), run_ranks(_ddp)
    for name in ours[0]:
        assert (ours[0][name] == ours[1][name]).all(), "replicas are equal"
        torch.testing.assert_close(ours[0][name], theirs[0].get(name, theirs[0]["none"]), rtol=1e-3, atol=1e-4)


def test_the_training_script_ends_with_the_same_bits_as_over_gloo(tmp_path):
    """PowerSGD's callbacks wait for further all-reduces; the pipelined optimizer brings a communicator of its own."""
    (tmp_path / "policy.toml").write_text(RELIABLE)
    common = ["--width", "8", "--batch-size", "64", "--epochs", "1", "--comm"]
    pipelined = [*common, "pipelined", "--policy", str(tmp_path / "policy.toml")]
    assert run_group(trained, [*common, "powersgd"]) == run_ranks(trained, [*common, "powersgd"])
    assert len({*run_group(trained, [*common, "gloo"]), *run_group(trained, pipelined)}) == 1


def _fsdp(rank, world):
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.fsdp import fully_shard

    flat = init_device_mesh("cpu", (world,))
    grid = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    results = []
    for mesh in (flat, grid):
        model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
        results.append(flatten([p.full_tensor() for p in train(model, rank)]))
        torch.manual_seed(0)
    inner = grid["shard"].get_group()
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=inner)
    mine = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    assert mine.size() == world
    return results, tensor.item()


def test_fsdp2_and_device_meshes_train_as_over_gloo():
    ours, theirs = run_group(_fsdp, world=4), run_ranks(_fsdp, world=4)
    for mesh in range(2):
        assert all((rank[0][mesh] == ours[0][0][mesh]).all() for rank in ours)
        torch.testing.assert_close(ours[0][0][mesh], theirs[0][0][mesh], rtol=1e-4, atol=1e-5)
    assert [rank[1] for rank in ours] == [1.0, 1.0, 5.0, 5.0]


def _unused(rank, world):
    class Forked(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.a(x) if rank == 0 else self.b(x)

    torch.manual_seed(0)
    model = DistributedDataParallel(Forked(), find_unused_parameters=True)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
    return [p.grad.sum().item() for p in model.parameters()]


def test_parameters_that_only_some_ranks_use():
    results = run_group(_unused)
    assert results[0] == results[1] and all(value > 0 for value in results[0])
