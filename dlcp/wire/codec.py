"""Whole batches of DLCP headers to and from numpy, with the header check of RFC 1071.

Nothing here loops over packets.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dlcp.wire.header import HEADER, HEADER_BYTES, VERSION

# The one's complement sum does not depend on byte order (RFC 1071, section 2 B), so native words will do.
_CHECK_WORD: Final = HEADER.slots["check"].byte // 2
_MASK: Final = HEADER.immutable_mask().view("=u2").copy()
_MASK[_CHECK_WORD] = 0


def header_check(headers: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Computes the check of ``uint8[n, 48]`` headers.

    Returns:
        ``uint16[n]`` in the byte order in which it stands in the header when viewed as native words.
    """
    words = headers.view("=u2") & _MASK
    total: NDArray[np.uint32] = words.sum(axis=1, dtype=np.uint32)
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    check: NDArray[np.uint16] = (~total).astype(np.uint16)
    return check


def seal(headers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Writes the check into ``uint8[n, 48]`` C-contiguous headers in place, and returns them."""
    headers.view("=u2")[:, _CHECK_WORD] = header_check(headers)
    return headers


def encode_headers(count: int = 1, /, **columns: ArrayLike) -> NDArray[np.uint8]:
    """Builds sealed headers; ``columns`` are fields of the table, scalars or arrays of length ``count``.

    Returns:
        ``uint8[count, 48]``.
    """
    columns.setdefault("version", VERSION)
    return seal(HEADER.encode(count, **columns))


_HEADER_MASK: Final = int.from_bytes(_MASK.tobytes(), "big")
_CHECK: Final = HEADER.slots["check"]


def encode_header(**values: int) -> bytes:
    """Builds one sealed header from Python integers: what :func:`encode_headers` does, for control packets."""
    values.setdefault("version", VERSION)
    return seal_number(int.from_bytes(HEADER.encode_one(**values), "big"))


def seal_number(header: int) -> bytes:
    """Writes the check into one header, given as the number that its bytes are in network byte order."""
    # 2^16 is 1 modulo 2^16 - 1, so the end-around-carry sum of 16-bit words is a remainder.
    covered = header & _HEADER_MASK
    total = covered % 0xFFFF or (0xFFFF if covered else 0)
    return (header | (~total & 0xFFFF) << _CHECK.behind).to_bytes(HEADER_BYTES, "big")


def check_ok(headers: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Tells for each of ``uint8[n, 48]`` C-contiguous headers whether its check holds."""
    ok: NDArray[np.bool_] = headers.view("=u2")[:, _CHECK_WORD] == header_check(headers)
    return ok


def gather(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Copies the headers of ``uint8[n, >= 48]`` rows into ``uint8[n, 48]``."""
    return np.ascontiguousarray(rows[:, :HEADER_BYTES])


def records(headers: NDArray[np.uint8]) -> NDArray[Any]:
    """Views ``uint8[n, 48]`` as structured records of the header table."""
    return headers.reshape(-1).view(HEADER.dtype)
