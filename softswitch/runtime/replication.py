"""The packet replication engine: multicast groups and clone sessions (P4Runtime specification, section 9.5).

Copies leave by instance, then by port (the specification leaves the order open; BMv2's is that of a hash map).  A replica whose
port is down goes to its first backup whose port is up; with none up it goes to the primary port, where it is lost, so that what
egress counts is counted all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from softswitch.errors import BadValue, DuplicateEntry, NoSuchEntry
from softswitch.runtime.journal import Journal

MAX_GROUP = 0xFFFF
MAX_SESSION = 0x7FFF
MAX_INSTANCE = 0xFFFF
MAX_PORT = 2**32 - 1

Copies = tuple[tuple[int, int], ...]
"""``(port, instance)`` of each copy to make."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A copy: port and instance (egress_rid), and what stands in while the port is down, best first."""

    port: int
    instance: int = 0
    backups: tuple[tuple[int, int], ...] = ()


@dataclass
class _Replicated:
    """What has replicas; ``active`` is where the copies go now."""

    id: int
    replicas: tuple[Replica, ...]
    active: Copies = field(default=(), init=False)


@dataclass
class MulticastGroup(_Replicated):
    """A multicast group."""

    metadata: bytes = b""


@dataclass
class CloneSession(_Replicated):
    """A clone session.

    Attributes:
        class_of_service: Queue of the clones.
        packet_length: Clones are cut to this many bytes; 0 leaves them whole.
    """

    class_of_service: int = 0
    packet_length: int = 0


_T = TypeVar("_T", bound=_Replicated)


class _Replication(Generic[_T]):
    """Groups or sessions by id.

    Attributes:
        items: By id; the data plane reads it and nobody else writes it.
    """

    kind = "group"
    limit = MAX_GROUP

    def __init__(self, journal: Journal, down: Set[int]) -> None:
        self.items: dict[int, _T] = {}
        self._journal = journal
        self._down = down

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[_T]:
        return iter(self.items.values())

    def get(self, identity: int) -> _T:
        """The group or session with this id, or ``NoSuchEntry``."""
        item = self.items.get(identity)
        if item is None:
            raise NoSuchEntry(f"there is no {self.kind} {identity}")
        return item

    def insert(self, item: _T) -> None:
        """Add one: ``DuplicateEntry`` if its id is taken, ``BadValue`` for id 0, a figure out of range, or a copy that stands
        twice."""
        self._check(item)
        if item.id in self.items:
            raise DuplicateEntry(f"{self.kind} {item.id} exists")
        self.items[item.id] = item
        self._journal.record(self.items.pop, item.id)

    def modify(self, item: _T) -> None:
        """Replace the one with this id, or raise ``NoSuchEntry`` or ``BadValue``."""
        old = self.get(item.id)
        self._check(item)
        self.items[item.id] = item
        self._journal.record(self._put, old)

    def delete(self, identity: int) -> None:
        """Remove one, or raise ``NoSuchEntry``."""
        old = self.get(identity)
        del self.items[identity]
        self._journal.record(self._put, old)

    def port_changed(self, port: int) -> None:
        """Choose between primaries and backups again."""
        for item in self.items.values():
            if any(replica.port == port or any(port == backup for backup, _ in replica.backups) for replica in item.replicas):
                item.active = self._choose(item.replicas)

    def _put(self, item: _T) -> None:
        item.active = self._choose(item.replicas)
        self.items[item.id] = item

    def _check(self, item: _T) -> None:
        if not 0 < item.id <= self.limit:
            raise BadValue(f"{self.kind} {item.id} is not in 1..{self.limit}")
        copies: set[tuple[int, int]] = set()
        for replica in item.replicas:
            for port, instance in ((replica.port, replica.instance), *replica.backups):
                if not 0 <= port <= MAX_PORT or not 0 <= instance <= MAX_INSTANCE:
                    raise BadValue(f"{self.kind} {item.id}: port {port} or instance {instance} is out of range")
                if (port, instance) in copies:
                    raise BadValue(f"{self.kind} {item.id}: instance {instance} on port {port} stands twice")
                copies.add((port, instance))
            if any(port == replica.port for port, _ in replica.backups):
                raise BadValue(f"{self.kind} {item.id}: port {replica.port} cannot be its own backup")
        item.active = self._choose(item.replicas)

    def _choose(self, replicas: Sequence[Replica]) -> Copies:
        copies = []
        for replica in replicas:
            choices = ((replica.port, replica.instance), *replica.backups)
            copies.append(next((choice for choice in choices if choice[0] not in self._down), choices[0]))
        return tuple(sorted(copies, key=lambda copy: (copy[1], copy[0])))


class MulticastGroups(_Replication[MulticastGroup]):
    """Multicast groups by id."""

    kind = "multicast group"
    limit = MAX_GROUP

    def copies(self, identity: int) -> Copies:
        """Where a packet for this group goes; nowhere if there is no such group."""
        group = self.items.get(identity)
        return () if group is None else group.active


class CloneSessions(_Replication[CloneSession]):
    """Clone sessions by id."""

    kind = "clone session"
    limit = MAX_SESSION

    def _check(self, item: CloneSession) -> None:
        super()._check(item)
        if item.packet_length < 0 or item.class_of_service < 0:
            raise BadValue(f"clone session {item.id}: length and class of service are not negative")


__all__ = ["CloneSession", "CloneSessions", "Copies", "MulticastGroup", "MulticastGroups", "Replica"]
