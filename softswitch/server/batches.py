"""Batches of updates and of queries (P4Runtime specification, "Write RPC" and "Read RPC").

An update is first checked and translated in the server's thread; what is left to do then runs in the data plane's thread.  A
batch that continues on errors goes there in slices, so that packets wait for a slice at most.  One that rolls back, or is atomic
to the data plane, goes there whole: no packet sees half of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from finsy.proto import p4r

from softswitch.errors import SwitchError
from softswitch.server import arrays, profiles, replication, table_reads, tables, value_sets
from softswitch.server.codes import BatchRefusal, Code, Refusal, invalid, refusal
from softswitch.server.schema import Schema
from softswitch.server.target import Operation, Query, Target

LOGGER = logging.getLogger("softswitch.server")

T = TypeVar("T")
Call = Callable[[Callable[[], Any]], Any]
"""``Device.call``."""
Allowed = Callable[[int], bool]
"""Tells of a P4 id whether the role may touch it; 0 stands for what has none (replication)."""

SLICE = 256
"""Updates that the data plane's thread does at once, at most."""
ENTITY_ROOM = 1 << 19
"""Bytes of entities in one ReadResponse, about; a client takes 4 MiB unless told otherwise."""

_PLANS: dict[str, Callable[[Schema, int, Any, Target], Operation]] = {
    "table_entry": tables.plan_entry,
    "action_profile_member": lambda schema, kind, message, _: profiles.plan_member(schema, kind, message),
    "action_profile_group": profiles.plan_group,
    "meter_entry": lambda schema, kind, message, _: arrays.plan_meter(schema, kind, message),
    "direct_meter_entry": lambda schema, kind, message, _: tables.plan_direct_meter(schema, kind, message),
    "counter_entry": lambda schema, kind, message, _: arrays.plan_counter(schema, kind, message),
    "direct_counter_entry": lambda schema, kind, message, _: tables.plan_direct_counter(schema, kind, message),
    "packet_replication_engine_entry": lambda _, kind, message, target: replication.plan_replication(kind, message, target),
    "value_set_entry": lambda schema, kind, message, _: value_sets.plan_value_set(schema, kind, message),
    "register_entry": lambda schema, kind, message, _: arrays.plan_register(schema, kind, message),
    "digest_entry": lambda schema, kind, message, _: value_sets.plan_digest(schema, kind, message),
}
_QUERIES: dict[str, Callable[[Schema, Any], list[Query]]] = {
    "table_entry": table_reads.read_entries,
    "action_profile_member": profiles.read_members,
    "action_profile_group": profiles.read_groups,
    "meter_entry": arrays.read_meters,
    "direct_meter_entry": table_reads.read_direct_meters,
    "counter_entry": arrays.read_counters,
    "direct_counter_entry": table_reads.read_direct_counters,
    "packet_replication_engine_entry": lambda _, message: replication.read_replication(message),
    "value_set_entry": value_sets.read_value_sets,
    "register_entry": arrays.read_registers,
    "digest_entry": value_sets.read_digests,
}
_IDS: dict[str, Callable[[Any], int]] = {
    "table_entry": lambda message: message.table_id,
    "action_profile_member": lambda message: message.action_profile_id,
    "action_profile_group": lambda message: message.action_profile_id,
    "meter_entry": lambda message: message.meter_id,
    "direct_meter_entry": lambda message: message.table_entry.table_id,
    "counter_entry": lambda message: message.counter_id,
    "direct_counter_entry": lambda message: message.table_entry.table_id,
    "packet_replication_engine_entry": lambda message: 0,
    "value_set_entry": lambda message: message.value_set_id,
    "register_entry": lambda message: message.register_id,
    "digest_entry": lambda message: message.digest_id,
    "extern_entry": lambda message: message.extern_id,
}


def entity_id(entity: p4r.Entity) -> int:
    """Returns the P4 id of what an entity belongs to, or 0."""
    kind = entity.WhichOneof("entity")
    return 0 if kind is None else _IDS[kind](getattr(entity, kind))


def plan(update: p4r.Update, target: Target, allowed: Allowed | None = None) -> Operation:
    """Checks and translates one update.

    Raises:
        SwitchError: It cannot be done.
    """
    entity = update.entity
    which = entity.WhichOneof("entity")
    if which is None:
        raise invalid("the entity is not set")
    kind = update.type
    if kind not in (p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE):
        raise invalid(f"update type {kind} is unknown or not set")
    planner = _PLANS.get(which)
    if planner is None:
        raise Refusal(Code.UNIMPLEMENTED, f"{which} is not supported")
    message = getattr(entity, which)
    if allowed is not None and not allowed(_IDS[which](message)):
        raise Refusal(Code.PERMISSION_DENIED, f"the role may not write {which} with id {_IDS[which](message):#x}")
    return planner(target.schema, kind, message, target)


