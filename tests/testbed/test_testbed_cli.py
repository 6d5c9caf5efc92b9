"""``dlcp testbed`` as a user runs it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dlcp.cli.main import main
from testbed.catalogue import shipped
from testbed.results import read_results
from tests.testbed.conftest import marked_processes

ROOT = Path(__file__).resolve().parents[2]
FILE = """\
name = "tiny"
target = "bridge"
repeats = 2
timeout = "60 s"

[topology.generate]
kind = "star"
hosts = 2
rate = "100 Mbit/s"

[training]
width = 4
batch_size = 128
epochs = 1
accuracy = 0.0

[[candidates]]
name = "gloo"
comm = "gloo"
baseline = true

[[candidates]]
name = "dlcp"
comm = "dlcp"
"""


EVENT = 'events = [{ at = "1 s", kind = "rank-kill", rank = 2 }]'


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(FILE)
    return path


def folder_in(parent):
    (folder,) = parent.iterdir()
    return folder


def test_the_list(capsys):
    assert main(["testbed", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in listed] == list(shipped())
    assert all(each["summary"] and each["runs"] == each["repeats"] * len(each["candidates"]) for each in listed)
    assert main(["testbed", "list"]) == 0
    assert "incast" in capsys.readouterr().out


@pytest.mark.root
def test_a_check_says_what_would_be_done(file, capsys):
    assert main(["testbed", "check", str(file), "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert checked["runs"] == 4 and checked["lacks"] == [] and checked["experiment"]["repeats"] == 2
    assert main(["testbed", "check", "incast"]) == 0
    shown = capsys.readouterr().out
    assert "gloo-bbr" in shown and "traffic answers" in shown


@pytest.mark.parametrize(
    ("arguments", "change", "words"),
    [
        (["check", "incest"], None, ["incest", "did you mean 'incast'"]),
        (["check", "none.toml"], None, ["none.toml", "cannot be read"]),
        (["run", "FILE"], ('comm = "dlcp"', 'comm = "dlpc"'), ["tiny.toml", "candidates[1].comm", "'dlpc'"]),
        (["run", "FILE"], ("accuracy = 0.0", 'accuracy = "much"'), ["tiny.toml", "training.accuracy"]),
        (["run", "FILE"], ('rate = "100 Mbit/s"', 'rate = "100"'), ["tiny.toml: topology.generate.rate"]),
        (["run", "FILE"], ('rate = "100 Mbit/s"', 'rate = "20 Gbit/s"'), ["tiny.toml: topology.links[0].rate", "10 Gbit/s"]),
        (
            ["run", "FILE"],
            ('comm = "dlcp"', 'comm = "dlcp"\npolicy = { loss = { push = 2 } }'),
            ["candidates[1].policy.loss.push"],
        ),
        (["run", "FILE"], ("repeats = 2", "policy = { wire = { mtu = 1 } }"), ["tiny.toml: policy.wire.mtu"]),
        (["run", "FILE"], ("\n\n[topology", f"\n{EVENT}\n\n[topology"), ["events[0].rank", "no rank 2"]),
        (["run", "FILE", "--candidates", "gloo,bbr"], None, ["--candidates", "no candidate 'bbr'", "gloo, dlcp"]),
        (["run", "--resume", "nowhere"], None, ["results.json", "cannot be read"]),
        (["run", "--resume", "nowhere", "--seed", "3", "--candidates", "a"], None, ["--resume", "candidates, seed"]),
        (["run", "--resume", "nowhere", "--launcher", "torchrun"], None, ["--resume", "launcher"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_are_told_by_file_and_key(file, tmp_path, capsys, arguments, change, words):
    if change is not None:
        file.write_text(FILE.replace(*change))
    out = tmp_path / "out"
    more = ["--out", str(out)] if arguments[0] == "run" else []
    assert main(["testbed", *(str(file) if word == "FILE" else word for word in arguments), *more]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and all(word in error for word in words), error
    assert not out.exists(), "something was made"


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["run", "x", "--resume", "y"],
        ["run", "x", "--epochs", "0"],
        ["run", "x", "--repeats", "0"],
        ["walk"],
        ["run", "x", "--target", "cloud"],
    ],
)
def test_wrong_usage(arguments):
    with pytest.raises(SystemExit) as caught:
        main(["testbed", *arguments])
    assert caught.value.code == 2


@pytest.mark.parametrize("verb", ["", "run", "list", "check", "doctor", "clean", "report"])
def test_help_teaches(verb, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["testbed", *([verb] if verb else []), "--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert "usage: dlcp testbed" in shown
    if verb in ("", "run"):
        assert "examples:" in shown


@pytest.mark.root
def test_a_quick_run(file, tmp_path, state, capsys):
    out = tmp_path / "out"
    assert main(["testbed", "run", str(file), "--quick", "--no-report", "--json", "--out", str(out)]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["complete"] and [each["name"] for each in document["candidates"]] == ["gloo", "dlcp"]
    assert document["candidates"][0]["speedup"] == 1.0 and document["failures"] == []
    assert "[1/2] gloo, seed 1: 0 % after" in captured.err and "[2/2] dlcp, seed 1: " in captured.err
    results = read_results(Path(document["folder"]))
    assert results["planned"] == 2 and results["command"][0] == "dlcp" and len(results["runs"]) == 2


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_interrupted_experiment_leaves_what_is_finished_and_can_be_gone_on_with(file, tmp_path, state, capsys, number):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "dlcp", "testbed", "run", str(file), "--candidates", "gloo", "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    driver = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for line in driver.stderr:
            if line.startswith("[1/2]"):
                driver.send_signal(number)
                break
        rest = driver.communicate(timeout=60)[1]
    finally:
        driver.kill()
        driver.wait()
    assert driver.returncode == 130 and f"ended by {number.name}" in rest and "results.json" in rest
    folder = folder_in(out)
    results = read_results(folder)
    assert results["interrupted"] == number.name and not results["complete"] and results["planned"] == 2
    assert "was interrupted" in (folder / "report.html").read_text() and f"--resume {folder}" in rest
    outcomes = [run["outcome"] for run in results["runs"]]
    assert outcomes[0] == "ok" and set(outcomes[1:]) <= {"ok", "interrupted"}
    assert results["candidates"][0]["summary"]["runs"] == outcomes.count("ok")
    assert sorted(path.name for path in state.iterdir()) == ["lock"], "a ledger is left"
    assert not [pid for pid, run in marked_processes().items() if run.startswith(f"{driver.pid}-")]
    before = [run for run in results["runs"] if run["outcome"] == "ok"]
    assert main(["testbed", "run", "--resume", str(folder), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["complete"] and "[1/2]" not in captured.err and "[2/2] gloo, seed 2: " in captured.err
    results = read_results(folder)
    assert [(run["seed"], run["outcome"]) for run in results["runs"]] == [(seed, "ok") for seed in (1, 2)]
    assert results["runs"][: len(before)] == before and not results["interrupted"]
    (note,) = results["notes"]
    assert "gone on with at 20" in note and f"after {len(before)} runs, on the same machine" in note


@pytest.mark.root
def test_clean_and_doctor(state, capsys):
    assert main(["testbed", "clean", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"cleaned": [], "at_work": []}
    assert main(["testbed", "clean"]) == 0 and capsys.readouterr().out == "nothing was left\n"
    assert main(["testbed", "doctor", "--json", "--target", "bridge"]) == 0
    found = {each["key"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["htb"]["ok"] and all(each["lost"] and each["remedy"] for each in found.values())


def test_what_this_machine_lacks_is_exit_code_3(file, tmp_path, state, capsys, monkeypatch):
    monkeypatch.setattr("testbed.cli_run.find_spec", lambda name: None)
    assert main(["testbed", "run", str(file), "--out", str(tmp_path / "out")]) == 3
    assert "pip install 'dlcp[testbed]'" in capsys.readouterr().err
