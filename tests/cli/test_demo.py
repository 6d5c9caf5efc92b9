"""The demonstration: where it runs, how it starts runs, ends them, sums them up, and what it says about them."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from dlcp.cli import demo
from dlcp.cli import main as cli
from dlcp.cli.demo import _scenarios
from dlcp.demo import runs as demo_runs
from dlcp.demo.runs import Training, TrainingError, _follow, command, environment, root_of_script, run
from dlcp.demo.summary import WARMUP_STEPS, read_lines, summarize
from dlcp.demo.table import print_report, reading
from dlcp.errors import ConfigError, OperationTimeoutError
from dlcp.policy import Policy

ROOT = Path(__file__).resolve().parents[2]
TRAINING = Training(ranks=2, epochs=3, width=16, batch_size=32, seed=7)
GLOO, DLCP, LOSSY = _scenarios(0.02)


# -- starting


def test_the_training_script_understands_what_it_is_told():
    from dlcp.udp.faults import FaultPlan
    from examples.train import parse

    for scenario in (GLOO, DLCP, LOSSY):
        words = command(scenario, TRAINING, Path("folder"), Path("policy.toml"))
        options = parse(words[words.index("examples.train") + 1 :])
        assert (options.task, options.comm, options.epochs, options.width, options.batch_size, options.seed) == (
            "digits",
            scenario.comm,
            3,
            16,
            32,
            7,
        )
        assert options.json_log == Path("folder") / f"{scenario.name}.jsonl"
        assert options.policy == (Path("policy.toml") if scenario.comm == "dlcp" else None)
        rules = FaultPlan.parse(options.faults or "")
        assert rules.seed == (7 if scenario.loss else 0)
        assert [(rule.effect, rule.probability) for rule in rules.rules] == ([("drop", 0.02)] if scenario.loss else [])


def test_the_script_is_found_from_anywhere(tmp_path):
    assert root_of_script() == ROOT
    assert environment(ROOT)["PYTHONPATH"].split(":")[0] == str(ROOT)
    code = "import examples.train; print(examples.train.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(ROOT), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()) == ROOT / "examples" / "train.py"


@pytest.mark.parametrize("lacking", ["examples", "sklearn"])
def test_what_is_not_installed_is_named(lacking, monkeypatch, capsys, tmp_path):
    if lacking == "examples":
        monkeypatch.setattr(demo_runs, "SCRIPT", "no_such_package.train")
    else:
        monkeypatch.setattr("dlcp.cli.demo.find_spec", lambda name: None)
    assert cli.main(["demo", "--loopback", "--out", str(tmp_path / "runs")]) == 3
    assert "is not installed" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


# -- watching and ending


def python(code):
    return [sys.executable, "-c", code]


def test_progress_is_seen_line_by_line(tmp_path):
    log = LOSSY.log(tmp_path, 0)
    code = f"""
import time
from pathlib import Path
with Path({str(log)!r}).open("w") as file:
    for text in ('{{"n": 1}}', chr(10), '{{"n"', ': 2}}' + chr(10) + '{{"n": 3}}' + chr(10)):
        file.write(text); file.flush(); time.sleep(0.25)
"""
    seen = []
    seconds = run(python(code), LOSSY, tmp_path, ROOT, 60, seen.append)
    assert seen == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert seconds >= 1.0


def test_half_a_line_waits_for_the_rest(tmp_path):
    path = tmp_path / "x.jsonl"
    lines = _follow(path)
    assert next(lines) == []
    path.write_bytes(b'{"a": 1}\n{"b"')
    assert next(lines) == [{"a": 1}]
    assert next(lines) == []
    path.write_bytes(b'{"a": 1}\n{"b": 2}\n')
    assert next(lines) == [{"b": 2}]


FAILED = """
import sys
print("a warning of no interest")
print({said!r})
print("torch's launcher: exitcode  : {code} (pid: 1)")
sys.exit(1)
"""


@pytest.mark.parametrize(
    ("said", "code", "kind"),
    [
        ("rank 1: PeerLostError: rank 0 has been silent", 4, TrainingError),
        ("rank 1: file: key: wrong", 2, RuntimeError),
        ("ImportError: cannot import name", 1, RuntimeError),
    ],
)
def test_a_failed_run_says_why_and_where_all_of_it_is(tmp_path, said, code, kind):
    with pytest.raises(kind) as caught:
        run(python(FAILED.format(said=said, code=code)), DLCP, tmp_path, ROOT, 60, lambda line: None)
    assert said in str(caught.value)
    assert str(DLCP.output(tmp_path)) in str(caught.value)
    assert DLCP.output(tmp_path).read_text().startswith("a warning")


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_run_that_takes_too_long_is_ended_with_all_its_processes(tmp_path, monkeypatch, stubborn):
    code = f"""
