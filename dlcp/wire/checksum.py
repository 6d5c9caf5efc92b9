"""The header check of RFC 1071 on a header's six 64-bit words: for functions that :mod:`dlcp.compiler` compiles.

:mod:`dlcp.wire.codec` does the same for whole batches in numpy.
"""

from __future__ import annotations

from typing import Final

from dlcp.wire.header import HEADER

MASK16: Final = 0xFFFF
MASK32: Final = 0xFFFFFFFF
CHECK_SHIFT: Final = 32
"""Bits of the first word behind the check."""
_IMMUTABLE: Final = [int.from_bytes(HEADER.immutable_mask()[at : at + 8].tobytes(), "big", signed=True) for at in range(0, 48, 8)]
CHECKED_FIRST: Final = _IMMUTABLE[0] & ~(MASK16 << CHECK_SHIFT)
CHECKED_LAST: Final = _IMMUTABLE[5]
"""Bits of the first and the last word that the check covers; of those between it covers all."""
assert HEADER.size == 48 and HEADER.slots["check"].byte == 2 and _IMMUTABLE[1:5] == [-1] * 4, "the header has changed"


def halves(word: int) -> int:
    """Returns the sum of the two 32-bit halves."""
    return ((word >> 32) & MASK32) + (word & MASK32)


def check_of(first: int, second: int, third: int, fourth: int, fifth: int, last: int) -> int:
    """Returns the check of a header, given as words in network byte order."""
    total = halves(first & CHECKED_FIRST) + halves(second) + halves(third) + halves(fourth) + halves(fifth)
    total += halves(last & CHECKED_LAST)
    total = (total >> 32) + ((total >> 16) & MASK16) + (total & MASK16)
    total = (total >> 16) + (total & MASK16)
    total = (total >> 16) + (total & MASK16)
    return total ^ MASK16
