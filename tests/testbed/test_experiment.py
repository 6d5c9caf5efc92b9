"""Experiment files: what they may say, and how a mistake is told."""

import copy
from pathlib import Path

import pytest

from dlcp.errors import ConfigError
from testbed.experiment import Experiment, merged

STAR = {"generate": {"kind": "star", "hosts": 4, "rate": "50 Mbit/s"}}
GOOD = {
    "name": "small",
    "topology": STAR,
    "policy": {"loss": {"push": 0.1}},
    "candidates": [
        {"name": "gloo", "comm": "gloo", "baseline": True},
        {"name": "dlcp", "comm": "dlcp", "policy": {"loss": {"push": 0.0}, "switch": {"overload": "drop"}}},
    ],
    "traffic": [{"name": "noise", "kind": "udp", "sources": ["h1"], "sinks": ["h2"], "rate": "5 Mbit/s", "start": "1 s"}],
    "events": [{"at": "2 s", "kind": "link-down", "link": ["h1", "s0"]}],
}


def changed(path, value):
    made = copy.deepcopy(GOOD)
    *way, last = path
    inner = made
    for step in way:
        inner = inner[step]
    inner[last] = value
    return made


def test_what_a_file_says():
    experiment = Experiment.from_dict(GOOD)
    gloo, dlcp = experiment.candidates
    assert experiment.network.world == 4
    assert experiment.policy_of(gloo).loss.push == 0.1
    assert experiment.policy_of(dlcp).loss.push == 0.0 and experiment.policy_of(dlcp).switch.overload == "drop"
    assert experiment.target_of(gloo) == "softswitch" and experiment.algorithm_of(dlcp) == "sharded"
    assert experiment.seeds() == (1, 2, 3, 4, 5)
    assert Experiment.from_dict(experiment.to_dict()) == experiment


def test_paths_are_relative_to_the_file(tmp_path):
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "star.toml").write_text('[generate]\nkind = "star"\nhosts = 3\nrate = "1 Gbit/s"\n')
    (tmp_path / "policy.toml").write_text("[loss]\npush = 0.2\n")
    file = tmp_path / "a.toml"
    file.write_text(
        'name = "a"\ntopology = "nets/star.toml"\npolicy = "policy.toml"\n[[candidates]]\nname = "x"\ncomm = "dlcp"\n'
    )
    experiment = Experiment.from_toml(file)
    assert experiment.network.world == 3 and experiment.policy_of(experiment.candidates[0]).loss.push == 0.2
    file.write_text('name = "a"\ntopology = "nets/none.toml"\n[[candidates]]\nname = "x"\ncomm = "dlcp"\n')
    with pytest.raises(ConfigError, match=r"none\.toml.*cannot be read"):
        Experiment.from_toml(file)


@pytest.mark.parametrize(
    ("path", "value", "key", "problem"),
    [
        (("candidates", 0, "comm"), "glo", "candidates[0].comm", "did you mean 'gloo'"),
        (("candidates", 1, "name"), "gloo", "candidates[1].name", "also the name"),
        (("candidates", 1, "policy"), {"los": {}}, "los", "did you mean"),
        (("candidates", 1, "target"), "cisco", "candidates[1].target", "not one of"),
        (("candidates",), [], "candidates", "0 items"),
        (("traffic", 0, "sources"), ["h9"], "traffic[0].sources[0]", "no host 'h9'"),
        (("traffic", 0, "sinks"), ["h1"], "traffic[0].sinks", "to itself"),
        (("traffic", 0, "rate"), "auto", "traffic[0].rate", "auto"),
        (("traffic", 0, "stop"), "1 s", "traffic[0].stop", "not after"),
        (("events", 0, "link"), ["h1", "h2"], "events[0].link", "no link joins"),
        (("events", 0, "link"), ["h1"], "events[0].link", "names of two nodes"),
        (("events", 0, "link"), ["h1", "s7"], "events[0].link[1]", "no node 's7'"),
        (("events", 0), {"at": "1 s", "kind": "rank-kill", "rank": 4}, "events[0].rank", "no rank 4"),
        (("events", 0), {"at": "1 s", "kind": "switch-restart", "switch": "x"}, "events[0].switch", "no switch 'x'"),
        (("topology",), {"generate": {"kind": "star", "hosts": 1, "rate": "1 Gbit/s"}}, "", ""),
        (("topology",), {"generate": {"kind": "star", "hosts": 4, "rate": "1 Gbit"}}, "generate.rate", "unit"),
        (("timeout",), "0 s", "timeout", "out of range"),
        (("training",), {"task": "chess"}, "training.task", "not one of"),
        (("colour",), "red", "colour", "unknown key"),
    ],
)
def test_mistakes_are_named(path, value, key, problem):
    with pytest.raises(ConfigError) as caught:
        Experiment.from_dict(changed(path, value), "x.toml")
    assert key in caught.value.key and problem in str(caught.value), str(caught.value)


def test_merging_changes_neither_side():
    base, changes = {"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": {"e": 4}}
    assert merged(base, changes) == {"a": {"b": 3, "c": 2}, "d": {"e": 4}}
    assert base == {"a": {"b": 1, "c": 2}} and changes == {"a": {"b": 3}, "d": {"e": 4}}


@pytest.mark.parametrize("file", sorted(Path(__file__).parents[2].glob("testbed/experiments/*.toml")), ids=lambda path: path.stem)
def test_shipped_experiments_are_good(file):
    experiment = Experiment.from_toml(file)
    assert experiment.name == file.stem and experiment.summary
    assert any(candidate.baseline for candidate in experiment.candidates)
