"""The difference between what a switch holds and what it should hold, and in which order to make it.

A switch may carry out the updates of one request in any order (P4Runtime 1.4, section 12.1), so what has to come first goes
into a request of its own.  First comes what others lead to (groups of paths), then what leads there, then deletions,
backwards: at no time does an address lead to a group that is not there."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from dlcp.fabric.entities import Default, Entity, Entry, MulticastGroup, describe
from dlcp.fabric.intent import DEFAULTS, GROUPS, TABLES
from dlcp.fabric.treatment import TRUNK_PRIORITY


class Operation(StrEnum):
    """What is done to an entity; the value is its sign in a plan."""

    INSERT = "+"
    MODIFY = "~"
    DELETE = "-"


@dataclass(frozen=True, slots=True)
class Change:
    """One update.

    Attributes:
        entity: What will be there; for a deletion, what is there.
        before: What is there now, for a modification.
    """

    operation: Operation
    entity: Entity
    before: Entity | None = None

    def __str__(self) -> str:
        was = f"{describe(self.before)} -> " if self.before is not None else ""
        return f"{self.operation.value} {self.entity}  {was}{describe(self.entity)}"


def owned(entity: Entity) -> bool:
    """Whether an entity belongs to the intent, so that a deployment may change or delete it."""
    if isinstance(entity, Entry):
        return entity.table in TABLES or (entity.table == "jobs" and entity.priority == TRUNK_PRIORITY)
    if isinstance(entity, Default):
        return entity.table in DEFAULTS
    return entity.id in GROUPS


def difference(held: Iterable[Entity], wanted: Iterable[Entity]) -> list[Change]:
    """Returns the changes that make ``held`` into ``wanted``, in the order in which to make them.

    Raises:
        ValueError: ``wanted`` says two things about one key.
    """
    now = {entity.key: entity for entity in held}
    then: dict[tuple[object, ...], Entity] = {}
    for entity in wanted:
        if entity.key in then:
            raise ValueError(f"{entity} is wanted twice")
        then[entity.key] = entity
    changes = []
    for key, entity in then.items():
        before = now.get(key)
        if before is None and isinstance(entity, Default) and entity.action is None:
            continue
        if before is None:
            # A default action is always there, even if it was not read.
            changes.append(Change(Operation.MODIFY if isinstance(entity, Default) else Operation.INSERT, entity))
        elif before != entity:
            changes.append(Change(Operation.MODIFY, entity, before))
    for key, entity in now.items():
        if key not in then:
            if not isinstance(entity, Default):
                changes.append(Change(Operation.DELETE, entity))
            elif entity.action is not None:
                changes.append(Change(Operation.MODIFY, Default(entity.table, None), entity))
    return sorted(changes, key=_rank)


def steps(changes: Collection[Change], most: int = 500) -> list[list[Change]]:
    """Cuts sorted changes into requests: what is in one may be done in any order; each has ``most`` updates or fewer."""
    result = []
    for _, group in groupby(changes, key=_rank):
        together = list(group)
        result += [together[start : start + most] for start in range(0, len(together), most)]
    return result


def _rank(change: Change) -> int:
    depth = _depth(change.entity)
    return 10 - depth if change.operation is Operation.DELETE else depth


def _depth(entity: Entity) -> int:
    """How many others may have to be there before it."""
    if isinstance(entity, MulticastGroup):
        return 0
    if isinstance(entity, Default):
        return 3
    return {"paths": 1}.get(entity.table, 2)


__all__ = ["Change", "Operation", "difference", "owned", "steps"]
