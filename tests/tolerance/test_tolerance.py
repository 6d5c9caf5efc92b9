"""The tolerance measurement: statistics, patterns of loss, virtual workers, search, conclusion, command."""

import json
import math
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import dlcp.tolerance.search as search_module
from dlcp.cli import main as cli
from dlcp.errors import ConfigError
from dlcp.policy import Policy
from dlcp.tolerance.conclusion import conclude, document, policy_text
from dlcp.tolerance.patterns import KINDS, Loss, runs
from dlcp.tolerance.search import Plan, search
from dlcp.tolerance.task import find_task, make_task
from dlcp.tolerance.training import Outcome, Run, train
from dlcp.tolerance.verdict import judge, t_quantile
from dlcp.tolerance.workers import VirtualJob

# Of tables of Student's t.
QUANTILES = {(0.95, 1): 6.3138, (0.95, 4): 2.1318, (0.975, 9): 2.2622, (0.99, 30): 2.4573, (0.9, 2): 1.8856, (0.95, 1000): 1.6464}

TASK = """
import torch
from torch import nn
from dlcp.tolerance import Task

def task():
    model = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 4))
    data = torch.Generator().manual_seed(0)
    inputs = torch.randn(256, 20, generator=data)
    targets = inputs[:, :4].argmax(1)
    return Task(model, torch.optim.SGD(model.parameters(), lr=0.5), inputs, targets, nn.functional.cross_entropy,
                lambda trained: float((trained(inputs).argmax(1) == targets).float().mean()), batch_size=8, epochs=4)

def fragile():
    made = task()
    made.accuracy = lambda trained: float("nan")
    return made

def few():
    made = task()
    made.inputs, made.targets = made.inputs[:5], made.targets[:5]
    return made

def uneven():
    made = task()
    made.targets = made.targets[1:]
    return made

number = 7

def nothing():
    return None
"""


@pytest.fixture(scope="module")
def task_module(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "tolerance_tasks.py").write_text(TASK)
    sys.path.insert(0, str(folder))
    yield "tolerance_tasks"
    sys.path.remove(str(folder))
    sys.modules.pop("tolerance_tasks", None)


# -- statistics


@pytest.mark.parametrize("case", QUANTILES, ids=str)
def test_t_quantiles_are_those_of_the_tables(case):
    assert t_quantile(*case) == pytest.approx(QUANTILES[case], abs=1e-4)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=12), st.floats(0.001, 0.5), st.sampled_from([0.9, 0.95, 0.99]))
def test_a_verdict_is_what_its_limits_say(drops, margin, confidence):
    verdict = judge(drops, margin, confidence)
    assert verdict.lower <= verdict.mean <= verdict.upper
    assert verdict.judgement == ("tolerated" if verdict.upper <= margin else "refused" if verdict.lower > margin else "unclear")
    worse = judge([drop + 0.1 for drop in drops], margin, confidence)
    assert worse.upper > verdict.upper and (verdict.judgement == "tolerated" or worse.judgement != "tolerated")


def test_a_loss_that_costs_the_margin_is_called_tolerated_as_rarely_as_promised():
    rng = np.random.default_rng(0)
    wrong = sum(judge(list(0.01 + 0.01 * rng.standard_normal(5)), 0.01, 0.95).judgement == "tolerated" for _ in range(600))
    assert 12 <= wrong <= 50  # 5 % of 600 is 30; four standard deviations to each side


def test_one_pair_is_not_enough():
    with pytest.raises(ValueError, match="at least 2"):
        judge([0.0], 0.01, 0.95)
    with pytest.raises(ValueError):
        t_quantile(0.4, 3)


# -- patterns


@pytest.mark.parametrize("burst", [1.0, 4.0, 16.0])
@pytest.mark.parametrize("rate", [0.02, 0.3])
def test_runs_have_the_rate_and_the_length_that_were_asked_for(rate, burst):
    lost = runs(200_000, rate, burst, np.random.default_rng(1))
    assert lost.size == 200_000 and lost.mean() == pytest.approx(rate, rel=0.15)
    lengths = np.diff(np.flatnonzero(np.diff(np.concatenate([[0], lost.astype(int), [0]]))))[::2]
    assert lengths.mean() == pytest.approx(max(burst, 1 / (1 - rate)), rel=0.15)


def test_runs_at_the_ends_of_the_range():
    rng = np.random.default_rng(0)
    assert not runs(50, 0.0, 8, rng).any() and runs(50, 1.0, 8, rng).all() and runs(0, 0.5, 8, rng).size == 0


