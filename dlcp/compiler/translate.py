"""Translates functions into LLVM's assembly language.

They are written in a small part of Python: whole numbers, ``while``, ``if``, calls of each other. All values are
64-bit words, and memory is a pointer to them; so nothing has to be inferred, which takes a general compiler of Python most of
its time. Anything outside of this part is refused with its place.

Floor division, remainder, comparison in a row, ``and`` and ``or`` mean what they mean in Python. Arithmetic wraps at 64 bits;
who writes such functions stays below that, as their run as Python checks.
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

MEMORY: Final = "Words"
"""The annotation of the parameter that is the memory."""

PRIMITIVES: Final = frozenset("ld st lowest highest octet put_octet big64 put_big64 here64 put_here64 move".split())
"""Functions that are instructions here: those of :mod:`dlcp.compiler.raw`, and bit scans."""

_ARITHMETIC: Final = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.LShift: "shl",
    ast.RShift: "ashr",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
}
_ORDER: Final = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "slt",
    ast.LtE: "sle",
    ast.Gt: "sgt",
    ast.GtE: "sge",
}
_INTRINSICS: Final = """declare i64 @llvm.cttz.i64(i64, i1)
declare i64 @llvm.ctlz.i64(i64, i1)
declare i64 @llvm.bswap.i64(i64)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""


class NotTranslatable(Exception):
    """The engine uses something that is not translated."""


def translate(modules: Sequence[types.ModuleType], *entries: str) -> str:
    """Returns the assembly text of all functions of some modules, of which only ``entries`` are visible from outside.

    Raises:
        NotTranslatable: A function uses something else than whole numbers and the statements that are known.
    """
    parts = [_INTRINSICS]
    for module in modules:
        path = Path(str(module.__file__))
        for node in ast.parse(path.read_text(encoding="utf-8"), str(path)).body:
            if isinstance(node, ast.FunctionDef) and node.name not in PRIMITIVES:
                parts.append(_Function(node, module, node.name in entries).text)
    return "\n".join(parts)


def _symbol(function: types.FunctionType) -> str:
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"


