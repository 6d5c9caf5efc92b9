"""Ranks in hosts of a lab: started, watched, killed, and never left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcp.errors import ConfigError
from dlcp.topology import Topology
from testbed.candidates import places_of
from testbed.experiment import Experiment
from testbed.lab.network import Lab
from testbed.lab.processes import Process
from testbed.ranks.collect import Records, completion, distribution
from testbed.ranks.follow import Follower, parse_lines
from testbed.ranks.launch import ForkLauncher, TorchrunLauncher
from testbed.ranks.training import Training
from tests.testbed.conftest import marked_processes

ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    "name": "small",
    "topology": {"generate": {"kind": "star", "hosts": 2, "rate": "100 Mbit/s"}},
    "target": "bridge",
    "timeout": "60 s",
    "policy": {"timeouts": {"peer_s": 1.0}},
    "training": {"width": 4, "batch_size": 128, "epochs": 1, "eval_every": 2},
    "candidates": [{"name": "gloo", "comm": "gloo"}, {"name": "dlcp", "comm": "pipelined"}],
}


def experiment(**changes):
    return Experiment.from_dict({**SMALL, **changes})


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    """One for all tests here: it takes seconds to load."""
    from testbed.lab.ledger import STATE

    state = tmp_path_factory.mktemp("state")
    state.chmod(0o700)
    former = os.environ.get(STATE)
    os.environ[STATE] = str(state)
    made = ForkLauncher(tmp_path_factory.mktemp("zygote"))
    made.prepare()
    yield made
    made.close()
    assert not [path for path in state.iterdir() if path.name != "lock"]
    os.environ.pop(STATE)
    if former is not None:
        os.environ[STATE] = former


def trained(tmp_path, launcher, chosen, candidate=0, during=None, **how):
    folder = tmp_path / "run"
    folder.mkdir()
    with Lab(chosen.network, target=chosen.target, policy=chosen.policy_of(chosen.candidates[0]), run_dir=folder) as lab:
        training = Training(lab, chosen, chosen.candidates[candidate], 1, folder, launcher)
        if during is not None:
            # By then DDP has rebuilt its buckets, for which it talks over gloo whatever carries the gradients.
            how = {"watch": lambda line: during(training) if line.get("step") == 5 and line["event"] == "step" else None}
        result = training.run(**how)
        pids = [state.pid for state in training._started.states.values()]
    assert not any(Process.of(pid) for pid in pids if pid is not None), "ranks are left"
    return result


@pytest.mark.root
@pytest.mark.parametrize("candidate", [0, 1], ids=["gloo", "pipelined"])
def test_ranks_train_in_their_hosts(tmp_path, state, launcher, candidate):
    chosen = experiment()
    seen, zeros = [], []
    result = trained(tmp_path, launcher, chosen, candidate, on_first_step=zeros.append, watch=seen.append)
    assert (result.outcome, result.error, result.codes) == ("ok", "", {0: 0, 1: 0})
    assert zeros == [result.zero] and result.began < result.zero < result.ended
    assert [line["event"] for line in seen if line["event"] in ("start", "training", "end")] == ["start", "training", "end"]
    records = Records(result, chosen.training.eval_every)
    assert records.steps() == 5 and len(records.losses()) == 5
    assert [each["step"] for each in records.evaluations()] == [2, 4, 5]
    assert records.step_times()["count"] == 2 * 2, "the first step and those after an evaluation do not count"
    assert records.buckets()["count"] >= 10 and len(records.buckets()["quantiles_s"]) == 101
    addresses = {line["options"]["host"] for line in records.of("start")}
    assert addresses == set(chosen.network.addresses.values())
    if candidate:
        packets = records.packets()
        assert sum(row["protected"] + row["droppable"] for row in packets.values()) > 0
        assert sum(each["count"] for each in records.classes().values()) == len(records.of("message"))
        assert [each["step"] for each in records.residual()] == [2, 4, 5] and records.transport()["delivered"] > 0
    else:
        assert records.classes() == {} and records.packets() == {} and records.residual() == []
    ranks = records.ranks(tmp_path)
    assert [(each["rank"], each["host"], each["exit_code"]) for each in ranks] == [(0, "h0", 0), (1, "h1", 0)]
    assert all((tmp_path / each["log"]).is_file() for each in ranks)


@pytest.mark.root
def test_two_jobs_share_a_network(tmp_path, state, launcher):
    chosen = experiment(topology={"generate": {"kind": "star", "hosts": 4, "rate": "100 Mbit/s"}}, jobs=2)
    result = trained(tmp_path, launcher, chosen)
    assert result.outcome == "ok" and result.codes == dict.fromkeys(range(4), 0)
    for job, hosts in ((0, ["h0", "h2"]), (1, ["h1", "h3"])):
        records = Records(result, chosen.training.eval_every, job)
        assert [each["host"] for each in records.ranks(tmp_path)] == hosts and records.steps() == 5
        assert [line["world"] for line in records.of("start")] == [2, 2]
        assert records.job(job, 0.0)["time_to_accuracy_s"] is not None


@pytest.mark.root
@pytest.mark.parametrize("candidate", [0, 1], ids=["gloo", "pipelined"])
def test_a_killed_rank_ends_the_run(tmp_path, state, launcher, candidate):
    chosen = experiment(training={**SMALL["training"], "epochs": 1000})
    result = trained(tmp_path, launcher, chosen, candidate, during=lambda training: training.kill(1))
    assert result.outcome == "killed" and "killed rank 1" in result.error
    assert result.codes[1] == -signal.SIGKILL and result.codes[0] not in (0, None), "rank 0 noticed by itself"
    if candidate:
        assert result.codes[0] == 4 and "rank 1" in Records(result, 2).ranks(tmp_path)[0]["said"]


@pytest.mark.root
def test_a_run_that_takes_too_long_is_ended(tmp_path, state, launcher):
    chosen = experiment(timeout="2 s", training={**SMALL["training"], "epochs": 100_000})
    result = trained(tmp_path, launcher, chosen)
    assert result.outcome == "timeout" and "[0, 1] had not ended after 2 s" in result.error


@pytest.mark.root
def test_a_rank_that_cannot_start_says_why(tmp_path, state, launcher):
    chosen = experiment(training={**SMALL["training"], "batch_size": 5000})
    result = trained(tmp_path, launcher, chosen)
    assert result.outcome == "failed" and "--batch-size: 5000 exceeds" in result.error and result.zero is None


@pytest.mark.root
def test_under_torchrun(tmp_path, state):
    launcher = TorchrunLauncher()
    result = trained(tmp_path, launcher, experiment())
    assert result.outcome == "ok", result.error
    assert Records(result, 2).steps() == 5


def test_torchrun_refuses_what_it_cannot_number():
    hosts = [{"name": "a", "ranks": [0, 2]}, {"name": "b", "ranks": [1, 3]}]
    links = [{"a": name, "b": "s", "rate": "1 Gbit/s"} for name in "ab"]
    mixed = Topology.from_dict({"name": "x", "hosts": hosts, "switches": [{"name": "s"}], "links": links})
    with pytest.raises(ConfigError, match="numbered host by host"):
        TorchrunLauncher().check(mixed, 1)
    with pytest.raises(ConfigError, match="2 jobs under torchrun"):
        TorchrunLauncher().check(experiment().network, 2)


DRIVER = """
import sys, time
from pathlib import Path
from testbed.ranks.launch import ForkLauncher
launcher = ForkLauncher(Path(sys.argv[1]))
launcher.prepare()
print(launcher._ledger.run, launcher._process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.root
def test_nothing_survives_the_driver(tmp_path, state):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        run, pid = driver.stdout.readline().split()
        zygote = Process.of(int(pid))
        assert zygote is not None and run in marked_processes({run}).values()
    finally:
        driver.kill()
        driver.wait()
        driver.stdout.close()
    deadline = time.monotonic() + 20
    while marked_processes({run}) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not marked_processes({run})


def test_the_ranks_of_a_topology_are_dealt_to_jobs():
    topology = {"generate": {"kind": "star", "hosts": 3, "ranks_per_host": 2, "rate": "1 Gbit/s"}}
    places = places_of(experiment(topology=topology, jobs=3))
    assert [(place.job, place.rank, place.world, place.host) for place in places.values()] == [
        (0, 0, 2, "h0"),
        (1, 0, 2, "h0"),
        (2, 0, 2, "h1"),
        (0, 1, 2, "h1"),
        (1, 1, 2, "h2"),
        (2, 1, 2, "h2"),
    ]
    with pytest.raises(ConfigError, match="jobs: 4 with 6 ranks"):
        experiment(topology=topology, jobs=4)


def test_a_follower_hands_out_whole_lines_once(tmp_path):
    path = tmp_path / "a.jsonl"
    follower = Follower(path)
    assert follower.lines() == []
    with path.open("wb", buffering=0) as file:
        file.write(b'{"a": 1}\n{"a"')
        assert follower.lines() == [{"a": 1}]
        assert follower.lines() == []
        file.write(b': 2}\n[3]\nnonsense\n{"a": 4}\n')
        assert follower.lines() == [{"a": 2}, {"a": 4}]


@given(st.lists(st.dictionaries(st.text(), st.integers())), st.integers(0, 40))
def test_lines_may_be_cut(objects, cut):
    data = "".join(json.dumps(each) + "\n" for each in objects).encode()
    whole = parse_lines(data[: len(data) - cut] if cut else data)
    assert whole == objects[: len(whole)]


@given(st.lists(st.floats(0.001, 100), min_size=1))
def test_distributions_are_ordered(times):
    found = distribution(times)
    order = [found[key] for key in ("min_s", "p50_s", "p95_s", "p99_s", "max_s")]
    assert order == sorted(order) and found["count"] == len(times) and found["max_s"] == max(times)
    lines = [{"begin_s": 5.0, "end_s": 5.0 + each, "bytes": 10, "lost": 1} for each in times]
    done = completion(lines)
    assert done["quantiles_s"] == sorted(done["quantiles_s"]) and done["bytes"] == 10 * len(times) == 10 * done["lost_packets"]


def test_nothing_is_described_as_nothing():
    assert distribution([])["p50_s"] is None and completion([])["quantiles_s"] == []
