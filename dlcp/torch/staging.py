"""Host copies of buckets: what the transport sends, and where it writes the result.

A contribution is always a copy.  It holds gradient plus residual in at least float32, it must stay unchanged until the last
retransmission, and what of it is lost is taken from it afterwards; the bucket itself receives the result.

Buckets in the memory of a GPU are copied to pinned host memory and back on a stream of their own, and a thread waits for the
first copy, so that the thread that runs the backward pass never waits for the device.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dlcp.collectives.ranges import add_ranges, indices
from dlcp.collectives.residual import ResidualStore
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
        ready: Waits until ``contribution`` and ``tags`` are filled.
    """

    buffer: Tensor
    contribution: NDArray[Any]
    result: NDArray[Any]
    tags: NDArray[np.uint8]
    lent: list[Tensor]
    ready: Callable[[], None]


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


class Stage(Protocol):
    """How buckets of one device get to the host and back."""

    pool: BufferPool

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

    def launch(self, start: Callable[[], None]) -> None:
        """Calls ``start``, which may wait for :attr:`Staged.ready` and raises nothing; one by one in the order given."""

    def future(self) -> torch.futures.Future[Tensor]:
        """Returns a future for the device."""

    def deliver(self, staged: Staged, future: torch.futures.Future[Tensor]) -> None:
        """Puts the result into the bucket, completes the future and takes the buffers back.  From any thread."""

    def release(self, staged: Staged) -> None:
        """Takes the buffers back without a result."""

    def close(self) -> None:
        """Ends what runs in the background."""


def _work_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


class HostStage:
    """Buckets that are in host memory already."""

    def __init__(self) -> None:
        self.pool = BufferPool()

    def load(self, buffer: Tensor, layout: BucketLayout, residuals: ResidualStore, skip_zero: bool, tagger: Tagger) -> Staged:
        dtype = _work_dtype(buffer.dtype)
        work, owner = self.pool.take(layout.elements, dtype)
        lent = [owner]
        work.copy_(buffer)
        contribution = work.numpy()
        owing = _owing(layout, residuals)
        if skip_zero:
            owing = [i for i in owing if not _all_zero(contribution[layout.edges[i] : layout.edges[i + 1]])]
        add_ranges(contribution, *residuals.take_parts(layout.names, layout.edges, owing))
        tags = tagger(work).numpy()
        if buffer.dtype == dtype:
            result = buffer.detach().numpy()
        else:
            wide, owner = self.pool.take(layout.elements, dtype)
            lent.append(owner)
            result = wide.numpy()
        return Staged(buffer, contribution, result, tags, lent, _nothing)

    def launch(self, start: Callable[[], None]) -> None:
        start()

    def future(self) -> torch.futures.Future[Tensor]:
        return torch.futures.Future()

    def deliver(self, staged: Staged, future: torch.futures.Future[Tensor]) -> None:
        if len(staged.lent) > 1:
            staged.buffer.copy_(torch.from_numpy(staged.result))
        self.release(staged)
        future.set_result(staged.buffer)

    def release(self, staged: Staged) -> None:
        self.pool.give(staged.lent)

    def close(self) -> None:
        pass


class Streams(Protocol):
    """What :class:`DeviceStage` needs of a device; the seam at which tests stand in for one."""

    pinned: bool

    def aside(self) -> AbstractContextManager[Any]:
        """Enters the stream for copies."""

    def follow(self) -> None:
        """Lets the copy stream wait for what the current stream holds now."""

    def hold(self, tensor: Tensor) -> None:
        """Keeps a tensor's memory from being used again before the copy stream is through with it."""

    def mark(self) -> Callable[[], None]:
        """Returns what waits, on the host, for all that the copy stream holds now."""

    def future(self) -> torch.futures.Future[Tensor]:
        """Returns a future that hands the copy stream's order on to whoever waits for it."""


