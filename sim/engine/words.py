"""The memory and what can be done to a word of it.

The engine's whole state is one memory of signed 64-bit words. ``m`` is the memory: a list here, a bare address once compiled,
so that passing it costs nothing. What the engine calls a pointer is the position of a word; 0 is nobody's.

Arithmetic stays within 63 bits, where Python's integers and the machine's are the same.
"""

from __future__ import annotations

from typing import Final, TypeAlias

Words: TypeAlias = list[int]

MASK63: Final = (1 << 63) - 1
MASK32: Final = (1 << 32) - 1


def ld(m: Words, at: int) -> int:
    """Returns the word at ``at``; IndexError outside of the memory."""
    if at < 0:
        raise IndexError(at)
    return m[at]


def st(m: Words, at: int, value: int) -> None:
    """Sets the word at ``at``; IndexError outside of the memory, OverflowError if the value needs more than 64 bits."""
    if at < 0:
        raise IndexError(at)
    if not -MASK63 <= value <= MASK63:
        raise OverflowError(value)
    m[at] = value


def lowest(bits: int) -> int:
    """Returns the number of the lowest bit that is set; there has to be one."""
    return (bits & -bits).bit_length() - 1


def highest(bits: int) -> int:
    """Returns the number of the highest bit that is set; there has to be one, and bit 63 is not."""
    return bits.bit_length() - 1


def has(m: Words, bitmap: int, index: int) -> int:
    """Returns bit ``index`` of a bitmap, shifted by whatever: 0 or not 0.  A word of a bitmap holds 32 bits."""
    return ld(m, bitmap + (index >> 5)) & (1 << (index & 31))


def put(m: Words, bitmap: int, index: int) -> None:
    """Sets a bit of a bitmap."""
    at = bitmap + (index >> 5)
    st(m, at, ld(m, at) | (1 << (index & 31)))


def clear(m: Words, bitmap: int, index: int) -> None:
    """Clears a bit of a bitmap."""
    at = bitmap + (index >> 5)
    st(m, at, ld(m, at) & ~(1 << (index & 31)))


def mix(value: int) -> int:
    """Returns 63 well-mixed bits of a value (0 to 2^63 - 1): two rounds of multiply and shift."""
    value = ((value ^ (value >> 29)) * 3935559000370003845) & MASK63
    value = ((value ^ (value >> 32)) * 2691343689449507681) & MASK63
    return value ^ (value >> 29)