class _Function:
    """Translates one function; :attr:`text` is the result."""

    def __init__(self, node: ast.FunctionDef, module: types.ModuleType, visible: bool) -> None:
        self._globals = vars(module)
        self._file = str(module.__file__)
        self._lines: list[str] = []
        self._count = 0
        self._open = True
        self._loops: list[tuple[str, str]] = []
        self._memory = {a.arg for a in node.args.args if isinstance(a.annotation, ast.Name) and a.annotation.id == MEMORY}
        self._locals = {a.arg for a in node.args.args} - self._memory
        self._locals |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self._returns = not (isinstance(node.returns, ast.Constant) and node.returns.value is None)
        self._slots = {name: f"%{name}.at" for name in sorted(self._locals)}
        for argument in node.args.args:
            if argument.arg in self._locals:
                self._emit(f"store i64 %{argument.arg}, ptr {self._slots[argument.arg]}")
        self._block(node.body)
        if self._open:
            self._emit("ret i64 0" if self._returns else "ret void")
        arguments = ", ".join(f"{'ptr' if a.arg in self._memory else 'i64'} %{a.arg}" for a in node.args.args)
        kind = "i64" if self._returns else "void"
        name = node.name if visible else _symbol(self._globals[node.name])
        linkage = "" if visible else "internal "
        slots = [f"  {slot} = alloca i64" for slot in self._slots.values()]
        body = [line if line.endswith(":") else f"  {line}" for line in self._lines]
        self.text = "\n".join([f"define {linkage}{kind} @{name}({arguments}) nounwind {{", *slots, *body, "}", ""])

    # Bookkeeping

    def _refuse(self, node: ast.AST, what: str) -> NotTranslatable:
        return NotTranslatable(f"{self._file}:{getattr(node, 'lineno', 0)}: {what} is not in the part of Python that is compiled")

    def _emit(self, line: str) -> None:
        if not self._open:
            # What follows a jump in its block is never reached, but needs a block of its own.
            self._label(self._name("never"))
        self._lines.append(line)
        self._open = not line.startswith(("br ", "ret "))

    def _label(self, name: str) -> None:
        if self._open:
            self._lines.append(f"br label %{name}")
        self._lines.append(f"{name}:")
        self._open = True

    def _name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}.{self._count}"

    def _value(self, code: str) -> str:
        name = "%" + self._name("v")
        self._emit(f"{name} = {code}")
        return name

    def _slot(self) -> str:
        name = self._name("slot")
        self._slots[name] = f"%{name}"
        return self._slots[name]

    # Statements

    def _block(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case ast.Expr(value=ast.Call() as call):
                self._call(call, wanted=False)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._emit(f"store i64 {self._word(value)}, ptr {self._slots[name]}")
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                left = self._value(f"load i64, ptr {self._slots[name]}")
                result = self._binary(node, op, left, self._word(value))
                self._emit(f"store i64 {result}, ptr {self._slots[name]}")
            case ast.Return(value=value):
                self._emit(f"ret i64 {self._word(value)}" if value is not None and self._returns else "ret void")
            case ast.If():
                self._if(node)
            case ast.While(test=test, body=body, orelse=[]):
                again, inside, after = self._name("while"), self._name("do"), self._name("done")
                self._label(again)
                self._branch(test, inside, after)
                self._label(inside)
                self._loops.append((again, after))
                self._block(body)
                self._loops.pop()
                if self._open:
                    self._emit(f"br label %{again}")
                self._label(after)
            case ast.Break() if self._loops:
                self._emit(f"br label %{self._loops[-1][1]}")
            case ast.Continue() if self._loops:
                self._emit(f"br label %{self._loops[-1][0]}")
            case _:
                raise self._refuse(node, type(node).__name__)

    def _if(self, node: ast.If) -> None:
        then, other, after = self._name("then"), self._name("else"), self._name("end")
        self._branch(node.test, then, other if node.orelse else after)
        self._label(then)
        self._block(node.body)
        if self._open:
            self._emit(f"br label %{after}")
        if node.orelse:
            self._label(other)
            self._block(node.orelse)
        self._label(after)

    def _branch(self, test: ast.expr, then: str, other: str) -> None:
        """Jumps to one of two labels."""
        match test:
            case ast.BoolOp(op=op, values=values):
                for value in values[:-1]:
                    following = self._name("and" if isinstance(op, ast.And) else "or")
                    if isinstance(op, ast.And):
                        self._branch(value, following, other)
                    else:
                        self._branch(value, then, following)
                    self._label(following)
                self._branch(values[-1], then, other)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._branch(operand, other, then)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                self._emit(f"br i1 {self._compare(test, op, self._word(left), self._word(right))}, label %{then}, label %{other}")
            case _:
                bit = self._value(f"icmp ne i64 {self._word(test)}, 0")
                self._emit(f"br i1 {bit}, label %{then}, label %{other}")

    # Expressions

    def _word(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value=int() as value):
                return str(int(value))
            case ast.Name(id=name):
                return self._read(node, name)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(node, op, self._word(left), self._word(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._value(f"sub i64 0, {self._word(operand)}")
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                return self._value(f"xor i64 {self._word(operand)}, -1")
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._value(f"zext i1 {self._compare(node, op, self._word(left), self._word(right))} to i64")
            case ast.UnaryOp(op=ast.Not()):
                return self._choice(node, ast.Constant(1), ast.Constant(0))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._choice(test, body, orelse)
            case ast.BoolOp(op=op, values=values):
                return self._either(op, values)
            case ast.Call():
                return self._call(node, wanted=True)
            case _:
                raise self._refuse(node, type(node).__name__)

    def _read(self, node: ast.AST, name: str) -> str:
        if name in self._locals:
            return self._value(f"load i64, ptr {self._slots[name]}")
        value = self._globals.get(name)
        if isinstance(value, int):
            return str(int(value))
        raise self._refuse(node, f"the name {name}")

    def _choice(self, test: ast.expr, body: ast.expr, orelse: ast.expr) -> str:
        slot, then, other, after = self._slot(), self._name("then"), self._name("else"), self._name("end")
        self._branch(test, then, other)
        for label, value in ((then, body), (other, orelse)):
            self._label(label)
            self._emit(f"store i64 {self._word(value)}, ptr {slot}")
            self._emit(f"br label %{after}")
        self._label(after)
        return self._value(f"load i64, ptr {slot}")

    def _either(self, op: ast.boolop, values: Sequence[ast.expr]) -> str:
        """``and`` and ``or`` return the last value that they looked at."""
        slot, after = self._slot(), self._name("end")
        for index, value in enumerate(values):
            word = self._word(value)
            self._emit(f"store i64 {word}, ptr {slot}")
            if index < len(values) - 1:
                following = self._name("or")
                bit = self._value(f"icmp ne i64 {word}, 0")
                first, second = (following, after) if isinstance(op, ast.And) else (after, following)
                self._emit(f"br i1 {bit}, label %{first}, label %{second}")
                self._label(following)
        self._label(after)
        return self._value(f"load i64, ptr {slot}")

    def _compare(self, node: ast.AST, op: ast.cmpop, left: str, right: str) -> str:
        if type(op) not in _ORDER:
            raise self._refuse(node, type(op).__name__)
        return self._value(f"icmp {_ORDER[type(op)]} i64 {left}, {right}")

    def _binary(self, node: ast.AST, op: ast.operator, left: str, right: str) -> str:
        if type(op) in _ARITHMETIC:
            return self._value(f"{_ARITHMETIC[type(op)]} i64 {left}, {right}")
        if not isinstance(op, ast.FloorDiv | ast.Mod):
            raise self._refuse(node, type(op).__name__)
        if right.isdigit() and int(right) > 0:
            number = int(right)
            if number & (number - 1) == 0:
                floor = isinstance(op, ast.FloorDiv)
                return self._value(f"ashr i64 {left}, {number.bit_length() - 1}" if floor else f"and i64 {left}, {number - 1}")
        else:
            # As Python this is an error, which the machine must not die of.
            zero = self._value(f"icmp eq i64 {right}, 0")
            right = self._value(f"select i1 {zero}, i64 1, i64 {right}")
        rest = self._value(f"srem i64 {left}, {right}")
        some = self._value(f"icmp ne i64 {rest}, 0")
        signs = self._value(f"xor i64 {rest}, {right}")
        opposed = self._value(f"icmp slt i64 {signs}, 0")
        off = self._value(f"and i1 {some}, {opposed}")
        if isinstance(op, ast.FloorDiv):
            quotient = self._value(f"sdiv i64 {left}, {right}")
            return self._value(f"sub i64 {quotient}, {self._value(f'zext i1 {off} to i64')}")
        return self._value(f"add i64 {rest}, {self._value(f'select i1 {off}, i64 {right}, i64 0')}")

    # Calls

    def _call(self, node: ast.Call, wanted: bool) -> str:
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise self._refuse(node, "this call")
        name = node.func.id
        if name in ("ld", "st"):
            at = self._value(f"getelementptr i64, ptr {self._pointer(node.args[0])}, i64 {self._word(node.args[1])}")
            if name == "ld":
                return self._value(f"load i64, ptr {at}")
            self._emit(f"store i64 {self._word(node.args[2])}, ptr {at}")
            return "0"
        if name == "lowest":
            return self._value(f"call i64 @llvm.cttz.i64(i64 {self._word(node.args[0])}, i1 true)")
        if name == "highest":
            zeros = self._value(f"call i64 @llvm.ctlz.i64(i64 {self._word(node.args[0])}, i1 true)")
            return self._value(f"sub i64 63, {zeros}")
        if name in PRIMITIVES:
            return self._raw(name, [self._word(argument) for argument in node.args])
        function = self._globals.get(name)
        if not isinstance(function, types.FunctionType):
            raise self._refuse(node, f"the function {name}")
        kinds = list(function.__annotations__.items())
        result = dict(kinds).get("return")
        names = [key for key, _ in kinds if key != "return"]
        if len(names) != len(node.args):
            raise self._refuse(node, f"{name} with {len(node.args)} arguments")
        arguments = ", ".join(
            f"ptr {self._pointer(value)}" if function.__annotations__[key] == MEMORY else f"i64 {self._word(value)}"
            for key, value in zip(names, node.args, strict=True)
        )
        if result == "None":
            if wanted:
                raise self._refuse(node, f"a value of {name}")
            self._emit(f"call void @{_symbol(function)}({arguments})")
            return "0"
        return self._value(f"call i64 @{_symbol(function)}({arguments})")

    def _raw(self, name: str, words: list[str]) -> str:
        """What :mod:`dlcp.compiler.raw` does to memory by address, aligned or not."""
        at = [self._value(f"inttoptr i64 {word} to ptr") for word in (words[:2] if name == "move" else words[:1])]
        match name:
            case "octet":
                return self._value(f"zext i8 {self._value(f'load i8, ptr {at[0]}')} to i64")
            case "put_octet":
                self._emit(f"store i8 {self._value(f'trunc i64 {words[1]} to i8')}, ptr {at[0]}")
            case "here64":
                return self._value(f"load i64, ptr {at[0]}, align 1")
            case "put_here64":
                self._emit(f"store i64 {words[1]}, ptr {at[0]}, align 1")
            case "big64":
                return self._big(self._value(f"load i64, ptr {at[0]}, align 1"))
            case "put_big64":
                self._emit(f"store i64 {self._big(words[1])}, ptr {at[0]}, align 1")
            case "move":
                self._emit(f"call void @llvm.memcpy.p0.p0.i64(ptr {at[0]}, ptr {at[1]}, i64 {words[2]}, i1 false)")
        return "0"

    def _big(self, word: str) -> str:
        return self._value(f"call i64 @llvm.bswap.i64(i64 {word})") if sys.byteorder == "little" else word

    def _pointer(self, node: ast.expr) -> str:
        if isinstance(node, ast.Name) and node.id in self._memory:
            return f"%{node.id}"
        raise self._refuse(node, "a memory that is no parameter")


__all__ = ["MEMORY", "PRIMITIVES", "NotTranslatable", "translate"]
