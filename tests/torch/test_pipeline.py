"""The pipelined optimizer under real DistributedDataParallel, two ranks over loopback: what plain DDP computes, bit for bit."""

import contextlib
import io
import warnings

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from dlcp.errors import DLCPError
from dlcp.policy import Policy
from dlcp.torch import DLCPState, PipelinedOptimizer
from dlcp.torch.gates import needs
from dlcp.torch.pending import PendingGradient
from tests.torch.ranks import run_ranks

RELIABLE = {"loss": {"push": 0.0}, "timeouts": {"peer_s": 5.0, "connect_s": 20.0}}
STEPS = 6

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.004, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}


class Net(nn.Module):
    """Layers in several buckets; attention (which reads a child that it never calls), shared weights, a frozen and an odd one."""

    def __init__(self):
        super().__init__()
        self.front = nn.Linear(12, 16)
        self.norm = nn.BatchNorm1d(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.back = nn.Linear(16, 16)
        self.twice = nn.Linear(16, 16)
        self.frozen = nn.Linear(16, 16)
        self.frozen.requires_grad_(False)
        self.odd = nn.Linear(16, 16)
        self.head = nn.Linear(16, 12, bias=False)
        self.head.weight = nn.Parameter(torch.empty(12, 16).normal_(generator=torch.Generator().manual_seed(3)))
        self.tied = nn.Linear(16, 12, bias=False)
        self.tied.weight = self.head.weight
        self.recompute = False

    def middle(self, y):
        return torch.tanh(self.back(y))

    def forward(self, x, step=0):
        y = self.norm(torch.relu(self.front(x)))
        y = self.attention(y[None], y[None], y[None], need_weights=False)[0][0]
        y = checkpoint(self.middle, y, use_reentrant=False) if self.recompute else self.middle(y)
        y = self.twice(torch.tanh(self.twice(y))) + self.frozen(y)
        if step % 2:
            y = y + self.odd(y)
        return self.head(y) + self.tied(y)


def parameters(model):
    return torch.cat([p.detach().double().ravel() for p in model.parameters()])


def batch(generator):
    return torch.randn(8, 12, generator=generator)


def plain_loop(rank, model, optimizer, *, drain=lambda: None, scheduler=None, accumulate=1, clip=None, scaler=None):
    """Trains on this rank's data; returns the parameters after each step."""
    generator = torch.Generator().manual_seed(100 + rank)
    trace = []
    for step in range(STEPS):
        for micro in range(accumulate):
            last = micro == accumulate - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = model(batch(generator), step).square().mean()
                (scaler.scale(loss) if scaler else loss).backward()
        if clip is not None:
            if scaler:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        if scheduler is not None:
            scheduler.step()
        optimizer.zero_grad()
        drain()
        trace.append(parameters(model))
    return trace


def build(options, ddp):
    torch.manual_seed(1)
    net = Net()
    for name, value in options.items():
        setattr(net, name, value)
    return DistributedDataParallel(net, bucket_cap_mb=0.002, find_unused_parameters=True, **ddp)


@contextlib.contextmanager
def pipelined(model, make, policy=None, **options):
    with DLCPState.from_process_group(policy=Policy.from_dict(policy or RELIABLE)) as state:
        optimizer = PipelinedOptimizer(make(model.parameters()), model, state, partition_bytes=700, **options)
        yield optimizer, state
        optimizer.close()


def compare(rank, world, name, options=None, ddp=None, loop=None):
    """Trains with and without the pipeline and compares after every step."""
    options, ddp, loop = options or {}, ddp or {}, dict(loop or {})
    scheduled, scaled = loop.pop("scheduled", False), loop.pop("scaled", False)
    never_drain = loop.pop("never_drain", False)
    make = OPTIMIZERS[name]

    def extras(optimizer):
        found = {}
        if scheduled:
            found["scheduler"] = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        if scaled:
            found["scaler"] = torch.amp.GradScaler("cpu", init_scale=64.0)
        return found

    model = build(options, ddp)
    optimizer = make(model.parameters())
    expected = plain_loop(rank, model, optimizer, **extras(optimizer), **loop)
    before = optimizer.state_dict()

    model = build(options, ddp)
    with pipelined(model, make) as (optimizer, state):
        drain = (lambda: None) if never_drain else optimizer.drain
        got = plain_loop(rank, model, optimizer, drain=drain, **extras(optimizer), **loop)
        after = optimizer.state_dict()
        if never_drain:
            got, expected = [parameters(model)], expected[-1:]
        passes = state.passes
    for step, (a, b) in enumerate(zip(expected, got, strict=True)):
        assert torch.equal(a, b), f"step {step}: {(a - b).abs().max()}"
    assert before["param_groups"] == after["param_groups"] and before["state"].keys() == after["state"].keys()
    for key, values in before["state"].items():
        for field, value in values.items():
            other = after["state"][key][field]
            assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other
    return passes


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_same_bits_as_plain_ddp(name):
    assert run_ranks(compare, name) == [STEPS] * 2


@pytest.mark.parametrize(
    "case",
    [
        {"loop": {"never_drain": True}},
        {"loop": {"accumulate": 3}},
        {"loop": {"clip": 0.1}},
        {"loop": {"scheduled": True}},
        {"loop": {"scaled": True}},
        {"loop": {"scaled": True, "clip": 0.1, "accumulate": 2, "scheduled": True}},
        {"options": {"recompute": True}, "loop": {"never_drain": True}},
        {"ddp": {"gradient_as_bucket_view": True}, "loop": {"never_drain": True}},
        {"ddp": {"gradient_as_bucket_view": True}, "loop": {"clip": 0.1, "accumulate": 2}},
    ],
    ids=str,
)
def test_what_training_loops_do(case):
    name = "momentum" if "scaled" in str(case) else "adamw"
    run_ranks(compare, name, case.get("options"), case.get("ddp"), case.get("loop"))


def loops_of_other_shapes(rank, world):
    """zero_grad in other places, two synchronized passes a step, a skipped step, evaluation and state_dict without drain."""

    def run(wrap):
        model = build({}, {})
        generator = torch.Generator().manual_seed(5 + rank)
        seen = []
        with wrap(model) as optimizer:
            for step in range(STEPS):
                loss = model(batch(generator), step).square().mean()
                optimizer.zero_grad()  # between forward and backward
                loss.backward()
                if step == 1:  # a second synchronized pass on top of the first
                    model(batch(generator), step).square().mean().backward()
                if step != 2:
                    optimizer.step()
                if step == 3:
                    optimizer.step()  # twice with the same gradients
                seen.append(float(sum(p.grad.double().norm() for p in model.parameters() if p.grad is not None)))
                if step == 4:
                    optimizer.zero_grad(set_to_none=False)
                    model.eval()
                    with torch.no_grad():
                        seen.append(float(model.module(torch.ones(2, 12)).double().sum()))
                    model.train()
                seen.append(float(sum(v.double().sum() for v in model.state_dict().values())))
        return seen

    @contextlib.contextmanager
    def plain(model):
        yield OPTIMIZERS["momentum"](model.parameters())

    @contextlib.contextmanager
    def ours(model):
        with pipelined(model, OPTIMIZERS["momentum"]) as (optimizer, _):
            yield optimizer

    expected, got = run(plain), run(ours)
    assert got == expected, [(i, a, b) for i, (a, b) in enumerate(zip(expected, got, strict=True)) if a != b]


def test_loops_of_other_shapes():
    run_ranks(loops_of_other_shapes)


def what_is_pending(rank, world):
    """step() leaves gradients pending, metadata does not wait, values do, and a forward pass leaves nothing."""
    model = build({}, {})
    with pipelined(model, OPTIMIZERS["sgd"]) as (optimizer, _):
        x = torch.ones(4, 12)
        model(x).square().mean().backward()
        weight = model.module.front.weight
        stand_in = weight.grad
        assert isinstance(stand_in, PendingGradient)
        assert stand_in.shape == weight.shape and stand_in.dtype == weight.dtype and not stand_in.is_sparse
        assert isinstance(weight.grad, PendingGradient), "asking for the shape does not wait"
        optimizer.step()
        assert isinstance(weight.grad, PendingGradient), "step() does not wait"
        other = model.module.head.weight.grad
        norm = stand_in.norm()
        assert type(weight.grad) is torch.Tensor and torch.equal(weight.grad.norm(), norm)
        model(x)
        assert type(model.module.head.weight.grad) is torch.Tensor and torch.equal(other, model.module.head.weight.grad)
        optimizer.zero_grad()
        assert all(p.grad is None for p in model.parameters())
    return True


def test_what_is_pending():
    assert all(run_ranks(what_is_pending))


def resume(rank, world):
    """State goes through a checkpoint, and training goes on with the same bits."""

    def start():
        model = build({}, {})
        return model, pipelined(model, OPTIMIZERS["adam"])

    model, context = start()
    with context as (optimizer, _):
        plain_loop(rank, model, optimizer)
        saved = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
        ahead = plain_loop(rank, model, optimizer, drain=optimizer.drain)
    saved.seek(0)
    loaded = torch.load(saved, weights_only=True)
    model, context = start()
    with context as (optimizer, _):
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        again = plain_loop(rank, model, optimizer, drain=optimizer.drain)
    assert all(torch.equal(a, b) for a, b in zip(ahead, again, strict=True))


def test_resuming():
    run_ranks(resume)


def lossy(rank, world):
    """Under loss replicas stay equal, and what did not arrive is owed."""
    policy = {"loss": {"push": 0.2}, "wire": {"mtu": 600}, "protection": {"share": 0.1}, **{"timeouts": RELIABLE["timeouts"]}}
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(12, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 12))
    model = DistributedDataParallel(net, bucket_cap_mb=0.1)
    with DLCPState.from_process_group(policy=Policy.from_dict(policy), faults="drop=0.05,class=0-6") as state:
        optimizer = PipelinedOptimizer(OPTIMIZERS["momentum"](model.parameters()), model, state, clip_norm=1.0)
        generator = torch.Generator().manual_seed(rank)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(batch(generator)).square().mean().backward()
            optimizer.step()
        optimizer.drain()
        metrics = state.metrics()["hook"]
        optimizer.close()
    return parameters(model).tolist(), metrics["passes"], metrics["lost_elements"]


