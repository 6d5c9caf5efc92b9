"""What the pieces of a compilation share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from softswitch.compiler.expressions import ExpressionCompiler
from softswitch.compiler.layout import Layout
from softswitch.compiler.pool import Pool
from softswitch.program.ir import FieldRef, Program
from softswitch.runtime import Runtime

Notify = Callable[[str, str], None]
"""Called with the kind of an event (``log_msg``) and its text."""


@dataclass(slots=True)
class Context:
    """A compilation.

    Attributes:
        drop_port: Port that means "drop".
        notify: Gets the texts of ``log_msg``; without it they cost nothing.
        registers, counters, meters, tables, value_sets: Names in the pool by object.
        target: Fields of the program that the target reads or writes, by the target's name for them.
        used: Packet-wide variables that the program makes use of (``TR``, ``CS``, ``RS``, ``RC``, ``DG``, ``N``).
    """

    program: Program
    layout: Layout
    pool: Pool
    runtime: Runtime
    expressions: ExpressionCompiler
    drop_port: int
    target: dict[str, FieldRef]
    notify: Notify | None = None
    registers: dict[str, str] = field(default_factory=dict)
    counters: dict[str, tuple[str, str]] = field(default_factory=dict)
    meters: dict[str, str] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def target_field(self, name: str) -> str | None:
        """Local variable of a field that the target knows by this name; None if the program has none or never reads it."""
        ref = self.target.get(name)
        if ref is None or not self.layout.is_live(ref.header, ref.field):
            return None
        return self.layout.name(ref.header, ref.field)

    def target_width(self, name: str) -> int:
        """Width of such a field."""
        return self.program.field(self.target[name]).width
