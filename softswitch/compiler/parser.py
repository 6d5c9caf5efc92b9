"""Source of the parser.

Usually a tree: each state is written where it is entered, so that every header has a place in the packet that is known when
compiling, and a stack's next element too; loops over a stack unroll, as the stack is finite.  A parser that would grow too large
that way becomes a loop over a state variable, with the place in ``Q`` and the counts of stacks in variables.

Errors are BMv2's: the parser stops with the error's code in ``PE``, headers extracted so far stay valid, and ingress goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from softswitch.compiler.changes import mark, tracked
from softswitch.compiler.context import Context
from softswitch.compiler.expressions import Scope, Value
from softswitch.compiler.extraction import Extraction, at
from softswitch.compiler.flow import dispatch
from softswitch.compiler.headers import HeaderCompiler
from softswitch.compiler.primitives import PrimitiveCompiler
from softswitch.compiler.writer import TooDeep, Writer
from softswitch.errors import UnsupportedConstruct
from softswitch.program.ir import (
    Advance,
    Call,
    Const,
    Expression,
    Extract,
    FieldRef,
    Header,
    LastField,
    Lookahead,
    ParserOp,
    Primitive,
    Ref,
    Set,
    State,
    Transition,
    Verify,
)

MAX_STATES = 256
MAX_LEVELS = 48
MAX_STEPS = 4096
"""Transitions of a parser in loop form; beyond that it goes in circles and the packet is dropped."""


@dataclass(slots=True)
class Place:
    """What is known at a point of the parser.

    Attributes:
        base, offset: Place in the packet: ``offset`` bytes after ``base`` (a variable, or None for the start).
        least: Length that the packet is known to have (with ``base`` None).
        counts: Counts of stacks, where they are known.
        order: Headers in the order in which they were extracted, one after the other from the packet's start; None if that is
            not so, or something wrote to one of them.
    """

    base: str | None = None
    offset: int = 0
    least: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    order: tuple[str, ...] | None = ()

    def copy(self) -> Place:
        """An independent copy."""
        return replace(self, counts=dict(self.counts))

    def text(self, more: int = 0) -> str:
        """Source of the place ``more`` bytes on."""
        return at(self.base, self.offset + more)


class ParserCompiler:
    """Makes source of the parser.

    Attributes:
        offsets: After ``emit``: where each header was extracted (None: at a place that only the packet tells).
    """

    def __init__(self, context: Context, primitives: PrimitiveCompiler) -> None:
        self.context = context
        self.layout = context.layout
        self.expressions = context.expressions
        self.primitives = primitives
        self.headers = HeaderCompiler(context)
        self.extraction = Extraction(context)
        self.offsets: dict[str, set[int | None]] = {}
        self._states = 0
        self._tree = True
        self._tracked = tracked(context.layout)

    def emit(self, writer: Writer) -> None:
        """Adds the parser's source; sets ``Q`` to the payload's place and ``PE`` on an error."""
        parser = self.context.program.parser
        if parser.init is None:
            writer.line("Q = D = 0")
            return
        start = Place(counts={name: 0 for name in self.context.program.stacks})
        trial = Writer(writer.depth + 1)
        self._states, self._tree = 0, True
        try:
            self._state(trial, parser.init, start.copy(), 0)
        except TooDeep:
            self._tree = False
        self._states = 0
        self.offsets.clear()
        if self._tree:
            with writer.block("while True:"):
                self._state(writer, parser.init, start.copy(), 0)
                writer.line("break")
        else:
            self._loop(writer, parser.init)

    def _loop(self, writer: Writer, init: str) -> None:
        names = list(self.context.program.parser.states)
        self._numbers = {name: number for number, name in enumerate(names)}
        writer.line("Q = 0")
        writer.line(f"s = {self._numbers[init]!r}")
        with writer.block(f"for _ in range({MAX_STEPS!r}):"):

            def body(number: int) -> None:
                self._state(writer, names[number], Place("Q", order=None), 0)

            dispatch(writer, 0, len(names), body)
        with writer.block("else:"):
            writer.line("DROPS['endless-parser'] += 1")
            writer.line("return None")

    def _state(self, writer: Writer, name: str | None, place: Place, level: int) -> None:
        if name is None:
            self._finish(writer, place)
            if not self._tree:
                writer.line("break")
            return
        if self._tree:
            self._states += 1
            if self._states > MAX_STATES or level > MAX_LEVELS:
                raise TooDeep
        state = self.context.program.parser.states[name]
        scope = Scope(counts=place.counts)
        for op in state.ops:
            if not self._op(writer, op, place, scope):
                return
        self._select(writer, state, place, scope, level)

    def _finish(self, writer: Writer, place: Place) -> None:
        if place.text() != "Q":
            writer.line(f"Q = {place.text()}")
        writer.line(f"D = {int(not self._as_it_came(place))!r}")
        for stack, count in place.counts.items():
            if stack in self.layout.counted:
                writer.line(f"n{self.context.program.stacks[stack].index} = {count!r}")

    def _as_it_came(self, place: Place) -> bool:
        """Whether the deparser would put the packet together just as it came."""
        if place.order is None:
            return False
        emitted = self.context.program.deparser.order
        unions = [self.context.program.headers[name].union for name in place.order]
        unions = [union for union in unions if union is not None]
        if len(set(unions)) != len(unions) or any(emitted.count(name) != 1 for name in place.order):
            return False
        places = [emitted.index(name) for name in place.order]
        return places == sorted(set(places))

    def _error(self, writer: Writer, error: str, place: Place) -> None:
        writer.line(f"PE = {error}")
        self._finish(writer, place)
        writer.line("break")

    def _core_error(self, writer: Writer, name: str, place: Place) -> None:
        self._error(writer, repr(self.context.program.errors[name]), place)

    def _need(self, writer: Writer, place: Place, size: int, text: str | None = None) -> None:
        """Adds the check that ``size`` more bytes (as source: ``text``) are there."""
        if text is None and place.base is None:
            if place.offset + size <= place.least:
                return
            place.least = place.offset + size
        end = place.text(size) if text is None else f"{place.text()} + {text}"
        with writer.block(f"if L < {end}:"):
            self._core_error(writer, "PacketTooShort", place)

    def _move(self, writer: Writer, place: Place, text: str) -> None:
        """Moves on by a number of bytes that only the packet tells."""
        writer.line(f"Q = {place.text()} + {text}")
        place.base, place.offset = "Q", 0

    def _op(self, writer: Writer, op: ParserOp, place: Place, scope: Scope) -> bool:
        """Adds an operation; False if the parser always ends here."""
        match op:
            case Extract():
                return self._extract(writer, op, place, scope)
            case Set(target=target, value=value):
                self._set(writer, target, value, place, scope)
            case Verify(condition=condition, error=error):
                with writer.block(f"if not {self.expressions.boolean(condition, scope)}:"):
                    self._error(writer, self.expressions.data(error, scope).text, place)
            case Advance(bits=bits):
                return self._advance(writer, bits, place, scope)
            case Call(primitive=primitive):
                self._check(primitive)
                counts = dict(place.counts)
                for stack in counts:
                    if stack in self.layout.counted:
                        writer.line(f"n{self.context.program.stacks[stack].index} = {counts[stack]!r}")
                inner = Writer(writer.depth)
                self.primitives.emit(inner, primitive, scope)
                writer.lines += mark(inner.lines, self._tracked)
                place.order = None
                if primitive.op in ("push", "pop", "assign_header_stack", "assign_union_stack") and self._tree:
                    raise TooDeep
        return True

    def _check(self, primitive: Primitive) -> None:
        for argument in primitive.arguments:
            if isinstance(argument, Ref) and argument.kind == "calculation":
                if any(item.payload for item in self.context.program.calculations[argument.name].inputs):
                    raise UnsupportedConstruct(primitive.where, "hash of the payload inside the parser")

    def _set(self, writer: Writer, target: FieldRef, value: Expression, place: Place, scope: Scope) -> None:
        header = self.context.program.headers[target.header]
        if header.index in self._tracked:
            place.order = None
            writer.line(f"d{header.index} = 1")
        if isinstance(value, Lookahead):
            self._need(writer, place, (value.offset + value.width + 7) // 8)
            text = self._ahead(value, place)
            self.primitives.assign(writer, target, Value(text, 0, (1 << value.width) - 1), scope)
        elif self.context.program.field(target).variable:
            self.primitives.assign_variable(writer, target, value)
        else:
            self.primitives.assign(writer, target, self.expressions.data(value, scope), scope)

    def _ahead(self, ahead: Lookahead, place: Place) -> str:
        return self.extraction.bits(place.base, 8 * place.offset + ahead.offset, ahead.width)

    def _advance(self, writer: Writer, bits: Expression, place: Place, scope: Scope) -> bool:
        if isinstance(bits, Const) and bits.value >= 0:
            if bits.value % 8:
                self._core_error(writer, "ParserInvalidArgument", place)
                return False
            self._need(writer, place, bits.value // 8)
            place.offset += bits.value // 8
            if bits.value:
                place.order = None
            return True
        writer.line(f"t = {self.expressions.data(bits, scope).text}")
        with writer.block("if t & 7:"):
            self._core_error(writer, "ParserInvalidArgument", place)
        with writer.block(f"if t < 0 or L < {place.text()} + (t >> 3):"):
            self._core_error(writer, "PacketTooShort", place)
        self._move(writer, place, "(t >> 3)")
        place.order = None
        return True

    def _extract(self, writer: Writer, op: Extract, place: Place, scope: Scope) -> bool:
        program = self.context.program
        if op.header is not None:
            self._header(writer, program.headers[op.header], op, place, scope)
            return True
        assert op.stack is not None
        stack = program.stacks[op.stack]
        names = self.expressions.stack_headers(op.stack, op.member)
        if op.stack in place.counts:
            count = place.counts[op.stack]
            if count >= len(names):
                self._core_error(writer, "StackOutOfBounds", place)
                return False
            self._header(writer, program.headers[names[count]], op, place, scope)
            place.counts[op.stack] = count + 1
            return True
        size: Place | None = None
        for position, name in enumerate(names):
            with writer.block(f"{'el' if position else ''}if n{stack.index} == {position!r}:"):
                inner = place.copy()
                self._header(writer, program.headers[name], op, inner, scope)
                writer.line(f"Q = {inner.text()}")
                size = inner
        with writer.block("else:"):
            self._core_error(writer, "StackOutOfBounds", place)
        assert size is not None
        writer.line(f"n{stack.index} += 1")
        place.base, place.offset = "Q", 0
        return True

    def _header(self, writer: Writer, header: Header, op: Extract, place: Place, scope: Scope) -> None:
        size = header.type.bits // 8
        after = None if place.order is None else (*place.order, header.name)
        if op.length is None:
            self._need(writer, place, size)
            self.offsets.setdefault(header.name, set()).add(place.offset if place.base is None else None)
            self.extraction.fixed(writer, header, place.base, place.offset)
            self.headers.validate(writer, header)
            place.offset += size
            place.order = after
            return
        length = self.expressions.data(op.length, scope)
        writer.line(f"t = {length.text}")
        with writer.block("if t & 7:"):
            self._core_error(writer, "ParserInvalidArgument", place)
        negative = "" if length.positive else "t < 0 or "
        with writer.block(f"if {negative}L < {place.text(size)} + (t >> 3):"):
            self._core_error(writer, "PacketTooShort", place)
        if header.type.max_bytes:
            with writer.block(f"if {size!r} + (t >> 3) > {header.type.max_bytes!r}:"):
                self._core_error(writer, "HeaderTooShort", place)
        self.extraction.variable(writer, header, place.base, place.offset)
        self.headers.validate(writer, header)
        self._move(writer, place, f"{size!r} + (t >> 3)")
        place.order = after

    def _select(self, writer: Writer, state: State, place: Place, scope: Scope, level: int) -> None:
        def go(target: str | None) -> None:
            if self._tree or target is None:
                self._state(writer, target, place.copy(), level + 1)
            else:
                self._finish(writer, place)
                writer.line(f"s = {self._numbers[target]!r}")

        cases = self._merged(state)
        if not cases:
            for part in state.key:
                if isinstance(part.value, Lookahead):
                    self._need(writer, place, (part.value.offset + part.value.width + 7) // 8)
        if not state.key or not cases:
            go(state.default)
            return
        keys = []
        for number, part in enumerate(state.key):
            if isinstance(part.value, Lookahead):
                self._need(writer, place, (part.value.offset + part.value.width + 7) // 8)
                writer.line(f"k{number} = {self._ahead(part.value, place)}")
                keys.append(f"k{number}")
                continue
            value = part.value
            text = self.expressions.unsigned(value, scope).text
            if isinstance(value, LastField):
                text = f"k{number}"
                writer.line(f"k{number} = {self.expressions.unsigned(value, scope).text} & {(1 << part.width) - 1!r}")
            keys.append(text)
        for position, (target, transitions) in enumerate(cases):
            tests = [self._test(keys, state, transition) for transition in transitions]
            condition = " or ".join(tests)
            if "True" in tests:
                if position == 0:
                    go(target)
                    return
                with writer.block("else:"):
                    go(target)
                return
            with writer.block(f"{'el' if position else ''}if {condition}:"):
                go(target)
        with writer.block("else:"):
            go(state.default)

    @staticmethod
    def _merged(state: State) -> list[tuple[str | None, list[Transition]]]:
        """Neighbouring transitions to the same state, together."""
        cases: list[tuple[str | None, list[Transition]]] = []
        for transition in state.transitions:
            if cases and cases[-1][0] == transition.target:
                cases[-1][1].append(transition)
            else:
                cases.append((transition.target, [transition]))
        return cases

    def _test(self, keys: list[str], state: State, transition: Transition) -> str:
        if transition.value_set is not None:
            value_set = self.context.runtime.value_sets[transition.value_set]
            matcher = self.context.pool.shared("S", transition.value_set, value_set.matcher)
            bits = sum(part.width for part in state.key)
            terms = []
            for key, part in zip(keys, state.key, strict=True):
                bits -= part.width
                terms.append(f"({key} << {bits!r})" if bits else key)
            return f"{matcher}({' | '.join(terms)})"
        tests = []
        for key, part, value, mask in zip(keys, state.key, transition.values, transition.masks, strict=True):
            if mask == (1 << part.width) - 1:
                tests.append(f"{key} == {value!r}")
            elif mask:
                tests.append(f"({key} & {mask!r}) == {value!r}")
        if not tests:
            return "True"
        return tests[0] if len(tests) == 1 else f"({' and '.join(tests)})"
