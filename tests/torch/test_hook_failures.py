"""What goes wrong on one rank: a typed error out of backward() on every rank, and a model that is as it was."""

import __future__

import atexit
import contextlib
import copy
import importlib.util
import os
import signal
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dlcp import errors
from dlcp.errors import ClosedError, ConfigError, RemoteError
from dlcp.policy import Policy
from dlcp.torch import DLCPState, bf16_compress_wrapper, dlcp_hook, fp16_compress_wrapper
from dlcp.torch.c10d import GradBucket
from tests.torch.ranks import Died, run_ranks

POLICY = Policy.from_dict({"timeouts": {"peer_s": 1.5, "connect_s": 20.0}})
NO_TIME_S = 20.0


def model_and_state(policy=POLICY, hook=None, net=None, **ddp_options):
    torch.manual_seed(1)
    net = net or nn.Sequential(nn.Linear(20, 50), nn.Tanh(), nn.Linear(50, 60), nn.Tanh(), nn.Linear(60, 3))
    ddp = DistributedDataParallel(net, bucket_cap_mb=0.001, **ddp_options)
    state = DLCPState.from_process_group(policy=policy)
    state.attach(ddp, hook=hook)
    dist.barrier()  # a rank that fails at once would fail the others while they still meet, before there is a hook
    return ddp, state


def step(ddp):
    ddp.zero_grad()
    ddp(torch.randn(8, 20)).square().mean().backward()


def outcome(state, ddp, work):
    """Runs ``work`` under guard; returns the error's type and text, its rank, and whether the parameters changed."""
    before = [p.detach().clone() for p in ddp.parameters()]
    owed = state.residuals.mass()
    begin = time.monotonic()
    try:
        with state.guard():
            work()
    except BaseException as error:
        took = time.monotonic() - begin
        result = (type(error).__name__, str(error), getattr(error, "rank", None))
    else:
        raise AssertionError("nothing was raised")
    assert took < NO_TIME_S
    assert all(torch.equal(a, b) for a, b in zip(before, ddp.parameters(), strict=True)), "half a step was applied"
    assert state.residuals.mass() == owed, "the residuals are not those that belong to the parameters"
    try:
        state.check()
    except BaseException as error:
        assert state.error is error
    state.close()
    return result


def one_raises(rank, world, ddp_options):
    ddp, state = model_and_state(**ddp_options)
    for _ in range(3):
        step(ddp)

    def work():
        if rank == 1:
            raise LookupError("sample 17 is damaged")
        step(ddp)
        step(ddp)

    return outcome(state, ddp, work)


@pytest.mark.parametrize(
    "ddp_options", [{}, {"static_graph": True}, {"gradient_as_bucket_view": True}], ids=["plain", "static", "view"]
)
def test_an_exception_in_the_training_loop_reaches_all_ranks(ddp_options):
    others, own = run_ranks(one_raises, ddp_options, world=2)
    assert own == ("LookupError", "sample 17 is damaged", None)
    assert others[0] == "RemoteError" and "LookupError: sample 17 is damaged" in others[1] and others[2] == 1


def one_raises_at_once(rank, world):
    """With a static graph, where DDP launches the first pass's buckets after the pass."""
    ddp, state = model_and_state(static_graph=True)

    def work():
        if rank == 1:
            raise LookupError("no data")
        step(ddp)

    return outcome(state, ddp, work)


def test_errors_keep_their_type_in_the_first_pass_of_a_static_graph():
    others, own = run_ranks(one_raises_at_once)
    assert own[0] == "LookupError"
    assert others[0] == "RemoteError" and "no data" in others[1]


def leaves(rank, world):
    """Rank 1's exception is caught by nobody, and nobody closes anything: the interpreter ends."""
    patient = Policy.from_dict({"timeouts": {"peer_s": 60.0}})
    ddp, state = model_and_state(policy=patient)
    step(ddp)
    step(ddp)
    if rank == 1:
        with contextlib.suppress(LookupError), state.guard():
            raise LookupError("out of cheese")
        atexit._run_exitfuncs()
        return None
    return outcome(state, ddp, lambda: step(ddp))


def test_an_interpreter_that_ends_has_told_the_others():
    kind, text, rank = run_ranks(leaves)[0]
    assert kind == "RemoteError" and "out of cheese" in text and rank == 1


def one_dies(rank, world):
    ddp, state = model_and_state()
    step(ddp)
    step(ddp)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return outcome(state, ddp, lambda: step(ddp))


