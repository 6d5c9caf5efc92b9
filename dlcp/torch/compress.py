"""Half-precision wrappers around a hook.

They fit where torch's own wrappers of the same names fit, and those fit around :func:`dlcp.torch.dlcp_hook` as well.  Two things
are done otherwise here: a finite gradient stays finite (torch's cast turns 70,000 into infinity in float16, and one such element
makes all replicas skip or diverge), and the result comes back in the bucket's own buffer and dtype (torch's hands DDP the
half-precision tensor, which DDP happens to accept).

Rounding gradients is one thing, sending fewer bytes another: over DLCP the bytes on the wire follow the policy's ``wire.dtype``.
The wrappers say so, once, if it is wider than what they round to.
"""

# No "from __future__ import annotations": DDP compares the annotations of the wrapped hooks with types.

import warnings
from typing import Any

import torch

from dlcp.torch.c10d import GradBucket, Hook
from dlcp.torch.state import DLCPState


def fp16_compress_wrapper(hook: Hook) -> Hook:
    """Returns a hook that rounds gradients to float16, saturating, calls ``hook``, and casts its result back."""
    return _compress(hook, torch.float16)


def bf16_compress_wrapper(hook: Hook) -> Hook:
    """Returns a hook that rounds gradients to bfloat16, calls ``hook``, and casts its result back."""
    return _compress(hook, torch.bfloat16)


def _compress(hook: Hook, dtype: torch.dtype) -> Hook:
    name = str(dtype).removeprefix("torch.")
    told = False

    def compress_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        nonlocal told
        if not told:
            told = True
            if isinstance(state, DLCPState) and state.communicator.policy.wire.dtype == "float32":
                warnings.warn(f'gradients are rounded to {name} but sent as float32: set wire.dtype = "{name}"', stacklevel=2)
        original = bucket.buffer()
        bucket.set_buffer(round_to(original, dtype))

        def decompress(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            original.copy_(future.value())
            return original

        result: torch.futures.Future[torch.Tensor] = hook(state, bucket).then(decompress)
        return result

    compress_hook.__name__ = f"{name}_compress_{getattr(hook, '__name__', 'hook')}"
    return compress_hook


def round_to(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Casts a tensor to a narrower floating dtype; what is finite stays finite, what is not stays as it is.

    Args:
        tensor: Floating, any shape.
        dtype: float16 or bfloat16.

    Returns:
        A new tensor.
    """
    cast = tensor.to(dtype)
    if cast.isfinite().all():
        return cast
    limit = torch.finfo(dtype).max
    return torch.where(tensor.isfinite(), tensor.clamp(-limit, limit), tensor).to(dtype)
