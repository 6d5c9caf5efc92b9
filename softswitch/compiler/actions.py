"""Source of actions: primitives, jumps between them, and ``exit``."""

from __future__ import annotations

from softswitch.compiler.expressions import ExpressionCompiler, Scope, Value
from softswitch.compiler.flow import Flow, Go
from softswitch.compiler.primitives import PrimitiveCompiler
from softswitch.compiler.writer import Writer
from softswitch.errors import ProgramError, UnsupportedConstruct
from softswitch.program.ir import Action, Const, Expression, Primitive

JUMPS = ("_jump", "_jump_if_zero")


class ActionCompiler:
    """Makes source of actions."""

    def __init__(self, primitives: PrimitiveCompiler) -> None:
        self.primitives = primitives
        self.expressions: ExpressionCompiler = primitives.expressions

    def emit(self, writer: Writer, action: Action, data: str | tuple[int, ...]) -> None:
        """Adds an action's source.  If it calls ``exit``, a ``break`` follows it, for which the caller provides the loop.

        Args:
            data: Local variable with the tuple of runtime data, or the data themselves.
        """
        self._check(action)
        scope = self._bind(writer, action, data)
        exits = [position for position, primitive in enumerate(action.primitives) if primitive.op == "exit"]
        if not any(primitive.op in JUMPS for primitive in action.primitives):
            for primitive in action.primitives:
                if primitive.op != "exit":
                    self.primitives.emit(writer, primitive, scope)
            if exits:
                writer.line("break")
            return
        if exits:
            writer.line("XT = 0")
        blocks = self._blocks(action)

        def emit(writer: Writer, start: int, go: Go[int]) -> None:
            for primitive in blocks[start]:
                if primitive.op == "_jump_if_zero":
                    condition = primitive.arguments[0]
                    assert isinstance(condition, Expression)
                    here = start + len(blocks[start])
                    with writer.block(f"if {self.expressions.boolean(condition, scope)}:"):
                        go(_block(here, action))
                    with writer.block("else:"):
                        go(_block(_target(primitive, action), action))
                elif primitive.op == "exit":
                    writer.line("XT = 1")
                elif primitive.op != "_jump":
                    self.primitives.emit(writer, primitive, scope)

        def successors(start: int) -> list[int | None]:
            last = blocks[start][-1]
            following = _block(start + len(blocks[start]), action)
            if last.op == "_jump":
                return [_block(_target(last, action), action)]
            if last.op == "_jump_if_zero":
                return [following, _block(_target(last, action), action)]
            return [following]

        Flow(list(blocks), successors, emit).write(writer, 0 if blocks else None)
        if exits:
            with writer.block("if XT:"):
                writer.line("break")

    def uses(self, action: Action) -> bool:
        """Whether the action does anything at all."""
        trial = Writer()
        self.emit(trial, action, "d")
        return any(not line.startswith("p") for line in trial.lines)

    def _bind(self, writer: Writer, action: Action, data: str | tuple[int, ...]) -> Scope:
        arguments = []
        for position, width in enumerate(action.widths):
            if isinstance(data, str):
                arguments.append(Value(f"p{position}", 0, (1 << width) - 1))
            else:
                arguments.append(Value(repr(data[position]), data[position], data[position]))
        if arguments and isinstance(data, str):
            writer.line(f"{', '.join(item.text for item in arguments)}, = {data}")
        return Scope(tuple(arguments))

    def _blocks(self, action: Action) -> dict[int, list[Primitive]]:
        """Basic blocks by the position of their first primitive."""
        starts = {0}
        for position, primitive in enumerate(action.primitives):
            if primitive.op in JUMPS:
                starts |= {_target(primitive, action), position + 1}
        order = sorted(start for start in starts if start < len(action.primitives))
        ends = [*order[1:], len(action.primitives)]
        return {start: list(action.primitives[start:end]) for start, end in zip(order, ends, strict=True)}

    def _check(self, action: Action) -> None:
        for primitive in action.primitives:
            if primitive.op in JUMPS:
                _target(primitive, action)


def _target(primitive: Primitive, action: Action) -> int:
    offset = primitive.arguments[-1]
    if not isinstance(offset, Const):
        raise UnsupportedConstruct(primitive.where, "jump to a place that is no constant")
    if not 0 <= offset.value <= len(action.primitives):
        raise ProgramError(primitive.where, f"jump beyond the action's {len(action.primitives)} primitives")
    return offset.value


def _block(position: int, action: Action) -> int | None:
    return position if position < len(action.primitives) else None
