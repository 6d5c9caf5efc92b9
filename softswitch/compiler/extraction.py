"""Source that takes fields out of the packet's bytes: only those that have a local variable."""

from __future__ import annotations

from struct import Struct

from softswitch.compiler.context import Context
from softswitch.compiler.layout import Backing, cells_of
from softswitch.compiler.packing import unpack_codes
from softswitch.compiler.writer import Writer
from softswitch.program.ir import Field, Header


def at(base: str | None, offset: int) -> str:
    """Source of a place in the packet."""
    if base is None:
        return repr(offset)
    return f"{base} + {offset!r}" if offset else base


class Extraction:
    """Makes source of extractions."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.layout = context.layout

    def fixed(self, writer: Writer, header: Header, base: str | None, offset: int) -> None:
        """Adds the extraction of a header of fixed length whose bytes are known to be there."""
        match self.layout.backing[header.name]:
            case Backing.BYTES:
                end = at(base, offset + header.type.bits // 8)
                writer.line(f"b{header.index} = data[{at(base, offset)}:{end}]")
            case Backing.OFFSET:
                writer.line(f"o{header.index} = {at(base, offset)}")
        start: int | None = None
        end_of_last = 0
        codes: list[str] = []
        targets: list[str] = []
        after: list[str] = []
        for cell in cells_of(header):
            live = [item for item in cell.fields if self.layout.is_live(header.name, item.name)]
            if not live:
                continue
            if start is None:
                start = end_of_last = cell.start
            if cell.start > end_of_last:
                codes.append(f"{cell.start - end_of_last}x")
            end_of_last = cell.start + cell.size
            self._cell(header, cell.size, cell.fields, codes, targets, after)
        if start is None:
            return
        place = offset + start
        if codes == ["B"]:
            writer.line(f"{targets[0]} = data[{at(base, place)}]")
        elif codes == ["H"]:
            writer.line(f"{targets[0]} = data[{at(base, place)}] << 8 | data[{at(base, place + 1)}]")
        else:
            layout = ">" + "".join(codes)
            name = self.context.pool.shared("U", ("unpack", layout), lambda: Struct(layout).unpack_from)
            comma = "," if len(targets) == 1 else ""
            writer.line(f"{', '.join(targets)}{comma} = {name}(data, {at(base, place)})")
        for line in after:
            writer.line(line)

    def _cell(
        self, header: Header, size: int, fields: tuple[Field, ...], codes: list[str], targets: list[str], after: list[str]
    ) -> None:
        """Codes, targets and lines for one cell."""
        pieces = unpack_codes(8 * size)
        single = len(fields) == 1 and len(pieces) == 1 and pieces[0][0][-1] != "s"
        whole = self.layout.name(header.name, fields[0].name) if single else f"t{len(targets)}"
        if len(pieces) == 1:
            codes.append(pieces[0][0])
            targets.append(whole)
            if pieces[0][0][-1] == "s":
                after.append(f"{whole} = int.from_bytes({whole}, 'big')")
        else:
            names = []
            for code, _ in pieces:
                names.append(f"t{len(targets)}")
                codes.append(code)
                targets.append(names[-1])
            joined = " | ".join(
                f"{name} << {shift!r}" if shift else name for name, (_, shift) in zip(names, pieces, strict=True)
            )
            if len(fields) == 1:
                whole = self.layout.name(header.name, fields[0].name)
                after.append(f"{whole} = {joined}")
            else:
                whole = names[0]
                after.append(f"{whole} = {joined}")
        bits = 8 * size
        for item in fields:
            bits -= item.width
            if not self.layout.is_live(header.name, item.name):
                continue
            local = self.layout.name(header.name, item.name)
            if len(fields) > 1:
                text = f"{whole} >> {bits!r}" if bits else whole
                if bits + item.width < 8 * size:
                    text = f"{text} & {(1 << item.width) - 1!r}"
                after.append(f"{local} = {text}")
            elif local != whole:
                after.append(f"{local} = {whole}")
            if item.signed:
                half = 1 << (item.width - 1)
                after.append(f"{local} = ({local} ^ {half!r}) - {half!r}")

    def variable(self, writer: Writer, header: Header, base: str | None, offset: int) -> None:
        """Adds the extraction of a header with a variable-length field of ``t`` bits; the header's bytes are there."""
        fixed = header.type.bits
        data = f"data[{at(base, offset)}:{at(base, offset + fixed // 8)} + (t >> 3)]"
        backed = self.layout.backing[header.name] is Backing.BYTES
        live = self.layout.fields(header)
        if self.layout.backing[header.name] is Backing.OFFSET:
            writer.line(f"o{header.index} = {at(base, offset)}")
        if backed:
            writer.line(f"b{header.index} = {data}")
        if not live:
            return
        writer.line(f"x = int.from_bytes({f'b{header.index}' if backed else data}, 'big')")
        passed = False
        for item in header.type.fields:
            shift = fixed - item.offset - item.width
            local = self.layout.name(header.name, item.name)
            if item.variable:
                passed = True
                if item in live:
                    writer.line(f"{local} = x >> {shift!r} & (1 << t) - 1")
                    writer.line(f"w{header.index} = t")
            elif item in live:
                amount = repr(shift) if passed else f"t + {shift!r}"
                writer.line(f"{local} = x >> {amount} & {(1 << item.width) - 1!r}")
                if item.signed:
                    half = 1 << (item.width - 1)
                    writer.line(f"{local} = ({local} ^ {half!r}) - {half!r}")

    def bits(self, base: str | None, offset: int, width: int) -> str:
        """Source of ``width`` bits, ``offset`` bits from a place; the bytes are there.  ``base`` as for ``at``, in bytes."""
        first, last = offset // 8, (offset + width + 7) // 8
        below = last * 8 - offset - width
        if last - first == 1:
            text = f"data[{at(base, first)}]"
        elif last - first == 2:
            text = f"(data[{at(base, first)}] << 8 | data[{at(base, first + 1)}])"
        else:
            text = f"int.from_bytes(data[{at(base, first)}:{at(base, last)}], 'big')"
        if below:
            text = f"({text} >> {below!r})"
        if width < (last - first) * 8 - below:
            text = f"({text} & {(1 << width) - 1!r})"
        return text
