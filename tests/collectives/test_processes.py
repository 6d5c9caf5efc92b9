"""Collectives between real processes over loopback UDP."""

import hashlib
import os
import signal
import socket
import sys
import threading
import time

import numpy as np
import pytest

import dlcp
from dlcp.collectives.residual import ResidualStore
from dlcp.errors import ClosedError, OperationTimeoutError, PeerLostError, RemoteError
from dlcp.wire.codec import encode_headers
from tests.collectives.processes import Died, Ranks, Resources, note, policy, run_ranks

ALGORITHMS = {"sharded": 0, "ring": 0, "ps": 2}


def open_store(folder):
    return dlcp.FileStore(folder)


def digest(array):
    return hashlib.sha256(array.tobytes()).hexdigest()


# -- what comes out ----------------------------------------------------------------------------------------------------------


def _reduce(rank, folder, world, faults, wire):
    """All algorithms one after the other; ranks from ``world`` on are parameter servers."""
    results = []
    before = Resources()
    for algorithm, servers in ALGORITHMS.items():
        rules = policy(loss={"push": 0.1}, wire={"dtype": wire, "mtu": 1500, "message_bytes": 65536})
        common = {"policy": rules, "faults": faults, "name": algorithm}
        if rank >= world:
            if algorithm == "ps":
                results.append(dlcp.serve(rank - world, servers, world, open_store(folder), **common)["transport"]["completed"])
            continue
        rng = np.random.default_rng(rank)
        with dlcp.Communicator(rank, world, open_store(folder), algorithm=algorithm, servers=servers, **common) as communicator:
            store = ResidualStore()
            size = 100_003
            contributed, delivered = np.zeros(size), np.zeros(size)
            digests = []
            for _ in range(4):
                gradient = rng.integers(-20, 21, size).astype(np.float32)
                contributed += gradient
                store.add_to("w", gradient)
                result = communicator.allreduce_async(gradient, op="sum").wait()
                store.record_values("w", size, result.lost, result.residual)
                delivered += result.output
                digests.append(digest(result.output))
            owed = np.zeros(size)
            store.add_to("w", owed)
            total = communicator.broadcast(np.arange(7, dtype=np.int64) * (rank == 1), root=1)
            communicator.barrier()
            results.append((contributed, delivered, owed, digests, total.tolist()))
    return results, before.leaked()


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize(
    ("faults", "wire"), [(None, "float32"), ("drop=0.05;reorder=0.02;duplicate=0.02;corrupt=0.01", "bfloat16")]
)
def test_all_algorithms(world, faults, wire):
    results = run_ranks(_reduce, world + 2, world, faults, wire)
    assert all(leaked == [] for _, leaked in results)
    workers = [found for found, _ in results[:world]]
    for number, algorithm in enumerate(ALGORITHMS):
        mine = [found[number] for found in workers]
        assert len({tuple(digests) for _, _, _, digests, _ in mine}) == 1, algorithm
        assert all(total == list(range(7)) for *_, total in mine)
        contributed = np.sum([c for c, *_ in mine], axis=0)
        owed = np.sum([o for _, _, o, *_ in mine], axis=0)
        delivered = mine[0][1]
        if wire == "float32":
            np.testing.assert_array_equal(contributed, delivered + owed)
        else:
            # Residuals may grow beyond what bfloat16 holds exactly: one rounding of up to 2^-9 each.
            np.testing.assert_allclose(contributed, delivered + owed, atol=8 * world)
    assert all(completed > 0 for found, _ in results[world:] for completed in found)


def _alone(rank, folder):
    before = Resources()
    outputs = []
    for algorithm in ("sharded", "ring"):
        with dlcp.Communicator(0, 1, dlcp.MemoryStore(), algorithm=algorithm) as communicator:
            array = np.arange(10, dtype=np.float64)
            outputs.append(communicator.allreduce(array).tolist() == array.tolist())
            communicator.broadcast(array)
            communicator.barrier()
    return outputs, before.leaked()


def test_one_rank_needs_nobody():
    assert run_ranks(_alone, 1) == [([True, True], [])]


