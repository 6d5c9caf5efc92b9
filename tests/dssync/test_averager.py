"""The averager and the optimizer on real process groups over gloo."""

import inspect

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam

from dlcp.errors import ClosedError, ConfigError, MismatchError
from dssync import DivideShuffleAverager, DivideShuffleOptimizer, make_schedule
from dssync.mixing import Mixing
from dssync.schedule import BaseK, Digits, Domains, Shuffled
from tests.torch.ranks import run_ranks


def values(model):
    return torch.cat([p.detach().reshape(-1).double() for p in model.parameters()]).numpy()


def scatter(model, rank):
    """Gives every rank other parameters; the same in every process."""
    generator = torch.Generator().manual_seed(100 + rank)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))


def net():
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))


# -- what a round computes


def rounds(rank, world, schedules, more):
    found = []
    for schedule in schedules:
        model = net()
        with DivideShuffleAverager(model, schedule, bucket_mb=1e-4, sync_start=False, **more) as averager:
            scatter(model, rank)
            seen = [values(model)]
            for _ in range(schedule.period + 2):
                averager.average_parameters()
                seen.append(values(model))
            averager.consensus()
            found.append((seen, values(model)))
    return found


@pytest.mark.parametrize("world", [3, 4, 5])
def test_rounds_are_those_of_the_matrices(world):
    schedules = [BaseK(world, 2), Shuffled(world, 2, partitions=6), Domains(world, [range(world - 1), [world - 1]])]
    results = run_ranks(rounds, schedules, {}, world=world)
    for number, schedule in enumerate(schedules):
        start = np.stack([result[number][0][0] for result in results])
        for count in range(1, schedule.period + 3):
            want = Mixing(schedule).apply(start, 0, count)
            got = np.stack([result[number][0][count] for result in results])
            assert np.allclose(got, want, atol=1e-5)
        for result in results:
            assert np.allclose(result[number][1], start.mean(axis=0), atol=1e-5)


def test_weights_count_everywhere():
    schedule = Digits(4, 2)
    weights = [1.0, 2.0, 1.0, 4.0]
    results = run_ranks(weighted, schedule, weights, world=4)
    start = np.stack([before for before, _, _ in results])
    want = Mixing(schedule, weights).apply(start, 0, 1)
    assert np.allclose(np.stack([after for _, after, _ in results]), want, atol=1e-5)
    assert np.allclose(results[2][2], np.average(start, axis=0, weights=weights), atol=1e-5)


def weighted(rank, world, schedule, weights):
    model = net()
    with DivideShuffleAverager(model, schedule, sync_start=False, weight=weights[rank]) as averager:
        scatter(model, rank)
        before = values(model)
        averager.average_parameters()
        after = values(model)
        averager.consensus()
        return before, after, values(model)


