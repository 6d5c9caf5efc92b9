"""The process groups of a schedule: created once, in the same order on every rank, kept, and ended together."""

from __future__ import annotations

import hashlib
import logging
import weakref
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import torch
import torch.distributed as dist

from dlcp.errors import ConfigError, DLCPError, RendezvousError
from dlcp.policy import Policy
from dlcp.udp.faults import FaultPlan
from dssync.groups.link import GroupLink, TorchLink, shut_down

if TYPE_CHECKING:
    from torch._C._distributed_c10d import PrefixStore, Store

    import dlcp.store
else:
    from torch.distributed import PrefixStore, Store

_log = logging.getLogger(__name__)

MOST_GROUPS: Final = 128
"""Groups that a rank may be in: with gloo each takes about three threads and seven open files."""

# Sets made from one process group so far: the same number on all ranks, as each makes them in the same order.
_claims: weakref.WeakKeyDictionary[dist.ProcessGroup, int] = weakref.WeakKeyDictionary()


class GroupSet:
    """The groups that one rank is in.

    Only the members of a group take part in its creation, through the store; all ranks open groups in the order of the
    schedule, so that no two wait for each other.  They do not count among the groups of ``torch.distributed``, and
    ``destroy_process_group`` does not end them: :meth:`close` does.

    Args:
        process_group: The ranks that the schedule numbers from 0; None for the default group.
        backend: ``gloo``, ``nccl``, ``dlcp``, or another one that was registered with torch; None for that of ``process_group``.
        timeout: Seconds after which an average that does not come about is an error.
        policy: For ``dlcp``.
        host: For ``dlcp``: address of this rank that the others can reach.
        faults: For ``dlcp``: packets to drop and so on, for tests and demonstrations.

    Raises:
        ConfigError: There is no process group.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        *,
        backend: str | None = None,
        timeout: float = 300.0,
        policy: Policy | None = None,
        host: str = "127.0.0.1",
        faults: FaultPlan | str | None = None,
    ) -> None:
        world = process_group if process_group is not None else dist.group.WORLD
        if world is None:
            raise ConfigError("dssync", "process_group", "there is no default group", "one; call init_process_group first")
        self.world_group = world
        self.rank, self.world = dist.get_rank(world), dist.get_world_size(world)
        own = str(dist.get_backend(world)).partition(",")[0].rpartition(":")[2]
        self.backend = (backend or own).lower()
        self.timeout, self._policy, self._host, self._faults = timeout, policy, host, faults
        number = _claims.get(world, 0)
        _claims[world] = number + 1
        self._store: Store = PrefixStore(f"dssync/{number}", world.get_group_store())
        self._links: dict[tuple[int, ...], GroupLink] = {}
        self._opened = 0
        self._closed = False
        self._control: dist.ProcessGroup | None = None

    @property
    def control(self) -> dist.ProcessGroup:
        """A group of all ranks over gloo, with the timeout given, for small exchanges.

        All ranks ask for it for the first time at the same point, when whatever can be wrong on one rank alone has been found
        right: with gloo a rank that leaves fails another that is still connecting to it.

        Raises:
            RendezvousError: A rank did not come within the timeout.
        """
        if self._control is None:
            self._control = self._make(self.everybody, "gloo", PrefixStore("control", self._store), "dssync/control")
        return self._control

    def open(self, memberships: Iterable[tuple[int, ...]]) -> None:
        """Creates those groups that this rank is in and that are not there yet.

        All ranks call this with the same groups in the same order.

        Raises:
            ConfigError: Too many groups for one rank.
            RendezvousError: Another member did not come within the timeout.
        """
        self._opened += 1
        mine = [ranks for ranks in memberships if self.rank in ranks and len(ranks) > 1]
        fresh = [ranks for ranks in dict.fromkeys(mine) if ranks not in self._links]
        if len(self._links) + len(fresh) > MOST_GROUPS:
            problem = f"rank {self.rank} would be in {len(self._links) + len(fresh)} groups"
            raise ConfigError("schedule", "groups", problem, f"at most {MOST_GROUPS}: larger groups, or a shorter period")
        for ranks in fresh:
            self._links[ranks] = self._create(ranks)

    def keep(self, memberships: Iterable[tuple[int, ...]]) -> None:
        """Ends the groups that are not among these."""
        kept = set(memberships)
        for ranks in [ranks for ranks in self._links if ranks not in kept]:
            self._links.pop(ranks).close()

    def link(self, ranks: tuple[int, ...]) -> GroupLink:
        """Returns the connection to the other members of a group that is open."""
        if self._closed:
            raise ConfigError("dssync", "groups", "they are closed", "a new averager")
        return self._links[ranks]

    @property
    def everybody(self) -> tuple[int, ...]:
        """All ranks."""
        return tuple(range(self.world))

    @property
    def loses(self) -> bool:
        """Whether contributions may be missing from averages of some group."""
        return any(link.loses for link in self._links.values())

    @property
    def open_groups(self) -> tuple[tuple[int, ...], ...]:
        """The groups that are open."""
        return tuple(self._links)

    def abort(self, reason: str) -> None:
        """Ends all groups at once; other members' averages fail."""
        links, self._links, self._closed = self._links, {}, True
        for link in links.values():
            link.abort(reason)
        if self._control is not None:
            shut_down(self._control, now=True)

    def close(self) -> None:
        """Ends all groups; may be repeated."""
        if self._closed:
            return
        links, self._links, self._closed = self._links, {}, True
        for link in links.values():
            try:
                link.close()
            except DLCPError as error:  # the others have a right to be closed too
                _log.warning("closing the group of ranks %s: %s", link.ranks, error)
        if self._control is not None:
            shut_down(self._control)

    def _create(self, ranks: tuple[int, ...]) -> GroupLink:
        # The number tells a group that is opened again from its predecessor, whose keys are still in the store.
        name = f"{self._opened}/{hashlib.sha256(repr(ranks).encode()).hexdigest()[:16]}"
        store = PrefixStore(name, self._store)
        if self.backend == "dlcp":
            return self._create_dlcp(ranks, store)
        if self.backend == "gloo" and ranks == self.everybody:
            return TorchLink(ranks, self.control, owned=False)
        return TorchLink(ranks, self._make(ranks, self.backend, store, f"dssync/{name}"), owned=True)

    def _make(self, ranks: tuple[int, ...], backend: str, store: Store, name: str) -> dist.ProcessGroup:
        try:
            return make_group(backend, store, ranks.index(self.rank), len(ranks), self.timeout, name)
        except RuntimeError as error:  # torch's errors of stores and of gloo are RuntimeErrors
            members = ", ".join(map(str, ranks))
            summary = (str(error).splitlines() or [type(error).__name__])[0]
            waited = f"waited for up to {self.timeout:g} s"
            raise RendezvousError(f"the group of ranks {members} did not come about, {waited}: {summary}") from error

    def _create_dlcp(self, ranks: tuple[int, ...], store: Store) -> GroupLink:
        from dlcp.collectives.communicator import Communicator
        from dssync.groups.over_dlcp import DLCPLink, check_policy, parameter_policy

        policy = parameter_policy(self._policy, self.timeout)
        check_policy(policy)
        if ranks == self.everybody:
            # What all ranks average is a consensus, which has to be exact.
            policy = replace(policy, loss=replace(policy.loss, push=0.0))
        communicator = Communicator(
            ranks.index(self.rank),
            len(ranks),
            cast("dlcp.store.Store", store),
            policy=policy,
            host=self._host,
            faults=self._faults,
        )
        return DLCPLink(ranks, communicator)


