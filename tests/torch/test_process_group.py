"""The process group's calls on real ranks, against what they should give and against gloo."""

import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.distributed_c10d import _coalescing_manager

import dlcp.torch
from dlcp.collectives.operation import Operation, Reduction
from dlcp.collectives.residual import ResidualStore
from dlcp.errors import ConfigError
from dlcp.policy import Policy
from dlcp.torch.arrays import source_bytes, target_bytes
from dlcp.torch.delivery import Delivery
from dlcp.torch.options import ProcessGroupOptions, with_timeout
from dlcp.torch.work import DLCPWork
from tests.torch.groups import run_group

# Whatever it allows to be lost or rounded, none of it may show in a call outside of allow_loss.
LENIENT = ProcessGroupOptions(
    policy=Policy.from_dict(
        {"loss": {"push": 0.5}, "wire": {"dtype": "float16"}, "protection": {"share": 0.0}, "grace": {"factor": 0, "floor_ms": 0}}
    ),
    faults="drop=0.01",
)
OPERATORS = {
    "SUM": lambda t: t.sum(0),
    "MIN": lambda t: t.amin(0),
    "MAX": lambda t: t.amax(0),
    "PRODUCT": lambda t: t.prod(0),
}
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
)


def of(rank, *shape, dtype=torch.float32, seed=0):
    """What a rank contributes: small whole numbers."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(0, 4, shape, generator=generator).to(dtype)


def _reductions(rank, world):
    for name, combine in OPERATORS.items():
        op = getattr(dist.ReduceOp, name)
        for dtype in DTYPES if name == "SUM" else DTYPES[2:6]:
            everyone = torch.stack([of(r, 3, 70, dtype=dtype) for r in range(world)]).to(torch.float64)
            wanted = combine(everyone).to(dtype)
            mine = of(rank, 3, 70, dtype=dtype)
            dist.all_reduce(mine, op)
            assert torch.equal(mine, wanted), (name, dtype)

            to_one = of(rank, 3, 70, dtype=dtype)
            dist.reduce(to_one, 1, op)
            assert torch.equal(to_one, wanted if rank == 1 else of(rank, 3, 70, dtype=dtype))

            part = torch.empty(70, dtype=dtype)
            dist.reduce_scatter_single(part, of(rank, 3, 70, dtype=dtype).reshape(-1), op)
            assert torch.equal(part, wanted[rank])
            dist.reduce_scatter(part, list(of(rank, 3, 70, dtype=dtype)), op)
            assert torch.equal(part, wanted[rank])
    for dtype in DTYPES[:4]:
        mine = of(rank, 50, dtype=dtype)
        dist.all_reduce(mine, dist.ReduceOp.AVG)
        wanted = torch.stack([of(r, 50, dtype=dtype) for r in range(world)]).to(torch.float64).mean(0)
        torch.testing.assert_close(mine.to(torch.float64), wanted, rtol=torch.finfo(dtype).eps, atol=0)
    bits = torch.tensor([rank & 1, rank & 2, 7], dtype=torch.int32)
    for name, wanted in (("BAND", [0, 0, 7]), ("BOR", [1, 2, 7]), ("BXOR", [1, 2, 7])):
        mine = bits.clone()
        dist.all_reduce(mine, getattr(dist.ReduceOp, name))
        assert mine.tolist() == wanted, name
    flags = torch.tensor([rank == 1, True, False])
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    assert flags.tolist() == [True, True, False]
    complex_numbers = torch.full((3,), 1 + 2j)
    dist.all_reduce(complex_numbers)
    assert complex_numbers.tolist() == [3 + 6j] * 3
    return dist.get_backend()


def test_reductions_of_every_operator_and_type_over_a_lossy_network():
    assert run_group(_reductions, world=3, options=LENIENT) == ["dlcp"] * 3


def _exchanges(rank, world):
    everything = [of(r, 4, 5) for r in range(world)]
    for root in range(world):
        tensor = of(rank, 4, 5)
        dist.broadcast(tensor, root)
        assert torch.equal(tensor, everything[root])
        gathered = [torch.empty(4, 5) for _ in range(world)] if rank == root else None
        dist.gather(of(rank, 4, 5), gathered, dst=root)
        assert gathered is None or all(map(torch.equal, gathered, everything))
        dist.scatter(tensor, [of(r, 4, 5, seed=root) for r in range(world)] if rank == root else None, src=root)
        assert torch.equal(tensor, of(rank, 4, 5, seed=root))
    outs = [torch.empty(4, 5) for _ in range(world)]
    dist.all_gather(outs, everything[rank])
    assert all(map(torch.equal, outs, everything))
    together = torch.empty(world * 4, 5)
    dist.all_gather_single(together, everything[rank])
    assert torch.equal(together, torch.cat(everything))
    together[4 * rank : 4 * rank + 4] = everything[rank] + 1
    dist.all_gather_single(together, together[4 * rank : 4 * rank + 4])
    assert torch.equal(together, torch.cat(everything) + 1), "in place"

    blocks = [[of(a, b + 1, seed=9) + 10 * b for b in range(world)] for a in range(world)]
    outs = [torch.empty(rank + 1) for _ in range(world)]
    dist.all_to_all(outs, blocks[rank])
    assert all(torch.equal(outs[a], blocks[a][rank]) for a in range(world))
    joined = torch.empty(world * (rank + 1))
    dist.all_to_all_single(joined, torch.cat(blocks[rank]), [rank + 1] * world, [b + 1 for b in range(world)])
    assert torch.equal(joined, torch.cat(outs))
    for nothing in (torch.empty(0), torch.empty(3, 0)):
        dist.all_reduce(nothing)
        dist.broadcast(nothing, 0)
        dist.all_gather([torch.empty_like(nothing) for _ in range(world)], nothing)
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(world)]
    dist.group.WORLD.monitored_barrier(timedelta(seconds=5))
    return True


def test_exchanges_over_a_lossy_network():
    assert all(run_group(_exchanges, world=3, options=LENIENT))


def _odd_tensors(rank, world):
    column = torch.zeros(6, 4)[:, 1]
    column += rank
    dist.all_reduce(column)
    assert column.tolist() == [1.0] * 6 and column.stride() == (4,)
    base = torch.zeros(4, 6)
    dist.broadcast(base.t() if rank else torch.arange(24.0).reshape(6, 4), 0)
    assert not rank or torch.equal(base.t(), torch.arange(24.0).reshape(6, 4))
    image = torch.full((2, 3, 4, 5), float(rank)).to(memory_format=torch.channels_last)
    dist.all_reduce(image, dist.ReduceOp.MAX)
    assert (image == 1).all()
    parameter = torch.nn.Parameter(torch.ones(3))
    dist.all_reduce(parameter.grad if parameter.grad is not None else parameter.data)
    with torch.no_grad():
        dist.all_reduce(parameter)
    assert parameter.tolist() == [4.0] * 3
    scalar = torch.tensor(2.5)
    dist.all_reduce(scalar)
    conjugate = torch.full((2,), 1 + 1j).conj()
    outs = [torch.empty(2, dtype=torch.complex64) for _ in range(world)]
    dist.group.WORLD.allgather([outs], [conjugate]).wait()
    assert outs[0].tolist() == [1 - 1j] * 2
    return scalar.item()


def test_tensors_that_do_not_lie_in_memory_as_they_read():
    assert run_group(_odd_tensors) == [5.0, 5.0]


def _point_to_point(rank, world):
    right, left = (rank + 1) % world, (rank - 1) % world
    out = torch.empty(1000)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, torch.full((1000,), float(rank)), right), dist.P2POp(dist.irecv, out, left)]
    )
    for work in works:
        work.wait()
    assert (out == left).all()
    if rank == 0:
        dist.send(torch.tensor([1]), 1, tag=1)
        dist.send(torch.tensor([2]), 1, tag=2)
        return [dist.recv(torch.empty(5)) for _ in range(world - 1)]
    if rank == 1:
        second, first = torch.empty(1, dtype=torch.int64), torch.empty(1, dtype=torch.int64)
        dist.recv(second, 0, tag=2)
        dist.recv(first, 0, tag=1)
        assert (first.item(), second.item()) == (1, 2)
    dist.send(torch.ones(5), 0)
    return None


def test_point_to_point():
    assert sorted(run_group(_point_to_point, world=3, options=LENIENT)[0]) == [1, 2]


def _futures(rank, world):
    works = [dist.all_reduce(torch.ones(3) * k, async_op=True) for k in range(5)]
    # Made here, in one order on all ranks; which callback runs first is open.
    others = [dist.all_reduce(torch.ones(1) * k, async_op=True) for k in range(5)]
    # Each callback waits for another call: were there one thread for all of them, none would end.
    inner = [
        work.get_future().then(lambda f, other=other: f.value()[0][0] + other.get_future().wait()[0][0])
        for work, other in zip(works, reversed(others), strict=True)
    ]
    results = [future.wait().item() for future in inner]
    assert all(work.is_completed() and work.is_success() for work in works)
    # One callback at a time may also start a call.
    again = works[1].get_future().then(lambda f: dist.all_reduce(f.value()[0], async_op=True).get_future().wait()[0])
    results.append(again.wait()[0].item())
    late = dist.all_reduce(torch.ones(2), async_op=True)
    late.wait(timedelta(seconds=5))
    assert late.get_future().done() and late.result()[0].tolist() == [world] * 2
    return results


def test_callbacks_of_futures_may_wait_for_other_calls():
    assert run_group(_futures) == [[8.0, 8.0, 8.0, 8.0, 8.0, 4.0]] * 2


def _coalesced(rank, world):
    tensors = [torch.full((k + 1,), float(rank), dtype=d) for k, d in enumerate((torch.float32, torch.float32))]
    dist.group.WORLD.allreduce_coalesced(tensors).wait()
    with _coalescing_manager(async_ops=True) as manager:
        more = [torch.ones(4) * (rank + k) for k in range(3)]
        for tensor in more:
            dist.all_reduce(tensor)
    manager.wait()
    into = [torch.empty(world * 2) for _ in range(2)]
    with _coalescing_manager():
        for k, out in enumerate(into):
            dist.all_gather_single(out, torch.full((2,), float(rank + k)))
    parts = [torch.empty(1) for _ in range(2)]
    with _coalescing_manager():
        for k, part in enumerate(parts):
            dist.reduce_scatter_single(part, torch.arange(float(world)) + k)
    with _coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        last = torch.ones(2)
        dist.broadcast(last * rank, 0)
        dist.all_reduce(last)
    manager.wait()
    functional = torch.distributed._functional_collectives
    summed = functional.wait_tensor(functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD))
    gathered = functional.wait_tensor(functional.all_gather_single(torch.ones(1) * rank, 0, dist.group.WORLD))
    return [[t.tolist() for t in group] for group in (tensors, more, into, parts, [last, summed, gathered])]


def test_coalesced_and_functional_forms():
    results = run_group(_coalesced)
    assert results[0] == [
        [[1.0], [1.0, 1.0]],
        [[1.0] * 4, [3.0] * 4, [5.0] * 4],
        [[0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 2.0, 2.0]],
        [[0.0], [2.0]],
        [[2.0, 2.0], [2.0, 2.0], [0.0, 1.0]],
    ]
    assert results[1][3] == [[2.0], [4.0]]


def _subgroups(rank, world):
    pairs = [dist.new_group([0, 1]), dist.new_group([1, 2]), dist.new_group([2, 0])]
    sums = []
    for number, pair in enumerate(pairs):
        if rank in ((0, 1), (1, 2), (2, 0))[number]:
            tensor = torch.tensor([float(rank)])
            dist.all_reduce(tensor, group=pair)
            sums.append(tensor.item())
    mixed = dist.new_group(backend="gloo")
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=mixed)
    dist.destroy_process_group(pairs[0])
    dist.all_reduce(tensor)
    assert isinstance(dist.group.WORLD.get_group_store(), dist.Store)
    return sums, tensor.item(), dist.group.WORLD.options.policy.loss.push, dist.group.WORLD.group_name


def test_subgroups_beside_each_other_and_beside_gloo():
    results = run_group(_subgroups, world=3, options=LENIENT)
    assert results == [([1.0, 2.0], 9.0, 0.5, "0"), ([1.0, 3.0], 9.0, 0.5, "0"), ([3.0, 2.0], 9.0, 0.5, "0")]


def _lossy(rank, world):
    policy = dist.group.WORLD.communicator.policy
    residuals = ResidualStore()
    exact, contributed, delivered = torch.zeros(50_000), torch.zeros(50_000), torch.zeros(50_000)
    lost = 0
    for step in range(6):
        gradient = of(rank, 50_000, seed=step)
        contributed += gradient
        exact = gradient.clone()
        dist.all_reduce(exact)
        assert torch.equal(exact, sum(of(r, 50_000, seed=step) for r in range(world))), "reliable outside of the context"
        with dlcp.torch.allow_loss(residuals=residuals) as store:
            dist.all_reduce(gradient)
            whole = torch.full((5,), rank, dtype=torch.int64)
            dist.all_reduce(whole)
        assert store is residuals and whole.tolist() == [1] * 5
        delivered += gradient
        lost = max(lost, residuals.mass().elements)
    owed = torch.zeros(50_000)
    entry = residuals.get((0, 50_000))
    if entry is not None:
        position = 0
        for start, stop in entry.ranges.tolist():
            owed[start:stop] += torch.from_numpy(entry.values[position : position + stop - start])
            position += stop - start
    dist.all_reduce(contributed)
    dist.all_reduce(owed)
    return lost, policy.loss.push, torch.equal(contributed, delivered + owed), delivered.sum().item()


def test_where_loss_is_allowed_no_mass_is_lost_and_replicas_are_equal():
    options = ProcessGroupOptions(
        policy=Policy.from_dict(
            {"loss": {"push": 0.5}, "protection": {"share": 0.0}, "grace": {"factor": 0, "floor_ms": 0}, "wire": {"mtu": 1500}}
        ),
        faults="drop=0.1",
    )
    results = run_group(_lossy, options=options)
    assert any(lost for lost, *_ in results) and all(conserved for _, _, conserved, _ in results), results
    assert results[0][3] == results[1][3]


# -- without ranks


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("dlcp", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


UNSUPPORTED = {
    "split_group": lambda g: g.split_group([0]),
    "merge_remote_group": lambda g: g.merge_remote_group(None, 2),
    "set_timeout": lambda g: g.set_timeout(timedelta(seconds=1)),
    "PREMUL_SUM": lambda g: dist.all_reduce(torch.ones(1), vars(dist)["_make_nccl_premul_sum"](2.0)),
    "_register_on_completion_hook": lambda g: g._register_on_completion_hook(print),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_there_is_not_says_so_by_name(alone, name):
    with pytest.raises(NotImplementedError, match=f"dlcp.*{name}.*not supported"):
        UNSUPPORTED[name](alone)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: dist.all_reduce(torch.ones(2).to_sparse()), "allreduce of a tensor of layout torch.sparse_coo"),
        (lambda: dist.all_reduce(torch.ones(2, device="meta")), "allreduce of a tensor on meta"),
        (lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e4m3fn)), "allreduce of torch.float8_e4m3fn"),
        (lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.AVG), "mean of int32"),
        (lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BXOR), "xor is for integers"),
    ],
)
def test_tensors_that_cannot_be_carried_are_refused_by_name(alone, call, words):
    with pytest.raises(TypeError, match=words):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: dist.all_gather_single(torch.empty(3), torch.ones(2)),
        lambda: dist.reduce_scatter_single(torch.empty(3), torch.ones(2)),
        lambda: dist.all_to_all_single(torch.empty(3), torch.ones(3), [2], [3]),
    ],
)
def test_sizes_that_do_not_fit_are_refused(alone, call):
    with pytest.raises((ValueError, TypeError)):
        call()


def test_loss_is_allowed_to_this_backend_once_and_never_to_results(alone, tmp_path):
    with dlcp.torch.allow_loss(), pytest.raises(RuntimeError), dlcp.torch.allow_loss():
        pass
    assert alone.allowance is None
    gloo = dist.new_group(backend="gloo")
    with pytest.raises(TypeError, match="dlcp"), dlcp.torch.allow_loss(gloo):
        pass
    dist.destroy_process_group()
    pull = Policy.from_dict({"loss": {"pull": 0.01, "resync_steps": 5}})
    dist.init_process_group(
        "dlcp",
        store=dist.FileStore(str(tmp_path / "again"), 1),
        rank=0,
        world_size=1,
        pg_options=ProcessGroupOptions(policy=pull),
    )
    with pytest.raises(ConfigError, match=r"loss\.pull"), dlcp.torch.allow_loss():
        pass


def test_options_come_before_the_environment_and_the_environment_before_defaults(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text("[loss]\npush = 0.125\n")
    environment = {"DLCP_HOST": "127.0.0.9", "DLCP_PORT": "4711", "DLCP_POLICY": str(path), "DLCP_FAULTS": "drop=0.5"}
    found = ProcessGroupOptions().completed(environment)
    assert (found.host, found.port, found.policy.loss.push, found.faults) == ("127.0.0.9", 4711, 0.125, "drop=0.5")
    mine = ProcessGroupOptions(policy=Policy(), host="127.0.0.3", port=1, faults="drop=0.1")
    assert mine.completed(environment) == mine and mine.for_subgroup().port == 0
    plain = ProcessGroupOptions().completed({})
    assert (plain.host, plain.port, plain.policy, plain.faults) == ("127.0.0.1", 0, Policy(), None)
    for wrong in ("x", "-1", "65536"):
        with pytest.raises(ConfigError, match="DLCP_PORT"):
            ProcessGroupOptions().completed({"DLCP_PORT": wrong})


@given(st.floats(0.001, 1e7))
def test_nothing_waits_longer_than_the_groups_timeout(seconds):
    timeout = timedelta(seconds=seconds)
    times = with_timeout(Policy(), timeout).timeouts
    assert max(times.connect_s, times.operation_s) <= timeout.total_seconds()
    assert times.peer_s <= max(timeout.total_seconds(), 0.21)


def test_a_group_binds_the_address_that_the_environment_names(tmp_path, monkeypatch):
    monkeypatch.setenv("DLCP_HOST", "127.0.0.5")
    dist.init_process_group("dlcp", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        assert dist.group.WORLD.communicator.address[0] == "127.0.0.5"
    finally:
        dist.destroy_process_group()


def test_other_options_are_refused(tmp_path):
    with pytest.raises(TypeError, match="ProcessGroupOptions"):
        dist.init_process_group(
            "dlcp", store=dist.FileStore(str(tmp_path / "s"), 1), rank=0, world_size=1, pg_options={"host": "x"}
        )
    assert not dist.is_initialized()


@settings(max_examples=50)
@given(st.lists(st.integers(0, 4), max_size=4), st.booleans(), st.sampled_from([torch.float32, torch.bfloat16, torch.complex64]))
def test_bytes_of_tensors_come_back_in_their_place(shape, turned, dtype):
    source, target = torch.randn(shape).to(dtype), torch.zeros(shape, dtype=dtype)
    if turned:
        order = tuple(reversed(range(len(shape))))
        source, target = source.permute(order), target.permute(order)
    data, put_back = target_bytes(target, "test")
    data[:] = source_bytes(source, "test")
    if put_back is not None:
        put_back()
    assert torch.equal(source, target)


def test_a_pool_has_as_many_threads_as_tasks_wait():
    delivery, go, order = Delivery("test"), threading.Event(), []
    done = threading.Semaphore(0)

    def wait(number):
        go.wait(10)
        order.append(number)
        done.release()

    for number in range(5):
        delivery.submit(lambda number=number: wait(number))
    delivery.submit(done.release)
    assert done.acquire(timeout=10), "a task gets through while five wait"
    assert delivery.threads == 6
    go.set()
    assert all(done.acquire(timeout=10) for _ in range(5)) and sorted(order) == list(range(5))


def test_a_work_finishes_once_and_reports_what_failed():
    operations = [Operation("a"), Operation("b")]
    finished = []
    work = DLCPWork(operations, [torch.ones(1)], Delivery("test"), finish=lambda: finished.append(1))
    future = work.get_future()
    assert not work.is_completed() and future is work.get_future()
    empty = Reduction(torch.zeros(0).numpy(), torch.zeros(0, 2).numpy(), torch.zeros(0).numpy())
    operations[1].finish(empty)
    with pytest.raises(TimeoutError):
        work.wait(timedelta(milliseconds=1))
    operations[0].finish(empty)
    assert future.wait()[0].tolist() == [1.0] and work.wait() and work.is_completed()
    assert finished == [1]
    with pytest.raises(RuntimeError):
        work.source_rank()
    failed = DLCPWork([Operation("c")], [], Delivery("test"), finish=lambda: finished.append(2))
    failed._operations[0].finish(None, ConfigError("a", "b", "c", "d"))
    assert failed.is_completed() and not failed.is_success()
    with pytest.raises(ConfigError):
        failed.wait()
    with pytest.raises(Exception, match="accepted"):
        failed.get_future().wait()
    assert finished == [1]
