"""The program as an artifact: compiled from these sources, without a warning, and at one with dlcp/ on header and constants."""

import hashlib
import json
import re
import shutil
import subprocess

import pytest

from dlcp import Policy
from dlcp.wire.header import CONTROL_CLASS, HEADER, HEADER_BYTES, VERSION, PacketType


@pytest.fixture(scope="module")
def program(project):
    return json.loads((project / "p4" / "build" / "dlcp.json").read_text())


@pytest.fixture(scope="module")
def constants(project):
    text = (project / "p4" / "constants.p4").read_text()
    return {name: int(value, 0) for name, value in re.findall(r"^const \S+\s+(\w+)\s*= (0x[0-9a-f]+|\d+);", text, re.MULTILINE)}


def test_the_committed_program_was_compiled_from_these_sources(project):
    lines = (project / "p4" / "build" / "sources.sha256").read_text().splitlines()
    digests = {name: digest for digest, name in (line.split() for line in lines if not line.startswith("#"))}
    sources = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (project / "p4").glob("*.p4")}
    assert digests == sources, "compile it again: make p4"


@pytest.mark.skipif(shutil.which("p4c-bm2-ss") is None, reason="needs p4c-bm2-ss; the digest of the sources is compared")
def test_compiling_again_gives_the_committed_program_without_a_warning(project, tmp_path):
    done = subprocess.run([project / "scripts" / "p4.sh", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stdout + done.stderr
    mine, committed = tmp_path, project / "p4" / "build"
    versions = [(place / "sources.sha256").read_text().splitlines()[0] for place in (mine, committed)]
    if versions[0] == versions[1]:
        for name in ("dlcp.json", "dlcp.p4info.txtpb", "sources.sha256"):
            assert (mine / name).read_text() == (committed / name).read_text(), name


def test_without_the_compiler_make_says_what_is_missing(project, tmp_path):
    place = tmp_path / "bin"
    place.mkdir()
    for tool in ("sh", "dirname", "mkdir"):
        (place / tool).symlink_to(shutil.which(tool))
    done = subprocess.run(
        [project / "scripts" / "p4.sh", tmp_path / "out"], capture_output=True, text=True, check=False, env={"PATH": str(place)}
    )
    assert done.returncode == 3 and "p4c-bm2-ss is not on PATH" in done.stderr


def test_the_program_names_no_place_of_the_machine_that_compiled_it(project):
    for name in ("dlcp.json", "dlcp.p4info.txtpb"):
        text = (project / "p4" / "build" / name).read_text()
        assert not re.findall(r'"filename" : "[^"]*/[^"]*"', text)
        assert not re.search(r"/(home|root|tmp|usr|work)/", text)


def test_the_top_file_only_composes_and_every_file_is_used(project):
    included = re.findall(r'#include "(.*)"', (project / "p4" / "dlcp.p4").read_text())
    assert sorted([*included, "dlcp.p4"]) == sorted(path.name for path in (project / "p4").glob("*.p4"))
    for name in included:
        text = (project / "p4" / name).read_text()
        assert text.startswith("// ") and len(re.findall(r"^control \w+\(.*\{$", text, re.MULTILINE)) <= 2


def test_the_header_is_that_of_the_wire_table(program):
    """Every field of the program is a field of the table, or a run of whole ones that no switch may change."""
    (header,) = (kind for kind in program["header_types"] if kind["name"] == "dlcp_t")
    table = {}
    at = 0
    for field in HEADER.fields:
        table[at] = field
        at += field.bits
    assert sum(bits for _, bits, _ in header["fields"]) == at == 8 * HEADER_BYTES
    at = 0
    for name, bits, signed in header["fields"]:
        assert not signed
        whole = []
        end = at + bits
        while at < end:
            whole.append(table[at])
            at += table[at].bits
        assert at == end, f"{name} ends inside a field"
        if len(whole) == 1:
            assert name == whole[0].name
        else:
            assert not any(field.mutable for field in whole), f"{name} holds a field that a switch changes"


def test_constants_are_those_of_the_wire_table_and_of_the_policy(constants):
    assert constants["DLCP_TYPE_DATA"] == PacketType.DATA
    assert constants["DLCP_CONTROL"] == CONTROL_CLASS == constants["QUEUE_FIRST"]
    assert constants["DLCP_BYTES"] == HEADER_BYTES
    assert len(Policy().classes.dscp) == CONTROL_CLASS + 1


def test_the_parser_looks_for_the_version_and_for_reserved_bits(constants):
    assert constants["DLCP_START"] == int.from_bytes(HEADER.encode_one(version=VERSION)[:2], "big")
    assert constants["DLCP_START_MASK"] == int.from_bytes(HEADER.encode_one(version=15, reserved=3)[:2], "big")
