"""Tensors as numpy arrays, and results on their way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dlcp.errors import ConfigError

ELEMENTS: Final = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.int16: "int16",
    torch.uint16: "uint16",
    torch.int32: "int32",
    torch.uint32: "uint32",
    torch.int64: "int64",
    torch.uint64: "uint64",
    torch.bool: "bool",
}
"""Elements that can be reduced, by their names in :mod:`dlcp.collectives.arithmetic`."""

Bytes = NDArray[np.uint8]


def check_tensor(tensor: Tensor, call: str) -> None:
    """Refuses what the process group cannot carry.

    Raises:
        TypeError: Not a dense tensor in host memory.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"dlcp: {call} takes tensors, not {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise TypeError(f"dlcp: {call} of a tensor of layout {tensor.layout} is not supported: make it dense")
    if tensor.device.type != "cpu":
        raise TypeError(f"dlcp: {call} of a tensor on {tensor.device} is not supported: the backend carries tensors on the cpu")


def source_bytes(tensor: Tensor, call: str) -> Bytes:
    """Returns a tensor's elements in their logical order: its own memory if they lie there like that, a copy otherwise."""
    check_tensor(tensor, call)
    # A conjugate or negative view has other bytes in memory than it shows.
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    result: Bytes = plain.reshape(-1).view(torch.uint8).numpy()
    return result


def target_bytes(tensor: Tensor, call: str) -> tuple[Bytes, Callable[[], None] | None]:
    """Returns where a tensor's elements are to be written, and what must be called afterwards, if anything."""
    check_tensor(tensor, call)
    plain = tensor.detach()
    if plain.is_contiguous() and not (plain.is_conj() or plain.is_neg()):
        return plain.reshape(-1).view(torch.uint8).numpy(), None
    copy = torch.empty(plain.shape, dtype=plain.dtype)

    def put_back() -> None:
        plain.copy_(copy)

    return copy.view(-1).view(torch.uint8).numpy(), put_back


def operand_of(data: Bytes, tensor: Tensor, call: str) -> tuple[NDArray[Any], str]:
    """Returns the bytes of a tensor as numbers, and what numbers they are.

    Raises:
        TypeError: Such elements cannot be reduced.
    """
    element = ELEMENTS.get(tensor.dtype)
    if element is None:
        raise TypeError(f"dlcp: {call} of {tensor.dtype} is not supported; {', '.join(ELEMENTS.values())} are")
    return data.view("uint16" if element == "bfloat16" else element), element


def unsupported(call: str, why: str) -> NotImplementedError:
    """Returns the error for a call that the backend does not have."""
    return NotImplementedError(f"dlcp: {call} is not supported by this backend: {why}")


def setting_error(name: str, problem: str, accepted: str) -> ConfigError:
    """Returns the error for a wrong option or environment variable."""
    return ConfigError("dlcp process group", name, problem, accepted)
