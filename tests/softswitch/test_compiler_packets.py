"""What compiled programs do with packets, construct by construct."""

from __future__ import annotations

import zlib

import pytest

from softswitch.errors import ProgramError, UnsupportedConstruct
from softswitch.pipeline import Outcome
from softswitch.runtime import Call, GroupMember, GroupRef, MemberRef, MeterConfig
from tests.softswitch.small import (
    DROP,
    Small,
    argument,
    assign,
    call,
    expression,
    field,
    header,
    hexstr,
    meta,
    named,
    out,
    packet,
    standard,
)


def test_a_packet_nobody_changes_comes_out_as_it_came():
    pipeline = Small().forward(3).load()
    for data in (packet(0, rest=b"payload"), packet(1, 7, rest=b"1234payload"), packet()):
        assert out(pipeline, data) == (3, data)


def test_without_a_destination_a_packet_goes_to_port_0():
    assert out(Small().load(), packet()) == (0, packet())


def test_a_dropped_packet_is_counted_with_its_cause():
    program = Small()
    program.run([DROP])
    pipeline = program.load()
    assert pipeline.ingress(packet(), 1, 0) is None
    assert pipeline.ingress(b"\1\2", 1, 0) is None
    assert pipeline.ingress(packet(1), 1, 0) is None
    assert pipeline.runtime.drops == {"ingress": 1, "parser-PacketTooShort": 2}


def test_a_drop_in_egress_is_counted_there_and_another_drop_port_counts_too():
    program = Small().forward(2)
    program.run([DROP], "egress")
    pipeline = program.load(drop_port=100)
    assert out(pipeline, packet()) is None
    assert pipeline.runtime.drops == {"egress": 1}
    assert Small().forward(100).load(drop_port=100).ingress(packet(), 1, 0) is None


def test_a_parser_error_keeps_what_was_extracted_and_ingress_goes_on():
    program = Small().forward()
    program.run([assign(field("a", "note"), standard("parser_error"))])
    pipeline = program.load()
    assert out(pipeline, packet(1, 5, 9, b"abc")) == (1, packet(1, 5, 1, b"abc"))
    assert out(pipeline, packet(0, 5, 9)) == (1, packet(0, 5, 0))
    assert out(pipeline, b"\1\2\3") == (1, b"\1\2\3")


def test_set_valid_zeroes_and_set_invalid_removes():
    program = Small().forward()
    program.run([call("add_header", header("b"))])
    pipeline = program.load()
    assert out(pipeline, packet(0, rest=b"x")) == (1, packet(0) + bytes(4) + b"x")
    assert out(pipeline, packet(1, rest=b"1234x")) == (1, packet(1, rest=b"1234x"))
    program.run([call("remove_header", header("a")), call("remove_header", header("b"))])
    assert out(program.load(), packet(1, rest=b"1234x")) == (1, b"x")


def test_packet_length_follows_the_headers():
    program = Small().forward()
    program.run([call("add_header", header("b"))])
    program.run([assign(field("b", "x"), standard("packet_length"))], "egress")
    assert out(program.load(), packet(0, rest=b"abc")) == (1, packet(0) + (11).to_bytes(4, "big") + b"abc")


def test_queue_metadata_and_times_reach_egress():
    names = ["enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth", "egress_rid", "egress_port", "instance_type"]
    names += ["ingress_global_timestamp", "egress_global_timestamp"]
    for name, wanted in zip(names, (11, 12, 13, 14, 15, 4, 5, 100, 200), strict=True):
        program = Small().forward(4)
        program.run([assign(field("a", "value"), standard(name))], "egress")
        pipeline = program.load()
        _, _, phv = pipeline.ingress(packet(), 1, 100)
        sent = pipeline.egress(
            phv, 4, 200, 15, instance_type=5, enq_timestamp=11, enq_qdepth=12, deq_timedelta=13, deq_qdepth=14
        )
        assert sent == packet(0, wanted), name


def test_truncate_takes_effect_at_the_end_and_the_shortest_counts():
    program = Small().forward()
    program.run([call("truncate", hexstr(6)), call("truncate", hexstr(9)), call("add_header", header("b"))])
    assert out(program.load(), packet(0, 1, 2, b"abcdef")) == (1, packet(0, 1, 2) + bytes(2))


