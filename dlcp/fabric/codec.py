"""Entities to protobuf messages of P4Runtime and back, by the names in a program's P4Info.

Bytes are canonical: as few as hold the number (P4Runtime 1.4, section 8.4).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from finsy import P4Schema
from finsy.p4schema import P4MatchType, P4Table
from finsy.proto import p4r

from dlcp.fabric.diff import Change, Operation
from dlcp.fabric.entities import (
    Action,
    Default,
    Entity,
    Entry,
    MatchValue,
    Meter,
    MulticastGroup,
    Path,
    Reference,
)

T = TypeVar("T")

_UPDATES = {Operation.INSERT: p4r.Update.INSERT, Operation.MODIFY: p4r.Update.MODIFY, Operation.DELETE: p4r.Update.DELETE}


def number_bytes(value: int) -> bytes:
    """Returns the canonical bytes of a number."""
    return value.to_bytes(max((value.bit_length() + 7) // 8, 1), "big")


class Codec:
    """Translates for one program."""

    def __init__(self, schema: P4Schema) -> None:
        self._schema = schema
        self._tables = {_last(table.name): table for table in schema.tables}
        self._actions = {table.id: {_last(action.name): action for action in table.actions} for table in schema.tables}

    def update(self, change: Change) -> p4r.Update:
        """Returns the update that makes a change; KeyError if the program lacks a name."""
        return p4r.Update(type=_UPDATES[change.operation], entity=self.encode(change.entity))

    def encode(self, entity: Entity) -> p4r.Entity:
        """Returns the message of an entity; KeyError if the program lacks a name."""
        if isinstance(entity, MulticastGroup):
            replicas = [p4r.Replica(egress_port=port) for port in entity.ports]
            group = p4r.MulticastGroupEntry(multicast_group_id=entity.id, replicas=replicas)
            return p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(multicast_group_entry=group))
        table = self._table(entity.table)
        message = p4r.TableEntry(table_id=table.id)
        if isinstance(entity, Default):
            message.is_default_action = True
            if entity.action is not None:
                message.action.action.CopyFrom(self._action(table, entity.action))
            return p4r.Entity(table_entry=message)
        message.priority = entity.priority
        message.match.extend(self._match(table, name, value) for name, value in entity.match)
        if isinstance(entity.action, tuple):
            members = [
                p4r.ActionProfileAction(
                    action=self._action(table, path.action),
                    weight=path.weight,
                    watch_port=number_bytes(path.watch_port) if path.watch_port else b"",
                )
                for path in entity.action
            ]
            message.action.action_profile_action_set.action_profile_actions.extend(members)
        elif isinstance(entity.action, Action):
            message.action.action.CopyFrom(self._action(table, entity.action))
        elif entity.action.kind == "group":
            message.action.action_profile_group_id = entity.action.id
        else:
            message.action.action_profile_member_id = entity.action.id
        if entity.meter is not None:
            meter = entity.meter
            message.meter_config.CopyFrom(p4r.MeterConfig(cir=meter.cir, cburst=meter.cburst, pir=meter.pir, pburst=meter.pburst))
        return p4r.Entity(table_entry=message)

    def normal(self, entity: Entity) -> Entity:
        """Returns the entity as :meth:`decode` gives it: a default action that is the program's own is no action."""
        if (
            isinstance(entity, Default)
            and entity.action is not None
            and entity.action == self._initial(self._table(entity.table))
        ):
            return Default(entity.table, None)
        return entity

    def knows(self, entity: Entity) -> bool:
        """Whether the program has all names that an entity uses."""
        try:
            self.encode(entity)
        except KeyError:
            return False
        return True

    def decode(self, messages: Iterable[p4r.Entity]) -> list[Entity]:
        """Returns the entities among ``messages``; what this package has no word for is left out.

        Raises:
            KeyError: A message is about something that the program does not have.
        """
        return [entity for message in messages if (entity := self._decode(message)) is not None]

    def _decode(self, message: p4r.Entity) -> Entity | None:
        kind = message.WhichOneof("entity")
        if kind == "packet_replication_engine_entry":
            replication = message.packet_replication_engine_entry
            if replication.WhichOneof("type") != "multicast_group_entry":
                return None
            group = replication.multicast_group_entry
            return MulticastGroup(group.multicast_group_id, tuple(sorted(_port(replica) for replica in group.replicas)))
        if kind != "table_entry" or message.table_entry.is_const:
            return None
        entry = message.table_entry
        table = self._schema.tables[entry.table_id]
        if entry.is_default_action:
            given = entry.action.WhichOneof("type") == "action"
            return self.normal(Default(_last(table.name), self._decode_action(table, entry.action.action) if given else None))
        fields = {field.field_id: field for field in entry.match}
        match = tuple(
            (field.name, value)
            for field in table.match_fields
            if field.id in fields and (value := _match_value(fields[field.id])) is not None
        )
        meter = None
        if entry.HasField("meter_config"):
            config = entry.meter_config
            meter = Meter(config.cir, config.cburst, config.pir, config.pburst)
        return Entry(_last(table.name), match, self._decode_table_action(table, entry.action), entry.priority, meter)

    def _decode_table_action(self, table: P4Table, action: p4r.TableAction) -> Action | Reference | tuple[Path, ...]:
        kind = action.WhichOneof("type")
        if kind == "action":
            return self._decode_action(table, action.action)
        if kind == "action_profile_action_set":
            members = action.action_profile_action_set.action_profile_actions
            return tuple(
                Path(self._decode_action(table, member.action), int.from_bytes(member.watch_port, "big"), member.weight)
                for member in members
            )
        if kind == "action_profile_group_id":
            return Reference("group", action.action_profile_group_id)
        return Reference("member", action.action_profile_member_id)

    def _decode_action(self, table: P4Table, message: p4r.Action) -> Action:
        action = table.actions[message.action_id]
        given = {param.param_id: int.from_bytes(param.value, "big") for param in message.params}
        return Action(_last(action.name), tuple((param.name, given[param.id]) for param in action.params))

    def _initial(self, table: P4Table) -> Action | None:
        """The default action that the program begins with, where P4Info says it (P4Runtime 1.4 and newer)."""
        initial = table.pbuf.initial_default_action
        if not initial.action_id:
            return None
        arguments = [p4r.Action.Param(param_id=each.param_id, value=each.value) for each in initial.arguments]
        return self._decode_action(table, p4r.Action(action_id=initial.action_id, params=arguments))

    def _table(self, name: str) -> P4Table:
        return _named(self._tables.get(name), f"table {name}")

    def _action(self, table: P4Table, action: Action) -> p4r.Action:
        declared = _named(self._actions[table.id].get(action.name), f"action {action.name} of table {table.alias}")
        params = [
            p4r.Action.Param(param_id=declared.params[name].id, value=number_bytes(value)) for name, value in action.arguments
        ]
        if len(params) != len(declared.params):
            raise KeyError(f"action {action.name} with {len(params)} parameters")
        return p4r.Action(action_id=declared.id, params=params)

    def _match(self, table: P4Table, name: str, value: MatchValue) -> p4r.FieldMatch:
        field = _named(table.match_fields.get(name), f"key {name} of table {table.alias}")
        message = p4r.FieldMatch(field_id=field.id)
        first, second = value if isinstance(value, tuple) else (value, 0)
        if field.match_type == P4MatchType.EXACT:
            message.exact.value = number_bytes(first)
        elif field.match_type == P4MatchType.OPTIONAL:
            message.optional.value = number_bytes(first)
        elif field.match_type == P4MatchType.LPM:
            message.lpm.value, message.lpm.prefix_len = number_bytes(first), second
        elif field.match_type == P4MatchType.RANGE:
            message.range.low, message.range.high = number_bytes(first), number_bytes(second)
        else:
            message.ternary.value, message.ternary.mask = number_bytes(first), number_bytes(second)
        return message


def table_ids(schema: P4Schema) -> dict[str, int]:
    """Returns the number of every table, by the last part of its name."""
    return {_last(table.name): table.id for table in schema.tables}


def _last(name: str) -> str:
    """Aliases have more parts where several objects end alike; within a table nothing does."""
    return name.rpartition(".")[2]


def _named(found: T | None, what: str) -> T:
    if found is None:
        raise KeyError(what)
    return found


def _port(replica: p4r.Replica) -> int:
    if replica.HasField("port"):
        return int.from_bytes(replica.port, "big")
    return int(replica.egress_port)


def _match_value(field: p4r.FieldMatch) -> MatchValue | None:
    kind = field.WhichOneof("field_match_type")

    def number(data: bytes) -> int:
        return int.from_bytes(data, "big")

    if kind == "lpm":
        return (number(field.lpm.value), field.lpm.prefix_len) if field.lpm.prefix_len else None
    if kind == "ternary":
        mask = number(field.ternary.mask)
        return (number(field.ternary.value), mask) if mask else None
    if kind == "range":
        return (number(field.range.low), number(field.range.high))
    return number(field.optional.value if kind == "optional" else field.exact.value)


__all__ = ["Codec", "number_bytes", "table_ids"]
