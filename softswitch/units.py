"""Quantities as people write them: ``100M``, ``5ms``, ``0.01``."""

from __future__ import annotations

import re
from typing import Final

from softswitch.errors import BadValue

_RATE: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_TIME: Final = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_BYTES: Final = {"": 1, "k": 10**3, "m": 10**6}


def _scaled(text: str, pattern: str, units: dict[str, int], what: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)" + pattern, text.strip(), re.IGNORECASE | re.ASCII)
    if match is None:
        raise BadValue(f"{text!r} is not {what}")
    whole, _, fraction = match[1].partition(".")
    # In integers: floating point would make 2.3 ms a nanosecond short.
    value, rest = divmod(int(whole + fraction) * units[match[2].lower()], int("1" + "0" * len(fraction)))
    if rest:
        raise BadValue(f"{text!r} is finer than one unit")
    return value


def parse_rate(text: str) -> int:
    """Reads bits per second: ``100M``, ``1.5G``, ``64kbit``, ``9600``."""
    return _scaled(text, r"([kmg]?)(?:bit|bps|bit/s)?", _RATE, "a rate; write it like 100M or 1.5G (bit/s)")


def parse_time(text: str) -> int:
    """Reads a time as nanoseconds: ``5ms``, ``100us``, ``1s``."""
    return _scaled(text, r"(ns|us|ms|s)", _TIME, "a time; write it like 5ms or 100us")


def parse_bytes(text: str) -> int:
    """Reads a number of bytes: ``150000``, ``150k``, ``1M`` (powers of ten)."""
    return _scaled(text, r"([km]?)b?", _BYTES, "a number of bytes; write it like 150k")


def parse_count(text: str) -> int:
    """Reads a whole number, decimal or 0x hexadecimal."""
    try:
        return int(text, 0)
    except ValueError:
        raise BadValue(f"{text!r} is not a whole number") from None


def parse_probability(text: str) -> float:
    """Reads a probability: ``0.01`` or ``1%``."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise BadValue(f"{text!r} is not a probability; write it like 0.01 or 1%")
    return value


__all__ = ["parse_bytes", "parse_count", "parse_probability", "parse_rate", "parse_time"]