@given(
    st.sampled_from(sorted(KINDS)),
    st.floats(0.01, 0.5),
    st.integers(1, 150),
    st.integers(0, 3),
    st.sampled_from([1.0, 6.0]),
    st.integers(0, 2**32 - 1),
)
def test_only_packets_of_the_right_kind_are_lost(kind, share, packets, rank, burst, seed):
    rng = np.random.default_rng(seed)
    tags = rng.integers(0, 14, packets).astype(np.uint8)
    travels = rng.random(packets) < 0.75
    scores = rng.random(packets).astype(np.float32)
    loss = Loss(kind, share, layer_class=3, burst=burst)
    lost = loss.choose(tags, travels, scores, rank, 4, np.random.default_rng(seed))
    again = loss.choose(tags, travels, scores, rank, 4, np.random.default_rng(seed))
    np.testing.assert_array_equal(lost, again)
    assert lost.dtype == np.int64 and (np.diff(lost) > 0).all() and travels[lost].all()
    if kind in ("tagged", "class"):
        assert not (tags[lost] & 1).any()
    if kind == "class":
        assert (tags[lost] >> 1 == 3).all()
    if kind == "uneven" and rank:
        assert lost.size == 0
    if kind in ("smallest", "largest") and lost.size:
        kept = np.setdiff1d(np.flatnonzero(travels), lost)
        assert abs(lost.size - share * travels.sum()) < 1
        sign = 1 if kind == "smallest" else -1
        assert not kept.size or (sign * scores[lost]).max() <= (sign * scores[kept]).min()


@pytest.mark.parametrize("kind", ["tagged", "random", "smallest", "class", "uneven"])
def test_on_average_as_much_is_lost_as_was_said(kind):
    rng = np.random.default_rng(2)
    tags = (np.arange(400) % 14).astype(np.uint8)
    travels, scores = np.ones(400, bool), rng.random(400).astype(np.float32)
    loss = Loss(kind, 0.1, layer_class=3)
    counts = [[loss.choose(tags, travels, scores, rank, 4, rng).size for rank in range(4)] for _ in range(200)]
    population = (tags >> 1 == 3).sum() if kind == "class" else 400
    assert np.sum(counts) / (200 * 4 * population) == pytest.approx(0.1, rel=0.08)
    if kind == "uneven":
        assert np.sum(counts, axis=0)[1:].sum() == 0 and not Loss("uneven", 0.3).possible(4) and loss.possible(4)


# -- virtual workers


def job_of(compensation, loss, ranks=3, dtype="float32", seed=5):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 60, dtype=torch.float64), nn.Linear(60, 20, dtype=torch.float64))
    policy = Policy.from_dict({"loss": {"compensation": compensation}, "wire": {"mtu": 576, "dtype": dtype}})
    return VirtualJob(model, policy, ranks, loss, seed), model


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_no_gradient_is_lost_for_good(kind):
    """Whole numbers in float64: what went in is what came out and what is owed, to the last bit."""
    job, _ = job_of("error-feedback", Loss(kind, 0.3, layer_class=6), ranks=4)
    size = job.layout.elements
    rng = np.random.default_rng(1)
    given_, got = np.zeros(size), np.zeros(size)
    for _ in range(6):
        gradients = [torch.from_numpy(rng.integers(-8, 9, size).astype(np.float64)) for _ in range(4)]
        given_ += sum(g.numpy() for g in gradients)
        got += 4 * job.reduce([g.clone() for g in gradients]).numpy()
    owed = np.zeros(size)
    for store in job.residuals:
        for i, name in enumerate(job.layout.names):
            store.add_to(name, owed[job.layout.edges[i] : job.layout.edges[i + 1]])
    np.testing.assert_array_equal(got + owed, given_)
    assert job.hub.lost > 0 and (got != given_).any()


def test_without_loss_it_is_the_mean_and_every_worker_gets_it():
    job, model = job_of("zero", None)
    size = job.layout.elements
    gradients = [torch.randn(size, dtype=torch.float64) for _ in range(3)]
    copies = [g.clone() for g in gradients]
    job.reduce(copies)
    expected = (gradients[0] + gradients[1] + gradients[2]) * (1 / 3)
    for copy in copies:
        assert torch.equal(copy, expected)
    job.give(copies[0])
    flat = torch.cat([parameter.grad.ravel() for parameter in list(model.parameters())[::-1]])
    assert torch.equal(flat, expected) and job.hub.lost == 0 and job.hub.packets > 0


@pytest.mark.parametrize(("compensation", "value"), [("zero", {0.0, 1 / 3, 2 / 3, 1.0}), ("rescale", {0.0, 1.0})])
def test_compensation_is_that_of_the_owner(compensation, value):
    job, _ = job_of(compensation, Loss("random", 0.4))
    ones = [torch.ones(job.layout.elements, dtype=torch.float64) for _ in range(3)]
    found = {round(x, 12) for x in set(job.reduce(ones).tolist())}
    assert (found <= {round(x, 12) for x in value} and len(found) > 1) or compensation == "rescale"
    assert all(len(store) == 0 for store in job.residuals)
    if compensation == "rescale":
        assert found == {1.0}  # an owner's own share always arrives


