"""Source of the primitives that change fields, headers and state, with the meaning that BMv2 gives them."""

from __future__ import annotations

from collections.abc import Callable

from softswitch.compiler import support
from softswitch.compiler.context import Context
from softswitch.compiler.expressions import Scope, Value, fit
from softswitch.compiler.headers import HeaderCompiler
from softswitch.compiler.writer import Writer
from softswitch.errors import UnsupportedConstruct
from softswitch.program.ir import (
    VALID,
    Argument,
    Const,
    Expression,
    FieldRef,
    HeaderRef,
    ItemField,
    ItemMember,
    LastField,
    Primitive,
    Ref,
    StackItem,
    StackRef,
    Text,
    UnionRef,
    Vector,
)

BINARY = {
    "add": "+",
    "subtract": "-",
    "bit_xor": "^",
    "bit_or": "|",
    "bit_and": "&",
}


class PrimitiveCompiler:
    """Makes source of primitives; jumps and ``exit`` are control flow and not among them.

    Args:
        context: The compilation.
        hash_text: Source of a calculation's value by its name.
    """

    def __init__(self, context: Context, hash_text: Callable[[str, Scope], str]) -> None:
        self.context = context
        self.layout = context.layout
        self.expressions = context.expressions
        self.headers = HeaderCompiler(context)
        self.hash_text = hash_text

    def emit(self, writer: Writer, primitive: Primitive, scope: Scope) -> None:
        """Adds a primitive's source."""
        try:
            self._emit(writer, primitive, scope)
        except UnsupportedConstruct as error:
            raise UnsupportedConstruct(error.where or primitive.where, error.problem) from None

    def assign(self, writer: Writer, target: Argument, value: Value, scope: Scope) -> None:
        """Assigns a value to a field, wrapped or saturated to its width; nothing for a field that nothing reads."""
        match target:
            case FieldRef(header=header, field=name):
                self._store(writer, header, name, value)
            case LastField(stack=stack, field=name, member=member):
                headers = self.expressions.stack_headers(stack, member)
                count = self.expressions.count(stack, scope)
                if count.const is not None:
                    if count.const:
                        self._store(writer, headers[count.const - 1], name, value)
                    return
                self._choose(writer, Value(f"{count.text} - 1"), headers, lambda item: self._store(writer, item, name, value))
            case ItemField(item=item, field=name):
                writer.line(f"y = {value.text}")
                kept = Value("y", value.low, value.high)
                index = self.expressions.data(item.index, scope)
                headers = self.expressions.elements(item)
                self._choose(writer, index, headers, lambda header: self._store(writer, header, name, kept))
            case _:
                raise UnsupportedConstruct("", "assignment to something other than a field")

    def _choose(self, writer: Writer, index: Value, items: list[str], body: Callable[[str], None]) -> None:
        writer.line(f"x = {index.text}")
        for position, item in enumerate(items):
            with writer.block(f"{'el' if position else ''}if x == {position!r}:"):
                body(item)

    def _store(self, writer: Writer, header: str, name: str, value: Value) -> None:
        if name == VALID:
            raise UnsupportedConstruct("", "assignment to a header's validity")
        if not self.layout.is_live(header, name):
            return
        field = self.layout.program.headers[header].type.field(name)
        if field.variable:
            raise UnsupportedConstruct("", "arithmetic on a variable-length field")
        text = fit(value, field.width, field.signed, field.saturating)
        local = self.layout.name(header, name)
        if text != local:
            writer.line(f"{local} = {text}")

    def assign_variable(self, writer: Writer, target: Argument, source: Argument) -> None:
        """Copies a variable-length field with its length."""
        if not isinstance(target, FieldRef) or not isinstance(source, FieldRef):
            raise UnsupportedConstruct("", "variable-length field of a header that is computed")
        headers = self.layout.program.headers
        for ref in (target, source):
            if not self.layout.program.field(ref).variable:
                raise UnsupportedConstruct("", "assignment between fields of fixed and variable length")
        if self.layout.is_live(target.header, target.field):
            to, of = headers[target.header].index, headers[source.header].index
            writer.line(f"{self.layout.name(target.header, target.field)} = {self.layout.name(source.header, source.field)}")
            writer.line(f"w{to} = w{of}")

    def _emit(self, writer: Writer, primitive: Primitive, scope: Scope) -> None:
        op = primitive.op
        arguments = primitive.arguments
        match op:
            case "assign" | "modify_field":
                if isinstance(arguments[0], FieldRef) and self.layout.program.field(arguments[0]).variable:
                    self.assign_variable(writer, arguments[0], arguments[1])
                else:
                    self.assign(writer, arguments[0], self._data(arguments[1], scope), scope)
            case "assign_VL":
                self.assign_variable(writer, arguments[0], arguments[1])
            case "add_to_field" | "subtract_from_field":
                sign = "+" if op == "add_to_field" else "-"
                text = f"({self._data(arguments[0], scope).text} {sign} {self._data(arguments[1], scope).text})"
                self.assign(writer, arguments[0], Value(text), scope)
            case "shift_left" | "shift_right":
                function = self.context.pool.function(support.shift_left if op == "shift_left" else support.shift_right)
                text = f"{function}({self._data(arguments[1], scope).text}, {self._data(arguments[2], scope).text})"
                self.assign(writer, arguments[0], Value(text), scope)
            case "modify_field_rng_uniform":
                self._random(writer, arguments, scope)
            case "modify_field_with_hash_based_offset":
                self._hash(writer, arguments, scope)
            case "register_read" | "register_write" | "count" | "execute_meter":
                self._array(writer, op, arguments, scope)
            case "assert" | "assume":
                condition = arguments[0]
                assert isinstance(condition, Expression)
                with writer.block(f"if not {self.expressions.boolean(condition, scope)}:"):
                    writer.line("DROPS['assert'] += 1")
                    writer.line("return None")
            case "log_msg":
                self._log(writer, arguments, scope)
            case "no_op":
                pass
            case _ if op in BINARY:
                text = f"({self._data(arguments[1], scope).text} {BINARY[op]} {self._data(arguments[2], scope).text})"
                self.assign(writer, arguments[0], Value(text), scope)
            case _:
                self._packet(writer, op, arguments, scope)

    def _data(self, argument: Argument, scope: Scope) -> Value:
        assert isinstance(argument, Expression)
        return self.expressions.data(argument, scope)

    def _packet(self, writer: Writer, op: str, arguments: tuple[Argument, ...], scope: Scope) -> None:
        used = self.context.used
        match op:
            case "mark_to_drop" | "drop":
                self._drop(writer, arguments)
            case "clone_ingress_pkt_to_egress" | "clone_egress_pkt_to_egress":
                used.add("CS")
                self._field_list(arguments[1])
                writer.line(f"CS = {self._data(arguments[0], scope).text} & 32767")
                writer.line(f"CF = {self._data(arguments[1], scope).text}")
            case "resubmit" | "recirculate":
                name = "RS" if op == "resubmit" else "RC"
                used.add(name)
                self._field_list(arguments[0])
                writer.line(f"{name} = {self._data(arguments[0], scope).text}")
            case "generate_digest":
                digest = arguments[1]
                if not isinstance(digest, Const) or digest.value not in self.context.program.digests:
                    raise UnsupportedConstruct("", "digest that is no constant, or not declared")
                used.add("DG")
                writer.line(f"DG = {digest.value!r}")
            case "truncate":
                used.add("TR")
                value = self._data(arguments[0], scope)
                writer.line(f"TR = min(TR, {value.text if value.positive else f'max({value.text}, 0)'})")
            case "add_header" | "add_header_fast":
                self._each_header(writer, arguments[0], lambda name: self.headers.add(writer, name, op == "add_header"), scope)
            case "remove_header":
                self._each_header(writer, arguments[0], lambda name: self.headers.remove(writer, name), scope)
            case "push" | "pop":
                stack, number = arguments
                assert isinstance(stack, StackRef)
                if not isinstance(number, Const) or number.value < 0:
                    raise UnsupportedConstruct("", f"'{op}' by a number that is no constant")
                self.headers.shift(writer, stack.name, number.value if op == "push" else -number.value)
            case _:
                self._copy(writer, op, arguments, scope)

    def _copy(self, writer: Writer, op: str, arguments: tuple[Argument, ...], scope: Scope) -> None:
        target, source = arguments
        program = self.layout.program
        match op:
            case "assign_header" | "copy_header":

                def inner(to: str) -> None:
                    self._each_header(writer, source, lambda of: self.headers.copy(writer, to, of), scope, "z")

                self._each_header(writer, target, inner, scope)
            case "assign_union" if isinstance(target, UnionRef) and isinstance(source, UnionRef):
                pairs = zip(program.unions[target.name].headers, program.unions[source.name].headers, strict=True)
                for to, of in pairs:
                    self.headers.copy(writer, to, of)
            case "assign_header_stack" | "assign_union_stack":
                assert isinstance(target, StackRef) and isinstance(source, StackRef)
                tos, ofs = (self._flat(side.name) for side in (target, source))
                if len(tos) != len(ofs):
                    raise UnsupportedConstruct("", "assignment between stacks of different sizes")
                for to, of in zip(tos, ofs, strict=True):
                    self.headers.copy(writer, to, of)
                if target.name in self.layout.counted:
                    writer.line(f"n{program.stacks[target.name].index} = n{program.stacks[source.name].index}")
            case _:
                raise UnsupportedConstruct("", f"primitive '{op}' with these operands")

    def _flat(self, stack: str) -> list[str]:
        program = self.layout.program
        items = program.stacks[stack]
        if not items.of_unions:
            return list(items.items)
        return [header for union in items.items for header in program.unions[union].headers]

    def _each_header(
        self, writer: Writer, argument: Argument, body: Callable[[str], None], scope: Scope, index: str = "x"
    ) -> None:
        if isinstance(argument, HeaderRef):
            body(argument.name)
            return
        assert isinstance(argument, StackItem | ItemMember)
        writer.line(f"{index} = {self.expressions.data(argument.index, scope).text}")
        for position, header in enumerate(self.expressions.elements(argument)):
            with writer.block(f"{'el' if position else ''}if {index} == {position!r}:"):
                body(header)

    def _drop(self, writer: Writer, arguments: tuple[Argument, ...]) -> None:
        fields = [self.context.target.get("egress_spec"), self.context.target.get("mcast_grp")]
        if arguments:
            header = arguments[0]
            assert isinstance(header, HeaderRef)
            names = [item.name for item in self.layout.program.headers[header.name].type.fields]
            if "egress_spec" not in names:
                raise UnsupportedConstruct("", f"mark_to_drop of header '{header.name}', which has no egress_spec")
            fields = [FieldRef(header.name, name) if name in names else None for name in ("egress_spec", "mcast_grp")]
        for ref, value in zip(fields, (self.context.drop_port, 0), strict=True):
            if ref is not None:
                self._store(writer, ref.header, ref.field, Value(repr(value), value, value))

    def _field_list(self, argument: Argument) -> None:
        if not isinstance(argument, Const):
            raise UnsupportedConstruct("", "field list that is no constant")
        if argument.value and argument.value not in self.context.program.field_lists:
            raise UnsupportedConstruct("", f"field list {argument.value}, which is not declared")

    def _random(self, writer: Writer, arguments: tuple[Argument, ...], scope: Scope) -> None:
        low, high = self._data(arguments[1], scope), self._data(arguments[2], scope)
        random = self.context.runtime.random
        if low.const is not None and high.const is not None and low.const <= high.const:
            span = high.const - low.const + 1
            if span & (span - 1) == 0:
                bits = span.bit_length() - 1
                getrandbits = self.context.pool.shared("Z", "getrandbits", lambda: random.getrandbits)
                text = f"({getrandbits}({bits!r}) + {low.const!r})" if bits else repr(low.const)
                self.assign(writer, arguments[0], Value(text, low.const, high.const), scope)
                return
        uniform = self.context.pool.shared("Z", "uniform", lambda: support.uniform(random))
        with writer.block(f"if {low.text} <= {high.text}:"):
            self.assign(writer, arguments[0], Value(f"{uniform}({low.text}, {high.text})"), scope)

    def _hash(self, writer: Writer, arguments: tuple[Argument, ...], scope: Scope) -> None:
        base, size = self._data(arguments[1], scope), self._data(arguments[3], scope)
        calculation = arguments[2]
        assert isinstance(calculation, Ref)
        value = self.hash_text(calculation.name, scope)
        modulus = repr(max(size.const, 1)) if size.const is not None else f"({size.text} or 1)"
        high = None
        if size.high is not None and base.high is not None:
            high = max(size.high, 1) - 1 + base.high
        text = f"{value} % {modulus}" if base.const == 0 else f"{value} % {modulus} + {base.text}"
        self.assign(writer, arguments[0], Value(f"({text})", 0 if base.positive else None, high), scope)

    def _array(self, writer: Writer, op: str, arguments: tuple[Argument, ...], scope: Scope) -> None:
        context = self.context
        position = 1 if op == "register_read" else 0
        ref, index_argument = arguments[position], arguments[position + 1]
        assert isinstance(ref, Ref)
        control = context.program.control
        if op == "count":
            size = control.counters[ref.name].size
        else:
            size = (control.meters if op == "execute_meter" else control.registers)[ref.name].size
        index = self._data(index_argument, scope)
        if index.const is not None and not 0 <= index.const < size:
            return
        text = index.text
        if index.const is None and not text.replace("_", "").isalnum():
            writer.line(f"x = {text}")
            text = "x"
        if index.positive and index.high is not None and index.high < size:
            self._access(writer, op, ref.name, text, arguments, scope)
            return
        with writer.block(f"if {text} < {size!r}:" if index.positive else f"if 0 <= {text} < {size!r}:"):
            self._access(writer, op, ref.name, text, arguments, scope)

    def _access(self, writer: Writer, op: str, name: str, index: str, arguments: tuple[Argument, ...], scope: Scope) -> None:
        context = self.context
        match op:
            case "count":
                packets, octets = context.counters[name]
                writer.line(f"{packets}[{index}] += 1")
                writer.line(f"{octets}[{index}] += L")
            case "execute_meter":
                color = Value(f"{context.meters[name]}[{index}].color(L, now)", 0, 3)
                self.assign(writer, arguments[2], color, scope)
            case "register_read":
                width = context.program.control.registers[name].width
                cell = Value(f"{context.registers[name]}[{index}]", 0, (1 << width) - 1)
                self.assign(writer, arguments[0], cell, scope)
            case "register_write":
                width = context.program.control.registers[name].width
                writer.line(f"{context.registers[name]}[{index}] = {fit(self._data(arguments[2], scope), width)}")

    def _log(self, writer: Writer, arguments: tuple[Argument, ...], scope: Scope) -> None:
        if self.context.notify is None:
            return
        text, vector = arguments
        assert isinstance(text, Text) and isinstance(vector, Vector)
        template = self.context.pool.add("K", text.value)
        values = "".join(f"{self.expressions.data(item, scope).text}, " for item in vector.items)
        message = self.context.pool.function(support.format_message)
        writer.line(f"NOTIFY('log_msg', {message}({template}, ({values})))")
