"""Random programs: the compiled code does what the plain interpreter does."""

from __future__ import annotations

import json
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from softswitch.pipeline import Pipeline
from softswitch.runtime import Call
from tests.softswitch.oracle import Oracle
from tests.softswitch.random_programs import make_packet, make_program


def _match(random: Random, key: dict, width: int) -> object:
    value = random.choice([0, 1, 2, random.getrandbits(width)]) & ((1 << width) - 1)
    if key.get("mask"):
        value &= int(key["mask"], 16)
    match key["match_type"]:
        case "exact":
            return value
        case "lpm":
            length = random.randint(0, width)
            return (value >> (width - length) << (width - length), length)
        case "ternary":
            mask = random.choice([0, 1, (1 << width) - 1, random.getrandbits(width)]) & ((1 << width) - 1)
            return (value & mask, mask)
    return (value, min(value + random.randrange(4), (1 << width) - 1))


def fill(random: Random, program: dict, pipeline: Pipeline, oracle: Oracle) -> None:
    """The same random entries for both."""
    for source in (table for part in program["pipelines"] for table in part["tables"]):
        table = pipeline.runtime.tables[source["name"]]
        seen = set()
        for priority in range(1, random.randint(1, 5) if source["key"] else 1):
            match = tuple(
                _match(random, key, described.width) for key, described in zip(source["key"], table.model.keys, strict=True)
            )
            if match in seen:
                continue
            seen.add(match)
            index = random.randrange(len(source["action_ids"]))
            data = tuple(random.getrandbits(parameter.width) for parameter in table.model.actions[index].parameters)
            ranked = priority if source["match_type"] in ("ternary", "range") else 0
            table.insert(match, ranked, Call(index, data))
            oracle.tables[source["name"]].append((match, ranked, source["action_ids"][index], data))


def run(pipeline: Pipeline, packet: bytes, port: int) -> tuple[int, bytes] | None:
    result = pipeline.ingress(packet, port, 0)
    if result is None:
        return None
    assert isinstance(result, tuple)
    egress_port, priority, phv = result
    data = pipeline.egress(phv, egress_port, 0, 0, priority=priority)
    assert data is None or isinstance(data, bytes)
    return None if data is None else (egress_port, data)


def check(random: Random) -> None:
    program = make_program(random)
    pipeline = Pipeline.load(json.dumps(program))
    oracle = Oracle(program)
    fill(random, program, pipeline, oracle)
    for _ in range(8):
        packet = make_packet(random)
        port = random.randrange(4)
        expected = oracle.process(packet, port)
        assert run(pipeline, packet, port) == expected, packet.hex()
        for name, cells in oracle.registers.items():
            assert pipeline.runtime.registers[name].cells == cells
        for name, counts in oracle.counters.items():
            array = pipeline.runtime.counters[name]
            assert [list(pair) for pair in zip(array.packets, array.bytes, strict=True)] == counts


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_compiled_code_does_what_the_interpreter_does(seed):
    check(Random(seed))
