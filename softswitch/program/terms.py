"""Expressions of a program as plain data: constants, fields, headers, stacks, operators.

``softswitch.program.ir`` has the rest of a program and gives these names too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

VALID = "$valid$"
"""Hidden one-bit field of every header: whether it is valid."""


@dataclass(frozen=True, slots=True)
class Const:
    """A number of any size and sign."""

    value: int


@dataclass(frozen=True, slots=True)
class Flag:
    """A Boolean constant."""

    value: bool


@dataclass(frozen=True, slots=True)
class FieldRef:
    """A field of a header instance; ``field`` may be ``$valid$``."""

    header: str
    field: str


@dataclass(frozen=True, slots=True)
class LastField:
    """A field of the header extracted last to a stack; for a stack of unions ``member`` is the union's member."""

    stack: str
    field: str
    member: int | None = None


@dataclass(frozen=True, slots=True)
class ArgumentRef:
    """Runtime data number ``index`` of the action, ``width`` bits wide."""

    index: int
    width: int


@dataclass(frozen=True, slots=True)
class RegisterCell:
    """A cell of a register array."""

    register: str
    index: Expression


@dataclass(frozen=True, slots=True)
class Lookahead:
    """Bits of the packet ahead of the parser: ``width`` of them, ``offset`` bits from here."""

    offset: int
    width: int


@dataclass(frozen=True, slots=True)
class HeaderRef:
    """A header instance."""

    name: str


@dataclass(frozen=True, slots=True)
class StackRef:
    """A stack of headers, or of header unions."""

    name: str


@dataclass(frozen=True, slots=True)
class UnionRef:
    """A header union."""

    name: str


@dataclass(frozen=True, slots=True)
class StackItem:
    """An element of a stack by an index that only the packet tells."""

    stack: str
    index: Expression


@dataclass(frozen=True, slots=True)
class ItemMember:
    """A member of a union that is an element of a stack, by an index that only the packet tells."""

    stack: str
    index: Expression
    member: int


@dataclass(frozen=True, slots=True)
class ItemField:
    """Field of a header that is an element of a stack (or, with ``member``, of a union there)."""

    item: StackItem | ItemMember
    field: str


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator of the JSON format with one (``right``) or two operands.

    Attributes:
        kind: Of the result: ``data`` or ``bool``.
        operands: Kind of the operands, where the operator takes several (``==``).
    """

    op: str
    kind: Kind
    left: Expression | None
    right: Expression
    operands: Kind = "data"


@dataclass(frozen=True, slots=True)
class Choice:
    """The ternary operator."""

    kind: Kind
    condition: Expression
    left: Expression
    right: Expression


Kind = Literal["data", "bool", "header", "union", "stack", "union_stack"]
Expression = (
    Const
    | Flag
    | FieldRef
    | LastField
    | ArgumentRef
    | RegisterCell
    | Lookahead
    | HeaderRef
    | StackRef
    | UnionRef
    | StackItem
    | ItemMember
    | ItemField
    | Operation
    | Choice
)


def walk(expression: Expression) -> Iterator[Expression]:
    """The expression and everything inside it."""
    yield expression
    match expression:
        case RegisterCell(index=index) | StackItem(index=index) | ItemMember(index=index):
            yield from walk(index)
        case ItemField(item=item):
            yield from walk(item)
        case Operation(left=left, right=right):
            if left is not None:
                yield from walk(left)
            yield from walk(right)
        case Choice(condition=condition, left=left, right=right):
            yield from walk(condition)
            yield from walk(left)
            yield from walk(right)


