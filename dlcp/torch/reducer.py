"""Buckets under way: from DDP's hook to the communicator and back.

Theory of operation.  DDP calls the hook once for each bucket of a backward pass, in the order of the buckets, from the thread
that runs that pass.  The hook starts a reduction and returns a future; the communicator's I/O thread completes it.

* *Errors.*  A future can carry a tensor to DDP, but not an exception: its type is lost on the way.  So nobody relies on that:
  with the last bucket the reducer asks autograd to call it back at the end of the pass, before DDP itself waits for the futures.
  There it waits for all reductions and raises the first error as it is, out of ``loss.backward()``.
* *Undo.*  Residuals are taken out and recorded while a pass runs.  If the pass fails they are put back to where they were before
  it, which is where the parameters are, too.
* *Memory.*  A contribution is a copy, and ``max_in_flight`` bounds how many there are; a further bucket waits in the hook.  Where
  gradients lie on a GPU nothing is bounded unless asked for: a hook that waits launches no kernels, and the GPU would idle.

:class:`~dlcp.torch.pipeline.PipelinedOptimizer` cuts buckets into parts and does not wait at the end of the pass; it uses
:meth:`Reducer.begin`, :meth:`Reducer.launch`, :meth:`Reducer.await_landing` and :meth:`Reducer.finish` by itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from dlcp.collectives.communicator import Communicator
from dlcp.collectives.operation import Operation, Reduction
from dlcp.collectives.residual import ResidualStore
from dlcp.errors import DLCPError, RemoteError
from dlcp.torch.adaptive import Adaptation
from dlcp.torch.c10d import GradBucket
from dlcp.torch.layout import BucketLayout, LayerClasses, ParameterNames
from dlcp.torch.staging import Stage, Staged, stage_for

HOST_IN_FLIGHT: Final = 2
"""Buckets that may be under way at once on the host whatever they hold: one that travels and one that is being packed."""
HOST_IN_FLIGHT_BYTES: Final = 64 << 20
"""More may be under way as long as they hold no more than this: a hook that waits keeps the backward pass from going on."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Flight:
    """One bucket under way."""

    layout: BucketLayout
    stage: Stage
    future: torch.futures.Future[Tensor]
    nbytes: int
    number: int
    staged: Staged | None = None


