"""Source that turns numbers into bytes and back, with one C-level call where possible."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from softswitch.compiler.pool import Pool

CODES = {8: "B", 16: "H", 32: "I", 64: "Q"}


@dataclass(frozen=True, slots=True)
class Part:
    """A number of ``width`` bits, or with ``raw`` an expression of ``width // 8`` bytes."""

    text: str
    width: int
    raw: bool = False


def pack(parts: list[Part], pool: Pool) -> str:
    """Source of the bytes that the parts make side by side; their widths add up to whole bytes."""
    codes: list[str] = []
    arguments: list[str] = []
    pending: list[Part] = []
    bits = 0

    def flush() -> None:
        nonlocal bits
        text = pending[0].text if len(pending) == 1 else _joined(pending)
        for code, argument in _pieces(text, bits):
            codes.append(code)
            arguments.append(argument)
        pending.clear()
        bits = 0

    for part in parts:
        if part.raw:
            codes.append(f"{part.width // 8}s")
            arguments.append(part.text)
            continue
        pending.append(part)
        bits += part.width
        if bits % 8 == 0:
            flush()
    assert not pending
    if not codes:
        return "b''"
    if len(codes) == 1 and parts[0].raw:
        return arguments[0]
    if codes == ["B"]:
        table = pool.shared("B", "bytes", lambda: tuple(bytes([value]) for value in range(256)))
        return f"{table}[{arguments[0]}]"
    layout = ">" + "".join(codes)
    name = pool.shared("P", ("pack", layout), lambda: Struct(layout).pack)
    return f"{name}({', '.join(arguments)})"


def _joined(parts: list[Part]) -> str:
    shift = sum(part.width for part in parts)
    texts = []
    for part in parts:
        shift -= part.width
        texts.append(f"({part.text}) << {shift!r}" if shift else f"({part.text})")
    return " | ".join(texts)


def _pieces(text: str, bits: int) -> list[tuple[str, str]]:
    """Struct codes and arguments for one number."""
    if bits in CODES:
        return [(CODES[bits], text)]
    if bits == 24:
        return [("B", f"({text}) >> 16"), ("H", f"({text}) & 65535")]
    if bits == 40:
        return [("B", f"({text}) >> 32"), ("I", f"({text}) & 4294967295")]
    if bits == 48:
        return [("H", f"({text}) >> 32"), ("I", f"({text}) & 4294967295")]
    if bits == 128:
        return [("Q", f"({text}) >> 64"), ("Q", f"({text}) & 18446744073709551615")]
    return [(f"{bits // 8}s", f"({text}).to_bytes({bits // 8!r}, 'big')")]


def unpack_codes(bits: int) -> list[tuple[str, int]]:
    """Struct codes for a number of ``bits`` bits, and how far left each piece is shifted; ``s`` pieces are bytes."""
    if bits in CODES:
        return [(CODES[bits], 0)]
    if bits == 24:
        return [("B", 16), ("H", 0)]
    if bits == 40:
        return [("B", 32), ("I", 0)]
    if bits == 48:
        return [("H", 32), ("I", 0)]
    if bits == 128:
        return [("Q", 64), ("Q", 0)]
    return [(f"{bits // 8}s", 0)]
