"""What the calls of the process group return."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from dlcp.collectives.operation import Operation
from dlcp.torch.delivery import Delivery


class DLCPWork(dist.Work):
    """One call, which may be several operations.

    Args:
        operations: All that must end.
        tensors: What the future holds: the results, in torch's order.
        delivery: Completes the future.
        finish: Called once when all have ended well, before anybody learns of it: copies results to where they belong.
        source: Tells the sender, for a receive from any rank.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        tensors: Sequence[Tensor],
        delivery: Delivery,
        *,
        finish: Callable[[], None] | None = None,
        source: Callable[[], int] | None = None,
    ) -> None:
        super().__init__()
        self._operations = tuple(operations)
        self._tensors = list(tensors)
        self._delivery = delivery
        self._finish = finish
        self._source = source
        self._lock = threading.Lock()
        self._future: torch.futures.Future[list[Tensor]] | None = None

    @classmethod
    def joined(cls, works: Sequence[DLCPWork], delivery: Delivery) -> DLCPWork:
        """Makes one call of several."""

        def finish() -> None:
            for work in works:
                work._finish_once()

        operations = [operation for work in works for operation in work._operations]
        return cls(operations, [tensor for work in works for tensor in work._tensors], delivery, finish=finish)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits for the end.

        Args:
            timeout: None or zero: the group's own timeout ends every call.

        Raises:
            DLCPError: What ended the call; OperationTimeoutError also if ``timeout`` is over, and the call then goes on.
        """
        limit = timeout.total_seconds() if timeout else 0.0
        end = time.monotonic() + limit
        for operation in self._operations:
            operation.wait(max(end - time.monotonic(), 0.0) if limit > 0 else None)
        self._finish_once()
        return True

    def synchronize(self) -> None:
        """The same as :meth:`wait`: the host is the device."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the call has ended, well or not."""
        if not all(operation.done() for operation in self._operations):
            return False
        if self.is_success():
            self._finish_once()
        return True

    def is_success(self) -> bool:
        """Whether the call has ended well."""
        return all(operation.done() for operation in self._operations) and self.exception() is None

    def exception(self) -> BaseException | None:
        """Returns what ended the call, or None."""
        return next((error for operation in self._operations if (error := operation.exception()) is not None), None)

    def result(self) -> list[Tensor]:
        """Returns the tensors of the result, once the call has ended."""
        self.wait()
        return self._tensors

    def source_rank(self) -> int:
        """Returns the rank within the group from which a receive got its data.

        Raises:
            RuntimeError: This is no receive.
        """
        if self._source is None:
            raise RuntimeError("source_rank is for receives")
        return self._source()

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """Returns a future of the result's tensors; its callbacks may wait for other calls of the group.

        Waiting for it raises ``RuntimeError`` with the name and the words of the error: torch's futures do not keep its type.
        """
        with self._lock:
            if self._future is None:
                self._ended: torch.futures.Future[None] = torch.futures.Future()
                # An exception that is set on a future is a value to C++, and DDP crashes on it; one that a callback raises is
                # an error there too.
                self._future = self._ended.then(self._outcome)
                begin = True
            else:
                begin = False
        if begin:
            self._when_done(0)
        return self._future

    def _when_done(self, index: int) -> None:
        """Goes on with the operation ``index`` when those before it have ended."""
        while index < len(self._operations) and self._operations[index].done():
            index += 1
        if index == len(self._operations):
            self._ended.set_result(None)
            return
        proceed = partial(self._when_done, index + 1)
        self._operations[index].add_done_callback(lambda _: self._delivery.submit(proceed))

    def _outcome(self, ended: object) -> list[Tensor]:
        error = self.exception()
        if error is not None:
            raise error
        self._finish_once()
        return self._tensors

    def _finish_once(self) -> None:
        with self._lock:
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()
