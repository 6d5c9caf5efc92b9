"""Descriptions that consist of long lists: written with one item a line, what is the default left out; quantities in any unit."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

from dlcp.errors import ConfigError
from dlcp.schema import Document, Record, names, read_toml
from dlcp.schema_kinds import Items
from dlcp.schema_toml import scalar
from dlcp.units import Table

_WIDTH: Final = 100


class ListDocument(Document):
    """Mixin like :class:`dlcp.schema.Document`, for whole files that are mostly lists of tables."""

    @classmethod
    def from_toml(cls, path: str | Path) -> Self:
        """Reads and checks a file.

        Raises:
            ConfigError: It cannot be read, is not TOML, or holds a wrong key, type or value.
        """
        return cls.from_dict(read_toml(path), str(path))

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any], source: str = "<dict>") -> Self:
        """Checks plain values like those of a file; ``source`` stands in the errors in place of a file.

        Raises:
            ConfigError: A wrong key, type or value.
        """
        try:
            made: Self = Table(cls).parse(mapping, "")
        except ConfigError as error:
            raise ConfigError(source, error.key or "(top level)", error.problem, error.accepted) from None
        return made

    def to_toml(self, *, comments: bool = False) -> str:
        """Returns the text of a file that reads back equal: one item a line, defaults of items left out."""
        return "\n".join(_document(self, self.title, comments)) + "\n"


def _document(document: Any, title: str, comments: bool) -> Iterator[str]:
    if comments:
        yield from (f"# {title}", "")
    lists = []
    for field in dataclasses.fields(document):
        kind = field.metadata["kind"]
        if isinstance(kind, Items) and isinstance(kind.kind, Record):
            lists.append((field, kind.kind.type))
            continue
        if comments:
            yield from _comment(field.metadata["doc"], kind.accepted)
        yield f"{field.name} = {scalar(kind.dump(getattr(document, field.name)))}"
    for field, section in lists:
        items = getattr(document, field.name)
        if not items and not comments:
            continue
        yield ""
        if comments:
            yield from _explained(field.name, section)
        yield f"{field.name} = ["
        for item in items:
            yield f"  {{ {', '.join(_entries(item))} }},"
        yield "]"


def _entries(item: Any) -> Iterator[str]:
    for field in dataclasses.fields(item):
        value = getattr(item, field.name)
        if value != field.default:
            yield f"{field.name} = {scalar(field.metadata['kind'].dump(value))}"


def _explained(name: str, section: type[Any]) -> Iterator[str]:
    yield f"# {name}: {', '.join(names(section))}."
    for field in dataclasses.fields(section):
        default = ""
        if field.default is not dataclasses.MISSING:
            default = f" Default: {scalar(field.metadata['kind'].dump(field.default))}."
        yield from _comment(f"{field.name}: {field.metadata['doc']}", field.metadata["kind"].accepted, default)


def _comment(doc: str, accepted: str, default: str = "") -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(f"{doc} Accepted: {accepted}.{default}", _WIDTH)]


__all__ = ["ListDocument"]
