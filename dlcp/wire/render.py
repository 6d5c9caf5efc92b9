"""The wire table for humans: packet diagrams in the style of the RFCs, field tables, and JSON.

``docs/wire-format.md`` holds what this module generates between ``<!-- generated: NAME -->`` and ``<!-- end -->``;
:func:`refresh` rewrites those blocks and leaves everything else alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from dlcp.wire.bodies import BODIES, Body, Tail
from dlcp.wire.header import (
    ABORT_BODY,
    FEEDBACK_BODY,
    HEADER,
    HEADER_BYTES,
    HELLO_BODY,
    REPORT_BODY,
    UDP_PORT,
    VERSION,
)
from dlcp.wire.layout import Field, Layout

LAYOUTS: Final[tuple[Layout, ...]] = (HEADER, FEEDBACK_BODY, REPORT_BODY, HELLO_BODY, ABORT_BODY)
_ROW_BITS: Final = 32
_BLOCK: Final = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_TAIL_LABELS: Final = {
    Tail.PAYLOAD: "payload",
    Tail.BITMAP: "bitmap of missing packets",
    Tail.PADDING: "padding",
    Tail.TEXT: "reason, UTF-8",
}


def places(layout: Layout) -> Iterator[tuple[Field, int]]:
    """Yields every field with the number of its first bit, counted from the start of the record as the RFCs do."""
    bit = 0
    for field in layout.fields:
        yield field, bit
        bit += field.bits


def label(field: Field) -> str:
    """Shortens a field's name to what fits into its cell of the diagram."""
    width = 2 * min(field.bits, _ROW_BITS) - 1
    if len(field.name) <= width:
        return field.name
    return field.name[0].upper() if width == 1 else field.name[:width]


