"""What a P4Info says, bound to the program that runs: P4 ids on one side, names and positions of the runtime on the other.

Frozen data, made by ``softswitch.server.binding``.  Everything that translates a request reads this and nothing else of the
P4Info.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from softswitch.program.model import MatchKind
from softswitch.server.p4data import Codec

Scope = Literal["both", "table", "default"]
MeterType = Literal["trTCM", "srTCM", "two-colour"]


@dataclass(frozen=True, slots=True)
class FieldSchema:
    """A match field.

    Attributes:
        position: Index in the runtime's match tuple.
        kind: As the P4Info has it.
        width: Bits in the data plane.
        masked: Optional to the client, but ternary to the program: p4c writes it so.
    """

    id: int
    name: str
    position: int
    kind: MatchKind
    width: int
    masked: bool = False

    @property
    def any(self) -> object:
        """The runtime's "don't care" of this field; None also stands for exact, which has none."""
        if self.kind == "range":
            return (0, (1 << self.width) - 1)
        return (0, 0) if self.masked or self.kind in ("lpm", "ternary") else None


@dataclass(frozen=True, slots=True)
class ActionSchema:
    """An action.

    Attributes:
        parameters: P4 id, name, and bits in the data plane of each, in the runtime's order.
        positions: P4 id to index in ``parameters``.
    """

    id: int
    name: str
    parameters: tuple[tuple[int, str, int], ...]
    positions: dict[int, int]


@dataclass(frozen=True, slots=True)
class Choice:
    """An action of a table or profile.

    Attributes:
        index: Index in the runtime table's actions.
    """

    action: ActionSchema
    index: int
    scope: Scope


@dataclass(frozen=True, slots=True)
class ProfileSchema:
    """An action profile or selector.

    Attributes:
        choices: Actions that members may have, by P4 id; ``index`` counts in the actions of the profile's tables.
        by_index: The same by index.
        max_group_size: 0 if unlimited.
        by_members: Size of a group counts members, not weights.
        max_member_weight: 0 if unlimited; only with ``by_members``.
    """

    id: int
    name: str
    selector: bool
    table_ids: tuple[int, ...]
    choices: dict[int, Choice]
    by_index: dict[int, ActionSchema]
    max_group_size: int
    by_members: bool
    max_member_weight: int
    weights_disallowed: bool


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A table.

    Attributes:
        fields: In the runtime's order.
        by_id: The same by P4 id.
        choices: Actions by P4 id.
        by_index: Actions by index in the runtime's table.
        wildcard: The match that has "don't care" in all fields that know it, and None in exact fields.
        exact: Number of exact fields.
        prioritized: Entries need a priority.
        const: Entries are the program's own.
        const_default: The default action cannot be changed.
        counter: Entries have direct counters.
        meter: Type of the direct meters, or None.
        timeouts: Entries may have an idle timeout.
    """

    id: int
    name: str
    fields: tuple[FieldSchema, ...]
    by_id: dict[int, FieldSchema]
    choices: dict[int, Choice]
    by_index: dict[int, ActionSchema]
    wildcard: tuple[object, ...]
    exact: int
    prioritized: bool
    const: bool
    const_default: bool
    profile: ProfileSchema | None
    counter: bool
    meter: MeterType | None
    timeouts: bool


@dataclass(frozen=True, slots=True)
class CounterSchema:
    """An indexed counter."""

    id: int
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class MeterSchema:
    """An indexed meter."""

    id: int
    name: str
    size: int
    type: MeterType


@dataclass(frozen=True, slots=True)
class RegisterSchema:
    """A register array."""

    id: int
    name: str
    size: int
    codec: Codec


@dataclass(frozen=True, slots=True)
class DigestSchema:
    """A digest."""

    id: int
    name: str
    codec: Codec


@dataclass(frozen=True, slots=True)
class ValueSetSchema:
    """A parser value set."""

    id: int
    name: str
    size: int
    fields: tuple[FieldSchema, ...]


@dataclass(frozen=True, slots=True)
class HeaderField:
    """A field of a controller header: P4 id, name, and place in the header's bits (from the most significant one)."""

    id: int
    name: str
    width: int
    offset: int


@dataclass(frozen=True, slots=True)
class HeaderSchema:
    """The header that goes before a packet from or to the controller."""

    fields: tuple[HeaderField, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Schema:
    """All objects by P4 id, and controller headers."""

    tables: dict[int, TableSchema]
    profiles: dict[int, ProfileSchema]
    counters: dict[int, CounterSchema]
    meters: dict[int, MeterSchema]
    registers: dict[int, RegisterSchema]
    digests: dict[int, DigestSchema]
    value_sets: dict[int, ValueSetSchema]
    direct: dict[int, int]
    packet_in: HeaderSchema | None
    packet_out: HeaderSchema | None


__all__ = [
    "ActionSchema",
    "Choice",
    "CounterSchema",
    "DigestSchema",
    "FieldSchema",
    "HeaderField",
    "HeaderSchema",
    "MeterSchema",
    "MeterType",
    "ProfileSchema",
    "RegisterSchema",
    "Schema",
    "Scope",
    "TableSchema",
    "ValueSetSchema",
]
