"""All state of one running program: what the control plane writes and the data plane reads."""

from __future__ import annotations

import random as random_module
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager

from softswitch.errors import UnsupportedConstruct
from softswitch.program.model import ActionModel, ControlModel, Parameter, TableModel
from softswitch.runtime.arrays import CounterArray, MeterArray, RegisterArray
from softswitch.runtime.digest import DigestQueue
from softswitch.runtime.journal import Journal
from softswitch.runtime.profile import Profile
from softswitch.runtime.replication import CloneSessions, MulticastGroups
from softswitch.runtime.table import Table
from softswitch.runtime.valueset import ValueSet


class Runtime:
    """The state of a program.  Not thread-safe: everything runs in the data plane's thread.

    Args:
        control: What the program declares.
        random: Source of the program's random numbers.
        clock: Nanoseconds, monotonic, with the same origin as the pipeline's ``now`` (idle timeouts compare the two).

    Attributes:
        tables, profiles, counters, meters, registers, value_sets: By fully qualified name.  Direct counters and meters are not
            among them: they live in the entries.
        sessions: Clone sessions.
        groups: Multicast groups.
        digests: Digests to be sent.
        drops: Packets dropped inside the pipelines, by cause.
        down: Ports that are down.
    """

    def __init__(self, control: ControlModel, *, random: random_module.Random, clock: Callable[[], int]) -> None:
        self.control = control
        self.random = random
        self.clock = clock
        self.down: set[int] = set()
        self.drops: Counter[str] = Counter()
        self.digests = DigestQueue()
        self._journal = journal = Journal()
        self.profiles = {
            name: Profile(model, _profile_actions(control, name), journal, self.down) for name, model in control.profiles.items()
        }
        self.tables = {
            name: Table(
                model,
                journal=journal,
                clock=self._now,
                profile=None if model.profile is None else self.profiles[model.profile],
                meter=None if model.direct_meter is None else control.meters[model.direct_meter],
            )
            for name, model in control.tables.items()
        }
        self.counters = {name: CounterArray(model, journal) for name, model in control.counters.items() if model.table is None}
        self.meters = {name: MeterArray(model, journal) for name, model in control.meters.items() if model.table is None}
        self.registers = {name: RegisterArray(model, journal) for name, model in control.registers.items()}
        self.value_sets = {name: ValueSet(model, journal) for name, model in control.value_sets.items()}
        self.groups = MulticastGroups(journal, self.down)
        self.sessions = CloneSessions(journal, self.down)

    def transaction(self) -> AbstractContextManager[None]:
        """``with runtime.transaction():`` takes back every control-plane write of its body if the body raises.  Transactions
        nest."""
        return self._journal.transaction()

    def set_port_state(self, port: int, up: bool) -> None:
        """Tell of a port that went up or down: members that watch it leave or rejoin their groups, replicas change to backups.
        Not part of a transaction."""
        if up == (port not in self.down):
            return
        if up:
            self.down.discard(port)
        else:
            self.down.add(port)
        for profile in self.profiles.values():
            profile.port_changed(port)
        self.groups.port_changed(port)
        self.sessions.port_changed(port)

    def _now(self) -> int:
        return self.clock()


def _profile_actions(control: ControlModel, profile: str) -> tuple[ActionModel, ...]:
    tables = [table for table in control.tables.values() if table.profile == profile]
    if not tables:
        return ()
    for table in tables[1:]:
        # p4c gives each table a copy of an action, with an id of its own.
        if _shapes(table) != _shapes(tables[0]):
            raise UnsupportedConstruct(
                f"table {table.name}",
                f"shares action profile {profile} with {tables[0].name} but has other actions, or in another order",
            )
    return tables[0].actions


def _shapes(table: TableModel) -> list[tuple[str, tuple[Parameter, ...]]]:
    return [(action.name, action.parameters) for action in table.actions]


__all__ = ["Runtime"]
