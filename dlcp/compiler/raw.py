"""Memory by address: what functions that are compiled may do to bytes that are not theirs.

Here as Python, over ctypes; :mod:`dlcp.compiler.translate` makes single instructions of them.  There is no check of any address:
who calls these has made sure that what lies there is as long as they assume.
"""

from __future__ import annotations

import ctypes
from typing import Any, TypeAlias

from numpy.typing import NDArray

Words: TypeAlias = memoryview
"""Signed 64-bit words; a bare address once compiled."""


def ld(m: Words, at: int) -> int:
    """Returns the word at ``at``; IndexError outside of the memory."""
    if at < 0:
        raise IndexError(at)
    word: int = m[at]
    return word


def st(m: Words, at: int, value: int) -> None:
    """Sets the word at ``at``; IndexError outside of the memory, an error of struct's if it needs more than 64 bits."""
    if at < 0:
        raise IndexError(at)
    m[at] = value


def address_of(array: NDArray[Any]) -> int:
    """Returns the address of an array's first element; the caller keeps the array alive."""
    address: int = array.__array_interface__["data"][0]
    return address


def octet(address: int) -> int:
    """Returns the byte at an address."""
    return ctypes.c_uint8.from_address(address).value


def put_octet(address: int, value: int) -> None:
    """Sets the byte at an address."""
    ctypes.c_uint8.from_address(address).value = value


def big64(address: int) -> int:
    """Returns the 64 bits at an address, which are in network byte order, as a signed number."""
    return int.from_bytes(ctypes.string_at(address, 8), "big", signed=True)


def put_big64(address: int, value: int) -> None:
    """Writes the low 64 bits of a number in network byte order."""
    ctypes.memmove(address, (value & (1 << 64) - 1).to_bytes(8, "big"), 8)


def here64(address: int) -> int:
    """Returns the signed number at an address, in the machine's byte order."""
    return ctypes.c_int64.from_address(address).value


def put_here64(address: int, value: int) -> None:
    """Writes a signed number in the machine's byte order."""
    ctypes.c_int64.from_address(address).value = value


def move(to: int, source: int, count: int) -> None:
    """Copies ``count`` bytes between places that do not overlap."""
    ctypes.memmove(to, source, count)


__all__ = ["Words", "address_of", "big64", "here64", "ld", "move", "octet", "put_big64", "put_here64", "put_octet", "st"]
