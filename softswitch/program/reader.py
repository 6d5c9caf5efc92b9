"""Reads a whole program from BMv2 JSON, versions 2.x.

Strict where BMv2 itself would end the process or behave at random: every reference is checked, so that what was read can be
compiled without further questions.
"""

from __future__ import annotations

from softswitch.errors import ProgramError, UnsupportedConstruct
from softswitch.program.actions import ActionReader
from softswitch.program.expressions import ExpressionReader
from softswitch.program.headers import Names, read_headers
from softswitch.program.ir import Action, Control, Deparser, FieldRef, Program
from softswitch.program.model import ActionModel, ControlModel, Parameter, ProfileModel, TableModel
from softswitch.program.objects import (
    read_calculations,
    read_checksums,
    read_counters,
    read_digests,
    read_errors,
    read_field_lists,
    read_meters,
    read_registers,
    read_value_sets,
)
from softswitch.program.parsers import ParserReader
from softswitch.program.pipelines import read_pipeline
from softswitch.program.source import Source, parse
from softswitch.program.tables import TableReader

ALGORITHMS = frozenset(
    "xxh64 crc16 crc32 crcCCITT cksum16 csum16 toeplitz identity round_robin round_robin_consistent xor16 xor32 crc8_custom "
    "crc16_custom crc32_custom crc64_custom hash_ex bmv2_hash".split()
)
"""Hash algorithms that simple_switch registers."""

REQUIRED = ("ingress_port", "packet_length", "instance_type", "egress_spec", "egress_port")


def read(text: str | bytes) -> Program:
    """Reads BMv2 JSON.

    Raises:
        ProgramError: No such JSON, or one that contradicts itself.
        UnsupportedConstruct: It needs what this target lacks.
    """
    root = parse(text)
    _check_version(root)
    names = read_headers(root)
    expressions = ExpressionReader(names)
    registers = read_registers(root)
    names.widths = {name: model.width for name, model in registers.items()}
    counters = read_counters(root)
    meters = read_meters(root, expressions)
    calculations = read_calculations(root, expressions, ALGORITHMS)
    names.arrays = {
        "register_array": set(registers),
        "counter_array": {name for name, model in counters.items() if model.table is None},
        "meter_array": {name for name, model in meters.items() if model.table is None},
        "calculation": set(calculations),
    }
    value_sets = read_value_sets(root)
    for extern in root.items("extern_instances"):
        extern.unsupported(f"extern of type '{extern['type'].text()}'")
    action_reader = ActionReader(expressions)
    actions, models = _actions(root, action_reader)
    parsers = {item["name"].text(): item for item in root.items("parsers")}
    deparsers = {item["name"].text(): item for item in root.items("deparsers")}
    pipelines = {item["name"].text(): item for item in root.items("pipelines")}
    for found, wanted in ((parsers, "parser"), (deparsers, "deparser"), (pipelines, "ingress"), (pipelines, "egress")):
        if wanted not in found:
            root.fail(f"there is no {'parser' if found is parsers else 'part'} named '{wanted}', which v1model has")
    tables: dict[str, TableModel] = {}
    profiles: dict[str, ProfileModel] = {}
    controls: dict[str, Control] = {}
    table_reader = TableReader(expressions, actions, models)
    for name in ("ingress", "egress"):
        _profiles(pipelines[name], expressions, profiles)
        for item in pipelines[name].items("tables"):
            table = table_reader.read(item)
            _check_table(item, table, profiles, tables, set(meters))
            tables[table.name] = table
        controls[name] = read_pipeline(pipelines[name], expressions, actions, tables)
    digest_models, digests = read_digests(root, expressions)
    control = ControlModel(tables, models, profiles, counters, meters, registers, digest_models, value_sets)
    return Program(
        control=control,
        headers=names.headers,
        stacks=names.stacks,
        unions=names.unions,
        errors=read_errors(root),
        parser=ParserReader(names, action_reader, {name: model.width for name, model in value_sets.items()}).read(
            parsers["parser"]
        ),
        actions=actions,
        ingress=controls["ingress"],
        egress=controls["egress"],
        deparser=_deparser(deparsers["deparser"], expressions, action_reader),
        calculations=calculations,
        checksums=read_checksums(root, expressions, calculations),
        digests=digests,
        field_lists=read_field_lists(root, expressions),
        aliases=_aliases(root, names, expressions),
    )


