"""Reads match-action tables and their const entries."""

from __future__ import annotations

from typing import cast

from softswitch.program.expressions import ExpressionReader
from softswitch.program.ir import VALID, Action
from softswitch.program.model import ActionModel, ConstEntry, KeyField, MatchKind, TableKind, TableModel
from softswitch.program.source import Source

MATCH_KINDS = ("exact", "lpm", "ternary", "range")
TABLE_KINDS = ("simple", "indirect", "indirect_ws")


class TableReader:
    """Reads tables.

    Args:
        expressions: Knows the headers.
        actions: Actions of the program by id; ``models`` are what the control plane sees of them.
    """

    def __init__(self, expressions: ExpressionReader, actions: dict[int, Action], models: dict[int, ActionModel]) -> None:
        self.expressions = expressions
        self.actions = actions
        self.models = models

    def read(self, source: Source) -> TableModel:
        """Reads a table.

        Raises:
            ProgramError: Malformed, or a field or action that is not there.
            UnsupportedConstruct: A match type or table type that this target lacks.
        """
        kind = source["type"].text()
        if kind not in TABLE_KINDS:
            source["type"].unsupported(f"table of type '{kind}'")
        keys = tuple(self._key(item) for item in source.items("key"))
        if sum(key.kind == "lpm" for key in keys) > 1:
            source["key"].fail("a table has at most one lpm field")
        name = source["name"].text()
        actions = self._actions(source)
        entries = tuple(self._entry(item, keys, actions) for item in source.items("entries"))
        default, data, const = self._default(source, actions)
        size = source["max_size"].integer() if source.has("max_size") else len(entries)
        return TableModel(
            name=name,
            id=source["id"].integer(),
            kind=cast(TableKind, kind),
            match=self._match(source, keys),
            keys=keys,
            actions=tuple(self.models[action] for action in actions),
            size=len(entries) if entries else size,
            profile=None if kind == "simple" else source["action_profile"].text(),
            with_counters=source.get("with_counters").boolean(False),
            direct_meter=source.get("direct_meters").optional_text(),
            support_timeout=source.get("support_timeout").boolean(False),
            default=default,
            default_data=data,
            default_const=const,
            const_entries=entries,
            hidden=not keys and name.startswith("tbl_"),
        )

    def _match(self, source: Source, keys: tuple[KeyField, ...]) -> MatchKind:
        kind = source["match_type"].text()
        if kind not in MATCH_KINDS:
            source["match_type"].unsupported(f"match type '{kind}'")
        for wider in ("range", "ternary", "lpm"):
            if any(key.kind == wider for key in keys):
                if kind not in MATCH_KINDS[MATCH_KINDS.index(wider) :]:
                    source["match_type"].fail(f"a table with a {wider} field has match type {wider}, not {kind}")
                break
        return cast(MatchKind, kind)

    def _key(self, source: Source) -> KeyField:
        kind = source["match_type"].text()
        target = source["target"]
        if kind == "valid":
            header = self.expressions.header(target)
            name = source["name"].text() if source.has("name") else header
            return KeyField(name, "exact", 1, (header, VALID))
        if kind not in MATCH_KINDS:
            source["match_type"].unsupported(f"match type '{kind}'")
        if isinstance(target.value, dict):
            target.unsupported("table key that is computed")
        ref = self.expressions.field(target)
        width = 1
        if ref.field != VALID:
            field = self.expressions.names.headers[ref.header].type.field(ref.field)
            if field.variable:
                target.unsupported("variable-length field in a table's key")
            width = field.width
        mask = source["mask"].hexadecimal() if source.has("mask") else None
        if mask is not None:
            if mask < 0 or mask.bit_length() > (width + 7) // 8 * 8:
                source["mask"].fail(f"wider than the field's {width} bits")
            mask &= (1 << width) - 1
        name = source["name"].text() if source.has("name") else f"{ref.header}.{ref.field}"
        return KeyField(name, cast(MatchKind, kind), width, (ref.header, ref.field), mask)

    def _actions(self, source: Source) -> list[int]:
        if source.has("action_ids"):
            ids = []
            for item in source["action_ids"].array():
                if item.integer() not in self.models:
                    item.fail(f"there is no action with id {item.integer()}")
                ids.append(item.integer())
            return ids
        ids = []
        for item in source["actions"].array():
            found = [identity for identity, model in self.models.items() if model.name == item.text()]
            if len(found) != 1:
                item.fail(f"there are {len(found)} actions named '{item.text()}'")
            ids.append(found[0])
        return ids

    def action_call(self, source: Source, actions: list[int]) -> tuple[int, tuple[int, ...]]:
        """Index of an action in the table's list, and its arguments."""
        identity = source["action_id"].integer()
        if identity not in actions:
            source["action_id"].fail(f"the table has no action with id {identity}")
        widths = self.actions[identity].widths
        items = source["action_data"].array(len(widths))
        data = []
        for item, width in zip(items, widths, strict=True):
            value = item.hexadecimal()
            if value < 0:
                value += 1 << width
            if not 0 <= value < 1 << max(width, 1):
                item.fail(f"wider than the parameter's {width} bits")
            data.append(value)
        return actions.index(identity), tuple(data)

    def _default(self, source: Source, actions: list[int]) -> tuple[int | None, tuple[int, ...], bool]:
        if not source.has("default_entry"):
            return None, (), False
        entry = source["default_entry"]
        index, data = self.action_call(entry, actions)
        const = entry.get("action_const").boolean(False) or entry.get("action_entry_const").boolean(False)
        return index, data, const

    def _entry(self, source: Source, keys: tuple[KeyField, ...], actions: list[int]) -> ConstEntry:
        match = []
        for item, key in zip(source["match_key"].array(len(keys)), keys, strict=True):
            match.append(self._match_item(item, key))
        index, data = self.action_call(source["action_entry"], actions)
        priority = source["priority"].integer(-(2**31), 2**32) if source.has("priority") else 0
        return ConstEntry(tuple(match), priority, index, data)

    def _match_item(self, source: Source, key: KeyField) -> object:
        kind = source["match_type"].text()
        if kind == "valid":
            return int(source["key"].boolean())
        if kind != key.kind:
            source["match_type"].fail(f"expected {key.kind}, not {kind}")
        match kind:
            case "exact":
                return self._value(source["key"], key)
            case "lpm":
                length = source["prefix_length"].integer(0, key.width)
                mask = ((1 << length) - 1) << (key.width - length)
                return (self._value(source["key"], key) & mask, length)
            case "ternary":
                mask = self._value(source["mask"], key)
                return (self._value(source["key"], key) & mask, mask)
        low, high = self._value(source["start"], key), self._value(source["end"], key)
        if low > high:
            source.fail("a range ends before it starts")
        return (low, high)

    def _value(self, source: Source, key: KeyField) -> int:
        value = source.hexadecimal()
        if value < 0:
            value += 1 << key.width
        if not 0 <= value < 1 << key.width:
            source.fail(f"wider than the key's {key.width} bits")
        return value
