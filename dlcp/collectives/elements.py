"""Elements on the wire: float32, float16, bfloat16, float64 and raw bytes, little-endian.

float64 arrays travel as float64 unless the policy asks for 16 bits, since "float32" must not silently halve a user's precision.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dlcp.wire.header import ITEM_BYTES, WireType

assert sys.byteorder == "little", "payloads are little-endian; a big-endian host would need a conversion"

_WIDE: Final = {"float32": WireType.FLOAT32, "float16": WireType.FLOAT16, "bfloat16": WireType.BFLOAT16}
MEAN_BIT: Final = 0x80


def wire_type(dtype: np.dtype[Any], policy_dtype: str) -> WireType:
    """Returns the element type with which an array of ``dtype`` travels.

    Raises:
        TypeError: Arrays of this type cannot be reduced.
    """
    if dtype == np.float64 and policy_dtype == "float32":
        return WireType.FLOAT64
    if dtype in (np.float32, np.float64):
        return _WIDE[policy_dtype]
    raise TypeError(f"arrays of {dtype} cannot be reduced; float32 and float64 can")


def item_bytes(kind: WireType) -> int:
    """Returns the bytes of one element on the wire."""
    return ITEM_BYTES[kind]


def to_wire(values: NDArray[Any], kind: WireType) -> NDArray[np.uint8]:
    """Returns ``uint8[...]``: the elements as they travel; a view, not a copy, where nothing needs converting.

    Args:
        values: 1-D contiguous float32 or float64.
        kind: Element type on the wire.  Values beyond float16's range become infinite, as they do in torch.
    """
    if kind is WireType.BFLOAT16:
        return _to_bfloat16(values.astype(np.float32, copy=False)).view(np.uint8)
    target = {WireType.FLOAT32: np.float32, WireType.FLOAT16: np.float16, WireType.FLOAT64: np.float64}[kind]
    with np.errstate(over="ignore"):
        return values.astype(target, copy=False).view(np.uint8)


def from_wire(data: NDArray[np.uint8], kind: WireType) -> NDArray[Any]:
    """Returns the elements as an array that numpy can compute with: a view for float32 and float64, float32 otherwise."""
    if kind is WireType.BFLOAT16:
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if kind is WireType.FLOAT16:
        return data.view(np.float16).astype(np.float32)
    return data.view(np.float64 if kind is WireType.FLOAT64 else np.float32)


def _to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounds to nearest, ties to even; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    nan = np.isnan(values)
    if nan.any():
        rounded[nan] = (bits[nan] >> 16).astype(np.uint16) | 0x0040
    return rounded