class CudaStreams:
    """A CUDA device.

    Args:
        device: Which.
    """

    pinned = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def aside(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream)

    def follow(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def hold(self, tensor: Tensor) -> None:
        tensor.record_stream(self._stream)

    def mark(self) -> Callable[[], None]:
        # A blocking event sleeps instead of spinning on a core that the transport needs.
        event = torch.cuda.Event(blocking=True)
        event.record(self._stream)
        return event.synchronize

    def future(self) -> torch.futures.Future[Tensor]:
        return torch.futures.Future(devices=[self._device])


class DeviceStage:
    """Buckets in the memory of a device with streams.

    Args:
        streams: The device.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self.pool = BufferPool(streams.pinned)
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def load(self, buffer: Tensor, layout: BucketLayout, residuals: ResidualStore, skip_zero: bool, tagger: Tagger) -> Staged:
        dtype = _work_dtype(buffer.dtype)
        work = buffer.detach().to(dtype, copy=True)
        self._add_residuals(work, layout, residuals, skip_zero)
        tags = tagger(work)
        contribution, first = self.pool.take(layout.elements, dtype)
        host_tags, second = self.pool.take(tags.numel(), torch.uint8)
        result, third = self.pool.take(layout.elements, dtype)
        self._streams.follow()
        with self._streams.aside():
            contribution.copy_(work, non_blocking=True)
            host_tags.copy_(tags, non_blocking=True)
        self._streams.hold(work)
        self._streams.hold(tags)
        lent = [first, second, third]
        return Staged(buffer, contribution.numpy(), result.numpy(), host_tags.numpy(), lent, self._streams.mark())

    def _add_residuals(self, work: Tensor, layout: BucketLayout, residuals: ResidualStore, skip_zero: bool) -> None:
        owing = _owing(layout, residuals)
        if skip_zero and owing:
            used = [work[layout.edges[i] : layout.edges[i + 1]].any() for i in owing]
            owing = [i for i, some in zip(owing, torch.stack(used).tolist(), strict=True) if some]
        ranges, values = residuals.take_parts(layout.names, layout.edges, owing)
        if values.size:
            index = torch.from_numpy(indices(ranges)).to(work.device)
            # No element is listed twice, so that this does add.
            work[index] += torch.from_numpy(values).to(work.device, work.dtype)

    def launch(self, start: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dlcp-staging", daemon=True)
            self._thread.start()
        self._queue.put(start)

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            task()
            del task  # what it refers to is not kept alive until the next one comes

    def future(self) -> torch.futures.Future[Tensor]:
        return self._streams.future()

    def deliver(self, staged: Staged, future: torch.futures.Future[Tensor]) -> None:
        with self._streams.aside():
            staged.buffer.copy_(torch.from_numpy(staged.result), non_blocking=True)
            self._streams.hold(staged.buffer)
            # The future notes the current stream: whoever waits for it waits for the copy.
            future.set_result(staged.buffer)
            copied = self._streams.mark()

        def release() -> None:
            copied()
            self.release(staged)

        self.launch(release)  # pinned buffers go back when the copy has read them: the next reduction would overwrite them

    def release(self, staged: Staged) -> None:
        self.pool.give(staged.lent)

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None


def stage_for(device: torch.device) -> Stage:
    """Returns the stage for a device.

    Raises:
        ValueError: Neither host nor CUDA memory.
    """
    if device.type == "cpu":
        return HostStage()
    if device.type == "cuda":
        return DeviceStage(CudaStreams(device))
    raise ValueError(f"gradients on {device}; the host (cpu) and CUDA devices are supported")


def _owing(layout: BucketLayout, residuals: ResidualStore) -> list[int]:
    return [i for i, name in enumerate(layout.names) if name in residuals] if len(residuals) else []


def _all_zero(part: NDArray[Any]) -> bool:
    # A look at the front answers for nearly every gradient that is in use.
    return not part[:64].any() and not part.any()


def _nothing() -> None:
    pass