def _failure(error: Exception) -> Refusal:
    """Returns what to tell of an error.  One that nobody foresaw must not take the server down with it."""
    if isinstance(error, SwitchError):
        return refusal(error)
    LOGGER.error("an update or query failed", exc_info=error)
    return Refusal(Code.INTERNAL, f"{type(error).__name__}: {error}")


def _attempt(function: Callable[..., T], items: Iterable[Any], *args: Any) -> list[T | Refusal]:
    """Calls ``function(item, *args)`` for each item that is no refusal yet; a refusal stands in for the result."""
    results: list[T | Refusal] = []
    for item in items:
        if item.__class__ is Refusal:
            results.append(item)
            continue
        try:
            results.append(function(item, *args))
        except Exception as error:
            results.append(_failure(error))
    return results


def write(target: Target, call: Call, updates: Sequence[p4r.Update], atomicity: int, allowed: Allowed | None = None) -> None:
    """Carries out the updates of a ``WriteRequest``.

    Raises:
        BatchRefusal: Some failed.
        Refusal: The whole batch is refused.
    """
    modes = p4r.WriteRequest.CONTINUE_ON_ERROR, p4r.WriteRequest.ROLLBACK_ON_ERROR, p4r.WriteRequest.DATAPLANE_ATOMIC
    if atomicity not in modes:
        raise invalid(f"atomicity {atomicity} is unknown")
    plans = _attempt(plan, updates, target, allowed)
    if atomicity == p4r.WriteRequest.CONTINUE_ON_ERROR:
        results = _each(target, call, plans)
    else:
        results = _all_or_none(target, call, plans)
    if any(results):
        raise BatchRefusal(results)


def _each(target: Target, call: Call, plans: Sequence[Operation | Refusal]) -> list[Refusal | None]:
    def carry_out(operation: Operation) -> None:
        operation(target)

    results: list[Refusal | None] = []
    for start in range(0, len(plans), SLICE):
        results += call(partial(_attempt, carry_out, plans[start : start + SLICE]))
    return results


def _all_or_none(target: Target, call: Call, plans: Sequence[Operation | Refusal]) -> list[Refusal | None]:
    failed = {number: item for number, item in enumerate(plans) if isinstance(item, Refusal)}

    def run() -> None:
        number = 0
        try:
            with target.transaction():
                for operation in plans:
                    operation(target)  # type: ignore[operator]
                    number += 1
        except Exception as error:
            failed[number] = _failure(error)

    if not failed:
        call(run)
    if not failed:
        return []
    undone = Refusal(Code.ABORTED, "not done, as another update of the batch failed")
    return [failed.get(number, undone) for number in range(len(plans))]


def read(
    target: Target, call: Call, entities: Iterable[p4r.Entity], allowed: Allowed | None = None
) -> Iterator[p4r.ReadResponse]:
    """Copies what a ``ReadRequest`` asks for, at once, and returns an iterator that makes the answers.

    The iterator ends with a ``BatchRefusal`` if some queries failed.
    """

    def queries(entity: p4r.Entity) -> list[Query]:
        which = entity.WhichOneof("entity")
        if which is None:
            raise invalid("the entity is not set")
        if which == "extern_entry":
            if entity.extern_entry.extern_type_id:
                raise Refusal(Code.NOT_FOUND, "there are no externs")
            return []
        return _QUERIES[which](target.schema, getattr(entity, which))

    plans = _attempt(queries, entities)

    def gather(item: list[Query]) -> list[tuple[Callable[[Any], p4r.Entity], list[Any]]]:
        return [(encode, copy(target)) for copy, encode in item]

    return _answers(call(partial(_attempt, gather, plans)), allowed)


def _answers(copied: Sequence[Any], allowed: Allowed | None) -> Iterator[p4r.ReadResponse]:
    response = p4r.ReadResponse()
    room = ENTITY_ROOM
    for part in copied:
        if isinstance(part, Refusal):
            continue
        for encode, rows in part:
            for row in rows:
                entity = encode(row)
                if allowed is not None and not allowed(entity_id(entity)):
                    continue
                response.entities.append(entity)
                room -= entity.ByteSize()
                if room < 0:
                    yield response
                    response = p4r.ReadResponse()
                    room = ENTITY_ROOM
    if response.entities:
        yield response
    errors = [part if isinstance(part, Refusal) else None for part in copied]
    if any(error is not None for error in errors):
        raise BatchRefusal(errors)


__all__ = ["Allowed", "Call", "entity_id", "plan", "read", "write"]