def _check_version(root: Source) -> None:
    if root.has("__meta__") and root["__meta__"].has("version"):
        major, minor = root["__meta__"]["version"].array(2)
        if major.integer() != 2:
            raise UnsupportedConstruct(major.where, f"version {major.integer()}.{minor.integer()} of the format; 2.x is known")


def _actions(root: Source, reader: ActionReader) -> tuple[dict[int, Action], dict[int, ActionModel]]:
    actions: dict[int, Action] = {}
    models: dict[int, ActionModel] = {}
    for item in root.items("actions"):
        action = reader.action(item)
        if action.id in actions:
            item["id"].fail(f"duplicate id {action.id}")
        parameters = [
            Parameter(parameter["name"].text(), width)
            for parameter, width in zip(item.items("runtime_data"), action.widths, strict=True)
        ]
        actions[action.id] = action
        models[action.id] = ActionModel(action.name, action.id, tuple(parameters))
    return actions, models


def _profiles(pipeline: Source, expressions: ExpressionReader, profiles: dict[str, ProfileModel]) -> None:
    for item in pipeline.items("action_profiles"):
        name = item["name"].text()
        algorithm, inputs = None, []
        if item.has("selector"):
            selector = item["selector"]
            algorithm = selector["algo"].text()
            if algorithm not in ALGORITHMS:
                selector["algo"].unsupported(f"hash algorithm '{algorithm}'")
            for part in selector["input"].array():
                if part["type"].text() != "field":
                    part["type"].unsupported(f"input of type '{part['type'].text()}' to an action selector")
                ref = expressions.field(part["value"])
                inputs.append((ref.header, ref.field))
        size = item["max_size"].integer() if item.has("max_size") else 1024
        profiles[name] = ProfileModel(name, item["id"].integer(), size, algorithm, tuple(inputs))


def _check_table(
    source: Source, table: TableModel, profiles: dict[str, ProfileModel], tables: dict[str, TableModel], meters: set[str]
) -> None:
    if table.name in tables:
        source.fail(f"duplicate table '{table.name}'")
    if table.profile is not None:
        if table.profile not in profiles:
            source["action_profile"].fail(f"there is no action profile '{table.profile}'")
        if (profiles[table.profile].algorithm is not None) != (table.kind == "indirect_ws"):
            source["type"].fail(f"type {table.kind} does not fit action profile '{table.profile}'")
        if table.const_entries:
            source["entries"].fail("only a simple table can have const entries")
    if table.direct_meter is not None and table.direct_meter not in meters:
        source["direct_meters"].fail(f"there is no meter '{table.direct_meter}'")


def _deparser(source: Source, expressions: ExpressionReader, actions: ActionReader) -> Deparser:
    order = tuple(expressions.header(item) for item in source["order"].array())
    primitives = []
    for item in source.items("primitives"):
        if item["op"].value == "set":
            item["op"].unsupported("assignment in a deparser")
        primitives.append(actions.primitive(item))
    return Deparser(order, tuple(primitives))


def _aliases(root: Source, names: Names, expressions: ExpressionReader) -> dict[str, FieldRef]:
    aliases = {}
    for item in root.items("field_aliases"):
        pair = item.array(2)
        aliases[pair[0].text()] = expressions.field(pair[1])
    for field in REQUIRED:
        full = f"standard_metadata.{field}"
        if full not in aliases:
            header = names.headers.get("standard_metadata")
            if header is None or all(other.name != field for other in header.type.fields):
                raise ProgramError("headers", f"there is no field '{full}', which v1model has")
    return aliases
