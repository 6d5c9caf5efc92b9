"""p4c's own STF tests for v1model, on the switch.

Point P4C_DIR to a checkout of p4c, with p4c-bm2-ss on PATH; the pass count is printed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from softswitch.errors import SwitchError, UnsupportedConstruct
from tests.softswitch import stf
from tests.softswitch.small import Small, argument, assign, field, standard

CHECKOUT = os.environ.get("P4C_DIR")
COMPILER = shutil.which("p4c-bm2-ss")
MISSING = [
    *([] if CHECKOUT else ["P4C_DIR does not point to a checkout of p4c"]),
    *([] if COMPILER else ["p4c-bm2-ss is not on PATH"]),
]


def programs(checkout: Path) -> list[Path]:
    """STF files of the programs for v1model that p4c's build does not list as failing."""
    failing = stf.expected_failures(checkout)
    found = []
    for file in sorted((checkout / "testdata" / "p4_16_samples").glob("*.stf")):
        source = file.with_suffix(".p4")
        if not source.exists() or str(source.relative_to(checkout)) in failing:
            continue
        if re.search(r"include.*v1model\.p4", source.read_text(errors="replace")):
            found.append(file)
    return found


@pytest.mark.skipif(bool(MISSING), reason="; ".join(MISSING))
@pytest.mark.timeout(900)
def test_p4c_stf_tests_pass(tmp_path, capsys):
    assert CHECKOUT is not None and COMPILER is not None
    checkout = Path(CHECKOUT)
    files = programs(checkout)
    assert len(files) > 100, f"{checkout} holds only {len(files)} STF tests for v1model"

    def build(file: Path) -> str | None:
        source, output = file.with_suffix(".p4"), tmp_path / f"{file.stem}.json"
        complaint = stf.compile_p4(COMPILER, source, output, checkout / "p4include")
        if complaint is not None:
            # Programs with externs of their own, which are refused by name when loaded.
            complaint = stf.compile_p4(COMPILER, source, output, checkout / "p4include", "--emit-externs")
        return complaint

    with ThreadPoolExecutor(2) as pool:
        complaints = list(pool.map(build, files))
    count: Counter[str] = Counter()
    problems = []
    for file, complaint in zip(files, complaints, strict=True):
        if complaint is not None:
            count["not compiled"] += 1
            problems.append(f"{file.stem}: {complaint[:200]}")
            continue
        try:
            found = stf.run_test((tmp_path / f"{file.stem}.json").read_text(), file.read_text())
        except UnsupportedConstruct as error:
            count["refused"] += 1
            print(f"{file.stem}: refused: {error}")
            continue
        except (SwitchError, stf.StfError) as error:
            found = [f"{type(error).__name__}: {error}"]
        count["failed" if found else "passed"] += 1
        problems += [f"{file.stem}: {problem}" for problem in found]
    with capsys.disabled():
        summary = ", ".join(f"{number} {what}" for what, number in count.items())
        print(f"\np4c STF tests for v1model: {summary}, of {len(files)}", file=sys.stderr)
    assert not problems, "\n".join(problems)
    assert count["refused"] <= 1


STF = """
# what the runner understands
ADD split 5 a.kind:0x0* a.value:0x1234/8 go(port:2)
add split 7 a.kind:0x01 a.value:0x12ff/16 go(port:0x3)
setdefault split go(port:1)
packet 0 00 1256 00 AA
expect 2 00 12** 00 AA $
packet 0 01 12ff 00
expect 3 01
packet 4 70 0000 00
expect 1
"""


def _program() -> str:
    program = Small()
    go = program.action("control.go", [assign(standard("egress_spec"), argument(0))], port=9)
    program.table("control.split", [("ternary", field("a", "kind")), ("lpm", field("a", "value"))], [go], default=go, data=(0,))
    return json.dumps(program.json)


def test_the_runner_finds_that_all_is_well():
    assert stf.run_test(_program(), STF) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("00 12** 00 AA $", "00 12** 00 $"), "is not 0012**00$"),
        (("00 12** 00 AA $", "00 13** 00 AA"), "is not 0013**00AA"),
        (("packet 4 70 0000 00\nexpect 1\n", "packet 1 70 0000 00\n"), "port 1: 1 packets instead of 0"),
        (("expect 1\n", "expect 1\nexpect 1\n"), "port 1: 1 packets instead of 2"),
        (("go(port:0x3)", "go(port:4)"), "port 3: 0 packets instead of 1"),
    ],
)
def test_the_runner_finds_what_is_wrong(change, problem):
    assert any(problem in found for found in stf.run_test(_program(), STF.replace(*change)))


@pytest.mark.parametrize(
    "line", ["add nowhere a.kind:0x1 go(port:1)", "add split a.nothing:0x1 go(port:1)", "add split a.kind:0x1 stay()", "dance 1"]
)
def test_the_runner_refuses_what_is_not_there(line):
    with pytest.raises(stf.StfError):
        stf.run_test(_program(), line)
