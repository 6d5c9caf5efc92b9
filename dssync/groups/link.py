"""How the members of one group sum a flat tensor: over a process group of torch, or over DLCP."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


class Missing(NamedTuple):
    """Elements of a rank's own contribution that reached nobody: ``[start, stop)``."""

    start: int
    stop: int


class Pending(ABC):
    """An average under way.

    Attributes:
        ended: ``time.perf_counter()`` at its end, if it was watched.
    """

    ended: float | None = None

    def _note(self, _: object) -> None:
        self.ended = time.perf_counter()

    @abstractmethod
    def watch(self) -> None:
        """Makes it note when it ends."""

    @abstractmethod
    def wait(self) -> Sequence[Missing]:
        """Waits until the tensor holds the average; raises RuntimeError or DLCPError if it never will."""


class GroupLink(ABC):
    """Connects the ranks of one group.

    Attributes:
        ranks: Members, ascending, as the schedule numbers them.
        loses: Whether contributions may be missing from the average.
    """

    ranks: tuple[int, ...]
    loses = False

    @abstractmethod
    def start(self, flat: Tensor) -> Pending:
        """Starts averaging ``flat`` in place, which holds this rank's values times :meth:`scale`."""

    def scale(self, weight: float, total: float) -> float:
        """Returns what values are multiplied by before :meth:`start`.

        Args:
            weight: Of this rank.
            total: Of all members.
        """
        return weight / total

    def carried_as(self, dtype: torch.dtype) -> torch.dtype:
        """Returns the type in which tensors of ``dtype`` travel."""
        return dtype

    def carried_from(self, device: torch.device) -> torch.device:
        """Returns where tensors of ``device`` have to lie to travel."""
        return device

    @abstractmethod
    def close(self) -> None:
        """Lets go of what it holds."""

    def abort(self, reason: str) -> None:
        """Ends it such that other members notice at once, if the transport can do that."""
        self.close()


class _TorchPending(Pending):
    def __init__(self, work: Any) -> None:
        self._work = work

    def watch(self) -> None:
        self._work.get_future().add_done_callback(self._note)

    def wait(self) -> Sequence[Missing]:
        self._work.wait()
        return ()


class TorchLink(GroupLink):
    """Over a process group.

    Args:
        ranks: Members.
        group: A process group of exactly these ranks in this order.
        owned: Whether closing the link ends the group.
    """

    def __init__(self, ranks: tuple[int, ...], group: dist.ProcessGroup, owned: bool) -> None:
        self.ranks = ranks
        self.group: dist.ProcessGroup | None = group
        self._owned = owned

    def start(self, flat: Tensor) -> Pending:
        """Starts an all-reduce."""
        if self.group is None:
            raise RuntimeError("the group is closed")
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM  # type: ignore[assignment]
        return _TorchPending(self.group.allreduce([flat], options))

    def close(self) -> None:
        """Ends the group if it is the link's own."""
        group, self.group = self.group, None
        if group is not None and self._owned:
            shut_down(group)

    def abort(self, reason: str) -> None:
        """Closes the sockets, which is what other members see; gloo has no other way to say it."""
        group, self.group = self.group, None
        if group is not None:
            shut_down(group, now=True)


def shut_down(group: dist.ProcessGroup, now: bool = False) -> None:
    """Ends a group that torch does not know by name: sockets close when its last reference goes."""
    end = getattr(group, "abort" if now else "shutdown", None)
    try:
        if end is not None:
            end()
    except RuntimeError:
        pass  # a backend without it, or one that has failed already


__all__ = ["GroupLink", "Missing", "Pending", "TorchLink", "shut_down"]
