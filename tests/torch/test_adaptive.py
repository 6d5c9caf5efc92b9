"""The adaptive loss bound: from gradients to a bound, and through DDP into messages and checkpoints."""

import io
import logging
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dlcp.errors import ConfigError
from dlcp.policy import Policy
from dlcp.torch import DLCPState
from dlcp.torch.adaptive import LEVELS, Adaptation, AdaptiveBound, GradientMeter
from tests.torch.fake import FakeCommunicator
from tests.torch.ranks import run_ranks

CEILING = 0.08
ANY = st.floats(width=64)
STREAMS = st.lists(st.tuples(ANY, ANY), max_size=60)
USUAL = st.floats(-1e9, 1e9)


@given(STREAMS, st.floats(0, 0.5), st.integers(1, 64), st.integers(1, 40))
def test_the_bound_never_leaves_its_range_and_is_a_function_of_the_stream(stream, ceiling, world, window):
    one, two = AdaptiveBound(ceiling, world, window), AdaptiveBound(ceiling, world, window)
    for power, cross in stream:
        before = one.bound
        change = one.update(power, cross)
        assert 0 <= one.bound <= ceiling
        assert (change is None) == (one.bound == before)
        if change is not None:
            assert (change.old, change.new) == (before, one.bound) and change.reason
        if not (math.isfinite(power) and math.isfinite(cross) and power >= 0):
            assert one.bound == 0
        assert two.update(power, cross) == change or math.isnan(change.ratio)
        assert one.bound == two.bound


@given(st.lists(st.tuples(USUAL, USUAL), max_size=60), st.floats(1e-3, 1e3))
def test_gradients_that_do_not_change_bring_it_to_nothing_for_good(stream, power):
    control = AdaptiveBound(CEILING, 4, 16)
    for products in stream:
        control.update(*products)
    for _ in range(1000):  # what came before fades
        control.update(power, power)
    assert control.bound == 0 and all(control.update(power, power) is None for _ in range(50))


def feed(adaptation, mean, noise, passes, rng, world=4, size=4000):
    """Averages of ``world`` noisy gradients; returns the changes."""
    changes = []
    for _ in range(passes):
        averaged = mean + noise / np.sqrt(world) * rng.standard_normal(size)
        adaptation.meter.observe("all", averaged.astype(np.float32))
        change = adaptation.end_pass()
        changes += [] if change is None else [change]
    return changes


def test_noise_lifts_it_to_the_ceiling_step_by_step_and_signal_brings_it_down():
    rng = np.random.default_rng(1)
    adaptation = Adaptation(CEILING, 4, 16, 8)
    rising = feed(adaptation, 0.0, 1.0, 100, rng)
    assert adaptation.control.bound == CEILING
    assert len(rising) == LEVELS and all(change.new > change.old for change in rising)
    falling = feed(adaptation, 5.0, 1.0, 100, rng)
    assert adaptation.control.bound <= CEILING / LEVELS and falling and all(change.new < change.old for change in falling)


@pytest.mark.parametrize("ratio", [0.25, 1.0, 3.0])
def test_between_them_it_is_where_the_formula_says(ratio):
    """The ratio is that of one rank's gradient; what is seen is the average of four."""
    adaptation = Adaptation(CEILING, 4, 32, 1)
    feed(adaptation, np.sqrt(ratio), 1.0, 200, np.random.default_rng(2))
    assert adaptation.control.ratio == pytest.approx(ratio, rel=0.1)
    assert adaptation.control.bound == pytest.approx(CEILING / (1 + ratio), abs=CEILING / LEVELS)


def test_a_ratio_that_trembles_does_not_move_it():
    rng = np.random.default_rng(3)
    control = AdaptiveBound(CEILING, 1, 16)
    for _ in range(100):
        control.update(2.0, 1.0)  # ratio 1: half the ceiling
    assert control.bound == CEILING / 2
    changes = [control.update(2.0, 1.0 + 0.1 * rng.standard_normal()) for _ in range(500)]
    assert changes == [None] * 500