def _ipv6(rank, folder):
    with dlcp.Communicator(rank, 2, open_store(folder), policy=policy(), host="::1") as communicator:
        return communicator.address[0], communicator.allreduce(np.ones(50_000, np.float32), op="sum")[-1]


def test_ipv6():
    with open("/proc/net/if_inet6") as file:  # noqa: PTH123
        if not file.read().strip():
            pytest.skip("no IPv6 here")
    assert run_ranks(_ipv6, 2) == [("::1", 2.0)] * 2


def test_ranks_may_be_threads():
    store, results, errors = dlcp.MemoryStore(), {}, []
    before = Resources()

    def rank(number):
        try:
            with dlcp.Communicator(number, 3, store, policy=policy()) as communicator:
                results[number] = communicator.allreduce(np.full(20_000, number, np.float32), op="sum")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert all((r == 3).all() for r in results.values()) and len(results) == 3
    assert before.leaked() == []


# -- memory, metrics ---------------------------------------------------------------------------------------------------------


def _resident():
    with open("/proc/self/status") as file:  # noqa: PTH123
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def _many(rank, folder, algorithm, servers):
    rules = policy(loss={"push": 0.05}, memory={"early_bytes": 8 << 20})
    if rank == 2:
        before = _resident()
        dlcp.serve(0, servers, 2, open_store(folder), policy=rules)
        return _resident() - before
    with dlcp.Communicator(rank, 2, open_store(folder), policy=rules, algorithm=algorithm, servers=servers) as communicator:
        array, out = np.ones(1 << 18, np.float32), np.empty(1 << 18, np.float32)
        sizes = []
        for step in range(300):
            communicator.allreduce(array, op="sum", out=out)
            assert out[0] == 2.0
            if step in (50, 299):
                sizes.append(_resident())
        communicator.barrier()
        engine = communicator._link.engine
        assert communicator._link.wait_until(lambda: engine.idle, 5)
        metrics = communicator.metrics()
        endpoint = engine.endpoint
        kept = {
            "early": endpoint._receiver.admission.early_bytes,
            "running": len(engine._running) + len(engine._deadlines) + len(engine._claims) + len(engine._early),
            "ended": len(engine._claims._ended),
            "messages": sum(len(f.incoming) + len(f.outgoing) + len(f.expected) for f in map(endpoint.flow, endpoint.peers)),
        }
    return sizes, metrics, kept


@pytest.mark.parametrize(("algorithm", "servers"), [("sharded", 0), ("ps", 1)])
def test_memory_does_not_grow(algorithm, servers):
    """300 operations of 1 MiB; what is allowed is less than 0.3 % of what went through."""
    results = run_ranks(_many, 2 + servers, algorithm, servers)
    for rank, (sizes, metrics, kept) in enumerate(results[:2]):
        assert set(metrics["peers"]) == set(range(2 + servers)) - {rank}
        assert sizes[1] - sizes[0] < 8_000, f"{sizes} KiB"
        assert kept.pop("ended") <= 64
        assert not any(kept.values()), kept
        transport = metrics["transport"]
        assert transport["delivered"] > 300 * 10
        assert transport["completed"] >= 300
        assert metrics["udp"]["packets_sent"] > metrics["udp"]["send_calls"] > 0
        for peer in metrics["peers"].values():
            assert peer["smoothed_rtt_us"] > 0 and peer["window_packets"] >= 1 and peer["in_flight_packets"] >= 0
    if servers:
        assert results[2] < 80_000, "KiB of code, socket buffers and working memory: a quarter of what went through it"


def _metrics(rank, folder):
    """Looks at the metrics while counters appear and change."""
    stop = threading.Event()
    problems = []
    with dlcp.Communicator(rank, 2, open_store(folder), policy=policy(), faults="drop=0.02;corrupt=0.02") as communicator:

        def look():
            while not stop.is_set():
                try:
                    assert "transport" in communicator.metrics()
                except BaseException as error:
                    problems.append(repr(error))
                    return

        thread = threading.Thread(target=look)
        thread.start()
        in_callback = []
        for _ in range(30):
            operation = communicator.allreduce_async(np.ones(30_000, np.float32))
            operation.add_done_callback(lambda op: in_callback.append("transport" in communicator.metrics()))
            operation.wait()
        stop.set()
        thread.join()
    # Also afterwards, for reports at the end.
    return problems, all(in_callback) and len(in_callback) == 30, sorted(communicator.metrics())