class Odd(nn.Module):
    """Shared and frozen parameters, one without gradient, several types, odd strides, a scalar."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.unused = nn.Linear(4, 4)
        self.sixteen = nn.Parameter(torch.zeros(6, dtype=torch.bfloat16))
        self.wide = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.turned = nn.Parameter(torch.zeros(4, 6).t())
        self.scalar = nn.Parameter(torch.zeros(()))
        self.phasors = nn.Parameter(torch.zeros(2, dtype=torch.complex64))


def odd_round(rank, world):
    model = Odd()
    with DivideShuffleAverager(model, "bsp", sync_start=False) as averager:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(float(rank))
        assert averager.counts["bytes"] == 0
        averager.average_parameters()
        pointers = model.first.weight.data_ptr() == model.tied.weight.data_ptr()
        return {name: parameter.detach().abs().double().mean().item() for name, parameter in model.named_parameters()}, pointers


def test_parameters_of_every_sort():
    for rank, (found, tied) in enumerate(run_ranks(odd_round, world=2)):
        assert tied
        for name, value in found.items():
            assert value == (float(rank) if name.startswith("frozen") else 0.5), name


def all_bfloat16(rank, world):
    model = nn.Linear(4, 4, dtype=torch.bfloat16)
    with DivideShuffleAverager(model, "bsp", sync_start=False) as averager:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(float(rank))
        averager.average_parameters()
        return model.weight.float().mean().item()


def test_a_model_of_sixteen_bits():
    assert run_ranks(all_bfloat16, world=2) == [0.5, 0.5]


def unfreeze(rank, world):
    model = net()
    model[2].requires_grad_(False)
    with DivideShuffleAverager(model, "bsp", sync_start=False) as averager:
        scatter(model, rank)
        averager.average_parameters()
        first = model[2].weight.detach().clone()
        model[2].requires_grad_(True)
        averager.average_parameters()
        return first.numpy(), model[2].weight.detach().numpy()


def test_layers_can_be_thawed_on_the_way():
    (own, mean), (other, again) = run_ranks(unfreeze, world=2)
    assert not np.allclose(own, other)
    assert np.allclose(mean, (own + other) / 2) and np.allclose(mean, again)


def start_alike(rank, world, sync):
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[1].running_mean.fill_(rank)
    with DivideShuffleAverager(model, "bsp", sync_start=sync):
        return values(model), model[1].running_mean[0].item()


def test_all_ranks_start_from_the_first_ones_model():
    (one, mean), (two, other) = run_ranks(start_alike, True, world=2)
    assert np.array_equal(one, two) and mean == other == 0
    (one, _), (two, other) = run_ranks(start_alike, False, world=2)
    assert not np.allclose(one, two) and other == 1


# -- delayed averages


def delayed(rank, world, schedule, steps):
    model = net()
    generator = torch.Generator().manual_seed(rank)
    with DivideShuffleAverager(model, schedule, sync_start=False, overlap=True) as averager:
        scatter(model, rank)
        seen = [(values(model), None)]
        for _ in range(steps):
            drift = torch.randn(values(model).size, generator=generator) * 0.1
            with torch.no_grad():
                at = 0
                for parameter in model.parameters():
                    parameter.add_(drift[at : at + parameter.numel()].view(parameter.shape))
                    at += parameter.numel()
            averager.average_parameters()
            seen.append((values(model), drift.double().numpy()))
        averager.consensus()
        return seen, values(model)


def test_a_delayed_average_is_what_it_would_have_changed_one_round_later():
    schedule = Digits(4, 2)
    results = run_ranks(delayed, schedule, 6, world=4)
    models = np.stack([result[0][0][0] for result in results])
    change = np.zeros_like(models)
    for step in range(1, 7):
        models = models + np.stack([result[0][step][1] for result in results])
        models = models + change
        assert np.allclose(np.stack([result[0][step][0] for result in results]), models, atol=1e-5)
        change = Mixing(schedule).operator(step - 1).apply(models) - models
    for result in results:
        assert np.allclose(result[1], models.mean(axis=0), atol=1e-5)


# -- buffers


def normed(rank, world, policy):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with DivideShuffleAverager(model, Digits(world, 2), buffers=policy) as averager:
        for _ in range(rank + 1):
            model(torch.randn(8, 4) + rank)
        own = model[1].running_mean.clone().numpy(), model[1].running_var.clone().numpy()
        averager.average_parameters()
        after = model[1].running_mean.clone().numpy(), model[1].running_var.clone().numpy()
        counted = int(model[1].num_batches_tracked)
        averager.consensus()
        return own, after, counted, model[1].running_mean.numpy(), int(model[1].num_batches_tracked)


@pytest.mark.parametrize("policy", ["average", "local", "broadcast"])
def test_statistics_of_batch_norm(policy):
    results = run_ranks(normed, policy, world=4)
    for rank, (own, after, counted, last, total) in enumerate(results):
        mate = results[rank ^ 1][0]
        for part in range(2):
            want = {"average": (own[part] + mate[part]) / 2, "local": own[part], "broadcast": results[rank & ~1][0][part]}[policy]
            assert np.allclose(after[part], want, atol=1e-6)
        assert counted == rank + 1, "each rank has counted its own batches"
        assert total == (rank + 1 if policy == "local" else 4)
        if policy == "average":
            assert np.allclose(last, np.mean([result[0][0] for result in results], axis=0), atol=1e-6)
        elif policy == "broadcast":
            assert np.allclose(last, np.mean([result[1][0] for result in results], axis=0), atol=1e-6)
        else:
            assert np.allclose(last, own[0])


# -- optimizer state


def trained(rank, world, kind, policy, steps):
    torch.manual_seed(0)
    model = net()
    inner = SGD(model.parameters(), lr=0.1, momentum=0.9) if kind == "sgd" else Adam(model.parameters(), lr=0.01)
    averager = DivideShuffleAverager(model, "bsp", optimizer_state=policy)
    optimizer = DivideShuffleOptimizer(inner, averager)
    generator = torch.Generator().manual_seed(rank)
    moments = []
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 5, generator=generator)).square().mean().backward()
        optimizer.step()
        key = "momentum_buffer" if kind == "sgd" else "exp_avg"
        state = inner.state.get(model[0].weight, {})
        moments.append(state[key].clone().numpy() if key in state else None)
    averager.close()
    return values(model), moments


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_optimizer_state(kind):
    for policy in ("local", "average", "reset"):
        (one, moments), (two, others) = run_ranks(trained, kind, policy, 3, world=2)
        assert np.array_equal(one, two)
        for a, b in zip(moments, others, strict=True):
            assert (a is None and b is None) if policy == "reset" else np.allclose(a, b) == (policy == "average")


def sgd_by_hand(rank, world, steps):
    """Momentum is linear: averaging parameters and moments of all ranks is SGD on all ranks' data."""
    torch.manual_seed(0)
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    generators = [torch.Generator().manual_seed(r) for r in range(2)]
    for _ in range(steps):
        optimizer.zero_grad()
        for generator in generators:
            (model(torch.randn(8, 5, generator=generator)).square().mean() / 2).backward()
        optimizer.step()
    return values(model)


