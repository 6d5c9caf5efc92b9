"""Schedules that follow the network: the arithmetic on made-up networks, and real ranks with a link that slows down and
recovers.
"""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.errors import ConfigError, MismatchError
from dssync import Contention, DivideShuffleAverager
from dssync.contention import Measured, Review, choose, find_domains
from dssync.schedule import BaseK, Digits, Domains, Shuffled
from tests.dssync.test_averager import net, scatter, values
from tests.torch.ranks import run_ranks

MODEL = 4_000_000


WATCH = Contention(rounds=8)


def played(base, seconds, reviews, contention=WATCH):
    """Lets all ranks measure ``seconds(review, ranks)`` and decide; returns the schedules in use."""
    everybody = [Review(contention, base, rank) for rank in range(base.world)]
    schedule, number, used = base, 0, []
    for review in range(reviews):
        while not everybody[0].due(number):
            for rank, one in enumerate(everybody):
                ranks = schedule.group_of(number, rank).ranks
                # Whoever comes early also waits for the others.
                one.note(seconds(review, ranks) + 0.01 * (rank % 3) * (rank != max(ranks)) if len(ranks) > 1 else 0.0)
            number += 1
        assert all(one.due(number) for one in everybody)
        messages = [one.message(schedule) for one in everybody]
        chosen = [one.decide(messages, schedule, MODEL) for one in everybody]
        assert len({one.digest for one in chosen}) == 1, "never divergent"
        if chosen[0] != schedule:
            schedule, number = chosen[0], 0
        for one in everybody:
            one.restart(schedule, number)
        used.append(schedule)
    return used


def links(slow):
    """Seconds of a group, by rates of the ranks' own links."""

    def seconds(review, ranks):
        rate = min(0.1 if rank in slow(review) else 1.0 for rank in ranks)
        return 2 * (len(ranks) - 1) / len(ranks) / rate

    return seconds


@pytest.mark.parametrize("base", [Digits(8, 2), BaseK(7, 2), Shuffled(8, 2, partitions=7), BaseK(12, 4)], ids=repr)
def test_a_slow_rank_is_set_apart_and_taken_back(base):
    slow = base.world - 2
    used = played(base, links(lambda review: {slow} if 1 <= review < 5 else set()), 10)
    assert used[0] == base
    for schedule in used[3:5]:
        assert isinstance(schedule, Domains) and (slow,) in schedule.domains, used
        crossings = sum(len(schedule.group_of(number, slow).ranks) > 1 for number in range(schedule.period))
        assert crossings <= schedule.period / 8
    assert used[-1] == base


