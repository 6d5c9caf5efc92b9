"""Gradients of a step, averaged over all ranks; numpy arrays in, numpy arrays out.

Theory of operation.  A step's gradients are there all at once, so that buckets leave in the order in which the next forward pass
needs them.  Each is copied into an array of its own, what is owed is added, its packets are tagged, and its reduction starts
while the next one is being copied.  What is lost is recorded under the names of the leaves and leaves with the next step.  If a
step fails, residuals are put back to where they were before it, which is where the parameters are, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dlcp.collectives.communicator import Communicator
from dlcp.collectives.operation import Operation
from dlcp.collectives.ranges import add_ranges
from dlcp.collectives.residual import ResidualStore, Snapshot
from dlcp.errors import ClosedError, ConfigError, DLCPError, MismatchError, RemoteError
from dlcp.gradients.layout import BUCKET_BYTES, Bucket, GradientLayout, Leaf
from dlcp.gradients.saved import pack, read_file, unpack, write_file

Arrays = Sequence[Any]
"""One for each leaf, in their order: what ``numpy.asarray`` takes, or None for what this rank has not used, which is zeros."""


class ArrayAverager:
    """Averages lists of arrays; the adapters for frameworks bring theirs into this form.

    Every rank makes one, from the same parameters, and then averages as often as the others.

    Args:
        communicator: Carries the gradients; it stays the caller's, who closes it.
        leaves: What is averaged.
        order: Names of the leaves in the order in which a forward pass uses them, which decides their classes; None for the order
            of ``leaves``.
        bucket_bytes: Leaves travel together until they fill so many bytes.
        source: What the leaves belong to, for errors.

    Attributes:
        communicator: The same.
        residuals: What has not arrived yet, by leaf.
        passes: Steps that were averaged, over restarts.
        error: What ended the work, or None.

    Raises:
        ConfigError: Leaves, order or policy do not fit.
        MismatchError: Another rank has other parameters.
    """

    def __init__(
        self,
        communicator: Communicator,
        leaves: Sequence[Leaf],
        *,
        order: Sequence[str] | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        source: str = "parameters",
    ) -> None:
        policy = communicator.policy
        if policy.loss.pull > 0:
            raise ConfigError("policy", "loss.pull", "replicas drift apart that nobody repairs", "0; dlcp.torch knows more")
        if policy.loss.bound != "fixed":
            problem = f"{policy.loss.bound!r} is not known outside dlcp.torch"
            raise ConfigError("policy", "loss.bound", problem, "fixed")
        self.communicator = communicator
        self.residuals = ResidualStore()
        self.passes = 0
        self.error: BaseException | None = None
        self._layout = GradientLayout(leaves, order, policy.classes.count, bucket_bytes, source)
        self._contributions: dict[Bucket, NDArray[Any]] = {}
        self._under_way: Pass | None = None
        self._lock = threading.Lock()
        self._counts: dict[str, Any] = {"buckets": 0, "elements": 0, "packets": 0, "protected_packets": 0}
        self._counts |= {"lost_elements": 0, "lost_l1": 0.0, "seconds": 0.0}
        self._agree()

    @property
    def names(self) -> list[str]:
        """Names of the leaves, in their order."""
        return [leaf.name for leaf in self._layout.leaves]

    @property
    def classes(self) -> dict[str, int]:
        """Class of each leaf, 6 at most urgent."""
        return dict(zip(self.names, self._layout.classes, strict=True))

    # -- averages

    def start(self, arrays: Arrays) -> Pass:
        """Starts to average the gradients of a step.

        Args:
            arrays: One for each leaf; they may change as soon as this returns.

        Returns:
            What waits for the averages, which it must before the next step starts.

        Raises:
            ConfigError: An array does not fit its leaf.  All ranks are told.
            RuntimeError: A step is under way.
            DLCPError: The transport has failed.
        """
        self.check()
        with self._lock:
            if self._under_way is not None:
                raise RuntimeError("a step is being averaged; wait for it before the next one starts")
            self._under_way = Pass(self, self.residuals.snapshot())
            current = self._under_way
        begin = time.perf_counter()
        try:
            leaves = self._layout.leaves
            if len(arrays) != len(leaves):
                raise ConfigError(self._layout.source, "gradients", f"{len(arrays)} of them", f"{len(leaves)}, one a parameter")
            for bucket in self._layout.buckets:
                current.flights.append((bucket, self._launch(bucket, arrays)))
        except BaseException as error:
            self._failed(current, error)
            raise
        finally:
            self._counts["seconds"] += time.perf_counter() - begin
        return current

    def average_arrays(self, arrays: Arrays) -> list[NDArray[Any]]:
        """Averages the gradients of a step; see :meth:`start` and :meth:`Pass.wait`."""
        return self.start(arrays).wait()

    def broadcast_arrays(self, arrays: Arrays, root: int = 0) -> list[NDArray[Any]]:
        """Returns the arrays of rank ``root``, reliably, the same bits on all ranks; for what a model starts with.

        Args:
            arrays: Any number, of any type; shapes and types are the same on all ranks.
            root: Whose.
        """
        self.check()
        copies = [np.array(array, order="C") for array in arrays]
        try:
            # By their bytes: numpy knows neither buffers nor arithmetic of some types, such as bfloat16.
            flat = [copy.reshape(-1).view(np.uint8) for copy in copies if copy.size]
            for operation in [self.communicator.broadcast_async(data, root) for data in flat]:
                operation.wait()
        except BaseException as error:
            self.abort_with(error)
            raise
        return copies

    def _launch(self, bucket: Bucket, arrays: Arrays) -> Operation:
        work = self._contributions.get(bucket)
        if work is None:
            work = self._contributions[bucket] = np.empty(bucket.elements, bucket.dtype)
        for i, start, stop in zip(bucket.members, bucket.edges[:-1].tolist(), bucket.edges[1:].tolist(), strict=True):
            leaf, part = self._layout.leaves[i], work[start:stop]
            if arrays[i] is None:
                part[:] = 0
                continue
            array = np.asarray(arrays[i])
            leaf.check(array, self._layout.source)
            part.reshape(leaf.shape)[...] = array
        owing = [i for i, name in enumerate(bucket.names) if name in self.residuals]
        if owing:
            add_ranges(work, *self.residuals.take_parts(bucket.names, bucket.edges, owing))
        communicator = self.communicator
        width = communicator.elements_per_packet(bucket.dtype)
        tags = bucket.tags(work, width, self._layout.classes, communicator.policy)
        self._counts["buckets"] += 1
        self._counts["elements"] += work.size
        self._counts["packets"] += tags.size
        self._counts["protected_packets"] += int(np.count_nonzero(tags & 1))
        # A new array for each result: frameworks may keep what they are given without copying it.
        return communicator.allreduce_async(work, op="mean", tags=tags, out=np.empty_like(work))

    def _collect(self, current: Pass) -> list[NDArray[Any]]:
        begin = time.perf_counter()
        leaves = self._layout.leaves
        results: list[NDArray[Any]] = [np.zeros(leaf.shape, leaf.dtype) if leaf.size == 0 else _NOTHING for leaf in leaves]
        try:
            for bucket, operation in current.flights:
                reduction = operation.wait()
                if reduction.residual.size:
                    self._lost(bucket, reduction.lost, reduction.residual)
                for i, start, stop in zip(bucket.members, bucket.edges[:-1].tolist(), bucket.edges[1:].tolist(), strict=True):
                    part = reduction.output.reshape(-1)[start:stop].reshape(leaves[i].shape)
                    with np.errstate(over="ignore"):
                        results[i] = part.astype(leaves[i].dtype, copy=False)
        except BaseException as error:
            self._failed(current, error)
            raise
        finally:
            self._counts["seconds"] += time.perf_counter() - begin
        self._under_way = None
        self.passes += 1
        return results

    def _lost(self, bucket: Bucket, ranges: NDArray[np.int64], values: NDArray[Any]) -> None:
        self._counts["lost_elements"] += values.size
        self._counts["lost_l1"] += float(np.abs(values[np.isfinite(values)]).sum(dtype=np.float64))
        if self.communicator.policy.loss.compensation == "error-feedback":
            self.residuals.record_parts(bucket.names, bucket.edges, ranges, values)

    def _failed(self, current: Pass, error: BaseException) -> None:
        self.residuals.restore(current.before)
        self._under_way = None
        self.abort_with(error)

    def _agree(self) -> None:
        """Compares parameters with all other ranks, before the first gradients are added to the wrong ones."""
        mine = np.frombuffer(self._layout.digest(), np.uint8).copy()
        all_of_them = [np.empty_like(mine) for _ in range(self.communicator.world)]
        self.communicator.allgather_async(mine, all_of_them).wait()
        others = [rank for rank, digest in enumerate(all_of_them) if not np.array_equal(digest, mine)]
        if others:
            raise MismatchError(
                f"{self._layout.source}: rank {others[0]} averages other arrays than rank {self.communicator.rank}: "
                "names, shapes, types, order and bucket_bytes must be the same"
            )

    # -- failures

    def check(self) -> None:
        """Raises what has ended the work, if anything has."""
        if self.error is not None:
            raise self.error.with_traceback(None)

    def abort(self, reason: str) -> None:
        """Ends the work on all ranks; there :class:`~dlcp.errors.RemoteError` is raised with ``reason``."""
        self.abort_with(ClosedError(f"aborted: {reason}"))

    def abort_with(self, error: BaseException) -> None:
        """Ends the work on all ranks because of an error."""
        if self.error is not None:
            return
        self.error = error
        if isinstance(error, RemoteError):
            return  # the others have been told by the rank that failed
        try:
            self.communicator.abort(f"{type(error).__name__}: {error}")
        except DLCPError:
            pass  # closed, or ended by something else

    @contextmanager
    def guard(self) -> Iterator[Self]:
        """A context for the training loop: whatever leaves it as an exception ends the other ranks at once.

        Inside a compiled step frameworks turn errors into their own, with the text only; what was raised leaves as what it was.
        """
        try:
            yield self
        except BaseException as error:
            known = self.error
            if known is None:
                ending = isinstance(error, GeneratorExit) or (isinstance(error, SystemExit) and not error.code)
                if not ending:
                    self.abort_with(error)
                raise
            if known is error or isinstance(error, DLCPError) or not isinstance(error, Exception):
                raise
            raise known from error

    # -- metrics and checkpoints

    def metrics(self) -> dict[str, Any]:
        """Returns counts since the averager was made.

        ``hook`` holds buckets, elements, packets, protected_packets, lost_elements and lost_l1 (number and sum of |g| of what did
        not arrive in its own step), seconds (spent in the calls, waiting included), passes, residual_elements, residual_l1 and
        nonfinite_elements; ``transport`` is what the communicator reports.
        """
        mass = self.residuals.mass()
        owed = {"residual_elements": mass.elements, "residual_l1": mass.l1, "nonfinite_elements": self.residuals.nonfinite}
        return {"hook": {**self._counts, "passes": self.passes, **owed}, "transport": self.communicator.metrics()}

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's part of a checkpoint: nested dictionaries of numbers, strings and numpy arrays.

        To be called between steps.  Every rank saves its own, and on resuming each is loaded by exactly one rank.
        """
        return pack(self.residuals, self.passes)

    def load_state_dict(self, state: Mapping[str, Any], source: str = "<state_dict>") -> None:
        """Takes up a checkpoint.

        Args:
            state: What :meth:`state_dict` returned; not trusted.
            source: Where it came from, for errors.

        Raises:
            ConfigError: It is malformed, or of another model.  Nothing has changed.
        """
        loaded = unpack(state, source, {leaf.name: leaf.size for leaf in self._layout.leaves})
        self.residuals.restore(loaded.residuals.snapshot())
        self.passes = loaded.passes

    def save(self, path: str | Path) -> None:
        """Writes :meth:`state_dict` into a file (npz, without pickle), whole or not at all."""
        write_file(Path(path), self.state_dict())

    def load(self, path: str | Path) -> None:
        """Takes up what :meth:`save` has written.

        Raises:
            ConfigError: There is no such file, or it is malformed, or of another model.  Nothing has changed.
        """
        self.load_state_dict(read_file(Path(path)), str(path))

    def scale_residuals(self, factor: float) -> None:
        """Multiplies what is owed by new / old, to be called whenever a loss scale changes."""
        self.residuals.scale(factor)


class Pass:
    """The gradients of one step under way; made by :meth:`ArrayAverager.start`.

    Attributes:
        flights: Its buckets.
        before: What was owed before it.
    """

    def __init__(self, averager: ArrayAverager, before: Snapshot) -> None:
        self.flights: list[tuple[Bucket, Operation]] = []
        self.before = before
        self._averager = averager
        self._results: list[NDArray[Any]] | None = None

    def done(self) -> bool:
        """Whether :meth:`wait` would return or raise at once."""
        return all(operation.done() for _, operation in self.flights)

    def wait(self) -> list[NDArray[Any]]:
        """Returns the averages, the same bits on all ranks, in the shapes and types of the leaves.

        They are the caller's, and not written to again.

        Raises:
            DLCPError: What ended the transport; residuals are as they were before the step.
        """
        if self._results is None:
            self._averager.check()
            self._results = self._averager._collect(self)
        return self._results


_NOTHING: NDArray[Any] = np.empty(0)
