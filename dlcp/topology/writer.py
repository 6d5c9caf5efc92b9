"""Writes topologies: one node or link a line, what is the default left out."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator
from typing import Any, Final

from dlcp.schema import names
from dlcp.schema_toml import scalar
from dlcp.topology.description import Host, Link, Switch, Topology

_WIDTH: Final = 100
_LISTS: Final = (("hosts", Host), ("switches", Switch), ("links", Link))


def write(topology: Topology, *, comments: bool) -> str:
    """Returns the text; it reads back to an equal topology."""
    lines = [f"# {Topology.title}", ""] if comments else []
    for field in dataclasses.fields(Topology):
        if field.name in dict(_LISTS):
            continue
        if comments:
            lines += _comment(field.metadata["doc"], field.metadata["kind"].accepted)
        lines.append(f"{field.name} = {scalar(field.metadata['kind'].dump(getattr(topology, field.name)))}")
    for name, section in _LISTS:
        items = getattr(topology, name)
        if not items and not comments:
            continue
        lines.append("")
        if comments:
            lines += _explained(name, section)
        lines += [f"{name} = [", *(f"  {{ {', '.join(_entries(item))} }}," for item in items), "]"]
    return "\n".join(lines) + "\n"


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


__all__ = ["write"]
