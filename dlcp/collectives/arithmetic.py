"""Arithmetic on raw bytes: every reduction and element type that loses nothing on the way.

The all-reduce that may lose packets adds floating-point numbers up and nothing else.  The reliable collectives also take minima,
maxima, products and bitwise operations, of integers as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dlcp.collectives.elements import dtype_field, from_wire, to_wire
from dlcp.wire.header import WireType

OPERATORS: Final = ("sum", "min", "max", "product", "and", "or", "xor")
"""What :class:`Arithmetic` can do, and ``mean``; the position is what messages carry of it."""
FLOATS: Final = {
    "float16": WireType.FLOAT16,
    "bfloat16": WireType.BFLOAT16,
    "float32": WireType.FLOAT32,
    "float64": WireType.FLOAT64,
}
INTEGERS: Final = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
ELEMENTS: Final = (*FLOATS, *INTEGERS, "bool")
"""Types of elements that can be reduced."""

_UFUNCS: Final[dict[str, Callable[..., Any]]] = {
    "sum": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "product": np.multiply,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


class Arithmetic:
    """One operator on one type of elements.

    Half-precision numbers are combined in float32 and rounded once, at the end.  Integers wrap around.  A sum of booleans is
    their disjunction, a product their conjunction.  NaN is the minimum and the maximum of whatever it meets.

    Args:
        op: One of :data:`OPERATORS`, or ``mean``.
        element: One of :data:`ELEMENTS`.

    Attributes:
        item: Bytes of an element.

    Raises:
        ValueError: There is no such operator.
        TypeError: Such elements cannot be reduced, or not so.
    """

    def __init__(self, op: str, element: str) -> None:
        if op != "mean" and op not in _UFUNCS:
            raise ValueError(f"op is {op!r}; {', '.join((*OPERATORS, 'mean'))} are known")
        if element not in ELEMENTS:
            raise TypeError(f"arrays of {element} cannot be reduced; {', '.join(ELEMENTS)} can")
        self.op = op
        self.element = element
        self.kind = FLOATS.get(element)
        if self.kind is None and op == "mean":
            raise TypeError(f"the mean of {element} is no {element}; take the sum and divide")
        if self.kind is not None and op in ("and", "or", "xor"):
            raise TypeError(f"{op} is for integers and booleans, not for {element}")
        self.item = 2 if element == "bfloat16" else np.dtype(element).itemsize
        self._half = self.kind in (WireType.FLOAT16, WireType.BFLOAT16)
        self._function = _UFUNCS["sum" if op == "mean" else op]

    def dtype_field(self, parts: int, *, spread: bool) -> int:
        """Returns the header's ``dtype`` byte; it differs where operators do, or whether everybody gets the result."""
        code = (0 if self.op == "mean" else OPERATORS.index(self.op)) ^ (0 if spread else 7)
        return dtype_field(self.kind or WireType.UINT8, mean=self.op == "mean", parts=parts) ^ code << 4

    def combine(self, contributions: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
        """Combines contributions, in their order.

        Args:
            contributions: At least one, raw bytes of equal length.

        Returns:
            A new array of that length.
        """
        # Overflow and NaN are the caller's business, and no reason to warn from the I/O thread.
        with np.errstate(all="ignore"):
            values = [self._decode(data) for data in contributions]
            total = values[0].copy() if len(values) == 1 else self._function(values[0], values[1])
            for value in values[2:]:
                self._function(total, value, out=total)
            if self.op == "mean":
                np.divide(total, len(values), out=total)
            if self._half:
                assert self.kind is not None
                return to_wire(total, self.kind)
        return total.view(np.uint8)

    def _decode(self, data: NDArray[np.uint8]) -> NDArray[Any]:
        if self._half:
            assert self.kind is not None
            return from_wire(data, self.kind)
        return data.view(self.element)


def element_of(dtype: np.dtype[Any]) -> str:
    """Returns the name of the elements of a numpy array, in its host's byte order."""
    return dtype.name
