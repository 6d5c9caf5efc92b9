"""Strict plain data: TOML text or mappings to frozen dataclasses and back, for every description a user writes.

Each description (policy, topology, workload, experiment) is a class decorated with :func:`section` whose fields are declared with
:func:`setting` or :func:`required`: a *kind* that says what is accepted, a default, and a sentence for humans.  From that one
declaration come the validation, the error texts, the commented TOML file, the digest and the list of differences.

The rules:

* Nothing is guessed or coerced, except an integer where a number is wanted.  A bool is never a number.
* An unknown key is an error, as is a value of the wrong type or out of range; :class:`dlcp.errors.ConfigError` names the file,
  the dotted key, and what would have been accepted.
* A value is checked when the object is made, however it is made, so an invalid description cannot exist.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from dlcp.errors import ConfigError
from dlcp.schema_kinds import Kind, join, listing, shown, suggestion

T = TypeVar("T")


def setting(kind: Kind, *, default: Any, doc: str) -> Any:
    """Declares a field with a default; the default has to satisfy ``kind`` like any other value."""
    return dataclasses.field(default=default, metadata={"kind": kind, "doc": doc})


def required(kind: Kind, *, doc: str) -> Any:
    """Declares a field that has no default."""
    return dataclasses.field(metadata={"kind": kind, "doc": doc})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(setting, required))
def section(cls: type[T]) -> type[T]:
    """Turns ``cls`` into a frozen, keyword-only dataclass that checks itself.

    If the class has a method ``check(self) -> None``, it is called last, for rules that concern several fields; it raises
    through :func:`refuse`.
    """

    def __post_init__(self: Any) -> None:
        for field in dataclasses.fields(self):
            value = field.metadata["kind"].parse(getattr(self, field.name), field.name)
            object.__setattr__(self, field.name, value)
        check: Callable[[], None] | None = getattr(self, "check", None)
        if check is not None:
            check()

    cls.__post_init__ = __post_init__  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


def refuse(key: str, problem: str, accepted: str) -> ConfigError:
    """Makes the error of a rule about several fields; the reader of the file adds the source and the way to ``key``."""
    return ConfigError("<python>", key, problem, accepted)


@dataclasses.dataclass(frozen=True)
class Record(Kind):
    """A nested :func:`section`: an instance, or a mapping from which one is made."""

    type: type[Any]

    @property
    def accepted(self) -> str:
        return f"a table with the keys {listing(names(self.type))}"

    def parse(self, value: object, key: str) -> Any:
        if isinstance(value, self.type):
            return value
        if not isinstance(value, Mapping):
            raise refuse(key, f"{shown(value)} is not a table", self.accepted)
        known = {field.name: field for field in dataclasses.fields(self.type)}
        for name in value:
            if name not in known:
                where = join(key, name if isinstance(name, str) else repr(name))
                raise refuse(where, "unknown key" + suggestion(str(name), _reachable(self.type)), listing(known))
        for name, field in known.items():
            if field.default is dataclasses.MISSING and name not in value:
                raise refuse(join(key, name), "missing", field.metadata["kind"].accepted)
        try:
            return self.type(**value)
        except ConfigError as error:
            raise refuse(join(key, error.key), error.problem, error.accepted) from None

    def dump(self, value: Any) -> Any:
        return dump(value)


def names(cls: type[Any]) -> list[str]:
    """Names of the fields of a section, in order."""
    return [field.name for field in dataclasses.fields(cls)]


def _reachable(cls: type[Any]) -> dict[str, str]:
    """Maps every key of ``cls`` and of its sections to how it is written from here, nearest first, for near misses."""
    found: dict[str, str] = {name: name for name in names(cls)}
    for field in dataclasses.fields(cls):
        kind = field.metadata["kind"]
        if isinstance(kind, Record):
            for name, path in _reachable(kind.type).items():
                found.setdefault(name, f"{field.name}.{path}")
    return found


def load(cls: type[T], mapping: object, source: str | Path) -> T:
    """Makes a ``cls`` out of a mapping of plain values.

    Raises:
        ConfigError: The first thing that is wrong, with ``source`` and the dotted key.
    """
    try:
        return Record(cls).parse(mapping, "")  # type: ignore[no-any-return]
    except ConfigError as error:
        raise ConfigError(source, error.key or "(top level)", error.problem, error.accepted) from None


def read_toml(path: str | Path) -> dict[str, Any]:
    """Reads a TOML file.

    Raises:
        ConfigError: The file cannot be read, or is not TOML in UTF-8.
    """
    try:
        return tomllib.loads(Path(path).read_bytes().decode("utf-8"))
    except OSError as error:
        raise ConfigError(path, "(file)", f"cannot be read: {error.strerror or error}", "a readable TOML file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(path, "(file)", f"byte {error.start} is not UTF-8", "a TOML file in UTF-8") from None
    except (ValueError, RecursionError) as error:  # ValueError: besides TOMLDecodeError, an integer too long to convert
        raise ConfigError(path, "(file)", f"is not TOML: {error or 'nested too deeply'}", "TOML 1.0") from None


def dump(value: Any) -> dict[str, Any]:
    """Turns a section into plain dicts, lists, strings and numbers, such as JSON and TOML know."""
    return {field.name: field.metadata["kind"].dump(getattr(value, field.name)) for field in dataclasses.fields(value)}


def digest(value: Any) -> str:
    """Returns 32 hex digits: the first half of the SHA-256 of the canonical JSON (keys sorted, no spaces) of :func:`dump`."""
    canonical = json.dumps(dump(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


def flatten(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Yields the dotted key and the value of every leaf of what :func:`dump` returns; lists of tables are walked too."""
    if isinstance(value, Mapping) and (value or not key):
        for name, inner in value.items():
            yield from flatten(inner, join(key, name))
    elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        for index, inner in enumerate(value):
            yield from flatten(inner, f"{key}[{index}]")
    else:
        yield key, value