def test_a_rank_that_dies_is_named_on_all_others():
    result = run_ranks(one_dies, world=3, may_die=(1,))
    assert isinstance(result[1], Died)
    kinds = {result[0][0], result[2][0]}
    assert "PeerLostError" in kinds and kinds <= {"PeerLostError", "RemoteError"}
    for kind, text, rank in (result[0], result[2]):
        assert "rank 1" in text and "silent" in text, text
        assert kind == "RemoteError" or rank == 1


def bad_bucket(rank, world, kind):
    def hook(state: DLCPState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        if rank == 1:
            changed = {
                "longer": lambda: torch.cat([buffer, buffer[:1]]),
                "shorter": lambda: buffer[:-1],
                "matrix": lambda: buffer.view(1, -1),
                "integer": lambda: buffer.to(torch.int32),
                "complex": lambda: buffer.to(torch.complex64),
                "strided": lambda: torch.stack([buffer, buffer], 1)[:, 0],
            }[kind]()
            bucket.set_buffer(changed)
        return dlcp_hook(state, bucket)

    ddp, state = model_and_state(hook=hook)
    return outcome(state, ddp, lambda: step(ddp))


@pytest.mark.parametrize("kind", ["longer", "shorter", "matrix", "integer", "complex", "strided"])
def test_buckets_of_wrong_shape_or_dtype_are_refused_on_all_ranks(kind):
    others, own = run_ranks(bad_bucket, kind)
    assert own[0] == "ConfigError" and own[1].startswith("bucket of 0.weight: gradient: ")
    assert others[0] == "RemoteError" and own[1] in others[1]


def sparse(rank, world):
    net = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Flatten(), nn.Linear(8, 2))
    ddp, state = model_and_state(net=net)
    return outcome(state, ddp, lambda: ddp(torch.tensor([[1, 2]])).sum().backward())


def test_sparse_gradients_are_refused():
    for kind, text, _ in run_ranks(sparse):
        assert kind in ("ConfigError", "RemoteError") and "sparse=False" in text


