"""Reads topologies: what a file may say in short, written out.

Three tables are for people who write files; they leave no trace in the description:

* ``generate`` makes a regular network; what else the file lists is added to it.
* ``link_defaults`` holds for the listed links that do not say otherwise.
* ``override`` changes links, listed or generated, that two nodes have between them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from dlcp.errors import ConfigError
from dlcp.schema import names, refuse
from dlcp.schema_kinds import join, listing, shown, suggestion
from dlcp.topology.builders import Parts, shape
from dlcp.topology.description import Link, Topology
from dlcp.units import Table, spelled

T = TypeVar("T", bound=Topology)

_LISTS: Final = ("hosts", "switches", "links")
_ENDS: Final = ("a", "b")
_PER_LINK: Final = tuple(name for name in names(Link) if name not in (*_ENDS, "a_port", "b_port", "parallel"))
_ITEM: Final = re.compile(r"\b(hosts|switches|links)\[(\d+)\]([.\w\[\]]*)")


def read(cls: type[T], mapping: object, source: str) -> T:
    """Makes a topology of plain values.

    Raises:
        ConfigError: The first thing that is wrong, with ``source`` and the key as it stands in the file.
    """
    made = Parts((), (), ())
    try:
        if not isinstance(mapping, Mapping):
            raise refuse("", f"{shown(mapping)} is not a table", f"a table with the keys {listing(_known(cls))}")
        fields = dict(mapping)
        for name in fields:
            if name not in _known(cls):
                near = suggestion(str(name), {known: known for known in _known(cls)})
                raise refuse(str(name), f"unknown key{near}", listing(_known(cls)))
        _apply_defaults(fields)
        overrides = fields.pop("override", [])
        if "generate" in fields:
            generated = shape(fields.pop("generate"))
            fields.setdefault("name", generated.kind)
            made = generated.parts()  # from here on positions in lists are not those in the file
        for name in _LISTS:
            given, generated_ones = fields.get(name, []), getattr(made, name)
            if generated_ones and isinstance(given, list | tuple):  # anything else is refused where the list is checked
                fields[name] = [*generated_ones, *given]
        _apply_overrides(fields, overrides)
        result: T = Table(cls).parse(fields, "")
    except ConfigError as error:
        key, problem = _as_written(error.key, error.problem, made)
        raise ConfigError(source, key or "(top level)", problem, error.accepted) from None
    return result


def _known(cls: type[Any]) -> tuple[str, ...]:
    return (*names(cls), "generate", "link_defaults", "override")


def _as_written(key: str, problem: str, made: Parts) -> tuple[str, str]:
    """Turns the position in a whole list into that in the file, where only the part that was not generated stands."""

    def in_file(match: re.Match[str]) -> str:
        place, index = match[1], int(match[2]) - len(getattr(made, match[1]))
        return f"{place}[{index}]{match[3]}" if index >= 0 else f"generate ({place}[{int(match[2])}]{match[3]})"

    return _ITEM.sub(in_file, key), _ITEM.sub(in_file, problem)


def _apply_defaults(fields: dict[str, Any]) -> None:
    key = "link_defaults"
    given = fields.pop(key, {})
    defaults = _per_link(given, key, _PER_LINK)
    links = fields.get("links")
    if defaults and isinstance(links, list | tuple):
        fields["links"] = [
            {**defaults, **spelled(link, Link, f"links[{index}]")} if isinstance(link, Mapping) else link
            for index, link in enumerate(links)
        ]


def _apply_overrides(fields: dict[str, Any], overrides: object) -> None:
    if not isinstance(overrides, list | tuple):
        raise refuse("override", f"{shown(overrides)} is not a list", "a list of tables, each with a, b and what to change")
    if not overrides or not isinstance(fields.get("links", []), list | tuple):
        return
    links: list[Link] = [Table(Link).parse(link, f"links[{index}]") for index, link in enumerate(fields.get("links", []))]
    for index, override in enumerate(overrides):
        key = f"override[{index}]"
        changes = _per_link(override, key, (*_ENDS, *_PER_LINK))
        for end in _ENDS:
            if end not in changes:
                raise refuse(f"{key}.{end}", "missing", "the name of a node")
        pair = {changes.pop(end) for end in _ENDS}
        found = [position for position, link in enumerate(links) if {link.a, link.b} == pair]
        if not found:
            raise refuse(key, f"no link joins {' and '.join(sorted(map(str, pair)))}", "two nodes that a link joins")
        for position in found:
            links[position] = dataclasses.replace(links[position], **changes)
    fields["links"] = links


def _per_link(value: object, key: str, known: tuple[str, ...]) -> dict[str, Any]:
    """Checks a table that says something about links."""
    if not isinstance(value, Mapping):
        raise refuse(key, f"{shown(value)} is not a table", f"a table with keys out of {listing(known)}")
    kinds: dict[str, Callable[[object, str], Any]] = {
        field.name: field.metadata["kind"].parse for field in dataclasses.fields(Link)
    }
    result = {}
    for name, given in spelled(value, Link, key).items():
        if name not in known:
            raise refuse(
                join(key, str(name)), f"unknown key{suggestion(str(name), {word: word for word in known})}", listing(known)
            )
        result[name] = kinds[name](given, join(key, name))
    return result


__all__ = ["read"]
