"""Files of messages: what is sent from where to where, when, and after what; as CSV or JSON lines.

One row, or one object, a message:

=================  ==========================================================================================================
``source``,        A host of the topology, by name, or by position from 0; they may be the same, which takes no time but the
``destination``    message's delay.
``size_bytes``     Payload bytes, at least 1.
``message``        Number of the row, from 0; it may be left out, and is checked if it is there.
``start_s``        Earliest time; seconds.
``class``          0 to 6, the higher the more urgent.
``after``          Numbers of the messages that have to be complete before; in CSV with spaces between, in JSON a list.
``delay_s``        What its sender computes from then on; seconds.
``protected``,     Share of packets that switches do not drop selectively, and largest share that may be missing; without
``bound``          them the policy says.
``group``,         For summaries: a collective or layer, a training step, one of several jobs.
``iteration``,
``job``
=================  ==========================================================================================================
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sim.messages import Message
from sim.readers.found import POLICY, stuck
from sim.readers.text import (
    MAX_MESSAGES,
    PICOSECONDS,
    InputError,
    decimal_time,
    parse_json,
    read_text,
    real,
    shown,
)

COLUMNS: Final = (
    "message",
    "source",
    "destination",
    "size_bytes",
    "start_s",
    "class",
    "after",
    "delay_s",
    "protected",
    "bound",
    "group",
    "iteration",
    "job",
)
REQUIRED: Final = ("source", "destination", "size_bytes")
LIMIT: Final = 256 << 20
MAX_EDGES: Final = 20_000_000
MAX_SIZE: Final = 1 << 40
_WITH: Final = "source destination size start priority after delay protected bound group iteration job".split()
_WITHOUT: Final = {field.name: field.default for field in dataclasses.fields(Message) if field.name not in _WITH}
"""Fields of messages that have no column, and their defaults."""
_LINE: Final = 1 << 24
_TEXT: Final = 200


def read_messages(path: str | Path, hosts: Sequence[str], *, limit: int = LIMIT) -> list[Message]:
    """Reads a file; its name ends in ``.jsonl`` if it is JSON lines.

    Args:
        path: The file.
        hosts: Names of the hosts of the topology, by position.
        limit: Most bytes.

    Returns:
        The messages; ``protected`` and ``bound`` are :data:`~sim.readers.found.POLICY` where the file does not say.

    Raises:
        InputError: With file and line.
    """
    text = read_text(path, limit)
    table = _json_rows(path, text) if Path(path).suffix == ".jsonl" else _csv_rows(path, text)
    places = {name: position for position, name in enumerate(hosts)}
    messages: list[Message] = []
    where: list[int] = []
    edges = 0
    for line, row in table:
        if len(messages) >= MAX_MESSAGES:
            raise InputError(path, f"line {line}", f"more than {MAX_MESSAGES} messages", f"up to {MAX_MESSAGES}")
        message = _Row(path, line, row, len(messages)).message(places)
        edges += len(message.after)
        if edges > MAX_EDGES:
            raise InputError(path, f"line {line}", f"more than {MAX_EDGES} numbers under after", f"up to {MAX_EDGES}")
        messages.append(message)
        where.append(line)
    if not messages:
        raise InputError(path, "(file)", "holds no message", "a row for each message")
    for line, message in zip(where, messages, strict=True):
        for other in message.after:
            if other >= len(messages):
                raise InputError(path, f"line {line}", f"after: message {other}, of {len(messages)}", "a message of the file")
    held = stuck(messages)
    if held is not None:
        raise InputError(path, f"line {where[held]}", f"message {held} waits, over others, for itself", "no circle")
    return messages


def write_messages(path: str | Path, messages: Iterable[Message], hosts: Sequence[str] = ()) -> None:
    """Writes a file that :func:`read_messages` reads back equal: CSV, or JSON lines if its name ends in ``.jsonl``.

    Args:
        path: The file.
        messages: What to write.
        hosts: Names of the hosts; without them positions are written.

    Raises:
        ValueError: A message has what the file has no column for, such as a transport of its own.
    """
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        table = None
        if Path(path).suffix != ".jsonl":
            table = csv.writer(file, lineterminator="\n")
            table.writerow(COLUMNS)
        for index, message in enumerate(messages):
            for name, default in _WITHOUT.items():
                if getattr(message, name) != default:
                    raise ValueError(f"message {index} has {name} {getattr(message, name)!r}, for which there is no column")
            row = _cells(index, message, hosts)
            if table is None:
                file.write(json.dumps({name: value for name, value in row.items() if value != ""}) + "\n")
            else:
                row["after"] = " ".join(map(str, message.after))
                table.writerow([row[name] for name in COLUMNS])


def _cells(index: int, message: Message, hosts: Sequence[str]) -> dict[str, Any]:
    source, destination = (hosts[end] if hosts else end for end in (message.source, message.destination))
    shares = [value if value != POLICY else "" for value in (message.protected, message.bound)]
    values = (
        index,
        source,
        destination,
        message.size,
        _seconds(message.start),
        message.priority,
        message.after or "",
        _seconds(message.delay) if message.delay else "",
        *shares,
        message.group,
        message.iteration or "",
        message.job,
    )
    return dict(zip(COLUMNS, values, strict=True))


def _seconds(picoseconds: int) -> str:
    """Writes seconds exactly; in JSON, too, as text, since a float would round."""
    whole, rest = divmod(picoseconds, PICOSECONDS)
    return f"{whole}.{rest:012d}".rstrip("0").rstrip(".") if rest else str(whole)


def _csv_rows(path: str | Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(max(csv.field_size_limit(), _LINE))
    read = 0

    def single() -> Iterator[str]:
        """Yields lines; a row ends with its line, so that a quote that never ends cannot take all the rest."""
        for number, content in enumerate(io.StringIO(text), 1):
            if number > read + 1:
                raise InputError(path, f"line {number - 1}", "a quoted cell does not end in its line", "a row on each line")
            if len(content) > _LINE:
                raise InputError(path, f"line {number}", f"{len(content)} characters", f"up to {_LINE}")
            yield content

    reader = csv.reader(single(), strict=True)
    header: list[str] | None = None
    try:
        for row in reader:
            line = read = reader.line_num
            if not row or row[0].startswith("#"):
                continue
            if header is None:
                header = _checked_header(path, line, row)
                continue
            if len(row) != len(header):
                raise InputError(path, f"line {line}", f"{len(row)} columns", f"{len(header)}: {', '.join(header)}")
            yield line, {name: cell for name, cell in zip(header, row, strict=True) if cell != ""}
    except csv.Error as error:
        raise InputError(path, f"line {reader.line_num}", str(error), "CSV with commas and double quotes") from None


def _checked_header(path: str | Path, line: int, row: list[str]) -> list[str]:
    _check_names(path, line, row)
    for name in REQUIRED:
        if name not in row:
            raise InputError(path, f"line {line}", f"no column {name}", f"names of columns, {', '.join(REQUIRED)} among them")
    return row


def _check_names(path: str | Path, line: int, names: Iterable[str]) -> None:
    seen = set()
    for name in names:
        if name not in COLUMNS:
            raise InputError(path, f"line {line}", f"the unknown column {shown(name)}", ", ".join(COLUMNS))
        if name in seen:
            raise InputError(path, f"line {line}", f"column {name} for the second time", "each column once")
        seen.add(name)


def _json_rows(path: str | Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, content in enumerate(io.StringIO(text), 1):
        if not content.strip():
            continue
        row = parse_json(path, f"line {line}", content)
        if not isinstance(row, dict):
            raise InputError(path, f"line {line}", shown(row), "an object for each message")
        _check_names(path, line, row)
        for name in REQUIRED:
            if name not in row:
                raise InputError(path, f"line {line}", f"no {name}", ", ".join(REQUIRED))
        yield line, row


class _Row:
    """A row of either format; what is not there has a default."""

    def __init__(self, path: str | Path, line: int, row: Mapping[str, Any], position: int) -> None:
        self._path, self._line, self._row, self._position = path, line, row, position

    def message(self, places: Mapping[str, int]) -> Message:
        """Returns the message; raises InputError."""
        if self._integer("message", 0, MAX_MESSAGES, self._position) != self._position:
            raise self._error("message", f"the number of row {self._position}")
        return Message(
            self._host("source", places),
            self._host("destination", places),
            self._integer("size_bytes", 1, MAX_SIZE, None),
            self._time("start_s"),
            self._integer("class", 0, 6, 0),
            self._after(),
            self._time("delay_s"),
            self._share("protected"),
            self._share("bound"),
            self._text("group"),
            self._integer("iteration", 0, 2**31 - 1, 0),
            self._text("job"),
        )

    def _error(self, name: str, accepted: str) -> InputError:
        found = shown(self._row[name]) if name in self._row else "missing"
        return InputError(self._path, f"line {self._line}", f"{name} is {found}", accepted)

    def _integer(self, name: str, low: int, high: int, default: int | None) -> int:
        value = self._row.get(name, default)
        if isinstance(value, str):
            value = int(value) if value.isascii() and value.isdecimal() and len(value) < 20 else None
        if type(value) is not int or not low <= value <= high:
            raise self._error(name, f"a whole number from {low} to {high}")
        return value

    def _host(self, name: str, places: Mapping[str, int]) -> int:
        value = self._row.get(name)
        if isinstance(value, str) and value in places:
            return places[value]
        if isinstance(value, bool) or (isinstance(value, str) and not value[:1].isdecimal()):
            raise self._error(name, "the name of a host of the topology, or its position")
        return self._integer(name, 0, len(places) - 1, None)

    def _time(self, name: str) -> int:
        value = self._row.get(name, "0")
        text = value if isinstance(value, str) else repr(value) if type(value) in (int, float) else ""
        found = decimal_time(text)
        if found is None:
            raise self._error(name, "seconds, from 0 to 10000, in whole picoseconds")
        return found

    def _share(self, name: str) -> float:
        if name not in self._row:
            return POLICY
        value = self._row[name]
        exact = real(value) if isinstance(value, str) else value if type(value) in (int, float) else None
        if exact is None or not 0 <= exact <= 1:
            raise self._error(name, "a number from 0 to 1, or nothing")
        return float(exact)

    def _text(self, name: str) -> str:
        value = self._row.get(name, "")
        if not isinstance(value, str) or len(value) > _TEXT or not value.isprintable():
            raise self._error(name, f"text of up to {_TEXT} characters")
        return value

    def _after(self) -> list[int]:
        value = self._row.get("after", [])
        accepted = "numbers of messages, from 0" + (", with spaces between" if isinstance(value, str) else ", as a list")
        words = value.split() if isinstance(value, str) else value
        if not isinstance(words, list):
            raise self._error("after", accepted)
        found = []
        for word in words:
            if isinstance(value, str) and word.isascii() and word.isdecimal() and len(word) < 10:
                word = int(word)
            if type(word) is not int or not 0 <= word < MAX_MESSAGES:
                raise self._error("after", accepted)
            found.append(word)
        return found


__all__ = ["COLUMNS", "REQUIRED", "read_messages", "write_messages"]