def wrapper_sees(rank, world):
    """A wrapper whose own callback fails, and one that asks a future inside its callback (pytorch issue 48478)."""

    def nested(state: DLCPState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return dlcp_hook(state, bucket).then(lambda future: future.wait()).then(lambda future: future.value() * 1)

    ddp, state = model_and_state(hook=nested)
    step(ddp)
    step(ddp)
    state.close()
    failing = []

    def fails(state: DLCPState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        def callback(future):
            if failing:
                raise LookupError("in the wrapper")
            return future.value()

        return dlcp_hook(state, bucket).then(callback)

    ddp, state = model_and_state(hook=fails)
    step(ddp)
    if rank == 1:
        failing.append(True)
    return outcome(state, ddp, lambda: (step(ddp), step(ddp)))


def test_wrappers_may_wait_in_callbacks_and_may_fail():
    others, own = run_ranks(wrapper_sees)
    assert own[0] == "RuntimeError" and "LookupError: in the wrapper" in own[1]
    assert others[0] == "RemoteError" and "LookupError: in the wrapper" in others[1]


def goes_on(rank, world):
    """After a failure a new communicator takes over, with what is owed and the parameters as they were."""
    ddp, state = model_and_state()
    step(ddp)
    step(ddp)  # in whose forward pass DDP rebuilds its buckets, with a collective of its own

    def work():
        if rank == 0:
            raise LookupError("once")
        step(ddp)

    before = [p.detach().clone() for p in ddp.parameters()]
    try:
        with state.guard():
            work()
    except (LookupError, RemoteError):
        pass
    # A copy: the hooks of a DDP that stopped in the middle of a pass stay on its parameters.
    fresh = DistributedDataParallel(copy.deepcopy(ddp.module), bucket_cap_mb=0.001)
    again = DLCPState.from_process_group(policy=POLICY)
    state.bind(again.communicator)
    assert state.error is None
    state.attach(fresh)
    step(fresh)
    assert all(torch.equal(a, b) for a, b in zip(before, fresh.parameters(), strict=True))
    grads = [p.grad.clone() for p in fresh.parameters()]
    again.close()
    return torch.cat([g.ravel() for g in grads]).numpy().tobytes(), state.passes


def test_a_state_can_go_on_with_another_communicator():
    (first, passes), (second, _) = run_ranks(goes_on)
    assert first == second and passes == 3


def mismatched(rank, world):
    policy = Policy.from_dict({"loss": {"push": 0.01 * (rank + 1)}, "timeouts": {"connect_s": 10.0}})
    try:
        DLCPState.from_process_group(policy=policy)
    except BaseException as error:
        return type(error).__name__, str(error)


def test_ranks_with_different_policies_do_not_start():
    for kind, text in run_ranks(mismatched):
        assert kind == "MismatchError" and "loss.push" in text


def exit_codes(rank, world):
    results = []
    for code in (None, 0, 3):
        _ddp, state = model_and_state()
        try:
            with state.guard():
                sys.exit(code)
        except SystemExit:
            results.append(state.error is None)
        state.close()
    return results


def test_leaving_with_success_is_no_failure():
    assert run_ranks(exit_codes, world=1) == [[True, True, False]]


# -- without other ranks


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_hooks_want_their_own_state(alone):
    ddp = DistributedDataParallel(nn.Linear(2, 2))
    ddp.register_comm_hook(None, dlcp_hook)
    with pytest.raises(TypeError, match="dlcp_hook needs a DLCPState, not a NoneType"):
        ddp(torch.zeros(1, 2)).sum().backward()


def test_only_data_parallel_models_take_a_hook(alone):
    with DLCPState.from_process_group() as state, pytest.raises(TypeError, match="a Linear takes no communication hook"):
        state.attach(nn.Linear(2, 2))


def test_one_state_serves_one_model(alone):
    with DLCPState.from_process_group() as state:
        state.attach(DistributedDataParallel(nn.Linear(2, 2)))
        other = DistributedDataParallel(nn.Linear(3, 3))
        other.register_comm_hook(state, dlcp_hook)
        with pytest.raises(ConfigError, match="one state serves one model"):
            other(torch.zeros(1, 3)).sum().backward()


def test_a_closed_state_says_so(alone):
    state = DLCPState.from_process_group()
    ddp = DistributedDataParallel(nn.Linear(2, 2))
    state.attach(ddp)
    state.close()
    state.close()
    with pytest.raises(ClosedError, match="no communicator"):
        ddp(torch.zeros(1, 2)).sum().backward()
    assert state.metrics()["transport"] == {}


def test_pull_loss_needs_a_model_to_repair(alone):
    policy = Policy.from_dict({"loss": {"pull": 0.01, "resync_steps": 5}})
    with DLCPState.from_process_group(policy=policy) as state:
        ddp = DistributedDataParallel(nn.Linear(2, 2))
        ddp.register_comm_hook(state, dlcp_hook)
        with pytest.raises(ConfigError, match=r"loss\.pull"):
            ddp(torch.zeros(1, 2)).sum().backward()


@pytest.mark.parametrize("module", ["hook", "compress", "c10d"])
def test_modules_of_hooks_do_not_postpone_annotations(module):
    """DDP compares annotations with types; with the future import they are strings, and registering fails."""
    spec = importlib.util.find_spec(f"dlcp.torch.{module}")
    code = compile(Path(spec.origin).read_text(), spec.origin, "exec", dont_inherit=True)
    assert not code.co_flags & __future__.annotations.compiler_flag


def test_registering_a_hook_from_a_module_with_postponed_annotations(alone, tmp_path):
    """The trap itself, so that the day torch removes it is noticed; a user's such module can still pass our hook on."""
    source = (
        "from __future__ import annotations\n"
        "import torch\nimport torch.distributed as dist\nfrom dlcp.torch import DLCPState, dlcp_hook\n"
        "def own(state: DLCPState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:\n"
        "    return dlcp_hook(state, bucket)\n"
        "def register(state, model):\n    model.register_comm_hook(state, dlcp_hook)\n"
    )
    (tmp_path / "postponed.py").write_text(source)
    spec = importlib.util.spec_from_file_location("postponed", tmp_path / "postponed.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with DLCPState.from_process_group() as state:
        with pytest.raises(ValueError, match="annotation"):
            DistributedDataParallel(nn.Linear(2, 2)).register_comm_hook(state, module.own)
        ddp = DistributedDataParallel(nn.Linear(2, 2))
        module.register(state, ddp)
        ddp(torch.ones(1, 2)).sum().backward()
        assert ddp.module.bias.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("wrap", [fp16_compress_wrapper, bf16_compress_wrapper])
def test_wrappers_say_when_the_wire_is_wider(alone, wrap):
    with DLCPState.from_process_group() as state:
        ddp = DistributedDataParallel(nn.Linear(2, 2))
        state.attach(ddp, hook=wrap(dlcp_hook))
        with pytest.warns(UserWarning, match="sent as float32"):
            ddp(torch.ones(1, 2)).sum().backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ddp(torch.ones(1, 2)).sum().backward()
        assert ddp.module.bias.grad.tolist() == [2.0, 2.0]


def test_guard_can_tell_errors_of_the_transport_from_those_of_torch():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.DLCPError)]
    assert len(kinds) > 5 and not any(issubclass(kind, RuntimeError) for kind in kinds)
