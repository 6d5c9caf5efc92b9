"""Reads expressions: typed, with every reference checked."""

from __future__ import annotations

from softswitch.program.headers import Names
from softswitch.program.ir import (
    VALID,
    ArgumentRef,
    Choice,
    Const,
    Expression,
    FieldRef,
    Flag,
    HeaderRef,
    ItemField,
    ItemMember,
    Kind,
    LastField,
    Lookahead,
    Operation,
    RegisterCell,
    StackItem,
    StackRef,
    UnionRef,
)
from softswitch.program.source import Source

ARITHMETIC = frozenset("+ - * / % << >> & | ^".split()) | {"two_comp_mod", "sat_cast", "usat_cast"}
COMPARISONS = frozenset("< > <= >=".split())
MAX_LOOKAHEAD_BITS = 65_536


class ExpressionReader:
    """Reads expressions.

    Args:
        names: What they may refer to.
    """

    def __init__(self, names: Names) -> None:
        self.names = names

    def read(self, source: Source, kind: Kind | None = None, widths: tuple[int, ...] | None = None) -> Expression:
        """Reads an expression.

        Args:
            kind: Kind that is expected, or None for any.
            widths: Widths of the runtime data that it may use.

        Raises:
            ProgramError: It is malformed, or of another kind.
            UnsupportedConstruct: An operator that this target lacks.
        """
        expression = self._read(source, widths or ())
        if kind is not None and kind_of(expression, self.names) != kind:
            source.fail(f"expected an expression of kind {kind}, not {kind_of(expression, self.names)}")
        return expression

    def header(self, source: Source) -> str:
        """Name of a header instance that exists."""
        name = source.text()
        if name not in self.names.headers:
            source.fail(f"there is no header '{name}'")
        return name

    def field(self, source: Source) -> FieldRef:
        """A field given as an array of header and field."""
        parts = source.array(2)
        if not isinstance(parts[0].value, str):
            source.unsupported("field of a header that is computed")
        header = self.header(parts[0])
        name = parts[1].text()
        if name != VALID and all(field.name != name for field in self.names.headers[header].type.fields):
            parts[1].fail(f"header '{header}' has no field '{name}'")
        return FieldRef(header, name)

    def last_field(self, source: Source) -> LastField:
        """A field of the last element of a stack."""
        parts = source.array()
        if len(parts) == 3:
            return self.last_union_field(source)
        parts = source.array(2)
        stack = self.stack(parts[0])
        if self.names.stacks[stack].of_unions:
            source.fail(f"'{stack}' is a stack of unions")
        return LastField(stack, self._stack_field(parts[1], stack, None))

    def last_union_field(self, source: Source) -> LastField:
        """A field of a member of the last element of a stack of unions."""
        parts = source.array(3)
        stack = self.stack(parts[0])
        member = self.member(parts[1], stack)
        return LastField(stack, self._stack_field(parts[2], stack, member), member)

    def stack(self, source: Source) -> str:
        """Name of a stack that exists."""
        name = source.text()
        if name not in self.names.stacks:
            source.fail(f"there is no header stack '{name}'")
        return name

    def member(self, source: Source, stack: str) -> int:
        """Position of a named member in the unions of a stack."""
        items = self.names.stacks[stack]
        name = source.text()
        members = self.names.members[items.items[0]] if items.of_unions else ()
        if name not in members:
            source.fail(f"unions of '{stack}' have no member '{name}'")
        return members.index(name)

    def lookahead(self, source: Source) -> Lookahead:
        """Lookahead given as an array of offset and width in bits."""
        parts = source.array(2)
        return Lookahead(parts[0].integer(0, MAX_LOOKAHEAD_BITS), parts[1].integer(1, MAX_LOOKAHEAD_BITS))

    def _stack_field(self, source: Source, stack: str, member: int | None) -> str:
        name = source.text()
        fields = self.names.stack_type(self.names.stacks[stack], member).fields
        if name != VALID and all(field.name != name for field in fields):
            source.fail(f"headers of stack '{stack}' have no field '{name}'")
        return name

    def _read(self, source: Source, widths: tuple[int, ...]) -> Expression:
        kind = source["type"].text()
        value = source["value"]
        match kind:
            case "expression":
                if isinstance(value.value, dict) and "op" not in value.value:
                    return self._read(value, widths)
                return self._operation(value, widths)
            case "hexstr":
                return Const(value.hexadecimal())
            case "bool":
                return Flag(value.boolean())
            case "field":
                return self.field(value)
            case "local" | "runtime_data":
                index = value.integer()
                if index >= len(widths):
                    value.fail(f"there is no runtime data number {index} here")
                return ArgumentRef(index, widths[index])
            case "header":
                return HeaderRef(self.header(value))
            case "header_stack" | "header_union_stack":
                return StackRef(self.stack(value))
            case "header_union":
                if value.text() not in self.names.unions:
                    value.fail(f"there is no header union '{value.text()}'")
                return UnionRef(value.text())
            case "stack_field":
                return self.last_field(value)
            case "union_stack_field":
                return self.last_union_field(value)
            case "register":
                parts = value.array(2)
                if parts[0].text() not in self.names.widths:
                    parts[0].fail(f"there is no register array '{parts[0].text()}'")
                return RegisterCell(parts[0].text(), self.read(parts[1], "data", widths))
            case "lookahead":
                return self.lookahead(value)
        source["type"].unsupported(f"expression of type '{kind}'")

    def _operation(self, source: Source, widths: tuple[int, ...]) -> Expression:
        op = source["op"].text()
        right = source.get("right")
        match op:
            case "access_field":
                return self._access_field(source, self._read(source["left"], widths), right)
            case "access_union_header":
                return self._access_member(source, self._read(source["left"], widths), right)
            case "dereference_header_stack" | "dereference_union_stack":
                return self._dereference(source, widths)
            case "?":
                condition = self.read(source["cond"], "bool", widths)
                left = self._read(source["left"], widths)
                kind = kind_of(left, self.names)
                if kind not in ("data", "bool"):
                    source.unsupported(f"conditional expression of kind {kind}")
                return Choice(kind, condition, left, self.read(right, kind, widths))
            case "valid" | "valid_union":
                wanted: Kind = "header" if op == "valid" else "union"
                return Operation(op, "bool", None, self.read(right, wanted, widths), wanted)
            case "last_stack_index" | "size_stack":
                stack = self._read(right, widths)
                if not isinstance(stack, StackRef):
                    right.fail("expected a stack")
                return Operation(op, "data", None, stack, "stack")
            case "d2b":
                return Operation(op, "bool", None, self.read(right, "data", widths))
            case "b2d":
                return Operation(op, "data", None, self.read(right, "bool", widths), "bool")
            case "not":
                return Operation(op, "bool", None, self.read(right, "bool", widths), "bool")
            case "~":
                return Operation(op, "data", None, self.read(right, "data", widths))
            case "and" | "or":
                left = self.read(source["left"], "bool", widths)
                return Operation(op, "bool", left, self.read(right, "bool", widths), "bool")
            case "==" | "!=":
                left = self._read(source["left"], widths)
                kind = kind_of(left, self.names)
                if kind not in ("data", "bool", "header", "union"):
                    source.unsupported(f"comparison of {kind}s")
                return Operation(op, "bool", left, self.read(right, kind, widths), kind)
        operand = None if op in "+-" and not source.has("left") else self.read(source["left"], "data", widths)
        if op in ARITHMETIC:
            return Operation(op, "data", operand, self.read(right, "data", widths))
        if op in COMPARISONS:
            return Operation(op, "bool", operand, self.read(right, "data", widths))
        source["op"].unsupported(f"operator '{op}'")

    def _dereference(self, source: Source, widths: tuple[int, ...]) -> Expression:
        stack = self._read(source["left"], widths)
        index = self.read(source["right"], "data", widths)
        if not isinstance(stack, StackRef):
            source["left"].fail("expected a stack")
        items = self.names.stacks[stack.name]
        if not isinstance(index, Const):
            return StackItem(stack.name, index)
        if not 0 <= index.value < len(items.items):
            source["right"].fail(f"index {index.value} is beyond the end of stack '{stack.name}'")
        name = items.items[index.value]
        return UnionRef(name) if items.of_unions else HeaderRef(name)

    def _access_field(self, source: Source, header: Expression, position: Source) -> Expression:
        match header:
            case HeaderRef(name=name):
                header_type = self.names.headers[name].type
            case StackItem(stack=stack) | ItemMember(stack=stack):
                member = header.member if isinstance(header, ItemMember) else None
                header_type = self.names.stack_type(self.names.stacks[stack], member)
            case _:
                source.fail("expected a header")
        fields = header_type.fields
        at = position.integer(0, len(fields))
        name = fields[at].name if at < len(fields) else VALID
        if isinstance(header, HeaderRef):
            return FieldRef(header.name, name)
        if at < len(fields) and fields[at].variable:
            position.unsupported("variable-length field of a header that is computed")
        return ItemField(header, name)

    def _access_member(self, source: Source, union: Expression, position: Source) -> Expression:
        match union:
            case UnionRef(name=name):
                headers = self.names.unions[name].headers
                return HeaderRef(headers[position.integer(0, len(headers) - 1)])
            case StackItem(stack=stack, index=index) if self.names.stacks[stack].of_unions:
                members = self.names.members[self.names.stacks[stack].items[0]]
                return ItemMember(stack, index, position.integer(0, len(members) - 1))
        source.fail("expected a header union")


def kind_of(expression: Expression, names: Names) -> Kind:
    """What an expression evaluates to."""
    match expression:
        case Flag():
            return "bool"
        case Operation(kind=kind) | Choice(kind=kind):
            return kind
        case HeaderRef() | ItemMember():
            return "header"
        case UnionRef():
            return "union"
        case StackItem(stack=stack):
            return "union" if names.stacks[stack].of_unions else "header"
        case StackRef(name=name):
            return "union_stack" if names.stacks[name].of_unions else "stack"
    return "data"
