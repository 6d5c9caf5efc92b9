"""Replicas made equal again, for policies that let parts of a result go missing on its way back.

A rank that misses part of a result applies another update than the rest.  Such differences are small but add up, so that every
``loss.resync_steps`` steps all ranks take over the parameters of rank 0, reliably.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

_CHUNK_ELEMENTS = 1 << 22


class Resynchronizer:
    """Broadcasts parameters from rank 0 before every so manieth forward pass in training.

    Args:
        model: Its forward passes are counted by what calls :meth:`stepped`, and begin with the broadcast when one is due.
        steps: How many backward passes lie between broadcasts.
        broadcast: Sends ``float32[n]`` or ``float64[n]`` on the host from rank 0 to all, in place.
        passes: Backward passes that lie behind.
    """

    def __init__(self, model: DistributedDataParallel, steps: int, broadcast: Callable[[Tensor], None], passes: int = 0) -> None:
        self._steps = steps
        self._broadcast = broadcast
        self._since = passes % steps
        self._handle = model.register_forward_pre_hook(self._before_forward)

    def stepped(self) -> None:
        """Counts a backward pass."""
        self._since += 1

    def remove(self) -> None:
        """Takes the hook off the model."""
        self._handle.remove()

    def _before_forward(self, model: nn.Module, inputs: Any) -> None:
        # By now the optimizer has used the last gradients, whatever optimizer that is.
        if self._since >= self._steps and model.training and torch.is_grad_enabled():
            self._since = 0
            equalize(list(model.parameters()), self._broadcast)


@torch.no_grad()
def equalize(parameters: list[nn.Parameter], broadcast: Callable[[Tensor], None]) -> None:
    """Overwrites parameters with those of rank 0, in messages of several parameters each.

    Args:
        parameters: The same on all ranks; of any floating dtype and device.
        broadcast: See :class:`Resynchronizer`.
    """
    for dtype in (torch.float32, torch.float64):
        group: list[nn.Parameter] = []
        for parameter in parameters:
            if (parameter.dtype == torch.float64) != (dtype == torch.float64) or not parameter.is_floating_point():
                continue
            if group and sum(p.numel() for p in group) + parameter.numel() > _CHUNK_ELEMENTS:
                _equalize(group, dtype, broadcast)
                group = []
            group.append(parameter)
        if group:
            _equalize(group, dtype, broadcast)


def _equalize(parameters: list[nn.Parameter], dtype: torch.dtype, broadcast: Callable[[Tensor], None]) -> None:
    flat = torch.cat([parameter.detach().reshape(-1).to("cpu", dtype) for parameter in parameters])
    broadcast(flat)
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.copy_(part.view_as(parameter))