def test_averaging_everything_every_step_is_synchronous_sgd():
    want = run_ranks(sgd_by_hand, 5, world=1)[0]
    for policy in ("local", "average"):  # of a linear optimizer only the sum of the moments matters
        assert np.allclose(run_ranks(trained, "sgd", policy, 5, world=2)[0][0], want, atol=1e-6)


# -- steps and rounds


def counted(rank, world, every, warmup):
    model = net()
    with DivideShuffleAverager(model, Digits(world, 2), every=every, warmup_steps=warmup, sync_start=False) as averager:
        scatter(model, rank)
        found = []
        for _ in range(warmup + 2 * every):
            averager.average_parameters()
            found.append((averager.round, values(model)[0]))
        return found


def test_every_and_warmup():
    results = run_ranks(counted, 3, 2, world=4)
    assert [number for number, _ in results[0]] == [0, 0, 0, 0, 1, 1, 1, 2]
    assert len({round(float(result[1][1]), 5) for result in results}) == 1, "the warm-up keeps all equal"


# -- DistributedDataParallel


def ddp(model):
    """DDP that leaves buffers alone, in the words of either generation of torch."""
    known = inspect.signature(DistributedDataParallel).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    return DistributedDataParallel(model, **{name: False})


def distributed(rank, world, wrapped, warmup):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))
    module = ddp(model) if wrapped else model
    averager = DivideShuffleAverager(module, Digits(world, 2), warmup_steps=warmup)
    optimizer = DivideShuffleOptimizer(SGD(model.parameters(), lr=0.1, momentum=0.9), averager)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    generator = torch.Generator().manual_seed(rank)
    found = []
    for _ in range(5):
        optimizer.zero_grad()
        module(torch.randn(8, 5, generator=generator)).square().mean().backward()
        gradient = model[0].weight.grad.clone().numpy()
        optimizer.step()
        schedule.step()
        found.append((gradient, values(model)))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)
    averager.close()
    return found


def test_under_ddp_gradients_stay_local_and_everything_is_as_without():
    bare, wrapped = (run_ranks(distributed, wrap, 0, world=4) for wrap in (False, True))
    for rank in range(4):
        for step in range(5):
            assert np.allclose(bare[rank][step][1], wrapped[rank][step][1], atol=1e-6)
        assert not np.allclose(wrapped[rank][0][0], wrapped[rank - 1][0][0])


def test_the_warmup_under_ddp_reduces_gradients():
    results = run_ranks(distributed, True, 2, world=2)
    for step in range(3):
        assert np.allclose(results[0][step][0], results[1][step][0]) == (step < 2)


def refused_ddp(rank, world):
    with pytest.raises(ConfigError, match="_buffers: True: every forward pass"):
        DivideShuffleAverager(DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))))
    dist.barrier()
    return True


def test_ddp_must_not_overwrite_buffers():
    assert all(run_ranks(refused_ddp, world=2))


# -- consensus


def evaluated(rank, world):
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    with DivideShuffleAverager(model, Digits(world, 2), sync_start=False) as averager:
        scatter(model, rank)
        model[1].running_mean.fill_(rank)
        model[1].num_batches_tracked.fill_(rank)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with averager.consensus_model() as mean:
            inside = values(mean), mean[1].running_mean[0].item(), int(mean[1].num_batches_tracked)
        same = all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
        return values(model), inside, same


def test_the_consensus_is_for_looking_at():
    results = run_ranks(evaluated, world=4)
    mean = np.mean([own for own, _, _ in results], axis=0)
    for _, (inside, running, counted_), same in results:
        assert same and np.allclose(inside, mean, atol=1e-6) and running == 1.5 and counted_ == 3


# -- checkpoints


def interrupted(rank, world, steps, stop, at_consensus=False):
    """Trains, and if ``stop`` is given goes on from there with new objects."""
    torch.manual_seed(0)

    def build():
        model = net()
        averager = DivideShuffleAverager(model, BaseK(world, 2))
        return model, averager, DivideShuffleOptimizer(SGD(model.parameters(), lr=0.1, momentum=0.9), averager)

    model, averager, optimizer = build()
    generator = torch.Generator().manual_seed(rank)
    for step in range(steps):
        if step == stop:
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            averager.close()
            model, averager, optimizer = build()
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        optimizer.zero_grad()
        model(torch.randn(8, 5, generator=generator)).square().mean().backward()
        optimizer.step()
    averager.close()
    return values(model)