def test_exit_ends_the_pipeline_but_not_the_packet():
    program = Small().forward(1)
    leave = program.action("leave", [call("exit")])
    stay = program.action("stay", [])
    program.table("gate", [("exact", field("a", "kind"))], [leave, stay], default=stay)
    program.forward(2)
    program.run([assign(field("a", "note"), hexstr(7))], "egress")
    pipeline = program.load()
    pipeline.runtime.tables["gate"].insert((0,), 0, Call(0))
    assert out(pipeline, packet(0)) == (1, packet(0, 0, 7))
    assert out(pipeline, packet(5)) == (2, packet(5, 0, 7))


def test_hit_and_miss_lead_apart():
    program = Small().forward(1)
    nothing = program.action("nothing", [])
    two = program.action("two", [assign(standard("egress_spec"), hexstr(2))])
    three = program.action("three", [assign(standard("egress_spec"), hexstr(3))])
    table = program.table("split", [("exact", field("a", "kind"))], [nothing], default=nothing)
    program.table("on_hit", [], [two], default=two, const=True)
    program.table("on_miss", [], [three], default=three, const=True)
    tables = program.pipeline("ingress")["tables"]
    table["next_tables"] = {"__HIT__": "on_hit", "__MISS__": "on_miss"}
    tables[-2]["next_tables"] = {"two": None}
    pipeline = program.load()
    pipeline.runtime.tables["split"].insert((9,), 0, Call(0))
    assert out(pipeline, packet(9))[0] == 2
    assert out(pipeline, packet(8))[0] == 3


def test_const_entries_of_which_the_lowest_priority_wins():
    program = Small().forward(1)
    to = program.action("to", [assign(standard("egress_spec"), argument(0))], port=9)
    entries = [
        {
            "match_key": [{"match_type": "ternary", "key": key, "mask": mask}],
            "action_entry": {"action_id": to, "action_data": [port]},
            "priority": priority,
        }
        for key, mask, port, priority in (("0x00", "0x00", "0x5", 9), ("0x02", "0x02", "0x6", 2), ("0x01", "0x01", "0x7", 1))
    ]
    program.table("consts", [("ternary", field("a", "value"))], [to], default=to, data=(1,), entries=entries)
    pipeline = program.load()
    assert [out(pipeline, packet(0, value))[0] for value in (0, 1, 2, 3)] == [5, 7, 6, 7]


def test_direct_counters_meters_and_times_of_a_table():
    program = Small().forward()
    nothing = program.action("nothing", [])
    program.json["meter_arrays"].append(
        {
            "name": "direct",
            "id": 0,
            "is_direct": True,
            "rate_count": 2,
            "type": "packets",
            "size": 8,
            "binding": "t",
            "result_target": ["scalars", "m8"],
        }
    )
    key = [("exact", field("a", "kind"))]
    more = {"with_counters": True, "support_timeout": True, "direct_meters": "direct"}
    program.table("t", key, [nothing], default=nothing, **more)
    program.run([assign(field("a", "note"), meta("m8"))])
    pipeline = program.load()
    table = pipeline.runtime.tables["t"]
    entry = table.insert((0,), 0, Call(0))
    table.write_meter(entry, MeterConfig(1, 1, 2, 2))
    colors = [out(pipeline, packet(0, rest=b"abc"), now=1000)[1][3] for _ in range(4)]
    assert colors == [0, 1, 2, 2]
    assert (entry.packets, entry.bytes, entry.last_hit) == (4, 28, 1000)
    assert out(pipeline, packet(3, 0, 9)) == (1, packet(3, 0, 0))
    assert entry.packets == 4


def test_counters_registers_and_meters_ignore_indices_beyond_their_end():
    program = Small().forward()
    program.json["counter_arrays"].append({"name": "c", "id": 0, "size": 2, "is_direct": False})
    program.json["register_arrays"].append({"name": "r", "id": 0, "size": 2, "bitwidth": 8})
    program.json["meter_arrays"].append({"name": "m", "id": 0, "is_direct": False, "rate_count": 2, "type": "bytes", "size": 2})
    index = field("a", "kind")
    program.run(
        [
            call("count", named("counter_array", "c"), index),
            call("register_write", named("register_array", "r"), index, field("a", "value")),
            assign(field("a", "value"), hexstr(0xAAAA)),
            call("register_read", field("a", "value"), named("register_array", "r"), index),
            assign(field("a", "note"), hexstr(0x55)),
            call("execute_meter", named("meter_array", "m"), index, field("a", "note")),
        ]
    )
    pipeline = program.load()
    pipeline.runtime.meters["m"].write(1, MeterConfig(0, 0, 0, 0))
    assert out(pipeline, packet(0, 0x1234, 0)) == (1, packet(0, 0x34, 0))
    assert out(pipeline, packet(1, 0x1256, 0, bytes(4))) == (1, packet(1, 0x56, 2, bytes(4)))
    assert out(pipeline, packet(2, 0x1234, 0)) == (1, packet(2, 0xAAAA, 0x55))
    assert pipeline.runtime.registers["r"].cells == [0x34, 0x56]
    assert pipeline.runtime.counters["c"].packets == [1, 1] and pipeline.runtime.counters["c"].bytes == [4, 8]


