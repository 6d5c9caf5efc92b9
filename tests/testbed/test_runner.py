"""Experiments as a whole: order of runs, results.json, what is compared with what."""

import copy
import json
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.errors import ConfigError
from testbed.catalogue import changed, load, possible, resumed, shipped
from testbed.experiment import Experiment
from testbed.lab.errors import HostLacks, LabError
from testbed.lab.network import Lab
from testbed.ranks.launch import ForkLauncher
from testbed.results import Results, RunResult, read_results, write_results
from testbed.runner import Runner, check, turns
from testbed.summary import median, summarize

SAMPLE = Path(__file__).resolve().parent / "data" / "sample"
SMALL = {
    "name": "small",
    "topology": {
        "generate": {"kind": "star", "hosts": 2, "rate": "50 Mbit/s", "delay": "1 ms", "buffer": "20 packets"},
        "hosts": [{"name": "x0"}],
        "links": [{"a": "x0", "b": "s0", "rate": "50 Mbit/s"}],
    },
    "repeats": 1,
    "timeout": "60 s",
    "training": {"width": 4, "batch_size": 64, "epochs": 1, "eval_every": 4, "accuracy": 0.0},
    "candidates": [
        {"name": "gloo", "comm": "gloo", "baseline": True, "congestion": "reno", "target": "bridge"},
        {"name": "dlcp", "comm": "dlcp"},
    ],
    "traffic": [{"name": "noise", "kind": "udp", "sources": ["x0"], "sinks": ["h0"], "rate": "5 Mbit/s"}],
    "events": [{"at": "50 ms", "kind": "link-loss", "link": ["h1", "s0"], "loss": 0.01}],
}


def candidates(count):
    return [{"name": f"c{number}", "comm": "gloo"} for number in range(count)]


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 100))
def test_candidates_take_turns(count, repeats, seed):
    plain = {**SMALL, "candidates": candidates(count), "repeats": repeats, "seed": seed}
    order = turns(Experiment.from_dict(plain))
    assert len(order) == count * repeats
    for repeat in range(repeats):
        part = order[repeat * count : (repeat + 1) * count]
        assert {turn.candidate.name for turn in part} == {f"c{number}" for number in range(count)}
        assert {(turn.repeat, turn.seed) for turn in part} == {(repeat, seed + repeat)}
        assert part[0].candidate.name == f"c{repeat % count}", "none is always first"


@pytest.mark.root
def test_an_experiment_from_beginning_to_end(tmp_path, state):
    experiment = Experiment.from_dict(SMALL)
    folder = tmp_path / "out"
    told = []

    class Watcher:
        def began(self, number, turn):
            told.append(("began", number, turn.candidate.name))

        def stage(self, text):
            pass

        def line(self, line):
            pass

        def ended(self, number, result):
            # What is finished is on disk by now.
            assert len(read_results(folder)["runs"]) == number + 1
            told.append(("ended", number, result["outcome"]))

    results = Runner(experiment, folder, ForkLauncher(folder), Watcher()).run()
    assert told == [("began", 0, "gloo"), ("ended", 0, "ok"), ("began", 1, "dlcp"), ("ended", 1, "ok")]
    assert json.loads(json.dumps(results)) == read_results(folder) == read_results(folder / "results.json")
    assert results["complete"] and not results["interrupted"] and results["best_baseline"] == "gloo"
    assert Experiment.from_toml(folder / "experiment.toml") == experiment.alone()
    for run in results["runs"]:
        assert set(run) == set(RunResult.__annotations__) - {"jobs"} and 0 < run["processors_busy"] <= 1
        assert run["steps"] == 11 and len(run["losses"]) == 11 and run["error"] == ""
        assert run["time_to_accuracy_s"] == run["evaluations"][0]["clock_s"] > 0
        assert 0 <= run["final_accuracy"] <= 1 and run["bring_up_s"] > 0 and run["tear_down_s"] > 0
        (flow,) = run["traffic"]
        assert flow["name"] == "noise" and flow["received"]["packets"] > 0
        (event,) = run["events"]
        assert event["kind"] == "link-loss" and event["at_s"] >= 0.05 and not event["error"]
        assert run["network"]["switches"]["s0"]["ports"]
    assert set(results) | {"notes"} == set(Results.__annotations__)
    gloo, dlcp = results["runs"]
    assert gloo["network"]["target"] == "bridge" and dlcp["network"]["target"] == "softswitch"
    assert not gloo["traces"] and not gloo["packets"] and dlcp["packets"] and dlcp["classes"]
    (trace,) = dlcp["traces"]
    assert trace["switch"] == "s0" and set(trace["ports"].values()) == {"h0", "h1", "x0"} and trace["start_s"] < 0
    lines = [json.loads(line) for line in (folder / trace["file"]).read_text().splitlines()]
    # The switch was busy while the ranks trained, by the clock that they share.
    busy = [line["t_us"] / 1e6 + trace["start_s"] for line in lines if line["ports"]["2"]["out_packets"] > 3]
    assert any(0 <= t <= dlcp["training_s"] for t in busy)


