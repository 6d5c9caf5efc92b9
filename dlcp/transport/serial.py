"""Serial number arithmetic on 32-bit counters (RFC 1982)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MASK = 0xFFFFFFFF


def ahead(a: int, b: int) -> int:
    """Returns ``a - b`` as a signed 32-bit distance: positive when ``a`` is newer than ``b``."""
    return ((a - b + 0x80000000) & MASK) - 0x80000000


def ahead_array(a: NDArray[np.uint32], b: int) -> NDArray[np.int32]:
    """Vectorized :func:`ahead`: ``int32[n]``."""
    return (a - np.uint32(b & MASK)).view(np.int32)
