"""A process group whose all-reduce only spans this round's group."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from dlcp.errors import ConfigError
from dssync.groups.members import make_group
from dssync.schedule.base import Schedule
from dssync.schedule.make import make_schedule

if TYPE_CHECKING:
    from torch._C._distributed_c10d import PrefixStore, Store
else:
    from torch.distributed import PrefixStore, Store

_EVERYBODY: Final = (
    *("allgather", "allgather_coalesced", "_allgather_base", "all_gather_single", "allgather_into_tensor_coalesced"),
    *("all_gather_single_coalesced", "alltoall", "alltoall_base", "all_to_all_single", "barrier", "broadcast", "gather"),
    *("monitored_barrier", "recv", "recv_anysource", "reduce", "reduce_scatter", "_reduce_scatter_base", "send", "scatter"),
    *("reduce_scatter_single", "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
)
"""Collectives that span all ranks in every round: what they distribute has to reach everybody."""


@dataclass(frozen=True)
class ShuffleOptions:
    """Options of the backend ``dssync``, for ``pg_options`` of ``init_process_group`` and ``new_group``.

    Attributes:
        schedule: Its rounds, or the kind to make one of.  The environment's ``DSSYNC_SCHEDULE`` and ``DSSYNC_GROUP`` hold where
            no options are given.
        group: Ranks of the largest group, for a kind.
        inner: Backend that carries everything: ``gloo``, ``nccl``, ``dlcp`` (all-reduce over DLCP, the rest over gloo).
    """

    schedule: Schedule | str = "base-k"
    group: int | None = None
    inner: str = "gloo"

    @classmethod
    def from_environment(cls) -> ShuffleOptions:
        """Returns what the environment says."""
        group = os.environ.get("DSSYNC_GROUP")
        try:
            size = None if group is None else int(group)
        except ValueError:
            raise ConfigError("environment", "DSSYNC_GROUP", f"{group!r}", "a number of ranks") from None
        return cls(os.environ.get("DSSYNC_SCHEDULE", "base-k"), size, os.environ.get("DSSYNC_INNER", "gloo"))


class ShuffleProcessGroup(dist.ProcessGroup):
    """All ranks, of which an all-reduce only joins those of the round's group.

    Everything but all-reduce spans all ranks.  A sum over the group stands for the sum over all ranks, and is scaled by world
    over group, so that whoever divides by the world size afterwards, as DistributedDataParallel does, has the group's mean.
    ``AVG`` is the group's mean; ``MIN``, ``MAX`` and the bitwise operations are the group's.

    Averaging gradients through it does not bring models together (docs/theory.md): parameters have to be averaged too, through
    the same group or by :class:`~dssync.averager.DivideShuffleAverager`.

    Args:
        schedule: Its rounds.
        store: Where ranks meet.
        rank: Own rank.
        size: Number of ranks.
        timeout: Seconds.
        inner: Backend underneath.

    Raises:
        ConfigError: The schedule is for another number of ranks, or the backend is unknown.
    """

    def __init__(
        self, schedule: Schedule, store: Store, rank: int, size: int, *, timeout: float = 300.0, inner: str = "gloo"
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        if schedule.world != size:
            raise ConfigError("dssync", "schedule", f"{schedule.world} ranks in a group of {size}", "a schedule of as many ranks")
        self.schedule = schedule
        self.round = 0
        self._rank, self._size = rank, size
        self._name = "dssync"
        self._desc = "undefined"
        base = "gloo" if inner == "dlcp" else inner
        self.inner = inner
        self._everybody = make_group(base, PrefixStore("dssync-all", store), rank, size, timeout, "dssync-all")
        self._reducers: dict[tuple[int, ...], Any] = {tuple(range(size)): self._everybody}
        if inner == "dlcp":
            self._reducers = {}
        for number, ranks in enumerate(schedule.memberships):
            if rank not in ranks or ranks in self._reducers:
                continue
            inside, place = PrefixStore(f"dssync-{number}", store), ranks.index(rank)
            if inner == "dlcp":
                self._reducers[ranks] = _DLCPReducer(inside, place, len(ranks), timeout)
            else:
                self._reducers[ranks] = make_group(base, inside, place, len(ranks), timeout, f"dssync-{number}")
        # With gloo a rank that leaves at once would fail another that is still connecting to it.
        self._everybody.barrier().wait()

    def advance(self, rounds: int = 1) -> None:
        """Goes on to a later round; every rank calls it at the same point of its program, once a step."""
        self.round += rounds

    @property
    def members(self) -> tuple[int, ...]:
        """Ranks of this round's group."""
        return self.schedule.group_of(self.round, self._rank).ranks

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        """Reduces over the round's group; a list of one tensor, or a tensor."""
        batch = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        options = opts if opts is not None else dist.AllreduceOptions()
        operation = options.reduceOp if hasattr(options, "reduceOp") else options
        ranks = self.members
        if operation == dist.ReduceOp.SUM and len(ranks) < self._size:
            factor = self._size / len(ranks)
            for tensor in batch:
                if tensor.is_floating_point() or tensor.is_complex():
                    tensor.mul_(factor)
                else:
                    _scale_whole(tensor, self._size, len(ranks))
        if len(ranks) == 1:
            return _Done(batch)
        reducer = self._reducers[ranks]
        if not isinstance(options, dist.AllreduceOptions):
            options = dist.AllreduceOptions()
            options.reduceOp = operation  # type: ignore[assignment]
        return reducer.allreduce(batch, options)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Reduces several tensors over the round's group."""
        options = dist.AllreduceOptions()
        if opts is not None:
            options.reduceOp = opts.reduceOp
        works = [self.allreduce([tensor], options) for tensor in tensors]
        for work in works:
            work.wait()
        return _Done(list(tensors))

    def getBackendName(self) -> str:
        """``dssync``."""
        return "dssync"

    def name(self) -> str:
        """``dssync``."""
        return "dssync"

    def rank(self) -> int:
        """Own rank."""
        return self._rank

    def size(self) -> int:
        """Number of ranks."""
        return self._size

    @property
    def group_name(self) -> str:  # type: ignore[override]
        """What torch calls it."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        """What torch says of it."""
        return self._desc

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    def shutdown(self) -> None:
        """Ends all groups inside."""
        reducers, self._reducers = self._reducers, {}
        for reducer in {id(one): one for one in (*reducers.values(), self._everybody)}.values():
            reducer.shutdown()

    def abort(self) -> None:
        """Likewise, at once."""
        self.shutdown()


def _forward(name: str) -> Callable[..., Any]:
    def forwarded(self: ShuffleProcessGroup, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._everybody, name)(*args, **kwargs)

    forwarded.__name__ = name
    forwarded.__doc__ = "Spans all ranks."
    return forwarded


for _name in _EVERYBODY:
    if hasattr(dist.ProcessGroup, _name):
        setattr(ShuffleProcessGroup, _name, _forward(_name))


def _scale_whole(tensor: Tensor, size: int, members: int) -> None:
    """Scales whole numbers where that comes out even; where it does not, there is no sum over all ranks to stand for."""
    if size % members:
        raise ConfigError("dssync", "allreduce", f"a sum of {tensor.dtype} over {members} of {size} ranks", "floating point")
    tensor.mul_(size // members)


class _Done(dist.Work):
    """Work that is done."""

    def __init__(self, result: list[Tensor]) -> None:
        super().__init__()
        self._result = result
        self._future: Future[list[Tensor]] = Future()
        self._future.set_result(result)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Returns at once."""
        return True

    def is_completed(self) -> bool:
        """True."""
        return True

    def result(self) -> list[Tensor]:
        """Returns the tensors."""
        return self._result

    def get_future(self) -> Future[list[Tensor]]:
        """Returns a future that is done."""
        return self._future


