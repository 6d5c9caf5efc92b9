"""DistributedDataParallel without its own synchronization.

A hook keeps the gradients where they are; averages of the parameters take their place.  What DDP does besides is set by its
arguments:

* ``forward_sync_buffers=False`` (``broadcast_buffers=False`` in older versions of torch) is needed for models with buffers: by
  default DDP overwrites the buffers of all ranks with those of the first one before every forward pass, which costs a collective
  of all ranks a step and undoes what ``buffers="average"`` does;
* ``find_unused_parameters=True`` costs a small all-reduce of all ranks a step.  It is not needed for correctness here, since
  the averager takes parameters with and without gradients; train the bare module instead.
"""

# No "from __future__ import annotations": DDP compares the annotations of a hook with types, and would find strings.

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dlcp.errors import ConfigError
from dlcp.torch.c10d import GradBucket

if TYPE_CHECKING:
    from dssync.averager.averager import DivideShuffleAverager


def local_gradients_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook for ``DistributedDataParallel.register_comm_hook`` that leaves gradients as they are.

    Args:
        state: A :class:`~dssync.averager.DivideShuffleAverager`, until whose first round gradients are averaged over all ranks;
            or None, to leave them alone from the beginning.
        bucket: Given by DDP.
    """
    buffer = bucket.buffer()
    if state is not None and state.step < state.warmup_steps and state.world > 1:
        buffer.div_(state.world)
        future: torch.futures.Future[Any] = dist.all_reduce(buffer, group=state.process_group, async_op=True).get_future()
        return future.then(lambda done: done.value()[0])
    local: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    local.set_result(buffer)
    return local


def attach(model: DistributedDataParallel, averager: "DivideShuffleAverager") -> None:
    """Registers the hook.

    Raises:
        ConfigError: DDP would overwrite buffers.
    """
    buffers = any(True for _ in model.module.buffers())
    if model.broadcast_buffers and buffers:
        problem = "True: every forward pass would overwrite buffers with those of the first rank"
        key = "forward_sync_buffers" if hasattr(model, "forward_sync_buffers") else "broadcast_buffers"
        raise ConfigError("DistributedDataParallel", key, problem, "False")
    model.register_comm_hook(averager, local_gradients_hook)


__all__ = ["attach", "local_gradients_hook"]