def test_metrics_can_be_read_at_any_time():
    assert run_ranks(_metrics, 2) == [([], True, ["faults", "peers", "senders", "transport", "udp"])] * 2


# -- ranks that go wrong -----------------------------------------------------------------------------------------------------


def _until_error(rank, folder, world, victim, how, algorithm, servers):
    """Reduces until it fails; returns the error, how long the failing call took, and how long the next one and the close did."""
    # How soon something happens is told by timeouts that are far apart, not by margins that a busy machine exceeds.
    rules = policy(timeouts={"peer_s": 1.0 if how in ("kill", "stop") else 8.0, "operation_s": 30.0})
    if rank >= world:
        dlcp.serve(rank - world, servers, world, open_store(folder), policy=rules)
    communicator = dlcp.Communicator(rank, world, open_store(folder), policy=rules, algorithm=algorithm, servers=servers)
    before = Resources()
    array = np.ones(500_000, np.float32)
    step = 0
    while True:
        operation = communicator.allreduce_async(array)
        step += 1
        if step == 3 and rank == victim:
            note("now")
            how_to_go(how, communicator)
        begin = time.monotonic()
        try:
            operation.wait()
        except dlcp.DLCPError as error:
            failed = time.monotonic()
            with pytest.raises(type(error)):
                communicator.barrier()
            again = time.monotonic()
            communicator.close()
            closed = time.monotonic()
            assert (array == 1).all()
            return error, failed - begin, again - failed, closed - again, before.leaked()


def how_to_go(how, communicator):
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "_exit":
        os._exit(3)
    elif how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "raise":
        with communicator:
            raise dlcp.DLCPError("on purpose")
    elif how == "exit":
        sys.exit(5)
    elif how == "abort":
        communicator.abort("enough")
        communicator.close()
        sys.exit(6)


@pytest.mark.parametrize(("algorithm", "servers"), [("sharded", 0), ("ring", 0), ("ps", 1)])
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_rank_that_falls_silent_is_named_by_all_survivors(algorithm, servers, how):
    world, victim = 3, 1
    with Ranks(_until_error, world + servers, world, victim, how, algorithm, servers) as ranks:
        ranks.notes(1)
        if how == "kill":
            results = ranks.results(20)
            assert isinstance(results[victim], Died) and results[victim].code == -signal.SIGKILL
        else:
            others = [pipe for rank, pipe in enumerate(ranks._pipes) if rank != victim]
            assert all(pipe.poll(20) for pipe in others)
            ranks.signal(victim, signal.SIGCONT)
            results = ranks.results(20)
            # When it wakes up it learns that it was given up.
            assert isinstance(results[victim][0], RemoteError | PeerLostError)
    for rank, result in enumerate(results):
        if rank == victim:
            continue
        error = result if rank >= world else result[0]
        assert isinstance(error, PeerLostError) and error.rank == victim, error
        if rank < world:
            _, waited, again, closed, leaked = result
            assert waited < 15.0
            assert again < 15.0 and closed < 2.9
            assert leaked == []


@pytest.mark.parametrize("how", ["raise", "exit", "abort"])
def test_a_rank_that_fails_tells_all_others_why(how):
    world, victim = 3, 2
    results = run_ranks(_until_error, world, world, victim, how, "sharded", 0)
    expected = {"raise": "DLCPError: on purpose", "exit": "its process ends in the middle of an operation", "abort": "enough"}[
        how
    ]
    for rank in (0, 1):
        error, waited, again, closed, leaked = results[rank]
        if how == "exit" and isinstance(error, PeerLostError):
            # Its last operation had ended just before, so it left in good order.
            assert error.rank == victim and "it has closed" in str(error)
        else:
            assert isinstance(error, RemoteError) and (error.rank, error.reason) == (victim, expected)
        # Not by silence, and not by lingering.
        assert waited < 7.0 and again < 7.0 and closed < 2.9
        assert leaked == []


