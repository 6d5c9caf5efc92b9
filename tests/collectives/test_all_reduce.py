"""All-reduce in virtual time: what comes out, whatever the network does."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlcp.collectives.residual import ResidualStore
from dlcp.policy import Policy
from dlcp.transport.virtual import Weather
from tests.collectives.virtual_job import STRIDE, Job

WEATHERS = (
    Weather(),
    Weather(jitter_ns=2_000_000),
    Weather(drop=0.02),
    Weather(drop=0.1, jitter_ns=300_000, duplicate=0.05),
    Weather(drop=0.05, corrupt=0.05, truncate=0.02, duplicate=0.2, jitter_ns=1_000_000, mark=0.2),
    Weather(drop=0.3),
)


@st.composite
def cases(draw, *, push=(0.0, 0.05, 0.3, 0.5), algorithms=("sharded", "ring", "ps"), ops=("sum",), compensation="error-feedback"):
    """A job and its arrays: integers so small that every sum of them is exact in every wire type."""
    algorithm = draw(st.sampled_from(algorithms))
    world = draw(st.integers(1, 6))
    servers = draw(st.integers(1, 3)) if algorithm == "ps" else 0
    dtype = draw(st.sampled_from(["float32", "float64"]))
    wire = draw(st.sampled_from(["float32", "float16", "bfloat16"]))
    policy = Policy.from_dict(
        {
            "loss": {"push": draw(st.sampled_from(push)), "compensation": compensation},
            "wire": {"dtype": wire, "message_bytes": draw(st.sampled_from([STRIDE, 3 * STRIDE + 5, 8 * STRIDE, 32 * STRIDE]))},
            # Without patience much is given up.
            "grace": draw(st.sampled_from([{"factor": 0.0, "floor_ms": 0.0}, {}])),
        }
    )
    per_packet = STRIDE // (2 if wire != "float32" else np.dtype(dtype).itemsize)
    length = draw(
        st.one_of(
            st.sampled_from([0, 1, 2, per_packet - 1, per_packet, per_packet + 1, world * per_packet]),
            st.integers(0, 24 * per_packet),
        )
    )
    seed = draw(st.integers(0, 2**32 - 1))
    return {
        "algorithm": algorithm,
        "world": world,
        "servers": servers,
        "dtype": dtype,
        "policy": policy,
        "per_packet": per_packet,
        "length": length,
        "op": draw(st.sampled_from(ops)),
        "weather": draw(st.sampled_from(WEATHERS)),
        "seed": seed,
    }


def make_job(case, **more):
    return Job(
        case["world"],
        algorithm=case["algorithm"],
        servers=case["servers"],
        policies=case["policy"],
        weather=case["weather"],
        seed=case["seed"],
        **more,
    )


def integers(case, rng):
    return [rng.integers(-20, 21, case["length"]).astype(case["dtype"]) for _ in range(case["world"])]


def random_tags(case, rng):
    packets = max(1, -(-case["length"] // case["per_packet"]))
    return rng.integers(0, 14, packets).astype(np.uint8)


def residual_vector(reduction, length):
    """The residual in its place: float64[length]."""
    vector = np.zeros(length)
    position = 0
    for start, stop in reduction.lost.tolist():
        vector[start:stop] += reduction.residual[position : position + stop - start]
        position += stop - start
    assert position == reduction.residual.size
    return vector


def assert_ranges(lost, length, per_packet):
    """Ranges are whole packets, ascending and disjoint."""
    flat = lost.reshape(-1)
    assert (np.diff(flat) >= 0).all() and (lost[:, 0] < lost[:, 1]).all()
    assert not flat.size or (flat[0] >= 0 and flat[-1] <= length)
    assert ((flat % per_packet == 0) | (flat == length)).all()


def packets_of(lost, per_packet):
    return {p for start, stop in lost.tolist() for p in range(start // per_packet, -(-stop // per_packet))}


FEW = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], max_examples=30)
MANY = settings(FEW, max_examples=100)


@MANY
@given(cases(), st.integers(1, 3))
def test_contributions_are_the_sum_plus_the_residuals_to_the_last_bit(case, steps):
    """And replicas are equal, results exact where nothing was lost, and bounds and protection kept."""
    rng = np.random.default_rng(case["seed"])
    job = make_job(case)
    for _ in range(steps):
        arrays = integers(case, rng)
        before = [a.copy() for a in arrays]
        tags = [random_tags(case, rng) for _ in arrays]
        operations = [c.allreduce_async(a, op="sum", tags=t) for c, a, t in zip(job.communicators, arrays, tags, strict=True)]
        assert job.run(operations)
        results = [op.result() for op in operations]
        oracle = np.sum([a.astype(np.float64) for a in arrays], axis=0)
        residuals = [residual_vector(r, case["length"]) for r in results]
        for rank, (result, array) in enumerate(zip(results, before, strict=True)):
            assert result.output.dtype == case["dtype"] and result.output.shape == array.shape
            assert result.output.tobytes() == results[0].output.tobytes()
            np.testing.assert_array_equal(arrays[rank], array)
            assert_ranges(result.lost, case["length"], case["per_packet"])
            assert result.residual.dtype == array.dtype
            if case["algorithm"] != "ring":
                inside = residuals[rank] != 0
                np.testing.assert_array_equal(residuals[rank][inside], array[inside])
            lost_packets = packets_of(result.lost, case["per_packet"])
            assert not any(tags[rank][p] & 1 for p in lost_packets)
            assert len(lost_packets) <= case["policy"].loss.push * len(tags[rank])
        np.testing.assert_array_equal(results[0].output + np.sum(residuals, axis=0), oracle)
    assert job.settle()
    assert all(node.error is None for node in job.nodes.values())


HEAVY = Weather(drop=0.2, jitter_ns=100_000)
THREE = pytest.mark.parametrize(("algorithm", "servers"), [("sharded", 0), ("ring", 0), ("ps", 2)])


def fixed(algorithm, servers, *, world=4, length=4000, dtype="float64", seed=1, weather=HEAVY, **loss):
    loss = {"push": 0.3, **loss}
    policy = Policy.from_dict({"loss": loss, "wire": {"message_bytes": 8 * STRIDE}, "grace": {"factor": 0.0, "floor_ms": 0.0}})
    per_packet = STRIDE // np.dtype(dtype).itemsize
    return {
        "algorithm": algorithm,
        "servers": servers,
        "world": world,
        "length": length,
        "dtype": dtype,
        "seed": seed,
        "weather": weather,
        "policy": policy,
        "per_packet": per_packet,
    }


@THREE
def test_error_feedback_loses_no_mass_over_many_steps(algorithm, servers):
    """Each step carries what the steps before it lost; at the end a lossless step clears all debts."""
    case = fixed(algorithm, servers, length=1500)
    rng = np.random.default_rng(5)
    job = make_job(case)
    stores = [ResidualStore() for _ in range(4)]
    contributed, delivered = np.zeros(1500), np.zeros(1500)
    lost_steps = 0
    for _ in range(8):
        gradients = integers(case, rng)
        contributed += np.sum(gradients, axis=0)
        for store, gradient in zip(stores, gradients, strict=True):
            store.add_to("w", gradient)
        results = job.allreduce(gradients, op="sum")
        delivered += results[0].output
        for store, result in zip(stores, results, strict=True):
            store.record_values("w", 1500, result.lost, result.residual)
        lost_steps += any(r.lost.size for r in results)
        owed = np.zeros(1500)
        for store in stores:
            entry = store.get("w")
            if entry is not None:
                for (start, stop), values in zip(
                    entry.ranges.tolist(), np.split(entry.values, np.cumsum(np.diff(entry.ranges)[:, 0])[:-1]), strict=True
                ):
                    owed[start:stop] += values
        np.testing.assert_array_equal(contributed, delivered + owed)
    assert lost_steps == 8, "the network was too kind for this test"
    job.network.weather = Weather()
    last = [np.zeros(1500) for _ in stores]
    for store, gradient in zip(stores, last, strict=True):
        store.add_to("w", gradient)
    results = job.allreduce(last, op="sum")
    assert not any(r.lost.size for r in results)
    np.testing.assert_array_equal(contributed, delivered + results[0].output)


@pytest.mark.parametrize(("algorithm", "servers"), [("sharded", 0), ("ps", 2)])
@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("compensation", ["zero", "rescale"])
def test_zero_forgets_and_rescale_divides_by_what_arrived(algorithm, servers, op, compensation):
    case = fixed(algorithm, servers, compensation=compensation)
    job = make_job(case)
    rng = np.random.default_rng(6)
    arrays = integers(case, rng)
    results = job.allreduce(arrays, op=op)
    arrived = np.full(4000, 4.0)
    for result in results:
        for start, stop in result.lost.tolist():
            arrived[start:stop] -= 1
    assert arrived.min() < 4
    total = np.sum(arrays, axis=0) - np.sum([residual_vector(r, 4000) for r in results], axis=0)
    if op == "mean":
        total /= 4
    if compensation == "rescale":
        total *= np.divide(4, arrived, where=arrived > 0, out=np.ones(4000))
    np.testing.assert_allclose(results[0].output, total, rtol=1e-15)
    if compensation == "rescale" and algorithm == "sharded":
        # Owners never lose their own share.
        assert arrived.min() > 0


def test_a_ring_cannot_rescale():
    with pytest.raises(ValueError, match=r"policy\.loss\.compensation: a ring cannot tell .*accepted: error-feedback or zero"):
        make_job(fixed("ring", 0, compensation="rescale"))


@FEW
@given(cases(push=(0.0,), ops=("sum", "mean")), st.integers(0, 2**32 - 1))
def test_the_same_contributions_give_the_same_bits_in_any_weather(case, other_seed):
    """Also where additions round, so that their order shows."""
    rng = np.random.default_rng(case["seed"])
    arrays = [rng.standard_normal(case["length"]).astype(case["dtype"]) for _ in range(case["world"])]
    outputs = []
    for weather, seed in ((Weather(), 0), (case["weather"], other_seed), (WEATHERS[4], other_seed)):
        results = make_job(case | {"weather": weather, "seed": seed}).allreduce(arrays, op=case["op"])
        assert not any(r.lost.size for r in results)
        outputs += [r.output.tobytes() for r in results]
    assert len(set(outputs)) == 1
    expected = np.sum(arrays, axis=0, dtype=np.float64) / (case["world"] if case["op"] == "mean" else 1)
    wire = case["policy"].wire.dtype
    digits = {"float32": 24 if case["dtype"] == "float32" else 53, "float16": 11, "bfloat16": 8}[wire]
    scale = np.sum(np.abs(arrays), axis=0, dtype=np.float64) + 2.0**-14
    error = np.abs(np.frombuffer(outputs[0], case["dtype"]) - expected)
    # Each contribution, each partial sum of a ring and the result are rounded once.
    assert (error <= (2 * case["world"] + 2) * scale * 2.0**-digits).all()


@pytest.mark.parametrize("algorithm", ["sharded", "ring", "ps"])
@pytest.mark.parametrize("wire", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_lost_result_is_replaced_by_ones_own_share(algorithm, wire, op, in_place):
    """Never by garbage; and no more is missing than the bound allows."""
    policy = Policy.from_dict(
        {
            "loss": {"push": 0.0, "pull": 0.3, "resync_steps": 10},
            "wire": {"dtype": wire, "message_bytes": 8 * STRIDE},
            "grace": {"factor": 0.0, "floor_ms": 0.0},
        }
    )
    world, length = 4, 4000
    servers = 2 if algorithm == "ps" else 0
    job = Job(world, algorithm=algorithm, servers=servers, policies=policy, weather=HEAVY, seed=3)
    # Rank r contributes 2^r everywhere: what is in a result tells whose share it is.
    arrays = [np.full(length, 2.0**rank, np.float32) for rank in range(world)]
    tags = np.tile(np.array([0, 3, 8, 12], np.uint8), 1 + length // 4)[: job.communicators[0].packets(length, np.float32)]
    operations = [
        c.allreduce_async(a, op=op, tags=tags, out=a if in_place else np.full(length, np.nan, np.float32))
        for c, a in zip(job.communicators, arrays, strict=True)
    ]
    assert job.run(operations)
    scale = 1 if op == "mean" else 4
    right = 15 / 4 * scale
    guessed = 0
    for rank, operation in enumerate(operations):
        output = operation.result().output
        assert not operation.result().lost.size
        shares = [2.0**r * scale for r in (range(world) if algorithm == "ring" else [rank])]
        assert np.isin(output, [right, *shares]).all()
        wrong = output != right
        guessed += int(wrong.sum())
        per_packet = job.communicators[0].elements_per_packet(np.float32)
        packets = np.unique(np.flatnonzero(wrong) // per_packet)
        assert not (tags[packets] & 1).any()
        if algorithm != "ring":
            assert packets.size <= 0.3 * tags.size
    assert guessed, "the network was too kind for this test"


@FEW
@given(cases(ops=("sum", "mean")), st.data())
def test_calls_may_overlap(case, data):
    """Several arrays under way at once, ranks starting at different times, with broadcasts and barriers in between."""
    rng = np.random.default_rng(case["seed"])
    job = make_job(case)
    kinds = data.draw(st.lists(st.sampled_from(["reduce", "broadcast", "barrier"]), min_size=1, max_size=6))
    inputs = [
        [rng.integers(-20, 21, case["length"] // (1 + i % 3)).astype(case["dtype"]) for _ in range(case["world"])]
        for i in range(len(kinds))
    ]
    started = []
    for rank, communicator in enumerate(job.communicators):
        for kind, arrays in zip(kinds, inputs, strict=True):
            if kind == "reduce":
                started.append(communicator.allreduce_async(arrays[rank], op="sum"))
            elif kind == "broadcast":
                started.append(communicator.broadcast_async(arrays[rank].copy(), root=case["world"] - 1))
            else:
                started.append(communicator.barrier_async())
        # Ranks that have started run ahead of those that have not.
        job.network.run(lambda: False, limit_ns=data.draw(st.integers(0, 3_000_000)))
    assert job.run(started)
    count = len(kinds)
    for i, (kind, arrays) in enumerate(zip(kinds, inputs, strict=True)):
        results = [op.result() for op in started[i::count]]
        if kind == "broadcast":
            assert all(r.output.tobytes() == arrays[-1].tobytes() for r in results)
        elif kind == "reduce":
            oracle = np.sum([a.astype(np.float64) for a in arrays], axis=0)
            owed = np.sum([residual_vector(r, arrays[0].size) for r in results], axis=0)
            assert len({r.output.tobytes() for r in results}) == 1
            np.testing.assert_array_equal(results[0].output + owed, oracle)


@FEW
@given(cases(push=(0.0,), ops=("sum", "mean")))
def test_in_place(case):
    """Without push loss the result may overwrite its own input."""
    rng = np.random.default_rng(case["seed"])
    arrays = integers(case, rng)
    elsewhere = [r.output for r in make_job(case).allreduce(arrays, op=case["op"])]
    job = make_job(case)
    operations = [c.allreduce_async(a, op=case["op"], out=a) for c, a in zip(job.communicators, arrays, strict=True)]
    assert job.run(operations)
    for operation, array, expected in zip(operations, arrays, elsewhere, strict=True):
        np.testing.assert_array_equal(array, expected)
        assert not array.size or np.shares_memory(operation.result().output, array)


def test_results_have_the_shape_of_the_input():
    job = Job(2)
    for shape in ((3, 4, 5), (), (0, 7), (1,)):
        arrays = [np.ones(shape, np.float32) for _ in range(2)]
        assert [r.output.shape for r in job.allreduce(arrays)] == [shape, shape]


@pytest.mark.parametrize("wire", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@THREE
def test_what_is_not_finite_travels_without_a_warning(algorithm, servers, dtype, wire):
    """Overflows and NaN are the training loop's business; warnings are errors here."""
    largest = np.finfo(dtype).max
    array = np.array([np.inf, -np.inf, np.nan, largest, -largest, 1.0], dtype)
    policy = Policy.from_dict({"wire": {"dtype": wire}})
    job = Job(3, algorithm=algorithm, servers=servers, policies=policy)
    other = np.array([-np.inf, -np.inf, 1.0, largest, -largest, 1.0], dtype)
    outputs = [r.output for r in job.allreduce([array, other, other], op="sum")]
    assert len({o.tobytes() for o in outputs}) == 1
    np.testing.assert_array_equal(outputs[0], np.array([np.nan, -np.inf, np.nan, np.inf, -np.inf, 3.0], dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bfloat16_rounds_as_torch_does(dtype):
    torch = pytest.importorskip("torch")
    from dlcp.collectives.elements import from_wire, to_wire
    from dlcp.wire.header import WireType

    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 20_000, dtype=np.uint32)
    values = np.concatenate(
        [
            bits.view(np.float32),
            np.array([0x7F7FFFFF, 0x7F7F8000, 0x7F7F7FFF, 0x00008000, 0x00018000], np.uint32).view(np.float32),
        ]
    )
    values = values[~np.isnan(values)].astype(dtype)
    ours = from_wire(to_wire(values, WireType.BFLOAT16), WireType.BFLOAT16)
    theirs = torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16).to(torch.float32).numpy()
    np.testing.assert_array_equal(ours, theirs)
    nan = from_wire(to_wire(np.array([np.nan, -np.nan], dtype), WireType.BFLOAT16), WireType.BFLOAT16)
    assert np.isnan(nan).all()
