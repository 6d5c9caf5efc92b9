"""Which fields matter, and which local variable holds what.

Local variables: ``f3_2`` is field 2 of header 3, ``v3`` its validity (0 or 1), ``w3`` the width in bits of its variable-length
field, ``b3`` or ``o3`` its bytes as they came (see ``Backing``), ``n1`` the count of stack 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from softswitch.program.ir import (
    VALID,
    Advance,
    Apply,
    Argument,
    Call,
    Conditional,
    Control,
    Expression,
    Extract,
    Field,
    FieldRef,
    Header,
    HeaderRef,
    ItemField,
    ItemMember,
    LastField,
    Operation,
    Primitive,
    Program,
    Set,
    StackItem,
    StackRef,
    UnionRef,
    Vector,
    Verify,
    walk,
)
from softswitch.program.model import KeyField

Key = tuple[str, str]

RESULTS = {
    "assign": (0,),
    "assign_VL": (0,),
    "modify_field": (0,),
    "modify_field_rng_uniform": (0,),
    "add": (0,),
    "subtract": (0,),
    "bit_xor": (0,),
    "bit_or": (0,),
    "bit_and": (0,),
    "shift_left": (0,),
    "shift_right": (0,),
    "modify_field_with_hash_based_offset": (0,),
    "execute_meter": (2,),
    "register_read": (0,),
}
"""Positions of the arguments that a primitive writes and does not read."""

UPDATES = ("add_to_field", "subtract_from_field")


class Backing(Enum):
    """Where the bytes of a header come from that no local variable holds."""

    NONE = "all of it is in local variables"
    OFFSET = "o: offset of the header in the packet as it came"
    BYTES = "b: bytes of the header, or zeros"


@dataclass(slots=True)
class Layout:
    """Result of the analysis.

    Attributes:
        live: Fields that get a local variable.
        written: Fields that something writes (after extraction).
        made: Headers that may become valid otherwise than by extraction.
        counted: Stacks whose count something needs after the parser.
        backing: By header.
    """

    program: Program
    live: set[Key] = field(default_factory=set)
    written: set[Key] = field(default_factory=set)
    made: set[str] = field(default_factory=set)
    counted: set[str] = field(default_factory=set)
    backing: dict[str, Backing] = field(default_factory=dict)

    def name(self, header: str, field_name: str) -> str:
        """Local variable of a field."""
        instance = self.program.headers[header]
        if field_name == VALID:
            return f"v{instance.index}"
        position = next(i for i, item in enumerate(instance.type.fields) if item.name == field_name)
        return f"f{instance.index}_{position}"

    def is_live(self, header: str, field_name: str) -> bool:
        """Whether a field has a local variable."""
        return field_name == VALID or (header, field_name) in self.live

    def fields(self, header: Header) -> list[Field]:
        """Live fields of a header, in order."""
        return [item for item in header.type.fields if (header.name, item.name) in self.live]

    def state(self, header: Header) -> list[str]:
        """All local variables that make up a header's value, validity first; the backing, if there is one, last."""
        names = [] if header.metadata else [f"v{header.index}"]
        names += [self.name(header.name, item.name) for item in self.fields(header)]
        variable = header.type.variable
        if variable is not None and (header.name, variable.name) in self.live:
            names.append(f"w{header.index}")
        match self.backing[header.name]:
            case Backing.BYTES:
                names.append(f"b{header.index}")
            case Backing.OFFSET:
                names.append(f"o{header.index}")
        return names


