"""Where gradients lie: the streams of a device, and those of the host, which has none.

One code stages buckets wherever they are (:mod:`dlcp.torch.staging`).  What differs is here: on which stream work is queued, what
waits for what, and who waits.  On a CUDA device all of it is queued on two streams beside the one that trains, ordered by events;
the thread that trains never waits for the device, and the device's training never waits for a copy that it does not need.  On the
host everything is done when it is asked for, so that streams and events are nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dlcp.tagging.magnitude import upload


class Device(Protocol):
    """What staging needs of a device.

    Attributes:
        immediate: Gradients lie in host memory, and what is asked for is done at once.
        pinned: Host buffers must be page-locked, for copies that run by themselves.
    """

    immediate: bool
    pinned: bool

    def collecting(self, buffer: Tensor) -> AbstractContextManager[Any]:
        """Enters the stream on which buckets are packed and copied to the host.

        It waits for what the current stream holds now, which is what fills ``buffer``, and keeps its memory from being given to
        others before it is through with it.
        """

    def returning(self, buffer: Tensor) -> AbstractContextManager[Any]:
        """Enters the stream on which results are copied into ``buffer``, in the same way.

        It is another one: a result must not wait behind a bucket whose gradients are still being computed.
        """

    def upload(self, array: NDArray[Any]) -> Tensor:
        """Returns a copy on the device, whose transfer is queued on the current stream; on the host the array itself."""

    def mark(self) -> Callable[[], None]:
        """Returns what waits, on the host, for all that the current stream holds now."""

    def future(self) -> torch.futures.Future[Tensor]:
        """Returns a future whose completion makes whoever waits for it wait for the stream in which it was completed."""


class HostDevice:
    """Host memory."""

    immediate = True
    pinned = False

    def collecting(self, buffer: Tensor) -> AbstractContextManager[Any]:
        return nullcontext()

    def returning(self, buffer: Tensor) -> AbstractContextManager[Any]:
        return nullcontext()

    def upload(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array)

    def mark(self) -> Callable[[], None]:
        return done

    def future(self) -> torch.futures.Future[Tensor]:
        return torch.futures.Future()


class CudaDevice:
    """A CUDA device.

    Args:
        device: Which.
    """

    immediate = False
    pinned = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Packing is short, and the network waits for it: it goes before the kernels of the backward pass.
        self._collecting = torch.cuda.Stream(device, priority=-1)
        self._returning = torch.cuda.Stream(device, priority=-1)

    def collecting(self, buffer: Tensor) -> AbstractContextManager[Any]:
        self._collecting.wait_stream(torch.cuda.current_stream(self._device))
        return self._aside(self._collecting, buffer)

    def returning(self, buffer: Tensor) -> AbstractContextManager[Any]:
        # The bucket was read before its contribution left, which the host has seen; so there is nothing to wait for.
        return self._aside(self._returning, buffer)

    @contextmanager
    def _aside(self, stream: torch.cuda.Stream, buffer: Tensor) -> Iterator[None]:
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            self._hold(buffer, stream)

    def _hold(self, buffer: Tensor, stream: torch.cuda.Stream) -> None:
        buffer.record_stream(stream)

    def upload(self, array: NDArray[Any]) -> Tensor:
        return upload(array, self._device)

    def mark(self) -> Callable[[], None]:
        # A blocking event sleeps instead of spinning on a core that the transport needs.
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(self._device))
        return event.synchronize

    def future(self) -> torch.futures.Future[Tensor]:
        return torch.futures.Future(devices=[self._device])


def device_for(device: torch.device) -> Device:
    """Returns the streams of a device.

    Raises:
        ValueError: Neither host nor CUDA memory.
    """
    if device.type == "cpu":
        return HostDevice()
    if device.type == "cuda":
        return CudaDevice(device)
    raise ValueError(f"gradients on {device}; the host (cpu) and CUDA devices are supported")


def done() -> None:
    """Waits for nothing."""


def host_array(tensor: Tensor) -> NDArray[Any]:
    """Returns a host tensor's memory as an array."""
    array: np.ndarray[Any, Any] = tensor.numpy()
    return array
