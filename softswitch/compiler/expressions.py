"""Source text of expressions, with bounds so that needless masks are left out."""

from __future__ import annotations

from dataclasses import dataclass, field

from softswitch.compiler import support
from softswitch.compiler.layout import Layout
from softswitch.compiler.pool import Pool
from softswitch.errors import UnsupportedConstruct
from softswitch.program.ir import (
    VALID,
    ArgumentRef,
    Choice,
    Const,
    Expression,
    Field,
    FieldRef,
    Flag,
    HeaderRef,
    ItemField,
    ItemMember,
    LastField,
    Operation,
    RegisterCell,
    StackItem,
    StackRef,
    UnionRef,
)

MAX_BOUND = 1 << 4096
"""Beyond that a bound counts as unknown."""


@dataclass(frozen=True, slots=True)
class Value:
    """Source of an integer expression and what is known of its value; ``low`` and ``high`` None for unknown."""

    text: str
    low: int | None = None
    high: int | None = None

    @property
    def positive(self) -> bool:
        """Whether it is never negative."""
        return self.low is not None and self.low >= 0

    @property
    def const(self) -> int | None:
        """The value, if there is only one."""
        return self.low if self.low is not None and self.low == self.high else None


@dataclass(slots=True)
class Scope:
    """What expressions depend on besides the fields.

    Attributes:
        arguments: Source of each runtime data.
        counts: Count of elements of a stack where it is known when compiling; otherwise it is a local variable.
    """

    arguments: tuple[Value, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)


def fit(value: Value, width: int, signed: bool = False, saturating: bool = False) -> str:
    """Source that brings a value into a field's range: wraps around, or saturates."""
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if signed else (0, (1 << width) - 1)
    if value.low is not None and value.low >= low and value.high is not None and value.high <= high:
        return value.text
    if value.const is not None and not saturating:
        wrapped = value.const & ((1 << width) - 1)
        return repr(wrapped - (1 << width) if signed and wrapped > high else wrapped)
    if saturating:
        return f"min(max({value.text}, {low!r}), {high!r})"
    if signed:
        return f"(({value.text} + {-low!r}) & {(1 << width) - 1!r}) - {-low!r}"
    return f"{value.text} & {high!r}"


