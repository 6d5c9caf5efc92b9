"""Serial number arithmetic on 32-bit counters (RFC 1982); compiled, too."""

from __future__ import annotations

MASK = 0xFFFFFFFF


def ahead(a: int, b: int) -> int:
    """Returns ``a - b`` as a signed 32-bit distance: positive when ``a`` is newer than ``b``."""
    return ((a - b + 0x80000000) & MASK) - 0x80000000