class _Analysis:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.reads: set[Key] = set()
        self.writes: set[Key] = set()
        self.counted: set[str] = set()
        self.groups: dict[str, str] = {name: name for name in program.headers}
        self.made: set[str] = set()
        """Headers that become valid, or move, otherwise than by extraction."""
        self.whole: set[str] = set()
        """Headers all of whose fields are needed."""

    def find(self, name: str) -> str:
        while self.groups[name] != name:
            name = self.groups[name]
        return name

    def join(self, names: Iterable[str]) -> None:
        first, *rest = (self.find(name) for name in names)
        for name in rest:
            self.groups[self.find(name)] = self.find(first)

    def elements(self, stack: str, member: int | None) -> list[str]:
        """Header instances in a stack (of one member of its unions)."""
        items = self.program.stacks[stack]
        if not items.of_unions:
            return list(items.items)
        return [
            header
            for union in items.items
            for position, header in enumerate(self.program.unions[union].headers)
            if member in (None, position)
        ]

    def touch(self, expression: Expression, into: set[Key]) -> None:
        """A field that is read or written."""
        match expression:
            case FieldRef(header=header, field=name):
                into.add((header, name))
            case LastField(stack=stack, field=name, member=member):
                into.update((header, name) for header in self.elements(stack, member))
                self.counted.add(stack)
            case ItemField(item=item, field=name):
                member = item.member if isinstance(item, ItemMember) else None
                into.update((header, name) for header in self.elements(item.stack, member))

    def read(self, expression: Expression) -> None:
        for item in walk(expression):
            self.touch(item, self.reads)
            if isinstance(item, Operation):
                if item.op in ("last_stack_index", "size_stack") and isinstance(item.right, StackRef):
                    self.counted.add(item.right.name)
                if item.op in ("==", "!=") and item.operands in ("header", "union"):
                    for side in (item.left, item.right):
                        if side is not None:
                            self.whole.update(self.headers(side))

    def headers(self, argument: Argument) -> list[str]:
        """Header instances that an expression may stand for."""
        match argument:
            case HeaderRef(name=name):
                return [name]
            case UnionRef(name=name):
                return list(self.program.unions[name].headers)
            case StackRef(name=name):
                return self.elements(name, None)
            case StackItem(stack=stack):
                return self.elements(stack, None)
            case ItemMember(stack=stack, member=member):
                return self.elements(stack, member)
        return []

    def primitive(self, primitive: Primitive) -> None:
        for position, argument in enumerate(primitive.arguments):
            if isinstance(argument, Vector):
                for item in argument.items:
                    self.read(item)
            elif not isinstance(argument, Expression):
                continue
            elif position in RESULTS.get(primitive.op, ()):
                self.touch(argument, self.writes)
                if isinstance(argument, ItemField):
                    self.read(argument.item.index)
            else:
                self.read(argument)
                if position == 0 and primitive.op in UPDATES:
                    self.touch(argument, self.writes)
        self._headers(primitive)

    def _headers(self, primitive: Primitive) -> None:
        operands = [self.headers(argument) for argument in primitive.arguments]
        match primitive.op:
            case "add_header" | "add_header_fast":
                self.made.update(operands[0])
            case "assign_header" | "copy_header" | "assign_union" | "assign_header_stack" | "assign_union_stack":
                self.made.update(operands[0])
                if len(operands[0]) == len(operands[1]):
                    for target, source in zip(*operands, strict=True):
                        self.join((target, source))
                else:
                    self.join(operands[0] + operands[1])
                self.counted.update(item.name for item in primitive.arguments if isinstance(item, StackRef))
            case "push" | "pop":
                stack = primitive.arguments[0]
                assert isinstance(stack, StackRef)
                self.made.update(operands[0])
                self.counted.add(stack.name)
                items = self.program.stacks[stack.name]
                if items.of_unions:
                    for position in range(len(self.program.unions[items.items[0]].headers)):
                        self.join(self.elements(stack.name, position))
                else:
                    self.join(operands[0])

    def control(self, control: Control) -> None:
        for node in control.nodes.values():
            match node:
                case Conditional(condition=condition):
                    self.read(condition)
                case Apply(table=table):
                    model = self.program.control.tables[table]
                    self.keys(model.keys)
                    if model.profile is not None:
                        self.reads.update(self.program.control.profiles[model.profile].selector)
                    if model.direct_meter is not None:
                        target = self.program.control.meters[model.direct_meter].target
                        if target is not None:
                            self.writes.add(target)

    def keys(self, keys: tuple[KeyField, ...]) -> None:
        self.reads.update(key.field for key in keys)

    def parser(self) -> None:
        for state in self.program.parser.states.values():
            for op in state.ops:
                match op:
                    case Set(target=target, value=value):
                        self.writes.add((target.header, target.field))
                        self.read(value)
                    case Verify(condition=condition, error=error):
                        self.read(condition)
                        self.read(error)
                    case Advance(bits=bits):
                        self.read(bits)
                    case Call(primitive=primitive):
                        self.primitive(primitive)
                    case Extract(length=length):
                        if length is not None:
                            self.read(length)
            for part in state.key:
                self.read(part.value)


