"""``dlcp sim`` from a file to the summary."""

import csv
import json
import os
import signal
import subprocess
import sys

import pytest

import sim.compiled
from dlcp.cli.main import main
from dlcp.errors import ConfigError
from dlcp.schema import names
from sim.bench import measure
from sim.results import MESSAGE_COLUMNS, PORT_COLUMNS
from sim.scenario import Buffering, Carrier, Scenario, Traffic
from sim.scenario_file import read
from sim.scenario_traffic import BackgroundFlows, TrainingJob
from tests.conftest import ROOT

TINY = """
topology = "net.toml"
[traffic]
size = "30 kB"
[transport]
name = "dctcp"
"""


@pytest.fixture
def tiny(tmp_path):
    (tmp_path / "net.toml").write_text('[generate]\nkind = "star"\nhosts = 4\nrate = "10 Gbit/s"\n')
    path = tmp_path / "run.toml"
    path.write_text(TINY)
    return path


def run(*arguments):
    return main(["sim", *map(str, arguments)])


def test_a_run_writes_a_row_for_every_message_and_port(tiny, tmp_path, capsys):
    out = tmp_path / "out"
    assert run("run", tiny, "--engine", "python", "--out", out, "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == json.loads((out / "summary.json").read_text())
    with (out / "messages.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == MESSAGE_COLUMNS
    assert len(rows) == summary["complete"] == summary["messages"] == 4
    assert all(float(row["slowdown"]) >= 1 for row in rows)
    with (out / "ports.csv").open() as file:
        ports = list(csv.DictReader(file))
    assert tuple(ports[0]) == PORT_COLUMNS
    assert len(ports) == 8
    assert sum(int(row["packets"]) for row in ports) >= summary["packet_hops"]


def test_the_same_run_gives_the_same_bytes(tiny, tmp_path, capsys):
    for out in ("one", "two"):
        assert run("run", tiny, "--engine", "python", "--seed", 4, "--jsonl", "--out", tmp_path / out) == 0
    for name in ("messages.jsonl", "ports.jsonl", "summary.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    text = capsys.readouterr().out
    assert "4 of 4 messages complete" in text


def test_what_is_not_done_by_the_limit_shows_in_the_exit_code(tiny, capsys):
    assert run("run", tiny, "--engine", "python", "--set", "limit=3 us", "--json") == 1
    summary = json.loads(capsys.readouterr().out)
    assert not summary["finished"] and summary["complete"] == 0 and summary["now_s"] == 3e-6


def test_two_runs_are_compared(tiny, tmp_path, capsys):
    for name in ("dctcp", "dlcp"):
        assert run("run", tiny, "--engine", "python", "--set", f"transport.name={name}", "--out", tmp_path / name) == 0
    capsys.readouterr()
    assert run("compare", tmp_path / "dctcp", tmp_path / "dlcp" / "summary.json", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["completion_s.p50"]["change"] > 0  # a new DLCP flow assumes a round trip of 10 ms
    assert run("compare", tmp_path / "dctcp", tmp_path / "dctcp") == 0
    assert "+0.0%" in capsys.readouterr().out
    assert run("compare", tiny, tmp_path / "dctcp") == 2
    assert "is not JSON" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("transport.name=dctpc", "dctcp"),
        ("traffic.kind=training", "workload"),
        ("traffic.fan_in=0", "fan_in"),
        ("nonsense", "has no value"),
        ("seed.x=1", "is no table"),
        ('events=[{at = "1 us", a = "h0", b = "h1"}]', "no link joins h0 and h1"),
        ("topology=nowhere.toml", "nowhere.toml"),
    ],
)
def test_what_is_wrong_is_said(tiny, capsys, change, message):
    assert run("run", tiny, "--engine", "python", "--set", "seed=1", "--set", change) == 2
    assert message in capsys.readouterr().err


def test_an_incast_needs_hosts(tiny, capsys):
    assert run("run", tiny, "--engine", "python", "--set", "traffic.kind=incast", "--set", "traffic.fan_in=4") == 2
    assert "from 1 to 3" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios").glob("*.toml")), ids=lambda path: path.stem)
def test_the_scenarios_that_come_along_are_right(path):
    scenario = read(path)
    assert scenario.build(path.parent, "python").messages
    assert Scenario.from_dict(scenario.to_dict()) == scenario


def test_ctrl_c_keeps_the_results(tiny, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "dlcp", "sim", "run", str(tiny), "--engine", "python", "--out", str(out), "--json"]
    changes = ["--set", "traffic.size=300 MB", "--set", "traffic.kind=incast", "--set", "traffic.fan_in=3"]
    with subprocess.Popen(
        [*command, *changes], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=os.environ
    ) as process:
        while not (out / "messages.csv").exists() or not (out / "messages.csv").stat().st_size:
            assert process.poll() is None
            os.sched_yield()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    summary = json.loads(output)
    assert summary["interrupted"] and not summary["finished"] and summary["packet_hops"] > 0
    assert (out / "ports.csv").stat().st_size > 100


def test_the_bench_counts():
    pytest.importorskip("llvmlite")
    result = measure(128, 1, ("dctcp",), size=3000)
    assert result["packet_hops_per_cpu_s"] == result["dctcp"]["packet_hops_per_cpu_s"] > 0
    assert result["dctcp"]["packet_hops"] > 128 * 3 * 2


def test_override_errors_name_the_option():
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        read(ROOT / "scenarios" / "ring-star.toml", ["=1"])


def test_the_page_names_every_key_and_column():
    page = (ROOT / "docs" / "simulator.md").read_text()
    sections = {
        "transport": Carrier,
        "buffers": Buffering,
        "traffic": Traffic,
        "jobs": TrainingJob,
        "background": BackgroundFlows,
    }
    for key in names(Scenario):
        for name in names(sections[key]) if key in sections else [key]:
            assert f"{name}`" in page, name
    for column in (*MESSAGE_COLUMNS, *PORT_COLUMNS):
        assert f"`{column}`" in page, column


def test_the_example_of_the_page_runs(monkeypatch, capsys):
    page = (ROOT / "docs" / "simulator.md").read_text()
    code = page.split("```python\n")[1].split("```")[0].replace("incast(144, 32, 100_000)", "incast(144, 3, 3_000)")
    code = code.replace("seed=1", 'seed=1, engine="python"')
    monkeypatch.chdir(ROOT)
    exec(compile(code, "simulator.md", "exec"), {})
    assert 0 < float(capsys.readouterr().out) < 1


def test_without_llvmlite_it_says_what_to_do(tiny, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    sim.compiled.compiled.cache_clear()
    assert run("run", tiny) == 3
    error = capsys.readouterr().err
    assert "pip install 'dlcp[sim]'" in error and "--engine python" in error