class ExpressionCompiler:
    """Makes source of expressions.

    Args:
        layout: Where fields are.
        pool: Takes what the source refers to.
        registers: Name of each register array's list of cells, in the pool.
    """

    def __init__(self, layout: Layout, pool: Pool, registers: dict[str, str]) -> None:
        self.layout = layout
        self.pool = pool
        self.registers = registers

    # --- data

    def data(self, expression: Expression, scope: Scope) -> Value:
        """Source of an integer (a Boolean counts as 0 or 1)."""
        match expression:
            case Const(value=value):
                return Value(repr(value) if value >= 0 else f"({value!r})", value, value)
            case FieldRef(header=header, field=name):
                return self.of_field(header, name)
            case ArgumentRef(index=number):
                return scope.arguments[number]
            case LastField(stack=stack, field=name, member=member):
                return self._last(stack, name, member, scope)
            case ItemField(item=item, field=name):
                index = self.data(item.index, scope)
                values = [self.of_field(header, name) for header in self.elements(item)]
                low = min((value.low for value in values if value.low is not None), default=None)
                high = max((value.high for value in values if value.high is not None), default=None)
                return Value(self._pick(index, [value.text for value in values]), min(low or 0, 0), high)
            case RegisterCell(register=register, index=index_expression):
                index = self.data(index_expression, scope)
                width = self.layout.program.control.registers[register].width
                pick = self.pool.function(support.pick)
                return Value(f"{pick}({index.text}, {self.registers[register]})", 0, (1 << width) - 1)
            case Choice(kind="data", condition=condition, left=left, right=right):
                return _either(self.boolean(condition, scope), self.data(left, scope), self.data(right, scope))
            case Operation(kind="data"):
                return self._operation(expression, scope)
        text = self.boolean(expression, scope)
        if text in ("True", "False"):
            return Value("1", 1, 1) if text == "True" else Value("0", 0, 0)
        return Value(text if text.startswith("v") and text[1:].isdigit() else f"(1 if {text} else 0)", 0, 1)

    def unsigned(self, expression: Expression, scope: Scope) -> Value:
        """Source of a field's bits as a number that is not negative, as a match key or a hash sees them."""
        value = self.data(expression, scope)
        if isinstance(expression, FieldRef) and not self.layout.program.field(expression).variable:
            width = self.layout.program.field(expression).width
            return Value(_grouped(fit(value, width)), 0, (1 << width) - 1)
        return value

    def of_field(self, header: str, name: str) -> Value:
        """Source of a field."""
        if name == VALID:
            instance = self.layout.program.headers[header]
            return Value("1", 1, 1) if instance.metadata else Value(f"v{instance.index}", 0, 1)
        described = self.layout.program.headers[header].type.field(name)
        if not self.layout.is_live(header, name):
            return Value("0", 0, 0)
        return Value(self.layout.name(header, name), *bounds(described))

    def elements(self, item: StackItem | ItemMember) -> list[str]:
        """Headers that an element of a stack may be, by index."""
        program = self.layout.program
        items = program.stacks[item.stack].items
        if isinstance(item, ItemMember):
            return [program.unions[union].headers[item.member] for union in items]
        return list(items)

    def stack_headers(self, stack: str, member: int | None) -> list[str]:
        """Headers of a stack, or of one member of its unions."""
        program = self.layout.program
        items = program.stacks[stack].items
        return list(items) if member is None else [program.unions[union].headers[member] for union in items]

    def count(self, stack: str, scope: Scope) -> Value:
        """Number of elements of a stack that are in use."""
        if stack in scope.counts:
            return Value(repr(scope.counts[stack]), scope.counts[stack], scope.counts[stack])
        items = self.layout.program.stacks[stack]
        return Value(f"n{items.index}", 0, len(items.items))

    def _last(self, stack: str, name: str, member: int | None, scope: Scope) -> Value:
        headers = self.stack_headers(stack, member)
        count = self.count(stack, scope)
        if count.const is not None:
            return self.of_field(headers[count.const - 1], name) if count.const else Value("0", 0, 0)
        values = [self.of_field(header, name) for header in headers]
        low, high = values[0].low, values[0].high
        return Value(self._pick(Value(f"{count.text} - 1"), [value.text for value in values]), min(low or 0, 0), high)

    def _pick(self, index: Value, items: list[str]) -> str:
        return f"{self.pool.function(support.pick)}({index.text}, ({', '.join(items)},))"

    def _operation(self, operation: Operation, scope: Scope) -> Value:
        op = operation.op
        if op == "b2d":
            return self.data(operation.right, scope)
        if op in ("last_stack_index", "size_stack"):
            assert isinstance(operation.right, StackRef)
            count = self.count(operation.right.name, scope)
            return count if op == "size_stack" else _add(count, Value("1", 1, 1), "-")
        right = self.data(operation.right, scope)
        if op == "~":
            low = None if right.high is None else ~right.high
            return Value(f"(~{right.text})", low, None if right.low is None else ~right.low)
        left = Value("0", 0, 0) if operation.left is None else self.data(operation.left, scope)
        match op:
            case "+" | "-":
                return _add(left, right, op)
            case "*":
                highs = (left.high, right.high)
                if left.positive and right.positive and highs[0] is not None and highs[1] is not None:
                    return _value(f"({left.text} * {right.text})", 0, highs[0] * highs[1])
                return Value(f"({left.text} * {right.text})")
            case "&" | "|" | "^":
                return _bitwise(left, right, op)
            case "<<" | ">>":
                return self._shift(left, right, op)
            case "/" | "%":
                return self._divide(left, right, op)
        return _cast(left, right, op)

    def _shift(self, left: Value, right: Value, op: str) -> Value:
        if op == ">>":
            high = left.high if left.positive else None
            if right.const is not None and high is not None and right.const >= 0:
                high >>= min(right.const, MAX_BOUND.bit_length())
            if right.positive:
                return Value(f"({left.text} >> {right.text})", 0 if left.positive else None, high)
            return Value(f"{self.pool.function(support.shift_right)}({left.text}, {right.text})")
        if right.positive and right.high is not None and right.high < 4096:
            high = None if left.high is None or not left.positive else left.high << right.high
            return _value(f"({left.text} << {right.text})", 0 if left.positive else None, high)
        return Value(f"{self.pool.function(support.shift_left)}({left.text}, {right.text})", 0 if left.positive else None)

    def _divide(self, left: Value, right: Value, op: str) -> Value:
        if left.positive and right.low is not None and right.low > 0:
            high = left.high if op == "/" else None if right.high is None else right.high - 1
            return Value(f"({left.text} {'//' if op == '/' else '%'} {right.text})", 0, high)
        function = self.pool.function(support.divide if op == "/" else support.modulo)
        return Value(f"{function}({left.text}, {right.text})")

    # --- Booleans

    def boolean(self, expression: Expression, scope: Scope) -> str:
        """Source of a condition; true or false for Python, not always a bool."""
        match expression:
            case Flag(value=value):
                return repr(value)
            case Choice(kind="bool", condition=condition, left=left, right=right):
                texts = [self.boolean(item, scope) for item in (left, condition, right)]
                return f"({texts[0]} if {texts[1]} else {texts[2]})"
            case Operation(kind="bool"):
                return self._condition(expression, scope)
        return _grouped(self.data(expression, scope).text)

    def _condition(self, operation: Operation, scope: Scope) -> str:
        op = operation.op
        match op:
            case "d2b":
                return _grouped(self.data(operation.right, scope).text)
            case "not":
                return f"(not {self.boolean(operation.right, scope)})"
            case "valid" | "valid_union":
                return self._valid(operation.right, scope)
        assert operation.left is not None
        if op in ("and", "or"):
            return f"({self.boolean(operation.left, scope)} {op} {self.boolean(operation.right, scope)})"
        if operation.operands == "bool":
            return f"((not {self.boolean(operation.left, scope)}) {op} (not {self.boolean(operation.right, scope)}))"
        if operation.operands in ("header", "union"):
            equal = self._equal(operation.left, operation.right)
            return equal if op == "==" else f"(not {equal})"
        return f"({self.data(operation.left, scope).text} {op} {self.data(operation.right, scope).text})"

    def _valid(self, operand: Expression, scope: Scope) -> str:
        match operand:
            case HeaderRef(name=name):
                return self.of_field(name, VALID).text
            case UnionRef(name=name):
                headers = self.layout.program.unions[name].headers
                return f"({' or '.join(self.of_field(header, VALID).text for header in headers)})"
            case StackItem() | ItemMember():
                index = self.data(operand.index, scope)
                if isinstance(operand, StackItem) and self.layout.program.stacks[operand.stack].of_unions:
                    unions = self.layout.program.stacks[operand.stack].items
                    texts = [f"(1 if {self._valid(UnionRef(union), scope)} else 0)" for union in unions]
                else:
                    texts = [self.of_field(header, VALID).text for header in self.elements(operand)]
                return self._pick(index, texts)
        raise UnsupportedConstruct("", "validity of this expression")

    def _equal(self, left: Expression, right: Expression) -> str:
        program = self.layout.program
        if isinstance(left, HeaderRef) and isinstance(right, HeaderRef):
            return self._equal_headers(left.name, right.name)
        if isinstance(left, UnionRef) and isinstance(right, UnionRef):
            pairs = zip(program.unions[left.name].headers, program.unions[right.name].headers, strict=True)
            return f"({' or '.join(self._equal_headers(*pair) for pair in pairs)})"
        raise UnsupportedConstruct("", "comparison of headers by an index that only the packet tells")

    def _equal_headers(self, left: str, right: str) -> str:
        first, second = self.layout.program.headers[left], self.layout.program.headers[right]
        if first.type.name != second.type.name:
            return "False"
        sides = [[name for name in self.layout.state(side) if name[0] in "fw"] for side in (first, second)]
        same = [f"{one} == {other}" for one, other in zip(*sides, strict=True)]
        return f"({' and '.join([self.of_field(left, VALID).text, self.of_field(right, VALID).text, *same])})"


