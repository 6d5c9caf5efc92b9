"""What a program declares for its control plane: tables, actions, profiles, and the arrays of state.

Frozen, plain data, read from BMv2 JSON by ``softswitch.program.reader``.  Names are the fully qualified ones of the P4 program
(``MyIngress.ipv4_lpm``), which P4Info uses too: both meet by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MatchKind = Literal["exact", "lpm", "ternary", "range", "optional"]
TableKind = Literal["simple", "indirect", "indirect_ws"]

Match = tuple[object, ...]
"""One item a key field: exact ``int``; lpm ``(value, prefix_length)``; ternary ``(value, mask)``; range ``(low, high)``; optional
``int`` or None.  "Don't care" is ``(0, 0)``, ``(0, 0)``, ``(0, 2**width - 1)`` and None."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an action: name, and width in bits."""

    name: str
    width: int


@dataclass(frozen=True, slots=True)
class ActionModel:
    """An action.  ``id`` is the JSON's."""

    name: str
    id: int
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class KeyField:
    """One field of a table's key.

    Attributes:
        name: As P4Info has it (``hdr.ipv4.dst_addr``, or the ``@name``).
        field: Header instance and field in the JSON; the field is ``$valid$`` for a header's validity.
        mask: Static mask that is applied to the packet's value before matching, or None.
    """

    name: str
    kind: MatchKind
    width: int
    field: tuple[str, str]
    mask: int | None = None


@dataclass(frozen=True, slots=True)
class ConstEntry:
    """An entry that the program itself declares; ``priority`` as in BMv2's JSON: the **lowest** number wins."""

    match: Match
    priority: int
    action: int
    data: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TableModel:
    """A match-action table.

    Attributes:
        match: Match type of the whole table: the widest of its keys'.
        actions: Position in this tuple is the index that compiled code knows an action by.
        profile: Name of the action profile, if the table is indirect.
        default: Index of the default action in ``actions``, or None if the JSON gives none (then a miss does nothing).
        default_data: Its arguments.
        default_const: The control plane may not change it.
        const_entries: Entries of the program; such a table takes no others.
        hidden: Made by the compiler (no key, no control-plane view).
    """

    name: str
    id: int
    kind: TableKind
    match: MatchKind
    keys: tuple[KeyField, ...]
    actions: tuple[ActionModel, ...]
    size: int
    profile: str | None = None
    with_counters: bool = False
    direct_meter: str | None = None
    support_timeout: bool = False
    default: int | None = None
    default_data: tuple[int, ...] = ()
    default_const: bool = False
    const_entries: tuple[ConstEntry, ...] = ()
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class ProfileModel:
    """An action profile, or with ``selector`` an action selector.

    Attributes:
        algorithm: Hash over the selector's fields (``crc16``, ``crc32``, ``identity``, ...), or None without selector.
        selector: Header instance and field of each input of that hash.
    """

    name: str
    id: int
    size: int
    algorithm: str | None = None
    selector: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CounterModel:
    """A counter array, or the direct counters of a table; always counts packets and bytes, as BMv2 does."""

    name: str
    id: int
    size: int
    table: str | None = None


@dataclass(frozen=True, slots=True)
class MeterModel:
    """A meter array, or the direct meters of a table; two rates, three colours (RFC 2698)."""

    name: str
    id: int
    size: int
    unit: Literal["bytes", "packets"]
    table: str | None = None
    target: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class RegisterModel:
    """A register array."""

    name: str
    id: int
    size: int
    width: int


@dataclass(frozen=True, slots=True)
class DigestModel:
    """A digest (BMv2: learn list): the widths of its fields in bits, in order."""

    name: str
    id: int
    fields: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class ValueSetModel:
    """A parser value set."""

    name: str
    id: int
    width: int
    size: int


@dataclass(frozen=True, slots=True)
class ControlModel:
    """All that the control plane sees of a program, by name."""

    tables: dict[str, TableModel]
    actions: dict[int, ActionModel]
    profiles: dict[str, ProfileModel]
    counters: dict[str, CounterModel]
    meters: dict[str, MeterModel]
    registers: dict[str, RegisterModel]
    digests: dict[str, DigestModel]
    value_sets: dict[str, ValueSetModel]


__all__ = [
    "ActionModel",
    "ConstEntry",
    "ControlModel",
    "CounterModel",
    "DigestModel",
    "KeyField",
    "Match",
    "MatchKind",
    "MeterModel",
    "Parameter",
    "ProfileModel",
    "RegisterModel",
    "TableKind",
    "TableModel",
    "ValueSetModel",
]