def make_group(backend: str, store: Store, rank: int, size: int, timeout: float, name: str) -> dist.ProcessGroup:
    """Returns a process group that only its members have to create.

    Raises:
        ConfigError: The backend is unknown, or not part of this torch.
        RuntimeError: A member did not come in time.
    """
    wait = timedelta(seconds=timeout)
    inner: Any
    if backend == "gloo":
        inner = dist.ProcessGroupGloo(store, rank, size, timeout=wait)
        device, kind = torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO
    elif backend == "nccl":
        if not dist.is_nccl_available():
            raise ConfigError("dssync", "backend", "this torch is built without NCCL", "gloo or dlcp")
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = wait
        inner = dist.ProcessGroupNCCL(store, rank, size, options)
        device, kind = torch.device("cuda"), dist.ProcessGroup.BackendType.NCCL
    else:
        plugin = dist.Backend._plugins.get(backend.upper())
        if plugin is None or plugin.extended_api or backend == "dssync":
            known = sorted({"gloo", "nccl", "dlcp", *(name.lower() for name in dist.Backend._plugins)} - {"dssync"})
            raise ConfigError("dssync", "backend", f"{backend!r} is unknown, or cannot be made from a store", ", ".join(known))
        inner = plugin.creator_fn(store, rank, size, wait)
        if isinstance(inner, dist.ProcessGroup):
            return inner
        device, kind = torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM
    group = dist.ProcessGroup(store, rank, size)
    group._set_default_backend(kind)
    group._register_backend(device, kind, inner)
    if backend == "gloo" and torch.cuda.is_available():
        group._register_backend(torch.device("cuda"), kind, inner)
    group._set_group_name(name)  # type: ignore[arg-type]
    return group


__all__ = ["MOST_GROUPS", "GroupSet", "make_group"]