def bounds(described: Field) -> tuple[int | None, int | None]:
    """Smallest and largest value of a field; unknown for a variable-length one."""
    if described.variable:
        return 0, None
    if described.signed:
        return -(1 << (described.width - 1)), (1 << (described.width - 1)) - 1
    return 0, (1 << described.width) - 1


def _grouped(text: str) -> str:
    simple = text.replace("_", "").isalnum() or (text.startswith("(") and text.endswith(")") and text.count("(") == 1)
    return text if simple else f"({text})"


def _value(text: str, low: int | None, high: int | None) -> Value:
    return Value(text, low, high if high is not None and high < MAX_BOUND else None)


def _add(left: Value, right: Value, op: str) -> Value:
    low = high = None
    if op == "+":
        if left.low is not None and right.low is not None:
            low = left.low + right.low
        if left.high is not None and right.high is not None:
            high = left.high + right.high
    else:
        if left.low is not None and right.high is not None:
            low = left.low - right.high
        if left.high is not None and right.low is not None:
            high = left.high - right.low
    return _value(f"({left.text} {op} {right.text})", low, high)


def _bitwise(left: Value, right: Value, op: str) -> Value:
    text = f"({left.text} {op} {right.text})"
    if op in "|^" and 0 in (left.const, right.const):
        return right if left.const == 0 else left
    if op == "&":
        highs = [side.high for side in (left, right) if side.positive and side.high is not None]
        for mask, other in ((left, right), (right, left)):
            if mask.const is not None and mask.const & (mask.const + 1) == 0 and other.positive:
                if other.high is not None and other.high <= mask.const:
                    return other
        return Value(text, 0 if left.positive or right.positive else None, min(highs, default=None))
    if left.positive and right.positive:
        if left.high is None or right.high is None:
            return Value(text, 0)
        return Value(text, 0, (1 << max(left.high.bit_length(), right.high.bit_length())) - 1)
    return Value(text)


def _cast(value: Value, width: Value, op: str) -> Value:
    if width.const is None or not 0 < width.const < 16_384:
        raise UnsupportedConstruct("", f"'{op}' to a width that is no constant")
    bits = width.const
    signed = op != "usat_cast"
    text = _grouped(fit(value, bits, signed, saturating=op != "two_comp_mod"))
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return Value(text, low, high)


def _either(condition: str, left: Value, right: Value) -> Value:
    low = None if left.low is None or right.low is None else min(left.low, right.low)
    high = None if left.high is None or right.high is None else max(left.high, right.high)
    return Value(f"({left.text} if {condition} else {right.text})", low, high)
