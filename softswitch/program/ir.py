"""The program itself as plain, checked data: expressions, headers, parser, actions, control flow, deparser.

Read from BMv2 JSON by ``softswitch.program.reader`` (its specification: docs/JSON_format.md of the behavioral model), and turned
into Python functions by ``softswitch.compiler``.  All names that occur here were checked to exist.
"""

from __future__ import annotations

from dataclasses import dataclass

from softswitch.program.model import ControlModel
from softswitch.program.terms import (
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
    walk,
)

# Headers -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a header type.

    Attributes:
        offset: In bits from the header's start, as if a variable-length field before it were empty.
        width: In bits; 0 for the variable-length field.
    """

    name: str
    width: int
    offset: int
    signed: bool = False
    saturating: bool = False
    variable: bool = False


@dataclass(frozen=True, slots=True)
class HeaderType:
    """A header type; ``bits`` is its width without its variable-length field, ``max_bytes`` the most with it."""

    name: str
    fields: tuple[Field, ...]
    bits: int
    max_bytes: int = 0

    @property
    def variable(self) -> Field | None:
        """The variable-length field, if there is one."""
        return next((field for field in self.fields if field.variable), None)

    def field(self, name: str) -> Field:
        """The field of that name, which must exist."""
        return next(field for field in self.fields if field.name == name)


@dataclass(frozen=True, slots=True)
class Header:
    """A header instance; ``index`` numbers them densely."""

    name: str
    index: int
    type: HeaderType
    metadata: bool
    union: str | None = None


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack of headers (names of instances), or of unions (names of unions)."""

    name: str
    index: int
    items: tuple[str, ...]
    of_unions: bool = False


@dataclass(frozen=True, slots=True)
class Union:
    """A header union: names of its headers, in the order of the union's type."""

    name: str
    headers: tuple[str, ...]


# Actions and parsers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ref:
    """A named object as an argument of a primitive: ``kind`` is the JSON's (``calculation``, ``meter_array``, ...)."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Text:
    """A string argument."""

    value: str


@dataclass(frozen=True, slots=True)
class Vector:
    """A list of expressions."""

    items: tuple[Expression, ...]


Argument = Expression | Ref | Text | Vector


@dataclass(frozen=True, slots=True)
class Primitive:
    """A call of a primitive; ``where`` is its path in the JSON."""

    op: str
    arguments: tuple[Argument, ...]
    where: str


@dataclass(frozen=True, slots=True)
class Action:
    """An action: widths of its runtime data, and its primitives."""

    id: int
    name: str
    widths: tuple[int, ...]
    primitives: tuple[Primitive, ...]


@dataclass(frozen=True, slots=True)
class Extract:
    """Extraction of ``header``, of the next element of ``stack``, or of ``member`` of the next union of a stack."""

    header: str | None = None
    stack: str | None = None
    member: int | None = None
    length: Expression | None = None


@dataclass(frozen=True, slots=True)
class Set:
    """Assignment of a value (a variable-length field where both are) to a field in the parser."""

    target: FieldRef
    value: Expression


@dataclass(frozen=True, slots=True)
class Verify:
    """Leaves the parser with the error's code unless the condition holds."""

    condition: Expression
    error: Expression


@dataclass(frozen=True, slots=True)
class Advance:
    """Skips bits of the packet, a multiple of eight."""

    bits: Expression


@dataclass(frozen=True, slots=True)
class Call:
    """A primitive called in a parser state."""

    primitive: Primitive


ParserOp = Extract | Set | Verify | Advance | Call


@dataclass(frozen=True, slots=True)
class KeyPart:
    """A part of a transition key and its width."""

    value: FieldRef | LastField | Lookahead
    width: int


@dataclass(frozen=True, slots=True)
class Transition:
    """A case of a select: one value and mask a key part, or a value set; ``target`` None ends the parser."""

    target: str | None
    values: tuple[int, ...] = ()
    masks: tuple[int, ...] = ()
    value_set: str | None = None


@dataclass(frozen=True, slots=True)
class State:
    """A parser state; ``default`` is where it goes if no case matches."""

    name: str
    ops: tuple[ParserOp, ...]
    key: tuple[KeyPart, ...]
    transitions: tuple[Transition, ...]
    default: str | None


