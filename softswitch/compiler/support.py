"""Functions that generated code calls where a plain expression would not do.

None of them raises for any integers: what BMv2 leaves undefined, or ends the process for, has a harmless result here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

MAX_SHIFT = 1 << 16
"""Bits beyond which a left shift has nothing left in any field."""


def shift_left(value: int, amount: int) -> int:
    """``value << amount``; 0 for an amount that no field is wide enough for."""
    return value << amount if 0 <= amount < MAX_SHIFT else 0


def shift_right(value: int, amount: int) -> int:
    """``value >> amount``; a negative amount shifts by nothing."""
    return value >> amount if amount >= 0 else value


def divide(left: int, right: int) -> int:
    """Quotient rounded to zero; 0 for a zero divisor."""
    if right == 0:
        return 0
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def modulo(left: int, right: int) -> int:
    """Remainder with the sign of ``left``; 0 for a zero divisor."""
    if right == 0:
        return 0
    remainder = abs(left) % abs(right)
    return -remainder if left < 0 else remainder


def pick(index: int, items: Sequence[int]) -> int:
    """``items[index]``, or 0 beyond their ends."""
    return items[index] if 0 <= index < len(items) else 0


def bit_string(parts: Sequence[tuple[int, int, int]]) -> bytes:
    """Bits side by side, the last byte filled up with zeros.

    Args:
        parts: Whether the part counts, its value (not negative), its width in bits.
    """
    total = bits = 0
    for valid, value, width in parts:
        if valid:
            total = total << width | value
            bits += width
    size = (bits + 7) // 8
    return (total << (size * 8 - bits)).to_bytes(size, "big")


def uniform(random: Random) -> Callable[[int, int], int]:
    """A function of ``low`` and ``high`` that gives a number between them, both included."""
    randrange = random.randrange

    def draw(low: int, high: int) -> int:
        return randrange(low, high + 1) if low <= high else low

    return draw


def format_message(template: str, values: Sequence[int]) -> str:
    """A ``log_msg`` text: each ``{}`` is replaced by the next value, ``\\{`` and ``\\}`` stand for braces."""
    parts = template.replace("\\{", "\0").replace("\\}", "\1").split("{}")
    text = parts[0]
    for position, part in enumerate(parts[1:]):
        text += (str(values[position]) if position < len(values) else "{}") + part
    return text.replace("\0", "{").replace("\1", "}")
