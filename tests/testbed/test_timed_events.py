"""Events of an experiment in real runs: links that flap, switches that restart or die, ranks that are killed."""

import shutil
import signal

import pytest

from testbed.experiment import Experiment
from testbed.lab.network import Lab
from testbed.lab.processes import Process
from testbed.ranks.launch import ForkLauncher
from testbed.run import Silent
from testbed.runner import Runner

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]
BMV2 = pytest.param("bmv2", marks=pytest.mark.skipif(shutil.which("simple_switch_grpc") is None, reason="no simple_switch_grpc"))
STORM = [
    {"at": "300 ms", "kind": "link-down", "link": ["h1", "s0"]},
    {"at": "500 ms", "kind": "link-up", "link": ["s0", "h1"]},
    {"at": "700 ms", "kind": "link-loss", "link": ["h0", "s0"], "loss": 0.02},
    {"at": "900 ms", "kind": "switch-restart", "switch": "s0"},
    {"at": "1 s", "kind": "link-rate", "link": ["h0", "s0"], "rate": "10 Mbit/s"},
    {"at": "1200 ms", "kind": "link-rate", "link": ["h0", "s0"], "rate": "auto"},
]


def experiment(events, target="softswitch", epochs=8):
    return Experiment.from_dict(
        {
            "name": "storm",
            "topology": {"generate": {"kind": "star", "hosts": 2, "rate": "20 Mbit/s", "delay": "1 ms", "buffer": "30 packets"}},
            "target": target,
            "repeats": 1,
            "timeout": "120 s",
            "training": {"width": 8, "batch_size": 64, "epochs": epochs, "eval_every": 20, "accuracy": 0.0},
            "candidates": [{"name": "c", "comm": "pipelined"}],
            "events": events,
        }
    )


def run(chosen, folder, watcher=None):
    results = Runner(chosen, folder, ForkLauncher(folder), watcher or Silent()).run()
    (result,) = results["runs"]
    return result


@pytest.mark.parametrize("target", ["softswitch", BMV2])
def test_training_outlives_what_happens_to_the_network(tmp_path, state, target):
    result = run(experiment(STORM, target), tmp_path)
    assert (result["outcome"], result["error"]) == ("ok", "")
    assert [(event["kind"], event["error"]) for event in result["events"]] == [(event["kind"], "") for event in STORM]
    assert all(event["at_s"] >= at for event, at in zip(result["events"], (0.3, 0.5, 0.7, 0.9, 1.0, 1.2), strict=True))
    assert result["steps"] == 88 and result["training_s"] > 1.2
    assert all(rank["exit_code"] == 0 for rank in result["ranks"])
    switch = result["network"]["switches"]["s0"]
    forwarded = switch["program"]["forwarded"]
    # What was deployed before the restart was deployed again: classes are told apart, and every rate is as it was.
    assert sum(forwarded["protected"]["packets"]) > 0 and sum(forwarded["droppable"]["packets"]) > 0
    assert [switch["ports"][number]["rate_bps"] for number in ("1", "2")] == [20_000_000, 20_000_000]
    if target == "softswitch":
        assert len(result["traces"]) == 2, "one for each start"


def test_a_rank_that_an_event_kills_ends_the_run(tmp_path, state):
    result = run(experiment([{"at": "1 s", "kind": "rank-kill", "rank": 1}], epochs=500), tmp_path)
    assert result["outcome"] == "killed" and result["error"].startswith("an event killed rank 1")
    assert result["ranks"][1]["exit_code"] == -signal.SIGKILL and result["ranks"][0]["exit_code"] != 0
    assert [event["error"] for event in result["events"]] == [""] and result["steps"] < 5500


def test_a_switch_that_dies_ends_the_run_and_is_named(tmp_path, state, monkeypatch):
    labs = []

    class Noted(Lab):
        def __enter__(self):
            labs.append(self)
            return super().__enter__()

    class Killer(Silent):
        def line(self, line):
            if line.get("event") == "step" and line["step"] == 3:
                Process.of(labs[0].switches._nursery.pids["s0"]).signal(signal.SIGKILL)

    monkeypatch.setattr("testbed.run.Lab", Noted)
    result = run(experiment([], epochs=500), tmp_path, Killer())
    assert result["outcome"] == "failed" and "s0 has ended with code -9" in result["error"]
    assert result["steps"] >= 3
