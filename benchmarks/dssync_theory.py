"""Holds the convergence bound of docs/theory.md against SGD on two problems whose constants are known.

python benchmarks/dssync_theory.py
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from dssync.mixing.bound import consensus_of, disagreement, gradient_bound, largest_rate
from dssync.mixing.trial import Objective, Quadratic, Saturating, run_trial
from dssync.schedule import BSP, BaseK, Digits, Domains, Schedule, Shuffled

STEPS, REPETITIONS, NOISE, DIMENSIONS = 1000, 32, 4.0, 6


def candidates() -> list[tuple[str, Schedule]]:
    """Returns schedules with names."""
    return [
        ("bsp, 8 ranks", BSP(8)),
        ("digits(2), 8 ranks", Digits(8, 2)),
        ("base-k(2), 7 ranks", BaseK(7, 2)),
        ("random(2), 8 ranks", Shuffled(8, 2)),
        ("7 + 1 ranks, 3 local rounds", Domains(8, [range(7), [7]], local=3)),
        ("4 + 4 ranks, 1 crosses", Domains(8, [range(4), range(4, 8)])),
    ]


def main() -> None:
    """Prints a table for each problem."""
    start = np.full(DIMENSIONS, 2.0)
    for kind in (Quadratic, Saturating):
        print(f"\n| {kind.__name__.lower()} | S1 | S2 | step size | apart | bound | gradient² | bound |")
        print("|---|---|---|---|---|---|---|---|")
        for name, schedule in candidates():
            centres = np.random.default_rng(schedule.world).standard_normal((schedule.world, DIMENSIONS))
            objective: Objective = kind(centres)
            constants = objective.problem(NOISE, start)
            consensus = consensus_of(schedule)
            rate = 0.5 * largest_rate(consensus, constants)
            trial = run_trial(schedule, objective, start, rate=rate, steps=STEPS, noise=NOISE, repetitions=REPETITIONS)
            apart = disagreement(consensus, constants, rate)
            whole = gradient_bound(consensus, constants, rate, STEPS, schedule.world)
            print(
                f"| {name} | {consensus.first:.2f} | {consensus.second:.2f} | {rate:.4f} | {trial.apart:.4f} | {apart:.4f} "
                f"| {trial.gradient:.3f} | {whole:.3f} |"
            )
    print("\ngradients averaged instead of parameters, digits(2), 8 ranks, quadratic: squared distance at the end")
    objective = Quadratic(np.random.default_rng(8).standard_normal((8, DIMENSIONS)))
    for steps in (100, 400, 1600):
        far, near = (
            run_trial(
                Digits(8, 2), objective, start, rate=0.02, steps=steps, noise=NOISE, repetitions=REPETITIONS, averaged=what
            ).final_apart
            for what in ("gradients", "parameters")
        )
        print(f"  {steps:5} steps: gradients {far:.4f}, parameters {near:.4f}")


if __name__ == "__main__":
    main()