@dataclass(frozen=True, slots=True)
class Parser:
    """The parser: its first state, and all by name."""

    init: str | None
    states: dict[str, State]


# Control flow --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Apply:
    """Application of a table.

    Attributes:
        table: Its name in the control model.
        next_actions: Next node by action index.
        next_hit, next_miss: Next node after a hit or miss where ``by_hit``.
        next_none: Next node if there is no default action.
    """

    table: str
    actions: tuple[int, ...]
    next_actions: tuple[str | None, ...]
    by_hit: bool
    next_hit: str | None
    next_miss: str | None
    next_none: str | None


@dataclass(frozen=True, slots=True)
class Conditional:
    """A branch."""

    condition: Expression
    on_true: str | None
    on_false: str | None


@dataclass(frozen=True, slots=True)
class DirectCall:
    """An action called without a table."""

    action: int
    next: str | None


Node = Apply | Conditional | DirectCall


@dataclass(frozen=True, slots=True)
class Control:
    """A pipeline: first node, and all nodes by name."""

    name: str
    init: str | None
    nodes: dict[str, Node]


@dataclass(frozen=True, slots=True)
class CalcInput:
    """An input of a calculation: a field, a constant of ``width`` bits, a header, or (with nothing set) the payload."""

    field: FieldRef | None = None
    constant: int | None = None
    width: int = 0
    header: str | None = None

    @property
    def payload(self) -> bool:
        """Whether this stands for the packet's payload."""
        return self.field is None and self.constant is None and self.header is None


@dataclass(frozen=True, slots=True)
class Calculation:
    """A hash of fields, headers, constants and perhaps the payload."""

    name: str
    algorithm: str
    inputs: tuple[CalcInput, ...]


@dataclass(frozen=True, slots=True)
class Checksum:
    """A checksum that is verified after the parser or updated before the deparser."""

    target: FieldRef
    calculation: str
    condition: Expression | None
    verify: bool
    update: bool


@dataclass(frozen=True, slots=True)
class Deparser:
    """Names of the headers to emit, and primitives to call before that."""

    order: tuple[str, ...]
    primitives: tuple[Primitive, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """All of a program.

    Attributes:
        errors: Code of each parser error by its name.
        digests: Fields of each digest (learn list) by its id; ``control.digests`` describes them.
        field_lists: Fields to keep by a field list's id.
        aliases: Field that the program uses for one that the target knows by another name.
    """

    control: ControlModel
    headers: dict[str, Header]
    stacks: dict[str, Stack]
    unions: dict[str, Union]
    errors: dict[str, int]
    parser: Parser
    actions: dict[int, Action]
    ingress: Control
    egress: Control
    deparser: Deparser
    calculations: dict[str, Calculation]
    checksums: tuple[Checksum, ...]
    digests: dict[int, tuple[str, tuple[FieldRef, ...]]]
    field_lists: dict[int, tuple[FieldRef, ...]]
    aliases: dict[str, FieldRef]

    def field(self, ref: FieldRef) -> Field:
        """Description of a field; ``$valid$`` is one bit wide."""
        if ref.field == VALID:
            return Field(VALID, 1, 0)
        return self.headers[ref.header].type.field(ref.field)


__all__ = [
    "VALID",
    "Action",
    "Advance",
    "Apply",
    "Argument",
    "ArgumentRef",
    "CalcInput",
    "Calculation",
    "Call",
    "Checksum",
    "Choice",
    "Conditional",
    "Const",
    "Control",
    "Deparser",
    "DirectCall",
    "Expression",
    "Extract",
    "Field",
    "FieldRef",
    "Flag",
    "Header",
    "HeaderRef",
    "HeaderType",
    "ItemField",
    "ItemMember",
    "KeyPart",
    "Kind",
    "LastField",
    "Lookahead",
    "Node",
    "Operation",
    "Parser",
    "ParserOp",
    "Primitive",
    "Program",
    "Ref",
    "RegisterCell",
    "Set",
    "Stack",
    "StackItem",
    "StackRef",
    "State",
    "Text",
    "Transition",
    "Union",
    "UnionRef",
    "Vector",
    "Verify",
    "walk",
]
