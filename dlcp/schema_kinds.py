"""What a single value of a description may be: the kinds that :mod:`dlcp.schema` fields are declared with.

A kind knows three things: what it accepts, in words; how to check a value; how to write it back as plain data.
"""

from __future__ import annotations

import difflib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlcp.errors import ConfigError

_SHOWN = 60


def shown(value: object) -> str:
    """Writes a refused value as TOML or Python would, shortened."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value.bit_length() > 4 * _SHOWN:
        return f"a number of {value.bit_length()} bits"  # Python refuses to write out very long integers
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def listing(values: Iterable[str]) -> str:
    """Joins words with commas."""
    return ", ".join(values)


def join(key: str, name: str) -> str:
    """Appends ``name`` to a dotted key; either may be empty."""
    return f"{key}.{name}" if key and name else key or name


def suggestion(name: str, known: Mapping[str, str]) -> str:
    """Returns ``(did you mean 'x'?)`` if ``name`` is close to a known word, else nothing."""
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {known[close[0]]!r}?)" if close else ""


def refused(key: str, value: object, problem: str, accepted: str) -> ConfigError:
    """Makes the error for a value."""
    return ConfigError("<python>", key, f"{shown(value)} {problem}", accepted)


class Kind(ABC):
    """What a field accepts."""

    @property
    @abstractmethod
    def accepted(self) -> str:
        """What is accepted, in words that complete the sentence "accepted: ..."."""

    @abstractmethod
    def parse(self, value: object, key: str) -> Any:
        """Checks ``value`` and returns it in its normal form.

        Raises:
            ConfigError: It is not accepted; ``key`` says where it stands.
        """

    def dump(self, value: Any) -> Any:
        """Returns plain data that :meth:`parse` takes back."""
        return value


@dataclass(frozen=True)
class Integer(Kind):
    """A whole number in ``[low, high]``."""

    low: int
    high: int
    unit: str = ""

    @property
    def accepted(self) -> str:
        return f"a whole number from {self.low} to {self.high}{' ' + self.unit if self.unit else ''}"

    def parse(self, value: object, key: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise refused(key, value, "is not a whole number", self.accepted)
        if not self.low <= value <= self.high:
            raise refused(key, value, "is out of range", self.accepted)
        return int(value)


@dataclass(frozen=True)
class Number(Kind):
    """A finite number in ``[low, high]``, or ``(low, high]`` if ``above``."""

    low: float
    high: float
    unit: str = ""
    above: bool = False

    @property
    def accepted(self) -> str:
        low, high = (f"{bound:.15g}" for bound in (self.low, self.high))
        span = f"above {low}, up to {high}" if self.above else f"from {low} to {high}"
        return f"a number {span}{' ' + self.unit if self.unit else ''}"

    def parse(self, value: object, key: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise refused(key, value, "is not a number", self.accepted)
        # Comparing before converting keeps an int too large for a float from raising; a nan fails every comparison.
        if not self.low <= value <= self.high or (self.above and value == self.low) or not math.isfinite(value):
            raise refused(key, value, "is out of range", self.accepted)
        return float(value) + 0.0  # -0.0 becomes 0.0, so that equal values have equal digests


@dataclass(frozen=True)
class Flag(Kind):
    """true or false."""

    @property
    def accepted(self) -> str:
        return "true or false"

    def parse(self, value: object, key: str) -> bool:
        if not isinstance(value, bool):
            raise refused(key, value, "is not a truth value", self.accepted)
        return value


@dataclass(frozen=True)
class Choice(Kind):
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def accepted(self) -> str:
        return listing(f'"{word}"' for word in self.words)

    def parse(self, value: object, key: str) -> str:
        if not isinstance(value, str):
            raise refused(key, value, "is not a string", self.accepted)
        if value not in self.words:
            near = suggestion(value, {word: word for word in self.words})
            raise refused(key, value, f"is not one of them{near}", self.accepted)
        return str(value)


@dataclass(frozen=True)
class Text(Kind):
    """A string that matches ``pattern`` wholly; ``meaning`` says so in words."""

    pattern: str
    meaning: str

    @property
    def accepted(self) -> str:
        return self.meaning

    def parse(self, value: object, key: str) -> str:
        if not isinstance(value, str):
            raise refused(key, value, "is not a string", self.accepted)
        if re.fullmatch(self.pattern, value) is None:
            raise refused(key, value, "does not fit", self.accepted)
        return str(value)


@dataclass(frozen=True)
class Either(Kind):
    """What any one of ``kinds`` accepts."""

    kinds: tuple[Kind, ...]

    @property
    def accepted(self) -> str:
        return " or ".join(kind.accepted for kind in self.kinds)

    def parse(self, value: object, key: str) -> Any:
        return self._kind(value, key).parse(value, key)

    def dump(self, value: Any) -> Any:
        return self._kind(value, "").dump(value)

    def _kind(self, value: object, key: str) -> Kind:
        problem = ""
        for kind in self.kinds:
            try:
                kind.parse(value, key)
            except ConfigError as error:
                # Of several refusals the one that got furthest helps most: "out of range" rather than "not a string".
                if not problem or "out of range" in error.problem:
                    problem = error.problem
            else:
                return kind
        raise ConfigError("<python>", key, problem, self.accepted)


@dataclass(frozen=True)
class Items(Kind):
    """A list of ``low`` to ``high`` values of one kind; kept as a tuple."""

    kind: Kind
    low: int
    high: int

    @property
    def accepted(self) -> str:
        count = f"{self.low}" if self.low == self.high else f"{self.low} to {self.high}"
        return f"a list of {count} items, each {self.kind.accepted}"

    def parse(self, value: object, key: str) -> tuple[Any, ...]:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            raise refused(key, value, "is not a list", self.accepted)
        if not self.low <= len(value) <= self.high:
            raise refused(key, value, f"has {len(value)} items", self.accepted)
        return tuple(self.kind.parse(item, f"{key}[{index}]") for index, item in enumerate(value))

    def dump(self, value: Any) -> list[Any]:
        return [self.kind.dump(item) for item in value]
