"""Where a caller allows a process group to lose packets: gradients, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from dlcp.collectives.communicator import Communicator
from dlcp.collectives.operation import Operation
from dlcp.collectives.residual import ResidualStore
from dlcp.errors import ConfigError
from dlcp.tagging.magnitude import PacketLayout, packet_tags, protect

_MIDDLE_CLASS: Final = 3
_WIDE: Final = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}


class Allowance:
    """Carries all-reduces within the policy's loss bound.

    Args:
        residuals: Keeps what did not arrive until the next time; see :func:`allow_loss`.
    """

    def __init__(self, residuals: ResidualStore) -> None:
        self.residuals = residuals
        self._calls = 0

    def covers(self, tensor: Tensor, op: str) -> bool:
        """Whether an all-reduce of this kind may lose anything at all."""
        return op in ("sum", "mean") and tensor.dtype in _WIDE and tensor.device.type == "cpu" and tensor.numel() > 0

    def allreduce(self, communicator: Communicator, tensor: Tensor, op: str) -> tuple[Operation, Callable[[], None]]:
        """Starts one; the function puts the result in its place, and what is owed into the store."""
        policy = communicator.policy
        # The tensor itself will hold the result, while what is lost must still be read from the contribution.
        flat = tensor.detach().reshape(-1).to(_WIDE[tensor.dtype], copy=True)
        contribution: NDArray[Any] = flat.numpy()
        key = (self._calls, flat.numel())
        self._calls += 1
        conserve = policy.loss.compensation == "error-feedback"
        if conserve:
            self.residuals.add_to(key, contribution)
        layout = PacketLayout([0, flat.numel()], communicator.elements_per_packet(contribution.dtype), policy.protection.sample)
        protected = protect(layout.scores(flat), policy.protection.share)
        classes = torch.full((layout.packets,), _MIDDLE_CLASS, dtype=torch.uint8)
        tags: NDArray[np.uint8] = packet_tags(classes, protected).numpy()
        operation = communicator.allreduce_async(contribution, op="mean" if op == "mean" else "sum", tags=tags)

        def finish() -> None:
            reduction = operation.result()
            tensor.detach().copy_(torch.from_numpy(reduction.output).view(tensor.shape))
            if conserve and len(reduction.lost):
                self.residuals.record_values(key, flat.numel(), reduction.lost, reduction.residual)

        return operation, finish


@contextmanager
def allow_loss(group: dist.ProcessGroup | None = None, *, residuals: ResidualStore | None = None) -> Iterator[ResidualStore]:
    """Allows all-reduces of floating-point tensors, sums and means, to lose packets within the policy's bound.

    What is lost of a contribution is kept, and added to the same all-reduce of the next context that is given the same store:
    they are known by their order and size.  So the store belongs to a loop in which each turn makes the same calls::

        residuals = ResidualStore()
        for batch in batches:
            loss(batch).backward()
            with dlcp.torch.allow_loss(residuals=residuals):
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)

    All ranks must allow it for the same calls.  Everything else, in or outside the context, is reliable.

    Args:
        group: Of the backend ``dlcp``; None for the default group.
        residuals: None for a new one: then what is lost is not added to anything, unless it is passed on.

    Yields:
        The store.

    Raises:
        TypeError: The group is of another backend.
        ConfigError: The policy also allows results to be lost, so that replicas would drift apart.
        RuntimeError: Loss is allowed already.
    """
    from dlcp.torch.process_group import ProcessGroupDLCP  # its module needs this one

    chosen = group if group is not None else dist.group.WORLD
    if not isinstance(chosen, ProcessGroupDLCP):
        raise TypeError(f"loss can be allowed to a group of the backend dlcp, not to {type(chosen).__name__}")
    if chosen.communicator.policy.loss.pull > 0:
        raise ConfigError("policy", "loss.pull", "replicas drift apart that nobody repairs", "0, or dlcp_hook with DDP")
    if chosen.allowance is not None:
        raise RuntimeError("loss is allowed already")
    store = residuals if residuals is not None else ResidualStore()
    chosen.allowance = Allowance(store)
    try:
        yield store
    finally:
        chosen.allowance = None
