"""The bound of docs/theory.md against what SGD does on problems with known constants."""

import numpy as np
import pytest

from dssync.mixing.bound import consensus_of, disagreement, gradient_bound, largest_rate
from dssync.mixing.trial import Quadratic, Saturating, run_trial
from dssync.schedule import BSP, BaseK, Digits, Domains, Shuffled

SCHEDULES = [
    BSP(8),
    Digits(8, 2),
    BaseK(7, 2),
    BaseK(6, 4),
    Shuffled(8, 2, seed=3),
    Domains(8, [range(7), [7]], local=3),
    Domains(8, [range(4), range(4, 8)]),
]


def problem(kind, world, spread=1.0):
    centres = spread * np.random.default_rng(world).standard_normal((world, 6))
    return kind(centres), np.full(6, 2.0)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@pytest.mark.parametrize("kind", [Quadratic, Saturating])
@pytest.mark.parametrize("noise", [0.0, 4.0])
def test_the_bounds_hold(schedule, kind, noise):
    objective, start = problem(kind, schedule.world)
    constants = objective.problem(noise, start)
    consensus = consensus_of(schedule)
    for share in (1.0, 0.2):
        rate = share * largest_rate(consensus, constants)
        trial = run_trial(schedule, objective, start, rate=rate, steps=300, noise=noise, repetitions=16)
        assert trial.apart <= disagreement(consensus, constants, rate) * 1.02 + 1e-12
        assert trial.gradient <= gradient_bound(consensus, constants, rate, 300, schedule.world) * 1.02
        # BSP keeps the replicas equal, everything else does not, and the bound says which.
        assert (trial.apart < 1e-20) == (consensus.first == 0)


@pytest.mark.parametrize("kind", [Quadratic, Saturating])
def test_disagreement_goes_with_the_square_of_the_step_size(kind):
    objective, start = problem(kind, 8)
    schedule = Digits(8, 2)
    apart = [run_trial(schedule, objective, start, rate=rate, steps=400, noise=1.0, repetitions=8).apart for rate in (4e-3, 1e-3)]
    assert 12 < apart[0] / apart[1] < 20


def test_less_frequent_rounds_are_further_apart_and_still_bounded():
    objective, start = problem(Quadratic, 8)
    found = []
    for every in (1, 2, 4):
        consensus = consensus_of(Digits(8, 2), every)
        constants = objective.problem(1.0, start)
        rate = 0.5 * largest_rate(consensus_of(Digits(8, 2), 4), constants)
        trial = run_trial(Digits(8, 2), objective, start, rate=rate, steps=300, noise=1.0, repetitions=8, every=every)
        assert trial.apart <= disagreement(consensus, constants, rate)
        found.append(trial.apart)
    assert found == sorted(found)


@pytest.mark.parametrize("kind", [Quadratic, Saturating])
def test_averaging_gradients_alone_never_brings_the_models_together(kind):
    objective, start = problem(kind, 8)
    schedule = Digits(8, 2)
    more = {"rate": 0.02, "noise": 1.0, "repetitions": 8}
    short, long = (run_trial(schedule, objective, start, steps=steps, averaged="gradients", **more) for steps in (100, 1600))
    shuffled = run_trial(schedule, objective, start, steps=1600, **more)
    assert long.final_apart > short.final_apart / 2 > 20 * shuffled.final_apart
    assert shuffled.final_apart < 0.1


def test_equal_data_and_no_noise_leave_nothing_to_disagree_about():
    objective = Quadratic(np.ones((8, 6)))
    trial = run_trial(Digits(8, 2), objective, np.zeros(6), rate=0.1, steps=100)
    assert trial.apart < 1e-25