import os, signal, subprocess, sys, time
if {stubborn}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""
    monkeypatch.setattr(demo_runs, "_TERMINATE_S", 0.5)
    with pytest.raises(OperationTimeoutError, match="has not finished within 1 s"):
        run(python(code), GLOO, tmp_path, ROOT, 1, lambda line: None)
    pids = [int(word) for word in GLOO.output(tmp_path).read_text().split()]
    assert len(pids) == 2
    end = time.monotonic() + 30
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.01)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# -- summing up


def lines_of(rank, *, metrics=None, steps=4, epochs=2):
    lines = [{"event": "start", "rank": rank, "gradient_bytes": 1000}]
    for epoch in range(epochs):
        for step in range(steps):
            # Rank 1 is the slower one in odd steps.
            lines.append(
                {"event": "step", "epoch": epoch, "step": step, "loss": 1.0, "step_s": 1.0 + (step % 2 == rank) * (epoch + 1)}
            )
        lines.append(
            {"event": "epoch", "epoch": epoch, "accuracy": 0.5 + epoch / 10, "train_loss": 2.0 - epoch, "metrics": metrics or {}}
        )
    return [*lines, {"event": "end"}]


def metrics_of(rank):
    return {
        "hook": {
            "elements": 100,
            "lost_elements": rank,
            "lost_l1": 2.0 * rank,
            "residual_l1": 0.5,
            "residual_elements": 3,
            "passes": 8,
        },
        "transport": {
            "transport": {"sent_class_0": 10, "sent_class_6": 20, "given_up_class_6": rank, "delivered": 29, "retransmitted": 4},
            "udp": {"packets_sent": 40, "receive_buffer": 1},
            "faults": {"drop": [1, 0, 0, 0, 0, 0, 2, 3], "delay": [0] * 8},
            "peers": {"1": {"smoothed_rtt_us": 5.0}},
        },
    }


def test_a_step_is_as_slow_as_its_slowest_rank():
    found = summarize(GLOO, [lines_of(0), lines_of(1)], 9.0)
    assert (found["steps"], found["gradient_bytes"], found["seconds"]) == (8, 1000, 9.0)
    assert found["accuracy"] == [0.5, 0.6]
    assert found["train_loss"] == [2.0, 1.0]
    assert WARMUP_STEPS == 2  # leaves two steps of 2 s and four of 3 s
    assert found["step_p50_s"] == 3.0
    assert summarize(GLOO, [lines_of(0, epochs=1), lines_of(1, epochs=1)], 9.0)["step_p99_s"] == 2.0
    assert found["packets"] is None and found["residual_l1"] is None


def test_packets_and_mass_are_sums_over_ranks():
    logs = [lines_of(rank, metrics=metrics_of(rank)) for rank in range(3)]
    found = summarize(LOSSY, logs, 1.0)
    assert found["packets"] == {
        "sent": 90,
        "sent_by_class": [30, 0, 0, 0, 0, 0, 60],
        "lost": 3,
        "lost_by_class": [0, 0, 0, 0, 0, 0, 3],
        "delivered": 87,
        "retransmitted": 12,
        "dropped_injected": 18,
    }
    assert (found["residual_l1"], found["lost_l1"], found["lost_elements"], found["elements"]) == (1.5, 6.0, 3, 300)


def test_a_run_that_did_not_finish_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="as many on all ranks"):
        summarize(GLOO, [lines_of(0), lines_of(1)[:-3]], 1.0)
    with pytest.raises(ConfigError, match="run gloo"):
        summarize(GLOO, [[], []], 1.0)
    path = tmp_path / "log.jsonl"
    for text in ("not json\n", "[1]\n", None):
        if text is not None:
            path.write_text(text)
        with pytest.raises(ConfigError, match=r"log\.jsonl"):
            read_lines(path if text is not None else tmp_path / "no" / "log.jsonl")