def test_nan_means_nothing_may_be_lost_until_it_is_over(caplog):
    rng = np.random.default_rng(4)
    adaptation = Adaptation(CEILING, 4, 16, 8)
    feed(adaptation, 0.0, 1.0, 100, rng)
    for poison in (np.nan, np.inf):
        (change,) = feed(adaptation, poison, 1.0, 3, rng)
        assert change.new == 0 and "not finite" in change.reason and adaptation.control.bound == 0
        assert feed(adaptation, 0.0, 1.0, 7, rng) == []  # the warm-up begins anew
        feed(adaptation, 0.0, 1.0, 100, rng)
        assert adaptation.control.bound == CEILING


def test_a_loss_scale_changes_nothing():
    plain, scaled = Adaptation(CEILING, 4, 16, 1), Adaptation(CEILING, 4, 16, 1)
    rng, factor = np.random.default_rng(5), 1.0
    for number in range(80):
        gradient = (0.4 + rng.standard_normal(500)).astype(np.float32)
        if number % 20 == 10:
            factor *= 256
            scaled.scale(256.0)
        plain.meter.observe("all", gradient)
        scaled.meter.observe("all", gradient * np.float32(factor))
        assert (plain.end_pass() is None) == (scaled.end_pass() is None)
        assert plain.control.bound == scaled.control.bound
    assert plain.control.bound > 0


@given(st.permutations(range(6)), st.integers(0, 2**32 - 1))
def test_the_order_in_which_buckets_land_does_not_matter(order, seed):
    rng = np.random.default_rng(seed)
    buckets = [[rng.standard_normal(n + 1).astype(np.float32) for n in range(6)] for _ in range(2)]
    one, two = GradientMeter(8), GradientMeter(8)
    for step in buckets:
        for key in range(6):
            one.observe(key, step[key])
        for key in order:
            two.observe(key, step[key])
        found = one.end_pass()
        assert found == two.end_pass()
    power = sum(float(np.dot(b.astype(float), b.astype(float))) for b in buckets[1])
    cross = sum(float(np.dot(b.astype(float), a.astype(float))) for a, b in zip(*buckets, strict=True))
    assert found == pytest.approx((power, cross))


def test_buckets_that_are_new_or_have_changed_are_not_compared():
    meter = GradientMeter(1)
    assert meter.end_pass() is None
    meter.observe("a", np.ones(4, np.float32))
    assert meter.end_pass() is None
    meter.observe("a", np.ones(5, np.float32))
    meter.observe("b", np.ones(4, np.float32))
    assert meter.end_pass() is None
    meter.observe("b", np.full(4, 2.0, np.float32))
    meter.drop_pass()
    meter.observe("b", np.full(4, 3.0, np.float32))
    assert meter.end_pass() == (36.0, 12.0)


@given(STREAMS, STREAMS)
def test_a_checkpoint_goes_on_where_it_was(before, after):
    one = AdaptiveBound(CEILING, 4, 8)
    for products in before:
        one.update(*products)
    two = AdaptiveBound(CEILING, 4, 8)
    two.load_state_dict(one.state_dict())
    for products in after:
        one.update(*products)
        two.update(*products)
        assert one.bound == two.bound


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 2},
        {"bound": -0.1},
        {"bound": "0.1"},
        {"power": float("nan")},
        {"signal": None},
        {"seen": 1.5},
        {"still": True},
    ],
)
def test_a_malformed_checkpoint_is_refused_and_changes_nothing(wrong):
    control = AdaptiveBound(CEILING, 4, 8)
    before = control.state_dict()
    with pytest.raises(ConfigError):
        control.load_state_dict({**before, **wrong})
    with pytest.raises(ConfigError):
        control.load_state_dict([])
    assert control.state_dict() == before


def test_a_lower_ceiling_holds_for_an_old_checkpoint():
    control = AdaptiveBound(0.01, 4, 8)
    control.load_state_dict({**control.state_dict(), "bound": 0.3})
    assert control.bound == 0.01


class Noting(FakeCommunicator):
    """Notes the bounds that it is given."""

    def __init__(self, policy):
        super().__init__(policy=policy)
        self.bounds = []

    def allreduce_async(self, array, *, bound=None, **more):
        self.bounds.append(bound)
        return super().allreduce_async(array, **more)


