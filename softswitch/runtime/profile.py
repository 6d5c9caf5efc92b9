"""Action profiles and action selectors: members, groups, and who is selected (P4Runtime specification, section 9.2).

A group keeps the tuple of its members that may be selected now; a member's copies (its weight) stand side by side, members in the
order of their making, as in BMv2.  A member whose watch port is down is left out from the moment the switch learns of it.  A
group without a live member does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from softswitch.errors import BadValue, DuplicateEntry, InUse, NoSuchEntry, OutOfRoom
from softswitch.program.model import ActionModel, ProfileModel
from softswitch.runtime.actions import Call, OneShot, check_call
from softswitch.runtime.entry import NOTHING, Entry, Hit
from softswitch.runtime.journal import Journal

if TYPE_CHECKING:
    from softswitch.runtime.table import Table

MAX_ID = 2**32 - 1
MAX_COPIES = 1 << 16
"""Most copies (members by weight) in one group, whatever the profile's size."""

_NOTHING: Hit = (NOTHING, (), None)


class Member:
    """A member of a profile: an action with arguments that entries and groups refer to.  ``id`` is 0 inside a one-shot group."""

    __slots__ = ("call", "groups", "hit", "id", "serial", "users")

    def __init__(self, identity: int, call: Call, serial: int) -> None:
        self.id = identity
        self.serial = serial
        self.users: dict[Entry, Table] = {}
        self.groups: dict[Group, None] = {}
        self.assign(call)

    def assign(self, call: Call) -> None:
        """Set what the member does; the caller refreshes those that refer to it."""
        self.call = call
        self.hit: Hit = (call.action, call.data, None)


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member's place in a group: ``weight`` at least 1; it is left out while ``watch_port`` (None: no port) is down."""

    member: int
    weight: int = 1
    watch_port: int | None = None


class Group:
    """A group of a selector.

    Attributes:
        id: 0 for a one-shot group.
        members: As the control plane gave them.
        active: The hits to choose from now, never empty: compiled code may index it itself.
    """

    __slots__ = ("active", "id", "max_size", "members", "rows", "users")

    def __init__(self, identity: int, max_size: int = 0) -> None:
        self.id = identity
        self.max_size = max_size
        self.members: tuple[GroupMember, ...] = ()
        self.users: dict[Entry, Table] = {}
        self.active: tuple[Hit, ...] = (_NOTHING,)
        self.rows: tuple[tuple[Member, int, int | None], ...] = ()

    def select(self, hash_value: int) -> Hit:
        """The hit for a packet with this hash over the selector's fields."""
        active = self.active
        return active[hash_value % len(active)]

    def fill(self, members: tuple[GroupMember, ...], rows: Iterable[tuple[Member, int, int | None]], down: Set[int]) -> None:
        """Set the membership: ``rows`` are member, weight, watch port."""
        for member, _weight, _port in self.rows:
            member.groups.pop(self, None)
        self.members = members
        self.rows = tuple(sorted(rows, key=lambda row: row[0].serial))
        for member, _weight, _port in self.rows:
            member.groups[self] = None
        self.refresh(down)

    def refresh(self, down: Set[int]) -> None:
        """Make ``active`` again after a member, or a port's state, has changed."""
        active: list[Hit] = []
        for member, weight, port in self.rows:
            if port not in down:
                active += [member.hit] * weight
        self.active = tuple(active) or (_NOTHING,)

    def watches(self, port: int) -> bool:
        """Whether some member depends on this port."""
        return any(watched == port for _member, _weight, watched in self.rows)

    @property
    def copies(self) -> int:
        """Sum of the weights."""
        return sum(weight for _member, weight, _port in self.rows)


