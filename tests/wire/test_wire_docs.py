"""docs/wire-format.md says what the table says, and its examples run."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dlcp.cli.main import main
from dlcp.policy import Policy
from dlcp.transport.serial import ahead
from dlcp.wire import render
from dlcp.wire.codec import check_ok
from dlcp.wire.header import HEADER, VERSION, PacketType
from dlcp.wire.layout import Field, Layout
from dlcp.wire.summary import Verdict

DOC = Path(__file__).parents[2] / "docs" / "wire-format.md"
TEXT = DOC.read_text("utf-8")


def section(title):
    return re.split(r"^##+ ", TEXT.split(f"## {title}\n")[1], flags=re.MULTILINE)[0]


def table(text):
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return rows[2:]


def test_the_generated_blocks_are_up_to_date():
    assert render.refresh(TEXT) == TEXT, "run: dlcp wire table --refresh docs/wire-format.md"


def test_every_block_stands_there_once():
    assert sorted(render.block_names(TEXT)) == sorted(render.blocks())


def test_a_change_of_the_table_would_be_noticed():
    assert render.refresh(TEXT.replace("| 8 | 0 | 64 | `cookie`", "| 8 | 0 | 63 | `cookie`")) == TEXT


def test_every_type_is_explained():
    for kind in PacketType:
        assert f"**{kind.name}**" in section("Exchange"), kind


def test_every_field_is_in_the_table_of_meaning():
    named = set(re.findall(r"`(\w+)`", TEXT.split("Which fields mean something")[1].split("## Check")[0]))
    assert named >= set(HEADER.slots) - {"reserved"}


def test_the_example_of_the_header():
    dump, fields = re.findall(r"```text\n(.*?)```", TEXT.split("<!-- example -->")[1], re.DOTALL)[:2]
    raw = bytes.fromhex(dump.replace(" ", "").replace("\n", ""))
    values = {name: int(value, 0) for name, value in re.findall(r"(\w+) +(0x[0-9a-f]+|\d+)", fields)}
    assert HEADER.decode_one(raw) == values | {"reserved": 0}
    assert check_ok(np.frombuffer(raw, np.uint8)[None]).all()


def test_the_code_points_are_the_policys():
    rows = table(section("IP header: DSCP and ECN"))
    assert len(rows) == 8
    for row in rows:
        level, dscp, protected, droppable = int(row[0]), int(row[2]), int(row[3], 16), int(row[4], 16)
        assert (protected, droppable) == (Policy().tos(level, True), Policy().tos(level, False))
        assert dscp == 8 * level == protected >> 2


def test_serial_numbers():
    rows = table(section("Serial numbers"))
    assert rows
    for a, b, distance, verdict in rows:
        assert ahead(int(a), int(b)) == int(distance)
        assert verdict.startswith("newer" if int(distance) > 0 else "older")


def test_what_a_switch_may_change_is_what_the_table_says():
    sentence = section("What a switch may change").split(", and nothing else")[0]
    assert re.findall(r"`(\w+)`", sentence) == [f.name for f in HEADER.fields if f.mutable]


def test_the_verdicts_are_listed():
    row = next(row for row in table(section("Tools")) if row[0] == "`verdicts`")
    assert re.findall(r"`(\w+)`", row[1]) == [v.name.lower() for v in Verdict]


@pytest.fixture
def job(wire, tmp_path):
    rng = np.random.default_rng(3)
    frames = [wire.frame(wire.datagram(rng, PacketType(k % 10)), sport=5000, dport=5001) for k in range(50)]
    return wire.pcap(tmp_path / "job.pcap", frames)


def test_the_keys_of_decode(job, capsys):
    main(["wire", "decode", str(job), "--json", "--packets", "1"])
    document = json.loads(capsys.readouterr().out)
    named = {key for row in table(section("Tools")) for key in re.findall(r"`(\w+)`", row[0])}
    assert named == set(document)
    sums = next(row[1] for row in table(section("Tools")) if row[0].startswith("`types`"))
    assert set(re.findall(r"`(\w+)`", sums)) == set(next(iter(document["types"].values())))


def test_the_scapy_example_runs(job):
    pytest.importorskip("scapy", reason="scapy is not installed (pip install 'dlcp[dev]')")
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=job.parent, capture_output=True, text=True, check=True, timeout=60)
    assert len(done.stdout.splitlines()) == 10


def test_the_filters_of_the_examples_exist(job, tshark):
    commands = [shlex.split(line, comments=True) for line in re.findall(r"^tshark .*$", TEXT, re.MULTILINE)]
    assert len(commands) == 3
    for command in commands:
        assert command[1:5] == ["-X", "lua_script:dlcp.lua", "-r", "job.pcap"]
        assert tshark(job, *command[5:])


def test_the_fields_named_as_filters_exist(job, tshark):
    names = {name for name in re.findall(r"`(dlcp(?:\.[a-z_]+)+)`", TEXT) if not re.match(r"dlcp\.(wire|port)", name)}
    assert len(names) >= 10
    tshark.fields(job, *sorted(names))


class TestDiagrams:
    def test_each_bit_has_its_column(self):
        lines = render.diagram(HEADER).splitlines()
        assert len({len(line) for line in lines[2:]}) == 1
        cells = [line for line in lines if line.startswith("|")]
        assert len(cells) == HEADER.size // 4
        edges = [[k // 2 for k, mark in enumerate(line) if mark == "|"] for line in cells]
        first = 0
        for field in HEADER.fields:
            assert first % 32 in edges[first // 32]
            first += field.bits
            assert (first - 1) % 32 + 1 in edges[(first - 1) // 32]

    def test_short_names_are_told_apart(self):
        for layout in render.LAYOUTS:
            assert len({render.label(f) for f in layout.fields}) == len(layout.fields)

    def test_what_cannot_be_drawn(self):
        crooked = Layout("crooked", [Field("a", 16, ""), Field("b", 32, ""), Field("c", 16, "")])
        with pytest.raises(ValueError, match=r"crooked\.b crosses a row"):
            render.diagram(crooked)

    def test_the_version_is_named(self):
        assert f"version {VERSION}" in render.text_table()
