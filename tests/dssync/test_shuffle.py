"""The process group that follows a schedule, under torch's own collectives, DDP and FSDP2."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from dlcp.errors import ConfigError
from dssync import DivideShuffleAverager, ShuffleOptions, ShuffleProcessGroup
from dssync.schedule import BaseK, Digits
from tests.dssync.test_averager import net, values
from tests.torch.ranks import run_ranks


def collectives(rank, world, schedule, inner):
    group = dist.new_group(backend="dssync", pg_options=ShuffleOptions(schedule, inner=inner))
    assert isinstance(group, ShuffleProcessGroup) and dist.get_backend(group) == "dssync"
    reduced = []
    for _ in range(schedule.period):
        mean, total = torch.full((3,), float(rank)), torch.full((3,), float(rank))
        dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=group)
        work = dist.all_reduce(total, group=group, async_op=True)
        work.get_future().wait()
        work.wait()
        reduced.append((group.members, mean[0].item(), total[0].item()))
        group.advance()
    told = torch.full((2,), float(rank))
    dist.broadcast(told, 1, group=group)
    gathered = [torch.zeros(1) for _ in range(world)]
    dist.all_gather(gathered, torch.full((1,), float(rank)), group=group)
    row = torch.empty(world)
    dist.all_gather_single(row, torch.full((1,), float(rank)), group=group) if hasattr(dist, "all_gather_single") else (
        dist.all_gather_into_tensor(row, torch.full((1,), float(rank)), group=group)
    )
    dist.barrier(group=group)
    several = [torch.full((2,), float(rank)), torch.full((1,), 1.0)]
    group.allreduce_coalesced(several).wait()
    dist.destroy_process_group(group)
    return reduced, told[0].item(), [tensor.item() for tensor in gathered], row.tolist(), several[1].item()


@pytest.mark.parametrize("inner", ["gloo", "dlcp"])
def test_all_reduce_spans_the_rounds_group_and_everything_else_all_ranks(inner):
    schedule = BaseK(3, 2)
    for rank, (reduced, told, gathered, row, several) in enumerate(run_ranks(collectives, schedule, inner, world=3)):
        for number, (ranks, mean, total) in enumerate(reduced):
            assert ranks == schedule.group_of(number, rank).ranks
            assert mean == pytest.approx(np.mean(ranks)) and total == pytest.approx(3 * np.mean(ranks))
        assert told == 1 and gathered == row == [0, 1, 2] and several == pytest.approx(3)


def whole_numbers(rank, world):
    group = dist.new_group(backend="dssync", pg_options=ShuffleOptions(Digits(4, 2)))
    counts = torch.tensor([rank + 1])
    dist.all_reduce(counts, group=group)
    highest = torch.tensor([rank])
    dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
    return counts.item(), highest.item()


def test_whole_numbers():
    assert run_ranks(whole_numbers, world=4) == [(6, 1), (6, 1), (14, 3), (14, 3)]


def default_group(rank, world, folder):
    dist.barrier()
    dist.destroy_process_group()
    store = dist.FileStore(f"{folder}/again", world)
    dist.init_process_group("dssync", store=store, rank=rank, world_size=world)
    group = dist.group.WORLD
    value = torch.tensor([float(rank)])
    dist.all_reduce(value, op=dist.ReduceOp.AVG)
    dist.barrier()
    return type(group).__name__, group.schedule.kind, group.schedule.largest, value.item()


def test_as_the_default_group_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("DSSYNC_SCHEDULE", "digits")
    monkeypatch.setenv("DSSYNC_GROUP", "2")
    assert run_ranks(with_environment, str(tmp_path), world=4) == [
        ("ShuffleProcessGroup", "digits", 2, x) for x in (0.5, 0.5, 2.5, 2.5)
    ]


def with_environment(rank, world, folder):
    # The server that ranks are forked from has an environment of its own.
    import os

    os.environ.update(DSSYNC_SCHEDULE="digits", DSSYNC_GROUP="2")
    return default_group(rank, world, folder)


def test_a_group_size_that_is_no_number(monkeypatch):
    monkeypatch.setenv("DSSYNC_GROUP", "two")
    with pytest.raises(ConfigError, match="DSSYNC_GROUP"):
        ShuffleOptions.from_environment()


def trained(rank, world, average):
    torch.manual_seed(0)
    model = net()
    group = dist.new_group(backend="dssync", pg_options=ShuffleOptions(Digits(world, 2)))
    wrapped = DistributedDataParallel(model, process_group=group)
    optimizer = SGD(model.parameters(), lr=0.2)
    averager = DivideShuffleAverager(model, Digits(world, 2)) if average else None
    generator = torch.Generator().manual_seed(rank)
    gradients = []
    for _ in range(24):
        optimizer.zero_grad()
        wrapped(torch.randn(8, 5, generator=generator) + rank).square().mean().backward()
        gradients.append(model[0].weight.grad.clone().numpy())
        optimizer.step()
        group.advance()
        if averager is not None:
            averager.average_parameters()
    last = values(model)
    if averager is not None:
        averager.close()
    return gradients, last


def test_ddp_averages_gradients_in_the_groups_which_alone_is_no_consensus():
    shuffled, averaged = (run_ranks(trained, average, world=4) for average in (False, True))
    for step in range(4):
        for rank in range(4):
            mate = rank ^ (1 if step % 2 == 0 else 2)
            assert np.allclose(shuffled[rank][0][step], shuffled[mate][0][step], atol=1e-6)
    spread = [np.stack([last for _, last in results]).std(axis=0).max() for results in (shuffled, averaged)]
    assert spread[0] > 5 * spread[1], spread


def sharded(rank, world):
    """HSDP by hand: sharded over neighbours, replicated over the others, whose shards are averaged in place of all-reduces."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh["shard"])
    averager = DivideShuffleAverager(model, "base-k", process_group=mesh["replicate"].get_group(), sync_start=False)
    optimizer = SGD(model.parameters(), lr=0.1)
    model(torch.full((2, 8), float(rank // 2))).square().mean().backward()
    optimizer.step()
    own = model[0].weight.to_local().detach().clone().numpy()
    averager.average_parameters()
    mean = model[0].weight.to_local().detach().clone().numpy()
    averager.close()
    return own, mean


def test_the_replicate_dimension_of_hsdp():
    results = run_ranks(sharded, world=4)
    for rank in range(4):
        mate = rank ^ 2
        assert not np.allclose(results[rank][0], results[mate][0])
        assert np.allclose(results[rank][1], (results[rank][0] + results[mate][0]) / 2, atol=1e-6)


def hybrid(rank, world):
    """FSDP2's own HSDP with our group as the replicate dimension: gradients are averaged by it."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    shards = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    replicas = [dist.new_group(ranks, backend="dssync", pg_options=ShuffleOptions("bsp")) for ranks in ([0, 2], [1, 3])][rank % 2]
    mesh = DeviceMesh.from_group(
        [replicas, shards], "cpu", mesh=torch.arange(4).view(2, 2), mesh_dim_names=("replicate", "shard")
    )
    fully_shard(model, mesh=mesh)
    model(torch.full((2, 8), float(rank + 1))).square().mean().backward()
    return model.weight.grad.to_local().numpy()


def test_the_group_as_fsdps_replicate_dimension():
    results = run_ranks(hybrid, world=4)
    for rank in range(4):
        assert np.allclose(results[rank], results[rank ^ 2], atol=1e-6)


def mismatched(rank, world):
    dist.barrier()
    with pytest.raises(ConfigError, match="a schedule of as many ranks"):
        ShuffleProcessGroup(BaseK(world + 1), dist.group.WORLD.get_group_store(), rank, world)
    dist.barrier()
    return True


def test_a_schedule_for_other_ranks():
    assert all(run_ranks(mismatched, world=2))
