"""``dlcp sim import``: from files of other tools to a scenario that runs."""

import json
import re

import pytest

from dlcp.cli.main import main
from dlcp.topology import Topology
from dlcp.workload import Workload
from sim.cli_inputs import FORMATS
from sim.scenario_file import read
from tests.conftest import ROOT
from tests.sim.test_sim_inputs_kineto import nccl
from tests.sim.test_sim_inputs_text import ASTRA, FLOWS, HPCC, MATRIX, SIMAI, TREE


def run(*arguments):
    return main(["sim", *map(str, arguments)])


@pytest.fixture
def files(tmp_path):
    """One sample of each format."""
    texts = {
        "topology.txt": HPCC,
        "flow.txt": FLOWS.replace("200000000 2", "20000 0.001"),
        "tree.topo": TREE,
        "matrix.cm": MATRIX,
        "data.txt": ASTRA,
        "simai.txt": SIMAI,
        **{f"rank{rank}.json": json.dumps(nccl(rank)) for rank in range(4)},
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("form", "names", "options", "hosts", "messages"),
    [
        ("hpcc", ["topology.txt", "flow.txt"], [], 3, 3),
        ("hpcc", ["topology.txt"], [], 3, 0),
        ("htsim", ["tree.topo", "matrix.cm"], [], 8, 6),
        ("htsim", ["matrix.cm"], ["--rate", "40 Gbit/s"], 8, 6),
        ("htsim", ["tree.topo"], [], 8, 0),
        ("astra", ["data.txt"], ["--ranks", "4"], 4, 0),
        ("astra", ["simai.txt"], ["--iterations", "1"], 8, 88),
        ("kineto", [f"rank{rank}.json" for rank in range(4)], [], 4, 52),
        ("kineto", ["rank0.json"], ["--ranks", "3", "--transport", "tcp"], 0, 0),
    ],
)
def test_what_is_imported_runs(files, capsys, form, names, options, hosts, messages):
    out = files / "made" / "here"
    code = run("import", form, *(files / name for name in names), "--out", out, "--transport", "dctcp", "--json", *options)
    if not hosts:
        assert code == 2 and "ranks (0, 1, 2, 3)" in capsys.readouterr().err
        return
    assert code == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["hosts"], summary["messages"]) == (hosts, messages)
    assert len(Topology.from_toml(out / "topology.toml").hosts) == hosts
    scenario = read(out / "scenario.toml")
    assert scenario.transport.name == "dctcp"
    assert run("run", out / "scenario.toml", "--engine", "python", "--json", "--set", "traffic.size=3 kB") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["finished"] and result["complete"] == (messages or result["messages"])
    if names == ["data.txt"]:
        assert Workload.from_toml(out / "workload.toml").elements == 1001 + 2000 and result["steps_s"]


def test_chakra_is_imported_too(files, capsys):
    pytest.importorskip("google.protobuf")
    from tests.sim.chakra_traces import node, write

    traces = [[node(1, 4, duration=5), node(2, 7, [1], comm_type=0, comm_size=6000)] for _ in range(3)]
    groups = files / "groups.json"
    groups.write_text("{}")
    out = files / "out"
    paths = write(files, traces)
    assert run("import", "chakra", *paths, "--groups", groups, "--out", out, "--rate", "10 Gbit/s") == 0
    assert "chakra: 3 hosts, 3 links, 12 messages, 24000 bytes" in capsys.readouterr().out
    assert run("run", out / "scenario.toml", "--engine", "python", "--json") == 0
    assert json.loads(capsys.readouterr().out)["complete"] == 12


def test_a_topology_of_ones_own(files, capsys):
    (files / "net.toml").write_text('[generate]\nkind = "star"\nhosts = 5\nrate = "1 Gbit/s"\n')
    arguments = ["import", "kineto", *(files / f"rank{rank}.json" for rank in range(4)), "--out", files / "out", "--topology"]
    assert run(*arguments, files / "net.toml") == 0
    assert len(Topology.from_toml(files / "out" / "topology.toml").hosts) == 5
    (files / "net.toml").write_text('[generate]\nkind = "star"\nhosts = 3\nrate = "1 Gbit/s"\n')
    assert run(*arguments, files / "net.toml") == 2
    assert "3 hosts, for 4 ranks" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hpcc", "flow.txt"], "flow.txt: line 1: 1 words"),
        (["hpcc", "topology.txt", "flow.txt", "flow.txt"], "3 files; accepted: topology.txt"),
        (["hpcc", "topology.txt", "--topology", "x.toml"], "the files describe a network"),
        (["htsim", "flow.txt"], "its name ends in .txt; accepted: .topo or .cm"),
        (["htsim", "matrix.cm", "matrix.cm"], "the second .cm"),
        (["astra", "data.txt"], "does not say how many ranks there are"),
        (["astra", "data.txt", "simai.txt"], "2 files; accepted: one workload text"),
        (["astra", "data.txt", "--ranks", "0"], "--ranks: 0; accepted: 1 to 65000"),
        (["kineto", "rank0.json", "--limit", "100 B"], "has more than 100 bytes; accepted: up to 100 bytes, or a higher --limit"),
        (["kineto", "nowhere.json"], "cannot be read: No such file or directory"),
        (["chakra", "matrix.cm", "--flops", "0"], "--flops"),
        (["htsim", "matrix.cm", "--transport", "sctp"], "--transport: 'sctp'; accepted: raw, tcp"),
    ],
)
def test_what_is_wrong_is_one_line(files, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(files)
    assert run("import", *arguments, "--out", "out") == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (files / "out").exists()


def test_the_first_window_of_ndp_is_what_a_round_trip_holds(files, capsys):
    options = ["--rate", "100 Gbit/s", "--delay", "1 us", "--out", files / "out"]
    assert run("import", "htsim", files / "matrix.cm", "--transport", "ndp", *options) == 0
    # 4 us of propagation, 50 kB at this rate, and a packet that each of two links takes up.
    assert read(files / "out" / "scenario.toml").transport.initial_window == 36


def test_quantities_are_checked_by_the_parser(files, capsys):
    with pytest.raises(SystemExit):
        run("import", "htsim", files / "matrix.cm", "--out", files / "out", "--rate", "fast")
    assert "'fast' is not a number with a unit" in capsys.readouterr().err


def section():
    return (ROOT / "docs" / "simulator.md").read_text().split("\n## Inputs\n")[1].split("\n## ")[0]


def test_the_page_names_every_format():
    for form in FORMATS:
        assert f"`{form}`" in section(), form


def test_the_commands_of_the_page_run(files, capsys, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(files)
    (files / "permutation.cm").write_text(MATRIX)
    (files / "fat_tree.topo").write_text(TREE)
    blocks = re.findall(r"```(\w+)\n(.*?)```", section(), re.DOTALL)
    for language, text in blocks:
        if language == "csv":
            (files / "messages.csv").write_text(text)
        elif language == "toml":
            (files / "job.toml").write_text(text)
    (files / "net.toml").write_text('[generate]\nkind = "star"\nhosts = 4\nrate = "10 Gbit/s"\n')
    consoles = "".join(text for language, text in blocks if language == "console")
    commands = re.findall(r"^\$ dlcp (.*)$", consoles, re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        words = re.findall(r'"[^"]*"|\S+', command)
        words = [word.strip('"') for word in words] + (["--engine", "python"] if " run " in f" {command} " else [])
        assert main(words) == 0, command
    capsys.readouterr()
