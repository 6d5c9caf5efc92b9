"""One switch, changed as a whole or not at all.

``prepare`` reads what the switch runs and holds, has it verify the program if it needs it, and works out the changes; nothing
is changed by that.  ``commit`` makes the changes, reads everything back and compares.  If anything fails on the way, the
former state is restored: the former program, and the former entries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from finsy import P4Schema
from finsy.proto import p4i, p4r

from dlcp.fabric.codec import Codec, table_ids
from dlcp.fabric.diff import Change, difference, owned, steps
from dlcp.fabric.entities import Default, Entity, Entry
from dlcp.fabric.errors import FabricError
from dlcp.fabric.intent import DEFAULTS, TABLES
from dlcp.fabric.program import Program
from dlcp.fabric.session import Session

SAME, CHANGED, ABSENT = "same", "changed", "absent"
_MOST_UPDATES: Final = 500


@dataclass
class Held:
    """What a switch runs and holds.

    Attributes:
        program: ``same``: the program that is to be deployed; ``changed``: another; ``absent``: none.
        config: The whole configuration, where it is another one.
        entities: What it holds, as far as this package has words for it; of another program only if that is a version of ours.
    """

    program: str
    config: p4r.ForwardingPipelineConfig | None = None
    entities: list[Entity] = field(default_factory=list)


@dataclass
class Plan:
    """What would be done to one switch.

    Attributes:
        held: What is there.
        wanted: What shall be there, of what is in scope.
        changes: What has to be written for that; everything, where the program has to be set.
        scope: Which entities it is about; the others stay as they are.
    """

    held: Held
    wanted: list[Entity]
    changes: list[Change]
    scope: Callable[[Entity], bool] = owned

    @property
    def sets_program(self) -> bool:
        """Whether the program has to be set, which empties all tables."""
        return self.held.program != SAME

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.changes and not self.sets_program


async def look(session: Session, program: Program) -> Held:
    """Reads what a switch runs and holds; needs no arbitration."""
    config = await session.pipeline(whole=False)
    if config is None:
        config = await session.pipeline(whole=True)  # a target that keeps no cookie, or nothing at all
        if config is None:
            return Held(ABSENT)
        same = config.p4info == program.p4info and config.p4_device_config == program.config
    else:
        same = config.cookie.cookie == program.cookie
    if same:
        return Held(SAME, entities=await read_entities(session, program.schema))
    config = await session.pipeline(whole=True)
    if config is None:
        return Held(ABSENT)
    schema = P4Schema(config.p4info)
    ours = set(TABLES) | set(DEFAULTS) <= set(table_ids(schema))
    return Held(CHANGED, config, await read_entities(session, schema) if ours else [])


async def read_entities(session: Session, schema: P4Schema) -> list[Entity]:
    """Reads the entries of all tables, the default actions that belong to the intent, and the multicast groups."""
    wanted = []
    for table in schema.tables:
        if not table.is_const:
            entry = p4r.TableEntry(table_id=table.id)
            if table.direct_meter is not None:
                entry.meter_config.SetInParent()  # what is not asked for is not told
            wanted.append(p4r.Entity(table_entry=entry))
    numbers = table_ids(schema)
    wanted += [p4r.Entity(table_entry=p4r.TableEntry(table_id=numbers[name], is_default_action=True)) for name in DEFAULTS]
    found = await session.read(wanted)
    # A group that is not there is an error to some targets and nothing to others; to read all of them is neither.
    found += await session.read([_multicast()])
    return Codec(schema).decode(_without_repeats(found))


def plan(held: Held, wanted: Iterable[Entity], program: Program, scope: Callable[[Entity], bool] = owned) -> Plan:
    """Works out what makes a switch hold what is wanted.

    Where the program has to be set, entries of others (permitted jobs, routes) are written again, as far as it has room for them.
    """
    codec = Codec(program.schema)
    wanted = [codec.normal(entity) for entity in wanted]
    if held.program == SAME:
        return Plan(held, wanted, difference(filter(scope, held.entities), wanted), scope)
    kept = [entity for entity in held.entities if isinstance(entity, Entry) and not scope(entity) and codec.knows(entity)]
    return Plan(held, wanted, difference((), [*wanted, *kept]), scope)


async def verify(session: Session, program: Program, planned: Plan) -> None:
    """Has the switch verify the program, if it is to be set, after making sure that what is to be written fits the program."""
    codec = Codec(program.schema)
    try:
        for change in planned.changes:
            codec.update(change)
    except KeyError as error:
        raise session.failed(f"the program has no {error.args[0]}", "build it again with make p4") from None
    if planned.sets_program:
        await session.set_pipeline(program.pipeline(), commit=False)


async def commit(session: Session, program: Program, planned: Plan) -> int:
    """Makes the changes and returns the number of entries written.

    Raises:
        FabricError: The switch refused; its former state is restored, or else the error says so.
        CancelledError: The task was cancelled; the former state is restored.
    """
    former = await _photograph(session, planned.held)
    try:
        if planned.sets_program:
            await session.set_pipeline(program.pipeline(), commit=True)
        written = await _write(session, program, planned.changes)
        left = difference(filter(planned.scope, await read_entities(session, program.schema)), planned.wanted)
        if left:
            raise session.failed(f"it took every update but does not hold them: {left[0]}", "is another controller at work?")
        return written
    except FabricError as error:
        raise await _roll_back(session, program, planned, former, error) from None
    except asyncio.CancelledError:
        # Whoever interrupts wants it to end, not a switch that is half changed.
        await _roll_back(session, program, planned, former, session.failed("interrupted"))
        raise


async def _write(session: Session, program: Program, changes: Iterable[Change]) -> int:
    codec = Codec(program.schema)
    written = 0
    for step in steps(list(changes), _MOST_UPDATES):
        await session.write([codec.update(change) for change in step], [str(change) for change in step])
        written += len(step)
    return written


async def _roll_back(
    session: Session, program: Program, planned: Plan, former: Sequence[p4r.Entity], error: FabricError
) -> FabricError:
    """Restores the former state and returns the error, with what has become of the switch."""
    held, scope = planned.held, planned.scope
    try:
        if held.program == CHANGED and held.config is not None:
            await session.set_pipeline(held.config, commit=True)
            await _write_raw(session, former)
            state = "its former program and entries are restored"
        else:
            before = [Default(name, None) for name in DEFAULTS] if held.program == ABSENT else filter(scope, held.entities)
            now = await read_entities(session, program.schema) if await session.pipeline(whole=False) else ()
            await _write(session, program, difference(filter(scope, now), before if now else ()))
            state = "its former entries are restored" if held.program == SAME else "it had no program, and holds no entries now"
    except FabricError as second:
        state = f"restoring failed too ({second.problem}), so it may hold a part only; deploy again"
    return FabricError(error.switch, error.address, f"{error.problem}; {state}", error.hint)


async def _photograph(session: Session, held: Held) -> list[p4r.Entity]:
    """Reads all that a foreign program's switch holds, as it stands; for our own program the entities are enough."""
    if held.program != CHANGED or held.config is None:
        return []
    info = held.config.p4info
    profiles = [
        *(
            p4r.Entity(action_profile_member=p4r.ActionProfileMember(action_profile_id=each.preamble.id))
            for each in info.action_profiles
        ),
        *(
            p4r.Entity(action_profile_group=p4r.ActionProfileGroup(action_profile_id=each.preamble.id))
            for each in info.action_profiles
        ),
    ]
    tables = [each.preamble.id for each in info.tables if not each.is_const_table]
    entries = [p4r.Entity(table_entry=p4r.TableEntry(table_id=table)) for table in tables]
    defaults = [
        p4r.Entity(table_entry=p4r.TableEntry(table_id=each.preamble.id, is_default_action=True))
        for each in info.tables
        if not each.const_default_action_id
    ]
    meters = [p4r.Entity(meter_entry=p4r.MeterEntry(meter_id=each.preamble.id)) for each in info.meters]
    found = []
    for profile in profiles:  # BMv2 has no members to read in a selector that is programmed by action sets
        found += await session.read([profile], optional=True)
    found += await session.read(entries) if entries else []
    found += await session.read(defaults) if defaults else []
    found += await session.read([_multicast()], optional=True)
    found += await session.read(meters, optional=True) if meters else []
    return [message for message in _without_repeats(found) if not _unchangeable(message, info)]