class Profile:
    """An action profile, or with ``model.algorithm`` an action selector.

    Attributes:
        actions: Those of the tables that share it; ``Call.action`` of a member indexes it.
        max_group_size: Most copies in one group, 0 for no limit; from P4Info, as BMv2's JSON does not have it.
    """

    def __init__(self, model: ProfileModel, actions: Sequence[ActionModel], journal: Journal, down: Set[int]) -> None:
        self.model = model
        self.name = model.name
        self.actions = tuple(actions)
        self.members: dict[int, Member] = {}
        self.groups: dict[int, Group] = {}
        self.max_group_size = 0
        self._journal = journal
        self._down = down
        self._serial = 0
        self._watching: dict[Group, None] = {}
        self._oneshots = 0
        self._copies = 0

    @property
    def selects(self) -> bool:
        """Whether groups are possible."""
        return self.model.algorithm is not None

    # --- members

    def insert_member(self, identity: int, call: Call) -> Member:
        """Add a member.

        Raises:
            DuplicateEntry: There is one with this id.
            OutOfRoom: ``model.size`` members are there.
            BadValue: Id 0, an action that does not fit, or the profile is in use by one-shot entries.
        """
        self._check_id(identity)
        self.check_manual()
        if identity in self.members:
            raise DuplicateEntry(f"{self.name}: member {identity} exists")
        check_call(call, self.actions, self.name)
        if 0 < self.model.size <= len(self.members):
            raise OutOfRoom(f"{self.name}: full with {len(self.members)} members")
        member = Member(identity, call, self._next())
        self.members[identity] = member
        self._journal.record(self.members.pop, identity)
        return member

    def modify_member(self, identity: int, call: Call) -> None:
        """Change what a member does, in every entry and group that refers to it."""
        member = self.member(identity)
        check_call(call, self.actions, self.name)
        self._journal.record(self._assign, member, member.call)
        self._assign(member, call)

    def delete_member(self, identity: int) -> None:
        """Remove a member; ``InUse`` if an entry or group refers to it."""
        member = self.member(identity)
        if member.users or member.groups:
            raise InUse(f"{self.name}: member {identity} is in use")
        del self.members[identity]
        self._journal.record(self.members.__setitem__, identity, member)

    def member(self, identity: int) -> Member:
        """The member with this id, or ``NoSuchEntry``."""
        member = self.members.get(identity)
        if member is None:
            raise NoSuchEntry(f"{self.name}: there is no member {identity}")
        return member

    def _assign(self, member: Member, call: Call) -> None:
        member.assign(call)
        for group in member.groups:
            group.refresh(self._down)
        for entry, table in member.users.items():
            table.refresh(entry)

    # --- groups

    def insert_group(self, identity: int, members: Sequence[GroupMember], max_size: int = 0) -> Group:
        """Add a group over existing members.

        Raises:
            DuplicateEntry: There is one with this id.
            NoSuchEntry: A member does not exist.
            BadValue: Id 0, no selector, a member twice, a weight below 1, ``max_size`` beyond ``max_group_size``, or the
                profile is in use by one-shot entries.
            OutOfRoom: More copies than the group or the selector may have.
        """
        self._check_id(identity)
        self._check_selects()
        self.check_manual()
        if identity in self.groups:
            raise DuplicateEntry(f"{self.name}: group {identity} exists")
        if max_size < 0 or 0 < self.max_group_size < max_size:
            raise BadValue(f"{self.name}: group size {max_size} is not in 0..{self.max_group_size}")
        rows = self._resolve(members, max_size, 0)
        group = Group(identity, max_size)
        self.groups[identity] = group
        self._fill(group, tuple(members), rows)
        self._journal.record(self._drop, group)
        return group

    def modify_group(self, identity: int, members: Sequence[GroupMember], max_size: int | None = None) -> None:
        """Set a group's members; ``max_size`` is the one it was inserted with, or None not to compare it."""
        group = self.group(identity)
        if max_size is not None and max_size != group.max_size:
            raise BadValue(f"{self.name}: the size of group {identity} cannot change from {group.max_size} to {max_size}")
        rows = self._resolve(members, group.max_size, group.copies)
        self._journal.record(self._fill, group, group.members, group.rows)
        self._fill(group, tuple(members), rows)

    def delete_group(self, identity: int) -> None:
        """Remove a group; ``InUse`` if an entry refers to it."""
        group = self.group(identity)
        if group.users:
            raise InUse(f"{self.name}: group {identity} is in use")
        self._journal.record(self._readd, group, group.members, group.rows)
        self._drop(group)

    def group(self, identity: int) -> Group:
        """The group with this id, or ``NoSuchEntry``."""
        group = self.groups.get(identity)
        if group is None:
            raise NoSuchEntry(f"{self.name}: there is no group {identity}")
        return group

    def _resolve(self, members: Sequence[GroupMember], max_size: int, freed: int) -> list[tuple[Member, int, int | None]]:
        rows: dict[int, tuple[Member, int, int | None]] = {}
        for place in members:
            if place.member in rows:
                raise BadValue(f"{self.name}: member {place.member} stands twice in the group")
            if place.weight < 1:
                raise BadValue(f"{self.name}: weight {place.weight} of member {place.member} is below 1")
            rows[place.member] = (self.member(place.member), place.weight, place.watch_port)
        self._check_room(sum(place.weight for place in members), max_size, freed)
        return list(rows.values())

    def _check_room(self, copies: int, max_size: int, freed: int) -> None:
        limit = max_size or self.max_group_size or MAX_COPIES
        if copies > min(limit, MAX_COPIES):
            raise OutOfRoom(f"{self.name}: {copies} members by weight are more than the {limit} of the group")
        used = self._copies - freed
        if 0 < self.model.size < used + copies:
            raise OutOfRoom(f"{self.name}: no room for {copies} members by weight, {used} of {self.model.size} are taken")

    def _fill(self, group: Group, members: tuple[GroupMember, ...], rows: Iterable[tuple[Member, int, int | None]]) -> None:
        self._copies -= group.copies
        group.fill(members, rows, self._down)
        self._copies += group.copies
        if any(port is not None for _member, _weight, port in group.rows):
            self._watching[group] = None
        else:
            self._watching.pop(group, None)

    def _drop(self, group: Group) -> None:
        self._fill(group, (), ())
        self.groups.pop(group.id, None)

    def _readd(self, group: Group, members: tuple[GroupMember, ...], rows: Iterable[tuple[Member, int, int | None]]) -> None:
        self.groups[group.id] = group
        self._fill(group, members, rows)

    # --- one-shot groups

    def check_oneshot(self, oneshot: OneShot, replaced: Group | None) -> None:
        """Raise ``BadValue`` or ``OutOfRoom`` unless an entry may hold this group instead of the one it has."""
        self._check_selects()
        if self.members or self.groups:
            raise BadValue(f"{self.name}: members and groups are in use; one-shot entries cannot be mixed with them")
        for action in oneshot.actions:
            check_call(action.call, self.actions, self.name)
            if action.weight < 1:
                raise BadValue(f"{self.name}: weight {action.weight} is below 1")
        copies = sum(action.weight for action in oneshot.actions)
        if copies > (limit := min(self.max_group_size or MAX_COPIES, MAX_COPIES)):
            raise BadValue(f"{self.name}: {copies} actions by weight are more than the {limit} of a group")
        self._check_room(copies, 0, replaced.copies if replaced is not None else 0)

    def make_oneshot(self, oneshot: OneShot) -> Group:
        """A group for one entry, which gives it back by ``free_oneshot``."""
        group = Group(0)
        rows = [(Member(0, action.call, self._next()), action.weight, action.watch_port) for action in oneshot.actions]
        self._fill(group, (), rows)
        self._oneshots += 1
        return group

    def free_oneshot(self, group: Group) -> None:
        """Forget the group of an entry that is gone."""
        self._fill(group, (), ())
        self._oneshots -= 1

    # --- ports

    def port_changed(self, port: int) -> None:
        """Choose again which members take part, after a port went up or down."""
        for group in self._watching:
            if group.watches(port):
                group.refresh(self._down)

    def _check_id(self, identity: int) -> None:
        if not 0 < identity <= MAX_ID:
            raise BadValue(f"{self.name}: id {identity} is not in 1..{MAX_ID}")

    def _check_selects(self) -> None:
        if not self.selects:
            raise BadValue(f"{self.name}: an action profile without selector has no groups")

    def check_manual(self) -> None:
        if self._oneshots:
            raise BadValue(f"{self.name}: one-shot entries are in use; members and groups cannot be mixed with them")

    def _next(self) -> int:
        self._serial += 1
        return self._serial


__all__ = ["Group", "GroupMember", "Member", "Profile"]