@given(st.data())
@settings(max_examples=20)
def test_only_what_is_missing_is_made_when_it_is_gone_on_with(data):
    with tempfile.TemporaryDirectory() as folder:
        sample = Path(folder) / "sample"
        shutil.copytree(SAMPLE, sample)
        former = read_results(sample)
        planned = [(run["candidate"], run["seed"]) for run in former["runs"]]
        outcome = st.sampled_from(["ok", "failed", "timeout", "killed", "interrupted", "missing"])
        outcomes = [data.draw(outcome) for _ in planned]
        for run, drawn in zip(former["runs"], outcomes, strict=True):
            run["outcome"] = drawn
        former["runs"] = [run for run in former["runs"] if run["outcome"] != "missing"]
        write_results(former, sample)
        more = data.draw(st.integers(0, 2))
        experiment, former = resumed(sample, Experiment.from_toml(sample / "experiment.toml").repeats + more)
        made = []

        class Dry(Runner):
            def _run(self, turn):
                made.append((turn.candidate.name, turn.seed))
                run = copy.deepcopy(read_results(SAMPLE)["runs"][0])
                return run | {"candidate": turn.candidate.name, "seed": turn.seed, "repeat": turn.repeat}

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("testbed.runner.check", lambda experiment, launcher: None)
            patch.setattr(ForkLauncher, "prepare", lambda self: None)
            results = Dry(experiment, sample, ForkLauncher(sample), former=former).run()
        redone = [pair for pair, drawn in zip(planned, outcomes, strict=True) if drawn in ("interrupted", "missing")]
        assert sorted(made[: len(made) - more * len(experiment.candidates)]) == sorted(redone)
        pairs = [(run["candidate"], run["seed"]) for run in results["runs"]]
        assert len(pairs) == len(set(pairs)) == results["planned"] == len(experiment.candidates) * experiment.repeats
        kept = {pair: drawn for pair, drawn in zip(planned, outcomes, strict=True) if drawn not in ("interrupted", "missing")}
        assert {pair: run["outcome"] for pair, run in zip(pairs, results["runs"], strict=True) if pair in kept} == kept
        assert results["complete"] and f"after {len(kept)} runs" in results["notes"][-1]
        assert results["seconds"] >= former["seconds"] and read_results(sample) == json.loads(json.dumps(results))
        assert results["experiment"]["repeats"] == experiment.repeats


def test_what_cannot_be_gone_on_with_is_refused(tmp_path):
    shutil.copytree(SAMPLE, tmp_path / "sample")
    folder = tmp_path / "sample"
    assert resumed(folder)[0].repeats == 2
    with pytest.raises(ConfigError, match=r"--repeats: 1: 2 have been begun"):
        resumed(folder, 1)
    text = (folder / "experiment.toml").read_text()
    (folder / "experiment.toml").write_text(text.replace('name = "gloo"', 'name = "glue"'))
    with pytest.raises(ConfigError, match="are not those of results"):
        resumed(folder)
    (folder / "experiment.toml").unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        resumed(folder)
    results = read_results(folder)
    results["runs"][0]["steps"] = "many"
    write_results(results, folder)
    with pytest.raises(ConfigError, match=r"runs\[0\].steps"):
        resumed(folder)


