"""The page about the switch: its tables are the program's, its commands are accepted, its examples run."""

import re
import shlex
import subprocess
import sys
from itertools import takewhile

import pytest
from scapy.utils import rdpcap, wrpcap

from softswitch.options import parse_arguments
from softswitch.pipeline import Pipeline
from tests.p4 import frames
from tests.p4.bench import DISCARDS, PROGRAM


@pytest.fixture(scope="module")
def page(project):
    return (project / "docs" / "switch.md").read_text()


@pytest.fixture(scope="module")
def control():
    return Pipeline.load(PROGRAM.read_text()).control


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def commands(page):
    """Command lines of the page, without their line breaks."""
    lines = "".join(blocks(page, "sh")).replace("\\\n", "").splitlines()
    return [shlex.split(line) for line in lines if line]


def sections(page):
    """Headings that name tables, with the text below each."""
    parts = re.split(r"^### (.*)\n", page, flags=re.MULTILINE)
    for names, text in zip(parts[1::2], parts[2::2], strict=True):
        for name in names.split(", "):
            yield name, text.split("\n## ")[0]


def rows(text, heading):
    """Rows of the Markdown table whose first column has this heading."""
    lines = text.split(f"| {heading} |", 1)[1].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in takewhile(lambda line: line.startswith("|"), lines)]


def test_every_table_is_on_the_page_with_its_key_and_actions(page, control):
    declared = {name: table for name, table in control.tables.items() if table.keys}
    described = dict(sections(page))
    assert described.keys() == declared.keys()
    numbers = list(declared)
    for name, text in described.items():
        table = declared[name]
        place = [other for other in numbers if described[other] == text].index(name)
        keys = [[cells[0].strip("`"), cells[1], cells[2]] for cells in rows(text, "key")]
        widths = [key.width for key in table.keys]
        assert [key[:2] for key in keys] == [[key.name, key.kind] for key in table.keys]
        assert [int(key[2].split(", ")[place if "," in key[2] else 0]) for key in keys] == widths
        actions = {}
        for cells in rows(text, "action"):
            parameters = [tuple(item.split(": ")) for item in re.findall(r"`(.*?)`", cells[1])]
            actions[cells[0].split("`")[1]] = [(parameter, int(width)) for parameter, width in parameters]
        assert actions == {
            action.name.split(".")[-1]: [(parameter.name, parameter.width) for parameter in action.parameters]
            for action in table.actions
        }
        assert re.search(rf"\b[Ss]ize {table.size}\b", text), f"{name} has room for {table.size} entries"
        if table.profile is not None:
            profile = control.profiles[table.profile]
            assert f"`{profile.name}`" in text and f"{profile.size} members" in text


def test_initial_defaults_on_the_page_are_those_of_the_program(page, control):
    for name, text in sections(page):
        table = control.tables[name]
        if table.default is None or table.profile is not None:
            continue
        action = table.actions[table.default].name.split(".")[-1]
        assert re.search(rf"`{action}` \((initial|const) default\)|Initial default `{action}(\(0\))?`", text), name


def test_state_on_the_page_is_that_of_the_program(page, control):
    text = page.split("## State\n")[1].split("\n## ")[0]
    named = set(re.findall(r"`([\w.]+)`", "".join(row[0] for row in rows(text, "object"))))
    direct = [name.rsplit(".", 1)[1] for objects in (control.counters, control.meters) for name in objects if "." in name]
    assert {name.rsplit(".", 1)[-1] for name in named} == {
        name.rsplit(".", 1)[-1] for objects in (control.counters, control.registers, control.meters) for name in objects
    }
    assert sorted(direct) == ["job_meter", "job_packets"]
    for name, array in control.registers.items():
        (row,) = (row for row in rows(text, "object") if f"`{name.rsplit('.', 1)[-1]}`" in row[0])
        assert f"{array.size} cells of {array.width} bits" in row[1]
    (row,) = (row for row in rows(text, "object") if "`discarded`" in row[0])
    assert dict((word, int(index)) for index, word in re.findall(r"(\d) `(\w+)`", row[2])) == DISCARDS
    assert control.counters["forwarded"].size == 24 and control.counters["discarded"].size == 8


def test_every_file_of_the_program_is_on_the_page(page, project):
    for path in (project / "p4").glob("*.p4"):
        assert f"`{path.name}`" in page


def test_sizes_in_the_table_of_resources(page, control):
    text = page.split("## Resources\n")[1]
    sizes = {name: cells[1] for cells in rows(text, "object") for name in re.findall(r"`(\w+)`", cells[0])}
    for table in control.tables.values():
        if table.keys:
            assert sizes[table.name.rsplit(".", 1)[1]].startswith(str(table.size))
    cells = sum(counter.size for counter in control.counters.values() if counter.table is None)
    assert f"5 arrays, {cells} cells" in text


def test_the_python_on_the_page_runs(page, project, monkeypatch):
    monkeypatch.chdir(project)
    (code,) = blocks(page, "python")
    exec(code, {})


def test_the_commands_on_the_page_are_accepted(page, project, monkeypatch):
    monkeypatch.chdir(project)
    seen = set()
    for words in commands(page):
        seen.add(words[0])
        match words:
            case ["python", "-m", "softswitch", *arguments]:
                options = parse_arguments(arguments)
                assert options.json.is_file() and options.p4info.is_file()
            case ["simple_switch_grpc", *arguments]:  # its flags are ours
                assert parse_arguments(arguments).priority_queues == 8
            case ["make", target]:
                assert re.search(rf"^{target}: .*## ", (project / "Makefile").read_text(), re.MULTILINE)
            case _:
                raise AssertionError(words)
    assert seen == {"python", "simple_switch_grpc", "make"}


def test_the_command_between_captures_runs(page, project, tmp_path):
    (words,) = (words for words in commands(page) if "--use-files" in words)
    for name, frame in (("a", frames.dlcp()), ("b", frames.udp(2, 1))):
        wrpcap(str(tmp_path / f"{name}_in.pcap"), [frames.parse(frame)])
    arguments = [str(project / word) if word.startswith("p4/") else word for word in words[1:]]
    done = subprocess.run(
        [sys.executable, *arguments, "--stats", "stats.json"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(project)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "stats.json").is_file()
    for name in ("a", "b"):
        assert not rdpcap(str(tmp_path / f"{name}_out.pcap")), "nothing is forwarded before a controller has written entries"


def test_links_lead_somewhere(page, project):
    headings = {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^#+ (.*)$", page, re.MULTILINE)}
    for target in re.findall(r"\]\(([^)]*)\)", page):
        place, _, anchor = target.partition("#")
        if place:
            assert (project / "docs" / place).is_file(), place
        else:
            assert anchor in headings, anchor