def diagram(layout: Layout, tail: str = "") -> str:
    """Draws a record 32 bits a row, one column a bit; ``tail`` names a part of open length that follows."""
    tens = " " + " ".join(str(bit // 10) if bit % 10 == 0 else " " for bit in range(_ROW_BITS))
    ones = " " + " ".join(str(bit % 10) for bit in range(_ROW_BITS))
    lines = [tens.rstrip(), ones]
    rows = [["|"] for _ in range(-(-layout.size * 8 // _ROW_BITS))]
    joined: set[int] = set()
    for field, first in places(layout):
        row, inside = divmod(first, _ROW_BITS)
        extra = max(0, -(-(inside + field.bits) // _ROW_BITS) - 1)
        if extra and inside:
            raise ValueError(f"{layout.name}.{field.name} crosses a row of the diagram")
        width = 2 * min(field.bits, _ROW_BITS) - 1
        rows[row].append(label(field).center(width) + "|")
        for k in range(1, extra + 1):
            rows[row + k].append(" " * width + "|")
            joined.add(row + k)
    rule = "+" + "-+" * _ROW_BITS
    for k, cells in enumerate(rows):
        lines.append(rule if k not in joined else "+" + " " * (2 * _ROW_BITS - 1) + "+")
        lines.append("".join(cells))
    lines.append(rule)
    if tail:
        lines += ["/" + tail.center(2 * _ROW_BITS - 1) + "/", rule]
    return "\n".join(lines)


def legend(layout: Layout) -> str:
    """Explains the shortened names of :func:`diagram`, or returns an empty string."""
    short = [(label(f), f.name) for f in layout.fields if label(f) != f.name]
    return ", ".join(f"{cell} = {name}" for cell, name in short)


def describe_values(field: Field) -> str:
    """Lists the names of a field's values and the meaning of its parts."""
    text = []
    if field.values:
        text.append(", ".join(f"{value} {name}" for value, name in field.values.items()))
    for part in field.parts:
        if part.values:
            text.append(f"{part.name} {describe_values(part)}")
    return "; ".join(text)


def field_table(layout: Layout, *, mutability: bool = False) -> str:
    """Renders a Markdown table of a record's fields."""
    head = ["Byte", "Bit", "Bits", "Field", *(["Switch may change it", "In the check"] if mutability else []), "Meaning"]
    rows = []
    for field, first in places(layout):
        values = describe_values(field)
        cells = [str(first // 8), str(first % 8), str(field.bits), f"`{field.name}`"]
        if mutability:
            checked = not field.mutable and field.name != "check"
            cells += ["yes" if field.mutable else "", "yes" if checked else ""]
        rows.append([*cells, field.doc + (f" Values: {values}." if values else "")])
    return markdown(head, rows)


def parts_table(field: Field) -> str:
    """Renders a Markdown table of what the bits of one field mean; bit 0 is the least significant."""
    rows = []
    for part, shift in field.part_shifts():
        values = describe_values(part)
        bits = f"{shift + part.bits - 1}-{shift}" if part.bits > 1 else str(shift)
        rows.append([bits, f"`{part.name}`", part.doc + (f" Values: {values}." if values else "")])
    return markdown(["Bits", "Name", "Meaning"], rows)


def type_table() -> str:
    """Renders a Markdown table of the packet types with what follows the header of each."""
    rows = []
    for kind, body in BODIES.items():
        follows = [f"`{body.layout.name}` ({body.size} bytes)"] if body.layout else []
        if body.tail is not Tail.NONE or not follows:
            follows.append(body.tail.value)
        rows.append([str(int(kind)), f"`{kind.name}`", ", then ".join(follows), datagram_size(body)])
    return markdown(["Value", "Type", "After the header", "Datagram bytes"], rows)


def datagram_size(body: Body) -> str:
    """Says in words how long a datagram with this body is."""
    fixed = HEADER_BYTES + body.size
    open_ended = {
        Tail.PAYLOAD: f"{fixed} + min(stride, length - offset)",
        Tail.BITMAP: f"{fixed} + ceil(packets / 8)",
        Tail.PADDING: f"`datagram`, at least {fixed}",
        Tail.TEXT: f"at least {fixed}",
    }
    return open_ended.get(body.tail, str(fixed))


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Renders a Markdown table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def blocks() -> dict[str, str]:
    """Generates every block of ``docs/wire-format.md`` by name."""
    made = {"types": type_table(), "constants": f"Version {VERSION}, default UDP port {UDP_PORT}, header {HEADER_BYTES} bytes."}
    for layout in LAYOUTS:
        tail = "body" if layout is HEADER else _TAIL_LABELS.get(_first_tail(layout), "")
        text = f"```text\n{diagram(layout, tail)}\n```"
        note = legend(layout)
        name = "header" if layout is HEADER else layout.name
        made[f"{name}-diagram"] = text + (f"\n\nShortened above: {note}." if note else "")
        made[f"{name}-fields"] = field_table(layout, mutability=layout is HEADER)
        made |= {f"{field.name}-parts": parts_table(field) for field in layout.fields if field.parts}
    return made


def _first_tail(layout: Layout) -> Tail:
    return next(body.tail for body in BODIES.values() if body.layout is layout)


def refresh(text: str) -> str:
    """Rewrites the generated blocks of a document.

    Raises:
        KeyError: A block that nothing generates.
    """
    made = blocks()
    return _BLOCK.sub(lambda match: f"{match[1]}{made[match[2]]}\n{match[3]}", text)


def block_names(text: str) -> list[str]:
    """Returns the names of the generated blocks in a document, in order."""
    return [match[2] for match in _BLOCK.finditer(text)]


def as_json() -> dict[str, Any]:
    """Returns the whole table as plain data."""
    return {
        "version": VERSION,
        "udp_port": UDP_PORT,
        "records": {("header" if layout is HEADER else layout.name): _record(layout) for layout in LAYOUTS},
        "types": [
            {
                "value": int(kind),
                "name": kind.name.lower(),
                "body": body.layout.name if body.layout else None,
                "tail": body.tail.name.lower(),
            }
            for kind, body in BODIES.items()
        ],
    }


def _record(layout: Layout) -> dict[str, Any]:
    return {"bytes": layout.size, "fields": [_field(field, first) for field, first in places(layout)]}


def _field(field: Field, first: int) -> dict[str, Any]:
    out: dict[str, Any] = {"name": field.name, "bit": first, "bits": field.bits, "mutable": field.mutable, "doc": field.doc}
    if field.values:
        out["values"] = {str(value): name for value, name in field.values.items()}
    if field.parts:
        shifts = field.part_shifts()
        out["parts"] = [_field(part, first + field.bits - shift - part.bits) for part, shift in shifts]
    return out


def text_table() -> str:
    """Renders the whole table for a terminal."""
    out = [f"DLCP header, {HEADER_BYTES} bytes, version {VERSION}, UDP port {UDP_PORT} by default", ""]
    for layout in LAYOUTS:
        if layout is not HEADER:
            users = [kind.name for kind, body in BODIES.items() if body.layout is layout]
            out += ["", f"Body of {' and '.join(users)}, {layout.size} bytes, then {_first_tail(layout).value}", ""]
        out += [diagram(layout), *([legend(layout)] if legend(layout) else []), ""]
        rows = [(f"{first // 8}.{first % 8}", str(f.bits), f.name, "*" if f.mutable else " ", f) for f, first in places(layout)]
        width = max(len(row[2]) for row in rows)
        for place, bits, name, star, field in rows:
            out.append(f"{place:>5} {bits:>3} {name:<{width}} {star} {field.doc}")
            values = describe_values(field)
            if values:
                out.append(" " * (width + 13) + values)
    return "\n".join([*out, "", "byte.bit, bits, name; * marks what a switch may change"])