def _interrupted(rank, folder):
    communicator = dlcp.Communicator(rank, 2, open_store(folder), policy=policy(timeouts={"operation_s": 60.0}))
    link = communicator._link
    if rank == 1:
        link.wait_until(lambda: link.engine.error is not None, 20)
        communicator.barrier()
    operation = communicator.allreduce_async(np.ones(10, np.float32))
    try:
        link.wait_until(lambda: link.engine.busy, 5)
        note("waiting")
        operation.wait()
    except KeyboardInterrupt:
        begin = time.monotonic()
        communicator.abort("KeyboardInterrupt")
        communicator.close()
        note(time.monotonic() - begin)
        raise


def test_ctrl_c_while_waiting():
    with Ranks(_interrupted, 2) as ranks:
        ranks.notes(1)
        ranks.signal(0, signal.SIGINT)
        results = ranks.results(10)
        assert ranks.notes(1)[0] < 2.9
    assert isinstance(results[0], KeyboardInterrupt)
    assert isinstance(results[1], RemoteError) and results[1].reason == "KeyboardInterrupt"


def _terminated(rank, folder):
    """The usual way: a handler that raises SystemExit, and nobody who closes."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    communicator = dlcp.Communicator(rank, 2, open_store(folder), policy=policy(timeouts={"operation_s": 60.0}))
    if rank == 0:
        operation = communicator.allreduce_async(np.ones(10, np.float32))
        communicator._link.wait_until(lambda: communicator._link.engine.busy, 5)
        note("waiting")
        operation.wait()
    communicator._link.wait_until(lambda: communicator._link.engine.error is not None, 20)
    communicator.barrier()


def test_sigterm_while_waiting():
    with Ranks(_terminated, 2) as ranks:
        ranks.notes(1)
        begin = time.monotonic()
        ranks.signal(0, signal.SIGTERM)
        results = ranks.results(10)
        assert time.monotonic() - begin < 9.0
        ranks.processes[0].join(5)
        assert ranks.processes[0].exitcode is not None
    assert isinstance(results[0], SystemExit)
    assert isinstance(results[1], RemoteError) and "its process ends" in results[1].reason


def _close_early(rank, folder):
    communicator = dlcp.Communicator(rank, 2, open_store(folder), policy=policy(timeouts={"peer_s": 8.0}))
    communicator.barrier()
    if rank == 1:
        begin = time.monotonic()
        communicator.close()
        with pytest.raises(ClosedError):
            communicator.allreduce(np.ones(3, np.float32))
        communicator.close()
        return time.monotonic() - begin
    begin = time.monotonic()
    try:
        communicator.allreduce(np.ones(3, np.float32))
    finally:
        note(time.monotonic() - begin)
        communicator.close()


def test_a_rank_that_closes_early_is_no_reason_to_hang():
    with Ranks(_close_early, 2) as ranks:
        results = ranks.results(15)
        waited = ranks.notes(1)[0]
    assert isinstance(results[0], PeerLostError) and results[0].rank == 1 and "has closed" in str(results[0])
    assert waited < 7.0 and results[1] < 7.0


def _close_while_waiting(rank, folder):
    """Another thread waits for an operation that will not end."""
    communicator = dlcp.Communicator(rank, 2, open_store(folder), policy=policy())
    if rank == 1:
        note("ready")
        communicator._link.wait_until(lambda: communicator._link.engine.left >= {0}, 20)
        communicator.close()
        return None
    operation = communicator.allreduce_async(np.ones(3, np.float32))
    begin = time.monotonic()
    communicator.close()
    seconds = time.monotonic() - begin
    # The peer may have closed meanwhile, because this rank said goodbye.
    with pytest.raises((ClosedError, PeerLostError), match=r"stopped|it has closed"):
        operation.wait(5)
    return seconds


def test_closing_ends_operations_that_are_under_way():
    results = run_ranks(_close_while_waiting, 2)
    assert results[0] < 15.0


def _never_calls(rank, folder):
    rules = policy(timeouts={"operation_s": 2.5})
    communicator = dlcp.Communicator(rank, 2, open_store(folder), policy=rules)
    try:
        if rank == 1:
            # Alive for longer than the peer timeout, but never calls.
            communicator._link.wait_until(lambda: communicator._link.engine.error is not None, 20)
        communicator.allreduce(np.ones(3, np.float32))
    finally:
        communicator.close()


def test_a_rank_that_never_calls():
    results = run_ranks(_never_calls, 2)
    assert all(isinstance(error, OperationTimeoutError) for error in results)
    assert "2.5 s" in str(results[0]) and "ranks [1] do not seem to have called it" in str(results[0])


def _fork(rank, folder):
    """A child that inherits the communicator, such as a data loader's, must not close it for its parent."""
    communicator = dlcp.Communicator(rank, 2, open_store(folder), policy=policy())
    child = os.fork()
    if child == 0:
        begin = time.monotonic()
        communicator.close()
        os._exit(0 if time.monotonic() - begin < 0.5 else 1)
    status = os.waitpid(child, 0)[1]
    total = communicator.allreduce(np.ones(3, np.float32), op="sum").tolist()
    communicator.close()
    return status, total


