"""Names of ``torch.distributed`` that torch exports at run time but hides from type checkers."""

# No "from __future__ import annotations" is needed here, and none may stand where hooks are defined: DDP compares the annotations
# of a hook with types, and would find strings.

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket, PrefixStore
else:
    from torch.distributed import GradBucket, PrefixStore

Hook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]
"""A DDP communication hook: of a state and a bucket."""

_REDUCTIONS = (
    (dist.ReduceOp.SUM, "sum"),
    (dist.ReduceOp.AVG, "mean"),
    (dist.ReduceOp.MIN, "min"),
    (dist.ReduceOp.MAX, "max"),
    (dist.ReduceOp.PRODUCT, "product"),
    (dist.ReduceOp.BAND, "and"),
    (dist.ReduceOp.BOR, "or"),
    (dist.ReduceOp.BXOR, "xor"),
)


def reduction_name(options: Any, call: str) -> str:
    """Returns the operator of a call's options, or of a bare ``ReduceOp``, by its name in :mod:`dlcp.collectives.arithmetic`.

    Raises:
        NotImplementedError: There is no such name.
    """
    op = getattr(options, "reduceOp", options)
    for known, name in _REDUCTIONS:
        if op == known:
            return name
    name = "PREMUL_SUM" if op == dist.ReduceOp.PREMUL_SUM else str(op)
    names = ", ".join(str(known).rpartition(".")[2] for known, _ in _REDUCTIONS)
    raise NotImplementedError(f"dlcp: {call} with {name} is not supported by this backend: {names} are")


def root_of(options: Any) -> int:
    """Returns the root of a call's options, or a bare rank."""
    return int(getattr(options, "rootRank", options))


__all__ = ["GradBucket", "Hook", "PrefixStore", "reduction_name", "root_of"]
