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
_MEAN_BIT: Final = 0x80
_PARTS_SHIFT: Final = 4
_KIND_MASK: Final = 0x0F


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


def dtype_field(kind: WireType, *, mean: bool = False, parts: int = 1) -> int:
    """Returns the header's ``dtype`` byte.

    It is part of a message's identity, so ranks that call with other types, another operation or arrays that are cut into another
    number of parts do not take each other's messages for their own.

    Args:
        kind: Element type on the wire.
        mean: Whether the sum is divided by the number of contributors.
        parts: Messages that the array is cut into; its octal digits are exclusive-ored into three bits.
    """
    folded = 0
    while parts:
        folded ^= parts & 7
        parts >>= 3
    return int(kind) | folded << _PARTS_SHIFT | (_MEAN_BIT if mean else 0)


def kind_of(dtype: int) -> WireType:
    """Returns the element type that a ``dtype`` byte names.

    Raises:
        ValueError: There is no such type.
    """
    return WireType(dtype & _KIND_MASK)


def is_mean(dtype: int) -> bool:
    """Whether a ``dtype`` byte asks for the mean."""
    return bool(dtype & _MEAN_BIT)


def item_bytes(kind: WireType) -> int:
    """Returns the bytes of one element on the wire."""
    return ITEM_BYTES[kind]


def to_wire(values: NDArray[Any], kind: WireType) -> NDArray[np.uint8]:
    """Returns ``uint8[...]``: the elements as they travel; a view, not a copy, where nothing needs converting.

    Args:
        values: 1-D contiguous float32 or float64.
        kind: Element type on the wire.  Values beyond its range become infinite, as they do in torch.
    """
    # Gradients that overflow or are not numbers are the training loop's business: they travel as they are, without a warning.
    with np.errstate(over="ignore", invalid="ignore"):
        if kind is WireType.BFLOAT16:
            return _to_bfloat16(values.astype(np.float32, copy=False)).view(np.uint8)
        target = {WireType.FLOAT32: np.float32, WireType.FLOAT16: np.float16, WireType.FLOAT64: np.float64}[kind]
        return values.astype(target, copy=False).view(np.uint8)


def from_wire(data: NDArray[np.uint8], kind: WireType) -> NDArray[Any]:
    """Returns the elements as an array that numpy can compute with: a view for float32 and float64, float32 otherwise."""
    if kind is WireType.BFLOAT16:
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if kind is WireType.FLOAT16:
        with np.errstate(invalid="ignore"):
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
