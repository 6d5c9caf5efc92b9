"""Schedules: partitions, doubly stochastic, and exact in the rounds they promise, for every number of ranks."""

import subprocess
import sys
from fractions import Fraction
from math import lcm

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.errors import ConfigError
from dssync.mixing import Mixing
from dssync.schedule import BSP, KINDS, BaseK, Digits, Domains, Shuffled, domains_of_size, make_schedule, restore_schedule
from dssync.schedule.factors import fewest_factors

WORLDS = range(2, 65)


def schedules(world):
    """Every kind with several settings, where they fit the world."""
    yield BSP(world)
    for group in (2, 3, 4, 8):
        if fewest_factors(world, group) is not None:
            yield Digits(world, group)
        yield BaseK(world, group)
        yield Shuffled(world, group, seed=world, partitions=12)
    for size, crossing in ((1, 1), (3, 2), (4, 1), (-(-world // 2), world)):
        yield Domains(world, domains_of_size(world, size), crossing=crossing, local=2)
    yield Domains(world, domains_of_size(world, 4), crossing=2, group=2)


def exact(values, groups):
    """Does a round with fractions."""
    values = list(values)
    for ranks, relaxation in groups:
        mean = sum(values[rank] for rank in ranks) / len(ranks)
        for rank in ranks:
            values[rank] += relaxation * (mean - values[rank])
    return values


@pytest.mark.parametrize("world", WORLDS)
def test_rounds_partition_the_ranks_and_are_doubly_stochastic(world):
    for schedule in schedules(world):
        for number, groups in enumerate(schedule.rounds):
            assert sorted(rank for group in groups for rank in group.ranks) == list(range(world)), schedule
            assert [group.ranks[0] for group in groups] == sorted(group.ranks[0] for group in groups)
            for ranks, relaxation in groups:
                size = len(ranks)
                # The entries of (1 - a) I + a J / g.
                assert 1 - relaxation + relaxation / size >= 0 and relaxation > 0, (schedule, number)
        matrices = [Mixing(schedule).operator(number).matrix() for number in range(min(schedule.period, 6))]
        for matrix in matrices:
            assert np.allclose(matrix.sum(axis=0), 1) and np.allclose(matrix.sum(axis=1), 1)
            assert np.allclose(matrix, matrix.T) and matrix.min() > -1e-12


@pytest.mark.parametrize("world", WORLDS)
def test_consensus_is_exact_in_the_promised_rounds(world):
    # Equality of fractions for one vector of large numbers that have nothing to do with each other is equality for all vectors.
    start = [Fraction(7 ** (3 * rank + 5) % 1_000_003) for rank in range(world)]
    mean = sum(start) / world
    for schedule in schedules(world):
        if schedule.exact_rounds is not None:
            values = start
            for number in range(schedule.exact_rounds):
                values = exact(values, schedule.round(number))
            assert set(values) == {mean}, schedule
            continue
        before = np.array([[float(value)] for value in start])
        after = Mixing(schedule).apply(before, 0, 3 * schedule.window)
        assert after.mean() == pytest.approx(float(mean))
        assert abs(after - float(mean)).max() < abs(before - float(mean)).max(), schedule


@pytest.mark.parametrize("group", [2, 3, 4, 8])
def test_any_number_of_ranks_reaches_consensus_and_not_slowly(group):
    for world in WORLDS:
        schedule = BaseK(world, group)
        assert schedule.largest <= group
        power = 0
        while group**power < world:
            power += 1
        # Twice the logarithm and one: what the derivation gives for the split at the largest power.
        assert power <= schedule.exact_rounds <= 2 * power + 1


def test_numbers_of_rounds_that_can_be_checked_by_hand():
    assert [BaseK(n, 2).exact_rounds for n in (1, 2, 3, 4, 5, 6, 7, 8)] == [0, 1, 3, 2, 5, 4, 5, 3]
    assert [BaseK(n, 3).exact_rounds for n in (3, 6, 7, 9)] == [1, 2, 4, 2]
    third = BaseK(3, 2)
    assert third.rounds == (
        (((0, 1), 1), ((2,), 1)),
        (((0, 2), Fraction(4, 3)), ((1,), 1)),
        (((0, 1), 1), ((2,), 1)),
    )


@pytest.mark.parametrize(("world", "group"), [(8, 2), (12, 3), (16, 4), (36, 3), (27, 3)])
def test_digits_are_exact_from_whichever_round(world, group):
    schedule = Digits(world, group)
    for start in range(schedule.period):
        assert np.allclose(Mixing(schedule).matrix(start), 1 / world)
    assert schedule.exact_from_any_round


@pytest.mark.parametrize("world", [3, 5, 6, 7, 11, 24, 43])
def test_base_k_is_exact_within_two_periods_from_whichever_round(world):
    schedule = BaseK(world, 2)
    for start in range(schedule.period):
        assert np.allclose(Mixing(schedule).matrix(start, 2 * schedule.period - 1), 1 / world)


@pytest.mark.parametrize("world", [5, 7, 12, 30])
def test_weights_keep_the_weighted_mean(world):
    weights = [1.0 + rank % 3 for rank in range(world)]
    values = np.random.default_rng(world).standard_normal((world, 4))
    want = np.average(values, axis=0, weights=weights)
    for schedule in schedules(world):
        mixed = Mixing(schedule, weights).apply(values, 0, 12)
        assert np.allclose(np.average(mixed, axis=0, weights=weights), want), schedule


def test_unequal_groups_keep_the_mean_and_no_divisor_is_built_in():
    schedule = Shuffled(7, 3, partitions=4)
    assert {len(group.ranks) for groups in schedule.rounds for group in groups} == {2, 3}
    values = np.arange(7.0)[:, None]
    assert np.isclose(Mixing(schedule).apply(values, 0, 40).mean(), 3.0)
    assert np.allclose(Mixing(schedule).apply(values, 0, 400), 3.0)


def test_random_groups_are_those_of_the_seed_on_every_machine():
    assert Shuffled(8, 2, seed=1) == Shuffled(8, 2, seed=1)
    assert Shuffled(8, 2, seed=1) != Shuffled(8, 2, seed=2)
    assert [group.ranks for group in Shuffled(8, 2, seed=1).round(0)] == GOLDEN


GOLDEN = [(0, 1), (2, 4), (3, 5), (6, 7)]


@given(world=st.integers(2, 40), group=st.integers(2, 9), seed=st.integers(0, 2**64))
@settings(deadline=None, max_examples=60)
def test_random_groups_are_nearly_equal_and_connect_everybody(world, group, seed):
    schedule = Shuffled(world, group, seed, partitions=16)
    reached = {0}
    for _ in range(world):
        for groups in schedule.rounds:
            for ranks, _ in groups:
                if reached & set(ranks):
                    reached |= set(ranks)
    assert reached == set(range(world))
    for groups in schedule.rounds:
        sizes = [len(ranks) for ranks, _ in groups]
        assert max(sizes) - min(sizes) <= 1 and max(sizes) <= group


def test_too_few_partitions_are_refused():
    with pytest.raises(ConfigError, match="do not connect"):
        Shuffled(64, 2, partitions=1)


@given(data=st.data(), sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5), local=st.integers(1, 3))
@settings(deadline=None, max_examples=80)
def test_domains_of_any_sizes(data, sizes, local):
    world = sum(sizes)
    order = data.draw(st.permutations(range(world)))
    crossing, group = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([None, 2, 3]))
    domains, at = [], 0
    for size in sizes:
        domains.append(order[at : at + size])
        at += size
    schedule = Domains(world, domains, local=local, crossing=crossing, group=group)
    home = {rank: index for index, domain in enumerate(schedule.domains) for rank in domain}
    crossed = set()
    for number, groups in enumerate(schedule.rounds):
        for ranks, _ in groups:
            if len({home[rank] for rank in ranks}) > 1:
                assert schedule.is_crossing(number)
                assert len({home[rank] for rank in ranks}) == len(ranks), "one rank of a domain"
                crossed |= set(ranks)
        # No domain sends more than it was told to.
        for index in range(len(domains)):
            members = [r for ranks, _ in groups for r in ranks if len({home[x] for x in ranks}) > 1 and home[r] == index]
            assert len(members) <= crossing
    if len(domains) > 1:
        assert crossed == set(range(world)), "everybody takes a turn"
    assert Mixing(schedule).norm(0, 4 * schedule.period) < 1


def test_most_rounds_stay_inside_and_one_rank_of_the_slow_link_crosses():
    schedule = Domains(8, [range(7), [7]], local=4, crossing=1)
    kinds = [schedule.is_crossing(number) for number in range(schedule.period)]
    assert kinds == 7 * [False, False, False, False, True]
    partners = [schedule.group_of(number, 7).ranks for number in range(schedule.period) if kinds[number]]
    assert partners == [(rank, 7) for rank in range(7)]
    assert schedule.group_of(4, 7).relaxation == Fraction(7, 4)
    assert schedule.exact_rounds == 9


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="groups of up to 4 cannot tile 14 ranks; accepted: 7 or more, or the kind base-k"):
        Digits(14, 4)
    with pytest.raises(ConfigError, match="radices"):
        Digits(12, radices=(3, 3))
    with pytest.raises(ConfigError, match="no rank 2"):
        Domains(4, [[0, 1], [3]])
    with pytest.raises(ConfigError, match="two domains"):
        Domains(4, [[0, 1], [1, 2, 3]])
    with pytest.raises(ConfigError, match="2 or more ranks"):
        BaseK(4, 1)
    with pytest.raises(ConfigError, match="1 to 65535"):
        BSP(0)
    with pytest.raises(ConfigError, match="bsp, digits, base-k, random, topology"):
        make_schedule("ring", 4)
    with pytest.raises(ConfigError, match="unexpected keyword"):
        make_schedule("base-k", 4, seed=3)
    with pytest.raises(ConfigError, match="neither a topology nor domains"):
        make_schedule("topology", 4)
    with pytest.raises(ValueError, match="rank 4"):
        BSP(4).group_of(0, 4)
    with pytest.raises(ValueError, match="round -1"):
        BSP(4).round(-1)