def _selector() -> Small:
    program = Small().forward(1)
    to = program.action("to", [assign(standard("egress_spec"), argument(0))], port=9)
    program.pipeline("ingress")["action_profiles"].append(
        {"name": "profile", "id": 0, "max_size": 32, "selector": {"algo": "identity", "input": [field("a", "value")]}}
    )
    program.table("t", [("exact", field("a", "kind"))], [to], type="indirect_ws", action_profile="profile")
    return program


def test_a_selector_spreads_by_its_hash_and_skips_ports_that_are_down():
    pipeline = _selector().load()
    profile, table = pipeline.runtime.profiles["profile"], pipeline.runtime.tables["t"]
    for number in (1, 2, 3):
        profile.insert_member(number, Call(0, (10 + number,)))
    profile.insert_group(1, [GroupMember(number, watch_port=10 + number) for number in (1, 2, 3)])
    table.insert((7,), 0, GroupRef(1))
    table.insert((8,), 0, MemberRef(2))
    ports = [out(pipeline, packet(7, value))[0] for value in range(6)]
    assert sorted(ports[:3]) == [11, 12, 13] and ports[3:] == ports[:3]
    assert out(pipeline, packet(8, 1))[0] == 12
    assert out(pipeline, packet(9, 1))[0] == 1
    pipeline.runtime.set_port_state(12, False)
    assert {out(pipeline, packet(7, value))[0] for value in range(6)} == {11, 13}


def test_a_value_set_steers_the_parser_as_soon_as_it_is_set():
    program = Small().forward()
    program.json["parse_vsets"].append({"name": "v", "id": 0, "compressed_bitwidth": 8, "max_size": 4})
    state = program.json["parsers"][0]["parse_states"][0]
    state["transitions"][0] = {"type": "parse_vset", "value": "v", "mask": None, "next_state": "more"}
    program.run([call("remove_header", header("b"))])
    pipeline = program.load()
    data = packet(0x42, rest=b"1234x")
    assert out(pipeline, data) == (1, data)
    pipeline.runtime.value_sets["v"].set([0x42])
    assert out(pipeline, data) == (1, packet(0x42, rest=b"x"))
    pipeline.runtime.value_sets["v"].set([(0x40, 0xF1)])
    assert out(pipeline, data) == (1, packet(0x42, rest=b"x"))
    assert out(pipeline, packet(0x41, rest=b"1234x")) == (1, packet(0x41, rest=b"1234x"))


def _keep(program: Small) -> None:
    elements = [{"type": "field", "value": ["scalars", "m16"]}]
    program.json["field_lists"].append({"name": "kept", "id": 1, "elements": elements})


def test_an_ingress_clone_is_the_packet_as_it_came_with_the_fields_that_it_keeps():
    program = Small().forward(5)
    _keep(program)
    program.run(
        [
            assign(meta("m16"), hexstr(0x1234)),
            call("clone_ingress_pkt_to_egress", hexstr(7), hexstr(1)),
            assign(meta("m16"), hexstr(0x5678)),
            assign(field("a", "note"), hexstr(1)),
        ]
    )
    program.run([assign(field("a", "value"), meta("m16"))], "egress")
    kind = expression("+", standard("instance_type"), expression("*", standard("ingress_port"), hexstr(16)))
    program.run([assign(field("a", "kind"), kind)], "egress")
    pipeline = program.load()
    result = pipeline.ingress(packet(0, 0, 9, b"x"), 3, 0)
    assert isinstance(result, Outcome) and result.multicast is None and result.resubmit is None
    [(session, clone)] = result.clones
    assert session == 7
    port, priority, phv = result.unicast
    assert (port, priority) == (5, 0)
    # The original has been through ingress; the clone has not, and has lost its ingress port.
    assert pipeline.egress(phv, 5, 0, 0) == packet(0x30, 0x5678, 1, b"x")
    assert pipeline.egress(clone, 6, 0, 0) == packet(1, 0x5678, 9, b"x")