def _multicast() -> p4r.Entity:
    every = p4r.PacketReplicationEngineEntry(multicast_group_entry=p4r.MulticastGroupEntry())
    return p4r.Entity(packet_replication_engine_entry=every)


def _without_repeats(messages: Iterable[p4r.Entity]) -> list[p4r.Entity]:
    """Leaves out what is there twice: some targets return all tables for one, and defaults with the entries."""
    seen: dict[bytes, p4r.Entity] = {}
    for message in messages:
        seen.setdefault(message.SerializeToString(deterministic=True), message)
    return list(seen.values())


def _unchangeable(message: p4r.Entity, info: p4i.P4Info) -> bool:
    """Whether an entity cannot be written: entries of the program itself, and default actions that were never set."""
    if message.WhichOneof("entity") == "meter_entry":
        return not message.meter_entry.HasField("config")
    if message.WhichOneof("entity") != "table_entry":
        return False
    entry = message.table_entry
    return entry.is_const or (entry.is_default_action and not entry.HasField("action"))


async def _write_raw(session: Session, messages: Sequence[p4r.Entity]) -> None:
    """Writes entities as they were read, those first that others refer to."""
    order = ("packet_replication_engine_entry", "action_profile_member", "action_profile_group", "table_entry", "meter_entry")
    for kind in order:
        updates = []
        for message in messages:
            if message.WhichOneof("entity") == kind:
                modify = kind == "meter_entry" or (kind == "table_entry" and message.table_entry.is_default_action)
                updates.append(p4r.Update(type=p4r.Update.MODIFY if modify else p4r.Update.INSERT, entity=_plain(message)))
        for start in range(0, len(updates), _MOST_UPDATES):
            await session.write(updates[start : start + _MOST_UPDATES])


def _plain(message: p4r.Entity) -> p4r.Entity:
    """Drops what is only read: counters, and the time since the last hit."""
    result = p4r.Entity()
    result.CopyFrom(message)
    if result.WhichOneof("entity") == "table_entry":
        for name in ("counter_data", "meter_counter_data", "time_since_last_hit"):
            result.table_entry.ClearField(name)
    return result


__all__ = ["ABSENT", "CHANGED", "SAME", "Held", "Plan", "commit", "look", "plan", "read_entities", "verify"]