def test_a_rank_that_loses_nothing_of_its_own_shard():
    job, _ = job_of("zero", Loss("random", 0.5), ranks=2)
    result = job.reduce([torch.ones(job.layout.elements, dtype=torch.float64) for _ in range(2)])
    assert float(result.min()) == 0.5  # a packet never misses at both: one of the two owns it


# -- training


def test_a_run_is_repeatable_and_depends_on_the_seed(task_module):
    run = Run(f"{task_module}:task", 1, 2, Policy().to_dict(), "zero", Loss("random", 0.4))
    first, second = train(run), train(run)
    assert first == second and 0 < first.accuracy <= 1 and first.lost > 0
    assert train(replace(run, seed=2)) != first


def test_a_model_that_diverges_counts_as_useless(task_module):
    outcome = train(Run(f"{task_module}:fragile", 0, 2, Policy().to_dict(), "zero", None))
    assert outcome.diverged and outcome.accuracy == 0


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("tolerance_tasks", "names no function"),
        (":task", "names no function"),
        ("no_such_module_at_all:task", "cannot be imported"),
        ("tolerance_tasks:missing", "has no function missing"),
        ("tolerance_tasks:number", "has no function number"),
        ("tolerance_tasks:nothing", "returns a NoneType"),
        ("tolerance_tasks:uneven", "256 inputs and 255 targets"),
    ],
)
def test_what_is_no_task_is_refused_in_words(task_module, spec, words):
    with pytest.raises(ConfigError, match=words):
        make_task(spec, 0)


def test_the_examples_are_tasks():
    assert callable(find_task("examples.train:digits")) and callable(find_task("examples.train:charlm"))
    task = make_task("examples.train:digits", 0)
    assert len(task.inputs) == 1437 and 0 <= task.accuracy(task.model) <= 1


# -- search and conclusion


def plan_of(**changes):
    base = Run("a:b", 0, 4, Policy().to_dict(), "error-feedback", None)
    values = {
        "base": base,
        "losses": (0.01, 0.02, 0.05, 0.1, 0.2),
        "seeds": 4,
        "margin": 0.01,
        "confidence": 0.95,
        "kinds": ("tagged", "uneven"),
        "once": ("largest", "class"),
        "compensations": ("error-feedback", "zero"),
    }
    return Plan(**(values | changes))


def fake(limits, calls):
    """Training whose accuracy falls at a limit of its own for each way of losing."""

    def run(job):
        calls.append(job)
        noise = 0.001 * math.sin(12.9898 * job.seed)
        if job.loss is None:
            return Outcome(0.9 + noise, False, 100, 0, (0, 3, 6))
        name = f"class{job.loss.layer_class}" if job.loss.kind == "class" else job.loss.kind
        limit = limits.get((name, job.compensation), limits.get(name, 1.0))
        drop = 0.2 if job.loss.share > limit else 0.0
        return Outcome(0.9 + noise - drop, False, 100, 1, (0, 3, 6))

    return run


WAYS = ("tagged", "uneven", "largest", "class0", "class3", "class6")


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(WAYS), st.sampled_from([0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 1.0])))
def test_the_search_finds_every_limit_and_the_conclusion_obeys_all(limits):
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "train", fake(limits, calls))
        seen = []
        plan = plan_of()
        found = search(plan, lambda done, total, left, text: seen.append((done, total, left)))
    for column in found.columns:
        name = f"class{column.layer_class}" if column.kind == "class" else column.kind
        possible = [loss for loss in plan.losses if loss * (4 if column.kind == "uneven" else 1) <= 1]
        assert column.tolerated == max((loss for loss in possible if loss <= limits.get(name, 1.0)), default=0.0)
    assert Counter((c.kind, c.compensation) for c in found.columns) == {
        ("tagged", "error-feedback"): 1,
        ("uneven", "error-feedback"): 1,
        ("largest", "error-feedback"): 1,
        ("class", "error-feedback"): 3,
        ("tagged", "zero"): 1,
        ("uneven", "zero"): 1,
    }
    assert len(calls) >= found.runs == seen[-1][0] and seen[-1][1] == seen[-1][0] and seen[-1][2] == 0
    assert len({(call.seed, call.loss, call.compensation) for call in calls}) == len(calls), "something is trained twice"
    bounds = conclude(plan, found)
    tolerated = {(c.kind, c.layer_class): c.tolerated for c in found.columns if c.compensation == "error-feedback"}
    assert bounds.push <= tolerated["tagged", 0] and bounds.push <= 0.5
    if limits.get("uneven", 1.0) < 0.2:
        assert bounds.push <= 4 * tolerated["uneven", 0]
    for number in (0, 3, 6):
        share = bounds.push_by_class[number] if bounds.push_by_class else bounds.push
        assert share <= tolerated["class", number]
    text = policy_text(plan, found, bounds)
    policy = Policy.from_dict(__import__("tomllib").loads(text))
    assert policy.loss.push == bounds.push and policy.loss.push_by_class == bounds.push_by_class
    json.dumps(document(plan, found, bounds, {}), allow_nan=False)


