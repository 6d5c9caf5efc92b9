"""The communication hook itself."""

# No "from __future__ import annotations" here: DDP compares the hook's annotations with types, and strings are none.

from typing import Any

import torch

from dlcp.torch.c10d import GradBucket
from dlcp.torch.state import DLCPState


def dlcp_hook(state: DLCPState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket over all ranks of the state's communicator.

    ``model.register_comm_hook(state, dlcp_hook)`` does; ``state.attach(model)`` does the same and learns more about the model.

    Args:
        state: One for each model.
        bucket: DDP's bucket: a dense vector of float32, float64, float16 or bfloat16, the same on all ranks.  Half precision is
            added up in float32; what travels is the policy's ``wire.dtype``.

    Returns:
        A future of the bucket's buffer.

    Raises:
        DLCPError: The bucket cannot be reduced, or the transport has failed: here with the next bucket, or at the end of the
            backward pass.
        TypeError: ``state`` is something else.
    """
    return _checked(state).reducer.reduce(bucket)


def _checked(state: Any) -> DLCPState:
    if not isinstance(state, DLCPState):
        raise TypeError(f"dlcp_hook needs a DLCPState, not a {type(state).__name__}: register_comm_hook(state, dlcp_hook)")
    return state
