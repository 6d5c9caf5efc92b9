"""The traffic of a scenario: sections, names of models, several jobs, background; and what is refused."""

import json

import pytest

from dlcp.cli.main import main
from dlcp.errors import ConfigError
from dlcp.workload.named import MODELS
from sim.results import summarize
from sim.scenario import Scenario
from sim.scenario_file import read
from sim.scenario_messages import workload_of
from sim.scenario_traffic import Training
from tests.conftest import ROOT

NET = """
[generate]
kind = "leaf-spine"
leaves = 2
spines = 1
hosts_per_leaf = 3
rate = "10 Gbit/s"
"""
MODEL = """
name = "small"
layers = [
  { name = "a", elements = 3000, forward = "10 us", backward = "20 us" },
  { name = "b", elements = 9000, forward = "10 us", backward = "20 us" },
]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "net.toml").write_text(NET)
    (tmp_path / "model.toml").write_text(MODEL)
    return tmp_path


def scenario(**fields):
    return Scenario.from_dict({"topology": "net.toml", "transport": {"name": "dctcp"}, **fields})


def training(**fields):
    return scenario(workload="./model.toml", traffic={"kind": "training", **fields})


def built(folder, made):
    return made.build(folder, "python")


def hosts_of(run, job=""):
    return {end for message in run.messages if message.job == job for end in (message.source, message.destination)}


def test_servers_are_the_last_hosts_or_those_named(folder):
    for more, servers in (({"server_count": 2}, {4, 5}), ({"servers": ["h1", "h3..h4"]}, {1, 3, 4})):
        run = built(folder, training(algorithm="ps", **more))
        serving = {m.destination for m in run.messages if m.source != m.destination and m.bound}
        assert serving == servers
        assert {m.source for m in run.messages if m.group == "forward"} == set(range(6)) - servers


def test_racks_are_those_of_the_topology(folder):
    run = built(folder, training(algorithm="hierarchical", iterations=1))
    between = sum(m.size for m in run.messages if m.source // 3 != m.destination // 3)
    assert between == 2 * 4 * 12_000


def test_groups_follow_the_schedule_that_is_named(folder):
    run = built(folder, training(algorithm="ds-sync", rounds="topology", iterations=4))
    crossing = {m.iteration for m in run.messages if m.source // 3 != m.destination // 3}
    assert crossing == {1, 3}
    run = built(folder, training(algorithm="ds-sync", rounds="random", group=3, iterations=8))
    assert len(crossing_pairs(run)) > 6
    with pytest.raises(ConfigError, match="cannot tile"):
        built(folder, training(algorithm="ds-sync", rounds="digits", group=2))


def crossing_pairs(run):
    return {frozenset((m.source, m.destination)) for m in run.messages if m.source != m.destination}


def test_batch_and_device_change_the_times(folder):
    plain, twice = workload_of("resnet50", folder), workload_of("resnet50", folder, Training(batch=128))
    assert twice.forward == pytest.approx(2 * plain.forward, rel=1e-4)
    assert workload_of("resnet50", folder, Training(tflops=20.0)).forward == pytest.approx(plain.forward / 2, rel=1e-4)
    assert workload_of("model.toml", folder, Training(batch=3)).forward == 3 * 20 * 10**6
    assert workload_of("gpt3-175b", folder, Training(tensor=4, pipeline=32)).bytes < workload_of("gpt3-175b", folder).bytes * 1.1


JOBS = """
topology = "net.toml"
workload = "model.toml"
[transport]
name = "dctcp"
[[jobs]]
name = "one"
hosts = ["h0", "h3"]
iterations = 3
[[jobs]]
name = "two"
hosts = ["h1..h2", "h4..h5"]
algorithm = "halving-doubling"
start = "50 us"
iterations = 2
[[background]]
name = "noise"
load = 0.2
sizes = "fixed"
size = "3 kB"
transport = "cubic"
priority = 3
"""


def test_several_jobs_have_results_of_their_own(folder, capsys):
    path = folder / "jobs.toml"
    path.write_text(JOBS)
    texts = []
    for _ in range(2):
        assert main(["sim", "run", str(path), "--engine", "python", "--json", "--seed", "3"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    summary = json.loads(texts[0])
    assert [len(summary["jobs"][name]["steps_s"]) for name in ("one", "two")] == [3, 2]
    # Two ranks send the whole model each; four send three halves.
    assert [summary["jobs"][name]["bytes"] for name in ("one", "two")] == [3 * 2 * 48_000, 2 * 4 * 72_000]
    assert summary["jobs"]["two"]["completion_s"]["count"] == 2 * 4 * 2 * 2
    assert summary["background"]["completion_s"]["count"] > 0 and summary["steps_s"] == []
    assert summary["complete"] == summary["messages"]
    run = built(folder, read(path))
    assert hosts_of(run, "one") == {0, 3} and hosts_of(run, "two") == {1, 2, 4, 5}
    noise = [message for message in run.messages if message.group == "noise"]
    assert noise and all(m.transport.name == "cubic" and m.priority == 3 and m.size == 3000 for m in noise)
    assert main(["sim", "run", str(path), "--engine", "python", "--quiet"]) == 0
    text = capsys.readouterr().out
    assert "one steps: 3" in text and "two steps: 2" in text and "background completion" in text


def test_background_alone_is_waited_for(folder):
    run = built(folder, scenario(traffic={"kind": "none"}, background=[{"load": 0.3, "sizes": "storage", "duration": "2 ms"}]))
    assert run.run(10**12)
    assert summarize(run)["complete"] == len(run.messages) > 20


def test_stragglers_depend_on_the_seed_alone(folder):
    spans = []
    for seed in (1, 1, 2):
        made = scenario(
            seed=seed, workload="model.toml", traffic={"kind": "training", "jitter": 0.5, "straggle_probability": 0.1}
        )
        spans.append([m.delay for m in built(folder, made).messages])
    assert spans[0] == spans[1] != spans[2]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"jobs": [{"name": "a"}]}, "missing, and the scenario has none"),
        ({"workload": "vgg16", "jobs": [{"name": "a"}, {"name": "a"}]}, "another job's name"),
        ({"workload": "vgg16", "jobs": [{"name": "a"}], "traffic": {"kind": "incast"}}, "stand besides traffic"),
        ({"workload": "vgg16", "jobs": [{"name": "a", "hosts": ["h0..x"]}]}, "no host 'x'"),
        ({"workload": "vgg16", "jobs": [{"name": "a", "hosts": ["h0"], "algorithm": "ps"}]}, "no host is left"),
        ({"workload": "vgg", "traffic": {"kind": "training"}}, "did you mean 'vgg16'"),
        ({"workload": "nowhere.toml", "traffic": {"kind": "training"}}, "cannot be read"),
        ({"workload": "model.toml", "traffic": {"kind": "training", "tensor": 2}}, "whose layers and times are fixed"),
        ({"workload": "vgg16", "traffic": {"kind": "training", "pipeline": 2}}, "vgg16 has none"),
        ({"traffic": {"kind": "none"}}, "no background"),
        ({"traffic": {"kind": "none"}, "background": [{"load": 1}]}, "without a duration"),
        ({"background": [{"load": 1, "sizes": "fixed", "hosts": ["h1"]}]}, "nobody to send to"),
        ({"background": [{"load": 1, "size": "1 kB"}]}, "sizes is web-search"),
        ({"background": [{"load": 0}]}, "out of range"),
    ],
)
def test_what_does_not_fit_is_said(folder, fields, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        built(folder, scenario(**fields))
    if "did you mean" in problem:
        assert all(name in str(caught.value) for name in MODELS)


def test_scenarios_show_every_algorithm_and_schedule():
    texts = "".join(path.read_text() for path in (ROOT / "scenarios").glob("*.toml"))
    for word in ("sharded", "ps", "halving-doubling", "hierarchical", "ds-sync", "chunks"):
        assert f'"{word}"' in texts, word
    for key in ("jitter", "straggle_probability", "local_steps", "credit", "[[jobs]]", "[[background]]", "tensor"):
        assert key in texts, key