def adapt(rank, world):
    """Trains on pure noise for a while, then with a gradient that stays the same, and goes on from a checkpoint."""
    policy = Policy.from_dict({"loss": {"push": 0.2, "bound": "adaptive", "bound_window": 8}})
    generator = torch.Generator().manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(40, 60), nn.Linear(60, 40)), bucket_cap_mb=0.005)
    communicator = Noting(policy)
    state = DLCPState(communicator)
    state.attach(model)
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logging.getLogger("dlcp.torch.state").addHandler(handler)
    logging.getLogger("dlcp.torch.state").setLevel(logging.INFO)

    def step(noise):
        x = torch.ones(4, 40)
        weights = torch.randn(4, 40, generator=generator) if noise else torch.ones(4, 40)
        model.zero_grad()
        (model(x) * weights).sum().backward()
        return state.metrics()["hook"]["bound"]

    found = [step(True) for _ in range(32)]
    events = list(state.events)
    buffer = io.BytesIO()
    torch.save(state.state_dict(), buffer)
    buffer.seek(0)
    again = DLCPState(Noting(policy), model=model.module)
    again.load_state_dict(torch.load(buffer, weights_only=True))
    resumed = again.metrics()["hook"]["bound"]
    later = DLCPState(model=model.module)
    later.load_state_dict(state.state_dict())
    later.bind(Noting(policy))
    bound_later = later.metrics()["hook"]["bound"]
    without = {key: value for key, value in state.state_dict().items() if key != "adapted"}
    again.load_state_dict(without)
    for other in (again, later):
        other.communicator.close()
    end = [step(False) for _ in range(24)][-1]
    bounds = list(communicator.bounds)
    state.close()
    communicator.close()
    return found, end, events, bounds, resumed, bound_later, records


def test_all_ranks_find_the_same_bound_and_send_with_it():
    one, two = run_ranks(adapt)
    assert one == two
    found, end, events, bounds, resumed, bound_later, records = one
    assert max(found) == 0.2 and end == 0 and resumed == bound_later == found[-1]
    assert [event["new"] for event in events] == sorted(event["new"] for event in events) and len(events) == LEVELS
    assert all(event["event"] == "bound" and event["step"] > 0 and event["reason"] for event in events)
    assert set(bounds) >= {0.0, 0.2} and all(0 <= bound <= 0.2 for bound in bounds)
    assert any("loss bound 0 -> 0.02" in record for record in records)


def fixed(rank, world):
    communicator = Noting(Policy())
    model = DistributedDataParallel(nn.Linear(8, 8))
    state = DLCPState(communicator)
    state.attach(model)
    model(torch.ones(2, 8)).sum().backward()
    hook = state.metrics()["hook"]
    state.close()
    communicator.close()
    return communicator.bounds, "bound" in hook, "adapted" in state.state_dict()


def test_a_fixed_bound_is_the_policys_business():
    assert run_ranks(fixed) == [([None], False, False)] * 2


def over_udp(rank, world):
    """The real transport: every link of rank 1 loses, and the bound adapts all the while."""
    loss = {"push": 0.2, "bound": "adaptive", "bound_window": 4}
    policy = Policy.from_dict({"loss": loss, "wire": {"mtu": 576, "message_bytes": 16384}})
    model = DistributedDataParallel(nn.Sequential(nn.Linear(30, 200), nn.Tanh(), nn.Linear(200, 100)))
    faults = "drop=0.2,type=data,protected=no;seed=5" if rank == 1 else None
    state = DLCPState.from_process_group(policy=policy, faults=faults)
    state.attach(model)
    data = torch.Generator().manual_seed(rank)
    with state.guard():
        for _ in range(25):
            model.zero_grad()
            (model(torch.ones(8, 30)) * torch.randn(8, 100, generator=data)).sum().backward()
    metrics = state.metrics()
    digest = torch.cat([p.grad.ravel() for p in model.parameters()]).numpy().tobytes()
    events = list(state.events)
    state.close()
    return digest, metrics["hook"]["bound"], metrics["hook"]["lost_elements"], metrics["transport"]["senders"], events


def test_over_udp_replicas_stay_equal_while_the_bound_moves_and_a_bad_link_is_evened_out():
    results = run_ranks(over_udp, world=3)
    assert len({digest for digest, *_ in results}) == 1
    assert len({bound for _, bound, *_ in results}) == 1 and results[0][1] > 0.1
    assert results[1][2] > 0
    for rank in (0, 2):
        senders, events = results[rank][3:]
        assert senders[1]["missing_share"] < 0.1, senders
        assert [e["sender"] for e in events if e["event"] == "evenness"][:1] == [1], events