def test_loss():
    (a, passes, lost), (b, _, _) = run_ranks(lossy)
    assert a == b and passes == STEPS and lost > 0


def broken(rank, world):
    """A rank that leaves ends the other with a typed error, wherever it waits."""
    model = build({}, {})
    state = DLCPState.from_process_group(policy=Policy.from_dict(RELIABLE))
    optimizer = PipelinedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model, state)
    model(torch.ones(4, 12)).square().mean().backward()
    optimizer.step()
    if rank == 1:
        optimizer.drain()
        state.abort("tired")
        state.close()
        return None
    with pytest.raises(DLCPError, match="tired"):
        # Rank 1 may have all it needs, and be gone, while some of it is still on its way here.
        optimizer.drain()
        for _ in range(3):
            optimizer.zero_grad()
            # No forward of the wrapper, which would wait for the other rank's buffers.
            optimizer.step()
            optimizer.drain()
            state.communicator.barrier()
            state.check()
    state.close()
    return True


def test_a_rank_that_leaves():
    assert run_ranks(broken)[0]


def test_needs_follow_what_was_called():
    net = Net()
    called = {net, *(m for m in net.modules() if m not in (net.attention.out_proj, net.odd, net.tied))}
    found = needs(net, called)
    assert found[net.attention][-2:] == [net.attention.out_proj.weight, net.attention.out_proj.bias]
    assert {id(p) for p in found[net]} == {id(p) for p in (*net.odd.parameters(), *net.tied.parameters())}
    assert {id(p) for ps in found.values() for p in ps} == {id(p) for p in net.parameters()}


def refused(rank, world):
    model = build({}, {})
    with DLCPState.from_process_group(policy=Policy.from_dict(RELIABLE)) as state:
        with pytest.raises(TypeError, match="LBFGS"):
            PipelinedOptimizer(torch.optim.LBFGS(model.parameters()), model, state)
        with pytest.raises(ValueError, match="partition_bytes"):
            PipelinedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model, state, partition_bytes=0)
        with pytest.raises(ValueError, match="clip_norm"):
            PipelinedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model, state, clip_norm=0.0)
        with pytest.raises(TypeError, match="Distributed"):
            PipelinedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model.module, state)
        optimizer = PipelinedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model, state)
        with pytest.raises(TypeError, match="state_dict"):
            optimizer.__getstate__()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert "SGD" in repr(optimizer)


def test_refused():
    run_ranks(refused)
