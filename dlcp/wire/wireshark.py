"""Generates the Wireshark dissector from the wire table.

The Lua text is one file for ``~/.local/lib/wireshark/plugins`` or ``tshark -X lua_script:FILE``: the table as Lua data, followed
by ``dissector.lua``, which reads it.  It keeps to what Lua 5.1 to 5.4 share, as Wireshark changed its Lua between releases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Final

import numpy as np

from dlcp.wire.bodies import BODIES
from dlcp.wire.header import HEADER, UDP_PORT, VERSION
from dlcp.wire.layout import Field, Layout, Slot
from dlcp.wire.render import LAYOUTS

_HEX: Final = ("check", "cookie", "nonce")


def dissector() -> str:
    """Returns the text of the dissector."""
    table = {
        "version": VERSION,
        "udp_port": UDP_PORT,
        "checked": checked_runs(),
        "cut_bytes": HEADER.slots["dtype"].byte + 1,
        "records": {record_name(layout): _record(layout) for layout in LAYOUTS},
        "bodies": {
            int(kind): {
                **({"record": record_name(body.layout)} if body.layout else {}),
                "tail": body.tail.name.lower(),
            }
            for kind, body in BODIES.items()
        },
    }
    head = "-- DLCP dissector for Wireshark and tshark, made by `dlcp wire dissector`.  Do not edit: make it anew.\n\n"
    body = resources.files("dlcp.wire").joinpath("dissector.lua").read_text("utf-8")
    return f"{head}local WIRE = {lua(table)}\n\n{body}"


def record_name(layout: Layout) -> str:
    """Returns the name of a record in the dissector and its filters."""
    return "header" if layout is HEADER else layout.name


def checked_runs() -> list[tuple[int, int, int, int]]:
    """Splits what the header check covers into runs of bits inside 16-bit words.

    Returns:
        ``(byte of the word, first bit, bits, weight of the run's last bit)``; what counts of a word is the sum of its runs, each
        times its weight.
    """
    mask = HEADER.immutable_mask()
    slot = HEADER.slots["check"]
    mask[slot.byte : slot.byte + slot.word_bytes] = 0
    runs = []
    for word, bits in enumerate(np.unpackbits(mask).reshape(-1, 16)):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], bits, [0]]).astype(np.int8)))
        for start, stop in edges.reshape(-1, 2).tolist():
            runs.append((2 * word, start, stop - start, 1 << (16 - stop)))
    return runs


def _record(layout: Layout) -> dict[str, Any]:
    prefix = "dlcp." if layout is HEADER else f"dlcp.{layout.name}."
    fields = [_field(slot, field, slot.shift, prefix) for field in layout.fields for slot in (layout.slots[field.name],)]
    return {"bytes": layout.size, "label": f"{layout.name.capitalize()} body", "fields": fields}


def _field(slot: Slot, field: Field, shift: int, prefix: str) -> dict[str, Any]:
    width = slot.word_bytes
    out: dict[str, Any] = {
        "name": field.name,
        "key": prefix + field.name,
        "label": field.name.replace("_", " ").capitalize(),
        "byte": slot.byte,
        "width": width,
        "first": 8 * width - shift - field.bits,
        "bits": field.bits,
        "doc": field.doc,
    }
    if field.bits != 8 * width:
        out["mask"] = ((1 << field.bits) - 1) << shift
    if field.name in _HEX:
        out["hex"] = True
    if field.values:
        out["names"] = dict(field.values)
    if field.parts:
        out["parts"] = [_field(slot, part, shift + right, f"{prefix}{field.name}.") for part, right in field.part_shifts()]
    return out


def lua(value: object, indent: int = 0) -> str:
    """Writes plain data as a Lua expression.

    Raises:
        TypeError: Something other than mappings, sequences, strings, booleans and integers.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    if isinstance(value, Mapping):
        items = [f"{key if isinstance(key, str) else f'[{key}]'} = {lua(item, indent + 1)}" for key, item in value.items()]
    elif isinstance(value, Sequence):
        items = [lua(item, indent + 1) for item in value]
    else:
        raise TypeError(f"{type(value).__name__} has no counterpart in Lua")
    line = "{ " + ", ".join(items) + " }"
    if len(line) + 4 * indent < 120 and "\n" not in line:
        return line
    pad = "    " * (indent + 1)
    return "{\n" + "".join(f"{pad}{item},\n" for item in items) + "    " * indent + "}"
