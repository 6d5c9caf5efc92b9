"""Source that puts a packet together: what nothing changed is sliced from the packet as it came."""

from __future__ import annotations

from softswitch.compiler.context import Context
from softswitch.compiler.expressions import Value, fit
from softswitch.compiler.layout import Backing, cells_of
from softswitch.compiler.packing import Part, pack
from softswitch.compiler.writer import Writer
from softswitch.program.ir import Header


class DeparserCompiler:
    """Makes source of header bytes.

    Args:
        offsets: Where in the packet a header is, for headers that are always in the same place.
    """

    def __init__(self, context: Context, offsets: dict[str, int]) -> None:
        self.context = context
        self.layout = context.layout
        self.offsets = offsets

    def emit(self, writer: Writer) -> None:
        """Adds source that sets ``o`` to the bytes of the packet: as it came, or put together from its valid headers."""
        headers = [self.context.program.headers[name] for name in self.context.program.deparser.order]
        headers = [header for header in headers if not header.metadata]
        with writer.block("if D:"):
            first = True
            for header in headers:
                text = self.bytes_of(header)
                clean = self._as_it_came(header)
                if text != clean:
                    text = f"({text} if d{header.index} else {clean})"
                if first:
                    writer.line(f"o = {text} if v{header.index} else b''")
                    first = False
                    continue
                with writer.block(f"if v{header.index}:"):
                    writer.line(f"o += {text}")
            writer.line("o = data[Q:]" if first else "o += data[Q:]")
        with writer.block("else:"):
            writer.line("o = data")

    def _as_it_came(self, header: Header) -> str:
        """Source of the bytes of a header that nothing wrote to."""
        variable = header.type.variable
        if variable is None or self.layout.backing[header.name] is Backing.BYTES:
            return self._raw(header, 0, header.type.bits // 8)
        place = str(self.offsets[header.name]) if header.name in self.offsets else f"o{header.index}"
        return f"data[{place}:{place} + {header.type.bits // 8!r} + (w{header.index} >> 3)]"

    def bytes_of(self, header: Header) -> str:
        """Source of a valid header's bytes."""
        written = any(name == header.name for name, _ in self.layout.written)
        backing = self.layout.backing[header.name]
        if header.type.variable is not None:
            return self._variable(header)
        if not written and (backing is Backing.BYTES or (backing is Backing.OFFSET and header.name not in self.layout.made)):
            return self._raw(header, 0, header.type.bits // 8)
        parts: list[Part] = []
        run = -1
        for cell in cells_of(header):
            if all(self.layout.is_live(header.name, item.name) for item in cell.fields):
                if run >= 0:
                    parts.append(Part(self._raw(header, run, cell.start), 8 * (cell.start - run), raw=True))
                    run = -1
                for item in cell.fields:
                    local = Value(self.layout.name(header.name, item.name), None if item.signed else 0)
                    text = fit(local, item.width) if item.signed else local.text
                    parts.append(Part(text, item.width))
            elif run < 0:
                run = cell.start
        if run >= 0:
            size = header.type.bits // 8
            parts.append(Part(self._raw(header, run, size), 8 * (size - run), raw=True))
        return pack(parts, self.context.pool)

    def _raw(self, header: Header, start: int, end: int) -> str:
        match self.layout.backing[header.name]:
            case Backing.BYTES:
                if (start, end) == (0, header.type.bits // 8):
                    return f"b{header.index}"
                return f"b{header.index}[{start!r}:{end!r}]"
            case Backing.OFFSET:
                if header.name in self.offsets:
                    offset = self.offsets[header.name]
                    return f"data[{offset + start!r}:{offset + end!r}]"
                return f"data[o{header.index} + {start!r}:o{header.index} + {end!r}]"
        raise AssertionError(header.name)

    def _variable(self, header: Header) -> str:
        if self.layout.backing[header.name] is Backing.BYTES:
            return f"b{header.index}"
        bits = header.type.bits
        text = "0"
        for item in header.type.fields:
            local = self.layout.name(header.name, item.name)
            if item.variable:
                text = f"(({text}) << w{header.index} | {local})"
            else:
                value = fit(Value(local), item.width) if item.signed else local
                text = f"(({text}) << {item.width!r} | ({value}))"
        return f"{text}.to_bytes({bits // 8!r} + (w{header.index} >> 3), 'big')"

    def length_of(self, header: Header) -> str:
        """Source of a header's length in bits."""
        variable = header.type.variable
        if variable is None:
            return repr(header.type.bits)
        if self.layout.backing[header.name] is Backing.BYTES:
            return f"8 * len(b{header.index})"
        return f"{header.type.bits!r} + w{header.index}"