def test_a_clone_is_made_even_of_a_dropped_packet():
    program = Small()
    program.run([call("clone_ingress_pkt_to_egress", hexstr(0), hexstr(0)), DROP])
    pipeline = program.load()
    result = pipeline.ingress(packet(0), 1, 0)
    assert isinstance(result, Outcome) and result.unicast is None
    assert [session for session, _ in result.clones] == [0]
    assert pipeline.runtime.drops == {"ingress": 1}


def test_an_egress_clone_has_the_headers_of_now_and_fresh_metadata():
    program = Small().forward(5)
    _keep(program)
    program.run([assign(meta("m16"), hexstr(0x1234)), assign(meta("m8"), hexstr(0x56))])
    once = program.action(
        "once",
        [
            call("_jump_if_zero", expression_flag(expression("==", standard("instance_type"), hexstr(0))), hexstr(3)),
            call("clone_egress_pkt_to_egress", hexstr(2), hexstr(1)),
            assign(field("a", "note"), meta("m8")),
        ],
    )
    program.table("tbl_once", [], [once], default=once, const=True, pipeline="egress")
    late = [assign(field("a", "value"), expression("+", meta("m16"), meta("m8")))]
    program.run(late, "egress")
    pipeline = program.load()
    _, _, phv = pipeline.ingress(packet(0, 0, 9, b"x"), 3, 0)
    outcome = pipeline.egress(phv, 5, 0, 0)
    assert isinstance(outcome, Outcome)
    assert outcome.data == packet(0, 0x1234 + 0x56, 0x56, b"x")
    [(session, clone)] = outcome.clones
    assert session == 2
    assert pipeline.egress(clone, 6, 0, 0) == packet(0, 0x1234, 0x56, b"x")


def expression_flag(condition: dict) -> dict:
    """A condition as ``_jump_if_zero`` takes it."""
    return {"type": "expression", "value": expression("b2d", None, condition)}


def test_an_egress_clone_of_a_dropped_packet():
    program = Small().forward(5)
    program.run([call("clone_egress_pkt_to_egress", hexstr(2), hexstr(0)), DROP], "egress")
    pipeline = program.load()
    _, _, phv = pipeline.ingress(packet(0, 0, 9), 3, 0)
    outcome = pipeline.egress(phv, 5, 0, 0)
    assert isinstance(outcome, Outcome) and outcome.data is None and len(outcome.clones) == 1
    assert pipeline.runtime.drops == {"egress": 1}


def test_a_resubmitted_packet_comes_again_with_the_fields_that_it_keeps():
    program = Small().forward(5)
    _keep(program)
    again = program.action(
        "again",
        [
            call("_jump_if_zero", expression_flag(expression("==", standard("instance_type"), hexstr(0))), hexstr(5)),
            assign(meta("m16"), hexstr(0x4321)),
            assign(field("a", "note"), hexstr(1)),
            call("resubmit", hexstr(1)),
            call("_jump", hexstr(6)),
            assign(field("a", "value"), meta("m16")),
        ],
    )
    program.table("tbl_again", [], [again], default=again, const=True)
    pipeline = program.load()
    result = pipeline.ingress(packet(0, 0, 9), 3, 0)
    assert isinstance(result, Outcome) and result.unicast is None
    assert result.resubmit == (1, (0x4321,))
    _, _, phv = pipeline.ingress(packet(0, 0, 9), 3, 0, 6, result.resubmit)
    assert pipeline.egress(phv, 5, 0, 0) == packet(0, 0x4321, 9)


def test_a_recirculated_packet_is_what_egress_made_of_it():
    program = Small().forward(5)
    _keep(program)
    again = call("recirculate", hexstr(1))
    program.run([assign(meta("m16"), hexstr(0x77)), assign(field("a", "note"), hexstr(4)), again], "egress")
    pipeline = program.load()
    _, _, phv = pipeline.ingress(packet(0, 1, 2, b"x"), 3, 0)
    outcome = pipeline.egress(phv, 5, 0, 0)
    assert isinstance(outcome, Outcome) and outcome.data is None
    assert outcome.recirculate == (packet(0, 1, 4, b"x"), (1, (0x77,)))