@pytest.mark.root
def test_a_run_that_fails_does_not_end_the_experiment(tmp_path, state):
    plain = copy.deepcopy(SMALL)
    plain["traffic"], plain["events"] = [], []
    plain["training"]["batch_size"] = 5000
    plain["candidates"] = [{"name": name, "comm": "gloo", "target": "bridge", "baseline": True} for name in ("a", "b")]
    results = Runner(Experiment.from_dict(plain), tmp_path, ForkLauncher(tmp_path)).run()
    assert results["complete"] and [run["outcome"] for run in results["runs"]] == ["failed", "failed"]
    assert all("5000 exceeds" in run["error"] for run in results["runs"])
    assert results["best_baseline"] is None and results["candidates"][0]["summary"]["failed"] == 1


@pytest.mark.root
def test_a_network_that_could_not_be_built_is_tried_once_more(tmp_path, state, monkeypatch):
    built = []

    class Flaky(Lab):
        def __enter__(self):
            built.append(self.run_dir)
            if len(built) in (1, 3, 4):
                (self.run_dir / "store").write_text("rubbish")
                raise LabError("no luck")
            return super().__enter__()

    monkeypatch.setattr("testbed.run.Lab", Flaky)
    plain = {
        **SMALL,
        "traffic": [],
        "events": [],
        "candidates": [{"name": "a", "comm": "gloo", "target": "bridge"}],
        "repeats": 2,
    }
    results = Runner(Experiment.from_dict(plain), tmp_path, ForkLauncher(tmp_path)).run()
    assert [(run["outcome"], run["error"]) for run in results["runs"]] == [("ok", ""), ("failed", "no luck")]
    assert results["notes"] == [f"a, seed {seed}, tried again: no luck" for seed in (1, 2)] and len(built) == 4


def test_the_sample_is_what_the_format_says():
    results = read_results(SAMPLE)
    again = copy.deepcopy(results)
    summarize(again)
    assert again == results
    assert set(results) | {"notes"} == set(Results.__annotations__)
    for run in results["runs"]:
        assert set(run) == set(RunResult.__annotations__) - {"jobs", "processors_busy"}
        for entry in (*run["traces"],):
            assert (SAMPLE / entry["file"]).is_file()
        for rank in run["ranks"]:
            assert (SAMPLE / rank["log"]).is_file()


def test_the_best_baseline_is_the_yardstick():
    results = read_results(SAMPLE)
    base = results["runs"][0]

    def run(candidate, time, p99, outcome="ok"):
        made = copy.deepcopy(base)
        made |= {"candidate": candidate, "time_to_accuracy_s": time, "outcome": outcome}
        made["step_s"]["p99_s"] = p99
        return made

    names = {"slow": True, "fast": True, "lucky": True, "ours": False, "never": False}
    results["candidates"] = [{**results["candidates"][0], "name": name, "baseline": flag} for name, flag in names.items()]
    results["runs"] = [
        *(run("slow", time, 0.9) for time in (9.0, 10.0, 11.0)),
        *(run("fast", time, 0.6) for time in (5.0, 6.0, 7.0)),
        run("lucky", 1.0, 0.1),
        *(run("lucky", None, 0.1, "failed") for _ in range(2)),
        *(run("ours", time, 0.2) for time in (2.0, 3.0, 4.0)),
        run("ours", 0.1, 0.1, "interrupted"),
        *(run("never", None, 0.2) for _ in range(3)),
    ]
    summarize(results)
    found = {each["name"]: each["summary"] for each in results["candidates"]}
    assert results["best_baseline"] == "fast", "one that reaches the goal now and then is no yardstick"
    assert found["ours"]["speedup"] == 2.0 and found["ours"]["p99_gain"] == pytest.approx(3.0) and found["ours"]["runs"] == 3
    assert found["fast"]["speedup"] == 1.0 and found["slow"]["speedup"] == 0.6
    assert found["never"]["speedup"] is None and found["never"]["reached"] == 0
    assert found["lucky"]["failed"] == 2 and found["lucky"]["time_to_accuracy_s"]["values"] == [1.0, None, None]


