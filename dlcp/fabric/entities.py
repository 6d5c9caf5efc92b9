"""What the control plane writes into a switch, as plain data.

Names are those of P4Info without the path (``bridge``), which are unique in ``p4/dlcp.p4``.  Each entity has a ``key``, which
says what it is about; of two entities with equal keys a switch can hold only one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MatchValue = int | tuple[int, int]
"""Exact ``value``; ternary ``(value, mask)``; LPM ``(value, prefix length)``; range ``(low, high)``."""


@dataclass(frozen=True, slots=True)
class Action:
    """An action with its arguments, by name."""

    name: str
    arguments: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, name: str, /, **arguments: int) -> Action:
        """Makes one from keywords."""
        return cls(name, tuple(arguments.items()))

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in self.arguments)})"


@dataclass(frozen=True, slots=True)
class Path:
    """One member of a set of paths (P4Runtime 1.4, section 9.2.3): the switch skips it while ``watch_port`` is down;
    0 watches none."""

    action: Action
    watch_port: int
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Reference:
    """A member or group of an action profile that someone else made; this package makes none."""

    kind: str
    id: int

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


@dataclass(frozen=True, slots=True)
class Meter:
    """Two rates, three colours (RFC 2698): bytes per second, and bytes."""

    cir: int
    cburst: int
    pir: int
    pburst: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A table entry.

    Attributes:
        match: Field and value; fields that match anything are left out.
        priority: Larger wins; 0 in tables whose keys need none.
    """

    table: str
    match: tuple[tuple[str, MatchValue], ...]
    action: Action | Reference | tuple[Path, ...]
    priority: int = 0
    meter: Meter | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What it is about."""
        return ("entry", self.table, self.match, self.priority)

    def __str__(self) -> str:
        order = f" priority {self.priority}" if self.priority else ""
        return f"{self.table}[{describe_match(self.table, self.match)}]{order}"


@dataclass(frozen=True, slots=True)
class Default:
    """The action of a table for what no entry matches; None: the one that the program begins with."""

    table: str
    action: Action | None

    @property
    def key(self) -> tuple[object, ...]:
        """What it is about."""
        return ("default", self.table)

    def __str__(self) -> str:
        return f"{self.table}[default]"


@dataclass(frozen=True, slots=True)
class MulticastGroup:
    """A multicast group of the packet replication engine: a copy to each port."""

    id: int
    ports: tuple[int, ...]

    @property
    def key(self) -> tuple[object, ...]:
        """What it is about."""
        return ("multicast", self.id)

    def __str__(self) -> str:
        return f"multicast group {self.id}"


Entity = Entry | Default | MulticastGroup


def describe(entity: Entity) -> str:
    """Says what an entity does, in a few words."""
    if isinstance(entity, MulticastGroup):
        return f"ports {', '.join(map(str, entity.ports))}"
    if isinstance(entity, Default):
        return str(entity.action) if entity.action else "as the program begins"
    if isinstance(entity.action, tuple):
        return " | ".join(str(path.action) for path in entity.action)
    meter = f" at {entity.meter.cir} B/s" if entity.meter else ""
    return f"{entity.action}{meter}"


def describe_match(table: str, match: Iterable[tuple[str, MatchValue]]) -> str:
    """Writes a key; MAC addresses as such."""

    def shown(name: str, value: MatchValue) -> str:
        if table == "bridge" and isinstance(value, int):
            return mac_text(value)
        if name == "cookie" and isinstance(value, tuple):
            return f"{value[0]:#018x}"
        return f"{value[0]}/{value[1]:#x}" if isinstance(value, tuple) else str(value)

    return ", ".join(f"{name} {shown(name, value)}" for name, value in match)


def mac_number(text: str) -> int:
    """``02:00:0a:00:00:01`` as a number."""
    return int(text.replace(":", ""), 16)


def mac_text(number: int) -> str:
    """The reverse of :func:`mac_number`."""
    return number.to_bytes(6, "big").hex(":")


__all__ = [
    "Action",
    "Default",
    "Entity",
    "Entry",
    "MatchValue",
    "Meter",
    "MulticastGroup",
    "Path",
    "Reference",
    "describe",
    "describe_match",
    "mac_number",
    "mac_text",
]
