"""``dlcp wire`` as users run it."""

import gzip
import json
import subprocess
import sys

import numpy as np
import pytest

from dlcp.cli.main import Exit, main
from dlcp.wire import render
from dlcp.wire.header import HEADER, PacketType
from dlcp.wire.wireshark import dissector


@pytest.fixture
def capture(wire, tmp_path):
    """One packet of each type, and a stranger."""
    rng = np.random.default_rng(41)
    frames = [wire.frame(wire.datagram(rng, kind), tos=3) for kind in PacketType] + [wire.frame(bytes(100), 5000, 53)]
    return wire.pcap(tmp_path / "a.pcap", frames)


def run(capsys, *arguments):
    code = main(["wire", *map(str, arguments)])
    out = capsys.readouterr()
    return code, out.out, out.err


class TestTable:
    def test_text(self, capsys):
        code, out, _ = run(capsys, "table")
        assert code == Exit.OK
        assert render.diagram(HEADER).splitlines()[3] in out
        for field in HEADER.fields:
            assert f" {field.name} " in out and field.doc in out
        assert "8 abort, 9 goodbye" in out

    def test_json(self, capsys):
        code, out, _ = run(capsys, "table", "--json")
        table = json.loads(out)
        assert code == Exit.OK
        assert {name: record["bytes"] for name, record in table["records"].items()} == {
            "header": 48,
            "feedback": 32,
            "report": 16,
            "hello": 16,
            "abort": 8,
        }
        fields = table["records"]["header"]["fields"]
        assert [f["name"] for f in fields] == list(HEADER.slots)
        assert [f["bit"] for f in fields] == [sum(g["bits"] for g in fields[:k]) for k in range(len(fields))]
        dtype = next(f for f in fields if f["name"] == "dtype")
        assert [(part["name"], part["bit"], part["bits"]) for part in dtype["parts"]] == [
            ("mean", 168, 1),
            ("parts", 169, 3),
            ("element", 172, 4),
        ]
        assert [t["name"] for t in table["types"]] == [kind.name.lower() for kind in PacketType]

    def test_refresh(self, capsys, tmp_path):
        path = tmp_path / "a.md"
        path.write_text("mine\n<!-- generated: types -->\nold\n<!-- end -->\nmine too\n")
        assert run(capsys, "table", "--refresh", path)[0] == Exit.OK
        assert path.read_text() == f"mine\n<!-- generated: types -->\n{render.type_table()}\n<!-- end -->\nmine too\n"
        before = path.read_text()
        run(capsys, "table", "--refresh", path)
        assert path.read_text() == before

    def test_refresh_of_what_is_not_there(self, capsys, tmp_path):
        code, _, err = run(capsys, "table", "--refresh", tmp_path / "none.md")
        assert code == Exit.USAGE and "none.md" in err
        path = tmp_path / "a.md"
        path.write_text("<!-- generated: typos -->\nold\n<!-- end -->\n")
        code, _, err = run(capsys, "table", "--refresh", path)
        assert code == Exit.USAGE and "typos" in err and "header-diagram" in err
        assert "old" in path.read_text()


class TestDissector:
    def test_on_standard_output(self, capsys):
        assert run(capsys, "dissector") == (Exit.OK, dissector(), "")

    def test_in_a_file_in_a_new_folder(self, capsys, tmp_path):
        path = tmp_path / "plugins" / "dlcp.lua"
        code, out, _ = run(capsys, "dissector", "-o", path)
        assert code == Exit.OK and str(path) in out
        assert path.read_text() == dissector()

    def test_where_nothing_can_be_written(self, capsys, tmp_path):
        (tmp_path / "file").write_text("")
        code, _, err = run(capsys, "dissector", "-o", tmp_path / "file" / "dlcp.lua")
        assert code == Exit.USAGE and "dlcp.lua" in err and "--output" in err


class TestDecode:
    def test_json_is_one_document(self, capsys, capture):
        code, out, err = run(capsys, "decode", capture, "--json")
        document = json.loads(out)
        assert (code, err) == (Exit.OK, "")
        assert (document["frames"], document["datagrams"], document["packets"]) == (11, 11, 11)
        assert document["complete"] and document["file"] == str(capture)
        assert {k: v for k, v in document["verdicts"].items() if v} == {"good": 10, "foreign": 1}
        assert set(document["types"]) == {kind.name.lower() for kind in PacketType}
        assert sum(sums["marked"] for sums in document["classes"].values()) == 10
        assert "listed" not in document

    def test_tables(self, capsys, capture):
        code, out, _ = run(capsys, "decode", capture, "--packets", 3)
        assert code == Exit.OK
        assert "11 frames, 11 UDP datagrams (0 of them bursts of segmentation offload), 11 packets" in out
        for text in ("good packets by type", "good packets by class", "good packets by flow", "hello_ack"):
            assert text in out
        listing = [line for line in out.splitlines() if " op " in line]
        assert len(listing) == 3 and [line.split()[2] for line in listing] == ["data", "probe", "status"]

    def test_packets_in_json(self, capsys, capture):
        listed = json.loads(run(capsys, "decode", capture, "--json", "--packets", 99)[1])["listed"]
        assert [p["type"] for p in listed[:10]] == [kind.name.lower() for kind in PacketType]
        assert listed[10]["verdict"] == "foreign"

    def test_port_and_cookie(self, capsys, capture):
        verdicts = json.loads(run(capsys, "decode", capture, "--json", "--port", 53)[1])["verdicts"]
        assert (verdicts["good"], verdicts["version"]) == (10, 1)
        verdicts = json.loads(run(capsys, "decode", capture, "--json", "--cookie", "0xabc")[1])["verdicts"]
        assert verdicts["foreign"] == 11

    def test_a_zipped_capture(self, capsys, capture, tmp_path):
        zipped = tmp_path / "a.pcap.gz"
        zipped.write_bytes(gzip.compress(capture.read_bytes()))
        assert json.loads(run(capsys, "decode", zipped, "--json")[1])["verdicts"]["good"] == 10

    def test_a_capture_that_was_cut_off(self, capsys, capture):
        capture.write_bytes(capture.read_bytes()[:-10])
        code, out, _ = run(capsys, "decode", capture)
        assert code == Exit.OK and "ends in the middle of a frame" in out

    def test_from_a_pipe(self, capture):
        command = [sys.executable, "-m", "dlcp.cli.main", "wire", "decode", "-", "--json"]
        done = subprocess.run(command, input=capture.read_bytes(), capture_output=True, check=True, timeout=60)
        assert json.loads(done.stdout)["verdicts"]["good"] == 10
        assert done.stderr == b""

    @pytest.mark.parametrize("content", [None, b"", b"not a capture"])
    def test_what_cannot_be_read(self, capsys, tmp_path, content):
        path = tmp_path / "b.pcap"
        if content is not None:
            path.write_bytes(content)
        code, out, err = run(capsys, "decode", path)
        assert code == Exit.USAGE and out == ""
        assert "b.pcap" in err and len(err.splitlines()) == 1

    @pytest.mark.parametrize(
        "arguments",
        [["--port", "0"], ["--port", "x"], ["--cookie", "xyz"], ["--cookie", "1" * 17], ["--packets", "-1"], ["--nonsense"]],
    )
    def test_wrong_arguments(self, capsys, capture, arguments):
        with pytest.raises(SystemExit) as caught:
            main(["wire", "decode", str(capture), *arguments])
        assert caught.value.code == Exit.USAGE
        assert capsys.readouterr().err

    def test_an_action_is_needed(self):
        with pytest.raises(SystemExit) as caught:
            main(["wire"])
        assert caught.value.code == Exit.USAGE
