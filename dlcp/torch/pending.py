"""Gradients that are still on their way, and the tensors that stand in for them.

Between the end of a backward pass and the next use of a parameter its averaged gradient may not have arrived.  Whoever looks at
``parameter.grad`` in that time (clipping, a gradient scaler, a logger) must not see what happens to lie in the buffer, so the
attribute holds a stand-in that waits as soon as its values are needed, and then becomes the ordinary tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Settings = list[dict[str, Any]]
"""Hyperparameters of each parameter group, without its parameters, as they were when ``step()`` was called."""


@dataclass(slots=True, eq=False)
class Part:
    """Some parameters of a bucket, whose gradients travel together.

    Attributes:
        parameters: The parameters.
        views: Their gradients, in DDP's own buffer, which the transport writes into.
        future: Done when the averages lie in ``views``.
        enrolled: Parameters that ``step()`` is to update, with the position of their group.
        settings: Hyperparameters for that update; None before ``step()``.
        done: The averages have arrived, and the update, if there is to be one, has been made.
    """

    parameters: Sequence[Tensor]
    views: Sequence[Tensor]
    future: torch.futures.Future[Tensor]
    enrolled: list[tuple[int, Tensor]] = field(default_factory=list)
    settings: Settings | None = None
    done: bool = False


def _getters(*names: str) -> set[Any]:
    # Some of them come and go with torch's version.
    return {getattr(Tensor, name).__get__ for name in names if hasattr(Tensor, name)}


# What is known of a tensor without its values.
_METADATA = _getters(
    *("shape", "dtype", "device", "layout", "ndim", "requires_grad", "grad", "grad_fn", "is_leaf", "itemsize", "nbytes"),
    *("is_sparse", "is_sparse_csr", "is_quantized", "is_cuda", "is_cpu", "is_meta", "is_mkldnn", "is_xpu", "is_nested"),
) | {
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.nelement, Tensor.stride, Tensor.is_contiguous, Tensor.element_size),
    *(Tensor.is_floating_point, Tensor.is_complex, Tensor.__len__, Tensor.storage_offset, Tensor.__hash__, Tensor.get_device),
    *(Tensor.is_coalesced, Tensor.ndimension, torch.is_floating_point, torch.is_complex, torch.numel),
}


class PendingGradient(Tensor):
    """Stands in for a gradient that may not have arrived."""

    _part: Part
    _tensor: Tensor
    _settle: Callable[[Part], None]

    @staticmethod
    def of(tensor: Tensor, part: Part, settle: Callable[[Part], None]) -> PendingGradient:
        """Makes one.

        Args:
            tensor: What it stands for, and shares its memory with.
            part: What it travels with.
            settle: Waits for a part, and makes its update if that is due.
        """
        made: PendingGradient = Tensor._make_subclass(PendingGradient, tensor)
        made._part, made._tensor, made._settle = part, tensor, settle
        return made

    @property
    def tensor(self) -> Tensor:
        """What it stands for."""
        return self._tensor

    @property
    def part(self) -> Part:
        """What it travels with."""
        return self._part

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Waits, unless only shape, dtype and the like are asked for; then lets the ordinary tensor take over."""
        kwargs = kwargs or {}
        if func not in _METADATA:
            args, kwargs = _arrived(args), _arrived(kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


def _arrived(value: Any) -> Any:
    """Replaces stand-ins by what they stand for, inside lists, tuples and dicts too."""
    if isinstance(value, PendingGradient):
        if not value._part.done:
            value._settle(value._part)
        return value._tensor
    if isinstance(value, dict):
        return {key: _arrived(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_arrived(item) for item in value)
    return value


__all__ = ["Part", "PendingGradient", "Settings"]
