"""What a caller holds while a collective runs, and what it gets."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlcp.errors import OperationTimeoutError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reduction:
    """Result of a collective.

    Attributes:
        output: The reduced array, in the shape of the input.
        lost: ``int64[k, 2]``, element ranges ``[start, stop)`` of the flat array that did not arrive anywhere, ascending and
            disjoint: this rank's own contribution, or in a ring the partial sums it sent.
        residual: What those ranges held when they were sent, one after another, in the dtype of the array: mass that has reached
            nobody.  Added to the same elements of the next contribution (:class:`~dlcp.collectives.residual.ResidualStore` does
            that) nothing is lost for good: over all ranks, contributions = sum of the result + residuals, exactly as far as the
            additions are, up to the rounding of a 16-bit wire type.  It is filled in whatever the policy's compensation is;
            under ``zero`` and ``rescale`` it must not be added, for there what is lost is forgotten, or made up for already.
    """

    output: NDArray[Any]
    lost: NDArray[np.int64]
    residual: NDArray[Any]


class Operation:
    """A collective in progress; all methods may be called from any thread.

    Args:
        description: What it is, in words.
        size: Bytes of the array that it is about.
    """

    def __init__(self, description: str, size: int = 0) -> None:
        self.description = description
        self.size = size
        self._finished = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Operation], None]] = []
        self._result: Reduction | None = None
        self._error: BaseException | None = None
        self._thread: int | None = None

    def runs_in(self, thread: int) -> None:
        """Says which thread will end it: that one must not wait for it."""
        self._thread = thread

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._finished.is_set()

    def wait(self, timeout: float | None = None) -> Reduction:
        """Waits for the end.

        Args:
            timeout: Seconds; None relies on the policy's own timeouts, which end every operation.

        Raises:
            DLCPError: Whatever ended the operation.
            OperationTimeoutError: ``timeout`` is over; the operation goes on.
            RuntimeError: Called from a callback, and the operation has not ended: it would wait for itself.
        """
        if self._thread == threading.get_ident() and not self._finished.is_set():
            raise RuntimeError(f"a callback waits for {self.description}, which cannot go on meanwhile")
        if not self._finished.wait(timeout):
            raise OperationTimeoutError(f"{self.description} has not finished within {timeout} s")
        return self.result()

    def result(self) -> Reduction:
        """Returns the result of an ended operation, or raises what ended it."""
        if self._error is not None:
            # Every operation of a failed communicator raises the same object: it must not gather the frames of all its callers,
            # and with them their arrays.
            raise self._error.with_traceback(None)
        if self._result is None:
            raise RuntimeError(f"{self.description} has not ended")
        return self._result

    def exception(self) -> BaseException | None:
        """Returns what ended it, or None if it ended well or has not ended."""
        return self._error

    def add_done_callback(self, function: Callable[[Operation], None]) -> None:
        """Calls ``function(self)`` at the end, in the I/O thread, or now if it has ended; it must not block.

        What it raises is logged.
        """
        with self._lock:
            if not self._finished.is_set():
                self._callbacks.append(function)
                return
        self._call(function)

    def finish(self, result: Reduction | None, error: BaseException | None = None) -> None:
        """Ends the operation; a second end is ignored."""
        with self._lock:
            if self._finished.is_set():
                return
            self._result, self._error = result, error
            self._finished.set()
            callbacks, self._callbacks = self._callbacks, []
        for function in callbacks:
            self._call(function)

    def _call(self, function: Callable[[Operation], None]) -> None:
        try:
            function(self)
        except Exception:
            # In the I/O thread it would take the transport down for everybody.
            _log.exception("a callback of %s failed", self.description)
