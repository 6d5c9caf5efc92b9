"""Joins a P4Info to a program: both meet by name, and must agree.

A P4Info that names a table, action, profile, counter, meter, register, digest or value set that the program lacks, or gives one
another key, other parameters, another size or another kind, is refused when the pipeline is set: later there is nothing to go
wrong.  The program may have more than the P4Info (what the P4 program hides from the control plane).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from finsy.proto import p4i

from softswitch.program.model import ActionModel, ControlModel, DigestModel, MatchKind, TableModel
from softswitch.server.codes import Refusal, invalid
from softswitch.server.p4data import codec
from softswitch.server.schema import (
    ActionSchema,
    Choice,
    CounterSchema,
    DigestSchema,
    FieldSchema,
    HeaderField,
    HeaderSchema,
    MeterSchema,
    MeterType,
    ProfileSchema,
    RegisterSchema,
    Schema,
    Scope,
    TableSchema,
    ValueSetSchema,
)

_KINDS: dict[int, MatchKind] = {
    p4i.MatchField.EXACT: "exact",
    p4i.MatchField.LPM: "lpm",
    p4i.MatchField.TERNARY: "ternary",
    p4i.MatchField.RANGE: "range",
    p4i.MatchField.OPTIONAL: "optional",
}
_SCOPES: dict[int, Scope] = {
    p4i.ActionRef.TABLE_AND_DEFAULT: "both",
    p4i.ActionRef.TABLE_ONLY: "table",
    p4i.ActionRef.DEFAULT_ONLY: "default",
}
_METERS: dict[int, MeterType] = {
    p4i.MeterSpec.TWO_RATE_THREE_COLOR: "trTCM",
    p4i.MeterSpec.SINGLE_RATE_THREE_COLOR: "srTCM",
    p4i.MeterSpec.SINGLE_RATE_TWO_COLOR: "two-colour",
}


def bind(info: p4i.P4Info, control: ControlModel, device_config: bytes) -> Schema:
    """Returns the schema of a program.

    Args:
        info: As the client sent it.
        control: What the program declares.
        device_config: The program's BMv2 JSON, for the layout of its controller headers.

    Raises:
        Refusal: INVALID_ARGUMENT, with the object on which the two differ.
    """
    return _Binder(info, control, device_config).schema()


def _mismatch(what: str, problem: str) -> Refusal:
    return invalid(f"P4Info does not match the program: {what}: {problem}")


class _Binder:
    def __init__(self, info: p4i.P4Info, control: ControlModel, device_config: bytes) -> None:
        self.info = info
        self.control = control
        self.device_config = device_config
        self.actions: dict[int, p4i.Action] = {}
        self.profiles: dict[int, ProfileSchema] = {}
        self.direct_counters = {item.preamble.id: item for item in info.direct_counters}
        self.direct_meters = {item.preamble.id: item for item in info.direct_meters}

    def schema(self) -> Schema:
        info = self.info
        self.check_ids()
        self.actions = {action.preamble.id: action for action in info.actions}
        # p4c leaves an action profile that no table has in the P4Info, but not in the program.
        implementations = {table.implementation_id for table in info.tables}
        profiles = [profile for profile in info.action_profiles if profile.preamble.id in implementations]
        self.profiles = {profile.preamble.id: self.profile(profile) for profile in profiles}
        direct = {item.preamble.id: item.direct_table_id for item in (*info.direct_counters, *info.direct_meters)}
        headers = {item.preamble.name: item for item in info.controller_packet_metadata}
        return Schema(
            tables={table.preamble.id: self.table(table) for table in info.tables},
            profiles=self.profiles,
            counters={item.preamble.id: self.counter(item) for item in info.counters},
            meters={item.preamble.id: self.meter(item) for item in info.meters},
            registers={item.preamble.id: self.register(item) for item in info.registers},
            digests={item.preamble.id: self.digest(item) for item in info.digests},
            value_sets={item.preamble.id: self.value_set(item) for item in info.value_sets},
            direct=direct,
            packet_in=self.header(headers.get("packet_in")),
            packet_out=self.header(headers.get("packet_out")),
        )

    def check_ids(self) -> None:
        """Ids are unique in the whole P4Info and not 0 (0 means "all" in a read)."""
        info = self.info
        seen: dict[int, str] = {}
        objects: Sequence[Iterable[Any]] = (
            info.tables,
            info.actions,
            info.action_profiles,
            info.counters,
            info.direct_counters,
            info.meters,
            info.direct_meters,
            info.registers,
            info.digests,
            info.value_sets,
        )
        for item in (item for group in objects for item in group):
            preamble = item.preamble
            if preamble.id == 0:
                raise invalid(f"P4Info: {preamble.name[:100]!r} has no id")
            if preamble.id in seen:
                raise invalid(f"P4Info: {seen[preamble.id]!r} and {preamble.name[:100]!r} have the same id {preamble.id:#x}")
            seen[preamble.id] = preamble.name[:100]
        if info.externs:
            raise invalid(f"P4Info: extern {info.externs[0].extern_type_name[:100]!r} is not supported")

    def field(self, field: p4i.MatchField, position: int, where: str) -> FieldSchema:
        kind = _KINDS.get(field.match_type)
        if kind is None:
            raise invalid(
                f"P4Info: {where}: match type {field.other_match_type or field.match_type} of {field.name} is not supported"
            )
        if field.id == 0:
            raise invalid(f"P4Info: {where}: match field {field.name} has no id")
        return FieldSchema(field.id, field.name, position, kind, field.bitwidth)

    def key(self, table: p4i.Table, model: TableModel) -> tuple[FieldSchema, ...]:
        where = f"table {model.name}"
        if len(table.match_fields) != len(model.keys):
            raise _mismatch(where, f"{len(table.match_fields)} match fields, the program has {len(model.keys)}")
        result = []
        for position, (declared, key) in enumerate(zip(table.match_fields, model.keys, strict=True)):
            field = self.field(declared, position, where)
            masked = field.kind == "optional" and key.kind == "ternary"
            if field.kind != key.kind and not masked:
                raise _mismatch(where, f"match field {field.name} is {field.kind}, the program has {key.kind}")
            if field.width != key.width and not self.translated(declared.type_name.name, where):
                raise _mismatch(where, f"match field {field.name} has {field.width} bits, the program has {key.width}")
            result.append(FieldSchema(field.id, field.name, position, field.kind, key.width, masked))
        if len({field.id for field in result}) != len(result):
            raise invalid(f"P4Info: {where}: two match fields have the same id")
        return tuple(result)

    def translated(self, type_name: str, where: str) -> bool:
        """Tells whether a type's width on the wire may differ (@p4runtime_translation); the numbers are the same on both."""
        spec = self.info.type_info.new_types.get(type_name)
        if spec is None or spec.WhichOneof("representation") != "translated_type":
            return False
        if spec.translated_type.WhichOneof("sdn_type") != "sdn_bitwidth":
            raise invalid(f"P4Info: {where}: translation of {type_name} to strings is not supported")
        return True

    def choices(self, ids: Iterable[tuple[int, Scope]], model: TableModel) -> dict[int, Choice]:
        where = f"table {model.name}"
        positions = {action.name: index for index, action in enumerate(model.actions)}
        result = {}
        for number, scope in ids:
            action = self.actions.get(number)
            if action is None:
                raise invalid(f"P4Info: {where}: there is no action with id {number:#x}")
            name = action.preamble.name
            if name not in positions:
                raise _mismatch(where, f"the program's table has no action {name}")
            index = positions[name]
            result[number] = Choice(self.action(action, model.actions[index]), index, scope)
        return result

    def action(self, action: p4i.Action, model: ActionModel) -> ActionSchema:
        where = f"action {model.name}"
        if len(action.params) != len(model.parameters):
            raise _mismatch(where, f"{len(action.params)} parameters, the program has {len(model.parameters)}")
        parameters = []
        for declared, parameter in zip(action.params, model.parameters, strict=True):
            if declared.name != parameter.name:
                raise _mismatch(where, f"parameter {declared.name!r} is called {parameter.name!r} in the program")
            if declared.bitwidth != parameter.width and not self.translated(declared.type_name.name, where):
                raise _mismatch(
                    where, f"parameter {declared.name} has {declared.bitwidth} bits, the program has {parameter.width}"
                )
            parameters.append((declared.id, declared.name, parameter.width))
        positions = {number: index for index, (number, _, _) in enumerate(parameters)}
        if len(positions) != len(parameters) or 0 in positions:
            raise invalid(f"P4Info: {where}: parameters without an id of their own")
        return ActionSchema(action.preamble.id, model.name, tuple(parameters), positions)

    def refs(self, table: p4i.Table) -> list[tuple[int, Scope]]:
        return [(ref.id, _SCOPES[ref.scope] if ref.scope in _SCOPES else "both") for ref in table.action_refs]

    def table(self, table: p4i.Table) -> TableSchema:
        name = table.preamble.name
        where = f"table {name}"
        model = self.control.tables.get(name)
        if model is None:
            raise _mismatch(where, "there is no such table")
        fields = self.key(table, model)
        choices = self.choices(self.refs(table), model)
        profile = self.profiles.get(table.implementation_id)
        if table.implementation_id and profile is None:
            raise invalid(f"P4Info: {where}: there is no action profile with id {table.implementation_id:#x}")
        if (profile.name if profile else None) != model.profile:
            raise _mismatch(where, f"implementation {profile.name if profile else None}, the program has {model.profile}")
        counter = False
        meter: MeterType | None = None
        for number in table.direct_resource_ids:
            if number in self.direct_counters:
                counter = True
            elif number in self.direct_meters:
                meter = _METERS.get(self.direct_meters[number].spec.type, "trTCM")
                if self.direct_meters[number].preamble.name != model.direct_meter:
                    raise _mismatch(
                        where, f"direct meter {self.direct_meters[number].preamble.name}, the program has {model.direct_meter}"
                    )
            else:
                raise invalid(f"P4Info: {where}: there is no direct resource with id {number:#x}")
        if counter and not model.with_counters:
            raise _mismatch(where, "direct counters, the program has none")
        timeouts = table.idle_timeout_behavior == p4i.Table.NOTIFY_CONTROL
        if timeouts and not model.support_timeout:
            raise _mismatch(where, "idle timeouts, the program has none")
        return TableSchema(
            id=table.preamble.id,
            name=name,
            fields=fields,
            by_id={field.id: field for field in fields},
            choices=choices,
            by_index={choice.index: choice.action for choice in choices.values()},
            wildcard=tuple(field.any for field in fields),
            exact=sum(field.kind == "exact" for field in fields),
            prioritized=any(field.kind in ("ternary", "range", "optional") for field in fields),
            const=table.is_const_table,
            const_default=bool(table.const_default_action_id),
            profile=profile,
            counter=counter,
            meter=meter,
            timeouts=timeouts,
        )

    def profile(self, profile: p4i.ActionProfile) -> ProfileSchema:
        name = profile.preamble.name
        where = f"action profile {name}"
        model = self.control.profiles.get(name)
        if model is None:
            raise _mismatch(where, "there is no such action profile")
        if profile.with_selector != (model.algorithm is not None):
            raise _mismatch(where, "only one of the two has a selector")
        tables = [table for table in self.info.tables if table.implementation_id == profile.preamble.id]
        choices: dict[int, Choice] = {}
        if tables:
            bound = self.control.tables.get(tables[0].preamble.name)
            if bound is None:
                raise _mismatch(f"table {tables[0].preamble.name}", "there is no such table")
            choices = self.choices(((number, scope) for number, scope in self.refs(tables[0]) if scope != "default"), bound)
        by_members = profile.WhichOneof("selector_size_semantics") == "sum_of_members"
        return ProfileSchema(
            id=profile.preamble.id,
            name=name,
            selector=profile.with_selector,
            table_ids=tuple(table.preamble.id for table in tables),
            choices=choices,
            by_index={choice.index: choice.action for choice in choices.values()},
            max_group_size=profile.max_group_size,
            by_members=by_members,
            max_member_weight=profile.sum_of_members.max_member_weight if by_members else 0,
            weights_disallowed=profile.weights_disallowed,
        )

    def size(self, kind: str, name: str, declared: int, models: dict[str, Any]) -> int:
        model = models.get(name)
        if model is None:
            raise _mismatch(f"{kind} {name}", f"there is no such {kind}")
        if model.size != declared:
            raise _mismatch(f"{kind} {name}", f"size {declared}, the program has {model.size}")
        return declared

    def counter(self, counter: p4i.Counter) -> CounterSchema:
        name = counter.preamble.name
        return CounterSchema(counter.preamble.id, name, self.size("counter", name, counter.size, self.control.counters))

    def meter(self, meter: p4i.Meter) -> MeterSchema:
        name = meter.preamble.name
        size = self.size("meter", name, meter.size, self.control.meters)
        return MeterSchema(meter.preamble.id, name, size, _METERS.get(meter.spec.type, "trTCM"))

    def register(self, register: p4i.Register) -> RegisterSchema:
        name = register.preamble.name
        size = self.size("register", name, register.size, self.control.registers)
        cell = codec(register.type_spec, self.info)
        width = self.control.registers[name].width
        if cell.widths != (width,):
            raise _mismatch(f"register {name}", f"cells of {sum(cell.widths)} bits, the program has {width}")
        return RegisterSchema(register.preamble.id, name, size, cell)

    def digest(self, digest: p4i.Digest) -> DigestSchema:
        name = digest.preamble.name
        data = codec(digest.type_spec, self.info)
        model = self.control.digests.get(name) or self.nameless_digest(digest, data.widths)
        if model is None:
            raise _mismatch(f"digest {name}", "there is no such digest")
        if len(data.widths) != len(model.fields):
            raise _mismatch(f"digest {name}", f"{len(data.widths)} fields, the program has {len(model.fields)}")
        return DigestSchema(digest.preamble.id, model.name, data)

    def nameless_digest(self, digest: p4i.Digest, widths: tuple[int, ...]) -> DigestModel | None:
        """Returns the one digest of the program that can be meant by one whose data is a tuple.

        p4c makes up a name for it, another one in the P4Info (``digest_0``) than in the program (``tuple_0``).
        """
        named = {item.preamble.name for item in self.info.digests}
        models = [
            model
            for model in self.control.digests.values()
            if model.name not in named and tuple(width for _, width in model.fields) == widths
        ]
        return models[0] if len(models) == 1 and digest.type_spec.HasField("tuple") else None

    def value_set(self, item: p4i.ValueSet) -> ValueSetSchema:
        name = item.preamble.name
        size = self.size("value set", name, item.size, self.control.value_sets)
        fields = tuple(self.field(field, position, f"value set {name}") for position, field in enumerate(item.match))
        width = self.control.value_sets[name].width
        if sum(field.width for field in fields) != width:
            raise _mismatch(f"value set {name}", f"{sum(field.width for field in fields)} bits, the program has {width}")
        return ValueSetSchema(item.preamble.id, name, size, fields)

    def header(self, header: p4i.ControllerPacketMetadata | None) -> HeaderSchema | None:
        """Places the fields of a controller header.

        The P4Info lists them by name and width.  Where a width is a translated one, or padding is not listed, only the program
        knows the layout; it is taken from the one header type that has all the names in this order.
        """
        if header is None:
            return None
        names = [field.name for field in header.metadata]
        layouts = [layout for layout in self.layouts() if _holds([name for name, _ in layout], names)]
        if len({tuple(layout) for layout in layouts}) == 1:
            layout = layouts[0]
        else:
            layout = [(field.name, field.bitwidth) for field in header.metadata]
        ids = {field.name: field.id for field in header.metadata}
        fields = []
        offset = 0
        for name, width in layout:
            if name in ids:
                fields.append(HeaderField(ids[name], name, width, offset))
            offset += width
        return HeaderSchema(tuple(fields), (offset + 7) // 8)

    def layouts(self) -> list[list[tuple[str, int]]]:
        """Fields (name, bits) of each header type in the JSON that has fixed widths."""
        result = []
        for header in json.loads(self.device_config).get("header_types", ()):
            fields = [(field[0], field[1]) for field in header["fields"]]
            if all(isinstance(width, int) for _, width in fields):
                result.append(fields)
        return result


def _holds(names: list[str], wanted: list[str]) -> bool:
    """Tells whether ``wanted`` is a subsequence of ``names``, with nothing but padding in between."""
    rest = iter(wanted)
    expected = next(rest, None)
    for name in names:
        if name == expected:
            expected = next(rest, None)
        elif "pad" not in name.lower():
            return False
    return expected is None


__all__ = ["bind"]
