"""Quantities with units: rates, times, sizes and buffers, as a description states them.

A quantity is written as a string with its unit, ``rate = "100 Mbit/s"``, or as a number under a key that ends in the unit,
``rate_mbps = 100``.  A bare number is refused, because nobody can tell what it counts.  Values are whole numbers of the base unit
(bit/s, picoseconds, bytes), so that equal quantities are equal however they were written, and no arithmetic rounds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar, Final, Self, TypeVar

from dlcp.schema import Record, refuse
from dlcp.schema_kinds import Kind, join, listing, refused, shown, suggestion

_LITERAL: Final = re.compile(r"([0-9][0-9_]{0,30}(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,2})?)\s*([^\s0-9.].{0,15})?")
_HARDLY: Final = 10**40


class Amount(int):
    """A whole number of a base unit; the subclasses say which."""

    noun: ClassVar[str]
    example: ClassVar[str]
    units: ClassVar[Mapping[str, int]]
    """Unit to base units; the first of those that are equal is the one that is written."""
    written: ClassVar[tuple[str, ...]]
    """Units that :meth:`__str__` chooses from, the largest first."""
    suffixes: ClassVar[Mapping[str, int]]
    """Endings of keys that take plain numbers, to base units."""
    decimals: ClassVar[int] = 6
    """Most digits after the point in what is written."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads a number with its unit; the space between is optional.

        Raises:
            ValueError: It is not one, or does not come out as a whole number of base units; the text says what is wrong.
        """
        return cls(_read(text, cls.units))

    @classmethod
    def of(cls, value: int | float, unit: str) -> Self:
        """Makes an amount of so many ``unit``, which may be a key's, such as ``mbps``; raises ValueError."""
        factor = cls.units[unit] if unit in cls.units else cls.suffixes[unit]
        return cls(_whole(_number(value) * factor, shown(value)))

    def __str__(self) -> str:
        for unit in self.written:
            scale = self.units[unit]
            if int(self) >= scale and int(self) * 10**self.decimals % scale == 0:
                whole, rest = divmod(int(self), scale)
                digits = f"{rest * 10**self.decimals // scale:0{self.decimals}d}".rstrip("0") if rest else ""
                return f"{whole}.{digits} {unit}" if digits else f"{whole} {unit}"
        return f"{int(self)} {self.written[-1]}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}.parse({str(self)!r})"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class Rate(Amount):
    """Bits per second."""

    noun = "rate"
    example = "100 Mbit/s"
    units: ClassVar[Mapping[str, int]] = {
        **{f"{prefix}bit/s": 10**power for prefix, power in (("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12))},
        **{f"{prefix}bps": 10**power for prefix, power in (("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12))},
        **{f"{prefix}B/s": 8 * 10**power for prefix, power in (("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12))},
    }
    written = ("Tbit/s", "Gbit/s", "Mbit/s", "kbit/s", "bit/s")
    suffixes: ClassVar[Mapping[str, int]] = {"bps": 1, "kbps": 10**3, "mbps": 10**6, "gbps": 10**9}

    def seconds(self, size: int) -> float:
        """Returns how long ``size`` bytes take."""
        return 8 * size / int(self)


class Delay(Amount):
    """Picoseconds: the time step of the simulator."""

    noun = "time"
    example = "10 us"
    units: ClassVar[Mapping[str, int]] = {
        "ps": 1,
        "ns": 10**3,
        "us": 10**6,
        "µs": 10**6,  # micro sign
        "\u03bcs": 10**6,  # Greek mu, which looks the same
        "ms": 10**9,
        "s": 10**12,
    }
    written = ("s", "ms", "us", "ns", "ps")
    suffixes: ClassVar[Mapping[str, int]] = {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12}

    @property
    def seconds(self) -> float:
        """The same in seconds."""
        return int(self) / 10**12

    def __str__(self) -> str:
        return super().__str__() if self else "0 s"


class Size(Amount):
    """Bytes."""

    noun = "size"
    example = "64 KiB"
    units: ClassVar[Mapping[str, int]] = {
        "B": 1,
        "bytes": 1,
        **{f"{prefix}iB": 1 << 10 * power for power, prefix in enumerate("KMGT", 1)},
        **{f"{prefix}B": 10 ** (3 * power) for power, prefix in enumerate("kMGT", 1)},
    }
    written = ("TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "kB", "B")
    suffixes: ClassVar[Mapping[str, int]] = {"bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
    decimals = 0


@dataclass(frozen=True)
class Buffer:
    """Room for waiting packets: so many bytes, or so many packets of whatever length.

    Attributes:
        amount: How many.
        unit: ``bytes`` or ``packets``.
    """

    amount: int
    unit: str

    units: ClassVar[Mapping[str, int]] = {"packets": 1, "packet": 1}
    suffixes: ClassVar[Mapping[str, int]] = {**Size.suffixes, "packets": 1}

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads ``64 KiB`` or ``100 packets``; raises ValueError like :meth:`Amount.parse`."""
        if text.endswith(("packet", "packets")):
            return cls(_read(text, cls.units), "packets")
        return cls(_read(text, {**Size.units, **cls.units}), "bytes")

    @classmethod
    def of(cls, value: int | float, unit: str) -> Self:
        """Makes a buffer of a number and the unit of a key; raises ValueError like :meth:`Amount.of`."""
        amount = _whole(_number(value) * cls.suffixes[unit], shown(value))
        return cls(amount, "packets" if unit == "packets" else "bytes")

    def packets(self, packet_bytes: int) -> int:
        """Returns how many packets of ``packet_bytes`` find room, at least one."""
        return self.amount if self.unit == "packets" else max(self.amount // packet_bytes, 1)

    def bytes(self, packet_bytes: int) -> int:
        """Returns the room in bytes if all packets have ``packet_bytes``."""
        return self.amount * packet_bytes if self.unit == "packets" else self.amount

    def __str__(self) -> str:
        if self.unit == "bytes":
            return str(Size(self.amount))
        return f"{self.amount} packet{'s' if self.amount != 1 else ''}"


@dataclass(frozen=True)
class Quantity(Kind):
    """An :class:`Amount` from ``low`` to ``high``, which are written with their units."""

    type: type[Amount]
    low: str
    high: str

    @property
    def accepted(self) -> str:
        units = listing(dict.fromkeys(reversed(self.type.written)))
        return f'a {self.type.noun} with its unit such as "{self.type.example}" ({units}), from {self.low} to {self.high}'

    def parse(self, value: object, key: str) -> Amount:
        amount = _typed(value, key, self.type, self.accepted)
        if not self.type.parse(self.low) <= amount <= self.type.parse(self.high):
            raise refused(key, str(value), "is out of range", self.accepted)
        return amount

    def dump(self, value: Amount) -> str:
        return str(value)


@dataclass(frozen=True)
class Room(Kind):
    """A :class:`Buffer` of at least one byte or packet, at most ``high``."""

    high: str = "1 TiB"

    @property
    def accepted(self) -> str:
        return f'a size with its unit such as "64 KiB", or a number of packets such as "100 packets", above 0, up to {self.high}'

    def parse(self, value: object, key: str) -> Buffer:
        buffer = _typed(value, key, Buffer, self.accepted)
        if not 1 <= buffer.amount <= Size.parse(self.high):
            raise refused(key, str(value), "is out of range", self.accepted)
        return buffer

    def dump(self, value: Buffer) -> str:
        return str(value)


@dataclass(frozen=True)
class Auto(Kind):
    """``"auto"``, or what ``kind`` accepts."""

    kind: Kind

    @property
    def accepted(self) -> str:
        return f'"auto", or {self.kind.accepted}'

    def parse(self, value: object, key: str) -> Any:
        if value == "auto":
            return "auto"
        try:
            return self.kind.parse(value, key)
        except ValueError as error:
            raise refuse(key, error.problem, self.accepted) from None  # type: ignore[attr-defined]

    def dump(self, value: Any) -> Any:
        return value if value == "auto" else self.kind.dump(value)


@dataclass(frozen=True)
class Table(Record):
    """A nested section whose quantities may also be given as plain numbers under keys that end in a unit."""

    def parse(self, value: object, key: str) -> Any:
        return super().parse(spelled(value, self.type, key) if isinstance(value, Mapping) else value, key)


def spelled(mapping: Mapping[str, Any], section: type[Any], key: str) -> dict[str, Any]:
    """Replaces keys such as ``rate_mbps`` by the quantity that they spell, such as ``rate``.

    Raises:
        ConfigError: A quantity is given twice, or is not a number, or out of range.
    """
    result = dict(mapping)
    for field in fields(section):
        kind = field.metadata["kind"]
        plain = kind.kind if isinstance(kind, Auto) else kind
        if not isinstance(plain, Quantity | Room):
            continue
        quantity = plain.type if isinstance(plain, Quantity) else Buffer
        for suffix in quantity.suffixes:
            name = f"{field.name}_{suffix}"
            if name not in result:
                continue
            number, where = result.pop(name), join(key, name)
            if field.name in result:
                raise refuse(where, f"is given besides {field.name}, or in two units", f"{field.name} once")
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise refused(where, number, "is not a number", "a number; its unit stands in the key")
            try:
                amount = quantity.of(number, suffix)
            except ValueError as error:
                raise refuse(where, str(error), plain.accepted) from None
            result[field.name] = plain.parse(amount, where)
    return result


_T = TypeVar("_T", Amount, Buffer)


def _typed(value: object, key: str, kind: type[_T], accepted: str) -> _T:
    if isinstance(value, kind):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool | Amount):
        raise refused(key, value, "has no unit", accepted)
    if not isinstance(value, str):
        raise refused(key, value, "is not a string with a unit", accepted)
    try:
        return kind.parse(value)
    except ValueError as error:
        raise refuse(key, str(error), accepted) from None


def _read(text: str, units: Mapping[str, int]) -> int:
    match = _LITERAL.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{shown(text)} is not a number with a unit")
    number, unit = match.groups()
    if unit is None:
        raise ValueError(f"{shown(text)} has no unit")
    if unit not in units:
        raise ValueError(f"{shown(text)} has the unknown unit {unit!r}{_closest(unit, units)}")
    return _whole(Fraction(number) * units[unit], shown(text))


def _closest(unit: str, units: Iterable[str]) -> str:
    for known in units:
        if known.lower() in (unit.lower(), f"{unit.lower()}/s", f"{unit.lower()}s"):
            return f" (did you mean {known!r}?)"
    return suggestion(unit, {known: known for known in units})


def _number(value: int | float) -> Fraction:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    # The shortest text of a float is the number that was meant: 0.1, not the binary fraction nearest to it.
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))


def _whole(number: Fraction, text: str) -> int:
    if number.denominator != 1:
        raise ValueError(f"{text} is finer than the smallest unit")
    if abs(number) > _HARDLY:
        raise ValueError(f"{text} is out of range")
    return int(number)


__all__ = ["Amount", "Auto", "Buffer", "Delay", "Quantity", "Rate", "Room", "Size", "Table", "spelled"]
