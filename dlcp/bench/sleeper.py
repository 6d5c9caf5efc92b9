"""A model whose layers take time without using the processor."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor, nn

FORWARD_SHARE = 1 / 3
"""Of a step's computation: a backward pass takes about twice as long as a forward pass."""


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, forward_s: float, backward_s: float) -> Tensor:
        context.seconds = backward_s
        time.sleep(forward_s)
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(context.seconds)
        return gradients[0], None, None


class _Layer(nn.Module):
    def __init__(self, width: int, seconds: float) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        forward_s = self.seconds * FORWARD_SHARE
        y: Tensor = torch.tanh(self.linear(x))
        slept: Tensor = _Sleep.apply(y, forward_s, self.seconds - forward_s)  # type: ignore[no-untyped-call]
        return slept


class Sleeper(nn.Module):
    """Equal layers in a row.

    Args:
        layers: How many.
        elements: Parameters in all, about.
        compute_s: Time of a forward and a backward pass together.
    """

    def __init__(self, layers: int, elements: int, compute_s: float) -> None:
        super().__init__()
        self.width = max(1, math.isqrt(elements // layers))
        self.layers = nn.ModuleList(_Layer(self.width, compute_s / layers) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """Runs the layers, one after the other."""
        for layer in self.layers:
            x = layer(x)
        return x


__all__ = ["FORWARD_SHARE", "Sleeper"]
