"""A match-action table: what the control plane writes, and the dictionary that the data plane reads.

Theory of operation.  The data plane's lookup is one C-level call, ``dict.__getitem__`` of a dictionary whose identity never
changes:

- exact tables: it maps each key to the hit of its entry, and ``__missing__`` gives the default hit;
- all others: it is a bounded cache in front of the classifier, filled by ``__missing__`` and cleared by every write.

A hit is a tuple made when the entry is written, so that a lookup makes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from softswitch.errors import BadValue, DuplicateEntry, Immutable, NoSuchEntry, OutOfRoom
from softswitch.program.model import ConstEntry, Match, MeterModel, TableModel
from softswitch.runtime.actions import Action, Call, GroupRef, MemberRef, OneShot, check_call
from softswitch.runtime.classifier import TupleSpace
from softswitch.runtime.entry import GROUP, NOTHING, Entry, Hit
from softswitch.runtime.journal import Journal
from softswitch.runtime.keys import KeySchema
from softswitch.runtime.meter import Meter, MeterConfig
from softswitch.runtime.profile import Profile

CACHE_SIZE = 8192
"""Keys that the cache in front of a classifier holds before it is emptied."""

Key = int | tuple[int, ...]


class _Hits(dict[Any, Hit]):
    """What the data plane reads.  ``find`` is None for an exact table."""

    __slots__ = ("find", "miss")

    find: Callable[[Any], Entry | None] | None
    miss: Hit

    def __missing__(self, key: Any) -> Hit:
        if self.find is None:
            return self.miss
        entry = self.find(key)
        hit = self.miss if entry is None else entry.hit
        if len(self) >= CACHE_SIZE:
            self.clear()
        self[key] = hit
        return hit


class Table:
    """A table.  All writes come from the thread that runs the data plane.

    Attributes:
        lookup: ``lookup(key) -> Hit`` for compiled code to bind once: an int for a table with one field, a tuple of ints for
            several, ``()`` for none; static masks already applied.  It never raises for such keys.
        const: Entries can neither be inserted, deleted nor given another action.
    """

    def __init__(
        self,
        model: TableModel,
        *,
        journal: Journal,
        clock: Callable[[], int],
        profile: Profile | None = None,
        meter: MeterModel | None = None,
    ) -> None:
        self.model = model
        self.name = model.name
        self.profile = profile
        self.schema = KeySchema(model)
        self.const = bool(model.const_entries)
        self._journal = journal
        self._clock = clock
        self._meter = meter
        self._entries: dict[tuple[Match, int], Entry] = {}
        self._space = None if self.schema.exact else TupleSpace(self.schema)
        self._single = len(model.keys) == 1
        self._serial = 0
        self._hits = _Hits()
        self._hits.find = None if self._space is None else self._space.find
        self._initial = None if model.default is None else Call(model.default, model.default_data)
        self._default = self._initial
        self._set_default(self._initial)
        self.lookup: Callable[[Any], Hit] = self._hits.__getitem__
        self._load(model.const_entries)

    def __len__(self) -> int:
        return len(self._entries)

    # --- entries

    def insert(
        self,
        match: Match,
        priority: int,
        action: Action,
        *,
        idle_timeout_ns: int = 0,
        metadata: bytes = b"",
        controller_metadata: int = 0,
    ) -> Entry:
        """Add an entry.

        Raises:
            BadValue: The match, priority or action does not fit the table (see ``KeySchema.check`` and ``check_call``).
            DuplicateEntry: There is one with this match and priority.
            NoSuchEntry: The member or group does not exist.
            OutOfRoom: The table is full.
            Immutable: The table's entries are const.
        """
        if self.const:
            raise Immutable(f"{self.name}: the program fixes this table's entries")
        match = self.schema.check(match, priority)
        self._check_action(action)
        self._check_timeout(idle_timeout_ns)
        if (match, priority) in self._entries:
            raise DuplicateEntry(f"{self.name}: there is an entry {match} with priority {priority}")
        if 0 < self.model.size <= len(self._entries):
            raise OutOfRoom(f"{self.name}: full with {len(self._entries)} entries")
        entry = Entry(match, priority, action, self._next())
        entry.idle_timeout_ns = idle_timeout_ns
        entry.metadata = metadata
        entry.controller_metadata = controller_metadata
        if self.model.support_timeout:
            entry.last_hit = self._clock() // 1000
        if self._meter is not None:
            entry.meter = Meter(self._meter.unit)
        self._add(entry)
        self._journal.record(self._remove, entry)
        return entry

    def modify(
        self,
        match: Match,
        priority: int,
        action: Action | None,
        *,
        idle_timeout_ns: int = 0,
        metadata: bytes = b"",
        controller_metadata: int = 0,
    ) -> Entry:
        """Change an entry in place; None leaves its action.  Counters stay; the meter is not touched.  Errors as for
        ``insert``."""
        entry = self.get(match, priority)
        if entry.const:
            raise Immutable(f"{self.name}: the program fixes the entry {entry.match}")
        self._check_timeout(idle_timeout_ns)
        if action is not None:
            self._check_action(action, entry)
        self._journal.record(
            self._change, entry, entry.action, entry.idle_timeout_ns, entry.metadata, entry.controller_metadata, entry.last_hit
        )
        last_hit = self._clock() // 1000 if self.model.support_timeout else 0
        self._change(entry, entry.action if action is None else action, idle_timeout_ns, metadata, controller_metadata, last_hit)
        return entry

    def delete(self, match: Match, priority: int) -> None:
        """Remove an entry, or raise ``NoSuchEntry``, ``Immutable``, ``BadValue``."""
        if self.const:
            raise Immutable(f"{self.name}: the program fixes this table's entries")
        entry = self.get(match, priority)
        if entry.const:
            raise Immutable(f"{self.name}: the program fixes the entry {entry.match}")
        self._remove(entry)
        self._journal.record(self._add, entry)

    def get(self, match: Match, priority: int) -> Entry:
        """The entry with this match and priority, or ``NoSuchEntry``, or ``BadValue`` for a match that cannot be."""
        match = self.schema.check(match, priority)
        entry = self._entries.get((match, priority))
        if entry is None:
            raise NoSuchEntry(f"{self.name}: there is no entry {match} with priority {priority}")
        return entry

    def entries(self) -> Iterator[Entry]:
        """All entries, the default one not among them."""
        return iter(self._entries.values())

    # --- default action

    @property
    def default(self) -> Call | None:
        """What a miss does; None for nothing."""
        return self._default

    @property
    def miss(self) -> Hit:
        """The hit of a miss, also of a table without key."""
        return self._hits.miss

    def set_default(self, call: Call) -> None:
        """Set what a miss does; ``Immutable`` if the program fixes it, ``BadValue`` if it does not fit or the table is
        indirect."""
        if self.model.default_const:
            raise Immutable(f"{self.name}: the program fixes the default action")
        if self.profile is not None:
            raise BadValue(f"{self.name}: the default action of a table with an action profile cannot be set")
        check_call(call, self.model.actions, self.name)
        self._journal.record(self._set_default, self._default)
        self._set_default(call)

    def reset_default(self) -> None:
        """Go back to the program's default action."""
        if self.model.default_const:
            raise Immutable(f"{self.name}: the program fixes the default action")
        self._journal.record(self._set_default, self._default)
        self._set_default(self._initial)

    # --- direct resources

    def write_counter(self, entry: Entry, packets: int, bytes: int) -> None:
        """Set an entry's direct counter."""
        if not self.model.with_counters:
            raise BadValue(f"{self.name}: the table has no direct counter")
        if packets < 0 or bytes < 0:
            raise BadValue(f"{self.name}: counters are not negative")
        self._journal.record(self._set_counter, entry, entry.packets, entry.bytes)
        self._set_counter(entry, packets, bytes)

    def write_meter(self, entry: Entry, config: MeterConfig | None) -> None:
        """Set an entry's direct meter; None makes all packets green."""
        meter = entry.meter
        if meter is None:
            raise BadValue(f"{self.name}: the table has no direct meter")
        if config is not None:
            config.check(self.name)
        self._journal.record(meter.restore, meter.state())
        meter.configure(config)

    def idle(self, now_us: int) -> list[Entry]:
        """The entries that no packet has hit for their timeout."""
        return [
            entry
            for entry in self._entries.values()
            if entry.idle_timeout_ns and (now_us - entry.last_hit) * 1000 >= entry.idle_timeout_ns
        ]

    def refresh(self, entry: Entry) -> None:
        """Make an entry's hit again, after the member it refers to has changed."""
        action = entry.action
        if isinstance(action, Call):
            entry.hit = (action.action, action.data, entry)
        elif isinstance(action, MemberRef) and self.profile is not None:
            call = self.profile.members[action.id].call
            entry.hit = (call.action, call.data, entry)
        elif entry.group is not None:
            entry.hit = (GROUP, entry.group, entry)
        if self._space is None:
            self._hits[self._key(entry.match)] = entry.hit
        else:
            self._hits.clear()

    # --- inside

    def _add(self, entry: Entry) -> None:
        self._entries[entry.match, entry.priority] = entry
        if self._space is not None:
            self._space.add(entry)
        self._attach(entry)

    def _remove(self, entry: Entry) -> None:
        del self._entries[entry.match, entry.priority]
        if self._space is None:
            del self._hits[self._key(entry.match)]
        else:
            self._space.remove(entry)
            self._hits.clear()
        self._detach(entry)

    def _change(
        self, entry: Entry, action: Action, timeout: int, metadata: bytes, controller_metadata: int, last_hit: int
    ) -> None:
        if action is not entry.action:
            self._detach(entry)
            entry.action = action
            self._attach(entry)
        entry.idle_timeout_ns = timeout
        entry.metadata = metadata
        entry.controller_metadata = controller_metadata
        entry.last_hit = last_hit

    def _attach(self, entry: Entry) -> None:
        action = entry.action
        profile = self.profile
        if profile is not None:
            if isinstance(action, MemberRef):
                profile.members[action.id].users[entry] = self
            elif isinstance(action, GroupRef):
                entry.group = profile.groups[action.id]
                entry.group.users[entry] = self
            elif isinstance(action, OneShot):
                entry.group = profile.make_oneshot(action)
        self.refresh(entry)

    def _detach(self, entry: Entry) -> None:
        action = entry.action
        profile = self.profile
        if profile is None:
            return
        if isinstance(action, MemberRef):
            del profile.members[action.id].users[entry]
        elif entry.group is not None:
            if isinstance(action, OneShot):
                profile.free_oneshot(entry.group)
            else:
                del entry.group.users[entry]
            entry.group = None

    def _check_action(self, action: Action, entry: Entry | None = None) -> None:
        if isinstance(action, Call):
            if self.profile is not None:
                raise BadValue(f"{self.name}: entries of this table refer to members or groups of {self.profile.name}")
            check_call(action, self.model.actions, self.name)
        elif self.profile is None:
            raise BadValue(f"{self.name}: the table has no action profile")
        elif isinstance(action, MemberRef):
            self.profile.check_manual()
            self.profile.member(action.id)
        elif isinstance(action, GroupRef):
            self.profile.check_manual()
            self.profile.group(action.id)
        else:
            self.profile.check_oneshot(action, entry.group if entry is not None else None)

    def _check_timeout(self, idle_timeout_ns: int) -> None:
        if idle_timeout_ns < 0 or (idle_timeout_ns and not self.model.support_timeout):
            raise BadValue(f"{self.name}: idle timeout {idle_timeout_ns} is not possible in this table")

    def _set_default(self, call: Call | None) -> None:
        self._default = call
        self._hits.miss = (NOTHING, (), None) if call is None else (call.action, call.data, None)
        if self._space is not None:
            self._hits.clear()

    def _set_counter(self, entry: Entry, packets: int, bytes: int) -> None:
        entry.packets = packets
        entry.bytes = bytes

    def _load(self, entries: tuple[ConstEntry, ...]) -> None:
        """Take the program's entries.  Their lowest priority number wins; in this class the highest does."""
        top = 1 + max((entry.priority for entry in entries), default=0)
        for const in entries:
            match = self.schema.relax(const.match)
            priority = top - const.priority if self.schema.prioritized else 0
            entry = Entry(match, priority, Call(const.action, const.data), self._next(), const=True)
            if self._meter is not None:
                entry.meter = Meter(self._meter.unit)
            if (match, priority) not in self._entries:
                self._add(entry)

    def _key(self, match: Match) -> object:
        return match[0] if self._single else match

    def _next(self) -> int:
        self._serial += 1
        return self._serial


__all__ = ["CACHE_SIZE", "Key", "Table"]
