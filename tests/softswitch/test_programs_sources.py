"""The compiled programs are those of the sources beside them."""

import json
import shutil

import pytest

from tests.softswitch.build_programs import PROGRAMS, build, committed, digest, names


@pytest.mark.parametrize("name", names())
def test_what_is_committed_came_from_this_source(name, tmp_path):
    assert committed()[name] == digest(name), "compile again: python -m tests.softswitch.build_programs"
    if shutil.which("p4c-bm2-ss") is None:
        return
    program, info = build(name, tmp_path)
    assert json.loads(program.read_text()) == json.loads((PROGRAMS / f"{name}.json").read_text())
    assert info.read_text() == (PROGRAMS / f"{name}.p4info.txtpb").read_text()


def test_nothing_is_left_over():
    assert sorted(committed()) == names()
