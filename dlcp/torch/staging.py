"""Host copies of buckets: what the transport sends, and where it writes the result.

A contribution is always a copy.  It holds gradient plus residual in at least float32, it must stay unchanged until the last
retransmission, and what of it is lost is taken from it afterwards; the bucket itself receives the result.

Gradients are converted, added up with what is owed, and tagged where they lie.  Those in the memory of a GPU are then copied to
pinned host memory, and the results back, on streams of their own; a thread waits for the first copy, so that the thread that runs
the backward pass never waits for the device.  For those on the host the same code runs in that thread, with streams that do
nothing: the copy that is worked on is the contribution.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dlcp.collectives.residual import ResidualStore
from dlcp.torch.debts import Taken, add_later, add_now
from dlcp.torch.devices import Device, device_for, host_array
from dlcp.torch.layout import BucketLayout

Tagger = Callable[[Tensor], Tensor]
"""From a contribution, on its device, to its packets' tags, ``uint8[packets]`` there."""


@dataclass(slots=True)
class Staged:
    """A bucket on its way.

    Attributes:
        buffer: DDP's own tensor, which receives the result.
        contribution: ``float32[n]`` or ``float64[n]`` on the host.
        result: The same; where the reduction is to be written.
        tags: ``uint8[packets]`` on the host.
        lent: Pool buffers to give back.
        ready: Waits until ``contribution``, ``tags`` and ``wanted`` are filled.
        taken: Debts that the device decides about, if there are any.
        wanted: What it decides, on the host.
    """

    buffer: Tensor
    contribution: NDArray[Any]
    result: NDArray[Any]
    tags: NDArray[np.uint8]
    lent: list[Tensor]
    ready: Callable[[], None]
    taken: Taken | None = None
    wanted: NDArray[np.uint8] | None = None

    def give_back(self, residuals: ResidualStore) -> None:
        """Puts debts that were not added back into the store; when all is ready."""
        if self.taken is not None and self.wanted is not None:
            self.taken.give_back(self.wanted, residuals)
            self.taken = None


class BufferPool:
    """Host buffers that are used again from step to step.

    Args:
        pinned: Allocate page-locked memory.
    """

    def __init__(self, pinned: bool = False) -> None:
        self._pinned = pinned
        self._free: list[Tensor] = []
        self._lock = threading.Lock()

    def take(self, elements: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Returns a vector of that size, and the buffer that it lies in, which :meth:`give` wants back."""
        size = elements * dtype.itemsize
        with self._lock:
            fitting = [buffer for buffer in self._free if buffer.numel() >= size]
            chosen = min(fitting, key=Tensor.numel) if fitting else None
            self._free = [buffer for buffer in self._free if buffer is not chosen]
        if chosen is None:
            chosen = torch.empty(max(size, 8), dtype=torch.uint8, pin_memory=self._pinned)
        return chosen[:size].view(dtype), chosen

    def give(self, buffers: list[Tensor]) -> None:
        """Takes buffers back."""
        with self._lock:
            self._free += buffers

    def trim(self, largest: int) -> None:
        """Forgets free buffers of more than ``largest`` bytes: DDP's first bucket holds the whole model, later ones do not."""
        with self._lock:
            self._free = [buffer for buffer in self._free if buffer.numel() <= largest]

    @property
    def free_bytes(self) -> int:
        return sum(buffer.numel() for buffer in self._free)


class Stage:
    """How buckets of one device get to the host and back.

    Args:
        device: Its streams.

    Attributes:
        pool: Host buffers.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self.pool = BufferPool(device.pinned)
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def immediate(self) -> bool:
        """Whether copies are done when the call for them returns."""
        return self._device.immediate

    def load(self, buffer: Tensor, layout: BucketLayout, residuals: ResidualStore, skip_zero: bool, tagger: Tagger) -> Staged:
        """Copies a bucket, adds residuals and tags it.

        Args:
            buffer: Vector that DDP hands over.
            layout: What it holds.
            residuals: Debts, which are taken out.
            skip_zero: Leave the debt of a parameter whose gradient is zero everywhere: it may be unused by all ranks in this
                step, and DDP would then throw away whatever is reduced.
            tagger: Tags contributions.
        """
        dtype = torch.float64 if buffer.dtype == torch.float64 else torch.float32
        lent: list[Tensor] = []

        def borrow(elements: int, kind: torch.dtype) -> Tensor:
            vector, owner = self.pool.take(elements, kind)
            lent.append(owner)
            return vector

        device = self._device
        taken, wanted = None, None
        with device.collecting(buffer):
            if device.immediate:
                work = contribution = borrow(layout.elements, dtype)
                work.copy_(buffer)
                add_now(host_array(work), layout, residuals, skip_zero)
                tags = host_tags = tagger(work)
            else:
                work = buffer.detach().to(dtype, copy=True)
                taken = add_later(work, layout, residuals, skip_zero, device.upload)
                tags = tagger(work)
                contribution, host_tags = borrow(layout.elements, dtype), borrow(tags.numel(), torch.uint8)
                contribution.copy_(work, non_blocking=True)
                host_tags.copy_(tags, non_blocking=True)
                if taken is not None:
                    wanted = borrow(taken.wanted.numel(), torch.uint8)
                    wanted.copy_(taken.wanted, non_blocking=True)
            ready = device.mark()
        straight = device.immediate and buffer.dtype == dtype
        result = buffer.detach() if straight else borrow(layout.elements, dtype)
        return Staged(
            buffer,
            host_array(contribution),
            host_array(result),
            host_array(host_tags),
            lent,
            ready,
            taken,
            host_array(wanted) if wanted is not None else None,
        )

    def launch(self, start: Callable[[], None]) -> None:
        """Calls ``start``, which may wait for :attr:`Staged.ready` and raises nothing; in a thread, in the order given.

        So the backward pass goes on meanwhile, on the host as well: most of its time it is in code that lets other threads run.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dlcp-staging", daemon=True)
            self._thread.start()
        self._queue.put(start)

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            task()
            del task  # what it refers to is not kept alive until the next one comes

    def future(self) -> torch.futures.Future[Tensor]:
        """Returns a future for the device."""
        return self._device.future()

    def deliver(self, staged: Staged, future: torch.futures.Future[Tensor]) -> None:
        """Puts the result into the bucket, completes the future and takes the buffers back.  From any thread."""
        buffer, result = staged.buffer, torch.from_numpy(staged.result)
        if self._device.immediate:
            if result.data_ptr() != buffer.data_ptr():
                buffer.copy_(result)
            self.release(staged)
            future.set_result(buffer)
            return
        with self._device.returning(buffer):
            if result.dtype != buffer.dtype:
                # A copy that converts does so on the host, through memory that is not pinned: it would wait.
                result = result.to(buffer.device, non_blocking=True)
            buffer.copy_(result, non_blocking=True)
            # The future notes the current stream: whoever waits for it waits for the copy.
            future.set_result(buffer)
            copied = self._device.mark()

        def release() -> None:
            copied()
            self.release(staged)

        self.launch(release)  # pinned buffers go back when the copy has read them: the next reduction would overwrite them

    def release(self, staged: Staged) -> None:
        """Takes the buffers back without a result."""
        self.pool.give(staged.lent)

    def close(self) -> None:
        """Ends what runs in the background."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None


def stage_for(device: torch.device) -> Stage:
    """Returns the stage for a device.

    Raises:
        ValueError: Neither host nor CUDA memory.
    """
    return Stage(device_for(device))
