"""A table entry, and the hit that a lookup gives to compiled code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from softswitch.program.model import Match
from softswitch.runtime.actions import Action
from softswitch.runtime.meter import Meter

if TYPE_CHECKING:
    from softswitch.runtime.profile import Group

GROUP = -1
NOTHING = -2

Hit = tuple[int, "tuple[int, ...] | Group", "Entry | None"]
"""``(index, data, entry)``: ``index`` is that of the action in ``TableModel.actions``, or ``GROUP`` (then ``data`` is the
group, whose ``select`` gives the hit to run), or ``NOTHING``.  ``entry`` is None on a miss, and in what a group selects."""


class Entry:
    """An entry of a table.  Compiled code writes ``packets``, ``bytes``, ``meter`` and ``last_hit``; all else goes through the
    table.

    Attributes:
        match: Canonical match, one item a key field (see ``softswitch.program.model.Match``).
        priority: The larger number wins; 0 in tables without ternary, range or optional fields.
        action: What was asked for; ``hit`` is the same resolved.
        packets: Direct counter.
        bytes: Direct counter.
        meter: Direct meter, or None if the table has none.
        last_hit: Microseconds after the switch started; at first the time of insertion.
        idle_timeout_ns: 0 for never.
        const: Declared by the program; only its direct resources can change.
        serial: Order of insertion; of two entries that match with the same priority the earlier one wins.
    """

    __slots__ = (
        "action",
        "bytes",
        "const",
        "controller_metadata",
        "group",
        "hit",
        "idle_timeout_ns",
        "last_hit",
        "match",
        "metadata",
        "meter",
        "packets",
        "priority",
        "serial",
    )

    def __init__(self, match: Match, priority: int, action: Action, serial: int, const: bool = False) -> None:
        self.match = match
        self.priority = priority
        self.action = action
        self.serial = serial
        self.const = const
        self.hit: Hit = (NOTHING, (), self)
        self.group: Group | None = None
        self.packets = 0
        self.bytes = 0
        self.meter: Meter | None = None
        self.last_hit = 0
        self.idle_timeout_ns = 0
        self.metadata = b""
        self.controller_metadata = 0

    def __repr__(self) -> str:
        return f"Entry({self.match!r}, priority={self.priority}, action={self.action!r})"


__all__ = ["GROUP", "NOTHING", "Entry", "Hit"]
