"""examples/train.py as a user runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from examples.data import SYMBOLS, encode, load_digits, load_text
from examples.models import CharModel, DigitsNet
from examples.options import parse
from examples.reporting import Report, log_path, percentile
from examples.train import Trainer, main
from tests.torch.ranks import run_ranks

ROOT = Path(__file__).resolve().parents[2]
RELIABLE = "[loss]\npush = 0.0\n"


def trained(rank, world, arguments):
    """Trains in this process; returns the parameters."""
    trainer = Trainer(parse([*arguments, "--quiet"]), rank, world)
    trainer.run()
    return torch.cat([p.detach().ravel() for p in trainer.task.model.parameters()]).numpy().tobytes()


def lines(path, rank):
    return [json.loads(line, parse_constant=_refuse) for line in log_path(path, rank).read_text().splitlines()]


def _refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def test_resuming_is_not_to_be_seen_in_the_result(tmp_path):
    """Two epochs in one go over gloo and over DLCP, and over DLCP with a restart in between: the same bits."""
    (tmp_path / "policy.toml").write_text(RELIABLE)
    common = ["--width", "8", "--batch-size", "64"]
    dlcp = [*common, "--comm", "dlcp", "--policy", str(tmp_path / "policy.toml")]
    log = tmp_path / "logs" / "run.jsonl"
    saving = [*dlcp, "--checkpoint", str(tmp_path / "ckpt"), "--json-log", str(log)]
    over_gloo = run_ranks(trained, [*common, "--epochs", "2"])
    whole = run_ranks(trained, [*dlcp, "--epochs", "2"])
    run_ranks(trained, [*saving, "--epochs", "1"])
    resumed = run_ranks(trained, [*saving, "--epochs", "2", "--resume"])
    assert len({*over_gloo, *whole, *resumed}) == 1
    for rank in range(2):
        events = lines(log, rank)
        starts = [event for event in events if event["event"] == "start"]
        assert [event["first_epoch"] for event in starts] == [0, 1] and starts[0]["options"]["comm"] == "dlcp"
        steps = [event for event in events if event["event"] == "step"]
        assert [event["step"] for event in steps] == list(range(2 * starts[0]["steps_per_epoch"]))
        assert all(event["step_s"] > 0 and event["loss"] > 0 and event["rank"] == rank for event in steps)
        epochs = [event for event in events if event["event"] == "epoch"]
        assert [event["epoch"] for event in epochs] == [0, 1]
        assert epochs[1]["metrics"]["hook"]["passes"] == 2 * starts[0]["steps_per_epoch"]
        assert set(epochs[0]["metrics"]["transport"]) >= {"transport", "udp"} and 0 <= epochs[0]["accuracy"] <= 1


def refused_checkpoint(rank, world, arguments):
    with pytest.raises(Exception) as caught:
        trained(rank, world, arguments)
    return type(caught.value).__name__, str(caught.value)


def test_checkpoints_of_another_job_are_refused(tmp_path):
    common = ["--width", "4", "--batch-size", "64", "--checkpoint", str(tmp_path)]
    run_ranks(trained, [*common, "--epochs", "1"])
    for kind, text in run_ranks(refused_checkpoint, [*common, "--epochs", "2", "--resume", "--seed", "9"]):
        assert kind == "ConfigError" and "seed: the checkpoint says 0; accepted: 9" in text


@pytest.mark.parametrize("comm", ["powersgd", "postlocalsgd"])
def test_torch_own_alternatives_run(tmp_path, comm):
    log = tmp_path / "run.jsonl"
    run_ranks(trained, ["--comm", comm, "--width", "8", "--batch-size", "16", "--epochs", "1", "--json-log", str(log)])
    steps = [event for event in lines(log, 0) if event["event"] == "step"]
    assert len(steps) == 44, "too few for the warm-up of either to end"
    assert steps[-1]["loss"] < steps[0]["loss"]


def test_the_character_model_learns_over_a_lossy_network(tmp_path):
    log = tmp_path / "run.jsonl"
    faults = "drop=0.02,type=data;seed=1"
    arguments = ["--task", "charlm", "--text-bytes", "20000", "--width", "8", "--batch-size", "16", "--lr", "0.01"]
    first, second = run_ranks(
        trained, [*arguments, "--epochs", "2", "--comm", "dlcp", "--faults", faults, "--json-log", str(log)]
    )
    assert first == second, "replicas differ"
    losses = [event["test_loss"] for event in lines(log, 0) if event["event"] == "epoch"]
    assert losses[1] < losses[0] < 4.5


def test_under_torchrun(tmp_path):
    log = tmp_path / "run.jsonl"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "examples/train.py"]
    options = ["--comm", "dlcp", "--faults", "drop=0.01", "--epochs", "1", "--width", "8", "--json-log", str(log)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": ""}
    done = subprocess.run([*command, *options], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "digits over dlcp: 2 ranks" in done.stderr and "epoch 0: accuracy" in done.stderr and not done.stdout
    assert lines(log, 1)[-1]["event"] == "end"


@pytest.fixture
def no_group():
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def test_a_mistake_in_the_policy_is_one_line_and_exit_code_2(tmp_path, capsys, no_group):
    policy = tmp_path / "bad.toml"
    policy.write_text("[loss]\npush = 3\n")
    assert main(["--comm", "dlcp", "--policy", str(policy)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "bad.toml: loss.push" in error


def test_a_batch_larger_than_the_data_is_refused(capsys, no_group):
    assert main(["--batch-size", "5000"]) == 2
    assert "--batch-size: 5000 exceeds a rank's 1437 samples" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["--resume"], ["--faults", "drop=0.1"], ["--comm", "gloo", "--policy", "x.toml"], ["--epochs", "0"], ["--width", "many"]],
    ids=" ".join,
)
def test_options_that_have_no_effect_or_sense_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(arguments)
    assert caught.value.code == 2 and "error:" in capsys.readouterr().err


def test_models_have_megabytes_of_gradients_by_default():
    for model in (DigitsNet(), CharModel(SYMBOLS)):
        assert 1_000_000 < sum(4 * p.numel() for p in model.parameters()) < 3_000_000
    assert DigitsNet(8)(torch.zeros(3, 1, 8, 8)).shape == (3, 10)
    assert CharModel(SYMBOLS, 8)(torch.zeros(3, 20, dtype=torch.int64)).shape == (3, 20, SYMBOLS)


def test_the_character_model_does_not_look_ahead():
    model = CharModel(SYMBOLS, 8).eval()
    text = torch.randint(SYMBOLS, (1, 30), generator=torch.Generator().manual_seed(0))
    changed = text.clone()
    changed[0, 20:] = 1
    assert torch.allclose(model(text)[0, :20], model(changed)[0, :20], atol=1e-5)


def test_data_are_the_same_everywhere_and_split():
    digits, again = load_digits(), load_digits()
    assert all(torch.equal(a, b) for a, b in zip(digits, again, strict=True))
    assert digits.train_inputs.shape == (1437, 1, 8, 8) and digits.test_inputs.shape[0] == 360
    assert 0 <= digits.train_inputs.min() and digits.train_inputs.max() == 1
    text = load_text(10_000, 64)
    assert torch.equal(text.train_inputs[0, 1:], text.train_targets[0, :-1])
    assert len(text.train_inputs) + len(text.test_inputs) == 9_999 // 64
    assert encode(b"\n A~\x00\xff\t").tolist() == [0, 1, 34, 95, 96, 96, 96]


def test_percentiles_and_reports(tmp_path):
    assert [percentile([3.0, 1.0, 2.0, 4.0], share) for share in (0.5, 0.99, 0.0)] == [2.0, 4.0, 1.0]
    with Report(0, json_log=tmp_path / "a" / "x.jsonl", tensorboard=tmp_path / "board", quiet=True) as report:
        report.step(0, 0, float("nan"), 0.1)
        report.epoch(0, 1, accuracy=0.5, metrics={"hook": {"lost": 3}})
        report.write("other", array=torch.tensor([1, 2]), path=tmp_path)
    step, epoch, other = lines(tmp_path / "a" / "x.jsonl", 0)
    assert step["loss"] is None and epoch["metrics"] == {"hook": {"lost": 3}} and other["array"] == [1, 2]
    assert list((tmp_path / "board").glob("events*"))


@pytest.mark.parametrize("comm", ["gloo", "gloo-fp16", "powersgd", "postlocalsgd", "dlcp", "pipelined"])
def test_what_a_trace_says(tmp_path, comm):
    log = tmp_path / "run.jsonl"
    arguments = ["--comm", comm, "--width", "8", "--batch-size", "64", "--epochs", "2", "--json-log", str(log), "--trace"]
    run_ranks(trained, [*arguments, "--eval-every", "8"])
    events = lines(log, 0)
    steps = [event for event in events if event["event"] == "step"]
    assert len(steps) == 22
    (begun,) = [event["t"] for event in events if event["event"] == "training"]
    evaluations = [event for event in events if event["event"] == "evaluation"]
    assert [event["step"] for event in evaluations] == [8, 16, 22] and all(0 < e["accuracy"] < 1 for e in evaluations)
    clocks = [event["clock_s"] for event in (*steps, *evaluations)]
    assert sorted(step["clock_s"] for step in steps) == [step["clock_s"] for step in steps] and min(clocks) > 0
    # The clock stands still during evaluations.
    stopped = sum(event["seconds"] for event in evaluations[:-1])
    assert steps[-1]["clock_s"] <= steps[-1]["t"] - begun - stopped + 1e-3
    assert not any(event["event"] == "evaluation" for event in lines(log, 1))
    buckets = [event for event in events if event["event"] == "bucket"]
    assert len(buckets) >= len(steps) and all(begun <= b["begin_s"] < b["end_s"] and b["bytes"] > 0 for b in buckets)
    messages = [event for event in events if event["event"] == "message"]
    assert bool(messages) == (comm in ("dlcp", "pipelined"))
    if messages:
        assert {event["peer"] for event in messages} == {1} and {event["phase"] for event in messages} == {"push", "pull"}
        assert all(event["begin_s"] < event["end_s"] and 0 <= event["class"] < 7 for event in messages)
        (packets,) = [event["packets"] for event in events if event["event"] == "epoch" and event["epoch"] == 1]
        assert sum(row["protected"] + row["droppable"] for row in packets.values()) == sum(m["packets"] for m in messages)
        residuals = [event for rank in range(2) for event in lines(log, rank) if event["event"] == "residual"]
        assert [event["step"] for event in residuals] == [8, 16, 22] * 2
