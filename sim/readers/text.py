"""Reading files of other tools: limited in size, and with errors that name file, line, what was found and what was expected."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, NoReturn

from dlcp.errors import ConfigError

LIMIT: Final = 64 << 20
"""Most bytes of a file, uncompressed, unless the caller says otherwise."""
MAX_MESSAGES: Final = 2_000_000
"""Most messages that are made of one input."""
MAX_MEMORY: Final = 1 << 30
"""Most bytes that the words of a file may take, about; short ones take many times what they take in the file."""
MAX_VALUES: Final = 16_000_000
"""Most values of a JSON text."""
PICOSECONDS: Final = 10**12
MAX_TIME: Final = 10_000 * PICOSECONDS

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,2})?", re.ASCII)
_REAL: Final = re.compile(_NUMBER.pattern.replace("{1,2})?", "{1,3})?"), re.ASCII)
_LINES: Final = re.compile(r"[^\n]*\n?")
_LINE_COST: Final = 130
_WORD_COST: Final = 58
_SHOWN: Final = 60


class InputError(ConfigError):
    """A file of another tool, or a file of messages, is malformed."""


def shown(text: object) -> str:
    """Returns what was found, in quotes, shortened."""
    quoted = repr(text)
    return quoted if len(quoted) <= _SHOWN else quoted[: _SHOWN - 3] + "..."


def read_bytes(path: str | Path, limit: int = LIMIT) -> bytes:
    """Returns the content of a file; one that gzip has compressed is expanded.

    Raises:
        InputError: It cannot be read, or has more than ``limit`` bytes, before or after expanding.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise InputError(path, "(file)", f"cannot be read: {error.strerror or error}", "a readable file") from None
    if data[:2] == b"\x1f\x8b":
        data = _expand(path, data, limit)
    if len(data) > limit:
        raise InputError(path, "(file)", f"has more than {limit} bytes", f"up to {limit} bytes, or a higher --limit")
    return data


def _expand(path: str | Path, data: bytes, limit: int) -> bytes:
    machine = zlib.decompressobj(31)
    try:
        plain = machine.decompress(data, limit + 1)
    except zlib.error as error:
        raise InputError(path, "(file)", f"is not gzip: {error}", "a file that gzip made, or a plain one") from None
    if not machine.eof and len(plain) <= limit:
        raise InputError(path, "(file)", "ends in the middle of compressed data", "a whole file")
    return plain


def read_text(path: str | Path, limit: int = LIMIT) -> str:
    """Returns the text of a file in UTF-8; raises InputError like :func:`read_bytes`, and for other encodings."""
    data = read_bytes(path, limit)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(path, f"line {line}", f"byte {error.start} of the file is not UTF-8", "text in UTF-8") from None


def parse_json(source: str | Path, where: str, text: str) -> Any:
    """Returns what JSON text says, numbers with a point as floats.

    Raises:
        InputError: It is not JSON, holds a number that is not finite, or too many values, or is nested too deeply.
    """

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is no number of JSON")

    if text.count(",") + text.count("[") + text.count("{") > MAX_VALUES:
        raise InputError(source, where, f"more than {MAX_VALUES} values", f"up to {MAX_VALUES}")
    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}" if where == "(file)" else where
        raise InputError(source, place, f"{error.msg} at column {error.colno}", "JSON") from None
    except (ValueError, RecursionError) as error:
        raise InputError(source, where, str(error) or "nested too deeply", "JSON") from None


@dataclass(frozen=True, slots=True)
class Line:
    """The words of a line.

    Attributes:
        source: The file.
        number: From 1.
        words: Without the white space between them.
    """

    source: str
    number: int
    words: tuple[str, ...]

    def error(self, problem: str, accepted: str) -> InputError:
        """Makes an error that names this line."""
        return InputError(self.source, f"line {self.number}", problem, accepted)

    def expect(self, count: int, names: str) -> None:
        """Raises InputError unless there are ``count`` words, which are called ``names``."""
        if len(self.words) != count:
            raise self.error(f"{len(self.words)} words ({shown(' '.join(self.words))})", f"{count} words: {names}")

    def word(self, index: int, name: str) -> str:
        """Returns a word; raises InputError if the line ends before it."""
        if index >= len(self.words):
            raise self.error(f"ends before {name}", name)
        return self.words[index]

    def integer(self, index: int, name: str, low: int = 0, high: int = 2**63 - 1) -> int:
        """Returns the whole number that a word is; raises InputError if it is none, or out of range."""
        text = self.word(index, name)
        value = int(text) if _INTEGER.fullmatch(text) else None
        if value is None or not low <= value <= high:
            raise self.error(f"{name} is {shown(text)}", f"a whole number from {low} to {high}")
        return value

    def fraction(self, index: int, name: str, low: int = 0, high: int = 10**30) -> Fraction:
        """Returns the number that a word is, exactly; raises InputError if it is none, or out of range."""
        text = self.word(index, name)
        value = number(text)
        if value is None or not low <= value <= high:
            raise self.error(f"{name} is {shown(text)}", f"a number from {low} to {high}")
        return value

    def time(self, index: int, name: str, unit: int) -> int:
        """Returns the time that a word is in ``unit`` picoseconds, in picoseconds; raises InputError."""
        return round(self.fraction(index, name, 0, MAX_TIME // unit) * unit)


def number(text: str) -> Fraction | None:
    """Returns the number that a text is, exactly; None if it is none."""
    return Fraction(text) if _NUMBER.fullmatch(text) else None


def real(text: str) -> float | None:
    """Returns the finite number that a text is, as a float; None if it is none."""
    value = float(text) if _REAL.fullmatch(text) else math.inf
    return value if math.isfinite(value) else None


def decimal_time(text: str) -> int | None:
    """Returns picoseconds of a text in seconds; None unless it is a number from 0 to 10000 in whole picoseconds."""
    if not _NUMBER.fullmatch(text):
        return None
    try:
        exact = Decimal(text) * PICOSECONDS
    except InvalidOperation:
        return None
    if not 0 <= exact <= MAX_TIME or exact != exact.to_integral_value():
        return None
    return int(exact)


def lines(path: str | Path, limit: int = LIMIT) -> list[Line]:
    """Returns the lines of a file that hold words; what begins with ``#`` is a comment.

    Raises:
        InputError: It cannot be read, is too large, is not text, or holds nothing.
    """
    found, total = [], 0
    for index, match in enumerate(_LINES.finditer(read_text(path, limit)), 1):
        words = match[0].split()
        if words and not words[0].startswith("#"):
            found.append(Line(str(path), index, tuple(words)))
            total += _LINE_COST + _WORD_COST * len(words)
            if total > MAX_MEMORY:
                raise InputError(path, f"line {index}", f"too much: {len(found)} lines so far", "fewer lines and words")
    if not found:
        raise InputError(path, "(file)", "holds nothing", "a file with content")
    return found


def rows(found: Sequence[Line], count: int, at: int, what: str, names: str) -> Sequence[Line]:
    """Returns ``count`` lines from position ``at`` on; raises InputError if there are fewer."""
    if len(found) - at < count:
        problem = f"the file ends after {len(found) - at} {what}"
        raise found[-1].error(problem, f"{count} {what}, as the first line says: {names}")
    return found[at : at + count]


__all__ = [
    "LIMIT",
    "MAX_MESSAGES",
    "MAX_TIME",
    "PICOSECONDS",
    "InputError",
    "Line",
    "decimal_time",
    "lines",
    "number",
    "parse_json",
    "read_bytes",
    "read_text",
    "real",
    "rows",
    "shown",
]