def test_a_hopeless_loss_ends_early_and_only_to_refuse(monkeypatch):
    calls = []
    monkeypatch.setattr(search_module, "train", fake({"tagged": 0.0}, calls))
    plan = plan_of(kinds=("tagged",), once=(), compensations=("error-feedback",), seeds=10, losses=(0.1,))
    found = search(plan)
    (cell,) = found.columns[0].cells
    # Where runs take turns all of a cell are there before it is looked at; what is not looked at is dropped.
    assert cell.verdict.judgement == "refused" and len(cell.outcomes) == 3 and found.columns[0].tolerated == 0


# -- the command


def command(capsys, *words):
    code = cli.main(["tolerance", *words])
    return code, *capsys.readouterr()


def test_the_command_writes_a_document_and_a_policy(task_module, capsys, tmp_path):
    out = tmp_path / "policy.toml"
    words = (f"{task_module}:task", "--jobs", "1", "--seeds", "2", "--losses", "0,0.3", "--ranks", "2", "--margin", "0.2")
    words += ("--epochs", "1", "--ways", "tagged,uneven,class")
    code, text, _ = command(capsys, *words, "--compensation", "residual,rescale", "--json", "--out", str(out))
    found = json.loads(text)
    assert code == 0 and found["arguments"]["losses"] == [0.3]
    assert {way["compensation"] for way in found["ways"]} == {"error-feedback", "rescale"}
    assert {way["kind"] for way in found["ways"]} == {"tagged", "uneven", "class"}
    for way in found["ways"]:
        for cell in way["cells"]:
            assert len(cell["accuracy"]) == 2 and (cell["judgement"] == "tolerated") == (cell["upper"] <= 0.2)
    policy = Policy.from_toml(out)
    assert policy.loss.push == found["bounds"]["push"] and out.read_text().startswith("# ")
    code, _, error = command(capsys, *words, "--out", str(out))
    assert code == 2 and "is there already" in error


def test_the_command_prints_a_table_and_how_far_it_is(task_module, capsys):
    words = ("--jobs", "1", "--seeds", "2", "--losses", "0.1", "--ranks", "2", "--ways", "tagged,uneven", "--epochs", "1")
    code, text, error = command(capsys, f"{task_module}:task", *words)
    assert code == 0 and "compensation" in text and "is tolerated" in text and "one-sided paired t-test" in text
    assert "without loss: accuracy" in error and "tagged, error-feedback: 10 %" in error


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--losses", "0.6"), "not between 0 and 0.5"),
        (("--losses", "0"), "holds no loss"),
        (("--losses", "many"), "not a number"),
        (("--seeds", "1"), "seeds"),
        (("--compensation", "magic"), "unknown"),
        (("--ways", "sideways"), "unknown"),
    ],
)
def test_wrong_usage_is_told(capsys, words, problem):
    with pytest.raises(SystemExit) as caught:
        cli.main(["tolerance", "a:b", *words])
    assert caught.value.code == 2 and problem in capsys.readouterr().err


def test_a_task_that_does_not_fit_is_told_in_one_line(task_module, capsys):
    code, _, error = command(capsys, f"{task_module}:few", "--jobs", "1")
    assert code == 2 and error.count("\n") == 1 and "5 samples do not fill 4 batches" in error
    code, _, error = command(capsys, "tolerance_tasks:missing")
    assert code == 2 and error.count("\n") == 1


def test_processes_find_what_one_process_finds(task_module, monkeypatch, tmp_path):
    (tmp_path / "spawned_tasks.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    base = Run("spawned_tasks:task", 0, 2, Policy().to_dict(), "zero", None, epochs=1)
    plan = plan_of(base=base, losses=(0.3,), seeds=2, kinds=("random",), once=(), compensations=("zero",), jobs=2)
    many, one = search(plan), search(replace(plan, jobs=1))
    assert many.baseline == one.baseline
    assert [c.cells[0].verdict for c in many.columns] == [c.cells[0].verdict for c in one.columns]