def difference(left: Any, right: Any) -> list[str]:
    """Returns the dotted keys whose values differ, or which only one side has, in the order of the declaration."""
    one, two = dict(flatten(dump(left))), dict(flatten(dump(right)))
    return [key for key in {**one, **two} if key not in one or key not in two or one[key] != two[key]]


class Document:
    """Mixin for the sections that are whole files: reading, writing, comparing."""

    title: ClassVar[str] = ""
    """First line of the file that :meth:`to_toml` writes."""

    @classmethod
    def from_toml(cls, path: str | Path) -> Self:
        """Reads and checks a file.

        Raises:
            ConfigError: It cannot be read, is not TOML, or holds a wrong key, type or value.
        """
        return load(cls, read_toml(path), path)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any], source: str = "<dict>") -> Self:
        """Checks plain values, such as :meth:`to_dict` returns; ``source`` stands in the errors in place of a file.

        Raises:
            ConfigError: A wrong key, type or value.
        """
        return load(cls, mapping, source)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain dicts, lists, strings and numbers."""
        return dump(self)

    def to_toml(self, *, comments: bool = False) -> str:
        """Returns the text of a file that reads back equal; ``comments`` explains every key and what it accepts."""
        from dlcp.schema_toml import write

        return write(self, title=self.title, comments=comments)

    def digest(self) -> str:
        """Returns 32 hex digits that differ whenever any value differs, equal on every platform."""
        return digest(self)

    def difference(self, other: Self) -> list[str]:
        """Returns the dotted keys in which ``other`` differs."""
        return difference(self, other)


__all__ = [
    "Document",
    "Record",
    "difference",
    "digest",
    "dump",
    "flatten",
    "load",
    "names",
    "read_toml",
    "refuse",
    "required",
    "section",
    "setting",
]
