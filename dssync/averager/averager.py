"""The averager: parameters are averaged in this round's group after the local step."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, get_args

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.model_averaging.averagers import ModelAverager
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from dlcp.errors import ClosedError, ConfigError, DLCPError, MismatchError
from dlcp.policy import Policy
from dlcp.udp.faults import FaultPlan
from dssync.averager.checkpoint import Phase, read_phase, write_phase
from dssync.averager.contents import Contents
from dssync.averager.control import average_once, broadcast_slots, check_equal, first_line, gather_bytes, keep_highest
from dssync.averager.ddp import attach
from dssync.averager.layout import (
    Transfer,
    buffer_slots,
    signature,
)
from dssync.contention import Contention, Review
from dssync.errors import GroupError
from dssync.groups.link import GroupLink, Pending
from dssync.groups.members import GroupSet
from dssync.schedule.base import Group, Schedule
from dssync.schedule.make import make_schedule

Buffers = Literal["average", "local", "broadcast"]
OptimizerState = Literal["local", "average", "reset"]

_MEBIBYTE: Final = 1 << 20


class DivideShuffleAverager(ModelAverager):
    """Averages a model's parameters in small groups that change every round (DS-Sync, arXiv 2007.03298).

    All ranks construct it at the same point of their programs, and call :meth:`average_parameters` after every step of the
    optimizer; :class:`~dssync.averager.DivideShuffleOptimizer` does that.  Trained parameters take part whether or not they
    have a gradient, shared ones once, frozen ones not at all.  A round changes either all of a model or, if it fails, nothing.

    Args:
        model: The module.  A ``DistributedDataParallel`` gets a hook that keeps its gradients from travelling; it needs
            ``forward_sync_buffers=False`` if the module has buffers (``broadcast_buffers=False`` in older versions of torch).
        schedule: Who averages with whom; a schedule, or a kind of :func:`dssync.schedule.make_schedule`.
        group: Ranks of the largest group, for a kind.
        process_group: The ranks that take part; None for all.
        backend: What carries the averages: ``gloo``, ``nccl``, ``dlcp``; None for that of ``process_group``.
        every: Steps for each round.
        warmup_steps: Steps before the first round.  Until then all ranks stay equal: the gradients of a
            ``DistributedDataParallel`` are reduced over all ranks, parameters of other modules are averaged over all ranks.
        buffers: ``average`` those that are floating point (a BatchNorm's statistics) with the parameters, leave them ``local``,
            or ``broadcast`` those of each group's first rank.  What counts (``num_batches_tracked``) is each rank's own until
            :meth:`consensus`.
        optimizer_state: Leave it ``local``, ``average`` moments with the parameters, or ``reset`` it after every average.
        overlap: Do not wait: training goes on while the average is under way, and what it would have changed is added one round
        later. weight: Of this rank, in all averages; for ranks with more data than others.
        bucket_mb: MiB of a bucket.
        timeout: Seconds after which an average that does not come about is an error.
        sync_start: Give all ranks the model of the first one at the start.
        contention: Watch the times of the groups, and change the schedule by them; None never does.
        policy: For ``dlcp``.
        host: For ``dlcp``: address of this rank that the others can reach.
        faults: For ``dlcp``: packets to drop and so on, for tests and demonstrations.

    Attributes:
        step: Calls of :meth:`average_parameters`.
        round: Rounds that have begun.
        schedule: The one in use.
        counts: Rounds, bytes of a model, seconds spent waiting, reviews and changes of the schedule.

    Raises:
        ConfigError: Settings that do not fit each other, the model or the number of ranks.
        MismatchError: Models, schedules or settings of the ranks differ; on every rank.
        RendezvousError: A rank did not come within the timeout.
    """

    def __init__(
        self,
        model: nn.Module,
        schedule: Schedule | str = "base-k",
        *,
        group: int | None = None,
        process_group: dist.ProcessGroup | None = None,
        backend: str | None = None,
        every: int = 1,
        warmup_steps: int = 0,
        buffers: Buffers = "average",
        optimizer_state: OptimizerState = "local",
        overlap: bool = False,
        weight: float = 1.0,
        bucket_mb: float = 25.0,
        timeout: float = 300.0,
        sync_start: bool = True,
        contention: Contention | None = None,
        policy: Policy | None = None,
        host: str = "127.0.0.1",
        faults: FaultPlan | str | None = None,
    ) -> None:
        _check("every", every, every >= 1, "1 or more steps")
        _check("warmup_steps", warmup_steps, warmup_steps >= 0, "0 or more steps")
        _check("buffers", buffers, buffers in get_args(Buffers), ", ".join(get_args(Buffers)))
        _check(
            "optimizer_state", optimizer_state, optimizer_state in get_args(OptimizerState), ", ".join(get_args(OptimizerState))
        )
        _check("weight", weight, 0 < weight < float("inf"), "a finite number above 0")
        _check("bucket_mb", bucket_mb, bucket_mb > 0, "a number above 0")
        self._groups = GroupSet(process_group, backend=backend, timeout=timeout, policy=policy, host=host, faults=faults)
        super().__init__(self._groups.world_group)
        self.rank, self.world = self._groups.rank, self._groups.world
        self.schedule = schedule if isinstance(schedule, Schedule) else make_schedule(schedule, self.world, group=group)
        if self.schedule.world != self.world:
            raise ConfigError("dssync", "schedule", f"for {self.schedule.world} ranks", f"one for {self.world}")
        self._wrapped = model if isinstance(model, DistributedDataParallel) else None
        self.model: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
        self.every, self.warmup_steps, self.overlap = every, warmup_steps, overlap
        self.buffers, self.optimizer_state = buffers, optimizer_state
        self.contents = Contents(self.model, buffers == "average", optimizer_state == "average")
        self.step = 0
        self.round = 0
        self.counts: dict[str, float] = {"rounds": 0, "bytes": 0, "seconds": 0.0, "reviews": 0, "changes": 0}
        self._bucket_bytes = int(bucket_mb * _MEBIBYTE)
        self._layout: tuple[Any, bytes, Transfer] | None = None
        self._pending: tuple[int, Group, list[Pending], Transfer, float] | None = None
        self._failed: DLCPError | None = None
        self._agreed = -1
        self._review = Review(contention, self.schedule, self.rank) if contention is not None else None
        if self._wrapped is not None:
            attach(self._wrapped, self)
        self._begin(weight, sync_start)

    def _begin(self, weight: float, sync_start: bool) -> None:
        """Finds out whether all ranks mean the same, and creates the groups."""
        control = self._groups.control
        settings = (self.schedule.digest, self.every, self.warmup_steps, self.buffers, self.optimizer_state, self.overlap)
        floating, counts = buffer_slots(self.model)
        everything = [*self.contents.parameters(), *floating, *counts]
        more = (*settings, self._groups.backend, self._bucket_bytes, self._review is not None and self._review.contention)
        check_equal(control, signature(everything, *more), "model, schedule or settings")
        weights = [float(np.frombuffer(own, np.float64)[0]) for own in gather_bytes(control, np.float64(weight).tobytes())]
        self._weights = weights
        if sync_start and self.world > 1:
            with torch.no_grad():
                broadcast_slots(control, everything, self._bucket_bytes)
        if self.world > 1:
            self._open([self._groups.everybody, *self.schedule.memberships])

    def _open(self, memberships: Iterable[tuple[int, ...]]) -> None:
        self._groups.open(memberships)
        # With gloo a rank that leaves at once would fail another that is still connecting to it.
        gather_bytes(self._groups.control, b".")

    # -- averaging

    def average_parameters(self, params: Iterable[nn.Parameter] | Iterable[dict[str, Any]] | None = None) -> None:
        """Counts a step, and averages if it is one that a round follows.

        Args:
            params: Ignored: the model decides what is averaged, so that all ranks average the same.

        Raises:
            GroupError: A member of the group died, left or fell silent for longer than the timeout.
            MismatchError: Members are in different rounds.
        """
        self._usable()
        self.step += 1
        done = self.step - self.warmup_steps
        try:
            if done > 0 and done % self.every == 0:
                self._next_round()
            elif done <= 0 and self._wrapped is None:
                self._average_all(buffers=self.buffers != "local")
        except DLCPError as error:
            if self._failed is None:
                self._failed = error
                self._groups.abort(f"rank {self.rank}: {error}")
            raise

    @torch.no_grad()
    def _next_round(self) -> None:
        self.flush()
        number, group = self.round, self.schedule.group_of(self.round, self.rank)
        self.round += 1
        self.counts["rounds"] += 1
        # Also where this rank is alone: all ranks take part when what is averaged has changed.
        transfer = self._transfer() if self.world > 1 else None
        if transfer is not None and len(group.ranks) > 1:
            self._start(number, group, self._groups.link(group.ranks), transfer)
            if not self.overlap:
                self.flush()
        elif self._review is not None:
            self._review.note(0.0)
        if self.buffers == "broadcast" and len(group.ranks) > 1:
            self._spread_buffers(group, self._groups.link(group.ranks))
        if self._review is not None and self._review.due(self.round):
            self.flush()
            self._reconsider(self._review)

    def _start(self, number: int, group: Group, link: GroupLink, transfer: Transfer) -> None:
        begin = time.perf_counter()
        scale = link.scale(self._weights[self.rank], sum(self._weights[rank] for rank in group.ranks))
        try:
            pending = transfer.start(link, scale, number)
        except (RuntimeError, DLCPError) as error:
            raise self._fail(error, number, group.ranks, begin) from error
        if self._review is not None:
            for one in pending:
                one.watch()
        self._pending = number, group, pending, transfer, begin

    @torch.no_grad()
    def flush(self) -> None:
        """Finishes the average that is under way, if there is one.

        Raises:
            GroupError: It failed.
        """
        if self._pending is None:
            return
        number, group, pending, transfer, begin = self._pending
        self._pending = None
        waited = time.perf_counter()
        try:
            together = transfer.wait(pending, number, len(group.ranks))
        except (RuntimeError, DLCPError) as error:
            raise self._fail(error, number, group.ranks, begin) from error
        if not together:
            raise self._fail(MismatchError(f"ranks {group.ranks} are not all in round {number}"), number, group.ranks, begin)
        transfer.settle(float(group.relaxation), self.overlap)
        now = time.perf_counter()
        self.counts["seconds"] += now - waited
        if self._review is not None:
            self._review.note(max(one.ended or now for one in pending) - begin)
        if self.optimizer_state == "reset":
            self.contents.forget_state()

    def _fail(self, error: BaseException, number: int, ranks: tuple[int, ...], begin: float) -> DLCPError:
        seconds = time.perf_counter() - begin
        self._failed = error if isinstance(error, MismatchError) else GroupError(number, ranks, seconds, first_line(error))
        # Others wait for this rank in groups that are still whole: they should not have to wait for their timeouts.
        self._groups.abort(f"rank {self.rank}: {self._failed}")
        return self._failed

    def _usable(self) -> None:
        if self._failed is not None:
            raise self._failed

    # -- what is averaged

    def _transfer(self) -> Transfer:
        """Returns the buckets; new ones if the model's tensors have changed, which all ranks must agree on."""
        slots = self.contents.slots()
        key = [(slot.tensor.data_ptr(), slot.name) for slot in slots]
        if self._layout is None or self._layout[0] != key:
            digest = signature(slots)
            if self._layout is None or self._layout[1] != digest:
                check_equal(self._groups.control, digest, "what is averaged")
            link = self._groups.link(self._groups.everybody)
            transfer = Transfer(slots, link, self._bucket_bytes, keep=self.overlap or self._groups.loses)
            self.counts["bytes"] = transfer.bytes
            self._layout = key, digest, transfer
        return self._layout[2]

    def _spread_buffers(self, group: Group, link: GroupLink) -> None:
        """Gives all members the buffers of the first: a sum to which only that one contributes."""
        floating, _ = buffer_slots(self.model)
        if not floating:
            return
        _check("buffers", "broadcast", not link.loses, "average or local, where contributions may be missing")
        begin = time.perf_counter()
        alone = [float(rank == group.ranks[0]) for rank in range(self.world)]
        try:
            average_once(floating, link, alone, self.rank, 0, self._bucket_bytes)
        except (RuntimeError, DLCPError) as error:
            raise self._fail(error, self.round - 1, group.ranks, begin) from error

    # -- everybody

    @torch.no_grad()
    def _average_all(self, buffers: bool) -> None:
        if self.world == 1:
            return
        floating, counts = buffer_slots(self.model) if buffers else ([], [])
        slots = self.contents.slots() + (floating if self.buffers == "broadcast" else [])
        link = self._groups.link(self._groups.everybody)
        begin = time.perf_counter()
        try:
            together = average_once(slots, link, self._weights, self.rank, self.round, self._bucket_bytes)
            if together and counts:
                keep_highest(self._groups.control, counts)
        except (RuntimeError, DLCPError) as error:
            raise self._fail(error, self.round, self._groups.everybody, begin) from error
        if not together:
            raise self._fail(MismatchError("ranks are in different rounds"), self.round, self._groups.everybody, begin)

    def consensus(self) -> None:
        """Gives every rank the exact mean of all models; for checkpoints, and at the end.  All ranks call it.

        Buffers follow their policy, counts become the highest of any rank.
        """
        self._usable()
        self.flush()
        self._average_all(buffers=self.buffers != "local")
        self._agreed = self.step

    @contextmanager
    def consensus_model(self) -> Iterator[nn.Module]:
        """A context in which the model is the mean of all, for evaluation; afterwards it is this rank's again.  All ranks enter
        it.
        """
        self._usable()
        self.flush()
        floating, counts = buffer_slots(self.model)
        slots = [*self.contents.slots(), *floating, *counts]
        with torch.no_grad():
            saved: list[Tensor] = [slot.tensor.clone() for slot in slots]
        self._average_all(buffers=self.buffers != "local")
        try:
            yield self.model
        finally:
            with torch.no_grad():
                torch._foreach_copy_([slot.tensor for slot in slots], saved)

    # -- contention

    def _reconsider(self, review: Review) -> None:
        """Lets all ranks look at the times of all, and change the schedule together."""
        self.counts["reviews"] += 1
        everybody = gather_bytes(self._groups.control, review.message(self.schedule))
        chosen = review.decide(everybody, self.schedule, int(self.counts["bytes"]))
        if chosen != self.schedule:
            check_equal(self._groups.control, bytes.fromhex(chosen.digest), "the schedule")
            self._change(chosen)
        review.restart(self.schedule, self.round)

    def _change(self, chosen: Schedule) -> None:
        self.flush()
        base = self._review.base.memberships if self._review is not None else ()
        self._groups.keep([self._groups.everybody, *base, *chosen.memberships])
        self._open(chosen.memberships)
        self.schedule, self.round = chosen, 0
        self.counts["changes"] += 1

    # -- checkpoints and the end

    def state_dict(self) -> dict[str, Any]:
        """Returns step, round, schedule, and whether all ranks hold the same model; finishes an average that is under way."""
        self.flush()
        return write_phase(Phase(self.step, self.round, self.schedule, self._agreed == self.step))

    def load_state_dict(self, state: Mapping[str, Any], source: str = "<state_dict>") -> None:
        """Goes on where :meth:`state_dict` was called.  All ranks call it.

        With another number of ranks, or another schedule, the phase means nothing; the schedule then starts anew if the
        checkpoint was taken right after :meth:`consensus`, and is refused if it was not.

        Raises:
            ConfigError: It is malformed, or of ranks that did not agree, and are not these.
        """
        phase = read_phase(state, source)
        self.flush()
        same = phase.schedule == self.schedule
        if not same and self._review is not None and phase.schedule.world == self.world:
            self._change(phase.schedule)
            same = True
        if not same and not phase.consensus:
            found = f"{phase.schedule!r} without consensus"
            raise ConfigError(source, "schedule", found, f"{self.schedule!r}, or a checkpoint made right after consensus()")
        self.step, self.round = phase.step, phase.round if same else 0
        self._agreed = phase.step if phase.consensus else -1
        if self._review is not None:
            self._review.restart(self.schedule, self.round)

    def close(self) -> None:
        """Finishes what is under way, unless something has failed, and ends the groups.  May be repeated."""
        try:
            if self._failed is None:
                self.flush()
        finally:
            if self._failed is None:
                self._failed = ClosedError("the averager is closed")
            self._groups.close()

    @property
    def optimizer(self) -> Optimizer | None:
        """Whose state the policy for it is about; :class:`~dssync.averager.DivideShuffleOptimizer` sets it."""
        return self.contents.optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer) -> None:
        self.contents.optimizer = optimizer

    def __enter__(self) -> DivideShuffleAverager:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None and self._failed is None:
            self._failed = ClosedError("the averager was left by an error")
            self._groups.abort(f"rank {self.rank}: {type(error).__name__}: {error}")
            return
        self.close()


def _check(key: str, value: object, good: bool, accepted: str) -> None:
    if not good:
        raise ConfigError("dssync", key, f"{value!r}", accepted)


__all__ = ["Buffers", "DivideShuffleAverager", "OptimizerState"]