def analyse(program: Program, reads: Iterable[FieldRef]) -> Layout:
    """Finds out which fields need a local variable.

    Args:
        reads: Fields that the target itself reads.
    """
    analysis = _Analysis(program)
    analysis.reads.update((ref.header, ref.field) for ref in reads)
    analysis.parser()
    for control in (program.ingress, program.egress):
        analysis.control(control)
    for action in program.actions.values():
        for primitive in action.primitives:
            analysis.primitive(primitive)
    for primitive in program.deparser.primitives:
        analysis.primitive(primitive)
    for checksum in program.checksums:
        analysis.reads.add((checksum.target.header, checksum.target.field))
        if checksum.update:
            analysis.writes.add((checksum.target.header, checksum.target.field))
        if checksum.condition is not None:
            analysis.read(checksum.condition)
    for calculation in program.calculations.values():
        for item in calculation.inputs:
            if item.field is not None:
                analysis.read(item.field)
    lists = [refs for _, refs in program.digests.values()] + list(program.field_lists.values())
    for refs in lists:
        for ref in refs:
            analysis.read(ref)
    return _layout(analysis)


def _layout(analysis: _Analysis) -> Layout:
    program = analysis.program
    layout = Layout(program, counted=analysis.counted)
    emitted = {name for name in program.deparser.order} | {
        item.header for calculation in program.calculations.values() for item in calculation.inputs if item.header
    }
    groups: dict[str, list[str]] = {}
    for name in program.headers:
        groups.setdefault(analysis.find(name), []).append(name)
    for names in groups.values():
        read: set[str] = set()
        written: set[str] = set()
        for name in names:
            fields = {item.name for item in program.headers[name].type.fields}
            read |= fields if name in analysis.whole else {item for header, item in analysis.reads if header == name}
        shown = any(name in emitted for name in names)
        if shown:
            written = {item for header, item in analysis.writes if header in names}
        made = any(name in analysis.made for name in names)
        layout.made.update(names if made else ())
        for name in names:
            header = program.headers[name]
            own = {item for item in read | written if item != VALID and any(item == f.name for f in header.type.fields)}
            cells = cells_of(header)
            if written or (made and header.type.variable is not None):
                # A cell of which a part is written is put together from all of its fields.
                for cell in cells:
                    if any(item.name in written for item in cell.fields):
                        own |= {item.name for item in cell.fields}
                if header.type.variable is not None:
                    own |= {item.name for item in header.type.fields}
            layout.live |= {(name, item) for item in own}
            layout.written |= {(name, item) for item in written}
            whole = all(item.name in own for item in header.type.fields)
            if not shown or header.metadata or (whole and name not in program.deparser.order):
                layout.backing[name] = Backing.NONE
            elif whole:
                layout.backing[name] = Backing.OFFSET
            elif made or header.type.variable is not None:
                layout.backing[name] = Backing.BYTES
            else:
                layout.backing[name] = Backing.OFFSET
    return layout


@dataclass(frozen=True, slots=True)
class Cell:
    """Neighbouring fields that together fill whole bytes: ``size`` of them from byte ``start`` of the header."""

    start: int
    size: int
    fields: tuple[Field, ...]


def cells_of(header: Header) -> list[Cell]:
    """Cells of a header's fixed part; a header with a variable-length field has one cell only."""
    if header.type.variable is not None:
        return [Cell(0, header.type.bits // 8, header.type.fields)]
    cells: list[Cell] = []
    open_fields: list[Field] = []
    for item in header.type.fields:
        open_fields.append(item)
        end = item.offset + item.width
        if end % 8 == 0:
            start = open_fields[0].offset // 8
            cells.append(Cell(start, end // 8 - start, tuple(open_fields)))
            open_fields = []
    return cells