def test_a_contended_uplink_parts_the_racks():
    racks = {rank: rank // 4 for rank in range(8)}

    def seconds(review, ranks):
        return 8.0 if len({racks[rank] for rank in ranks}) > 1 and 1 <= review < 5 else 1.0

    used = played(Digits(8, 2), seconds, 9)
    assert used[3].domains == (tuple(range(4)), tuple(range(4, 8)))
    assert used[3].local >= 8
    assert used[-1] == Digits(8, 2)


def test_a_second_slow_rank_inside_a_domain():
    used = played(Digits(8, 2), links(lambda review: {7} if review < 3 else {3, 7}), 9)
    assert (7,) in used[2].domains and (3,) not in used[2].domains
    assert {(3,), (7,)} <= set(used[-1].domains)


def test_a_network_that_is_slow_everywhere_is_left_alone():
    assert set(played(Digits(8, 2), links(lambda review: set(range(8)) if review else set()), 5)) == {Digits(8, 2)}


def test_noise_below_the_threshold_changes_nothing():
    used = played(Digits(8, 2), lambda review, ranks: 1.0 + 0.1 * (sum(ranks) % 7), 5)
    assert set(used) == {Digits(8, 2)}


@given(
    times=st.lists(st.floats(0.001, 100.0), min_size=28, max_size=28),
    before=st.sampled_from([[tuple(range(8))], [tuple(range(4)), tuple(range(4, 8))], [(0, 2), (1, 3, 4, 5, 6, 7)]]),
)
@settings(max_examples=60)
def test_whatever_is_measured_gives_a_partition(times, before):
    pairs = [(a, b) for a in range(8) for b in range(a + 1, 8)]
    measured = [Measured(pair, MODEL / seconds) for pair, seconds in zip(pairs, times, strict=True)]
    domains, ratio = find_domains(before, measured, 2.5)
    assert sorted(rank for domain in domains for rank in domain) == list(range(8)) and ratio >= 1
    schedule = choose(Digits(8, 2), domains, ratio)
    assert schedule.world == 8
    assert find_domains(before, list(reversed(measured)), 2.5) == (domains, ratio), "the order of measuring does not count"


def test_nothing_measured_changes_nothing():
    assert find_domains([(0, 1), (2,)], [], 2.0) == (((0, 1), (2,)), 1.0)


def test_ranks_that_look_at_other_rounds_are_found_out():
    one, other = (Review(Contention(rounds=1), Digits(2, 2), rank) for rank in range(2))
    one.note(1.0)
    other.note(1.0)
    message = one.message(Digits(2, 2))
    other.restart(Digits(2, 2), 5)
    other.note(1.0)
    with pytest.raises(MismatchError, match="rank 1"):
        one.decide([message, other.message(Digits(2, 2))], Digits(2, 2), 100)
    with pytest.raises(MismatchError, match="rank 1"):
        one.decide([message, message[:-8]], Digits(2, 2), 100)


def test_settings():
    for wrong in ({"rounds": 0}, {"slowdown": 1.0}):
        with pytest.raises(ConfigError):
            Contention(**wrong)
    assert dataclasses.asdict(Contention()) == {"rounds": 16, "slowdown": 2.5}


# -- real ranks


def slowed(rank, world, overlap):
    """Rank 3 takes long to send for a while."""
    import time

    from dssync.groups.link import TorchLink

    model = net()
    with DivideShuffleAverager(
        model, Digits(world, 2), sync_start=False, overlap=overlap, contention=Contention(rounds=6)
    ) as averager:
        scatter(model, rank)
        mean = values(model)
        slow = {"now": False}
        start = TorchLink.start

        def late(self, flat):
            if slow["now"]:
                time.sleep(0.8)
            elif not overlap:
                time.sleep(0.02)  # so that the noise of a busy machine is no slow link
            return start(self, flat)

        TorchLink.start = late
        found = []
        for phase in range(3):
            slow["now"] = rank == 3 and phase == 1
            for _ in range(18):
                averager.average_parameters()
            found.append(averager.schedule.describe()["settings"].get("domains"))
        averager.consensus()
        return found, averager.counts["changes"], values(model), mean


def mixed(rank, world):
    """Schedules in which some ranks are alone, delayed averages, and looks at the network: nobody may wait for a look alone."""
    model = net()
    with DivideShuffleAverager(
        model, BaseK(world, 2), sync_start=False, overlap=True, contention=Contention(rounds=3, slowdown=1e9)
    ) as averager:
        scatter(model, rank)
        mean = values(model)
        for _ in range(20):
            averager.average_parameters()
        averager.consensus()
        return averager.counts["reviews"], abs(values(model) - mean).max(), values(model)[:3].tolist()


def test_looks_while_averages_are_under_way():
    results = run_ranks(mixed, world=3)
    assert {result[0] for result in results} == {6} and len({repr(result[2]) for result in results}) == 1


@pytest.mark.exclusive
def test_real_ranks_change_together_and_back():
    results = run_ranks(slowed, False, world=4, timeout=100)
    assert len({repr(result[0]) for result in results}) == 1, [result[0] for result in results]
    first, second, third = results[0][0]
    assert first is None and [3] in second and third is None
    assert results[0][1] >= 2
    mean = sum(result[3] for result in results) / 4
    for _, _, last, _ in results:
        assert abs(last - mean).max() < 1e-4, "no change of schedule loses anything"