class _Carried(dist.Work):
    """Work over DLCP."""

    def __init__(self, operations: list[Any], tensors: list[Tensor]) -> None:
        super().__init__()
        self._operations, self._tensors = operations, tensors
        self._future: Future[list[Tensor]] = Future()
        self._left = len(operations)
        for operation in operations:
            operation.add_done_callback(self._ended)

    def _ended(self, operation: Any) -> None:
        self._left -= 1
        error = operation.exception()
        if error is not None and not self._future.done():
            self._future.set_exception(error)
        elif self._left == 0 and not self._future.done():
            self._future.set_result(self._tensors)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for all tensors."""
        for operation in self._operations:
            operation.wait(None if not timeout else timeout.total_seconds())
        return True

    def is_completed(self) -> bool:
        """Whether all tensors are there."""
        return all(operation.done() for operation in self._operations)

    def result(self) -> list[Tensor]:
        """Returns the tensors."""
        return self._tensors

    def get_future(self) -> Future[list[Tensor]]:
        """Returns a future of the tensors."""
        return self._future


class _DLCPReducer:
    """All-reduce of one group over DLCP."""

    def __init__(self, store: Store, rank: int, size: int, timeout: float) -> None:
        from typing import cast

        import dlcp.store
        from dlcp.collectives.communicator import Communicator
        from dssync.groups.over_dlcp import parameter_policy

        self._communicator = Communicator(rank, size, cast("dlcp.store.Store", store), policy=parameter_policy(None, timeout))
        self._size = size

    def allreduce(self, tensors: list[Tensor], options: Any) -> dist.Work:
        operation = options.reduceOp
        average = bool(operation == dist.ReduceOp.AVG)
        if not average and not operation == dist.ReduceOp.SUM:
            raise ConfigError("dssync", "allreduce", f"{operation} over dlcp", "SUM or AVG")
        kind: Any = "mean" if average else "sum"
        started = []
        for tensor in tensors:
            if tensor.dtype not in (torch.float32, torch.float64) or tensor.device.type != "cpu" or not tensor.is_contiguous():
                raise ConfigError("dssync", "allreduce", f"{tensor.dtype} on {tensor.device} over dlcp", "contiguous floats, CPU")
            array = tensor.detach().numpy()
            started.append(self._communicator.allreduce_async(array, op=kind, out=array))
        return _Carried(started, tensors)

    def shutdown(self) -> None:
        self._communicator.close()


def _create(settings: Any, options: Any) -> ShuffleProcessGroup:
    chosen = options if isinstance(options, ShuffleOptions) else ShuffleOptions.from_environment()
    schedule = chosen.schedule
    if isinstance(schedule, str):
        schedule = make_schedule(schedule, settings.group_size, group=chosen.group)
    return ShuffleProcessGroup(
        schedule,
        settings.store,
        settings.group_rank,
        settings.group_size,
        timeout=settings.timeout.total_seconds(),
        inner=chosen.inner,
    )


def register() -> None:
    """Makes torch know the backend ``dssync``; importing :mod:`dssync.groups` does it."""
    if "DSSYNC" not in dist.Backend._plugins:
        dist.Backend.register_backend("dssync", _create, extended_api=True, devices=["cpu", "cuda"])


__all__ = ["ShuffleOptions", "ShuffleProcessGroup", "register"]