def test_truncation_is_lost_where_simple_switch_copies_a_packet_anew():
    program = Small().forward(5)
    program.run([call("truncate", hexstr(3))])
    program.run([assign(standard("mcast_grp"), hexstr(9))])
    pipeline = program.load()
    phv = pipeline.ingress(packet(0, 1, 2, b"abc"), 1, 0).multicast[2]
    assert pipeline.egress(phv, 2, 0, 1) == packet(0, 1, 2, b"abc")
    program = Small().forward(5)
    _keep(program)
    program.run([call("truncate", hexstr(3)), call("recirculate", hexstr(1))], "egress")
    pipeline = program.load()
    outcome = pipeline.egress(pipeline.ingress(packet(0, 1, 2, b"abc"), 1, 0)[2], 5, 0, 0)
    assert outcome.recirculate[0] == packet(0, 1, 2, b"abc")


def test_multicast_goes_before_unicast_and_drop_and_mark_to_drop_undoes_it():
    program = Small().forward(5)
    program.run([assign(standard("mcast_grp"), hexstr(9))])
    program.run([assign(field("a", "value"), expression("+", standard("egress_rid"), standard("instance_type")))], "egress")
    pipeline = program.load()
    result = pipeline.ingress(packet(), 1, 0)
    assert isinstance(result, Outcome) and result.unicast is None
    group, priority, phv = result.multicast
    assert (group, priority) == (9, 0)
    assert pipeline.egress(phv, 2, 0, 30) == packet(0, 35)
    assert pipeline.egress(phv, 3, 0, 31) == packet(0, 36)
    program.run([DROP])
    assert program.load().ingress(packet(), 1, 0) is None


def test_priority_is_given_to_the_queue():
    program = Small().forward(5)
    program.run([assign(standard("priority"), hexstr(6))])
    assert program.load().ingress(packet(), 1, 0)[:2] == (5, 6)


def test_a_digest_has_the_values_at_the_end_of_ingress():
    program = Small().forward()
    elements = [{"type": "field", "value": ["a", "value"]}, {"type": "field", "value": ["scalars", "i8"]}]
    program.json["learn_lists"].append({"name": "news", "id": 1, "elements": elements})
    program.run([call("generate_digest", hexstr(0), hexstr(1))])
    program.run([assign(field("a", "value"), hexstr(0x99)), assign(meta("i8"), hexstr(-1))])
    pipeline = program.load()
    assert out(pipeline, packet(0, 1)) == (1, packet(0, 0x99))
    assert pipeline.runtime.digests.drain() == [("news", (0x99, 255))]


def test_log_messages_go_to_whoever_wants_them():
    program = Small().forward()
    vector = {"type": "parameters_vector", "value": [field("a", "value"), hexstr(7)]}
    program.run([call("log_msg", {"type": "string", "value": "value = {}, \\{7\\} = {}"}, vector)])
    said: list[tuple[str, str]] = []
    assert out(program.load(notify=lambda *event: said.append(event)), packet(0, 300)) is not None
    assert said == [("log_msg", "value = 300, {7} = 7")]
    assert "NOTIFY" not in program.load().source


def test_a_failed_assertion_drops_the_packet():
    program = Small().forward()
    program.run([call("assert", expression_flag(expression("==", field("a", "kind"), hexstr(0))))])
    pipeline = program.load()
    assert out(pipeline, packet(0)) is not None
    assert out(pipeline, packet(2)) is None
    assert pipeline.runtime.drops == {"assert": 1}


@pytest.mark.parametrize("bounds", [(3, 10), (0, 255), (16, 31), (5, 5)])
def test_random_numbers_are_within_bounds_reach_them_and_follow_the_seed(bounds):
    program = Small().forward()
    program.run([call("modify_field_rng_uniform", field("a", "note"), hexstr(bounds[0]), hexstr(bounds[1]))])
    runs = []
    for seed in (1, 1, 2):
        pipeline = program.load(seed=seed)
        runs.append([out(pipeline, packet())[1][3] for _ in range(3000)])
    assert runs[0] == runs[1] and (runs[0] != runs[2] or bounds == (5, 5))
    assert set(runs[0]) == set(range(bounds[0], bounds[1] + 1))


def test_random_numbers_with_crossed_bounds_change_nothing():
    program = Small().forward()
    program.run([call("modify_field_rng_uniform", field("a", "note"), field("a", "value"), hexstr(3))])
    assert out(program.load(), packet(0, 9, 77)) == (1, packet(0, 9, 77))


