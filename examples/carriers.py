"""What carries the gradients: DLCP, gloo, and what torch has for slow networks."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from dlcp.policy import Policy
from dlcp.topology import Topology
from dlcp.torch import DLCPState
from dlcp.torch.pipeline import PipelinedOptimizer
from dssync import DivideShuffleAverager, DivideShuffleOptimizer, make_schedule
from examples.recorder import Recorder
from examples.timed import timed

LOCAL_SGD_PERIOD = 4


class Carrier(NamedTuple):
    """How gradients travel.

    Attributes:
        optimizer: The task's, or a wrapper that this way needs.
        guard: Context for training.
        state: DLCP's state, or None.
        averager: What averages parameters in place of gradients, or None.
        replicas_differ: Whether models of different ranks may differ between steps.
    """

    optimizer: Optimizer
    guard: Callable[[], AbstractContextManager[Any]]
    state: DLCPState | None = None
    averager: DivideShuffleAverager | None = None
    replicas_differ: bool = False


def carry_dlcp(
    model: DistributedDataParallel, optimizer: Optimizer, options: argparse.Namespace, recorder: Recorder | None
) -> Carrier:
    """Gradients over DLCP: two of these lines are all that a training script needs, and guard() around its loop."""
    state = make_state(options, recorder)
    state.attach(model)
    return Carrier(optimizer, state.guard, state)


def carry_pipelined(
    model: DistributedDataParallel, optimizer: Optimizer, options: argparse.Namespace, recorder: Recorder | None
) -> Carrier:
    """Gradients over DLCP, and the next forward pass begins before the last of them is in."""
    state = make_state(options, recorder)
    return Carrier(PipelinedOptimizer(optimizer, model, state), state.guard, state)


def make_state(options: argparse.Namespace, recorder: Recorder | None) -> DLCPState:
    """Makes DLCP's state as the command line says."""
    state = DLCPState.from_process_group(
        policy=Policy.from_toml(options.policy) if options.policy else Policy(),
        algorithm=options.algorithm,
        host=options.host,
        faults=options.faults,
    )
    if recorder is not None:
        state.communicator.observe(recorder)
    return state


def carry_gloo(
    model: DistributedDataParallel, optimizer: Optimizer, options: argparse.Namespace, recorder: Recorder | None
) -> Carrier:
    """Plain DDP: gloo's all-reduce over TCP."""
    if recorder is not None:
        # What DDP does by itself, as a hook, so that it can be timed.
        model.register_comm_hook(None, timed(default_hooks.allreduce_hook, recorder))
    return Carrier(optimizer, nullcontext)


def carry_gloo_fp16(
    model: DistributedDataParallel, optimizer: Optimizer, options: argparse.Namespace, recorder: Recorder | None
) -> Carrier:
    """gloo's all-reduce over TCP, of gradients rounded to 16 bits: half the bytes."""
    hook = default_hooks.fp16_compress_hook
    model.register_comm_hook(None, hook if recorder is None else timed(hook, recorder))
    return Carrier(optimizer, nullcontext)


def carry_powersgd(
    model: DistributedDataParallel, optimizer: Optimizer, options: argparse.Namespace, recorder: Recorder | None
) -> Carrier:
    """torch's low-rank compression, over gloo."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

    state = powersgd.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=10)
    hook = powersgd.powerSGD_hook
    model.register_comm_hook(state, hook if recorder is None else timed(hook, recorder))
    return Carrier(optimizer, nullcontext)


def carry_postlocalsgd(
    model: DistributedDataParallel, optimizer: Optimizer, options: argparse.Namespace, recorder: Recorder | None
) -> Carrier:
    """torch's local SGD, over gloo: after a warm-up ranks average parameters every few steps instead of gradients."""
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    with warnings.catch_warnings():
        # This package of torch scripts some optimizers as it is imported, which torch itself warns of.
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import PostLocalSGDOptimizer

    warm_up = 20
    # A group of one: gradients stay local after the warm-up, which is what makes the averaging worth while.
    alone = dist.new_subgroups(group_size=1)[0]
    hook = post_localSGD_hook if recorder is None else timed(post_localSGD_hook, recorder)
    model.register_comm_hook(PostLocalSGDState(None, alone, start_localSGD_iter=warm_up), hook)
    wrapped = PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(LOCAL_SGD_PERIOD, warm_up))
    return Carrier(wrapped, nullcontext, replicas_differ=True)


def carry_ds_sync(
    model: DistributedDataParallel, optimizer: Optimizer, options: argparse.Namespace, recorder: Recorder | None
) -> Carrier:
    """Parameters averaged in small groups that change every round, over gloo or DLCP; the last two lines are all it takes."""
    schedule = make_schedule(
        options.schedule,
        dist.get_world_size(),
        group=options.group,
        topology=Topology.from_toml(options.topology) if options.topology else None,
        model_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
    )
    averager = DivideShuffleAverager(
        model,
        schedule,
        backend=options.comm,
        every=options.every,
        overlap=options.overlap,
        policy=Policy.from_toml(options.policy) if options.policy else None,
        host=options.host,
        faults=options.faults,
    )
    return Carrier(DivideShuffleOptimizer(optimizer, averager), lambda: averager, averager=averager, replicas_differ=True)


CARRIERS = {
    "gloo": carry_gloo,
    "gloo-fp16": carry_gloo_fp16,
    "dlcp": carry_dlcp,
    "pipelined": carry_pipelined,
    "powersgd": carry_powersgd,
    "postlocalsgd": carry_postlocalsgd,
}
OVER_DLCP = ("dlcp", "pipelined")