def test_a_description_gives_the_schedule_back():
    for world in (6, 8, 13):
        for schedule in schedules(world):
            again = restore_schedule(schedule.describe())
            assert again == schedule and again.rounds == schedule.rounds
    description = BaseK(6, 2).describe()
    for change in ({"digest": "0" * 16}, {"kind": "nonsense"}, {"settings": 3}, {"world": "x"}, {"settings": {"group": 1}}):
        with pytest.raises(ConfigError):
            restore_schedule({**description, **change})
    with pytest.raises(ConfigError):
        restore_schedule({})


def test_memberships_are_all_groups_once():
    schedule = BaseK(7, 2)
    want = {group.ranks for groups in schedule.rounds for group in groups if len(group.ranks) > 1}
    assert set(schedule.memberships) == want and len(schedule.memberships) == len(want)
    assert lcm(schedule.period, 1) == schedule.exact_rounds


def test_one_rank_has_nothing_to_do():
    for kind in KINDS:
        more = {"domains": [[0]]} if kind == "topology" else {}
        schedule = make_schedule(kind, 1, **more)
        assert schedule.round(5) == (((0,), 1),) and schedule.memberships == ()


def test_schedules_need_neither_torch_nor_numpy():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None; import dssync.schedule as s; s.BaseK(7).rounds; print(1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "1\n", done.stderr