def test_an_endless_loop_in_an_action_drops_the_packet():
    program = Small().forward()
    program.run([call("no_op"), call("_jump", hexstr(0))])
    pipeline = program.load()
    assert pipeline.ingress(packet(), 1, 0) is None
    assert pipeline.runtime.drops == {"endless-loop": 1}


def test_an_endless_parser_drops_the_packet():
    program = Small().forward()
    states = program.json["parsers"][0]["parse_states"]
    states[1]["parser_ops"] = [call("advance", hexstr(0))]
    states[1]["transitions"][0]["next_state"] = "more"
    pipeline = program.load()
    assert pipeline.ingress(packet(1), 1, 0) is None
    assert pipeline.runtime.drops == {"endless-parser": 1}
    assert out(pipeline, packet(0)) is not None


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("crc32", zlib.crc32(b"123456789")),
        ("crc32_custom", zlib.crc32(b"123456789")),
        ("crc16", 0xBB3D),
        ("crc16_custom", 0xBB3D),
        ("crcCCITT", 0x29B1),
        ("csum16", 0xF62A),
        ("xor16", 0x3908),
        ("xor32", 0x3D04040C),
        ("identity", 0x3132333435363738),
        ("crc8_custom", 0xF4),
        ("xxh64", 0x8CB841DB40E6AE83),
        ("bmv2_hash", 0x8CB841DB40E6AE83),
        ("toeplitz", 0),
        ("round_robin", 0),
        ("round_robin_consistent", 0),
    ],
)
def test_hash_algorithms_have_their_check_values(algorithm, expected):
    """The published check values of the algorithms for the digits 1 to 9."""
    program = Small().forward()
    inputs = [{"type": "hexstr", "value": f"0x{b'123456789'.hex()}", "bitwidth": 72}]
    program.json["calculations"].append({"name": "calc", "id": 0, "algo": algorithm, "input": inputs})
    hashed = call("modify_field_with_hash_based_offset", meta("m48"), hexstr(0), named("calculation", "calc"), hexstr(2**64 - 59))
    program.run([hashed, assign(field("a", "value"), expression(">>", meta("m48"), hexstr(32)))])
    program.run([call("add_header", header("b")), assign(field("b", "x"), meta("m48"))])
    expected %= 2**64 - 59
    _, sent = out(program.load(), packet(0))
    assert sent == packet(0, expected >> 32 & 0xFFFF) + (expected & 0xFFFFFFFF).to_bytes(4, "big")


def test_round_robin_counts_and_the_consistent_one_remembers():
    ports = {}
    for algorithm in ("round_robin", "round_robin_consistent"):
        program = Small().forward()
        program.json["calculations"].append({"name": "calc", "id": 0, "algo": algorithm, "input": [field("a", "value")]})
        program.run(
            [call("modify_field_with_hash_based_offset", field("a", "note"), hexstr(0), named("calculation", "calc"), hexstr(3))]
        )
        pipeline = program.load()
        ports[algorithm] = [out(pipeline, packet(0, value))[1][3] for value in (5, 6, 5, 7, 6)]
    assert ports == {"round_robin": [0, 1, 2, 0, 1], "round_robin_consistent": [0, 1, 0, 2, 1]}


def test_a_program_that_python_cannot_hold_is_refused():
    program = Small()
    deep = field("a", "kind")
    for _ in range(60):
        deep = expression("+", deep, field("a", "kind"))
    program.run([assign(field("a", "note"), deep)])
    assert out(program.load(), packet(3))[1][3] == 3 * 61
    for _ in range(200):
        deep = expression("+", deep, field("a", "kind"))
    program.run([assign(field("a", "note"), deep)])
    with pytest.raises((ProgramError, UnsupportedConstruct)):
        program.load()


def test_generated_source_holds_no_text_of_the_program():
    program = Small().forward()
    program.json["actions"][0]["name"] = "evil'); raise SystemExit #"
    program.pipeline("ingress")["tables"][0]["actions"] = [program.json["actions"][0]["name"]]
    program.pipeline("ingress")["tables"][0]["next_tables"] = {program.json["actions"][0]["name"]: None}
    program.json["header_types"][2]["fields"][2][0] = 'note"\nimport os'
    pipeline = program.load()
    assert out(pipeline, packet()) == (1, packet())
    assert "evil" not in pipeline.source and "import" not in pipeline.source
