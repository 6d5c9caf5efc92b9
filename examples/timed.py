"""Communication hooks whose buckets are timed."""

# No "from __future__ import annotations": DDP compares the annotations of a hook with types.

import time
from collections.abc import Callable
from typing import Any

import torch

from dlcp.torch.c10d import GradBucket
from examples.recorder import Recorder

Hook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]


def timed(hook: Hook, recorder: Recorder) -> Hook:
    """Returns a hook that does the same, and notes when each bucket's reduction begins and ends."""

    def timed_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        index, size, begin = bucket.index(), buffer.numel() * buffer.element_size(), time.monotonic()

        def ended(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            recorder.bucket(index, size, begin, time.monotonic())
            return future.value()

        return hook(state, bucket).then(ended)

    return timed_hook
