"""Source that makes headers valid or invalid, copies them, and shifts stacks."""

from __future__ import annotations

from softswitch.compiler.context import Context
from softswitch.compiler.layout import Backing
from softswitch.compiler.writer import Writer
from softswitch.program.ir import Header


class HeaderCompiler:
    """Makes source for whole headers."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.layout = context.layout
        self.program = context.program

    def length(self, header: Header) -> str:
        """Source of a header's length in bytes."""
        variable = header.type.variable
        fixed = header.type.bits // 8
        if variable is None:
            return repr(fixed)
        if self.layout.is_live(header.name, variable.name):
            return f"({fixed!r} + (w{header.index} >> 3))"
        if self.layout.backing[header.name] is Backing.BYTES:
            return f"len(b{header.index})"
        return repr(fixed)

    @property
    def _counts_length(self) -> bool:
        return self.context.target_field("packet_length") is not None

    def rivals(self, header: Header) -> list[str]:
        """Validity of the other members of a header's union."""
        if header.union is None:
            return []
        names = self.program.unions[header.union].headers
        return [f"v{self.program.headers[name].index}" for name in names if name != header.name]

    def validate(self, writer: Writer, header: Header) -> None:
        """Makes a header valid, and the other members of its union invalid."""
        if header.metadata:
            return
        writer.line(f"v{header.index} = 1")
        if rivals := self.rivals(header):
            writer.line(f"{' = '.join(rivals)} = 0")

    def add(self, writer: Writer, name: str, reset: bool) -> None:
        """``setValid``: all zeros, unless the header is valid already."""
        header = self.program.headers[name]
        if header.metadata:
            return
        with writer.block(f"if not v{header.index}:"):
            if reset:
                zeros = [local for local in self.layout.state(header) if local[0] in "fw"]
                if zeros:
                    writer.line(f"{' = '.join(zeros)} = 0")
                if self.layout.backing[name] is Backing.BYTES:
                    zero = self.context.pool.shared("K", ("zeros", header.type.bits), lambda: bytes(header.type.bits // 8))
                    writer.line(f"b{header.index} = {zero}")
            self.validate(writer, header)
            if self._counts_length:
                writer.line(f"N += {self.length(header)}")

    def remove(self, writer: Writer, name: str) -> None:
        """``setInvalid``."""
        header = self.program.headers[name]
        if header.metadata:
            return
        if not self._counts_length:
            writer.line(f"v{header.index} = 0")
            return
        with writer.block(f"if v{header.index}:"):
            writer.line(f"v{header.index} = 0")
            writer.line(f"N -= {self.length(header)}")

    def copy(self, writer: Writer, target: str, source: str) -> None:
        """Header assignment; an invalid header makes the target invalid."""
        if target == source:
            return
        to, of = self.program.headers[target], self.program.headers[source]
        names, values = self._value(to), self._value(of)
        if to.metadata or of.metadata:
            names = [name for name in names if name[0] != "v"]
            values = [value for value in values if value[0] != "v"]
        if of.metadata or to.metadata:
            self._assign(writer, names, values)
            if not to.metadata:
                self.validate(writer, to)
            return
        with writer.block(f"if v{of.index}:"):
            self._assign(writer, names, values)
            self.validate(writer, to)
        with writer.block("else:"):
            writer.line(f"v{to.index} = 0")

    def _value(self, header: Header) -> list[str]:
        """Local variables that a copy takes along; the place in the packet has no meaning for the target."""
        return [name for name in self.layout.state(header) if name[0] != "o"]

    @staticmethod
    def _assign(writer: Writer, names: list[str], values: list[str]) -> None:
        if names:
            writer.line(f"{', '.join(names)} = {', '.join(values)}")

    def shift(self, writer: Writer, stack: str, number: int) -> None:
        """``push_front`` by ``number``, or ``pop_front`` by ``-number`` (P4-16 specification, 8.18)."""
        items = self.program.stacks[stack]
        size = len(items.items)
        if number == 0:
            return
        columns = [(name,) for name in items.items]
        if items.of_unions:
            columns = [self.program.unions[name].headers for name in items.items]  # type: ignore[misc]
        order = range(size - 1, -1, -1) if number > 0 else range(size)
        for position in order:
            for place in range(len(columns[position])):
                header = self.program.headers[columns[position][place]]
                origin = position - number
                if 0 <= origin < size:
                    other = self.program.headers[columns[origin][place]]
                    self._assign(writer, self._value(header), self._value(other))
                elif not header.metadata:
                    writer.line(f"v{header.index} = 0")
        count = f"n{items.index}"
        if stack in self.layout.counted:
            after = f"min({size!r}, {count} + {number!r})" if number > 0 else f"max(0, {count} - {-number!r})"
            writer.line(f"{count} = {after}")
