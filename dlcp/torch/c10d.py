"""Names of ``torch.distributed`` that torch exports at run time but hides from type checkers."""

# No "from __future__ import annotations" is needed here, and none may stand where hooks are defined: DDP compares the annotations
# of a hook with types, and would find strings.

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket, PrefixStore
else:
    from torch.distributed import GradBucket, PrefixStore

Hook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]
"""A DDP communication hook: of a state and a bucket."""

__all__ = ["GradBucket", "Hook", "PrefixStore"]
