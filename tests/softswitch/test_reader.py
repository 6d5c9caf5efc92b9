"""What the reader accepts, what it says about what it does not, and what the control plane sees."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softswitch.errors import ProgramError, SwitchError, UnsupportedConstruct
from softswitch.pipeline import Pipeline
from softswitch.program.model import ConstEntry, DigestModel, KeyField, Parameter
from softswitch.program.reader import read
from tests.softswitch.small import DROP, Small, argument, assign, call, expression, field, hexstr, meta, named, standard


def rich() -> Small:
    """A program that has one of everything."""
    program = Small()
    forward = program.action("forward", [assign(standard("egress_spec"), argument(0))], port=9)
    drop = program.action("drop", [DROP])
    program.json["parse_vsets"].append({"name": "vset", "id": 0, "compressed_bitwidth": 8, "max_size": 4})
    state = program.json["parsers"][0]["parse_states"][0]
    state["transitions"].insert(0, {"type": "parse_vset", "value": "vset", "mask": None, "next_state": "more"})
    program.json["meter_arrays"] += [
        {"name": "meter", "id": 0, "is_direct": False, "rate_count": 2, "type": "bytes", "size": 4},
        {
            "name": "direct",
            "id": 1,
            "is_direct": True,
            "rate_count": 2,
            "type": "packets",
            "size": 8,
            "binding": "exact_table",
            "result_target": ["scalars", "m8"],
        },
    ]
    program.json["counter_arrays"] += [
        {"name": "counter", "id": 0, "size": 4, "is_direct": False},
        {"name": "hits", "id": 1, "is_direct": True, "binding": "exact_table"},
    ]
    program.json["register_arrays"].append({"name": "register", "id": 0, "size": 16, "bitwidth": 12})
    program.json["calculations"].append(
        {
            "name": "calc",
            "id": 0,
            "algo": "csum16",
            "input": [field("a", "kind"), {"type": "hexstr", "value": "0x5", "bitwidth": 8}, {"type": "payload", "value": None}],
        }
    )
    program.json["learn_lists"].append({"name": "news", "id": 1, "elements": [field("a", "value"), field("b", "x")]})
    program.json["field_lists"].append({"name": "kept", "id": 1, "elements": [{"type": "field", "value": ["scalars", "m16"]}]})
    program.json["checksums"].append(
        {
            "name": "sum",
            "id": 0,
            "type": "generic",
            "target": ["a", "value"],
            "calculation": "calc",
            "verify": True,
            "update": True,
            "if_cond": expression("==", field("a", "kind"), hexstr(1)),
        }
    )
    program.pipeline("ingress")["action_profiles"].append(
        {"name": "profile", "id": 0, "max_size": 32, "selector": {"algo": "crc16", "input": [field("a", "kind")]}}
    )
    program.table(
        "exact_table",
        [("exact", field("a", "kind")), ("exact", field("b", "$valid$"))],
        [forward, drop],
        default=forward,
        data=(3,),
        with_counters=True,
        direct_meters="direct",
        support_timeout=True,
    )
    program.table(
        "const_table",
        [("ternary", field("a", "value")), ("lpm", field("b", "x"))],
        [forward, drop],
        default=drop,
        const=True,
        entries=[
            {
                "match_key": [
                    {"match_type": "ternary", "key": "0x1234", "mask": "0xff00"},
                    {"match_type": "lpm", "key": "0x0a000001", "prefix_length": 8},
                ],
                "action_entry": {"action_id": forward, "action_data": ["0x7"]},
                "priority": 2,
            }
        ],
    )
    table = program.table("selected", [("range", field("a", "note"))], [drop, forward])
    table |= {"type": "indirect_ws", "action_profile": "profile"}
    program.pipeline("ingress")["tables"][-1] = table
    meter = call("execute_meter", named("meter_array", "meter"), hexstr(1), meta("m8"))
    program.run(
        [
            meter,
            call("count", named("counter_array", "counter"), hexstr(0)),
            call("register_write", named("register_array", "register"), hexstr(0), meta("m16")),
            call("generate_digest", hexstr(0), hexstr(1)),
            call("modify_field_with_hash_based_offset", meta("m16"), hexstr(0), named("calculation", "calc"), hexstr(9)),
            call("clone_ingress_pkt_to_egress", hexstr(1), hexstr(1)),
        ]
    )
    return program


def test_the_control_plane_sees_what_the_program_declares():
    control = read(json.dumps(rich().json)).control
    table = control.tables["exact_table"]
    assert table.keys == (
        KeyField("a.kind", "exact", 8, ("a", "kind")),
        KeyField("b.$valid$", "exact", 1, ("b", "$valid$")),
    )
    assert [action.name for action in table.actions] == ["forward", "drop"]
    assert table.actions[0].parameters == (Parameter("port", 9),)
    assert (table.default, table.default_data, table.default_const) == (0, (3,), False)
    assert (table.size, table.with_counters, table.direct_meter, table.support_timeout) == (64, True, "direct", True)
    const = control.tables["const_table"]
    assert (const.match, const.default, const.default_const) == ("ternary", 1, True)
    assert const.const_entries == (ConstEntry(((0x1200, 0xFF00), (0x0A000000, 8)), 2, 0, (7,)),)
    selected = control.tables["selected"]
    assert (selected.kind, selected.profile, selected.default, selected.match) == ("indirect_ws", "profile", None, "range")
    assert control.profiles["profile"].selector == (("a", "kind"),)
    assert control.profiles["profile"].algorithm == "crc16"
    assert control.tables["tbl_act_2"].hidden and not table.hidden
    assert control.counters["counter"].size == 4 and control.counters["hits"].table == "exact_table"
    assert control.meters["direct"].target == ("scalars", "m8") and control.meters["meter"].unit == "bytes"
    assert control.registers["register"].width == 12
    assert control.digests["news"] == DigestModel("news", 1, (("value", 16), ("x", 32)))
    assert control.value_sets["vset"].size == 4


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', "{}", b"\xff\xfe{", "[" * 5000, '{"headers": ' + "[" * 3000])
def test_what_is_no_program_is_refused(text):
    with pytest.raises(ProgramError):
        Pipeline.load(text)


def _drop(*path):
    def change(program):
        for key in path[:-1]:
            program = program[key]
        del program[path[-1]]

    return change


def _put(value, *path):
    def change(program):
        for key in path[:-1]:
            program = program[key]
        program[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (_put([3, 0], "__meta__", "version"), "__meta__.version[0]"),
        (_put("nothing", "headers", 2, "header_type"), "headers[2].header_type"),
        (_put(1, "headers", 2, "id"), "headers[2].id"),
        (_drop("headers", 2, "metadata"), "headers[2]"),
        (_put([["kind", 8, False], ["kind", 8, False]], "header_types", 2, "fields"), "header_types[2].fields[1]"),
        (_put([["kind", 7, False]], "header_types", 3, "fields"), "headers[3]"),
        (_put([["x", 0, False]], "header_types", 3, "fields"), "header_types[3].fields[0][1]"),
        (_put([["x", 1, True]], "header_types", 3, "fields"), "header_types[3].fields[0]"),
        (_put("nowhere", "parsers", 0, "init_state"), "parsers[0].init_state"),
        (
            _put("nowhere", "parsers", 0, "parse_states", 0, "transitions", 1, "next_state"),
            "parsers[0].parse_states[0].transitions[1].next_state",
        ),
        (_put("0x100", "parsers", 0, "parse_states", 0, "transitions", 1, "value"), "parsers[0].parse_states[0].transitions[1]"),
        (_put("zero", "parsers", 0, "parse_states", 0, "transitions", 1, "value"), "parsers[0].parse_states[0].transitions[1]"),
        (_put("c", "deparsers", 0, "order", 0), "deparsers[0].order[0]"),
        (_put("elsewhere", "pipelines", 0, "init_table"), "pipelines[0].init_table"),
        (_drop("pipelines", 0, "tables", 0, "next_tables", "drop"), "pipelines[0].tables[0].next_tables"),
        (_put("exact_table", "pipelines", 0, "tables", 1, "next_tables", "drop"), "pipelines[0]"),
        (_put([17], "pipelines", 0, "tables", 0, "action_ids"), "pipelines[0].tables[0].action_ids[0]"),
        (_put(["a", "nothing"], "pipelines", 0, "tables", 0, "key", 0, "target"), "pipelines[0].tables[0].key[0].target[1]"),
        (_put([], "pipelines", 0, "tables", 0, "default_entry", "action_data"), "pipelines[0].tables[0].default_entry"),
        (_put(["0x200"], "pipelines", 0, "tables", 0, "default_entry", "action_data"), "pipelines[0].tables[0].default_entry"),
        (_put("other", "pipelines", 0, "tables", 2, "action_profile"), "pipelines[0].tables[2].action_profile"),
        (_put("indirect", "pipelines", 0, "tables", 2, "type"), "pipelines[0].tables[2].type"),
        (_put("exact", "pipelines", 0, "tables", 1, "match_type"), "pipelines[0].tables[1].match_type"),
        (
            _put(33, "pipelines", 0, "tables", 1, "entries", 0, "match_key", 1, "prefix_length"),
            "pipelines[0].tables[1].entries[0].match_key[1].prefix_length",
        ),
        (_put("other", "actions", 2, "primitives", 0, "parameters", 0, "value"), "actions[2].primitives[0].parameters[0].value"),
        (_put([], "actions", 0, "primitives", 0, "parameters"), "actions[0].primitives[0].parameters"),
        (_put(5, "actions", 0, "primitives", 0, "parameters", 1, "value"), "actions[0].primitives[0].parameters[1].value"),
        (_put("other", "checksums", 0, "calculation"), "checksums[0].calculation"),
        (_put(-1, "register_arrays", 0, "size"), "register_arrays[0].size"),
        (_put(10**9, "register_arrays", 0, "size"), "register_arrays[0].size"),
        (_put("litres", "meter_arrays", 0, "type"), "meter_arrays[0].type"),
        (_put([], "parsers"), ""),
        (_put([], "headers"), ""),
    ],
)
def test_a_contradiction_is_named_with_its_place(change, where):
    program = copy.deepcopy(rich().json)
    change(program)
    with pytest.raises(ProgramError) as caught:
        Pipeline.load(json.dumps(program))
    assert caught.value.where.startswith(where)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_put("teleport", "actions", 0, "primitives", 0, "op"), "primitive 'teleport'"),
        (_put("md5", "calculations", 0, "algo"), "hash algorithm 'md5'"),
        (_put("magic", "pipelines", 0, "tables", 0, "key", 0, "match_type"), "match type 'magic'"),
        (_put("magic", "pipelines", 0, "tables", 0, "type"), "table of type 'magic'"),
        (_put("jump", "parsers", 0, "parse_states", 0, "parser_ops", 0, "op"), "parser operation 'jump'"),
        (_put("magic", "parsers", 0, "parse_states", 0, "transitions", 1, "type"), "transition of type 'magic'"),
        (_put("magic", "parsers", 0, "parse_states", 0, "transition_key", 0, "type"), "transition key of type 'magic'"),
        (_put("**", "checksums", 0, "if_cond", "value", "op"), "operator '**'"),
        (_put("magic", "checksums", 0, "if_cond", "type"), "expression of type 'magic'"),
        (_put("ipv4", "checksums", 0, "type"), "checksum of type 'ipv4'"),
        (_put(3, "meter_arrays", 0, "rate_count"), "3 rates"),
        (_put([{"name": "e", "id": 0, "type": "Accelerator"}], "extern_instances"), "extern of type 'Accelerator'"),
        (_put("*", "header_types", 3, "fields", 0, 1), "variable-length"),
        (_put(hexstr(7), "actions", 2, "primitives", 3, "parameters", 1), "digest"),
        (_put(hexstr(7), "actions", 2, "primitives", 5, "parameters", 1), "field list 7"),
    ],
)
def test_what_the_target_lacks_is_refused_by_name(change, what):
    program = copy.deepcopy(rich().json)
    change(program)
    with pytest.raises(UnsupportedConstruct, match=what.replace("*", r"\*")):
        Pipeline.load(json.dumps(program))


def test_the_rich_program_itself_is_accepted():
    rich().load()


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 70_000),
    st.sampled_from(["", "a", "exact", "field", "0x1", "-0x1", "expression", "parser", "*", "__HIT__", "x" * 50]),
    st.builds(list),
    st.builds(dict),
    st.builds(lambda: [1, 2]),
)


@st.composite
def damaged(draw):
    """The rich program with a few values replaced, removed or doubled."""
    program = copy.deepcopy(rich().json)
    for _ in range(draw(st.integers(1, 3))):
        node, parent, key = program, None, None
        for _ in range(draw(st.integers(1, 9))):
            if isinstance(node, dict) and node:
                parent, key = node, draw(st.sampled_from(sorted(node)))
            elif isinstance(node, list) and node:
                parent, key = node, draw(st.integers(0, len(node) - 1))
            else:
                break
            node = parent[key]
        if parent is None:
            continue
        match draw(st.sampled_from(["replace", "remove", "double"])):
            case "replace":
                parent[key] = draw(JUNK)
            case "remove":
                del parent[key]
            case "double" if isinstance(parent, list):
                parent.append(copy.deepcopy(node))
    return program


@settings(max_examples=250)
@given(damaged())
def test_a_damaged_program_is_refused_or_works(program):
    try:
        pipeline = Pipeline.load(json.dumps(program))
    except SwitchError:
        return
    for data in (b"", b"\x01", bytes(4), b"\x01" * 40):
        pipeline.ingress(data, 1, 0)
