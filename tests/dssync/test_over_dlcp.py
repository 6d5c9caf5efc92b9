"""Averages over DLCP: the same as over gloo, and without losing any of the mean whatever the network loses."""

import numpy as np
import pytest
import torch

from dlcp.errors import ConfigError
from dlcp.policy import Policy
from dssync import DivideShuffleAverager
from dssync.groups.over_dlcp import check_policy
from dssync.schedule import BaseK, Digits
from tests.dssync.test_averager import values
from tests.torch.ranks import run_ranks

SMALL = {"wire": {"mtu": 1500}, "timeouts": {"peer_s": 10.0, "connect_s": 30.0}}
LOSSY = {**SMALL, "loss": {"push": 0.3, "compensation": "rescale"}, "protection": {"share": 0.0}}


def wide():
    """Many packets."""
    return torch.nn.Sequential(torch.nn.Linear(100, 200), torch.nn.Linear(200, 100))


def averaged(rank, world, schedule, backend, policy, faults, rounds):
    model = wide()
    more = {"policy": Policy.from_dict(policy), "faults": faults} if backend == "dlcp" else {}
    with DivideShuffleAverager(model, schedule, sync_start=False, backend=backend, bucket_mb=0.05, **more) as averager:
        generator = torch.Generator().manual_seed(rank)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) + 10)
        seen = [values(model)]
        for _ in range(rounds):
            averager.average_parameters()
            seen.append(values(model))
        averager.consensus()
        return seen, values(model)


def test_the_same_as_over_gloo():
    schedule = BaseK(3, 2)
    gloo = run_ranks(averaged, schedule, "gloo", {}, None, 4, world=3)
    dlcp = run_ranks(averaged, schedule, "dlcp", {**SMALL, "loss": {"push": 0.0}}, "drop=0.02", 4, world=3)
    for (ours, last), (theirs, other) in zip(dlcp, gloo, strict=True):
        assert np.allclose(ours, theirs, atol=1e-5) and np.allclose(last, other, atol=1e-5)


def test_what_is_lost_changes_no_mean_and_puts_nobody_near_zero():
    schedule = Digits(4, 2)
    results = run_ranks(averaged, schedule, "dlcp", LOSSY, "drop=0.15", 3, world=4)
    start = np.stack([seen[0] for seen, _ in results])
    mean = start.mean(axis=0)
    for count in range(1, 4):
        models = np.stack([seen[count] for seen, _ in results])
        assert np.allclose(models.mean(axis=0), mean, atol=1e-4), "the mean of all models, element by element"
        assert models.min() > start.min() - 1e-3 and models.max() < start.max() + 1e-3
    stayed = 0
    for rank, (seen, _) in enumerate(results):
        own, mate, after = seen[0], results[rank ^ 1][0][0], seen[1]
        averaged_ = np.abs(after - (own + mate) / 2) < 1e-5
        kept = np.abs(after - own) < 1e-7
        took = np.abs(after - mate) < 1e-5
        assert (averaged_ | kept | took).all()
        stayed += int(kept.sum())
    assert 0 < stayed < start.size / 3, "some packets were lost"
    for _, last in results:
        assert np.allclose(last, mean, atol=1e-4), "a consensus is exact all the same"


def relaxed(rank, world):
    return averaged(rank, world, BaseK(3, 2), "dlcp", LOSSY, "drop=0.15", 6)


def test_relaxed_averages_keep_the_mean_too():
    results = run_ranks(relaxed, world=3)
    mean = np.stack([seen[0] for seen, _ in results]).mean(axis=0)
    for count in range(1, 7):
        assert np.allclose(np.stack([seen[count] for seen, _ in results]).mean(axis=0), mean, atol=1e-4)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"loss": {"push": 0.05}}, "rescale, or loss.push = 0"),
        ({"loss": {"push": 0.05, "compensation": "zero"}}, "takes a missing parameter for 0"),
        ({"loss": {"push": 0.0, "pull": 0.01, "resync_steps": 5}}, "loss.pull"),
        ({"loss": {"push": 0.0}, "wire": {"dtype": "bfloat16"}}, "wire.dtype"),
    ],
)
def test_policies_that_would_lose_something_silently(policy, said):
    with pytest.raises(ConfigError, match=said):
        check_policy(Policy.from_dict(policy))


def unequal(rank, world):
    with DivideShuffleAverager(
        wide(), Digits(4, 2), backend="dlcp", policy=Policy.from_dict(LOSSY), weight=1.0 + rank
    ) as averager:
        with pytest.raises(ConfigError, match="equal weights"):
            averager.average_parameters()
    return True


def test_weights_need_everything_to_arrive():
    assert all(run_ranks(unequal, world=4))
