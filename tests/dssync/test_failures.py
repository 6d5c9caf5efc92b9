"""Ranks that die, fall silent, or are in another round: typed errors on all others, within the timeout, and whole models."""

import os
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist

from dlcp.errors import ConfigError, DLCPError, MismatchError, RendezvousError
from dssync import DivideShuffleAverager, GroupError
from dssync.groups import GroupSet, members
from dssync.schedule import BaseK, Digits, Shuffled
from tests.dssync.test_averager import net, scatter, values
from tests.torch.ranks import Died, run_ranks

TIMEOUT = 4.0


def until_it_fails(averager, model, rank, limit=12, act=lambda number: None):
    """Averages until an error comes; returns it, how long it took, and whether the model was whole."""
    before = values(model)
    number = 0
    begin = time.monotonic()
    try:
        for number in range(limit):
            act(number)
            before = values(model)
            begin = time.monotonic()
            averager.average_parameters()
    except DLCPError as error:
        again = None
        try:
            averager.average_parameters()
        except DLCPError as later:
            again = later
        return type(error).__name__, str(error), time.monotonic() - begin, np.array_equal(before, values(model)), again is error
    return None


def dying(rank, world, schedule, backend, overlap):
    model = net()
    averager = DivideShuffleAverager(model, schedule, sync_start=False, timeout=TIMEOUT, backend=backend, overlap=overlap)
    scatter(model, rank)

    def act(number):
        if rank == 1 and number == 3:
            os._exit(7)

    result = until_it_fails(averager, model, rank, act=act)
    averager.close()
    return result


@pytest.mark.parametrize(("backend", "overlap"), [("gloo", False), ("gloo", True), ("dlcp", False)])
def test_a_rank_that_dies_ends_all_others(backend, overlap):
    results = run_ranks(dying, Digits(4, 2), backend, overlap, world=4, may_die={1})
    assert isinstance(results[1], Died)
    for rank in (0, 2, 3):
        name, said, seconds, whole, again = results[rank]
        assert name == "GroupError" and "with ranks" in said, said
        assert seconds < TIMEOUT + 5 and whole and again


def silent(rank, world, schedule):
    model = net()
    averager = DivideShuffleAverager(model, schedule, sync_start=False, timeout=1.5)
    scatter(model, rank)

    def act(number):
        if rank == 1 and number == 2:
            # Alive, connected, and saying nothing, for longer than all the others have patience.
            time.sleep(8)

    result = until_it_fails(averager, model, rank, act=act)
    averager.close()
    return result


def test_a_rank_that_falls_silent_ends_all_others():
    for rank, (name, _, seconds, whole, again) in enumerate(run_ranks(silent, Digits(4, 2), world=4)):
        assert name == "GroupError" and whole and again
        assert rank == 1 or seconds < 1.5 * 2 + 3


def behind(rank, world, schedule):
    model = net()
    averager = DivideShuffleAverager(model, schedule, sync_start=False, timeout=TIMEOUT)
    scatter(model, rank)
    averager.average_parameters()
    if rank == 1:
        averager.round += schedule.period
    return until_it_fails(averager, model, rank)


def test_members_in_different_rounds_do_not_average():
    results = run_ranks(behind, Digits(2, 2), world=2)
    for name, said, _, whole, _ in results:
        assert name == "MismatchError" and "not all in round" in said and whole


def leaving(rank, world):
    model = net()
    try:
        with DivideShuffleAverager(model, "bsp", sync_start=False, timeout=30.0) as averager:
            averager.average_parameters()
            if rank == 0:
                raise KeyError("the loop has a bug")
            before = values(model)
            averager.average_parameters()
    except KeyError:
        return "left"
    except GroupError as error:
        return error.ranks, error.round, error.seconds < 20, np.array_equal(before, values(model))
    return "nothing"


def test_leaving_by_an_error_tells_the_others_before_their_timeouts():
    assert run_ranks(leaving, world=3) == ["left", *[((0, 1, 2), 1, True, True)] * 2]


def changed_alone(rank, world):
    model = net()
    averager = DivideShuffleAverager(model, "bsp", sync_start=False, timeout=TIMEOUT)
    averager.average_parameters()
    model[0].requires_grad_(rank != 0)
    if rank == 0:
        model[2].bias.requires_grad_(False)
    else:
        model[2].weight.requires_grad_(False)
    return until_it_fails(averager, model, rank)


def test_models_that_come_apart_on_the_way_are_noticed_everywhere():
    for name, said, *_ in run_ranks(changed_alone, world=2):
        assert name == "MismatchError" and "what is averaged" in said


def too_many(rank, world):
    setattr(members, "MOST_GROUPS", 2)  # noqa: B010 - a constant, to mypy
    with pytest.raises(ConfigError, match="at most 2"):
        DivideShuffleAverager(net(), Shuffled(world, 2, partitions=8))
    return True


def test_too_many_groups():
    assert all(run_ranks(too_many, world=4))


def alone_at_the_door(rank, world):
    dist.barrier()
    groups = GroupSet(timeout=2.0)
    told = "elsewhere"
    if rank == 0:
        with pytest.raises(RendezvousError, match="ranks 0, 1 did not come about, waited for up to 2 s"):
            groups.open([(0, 1)])
        told = "told"
    dist.barrier()
    return told


def test_a_member_that_does_not_come():
    assert run_ranks(alone_at_the_door, world=3) == ["told", "elsewhere", "elsewhere"]


def open_and_close(rank, world):
    def open_files():
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the number of entries, nothing else

    schedule = BaseK(world, 2)
    before = None
    for number in range(4):
        groups = GroupSet()
        groups.open(schedule.memberships)
        assert all(rank in ranks for ranks in groups.open_groups)
        link = groups.link(groups.open_groups[0])
        flat = torch.full((4,), 0.5)
        link.start(flat).wait()
        assert flat.tolist() == [1.0] * 4
        groups.close()
        groups.close()
        del link
        if number == 1:
            before = open_files()
    with pytest.raises(ConfigError, match="closed"):
        groups.link((0, 1))
    return open_files() - before


def test_groups_are_torn_down():
    assert all(left <= 2 for left in run_ranks(open_and_close, world=4))


def kept(rank, world):
    groups = GroupSet()
    groups.open([(0, 1), (0, 2), (0, 1, 2)])
    groups.keep([(0, 1)])
    first = groups.open_groups
    groups.open([(0, 2), (0, 1)])
    second = groups.open_groups
    groups.close()
    return first, second


def test_groups_that_are_not_needed_can_be_opened_again():
    results = run_ranks(kept, world=3)
    assert results[0] == (((0, 1),), ((0, 1), (0, 2)))
    assert results[1] == (((0, 1),), ((0, 1),))
    assert results[2] == ((), ((0, 2),))


def test_errors_say_what_happened():
    error = GroupError(5, (1, 4), 2.5, "gone")
    assert str(error) == "round 5 with ranks 1, 4 failed after 2.5 s: gone"
    assert isinstance(error, DLCPError) and not isinstance(error, MismatchError)
