"""Mixing, costs and plans, against what can be computed in another way."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.cli.main import main
from dlcp.errors import ConfigError
from dlcp.topology import LeafSpine, Star, Topology
from dlcp.units import Rate
from dssync.mixing import (
    Consensus,
    Mixing,
    NetworkCost,
    Problem,
    choose_domains,
    consensus_of,
    expected_eigenvalue,
    gradient_bound,
    make_plan,
    steps_to_accuracy,
)
from dssync.schedule import BSP, BaseK, Digits, Domains, Shuffled, make_schedule

ROOT = Path(__file__).resolve().parents[2]
FILES = [path for path in sorted((ROOT / "topologies").glob("*.toml")) if path.stem not in ("fat-tree-1024", "leaf-spine-144")]


@pytest.mark.parametrize(("world", "group"), [(4, 2), (6, 2), (6, 3), (8, 4), (12, 3)])
def test_the_expected_eigenvalue_of_random_groups(world, group):
    draws = Shuffled(world, group, seed=5, partitions=6000)
    mean = sum(Mixing(draws).operator(number).matrix() for number in range(draws.period)) / draws.period
    values = np.sort(np.linalg.eigvalsh(mean))[::-1]
    assert values[0] == pytest.approx(1)
    assert values[1:] == pytest.approx(np.full(world - 1, expected_eigenvalue(world, group)), abs=0.03)


@pytest.mark.parametrize("schedule", [BaseK(100, 2), Shuffled(120, 4), Domains(128, [range(100), range(100, 128)])], ids=repr)
def test_norms_of_large_worlds_agree_with_those_of_matrices(schedule):
    mixing = Mixing(schedule)
    for start, count in ((0, schedule.window), (1, 3)):
        dense = np.linalg.norm(mixing.matrix(start, count) - 1 / schedule.world, 2)
        assert mixing.norm(start, count) == pytest.approx(dense, rel=0.05, abs=1e-6)


def test_consensus_of_schedules_that_are_exact():
    assert consensus_of(BSP(8)) == Consensus(1, 0.0)
    assert consensus_of(BSP(8)).first == 0
    assert consensus_of(Digits(8, 2)) == Consensus(3, 0.0)
    assert consensus_of(Digits(8, 2), every=4).first == 11
    some = consensus_of(BaseK(7, 2))
    assert some.first <= 2 * 5 - 2 and 0 < some.gap <= 1
    assert Consensus(4, 0.5).steps_to(1 / 8) == pytest.approx(12)


def test_a_schedule_that_never_connects_never_converges():
    apart = Consensus(3, 1.0)
    assert steps_to_accuracy(apart, Problem(), 1e-3, 8)[0] == np.inf
    assert gradient_bound(apart, Problem(), 0.1, 100, 8) == np.inf


def test_more_accuracy_takes_more_steps_and_bsp_the_fewest():
    loose, tight = (steps_to_accuracy(consensus_of(Digits(8, 2)), Problem(), goal, 8)[0] for goal in (1e-2, 1e-4))
    assert tight > 10 * loose
    assert steps_to_accuracy(consensus_of(BSP(8)), Problem(), 1e-4, 8)[0] < tight


# -- costs


def by_routes(topology, groups, size):
    demands = []
    for ranks, _ in groups:
        amount = 2 * size * (len(ranks) - 1) / len(ranks)
        for a, b in zip(ranks, (*ranks[1:], ranks[0]), strict=True):
            demands.append((topology.places[a], topology.places[b], amount))
    return topology.routes.loads(demands)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_loads_are_those_of_the_routes(path):
    topology = Topology.from_toml(path)
    network = NetworkCost(topology)
    for schedule in (BSP(topology.world), BaseK(topology.world, 2), Shuffled(topology.world, 3)):
        for groups in schedule.rounds:
            cost = network.round_cost(groups, 1000)
            want = {number: load for number, load in by_routes(topology, groups, 1000).items() if load}
            assert cost.loads == pytest.approx(want)


@given(
    hosts=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=2, max_size=6),
    seed=st.integers(0, 1000),
    ranks=st.integers(1, 2),
)
@settings(deadline=None, max_examples=40)
def test_loads_and_times_on_odd_networks(hosts, seed, ranks):
    """Switches in a triangle; hosts on one or two of them."""
    topology = Topology.from_dict(
        {
            "hosts": [{"name": f"h{i}", "ranks": list(range(ranks * i, ranks * i + ranks))} for i in range(len(hosts))],
            "switches": [{"name": f"s{i}"} for i in range(3)],
            "links": [
                *({"a": f"s{i}", "b": f"s{(i + 1) % 3}", "rate": f"{i + 1} Mbit/s", "delay": "1 ms"} for i in range(3)),
                *({"a": f"h{i}", "b": f"s{one}", "rate": "8 Mbit/s", "delay": "2 ms"} for i, (one, _) in enumerate(hosts)),
                *(
                    {"a": f"h{i}", "b": f"s{two}", "rate": "8 Mbit/s"}
                    for i, (one, two) in enumerate(hosts)
                    if two < 3 and two != one
                ),
            ],
        }
    )
    schedule = Shuffled(topology.world, 3, seed, partitions=4)
    network = NetworkCost(topology)
    for groups in schedule.rounds:
        cost = network.round_cost(groups, 1000)
        loads = {number: load for number, load in by_routes(topology, groups, 1000).items() if load}
        assert cost.loads == pytest.approx(loads)
        for (members, _), seconds in zip(groups, cost.group_seconds, strict=True):
            want = 0.0
            for a, b in zip(members, (*members[1:], members[0]), strict=True):
                a, b = topology.places[a], topology.places[b]
                if a != b:
                    used = topology.routes.shares(a, b)
                    transfer = max(8 * loads[number] / topology.graph.arcs[number].rate for number in used)
                    want = max(want, transfer + 2 * (len(members) - 1) * topology.routes.delay(a, b) / 10**12)
            assert seconds == pytest.approx(want)


def test_costs_that_can_be_computed_by_hand():
    topology = Topology.from_toml(ROOT / "topologies" / "straggler.toml")
    network = NetworkCost(topology)
    # 7/4 of 5 MB over 5 Mbit/s, and 14 steps over two links of 2.5 ms.
    assert network.round_cost(BSP(8).round(0), 5_000_000).longest == pytest.approx(14 + 0.07)
    pairs = network.round_cost(Digits(8, 2).round(0), 5_000_000)
    assert pairs.group_seconds.tolist() == pytest.approx([0.81, 0.81, 0.81, 8.01])
    assert pairs.sent == 5_000_000
    # Two quick ranks do not wait for a slow pair they never meet.
    assert network.step_seconds(BSP(8), 5_000_000, compute=1.0) == pytest.approx(15.07)
    assert network.step_seconds(BSP(8), 5_000_000, compute=1.0, every=10) == pytest.approx(2.407)


def test_ranks_that_the_topology_lacks_are_refused():
    star = Star(hosts=4).build()
    with pytest.raises(ConfigError, match="has no host for rank 4"):
        NetworkCost(star, 5)
    with pytest.raises(ConfigError, match="has no host for rank 4"):
        make_schedule("topology", 5, topology=star)


def test_a_slow_link_is_avoided():
    topology = Topology.from_toml(ROOT / "topologies" / "straggler.toml")
    schedule = choose_domains(topology, 8, 4_000_000)
    assert schedule.domains == (tuple(range(7)), (7,)) and schedule.local > 1
    plan = make_plan(topology, 4_000_000)
    assert plan.recommended.schedule.kind == "topology"
    assert plan.recommended.step_seconds < plan.bsp.step_seconds / 1.94
    assert [row.seconds for row in plan.rows] == sorted(row.seconds for row in plan.rows)


def test_without_a_bottleneck_nothing_crosses_domains():
    plan = make_plan(Star(hosts=6, rate=Rate.parse("10 Gbit/s")).build(), 4_000_000, groups=(2, 3))
    topology = next(row.schedule for row in plan.rows if row.schedule.kind == "topology")
    assert topology.domains == (tuple(range(6)),) and topology.exact_rounds == 1
    assert {(row.schedule.kind, row.schedule.largest) for row in plan.rows} >= {("digits", 3), ("base-k", 2), ("bsp", 6)}


def test_a_thousand_ranks():
    topology = LeafSpine(leaves=32, hosts_per_leaf=32, spines=4, oversubscription=4.0).build()
    plan = make_plan(topology, 100_000_000, kinds=("bsp", "digits", "base-k", "topology"), groups=(4,))
    assert plan.world == 1024 and len(plan.rows) == 3
    assert all(np.isfinite(row.step_seconds) for row in plan.rows)


# -- the command


def run(capsys, *words):
    code = main(["dssync", *map(str, words)])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_plan_as_json(capsys):
    file = ROOT / "topologies" / "straggler.toml"
    code, out, _ = run(capsys, "plan", "--topology", file, "--model-bytes", "4 MB", "--compute", "50 ms", "--json")
    document = json.loads(out)
    assert code == 0 and document["model_bytes"] == 4_000_000 and document["compute_s"] == 0.05
    assert document["recommended"]["kind"] == "topology" and document["rows"][0]["schedule"] == document["recommended"]
    assert {"spectral_gap", "step_seconds", "round_seconds", "link_bytes", "busiest_link", "seconds"} <= set(document["rows"][0])


def test_plan_as_a_table(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    file = ROOT / "topologies" / "dumbbell-8.toml"
    code, out, _ = run(capsys, "plan", "--topology", file, "--model-bytes", "4e6", "--every", "2", "--accuracy", "1e-12")
    assert code == 0 and "recommended:" in out and "left -> right" in out


def test_rounds(capsys):
    code, out, _ = run(capsys, "rounds", "base-k", "--world", "3")
    assert code == 0 and "0 2 (relaxation 4/3) | 1" in out
    code, out, _ = run(capsys, "rounds", "topology", "--topology", ROOT / "topologies" / "straggler.toml", "--json")
    assert code == 0 and json.loads(out)["settings"]["domains"] == [list(range(7)), [7]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("rounds", "digits", "--world", "6"), "cannot tile"),
        (("rounds", "digits"), "--world"),
        (("plan", "--topology", ROOT / "topologies" / "star-4.toml", "--model-bytes", "0"), "model-bytes"),
        (("plan", "--topology", ROOT / "topologies" / "star-4.toml", "--model-bytes", "1", "--world", "9"), "no host for rank"),
        (("plan", "--topology", ROOT / "topologies" / "star-4.toml", "--model-bytes", "1", "--kinds", "x"), "unknown"),
        (("plan", "--topology", ROOT / "topologies" / "star-4.toml", "--model-bytes", "1", "--groups", "1"), "2 or more"),
        (("plan", "--topology", ROOT / "topologies" / "star-4.toml", "--model-bytes", "1", "--noise", "nan"), "--noise"),
        (("plan", "--topology", "missing.toml", "--model-bytes", "1"), "missing.toml"),
    ],
)
def test_mistakes_are_one_line(capsys, words, said):
    code, out, err = run(capsys, *words)
    assert code == 2 and out == "" and said in err and err.count("\n") == 1