def test_forked_children_leave_it_alone():
    assert run_ranks(_fork, 2) == [(0, [2.0, 2.0, 2.0])] * 2


def _patience(rank, folder):
    with dlcp.Communicator(rank, 2, open_store(folder), policy=policy()) as communicator:
        link = communicator._link
        for _ in range(50):
            assert not link.wait_until(lambda: False, 0.002)
        communicator.barrier()
        refused = []

        def close(operation):
            try:
                communicator.close()
            except RuntimeError as error:
                refused.append(str(error))

        operation = communicator.barrier_async()
        operation.add_done_callback(close)
        operation.wait()
        assert link.wait_until(lambda: bool(refused), 5)
        return len(link.engine._watchers), refused[0]


def test_waiting_in_vain_leaves_nothing_behind_and_callbacks_cannot_close():
    for watchers, refused in run_ranks(_patience, 2):
        assert watchers == 0
        assert "a callback cannot close the communicator" in refused


def _under_fire(rank, folder):
    rules = policy(loss={"push": 0.1})
    with dlcp.Communicator(rank, 2, open_store(folder), policy=rules) as communicator:
        note(communicator.address)
        good = 0
        end = time.monotonic() + 1.0
        going_on = np.ones(1, np.float32)
        while going_on[0]:
            result = communicator.allreduce(np.full(50_000, rank + 1.0, np.float32), op="sum")
            good += bool(np.isin(result, [1.0, 2.0, 3.0]).all() and (result == 3).mean() > 0.7)
            going_on = communicator.broadcast(np.full(1, float(time.monotonic() < end), np.float32))
            if not good:
                break
        return good, communicator.metrics()["transport"]


def test_datagrams_from_elsewhere_change_nothing():
    """Noise, cut headers, and whole ones of another job, thrown at both ranks while they work."""
    rng = np.random.default_rng(0)
    whole = encode_headers(1, type=0, source=1, destination=0, cookie=np.uint64(99), operation=1, length=100, stride=64)[
        0
    ].tobytes()
    with Ranks(_under_fire, 2) as ranks, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gun:
        addresses = ranks.notes(2)
        while all(process.is_alive() for process in ranks.processes):
            for address in addresses:
                for datagram in (rng.bytes(int(rng.integers(0, 2000))), whole + bytes(64), whole[: int(rng.integers(48))]):
                    gun.sendto(datagram, tuple(address))
            time.sleep(0.001)
        results = ranks.results()
    for good, counters in results:
        assert good > 0
        assert counters["foreign"] > 10 and counters["truncated"] > 10


def _two_at_once(rank, folder):
    store = open_store(folder)
    with (
        dlcp.Communicator(rank, 2, store, policy=policy(), name="a") as first,
        dlcp.Communicator(rank, 2, store, policy=policy(), name="b", algorithm="ring") as second,
    ):
        operations = [c.allreduce_async(np.full(30_000, k, np.float32), op="sum") for k in range(5) for c in (first, second)]
        return [operation.wait().output[-1] for operation in operations]


def test_communicators_side_by_side():
    assert run_ranks(_two_at_once, 2) == [[2.0 * k for k in range(5) for _ in range(2)]] * 2