class Reducer:
    """Reduces the buckets of one model over one communicator.

    Args:
        communicator: Carries the gradients.
        residuals: What is owed.
        names: Names of the parameters.
        classes: Their classes.
        max_in_flight: Buckets that may be under way at once; None: on the host two, or 64 MiB if those are more, elsewhere any
            number.
        began: Called at the start of each pass.
        ended: Called at the end of each pass that went well.
        adaptation: Decides how much of a contribution may be missing; None leaves it to the policy.

    Attributes:
        error: What ended the work, or None.
        may_skip: Whether a parameter whose gradient is zero everywhere may be one that no rank has used.
        counts: Buckets, elements and packets so far, and the seconds spent in the hook.
    """

    def __init__(
        self,
        communicator: Communicator,
        residuals: ResidualStore,
        names: ParameterNames,
        classes: LayerClasses,
        *,
        max_in_flight: int | None,
        began: Callable[[], None],
        ended: Callable[[], None],
        adaptation: Adaptation | None = None,
    ) -> None:
        self.communicator = communicator
        self.error: BaseException | None = None
        self.may_skip = True
        self.counts: dict[str, Any] = {
            "buckets": 0,
            "elements": 0,
            "packets": 0,
            "protected_packets": 0,
            "lost_elements": 0,
            "lost_l1": 0.0,
            "seconds": 0.0,
        }
        self._residuals = residuals
        self._names = names
        self._classes = classes
        self._max_in_flight = max_in_flight
        self._began = began
        self._ended = ended
        self._adaptation = adaptation
        # Reentrant: a reduction that has ended already calls back from within the hook.
        self._changed = threading.Condition(threading.RLock())
        self._in_flight = 0
        self._bytes_in_flight = 0
        self._launched = 0
        self._before_pass = residuals.snapshot()
        self._layouts: dict[tuple[int, ...], BucketLayout] = {}
        self._stages: dict[torch.device, Stage] = {}
        self._largest = 0

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Starts the reduction of a bucket.

        Returns:
            A future of the bucket's own buffer, holding the mean over all ranks.

        Raises:
            DLCPError: The bucket cannot be reduced, or an earlier reduction has failed.  All ranks are told.
        """
        self.check()
        begin = time.perf_counter()
        try:
            return self._reduce(bucket)
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            self.counts["seconds"] += time.perf_counter() - begin

    def check(self) -> None:
        """Raises what has ended the work, if anything has."""
        if self.error is not None:
            raise self.error

    def fail(self, error: BaseException) -> None:
        """Ends the work on all ranks, unless it has ended."""
        with self._changed:
            if self.error is not None:
                return
            self.error = error
            self._residuals.restore(self._before_pass)
            if self._adaptation is not None:
                self._adaptation.meter.drop_pass()
            self._changed.notify_all()
        if isinstance(error, RemoteError):
            return  # the others have been told by the rank that failed
        try:
            self.communicator.abort(f"{type(error).__name__}: {error}")
        except DLCPError as also:
            _log.debug("abort after %r: %r", error, also)

    def close(self) -> None:
        """Ends background threads."""
        for stage in self._stages.values():
            stage.close()

    def begin(self) -> None:
        """Begins a pass; nothing may be under way."""
        with self._changed:
            self._before_pass = self._residuals.snapshot()
            self._largest = 0
            self._launched = 0
        self._began()

    def observe(self, bucket: GradBucket) -> BucketLayout:
        """Takes note of a bucket, and refuses what DDP would accept in silence."""
        layout = self.layout(bucket.parameters())
        layout.check(bucket.buffer())
        self._classes.observe(layout, bucket.index() == 0, bucket.is_last())
        return layout

    def launch(
        self, buffer: Tensor, layout: BucketLayout, most: int | None = None, free_bytes: int = 0
    ) -> torch.futures.Future[Tensor]:
        """Starts the reduction of a buffer.

        Args:
            buffer: Vector of the gradients; receives the mean.
            layout: What it holds.
            most: Waits until fewer than so many are under way; None does not wait.
            free_bytes: Nor does it wait as long as all together, this one included, are no more than so many bytes.

        Returns:
            A future of ``buffer``.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    most is None
                    or self._in_flight < most
                    or self._bytes_in_flight + buffer.nbytes <= free_bytes
                    or self.error is not None
                )
            )
            self.check()
            self._in_flight += 1
            self._launched += 1
            self._bytes_in_flight += buffer.nbytes
            number = self._launched
        try:
            stage = self._stage(buffer)
            flight = _Flight(layout, stage, stage.future(), buffer.nbytes, number)
            if not stage.immediate:
                # On the stream that the gradients are computed on.
                flight.staged = self._load(buffer, layout, stage)
        except BaseException:
            self._land(buffer.nbytes)
            raise
        stage.launch(lambda: self._start(flight, buffer))
        return flight.future

    def await_landing(self, future: torch.futures.Future[Tensor]) -> None:
        """Waits for one reduction; raises what has ended the work, if anything has."""
        with self._changed:
            self._changed.wait_for(lambda: future.done() or self.error is not None)
            self.check()
        future.wait()  # for a device: makes the current stream wait for the copy

    def finish(self) -> None:
        """Waits for all reductions under way and ends the pass; raises the error of any."""
        self._join()

    def _reduce(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        if bucket.index() == 0:  # DDP launches buckets in the order of their index, so this is a new pass
            self.begin()
        layout, buffer, most = self.observe(bucket), bucket.buffer(), self._max_in_flight
        bounded = most is None and self._stage(buffer).immediate
        future = self.launch(buffer, layout, HOST_IN_FLIGHT if bounded else most, HOST_IN_FLIGHT_BYTES if bounded else 0)
        # Without a node that is being evaluated this is called not from within the pass but after it: by DDP with a static graph,
        # which waits for the future at once and so leaves no later moment for an error.
        if torch._C._current_autograd_node() is None:
            self._join(bucket.is_last())
        elif bucket.is_last():
            # DDP queues its own callback, the one that waits for futures, only after it has launched the last bucket.
            torch.autograd.Variable._execution_engine.queue_callback(self._join)
        return future

    def _load(self, buffer: Tensor, layout: BucketLayout, stage: Stage) -> Staged:
        def tag(work: Tensor) -> Tensor:
            width = self.communicator.elements_per_packet(np.dtype(str(work.dtype).removeprefix("torch.")))
            return layout.tags(work, width, self._classes, self.communicator.policy)

        staged = stage.load(buffer, layout, self._residuals, self.may_skip, tag)
        with self._changed:
            if self.error is not None:  # since loading began: what was taken out goes back to where it was, too
                self._residuals.restore(self._before_pass)
        self._largest = max(self._largest, staged.contribution.nbytes)
        return staged

    def _stage(self, buffer: Tensor) -> Stage:
        stage = self._stages.get(buffer.device)
        if stage is None:
            stage = self._stages[buffer.device] = stage_for(buffer.device)
        return stage

    def layout(self, parameters: list[Tensor]) -> BucketLayout:
        """Returns what a buffer of these parameters' gradients holds."""
        key = tuple(map(id, parameters))
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = BucketLayout(parameters, self._names)
        return layout

    def _join(self, end: bool = True) -> None:
        """Waits for all reductions under way; raises the error of any."""
        with self._changed:
            self._changed.wait_for(lambda: self._in_flight == 0)
            self.check()
            if end:  # what fails from now on is no longer this pass
                self._before_pass = self._residuals.snapshot()
        if end:
            for stage in self._stages.values():
                stage.pool.trim(self._largest)
            self._ended()

    # What follows may run in other threads and raises nothing, for there would be nobody to raise to.

    def _start(self, flight: _Flight, buffer: Tensor) -> None:
        try:
            self.check()
            if flight.staged is None:
                flight.staged = self._load(buffer, flight.layout, flight.stage)
            staged = flight.staged
            staged.ready()
            with self._changed:
                if self.error is None:  # otherwise all debts are back where they were
                    staged.give_back(self._residuals)
            self.counts["buckets"] += 1
            self.counts["elements"] += staged.contribution.size
            self.counts["packets"] += staged.tags.size
            self.counts["protected_packets"] += int(np.count_nonzero(staged.tags & 1))
            operation = self.communicator.allreduce_async(
                staged.contribution,
                op="mean",
                tags=staged.tags,
                out=staged.result,
                bound=self._adaptation.control.bound if self._adaptation is not None else None,
                # Within a class, too, the next forward pass needs last what the backward pass brings first.
                order=-flight.number if self.communicator.policy.classes.count > 1 else 0,
            )
        except BaseException as error:
            self._crash(flight, error)
            return
        operation.add_done_callback(lambda ended: self._finish(flight, ended))

    def _finish(self, flight: _Flight, operation: Operation) -> None:
        try:
            reduction = operation.result()
            with self._changed:
                if self.error is None:
                    self._record(flight.layout, reduction)
                    if self._adaptation is not None:
                        self._adaptation.meter.observe(flight.layout.names, reduction.output)
            assert flight.staged is not None
            flight.stage.deliver(flight.staged, flight.future)
        except BaseException as error:
            self._crash(flight, error)
        else:
            self._land(flight.nbytes)

    def _crash(self, flight: _Flight, error: BaseException) -> None:
        try:
            self.fail(error)
            if not flight.future.done():
                # DDP would call this a failed cast, but the end of the pass speaks first.  Wrappers do see it.
                flight.future.set_exception(error)  # type: ignore[arg-type]
        finally:
            self._land(flight.nbytes)

    def _land(self, nbytes: int) -> None:
        with self._changed:
            self._in_flight -= 1
            self._bytes_in_flight -= nbytes
            self._changed.notify_all()

    def _record(self, layout: BucketLayout, reduction: Reduction) -> None:
        if reduction.residual.size == 0:
            return
        self.counts["lost_elements"] += reduction.residual.size
        self.counts["lost_l1"] += float(np.abs(reduction.residual[np.isfinite(reduction.residual)]).sum(dtype=np.float64))
        if self.communicator.policy.loss.compensation == "error-feedback":
            self._residuals.record_parts(layout.names, layout.edges, reduction.lost, reduction.residual)