def test_the_table_and_what_it_says():
    summaries = [
        summarize(scenario, [lines_of(rank, metrics=metrics) for rank in range(2)], 1.0)
        for scenario, metrics in ((GLOO, None), (DLCP, metrics_of(0)), (LOSSY, metrics_of(1)))
    ]
    report = {"runs": summaries, "arguments": {"ranks": 2}, "packet_bytes": 1500, "policy": Policy().to_dict()}
    out = io.StringIO()
    print_report(report, Console(width=100, file=out))
    text = out.getvalue()
    for word in (
        "accuracy after epoch 2",
        "60.0 %",
        "step time p99",
        "lost for their step",
        "of class 6 (front layers)",
        "2 of 40",
    ):
        assert word in text
    said = " ".join(reading(summaries, 0.05))
    assert "1.00 % of all gradients were not waited for (the policy allows 5 % of a message)" in said
    assert "13.33 % of the packets were sent again" in said
    assert "2 % of all packets dropped" in said


# -- where it runs


class Became(Exception):
    """In place of another program."""


@pytest.fixture
def places(monkeypatch):
    """What the command became: arguments of the testbed, or of the loopback version."""
    found = []

    def become(program, words, environment):
        assert program == words[0] == sys.executable
        assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
        found.append(words[1:])
        raise Became

    monkeypatch.setattr("dlcp.cli.demo.os.execve", become)
    monkeypatch.setattr("dlcp.cli.demo._over_loopback", lambda args: found.append("loopback") or 0)
    return found


def in_network(monkeypatch, problem=""):
    monkeypatch.setattr("dlcp.cli.demo._no_network", lambda: problem)


def demo_with(words):
    return demo.run(cli.make_parser("demo").parse_args(["demo", *words]))


@pytest.mark.parametrize(
    ("words", "passed"),
    [
        ([], []),
        (["--quick", "--json"], ["--quick", "--json"]),
        (["--seed", "0", "--epochs", "3", "--timeout", "60"], ["--epochs", "3", "--seed", "0", "--timeout", "60"]),
    ],
)
def test_in_an_emulated_network_where_there_can_be_one(words, passed, places, monkeypatch, tmp_path):
    in_network(monkeypatch)
    with pytest.raises(Became):
        demo_with([*words, "--out", str(tmp_path)])
    (became,) = places
    assert became == ["-m", "dlcp", "testbed", "run", "demo", "--out", str(tmp_path), *passed]
    args = cli.make_parser("testbed").parse_args(became[2:])  # the testbed knows all of them
    assert args.out == tmp_path and args.quick == ("--quick" in words) and args.seed == (0 if "--seed" in words else None)


def test_over_loopback_where_there_can_be_none_and_it_says_why(places, monkeypatch, capsys):
    in_network(monkeypatch, "no luck today")
    assert demo_with(["--quick"]) == 0 and places == ["loopback"]
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "over loopback" in said and "no luck today" in said


@pytest.mark.parametrize("words", [["--loopback"], ["--ranks", "2"], ["--width", "8"], ["--batch-size", "8"], ["--loss", "0"]])
def test_over_loopback_where_it_is_asked_for(words, places, monkeypatch, capsys):
    monkeypatch.setattr("dlcp.cli.demo._no_network", lambda: pytest.fail("nobody asked"))
    assert demo_with(words) == 0 and places == ["loopback"] and capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("code", "out", "err", "said"),
    [
        (0, '{"lacks": []}', "", ""),
        (3, '{"lacks": ["no mnexec", "no root"]}', "", "no mnexec; no root"),
        (3, '{"lacks": []}', "", "does not say why"),
        (3, "", "dlcp testbed: this machine\n  lacks  much\n", "lacks much"),
        (1, "[]", "", "has failed"),
        (-9, "", "", "has failed"),
    ],
)
def test_why_there_is_no_network(code, out, err, said, monkeypatch):
    def run_(words, **how):
        assert words[1:] == ["-m", "dlcp", "testbed", "check", "demo", "--json"] and how["timeout"] > 0
        return subprocess.CompletedProcess(words, code, out, err)

    monkeypatch.setattr("dlcp.cli.demo.subprocess.run", run_)
    assert demo._no_network() == said if code == 0 else said in demo._no_network()

    def never(words, timeout, **how):
        raise subprocess.TimeoutExpired(words, timeout)

    monkeypatch.setattr("dlcp.cli.demo.subprocess.run", never)
    assert "has not ended" in demo._no_network()
    monkeypatch.setattr("dlcp.cli.demo.find_spec", lambda name: None)
    assert demo._no_network() == "the testbed is not installed"