@given(st.lists(st.none() | st.floats(0, 1e6)))
def test_medians_skip_what_is_missing(values):
    found = median(values)
    there = sorted(value for value in values if value is not None)
    assert found["values"] == values
    if there:
        assert found["min"] == there[0] <= found["median"] <= there[-1] == found["max"]
    else:
        assert found["median"] is found["min"] is found["max"] is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{", "no JSON"), ("[]", "format"), ('{"format": "x"}', "format"), ('{"format": "dlcp-testbed-results"}', "version")],
)
def test_other_documents_are_refused(tmp_path, text, problem):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(ConfigError, match=problem):
        read_results(tmp_path)


def test_results_are_written_whole(tmp_path):
    results = read_results(SAMPLE)
    write_results(results, tmp_path)
    results["seconds"] = float("nan")
    with pytest.raises(ValueError, match="JSON compliant"):
        write_results(results, tmp_path)
    assert read_results(tmp_path)["seconds"] > 0
    with pytest.raises(ConfigError, match="cannot be read"):
        read_results(tmp_path / "none")


@pytest.mark.parametrize("name", shipped())
def test_experiments_that_come_along(name):
    experiment = load(name)
    assert experiment.name == name and experiment.summary
    assert any(candidate.baseline for candidate in experiment.candidates)
    assert Experiment.from_dict(experiment.alone().to_dict()) == experiment.alone()


def test_everything_asked_for_comes_along():
    wanted = {"incast", "oversubscribed", "lossy", "gray-failure", "straggler-link", "two-jobs", "ecmp-collision"}
    assert wanted <= set(shipped())
    names = {candidate.name for candidate in load("incast").candidates}
    assert names >= {"gloo-cubic", "gloo-bbr", "gloo-fp16", "powersgd", "postlocalsgd", "dlcp", "dlcp-kernel", "dlcp-bridge"}


def test_what_a_command_line_changes():
    experiment = Experiment.from_dict(SMALL)
    new = changed(experiment, repeats=3, seed=7, epochs=2, target="bridge", timeout_s=5, candidates=["dlcp"])
    assert (new.repeats, new.seed, new.training.epochs, new.target, str(new.timeout)) == (3, 7, 2, "bridge", "5 s")
    assert [candidate.name for candidate in new.candidates] == ["dlcp"] and new.traffic == experiment.traffic
    assert changed(experiment) == experiment.alone()
    with pytest.raises(ConfigError, match=r"no candidate 'dlpc' \(did you mean 'dlcp'\?\)"):
        changed(experiment, candidates=["dlpc"])
    with pytest.raises(ConfigError, match="repeats"):
        changed(experiment, repeats=0)


def test_candidates_that_this_machine_cannot_do_are_left_out_by_name(monkeypatch):
    def require(target, wires=False):
        if target == "bmv2":
            raise HostLacks(["no BMv2"])

    monkeypatch.setattr("testbed.catalogue.require", require)
    plain = {**SMALL, "candidates": [*SMALL["candidates"], {"name": "other", "comm": "dlcp", "target": "bmv2"}]}
    left, notes = possible(Experiment.from_dict(plain))
    assert [candidate.name for candidate in left.candidates] == ["gloo", "dlcp"]
    assert notes == ["other is left out: no BMv2"]


def test_what_cannot_be_emulated_is_refused_before_anything_is_built(tmp_path, monkeypatch):
    monkeypatch.setattr("testbed.runner.require", lambda target: None)
    plain = copy.deepcopy(SMALL)
    plain["topology"]["generate"]["rate"] = "10 Tbit/s"
    with pytest.raises(ConfigError, match="cannot be emulated"):
        check(Experiment.from_dict(plain), ForkLauncher(tmp_path))