def test_a_resumed_run_is_the_same_run():
    whole, resumed = (run_ranks(interrupted, 9, stop, world=3) for stop in (None, 4))
    for one, two in zip(whole, resumed, strict=True):
        assert np.array_equal(one, two)


def saved_state(rank, world, agreed):
    model = net()
    with DivideShuffleAverager(model, BaseK(world, 2)) as averager:
        averager.average_parameters()
        if agreed:
            averager.consensus()
        return averager.state_dict()


def resumed_elsewhere(rank, world, state):
    with DivideShuffleAverager(net(), BaseK(world, 2)) as averager:
        try:
            averager.load_state_dict(state, "epoch3.pt")
        except ConfigError as error:
            return str(error)
        return averager.step, averager.round


def test_another_number_of_ranks_resumes_from_a_consensus_only():
    loose, agreed = (run_ranks(saved_state, consensus, world=3)[0] for consensus in (False, True))
    assert all("epoch3.pt: schedule" in said and "consensus()" in said for said in run_ranks(resumed_elsewhere, loose, world=2))
    assert run_ranks(resumed_elsewhere, agreed, world=2) == [(1, 0), (1, 0)]
    assert run_ranks(resumed_elsewhere, loose, world=3) == [(1, 1)] * 3


@pytest.mark.parametrize(
    "change", [{"version": 7}, {"step": -1}, {"round": "x"}, {"consensus": 1}, {"schedule": None}, {"schedule": {"kind": "bsp"}}]
)
def test_malformed_checkpoints(change):
    state = {
        "version": 1,
        "step": 1,
        "round": 1,
        "schedule": make_schedule("bsp", 1).describe(),
        "consensus": False,
    }
    assert "epoch3.pt" in run_ranks(resumed_elsewhere, {**state, **change}, world=1)[0]


def no_phase(rank, world):
    averager = DivideShuffleAverager(net(), "bsp")
    optimizer = DivideShuffleOptimizer(SGD(averager.model.parameters(), lr=0.1), averager)
    with pytest.raises(ConfigError, match="dssync: missing"):
        optimizer.load_state_dict(optimizer.optim.state_dict())
    averager.close()
    averager.close()
    with pytest.raises(ClosedError):
        averager.average_parameters()
    return "DivideShuffleOptimizer" in repr(optimizer)


def test_an_optimizer_without_phase_and_a_closed_averager():
    assert run_ranks(no_phase, world=1) == [True]


# -- what does not fit


def disagree(rank, world, what):
    model = nn.Linear(4, 4 + (rank if what == "model" else 0))
    try:
        with DivideShuffleAverager(
            model,
            Shuffled(world, 2, seed=rank if what == "schedule" else 0),
            every=1 + (rank if what == "every" else 0),
            buffers="local" if what == "buffers" and rank else "average",
        ):
            return "met"
    except MismatchError as error:
        return str(error)


@pytest.mark.parametrize("what", ["model", "schedule", "every", "buffers"])
def test_ranks_that_differ_are_told_so_on_every_rank(what):
    results = run_ranks(disagree, what, world=3)
    # Of the schedule only what differs counts, and two seeds may give the same partitions.
    assert all("model, schedule or settings" in said for said in results), results
    assert len(set(results)) == 1


def bad_arguments(rank, world):
    for more, said in (
        ({"every": 0}, "every"),
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"buffers": "sum"}, "average, local, broadcast"),
        ({"optimizer_state": "x"}, "local, average, reset"),
        ({"weight": 0.0}, "weight"),
        ({"bucket_mb": 0}, "bucket_mb"),
        ({"schedule": "ring"}, "unknown"),
        ({"schedule": BaseK(5)}, "one for 1"),
        ({"backend": "nonsense"}, None),
    ):
        if said is not None:
            with pytest.raises(ConfigError, match=said):
                DivideShuffleAverager(net(), **more)
    with DivideShuffleAverager(net().requires_grad_(False), "bsp") as averager, pytest.raises(ConfigError, match="nothing in it"):
        averager.consensus_model().__enter__()
    return True


def test_arguments():
    assert run_ranks(bad_arguments, world=1) == [True]


def unknown_backend(rank, world):
    with pytest.raises(ConfigError, match="'nonsense' is unknown"):
        DivideShuffleAverager(net(), "bsp", backend="nonsense")
    dist.barrier()
    return True


def test_unknown_backends():
    assert all(run_ranks(unknown_backend, world=2))


def test_without_a_process_group():
    with pytest.raises(ConfigError, match="init_process_group"):
        DivideShuffleAverager(net(), "bsp")