@pytest.mark.root
@pytest.mark.exclusive  # a network, and ranks that train across it
@pytest.mark.timeout(300)
def test_quick_in_an_emulated_network(tmp_path):
    if problem := demo._no_network():
        pytest.skip(f"no emulated network: {problem}")
    words = [sys.executable, "-m", "dlcp", "demo", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.iterdir()
    assert f"report: {folder / 'report.html'}" in done.stdout and (folder / "report.html").stat().st_size > 50_000
    # One epoch is too short for the goal, and it says that rather than who was faster.
    assert "Nothing reached 80 % accuracy." in " ".join(done.stdout.split())
    assert [line.partition(",")[0] for line in done.stderr.splitlines()[1:]] == ["[1/2] gloo", "[2/2] dlcp"]


# -- the command


def test_help_says_what_is_left_behind(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["demo", "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for word in ("report.html", "summary.json", "policy.toml", "--quick", "--loopback", "exit codes", "--loss 0.05"):
        assert word in text


@pytest.mark.parametrize("words", [["--ranks", "1"], ["--epochs", "0"], ["--loss", "1"], ["--seed", "x"]])
def test_wrong_arguments_are_usage(words, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["demo", *words])
    assert caught.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_a_place_that_cannot_be_written_to(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["demo", "--loopback", "--out", str(tmp_path / "file")]) == 2
    assert "cannot be made" in capsys.readouterr().err


def test_ctrl_c_ends_the_ranks_too(tmp_path):
    words = [sys.executable, "-m", "dlcp", "demo", "--quick", "--out", str(tmp_path)]
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
        env={**os.environ, "PATH": str(tmp_path)},  # so there are no tools for an emulated network
    )

    def children(pid):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    try:
        said = process.stderr.readline()
        assert "over loopback, because" in said and ("mnexec" in said or "unshare" in said), said
        assert "training over gloo" in process.stderr.readline()
        end = time.monotonic() + 60
        while not (launcher := children(process.pid)) or len(ranks := children(launcher[0])) < 2:
            assert time.monotonic() < end
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the launcher is in a session of its own
        out, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert (process.returncode, out, err) == (130, "", "")
    assert not any(map(alive, [*launcher, *ranks]))


@pytest.mark.exclusive  # nine processes that import torch
@pytest.mark.timeout(240)
def test_quick(tmp_path):
    words = ["--quick", "--json", "--loss", "0.05", "--out", str(tmp_path), "--batch-size", "64"]
    done = subprocess.run(
        [sys.executable, "-m", "dlcp", "demo", *words], capture_output=True, text=True, timeout=200, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)  # one document, nothing else
    assert [line for line in done.stderr.splitlines() if line.startswith("dlcp demo: training over")]
    folder = Path(report["folder"])
    assert folder.parent == tmp_path
    assert json.loads((folder / "summary.json").read_text()) == report
    assert Policy.from_toml(folder / "policy.toml").wire.mtu == 1500
    for scenario in _scenarios(0.05):
        assert scenario.output(folder).exists()
        assert all(scenario.log(folder, rank).exists() for rank in range(2))

    gloo, clean, lossy = report["runs"]
    assert [run["comm"] for run in report["runs"]] == ["gloo", "dlcp", "dlcp"]
    assert len({run["steps"] for run in report["runs"]}) == 1
    for run_ in report["runs"]:
        assert len(run_["accuracy"]) == 1
        assert 0 < run_["step_p50_s"] <= run_["step_p99_s"]
    assert gloo["packets"] is None
    assert clean["packets"]["lost"] == clean["packets"]["retransmitted"] == clean["residual_l1"] == 0
    assert clean["train_loss"] == pytest.approx(gloo["train_loss"], rel=1e-3)
    packets = lossy["packets"]
    assert packets["sent"] == clean["packets"]["sent"] == packets["delivered"] + packets["lost"]
    assert packets["dropped_injected"] > 0
    assert packets["retransmitted"] + packets["lost"] > 0
    assert sum(packets["lost_by_class"]) == packets["lost"]
    assert sum(packets["sent_by_class"]) == packets["sent"]
    # What is owed at the end is what the last steps lost; what earlier ones lost has been paid.
    assert (lossy["lost_l1"] > 0) == (packets["lost"] > 0)
    assert lossy["residual_l1"] <= lossy["lost_l1"]
