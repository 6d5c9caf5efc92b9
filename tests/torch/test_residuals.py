"""Error feedback through DDP: what is lost in one pass leaves with the next, whatever DDP does to its buckets."""

import copy
import io

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dlcp.torch.reducer
from dlcp.policy import Policy
from dlcp.torch import DLCPState, dlcp_hook
from dlcp.torch.staging import Stage
from tests.torch.fake import AsideDevice, FakeCommunicator
from tests.torch.ranks import run_ranks


class Whole(nn.Module):
    """Whole numbers in, whole numbers in all weights: every gradient is exact in float64, and so are sums of them."""

    def __init__(self, branches=False):
        super().__init__()
        self.back = nn.Linear(6, 2, dtype=torch.float64)
        self.front = nn.Linear(5, 40, dtype=torch.float64)
        self.middle = nn.Linear(40, 6, dtype=torch.float64)
        self.never = nn.Linear(6, 6, dtype=torch.float64) if branches else None
        self.odd = nn.Linear(6, 6, dtype=torch.float64) if branches else None
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randint(-4, 5, parameter.shape, generator=generator))

    def forward(self, x, odd=False):
        y = self.middle(self.front(x))
        if odd:
            y = y + self.odd(y)
        return self.back(y)


def some_losses(number, rank, array):
    """About a third of the elements, in ragged pieces that cross the borders of parameters."""
    rng = np.random.default_rng([number, rank])
    cuts = np.sort(rng.integers(0, array.size + 1, 2 * max(1, array.size // 30)))
    return cuts.reshape(-1, 2)


def beside_the_training():
    """Lets buckets take the way of those on a GPU, with the host in its place."""
    dlcp.torch.reducer.stage_for = lambda device: Stage(AsideDevice())


def conserve(rank, world, ddp_options, branches, wrapper, device):
    """Compares, by parameter, what all ranks contributed with what they got and still owe."""
    if device:
        beside_the_training()
    model = Whole(branches)
    local = copy.deepcopy(model)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.0005, **ddp_options)
    communicator = FakeCommunicator(some_losses)
    state = DLCPState(communicator)
    state.attach(ddp, hook=wrapper)
    data = torch.Generator().manual_seed(10 + rank)
    given = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    got = copy.deepcopy(given)
    buckets_in_pass = []
    for step in range(5):
        x = torch.randint(-3, 4, (4, 5), generator=data).double()
        odd = branches and step % 2 == 1 and rank == 0  # used by one rank only, in some steps only
        for module in (ddp, local):
            module.zero_grad()
            module(x, odd).sum().backward()
        for name, parameter in local.named_parameters():
            if parameter.grad is not None:
                given[name] += parameter.grad
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                got[name] += parameter.grad * world
        buckets_in_pass.append(state.metrics()["hook"]["buckets"] - sum(buckets_in_pass))
    metrics = state.metrics()["hook"]
    owed = {}
    for name, parameter in model.named_parameters():
        flat = np.zeros(parameter.numel())
        state.residuals.add_to(name, flat)
        owed[name] = torch.from_numpy(flat).view_as(parameter)
    assert len(state.residuals) == 0, f"residuals of no parameter: {state.residuals.keys()}"
    state.close()
    communicator.close()
    return {name: (given[name].numpy(), got[name].numpy(), owed[name].numpy()) for name in given}, buckets_in_pass, metrics


@pytest.mark.parametrize("device", [False, True], ids=["host", "device"])
@pytest.mark.parametrize(
    ("ddp_options", "branches"),
    [
        ({}, False),
        ({"gradient_as_bucket_view": True}, False),
        ({"static_graph": True}, False),
        ({"find_unused_parameters": True}, True),
        ({"find_unused_parameters": True, "gradient_as_bucket_view": True}, True),
    ],
    ids=["plain", "view", "static", "unused", "unused-view"],
)
def test_mass_is_conserved_to_the_last_bit_across_the_rebuild_of_buckets(ddp_options, branches, device):
    """pytorch issue 51427: PowerSGD kept its memory by bucket, and mixed it up when DDP rebuilt them."""
    (first, buckets, metrics), (second, *_) = run_ranks(conserve, ddp_options, branches, None, device)
    lost = 0
    for name, (given, got, owed) in first.items():
        np.testing.assert_array_equal(got, second[name][1], err_msg=f"{name}: replicas differ")
        np.testing.assert_array_equal(given + second[name][0], got + owed + second[name][2], err_msg=name)
        lost += np.abs(owed).sum()
    assert lost > 0, "nothing was lost, so that nothing was tested"
    assert metrics["lost_elements"] > 0 and metrics["residual_l1"] == lost
    if not branches:  # find_unused_parameters keeps DDP from rebuilding
        assert buckets[0] == 1 and buckets[-1] > 1, f"DDP did not rebuild its buckets: {buckets}"


def owe_while_unused(rank, world, device):
    """Loses the whole gradient of a branch, then goes without the branch, then uses it again."""
    if device:
        beside_the_training()
    model = Whole(branches=True)
    ddp = DistributedDataParallel(model, find_unused_parameters=True)

    def all_of_odd(number, rank, array):
        return [[0, array.size]] if number == 0 else []

    communicator = FakeCommunicator(all_of_odd)
    state = DLCPState(communicator)
    state.attach(ddp)
    x = torch.ones(2, 5, dtype=torch.float64)
    trace = []
    for odd in (True, False, False, True):
        ddp.zero_grad()
        ddp(x, odd).sum().backward()
        grad = model.odd.weight.grad
        trace.append((None if grad is None else grad.abs().sum().item(), "odd.weight" in state.residuals))
    communicator.close()
    return trace


@pytest.mark.parametrize("device", [False, True], ids=["host", "device"])
def test_a_debt_waits_while_nobody_uses_its_parameter(device):
    """DDP throws away what is reduced for a parameter that no rank has used, so that nothing may be added to it then."""
    for trace in run_ranks(owe_while_unused, device):
        assert trace[0] == (0.0, True), "all was lost"
        assert trace[1][1] and trace[2][1], "the debt was added to a gradient that DDP drops"
        single = trace[3][0]
        assert single > 0 and not trace[3][1]


def steps(state, ddp, optimizer, generator, count):
    for _ in range(count):
        optimizer.zero_grad()
        ddp(torch.randn(8, 5, generator=generator, dtype=torch.float64)).square().mean().backward()
        optimizer.step()


def resume(rank, world, folder):
    """Trains four steps in one go, and the fourth again from a checkpoint, in new objects.

    The fourth loses nothing of its own: a new model has other buckets at first, and so would lose something else.
    """
    lossy = True

    def make():
        model = Whole()
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.0005)
        communicator = FakeCommunicator(lambda number, rank, array: some_losses(number, rank, array) if lossy else [])
        state = DLCPState(communicator)
        state.attach(ddp)
        return ddp, torch.optim.SGD(ddp.parameters(), lr=1e-4, momentum=0.9), state

    def parameters(ddp):
        return torch.cat([p.detach().ravel() for p in ddp.parameters()])

    generator = torch.Generator().manual_seed(rank)
    ddp, optimizer, state = make()
    steps(state, ddp, optimizer, generator, 3)
    path = f"{folder}/rank{rank}.pt"
    torch.save(
        {
            "model": ddp.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "dlcp": state.state_dict(),
            "random": generator.get_state(),
        },
        path,
    )
    owed = state.residuals.mass()
    lossy = False
    steps(state, ddp, optimizer, generator, 1)
    after_one = parameters(ddp)

    def again(with_residuals):
        ddp, optimizer, state = make()
        saved = torch.load(path, weights_only=True)
        ddp.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        if with_residuals:
            state.load_state_dict(saved["dlcp"], path)
            assert state.residuals.mass() == owed and state.passes == 3
        generator.set_state(saved["random"])
        steps(state, ddp, optimizer, generator, 1)
        return parameters(ddp)

    return owed.elements, torch.equal(after_one, again(True)), torch.equal(after_one, again(False)), after_one.numpy()


def test_the_step_after_a_resume_is_bit_identical(tmp_path):
    first, second = run_ranks(resume, str(tmp_path))
    for owed, same, without, _ in (first, second):
        assert owed > 0
        assert same, "the step after the resume differs"
        assert not without, "residuals made no difference, so that nothing was tested"
    np.testing.assert_array_equal(first[3], second[3])


def pickled(rank, world):
    ddp = DistributedDataParallel(Whole())
    communicator = FakeCommunicator(some_losses)
    state = DLCPState(communicator)
    state.attach(ddp)
    ddp(torch.ones(2, 5, dtype=torch.float64)).sum().backward()
    file = io.BytesIO()
    torch.save({"hook_state": state, "hook": dlcp_hook}, file)  # as torch's own example saves its PowerSGDState
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    other = saved["hook_state"]
    assert saved["hook"] is dlcp_hook
    assert other.residuals.mass() == state.residuals.mass() != (0.0, 0)
    fresh = DistributedDataParallel(Whole())
    try:
        other.attach(fresh)
    except Exception as error:
        refused = f"{type(error).__name__}: {error}"
    other.bind(communicator)
    other.attach(fresh)
    fresh(torch.ones(2, 5, dtype=torch.float64)).sum().backward()
    passes = other.passes
    communicator.close()
    return refused, passes


def test_a_state_pickles_without_its_communicator():
    """pytorch issue 75666: hooks' states could not be checkpointed."""
    for refused, passes in run_ranks(pickled):
        assert refused.startswith("ClosedError: this DLCPState has no communicator")
        assert passes == 2


def poisoned(rank, world):
    """One infinite gradient in pass 3, all of it lost."""
    model = nn.Linear(8, 4)
    ddp = DistributedDataParallel(model)
    communicator = FakeCommunicator(lambda number, rank, array: [[0, array.size]] if number == 3 else [])
    state = DLCPState(communicator)
    state.attach(ddp)
    finite = []
    for step in range(6):
        ddp.zero_grad()
        x = torch.ones(2, 8)
        (ddp(x).sum() * (torch.inf if step == 3 and rank == 0 else 1.0)).backward()
        finite.append(all(bool(p.grad.isfinite().all()) for p in model.parameters()))
    metrics = state.metrics()["hook"]
    communicator.close()
    return finite, metrics["nonfinite_elements"], metrics["residual_elements"]


def test_an_overflow_does_not_come_back():
    """pytorch issue 43307: PowerSGD was fine for three passes, then NaN for ever."""
    (first, nonfinite, left), (second, none, _) = run_ranks(poisoned)
    assert first == second == [True] * 6
    assert nonfinite == 36 and none == 0 and left == 0


def forget(rank, world, compensation):
    model = nn.Linear(8, 4, dtype=torch.float64)
    ddp = DistributedDataParallel(model)
    policy = Policy.from_dict({"loss": {"compensation": compensation}})
    communicator = FakeCommunicator(lambda number, rank, array: [[0, 10]], policy=policy)
    state = DLCPState(communicator)
    state.attach(ddp)
    ddp(torch.ones(2, 8, dtype=torch.float64)).sum().backward()
    metrics = state.metrics()["hook"]
    communicator.close()
    return metrics["lost_elements"], metrics["lost_l1"], metrics["residual_elements"]


@pytest.mark.parametrize("compensation", ["zero", "rescale"])
def test_other_compensations_keep_no_residuals(compensation):
    assert run_ranks(forget, compensation) == [(10, 20.0, 0)] * 2


def wrapped_half(rank, world, wrapper):
    """float16 buckets: residuals are kept in float32, by the same names."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    import dlcp.torch

    wrap = (default_hooks if wrapper == "torch" else dlcp.torch).fp16_compress_wrapper
    policy = Policy.from_dict({"wire": {"dtype": "float16"}})
    communicator = FakeCommunicator(some_losses, policy=policy)
    model = Whole().float()
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.0005)
    state = DLCPState(communicator)
    state.attach(ddp, hook=wrap(dlcp_hook))
    total = torch.zeros(sum(p.numel() for p in model.parameters()))
    for _ in range(4):
        ddp.zero_grad()
        ddp(torch.ones(2, 5)).sum().backward()
        total += torch.cat([p.grad.ravel() for p in model.parameters()])
        assert all(p.grad.dtype == torch.float32 for p in model.parameters())
    for name, parameter in model.named_parameters():
        flat = np.zeros(parameter.numel(), np.float32)
        state.residuals.add_to(name, flat)
        parameter.grad = torch.from_numpy(flat).view_as(parameter)
    owed = torch.cat([p.grad.ravel() for p in model.parameters()])
    communicator.close()
    model.zero_grad()
    model(torch.ones(2, 5)).sum().backward()
    expected = 4 * torch.cat([p.grad.ravel() for p in model.parameters()])
    return total.numpy(), owed.numpy(), expected.numpy()


@pytest.mark.parametrize("wrapper", ["torch", "ours"])
def test_half_precision_wrappers_compose(wrapper):
    (total, owed, expected), (_, also, _) = run_ranks(wrapped_half, wrapper)
    assert np.abs(owed).sum() > 0
    np.testing.assert_allclose(total + (owed + also) / 2, expected, rtol=2e-3, atol=1e-2)
