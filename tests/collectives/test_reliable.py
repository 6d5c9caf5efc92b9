"""Reductions and exchanges that lose nothing, in virtual time: what comes out, whatever the network does."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlcp.collectives.arithmetic import ELEMENTS, FLOATS, INTEGERS, Arithmetic
from dlcp.collectives.elements import from_wire, to_wire
from dlcp.errors import ClosedError, MismatchError, OperationTimeoutError, PeerLostError
from dlcp.policy import Policy
from dlcp.transport.virtual import Weather
from tests.collectives.virtual_job import SECOND, STRIDE, Job

WEATHERS = (Weather(), Weather(jitter_ns=2_000_000), Weather(drop=0.1, jitter_ns=300_000, duplicate=0.05), Weather(drop=0.3))
FEW = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], max_examples=20)
WORDS = {"mean": "mean", "sum": "sum", "min": "min", "max": "max", "product": "prod"}

# Whatever may be lost elsewhere, and however numbers travel there, none of it may show here.
LENIENT = {"loss": {"push": 0.5}, "wire": {"dtype": "float16"}, "grace": {"factor": 0.0, "floor_ms": 0.0}}


@st.composite
def jobs(draw):
    message_bytes = draw(st.sampled_from([STRIDE, 3 * STRIDE + 5, 32 * STRIDE]))
    policy = Policy.from_dict({**LENIENT, "wire": {**LENIENT["wire"], "message_bytes": message_bytes}})
    return Job(
        draw(st.integers(1, 5)), policies=policy, weather=draw(st.sampled_from(WEATHERS)), seed=draw(st.integers(0, 2**32 - 1))
    )


lengths = st.one_of(st.sampled_from([0, 1, STRIDE // 4, STRIDE // 4 + 1]), st.integers(0, 2000))


def finish(job, operations):
    assert job.run(operations), [(op.description, n._running) for op, n in zip(operations, job.nodes.values(), strict=False)]
    return [op.result().output for op in operations]


def storable(element):
    return "uint16" if element == "bfloat16" else element


def draw_values(element, op, length, rng):
    """Values whose combination is exact, as an array and as numbers to check with."""
    if element == "bool":
        values = rng.integers(0, 2, length).astype(bool)
        return values.copy(), values
    if op == "product":
        values = rng.choice([1, 1, 1, 2], length)
    else:
        values = rng.integers(0, 20, length)
        if element in FLOATS or not element.startswith("u"):
            values = values - 10
    if element == "bfloat16":
        return to_wire(values.astype(np.float32), FLOATS[element]).view(np.uint16), values
    return values.astype(element), values


def expected(element, op, numbers):
    stack = np.stack(numbers)
    if op in ("and", "or", "xor"):
        function = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op]
        return function.reduce(stack.astype(storable(element)))
    if element == "bool":
        return (stack.any(0) if op in ("sum", "max") else stack.all(0)).astype(bool)
    return getattr(stack, WORDS[op])(0)


def numbers_of(element, output):
    return from_wire(output.view(np.uint8), FLOATS[element]) if element == "bfloat16" else output


@st.composite
def operators(draw):
    element = draw(st.sampled_from(ELEMENTS))
    bitwise = () if element in FLOATS else ("and", "or", "xor")
    mean = ("mean",) if element in FLOATS else ()
    return element, draw(st.sampled_from(("sum", "min", "max", "product", *bitwise, *mean)))


def same(element, op, world, output, numbers):
    """Equal, but for the rounding of a mean."""
    wanted = expected(element, op, numbers)
    if op == "mean":
        tolerance = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 1e-6, "float64": 1e-12}[element]
        np.testing.assert_allclose(numbers_of(element, output), wanted, rtol=tolerance, atol=1e-30)
    else:
        np.testing.assert_array_equal(numbers_of(element, output), wanted)


@FEW
@given(jobs(), operators(), lengths, st.booleans())
def test_an_exact_all_reduce_is_the_reduction_everywhere(job, operator, length, in_place):
    element, op = operator
    rng = np.random.default_rng(length)
    arrays, numbers = zip(*(draw_values(element, op, length, rng) for _ in range(job.world)), strict=True)
    operations = [
        c.exact_allreduce_async(a, op=op, element=element, out=a if in_place else None)
        for c, a in zip(job.communicators, arrays, strict=True)
    ]
    outputs = finish(job, operations)
    for array, output in zip(arrays, outputs, strict=True):
        same(element, op, job.world, output, numbers)
        assert (output is array) == in_place
        assert output.tobytes() == outputs[0].tobytes(), "replicas hold the same bits"
    job.close()


@FEW
@given(jobs(), operators(), st.data())
def test_a_reduce_scatter_gives_each_rank_its_reduction(job, operator, data):
    element, op = operator
    sizes = data.draw(st.lists(st.integers(0, 600), min_size=job.world, max_size=job.world))
    rng = np.random.default_rng(sum(sizes))
    arrays, numbers = [], []
    for _ in range(job.world):
        mine = [draw_values(element, op, size, rng) for size in sizes]
        arrays.append([a for a, _ in mine])
        numbers.append([n for _, n in mine])
    in_place = data.draw(st.booleans())
    outs = [arrays[r][r] if in_place else np.empty(sizes[r], storable(element)) for r in range(job.world)]
    before = [[a.copy() for k, a in enumerate(mine) if k != r] for r, mine in enumerate(arrays)]
    operations = [
        c.reduce_scatter_async(a, op=op, element=element, out=out)
        for c, a, out in zip(job.communicators, arrays, outs, strict=True)
    ]
    finish(job, operations)
    for rank, out in enumerate(outs):
        same(element, op, job.world, out, [numbers[r][rank] for r in range(job.world)])
        untouched = [a for k, a in enumerate(arrays[rank]) if k != rank]
        assert all((a == b).all() for a, b in zip(untouched, before[rank], strict=True))
    job.close()


@FEW
@given(jobs(), operators(), lengths, st.data())
def test_a_reduce_leaves_the_result_at_the_root_alone(job, operator, length, data):
    element, op = operator
    rng = np.random.default_rng(length)
    root = data.draw(st.integers(0, job.world - 1))
    arrays, numbers = zip(*(draw_values(element, op, length, rng) for _ in range(job.world)), strict=True)
    before = [a.copy() for a in arrays]
    operations = [c.reduce_async(a, root, op=op, element=element, out=a) for c, a in zip(job.communicators, arrays, strict=True)]
    finish(job, operations)
    for rank, array in enumerate(arrays):
        if rank == root:
            same(element, op, job.world, array, numbers)
        else:
            assert (array == before[rank]).all()
    job.close()


@FEW
@given(jobs(), st.data())
def test_an_all_gather_gives_everyone_everything(job, data):
    sizes = data.draw(st.lists(st.integers(0, 900), min_size=job.world, max_size=job.world))
    rng = np.random.default_rng(sum(sizes))
    arrays = [rng.integers(0, 256, size).astype(np.uint8) for size in sizes]
    in_place = data.draw(st.booleans())
    outs = [[np.empty(size, np.uint8) for size in sizes] for _ in arrays]
    mine = []
    for rank, array in enumerate(arrays):
        if in_place:
            outs[rank][rank][:] = array
        mine.append(outs[rank][rank] if in_place else array)
    finish(job, [c.allgather_async(a, out) for c, a, out in zip(job.communicators, mine, outs, strict=True)])
    for out in outs:
        assert all((a == b).all() for a, b in zip(out, arrays, strict=True))
    job.close()


@FEW
@given(jobs(), st.data())
def test_an_exchange_delivers_every_block_to_whom_it_is_for(job, data):
    world = job.world
    sizes = np.array(data.draw(st.lists(st.integers(0, 700), min_size=world * world, max_size=world * world)))
    sizes = sizes.reshape(world, world)
    pairs = {(a, b) for a in range(world) for b in range(world) if a == b or data.draw(st.booleans())}
    rng = np.random.default_rng(int(sizes.sum()))
    blocks = {pair: rng.integers(0, 256, sizes[pair]).astype(np.uint8) for pair in pairs}
    into = {(a, b): np.empty(sizes[a, b], np.uint8) for a, b in pairs}
    operations = [
        c.exchange_async(
            {b: blocks[a, b] for a, b in pairs if a == rank}, {a: into[a, b] for a, b in pairs if b == rank}, what="all-to-all"
        )
        for rank, c in enumerate(job.communicators)
    ]
    finish(job, operations)
    assert all((blocks[pair] == into[pair]).all() for pair in pairs)
    job.close()


def test_exchanging_within_one_array_does_not_mix_blocks_up():
    job = Job(3)
    arrays = [np.arange(3, dtype=np.int64) + 10 * r for r in range(3)]
    operations = [
        c.exchange_async({p: a[p : p + 1] for p in range(3)}, {p: a[p : p + 1] for p in range(3)})
        for c, a in zip(job.communicators, arrays, strict=True)
    ]
    finish(job, operations)
    assert [a.tolist() for a in arrays] == [[0, 10, 20], [1, 11, 21], [2, 12, 22]]


def test_collectives_of_all_kinds_may_overlap():
    job = Job(3, weather=Weather(drop=0.1, jitter_ns=1_000_000), policies=Policy.from_dict(LENIENT))
    operations = []
    for rank, c in enumerate(job.communicators):
        ones = np.ones(500, np.int32)
        operations += [
            c.exact_allreduce_async(ones, op="sum"),
            c.allreduce_async(np.ones(800, np.float32), op="mean"),
            c.allgather_async(ones, [np.empty(500, np.int32) for _ in range(3)]),
            c.barrier_async(),
            c.send_async(ones, (rank + 1) % 3),
            c.receive_async(np.empty(500, np.int32), (rank - 1) % 3)[0],
            c.reduce_async(ones, 1, op="max"),
        ]
    assert job.run(operations)
    assert (operations[0].result().output == 3).all()


@pytest.mark.parametrize("second", ["max", "product"])
def test_another_operator_at_another_rank_is_noticed(second):
    job = Job(2)
    operations = [
        c.exact_allreduce_async(np.ones(400, np.int32), op=op) for c, op in zip(job.communicators, ["sum", second], strict=True)
    ]
    errors, _ = job.errors(operations)
    assert all(isinstance(error, MismatchError) for error in errors)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda c: c.allgather_async(np.ones(4), [np.ones(4)] * 2), lambda c: c.allgather_async(np.ones(5), [np.ones(5)] * 2)),
        (lambda c: c.exact_allreduce_async(np.ones(4)), lambda c: c.reduce_async(np.ones(4), 1)),
        (lambda c: c.exact_allreduce_async(np.ones(4)), lambda c: c.barrier_async()),
        (lambda c: c.reduce_async(np.ones(4), 0), lambda c: c.reduce_async(np.ones(4), 1)),
    ],
)
def test_different_calls_end_in_an_error_everywhere(first, second):
    job = Job(2)
    errors, seconds = job.errors([first(job.communicators[0]), second(job.communicators[1])])
    assert all(isinstance(error, MismatchError) for error in errors), errors
    assert seconds < 3


def test_a_rank_that_does_not_call_is_named():
    job = Job(3, policies=Policy.from_dict({"timeouts": {"operation_s": 5}}))
    operations = [c.exact_allreduce_async(np.ones(4, np.int8), op="max") for c in job.communicators[:2]]
    errors, seconds = job.errors(operations)
    assert all(isinstance(error, OperationTimeoutError) for error in errors) and seconds < 6
    assert "ranks [2] do not seem to have called it" in str(errors[0])


def test_a_rank_that_falls_silent_is_named():
    job = Job(3, cut=lambda source, destination, now: now > SECOND // 1000 and 2 in (source, destination))
    operations = [c.exact_allreduce_async(np.ones(10_000), op="max") for c in job.communicators]
    job.network.run(lambda: False, limit_ns=SECOND // 500)
    more = [c.allgather_async(np.ones(4), [np.ones(4)] * 3) for c in job.communicators]
    errors, seconds = job.errors([*operations[:2], *more[:2]], limit_s=30)
    assert any(isinstance(error, PeerLostError) and error.rank == 2 for error in errors) and seconds < 15


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda c: c.exact_allreduce_async(np.ones(3), op="median"), ValueError),
        (lambda c: c.exact_allreduce_async(np.ones(3, np.int32), op="mean"), TypeError),
        (lambda c: c.exact_allreduce_async(np.ones(3), op="xor"), TypeError),
        (lambda c: c.exact_allreduce_async(np.ones(3, np.complex64)), TypeError),
        (lambda c: c.exact_allreduce_async(np.ones(3, np.float32), element="bfloat16"), TypeError),
        (lambda c: c.exact_allreduce_async(np.ones(3), out=np.ones(4)), ValueError),
        (lambda c: c.exact_allreduce_async(np.ones((4, 4)).T), TypeError),
        (lambda c: c.exact_allreduce_async(np.ones(3), priority=7), ValueError),
        (lambda c: c.reduce_scatter_async([np.ones(3)], out=np.ones(3)), ValueError),
        (lambda c: c.reduce_scatter_async([np.ones(3), np.ones(3, np.float32)], out=np.ones(3)), TypeError),
        (lambda c: c.reduce_async(np.ones(3), 2), ValueError),
        (lambda c: c.allgather_async(np.ones(3), [np.ones(3)]), ValueError),
        (lambda c: c.exchange_async({0: np.ones(3)}, {}), ValueError),
        (lambda c: c.exchange_async({0: np.ones(3)}, {0: np.ones(2)}), ValueError),
        (lambda c: c.send_async(np.ones(3), 5), ValueError),
        (lambda c: c.send_async(np.ones(3), 1, 2**63), ValueError),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_sent(call, error):
    job = Job(2)
    with pytest.raises(error):
        call(job.communicators[0])
    # The call has not been counted: ranks still agree about the numbers.
    finish(job, [c.barrier_async() for c in job.communicators])


def test_nothing_can_be_called_after_the_end():
    job = Job(2)
    job.communicators[0].close()
    for call in (
        lambda c: c.exact_allreduce_async(np.ones(3)),
        lambda c: c.allgather_async(np.ones(3), [np.ones(3)] * 2),
        lambda c: c.send_async(np.ones(3), 1),
        lambda c: c.receive_async(np.ones(3), 1),
    ):
        with pytest.raises(ClosedError):
            call(job.communicators[0])


def test_half_precision_is_rounded_once():
    tiny = np.full(4, 2.0**-12, np.float16)
    pieces = [np.ones(4, np.float16), *[tiny] * 8]
    total = Arithmetic("sum", "float16").combine([p.view(np.uint8) for p in pieces]).view(np.float16)
    assert (total == np.float16(1 + 8 * 2.0**-12)).all(), "added one after another in float16 they would vanish"


@pytest.mark.parametrize("element", INTEGERS)
def test_integers_wrap_around(element):
    limit = np.iinfo(element).max
    pieces = [np.full(3, limit, element).view(np.uint8), np.ones(3, element).view(np.uint8)]
    assert (Arithmetic("sum", element).combine(pieces).view(element) == np.iinfo(element).min).all()
