"""RECONCILE_AND_COMMIT: another program, the same forwarding state (P4Runtime specification, "SetForwardingPipelineConfig RPC").

What the control plane has written is written again into the new program, by name.  What the new program cannot take, because the
object, an action or a key has gone or changed its shape, makes the whole configuration fail, and the old one stays in force.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from softswitch.errors import SwitchError
from softswitch.program.model import ActionModel, KeyField
from softswitch.runtime import Call, OneShot, OneShotAction, Runtime, Table
from softswitch.runtime.actions import Action
from softswitch.runtime.replication import CloneSession, MulticastGroup
from softswitch.server.actions import WireOneShot
from softswitch.server.codes import invalid, refusal
from softswitch.server.target import Target


def reconcile(old: Target, new: Target) -> None:
    """Copies the state of ``old`` into the fresh ``new``; runs in the data plane's thread.

    Raises:
        Refusal: INVALID_ARGUMENT, the state cannot be preserved.
    """
    try:
        _Copy(old.runtime, new.runtime).run()
        _copy_server_state(old, new)
    except SwitchError as error:
        message = refusal(error).message
        raise invalid(f"the forwarding state cannot be preserved: {message}") from None


def _same_key(first: Sequence[KeyField], second: Sequence[KeyField]) -> bool:
    return [(key.name, key.kind) for key in first] == [(key.name, key.kind) for key in second]


class _Copy:
    def __init__(self, old: Runtime, new: Runtime) -> None:
        self.old = old
        self.new = new

    def run(self) -> None:
        for name, profile in self.old.profiles.items():
            if profile.members or profile.groups:
                self.profile(name)
        for name, table in self.old.tables.items():
            if not table.model.hidden:
                self.table(name, table)
        self.arrays()
        for group in self.old.groups:
            self.new.groups.insert(MulticastGroup(group.id, group.replicas, group.metadata))
        for session in self.old.sessions:
            self.new.sessions.insert(CloneSession(session.id, session.replicas, session.class_of_service, session.packet_length))

    def profile(self, name: str) -> None:
        profile = self.old.profiles[name]
        target = self.found(self.new.profiles, "action profile", name)
        for member in profile.members.values():
            target.insert_member(member.id, self.call(member.call, profile.actions, target.actions, name))
        for group in profile.groups.values():
            target.insert_group(group.id, group.members, group.max_size)

    def table(self, name: str, table: Table) -> None:
        entries = [entry for entry in table.entries() if not entry.const]
        changed = not table.model.default_const and table.default != _initial(table)
        if not entries and not changed:
            return
        target = self.found(self.new.tables, "table", name)
        if entries and not _same_key(table.model.keys, target.model.keys):
            raise invalid(f"table {name} has another key")
        for entry in entries:
            action = self.action(entry.action, table, target)
            added = target.insert(
                entry.match,
                entry.priority,
                action,
                idle_timeout_ns=entry.idle_timeout_ns,
                metadata=entry.metadata,
                controller_metadata=entry.controller_metadata,
            )
            if table.model.with_counters and target.model.with_counters:
                target.write_counter(added, entry.packets, entry.bytes)
            if entry.meter is not None and entry.meter.config is not None:
                target.write_meter(added, entry.meter.config)
        if changed and table.default is not None:
            target.set_default(self.call(table.default, table.model.actions, target.model.actions, name))

    def action(self, action: Action, table: Table, target: Table) -> Action:
        old, new = table.model.actions, target.model.actions
        if isinstance(action, Call):
            return self.call(action, old, new, table.name)
        if not isinstance(action, OneShot):
            return action
        calls = tuple(
            OneShotAction(self.call(item.call, old, new, table.name), item.weight, item.watch_port) for item in action.actions
        )
        if isinstance(action, WireOneShot):
            return WireOneShot(calls, action.mode, action.semantics)
        return OneShot(calls)

    def call(self, call: Call, old: Sequence[ActionModel], new: Sequence[ActionModel], where: str) -> Call:
        action = old[call.action]
        for index, candidate in enumerate(new):
            if candidate.name == action.name:
                if [parameter.name for parameter in candidate.parameters] != [parameter.name for parameter in action.parameters]:
                    raise invalid(f"{where}: action {action.name} has other parameters")
                return Call(index, call.data)
        raise invalid(f"{where}: there is no action {action.name} any more")

    def arrays(self) -> None:
        for name, counter in self.old.counters.items():
            for index, (packets, size) in enumerate(zip(counter.packets, counter.bytes, strict=True)):
                if packets or size:
                    self.found(self.new.counters, "counter", name).write(index, packets, size)
        for name, register in self.old.registers.items():
            for index, value in enumerate(register.cells):
                if value:
                    self.found(self.new.registers, "register", name).write(index, value)
        for name, meter in self.old.meters.items():
            for index, cell in enumerate(meter.cells):
                if cell.config is not None:
                    self.found(self.new.meters, "meter", name).write(index, cell.config)
        for name, value_set in self.old.value_sets.items():
            if value_set.members:
                self.found(self.new.value_sets, "value set", name).set(value_set.members)

    def found(self, objects: dict[str, Any], kind: str, name: str) -> Any:
        if name not in objects:
            raise invalid(f"there is no {kind} {name} any more")
        return objects[name]


def _initial(table: Table) -> Call | None:
    model = table.model
    return None if model.default is None else Call(model.default, model.default_data)


def _copy_server_state(old: Target, new: Target) -> None:
    """Digest configuration, default entries' metadata and group sizes, whose ids may have changed."""
    tables = {table.name: table.id for table in new.schema.tables.values()}
    profiles = {profile.name: profile.id for profile in new.schema.profiles.values()}
    digests = {digest.name: digest.id for digest in new.schema.digests.values()}
    for number, notes in old.defaults.items():
        name = old.schema.tables[number].name
        if name in tables:
            new.defaults[tables[name]] = notes
    for (number, group), size in old.sizes.items():
        name = old.schema.profiles[number].name
        if name in profiles:
            new.sizes[profiles[name], group] = size
    for number, config in old.digests.items():
        name = old.schema.digests[number].name
        if name not in digests:
            raise invalid(f"there is no digest {name} any more")
        new.digests[digests[name]] = config


__all__ = ["reconcile"]
