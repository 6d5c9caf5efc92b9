"""Reads what is neither header nor control flow: arrays of state, calculations, checksums, lists of fields."""

from __future__ import annotations

from typing import Literal

from softswitch.program.expressions import ExpressionReader
from softswitch.program.ir import CalcInput, Calculation, Checksum, FieldRef
from softswitch.program.model import CounterModel, DigestModel, MeterModel, RegisterModel, ValueSetModel
from softswitch.program.source import Source

MAX_ARRAY = 16_000_000
"""Cells of an array; more would not be a switch's but the host's memory."""

CORE_ERRORS = (
    "NoError",
    "PacketTooShort",
    "NoMatch",
    "StackOutOfBounds",
    "HeaderTooShort",
    "ParserTimeout",
    "ParserInvalidArgument",
)


def read_errors(root: Source) -> dict[str, int]:
    """Codes of the parser errors; those of the core library are always there."""
    errors = {}
    for item in root.items("errors"):
        pair = item.array(2)
        errors[pair[0].text()] = pair[1].integer(0, 2**31 - 2)
    for name in CORE_ERRORS:
        if name not in errors:
            errors[name] = max(errors.values(), default=-1) + 1
    return errors


def read_value_sets(root: Source) -> dict[str, ValueSetModel]:
    """Parser value sets."""
    models = {}
    for source in root.items("parse_vsets"):
        name = source["name"].text()
        width = source["compressed_bitwidth"].integer(1)
        size = source["max_size"].integer() if source.has("max_size") else 1024
        models[name] = ValueSetModel(name, source["id"].integer(), width, size)
    return models


def read_registers(root: Source) -> dict[str, RegisterModel]:
    """Register arrays."""
    return {
        source["name"].text(): RegisterModel(
            source["name"].text(),
            source["id"].integer(),
            source["size"].integer(0, MAX_ARRAY),
            source["bitwidth"].integer(1, 16_384),
        )
        for source in root.items("register_arrays")
    }


def read_counters(root: Source) -> dict[str, CounterModel]:
    """Counter arrays and direct counters."""
    models = {}
    for source in root.items("counter_arrays"):
        direct = source.get("is_direct").boolean(False)
        size = 0 if direct else source["size"].integer(0, MAX_ARRAY)
        table = source["binding"].text() if direct else None
        name = source["name"].text()
        models[name] = CounterModel(name, source["id"].integer(), size, table)
    return models


def read_meters(root: Source, expressions: ExpressionReader) -> dict[str, MeterModel]:
    """Meter arrays and direct meters."""
    models = {}
    for source in root.items("meter_arrays"):
        name = source["name"].text()
        unit: Literal["bytes", "packets"]
        match source["type"].text():
            case "bytes":
                unit = "bytes"
            case "packets":
                unit = "packets"
            case other:
                source["type"].fail(f"a meter counts bytes or packets, not '{other}'")
        if source["rate_count"].integer() != 2:
            source["rate_count"].unsupported(f"meter with {source['rate_count'].integer()} rates")
        direct = source.get("is_direct").boolean(False)
        target = expressions.field(source["result_target"]) if direct else None
        models[name] = MeterModel(
            name,
            source["id"].integer(),
            source["size"].integer(0, MAX_ARRAY),
            unit,
            source["binding"].text() if direct else None,
            (target.header, target.field) if target else None,
        )
    return models


def read_calculations(root: Source, expressions: ExpressionReader, algorithms: frozenset[str]) -> dict[str, Calculation]:
    """Calculations.

    Raises:
        UnsupportedConstruct: An algorithm that is not among ``algorithms``.
    """
    calculations = {}
    for source in root.items("calculations"):
        algorithm = source["algo"].text()
        if algorithm not in algorithms:
            source["algo"].unsupported(f"hash algorithm '{algorithm}'")
        inputs = []
        for item in source["input"].array():
            kind = item["type"].text()
            match kind:
                case "field":
                    inputs.append(CalcInput(field=expressions.field(item["value"])))
                case "hexstr":
                    width = item["bitwidth"].integer(1, 65_536)
                    inputs.append(CalcInput(constant=item["value"].hexadecimal() & ((1 << width) - 1), width=width))
                case "header":
                    inputs.append(CalcInput(header=expressions.header(item["value"])))
                case "payload":
                    inputs.append(CalcInput())
                case _:
                    item["type"].unsupported(f"input of type '{kind}' to a calculation")
        name = source["name"].text()
        calculations[name] = Calculation(name, algorithm, tuple(inputs))
    return calculations


def read_checksums(root: Source, expressions: ExpressionReader, calculations: dict[str, Calculation]) -> tuple[Checksum, ...]:
    """Checksums to verify and to update, in order."""
    checksums = []
    for source in root.items("checksums"):
        if source["type"].text() != "generic":
            source["type"].unsupported(f"checksum of type '{source['type'].text()}'")
        calculation = source["calculation"].text()
        if calculation not in calculations:
            source["calculation"].fail(f"there is no calculation '{calculation}'")
        condition = expressions.read(source["if_cond"], "bool") if source.has("if_cond") else None
        verify, update = source.get("verify").boolean(True), source.get("update").boolean(True)
        checksums.append(Checksum(expressions.field(source["target"]), calculation, condition, verify, update))
    return tuple(checksums)


def read_field_lists(root: Source, expressions: ExpressionReader) -> dict[int, tuple[FieldRef, ...]]:
    """Lists of fields that clones, resubmitted and recirculated packets keep; constants in them have no effect."""
    lists = {}
    for source in root.items("field_lists"):
        fields = [expressions.field(item["value"]) for item in source.items("elements") if item["type"].text() == "field"]
        lists[source["id"].integer()] = tuple(fields)
    return lists


def read_digests(
    root: Source, expressions: ExpressionReader
) -> tuple[dict[str, DigestModel], dict[int, tuple[str, tuple[FieldRef, ...]]]]:
    """Digests as the control plane sees them, and by id their fields."""
    models: dict[str, DigestModel] = {}
    fields = {}
    for source in root.items("learn_lists"):
        name, identity = source["name"].text(), source["id"].integer()
        refs, described = [], []
        for item in source.items("elements"):
            kind = item["type"].text()
            if kind != "field":
                item["type"].unsupported(f"'{kind}' in a digest")
            ref = expressions.field(item["value"])
            width = 1 if ref.field == "$valid$" else expressions.names.headers[ref.header].type.field(ref.field).width
            if not width:
                item.unsupported("variable-length field in a digest")
            refs.append(ref)
            described.append((ref.field, width))
        fields[identity] = (name, tuple(refs))
        models.setdefault(name, DigestModel(name, identity, tuple(described)))
    return models, fields
