"""Reads parsers: states, their operations, transition keys and transitions."""

from __future__ import annotations

from softswitch.program.actions import ActionReader
from softswitch.program.expressions import ExpressionReader
from softswitch.program.headers import Names
from softswitch.program.ir import (
    Advance,
    Call,
    Const,
    Expression,
    Extract,
    HeaderType,
    KeyPart,
    Parser,
    ParserOp,
    Set,
    State,
    Transition,
    Verify,
)
from softswitch.program.source import Source


class ParserReader:
    """Reads a parser."""

    def __init__(self, names: Names, actions: ActionReader, value_sets: dict[str, int]) -> None:
        self.names = names
        self.actions = actions
        self.expressions: ExpressionReader = actions.expressions
        self.value_sets = value_sets

    def read(self, source: Source) -> Parser:
        """Reads a parser.

        Raises:
            ProgramError: Malformed, or a state, header or value set that is not there.
            UnsupportedConstruct: An operation that this target lacks.
        """
        names = {}
        for state in source.items("parse_states"):
            name = state["name"].text()
            if name in names:
                state.fail(f"duplicate parser state '{name}'")
            names[name] = state
        states = {name: self._state(state, names) for name, state in names.items()}
        return Parser(self._target(source.get("init_state"), names), states)

    def _target(self, source: Source, names: dict[str, Source]) -> str | None:
        name = source.optional_text()
        if name is not None and name not in names:
            source.fail(f"there is no parser state '{name}'")
        return name

    def _state(self, source: Source, names: dict[str, Source]) -> State:
        key = tuple(self._key_part(item) for item in source.items("transition_key"))
        default = None
        transitions = []
        for item in source.items("transitions"):
            kind = item["type"].text() if item.has("type") else "hexstr"
            target = self._target(item.get("next_state"), names)
            if kind == "default" or item["value"].value == "default":
                default = target
            elif kind == "hexstr":
                transitions.append(self._transition(item, key, target))
            elif kind == "parse_vset":
                name = item["value"].text()
                if name not in self.value_sets:
                    item["value"].fail(f"there is no value set '{name}'")
                if sum(part.width for part in key) != self.value_sets[name]:
                    item["value"].fail(f"value set '{name}' is {self.value_sets[name]} bits wide, the key is not")
                if item.has("mask"):
                    item["mask"].unsupported("mask of a parser value set")
                transitions.append(Transition(target, value_set=name))
            else:
                item["type"].unsupported(f"parser transition of type '{kind}'")
        ops = tuple(self._op(item) for item in source.items("parser_ops"))
        return State(source["name"].text(), ops, key, tuple(transitions), default)

    def _transition(self, source: Source, key: tuple[KeyPart, ...], target: str | None) -> Transition:
        size = sum(_padded(part.width) for part in key)
        value = source["value"].hexadecimal()
        mask = source["mask"].hexadecimal() if source.has("mask") else (1 << size) - 1
        if value < 0 or mask < 0 or max(value, mask).bit_length() > size:
            source["value"].fail(f"wider than the transition key's {size // 8} bytes")
        values, masks = [], []
        for part in reversed(key):
            full = (1 << part.width) - 1
            padding = ((1 << _padded(part.width)) - 1) & ~full
            if value & mask & padding:
                source["value"].fail("a value has bits beyond its part of the transition key")
            masks.append(mask & full)
            values.append(value & mask & full)
            value >>= _padded(part.width)
            mask >>= _padded(part.width)
        return Transition(target, tuple(reversed(values)), tuple(reversed(masks)))

    def _key_part(self, source: Source) -> KeyPart:
        kind = source["type"].text()
        value = source["value"]
        if kind == "field":
            ref = self.expressions.field(value)
            header = self.names.headers[ref.header].type
            return KeyPart(ref, 1 if ref.field == "$valid$" else self._width(source, header, ref.field))
        if kind in ("stack_field", "union_stack_field"):
            last = self.expressions.last_field(value)
            header = self.names.stack_type(self.names.stacks[last.stack], last.member)
            return KeyPart(last, 1 if last.field == "$valid$" else self._width(source, header, last.field))
        if kind == "lookahead":
            ahead = self.expressions.lookahead(value)
            return KeyPart(ahead, ahead.width)
        source["type"].unsupported(f"transition key of type '{kind}'")

    def _width(self, source: Source, header: HeaderType, name: str) -> int:
        field = header.field(name)
        if field.variable:
            source.unsupported("variable-length field in a transition key")
        return field.width

    def _op(self, source: Source) -> ParserOp:
        op = source["op"].text()
        parameters = source["parameters"]
        match op:
            case "extract" | "extract_VL":
                return self._extract(parameters, op == "extract_VL")
            case "set":
                pair = parameters.array(2)
                if pair[0]["type"].text() != "field":
                    pair[0]["type"].unsupported(f"parser 'set' of a {pair[0]['type'].text()}")
                target = self.expressions.field(pair[0]["value"])
                return Set(target, self.expressions.read(pair[1], "data"))
            case "verify":
                pair = parameters.array(2)
                error: Expression
                if isinstance(pair[1].value, int):
                    error = Const(pair[1].integer())
                else:
                    error = self.expressions.read(pair[1], "data")
                return Verify(self.expressions.read(pair[0], "bool"), error)
            case "shift":
                return Advance(Const(8 * parameters.array(1)[0].integer()))
            case "advance":
                return Advance(self.expressions.read(parameters.array(1)[0], "data"))
            case "primitive":
                return Call(self.actions.primitive(parameters.array(1)[0]))
        source["op"].unsupported(f"parser operation '{op}'")

    def _extract(self, parameters: Source, variable: bool) -> Extract:
        items = parameters.array(2 if variable else 1)
        kind = items[0]["type"].text()
        value = items[0]["value"]
        length = self.expressions.read(items[1], "data") if variable else None
        match kind:
            case "regular":
                name = self.expressions.header(value)
                header = self.names.headers[name].type
                extract = Extract(header=name, length=length)
            case "stack":
                name = self.expressions.stack(value)
                if self.names.stacks[name].of_unions:
                    value.fail(f"'{name}' is a stack of unions")
                header = self.names.stack_type(self.names.stacks[name])
                extract = Extract(stack=name, length=length)
            case "union_stack":
                pair = value.array(2)
                name = self.expressions.stack(pair[0])
                member = self.expressions.member(pair[1], name)
                header = self.names.stack_type(self.names.stacks[name], member)
                extract = Extract(stack=name, member=member, length=length)
            case _:
                items[0]["type"].unsupported(f"extraction to a '{kind}'")
        if (header.variable is not None) != variable:
            parameters.fail("extract_VL and a header with a variable-length field belong together")
        return extract


def _padded(width: int) -> int:
    return (width + 7) // 8 * 8
