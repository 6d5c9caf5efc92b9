"""What ends a job, in virtual time: which error, at which rank, after how long; and that nothing is half applied."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlcp.collectives.operation import Operation
from dlcp.errors import (
    ClosedError,
    DLCPError,
    MismatchError,
    MtuError,
    OperationTimeoutError,
    PeerLostError,
    RemoteError,
)
from dlcp.policy import Policy
from dlcp.transport.virtual import Weather
from tests.collectives.virtual_job import SECOND, STRIDE, Job

KINDS = pytest.mark.parametrize(("algorithm", "servers"), [("sharded", 0), ("ring", 0), ("ps", 2)])


def policy(**more):
    tree = {"wire": {"message_bytes": 8 * STRIDE}, "timeouts": {"peer_s": 2.0, "operation_s": 30.0, "probe_max_ms": 100.0}}
    for key, value in more.items():
        tree[key] = tree.get(key, {}) | value
    return Policy.from_dict(tree)


class Dead:
    """Ranks that are cut off from some time on."""

    def __init__(self):
        self.since = {}

    def kill(self, rank, job):
        self.since[rank] = job.network.now

    def __call__(self, source, destination, now):
        return any(now >= self.since.get(rank, now + 1) for rank in (source, destination))


def start(job, size=3000, **kwargs):
    arrays = [np.full(size, 1.0 + rank, np.float32) for rank in range(job.world)]
    return arrays, [c.allreduce_async(a, **kwargs) for c, a in zip(job.communicators, arrays, strict=True)]


@pytest.mark.parametrize("after_us", [0, 60, 150, 300, 700])
@pytest.mark.parametrize("victim", [0, 1, 3])
@KINDS
def test_a_rank_that_dies_is_named_by_every_survivor(algorithm, servers, victim, after_us):
    """At whatever moment it dies, within the peer timeout and a bit more."""
    dead = Dead()
    job = Job(4, algorithm=algorithm, servers=servers, policies=policy(), cut=dead)
    arrays, operations = start(job)
    before = [a.copy() for a in arrays]
    job.network.run(lambda: False, limit_ns=after_us * 1000)
    dead.kill(victim, job)
    survivors = [rank for rank in range(4) if rank != victim]
    waiting = [operations[rank] for rank in survivors]
    errors, seconds = job.errors(waiting)
    if not any(errors):
        # They had all they needed.  The next call shows it.
        waiting = [job.communicators[rank].barrier_async() for rank in survivors]
        errors, seconds = job.errors(waiting)
    failed = [e for e in errors if e is not None]
    assert failed and all(isinstance(e, PeerLostError) and e.rank == victim for e in failed), errors
    assert all(2.0 <= e.seconds < 2.6 for e in failed)
    assert seconds < 2.7
    for array, original in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, original)
    for rank in survivors:
        again = job.communicators[rank].allreduce_async(arrays[rank])
        assert isinstance(again.exception(), PeerLostError) and again.exception().rank == victim
        with pytest.raises(PeerLostError, match=f"rank {victim}.*silent for"):
            again.wait()


@pytest.mark.parametrize("victim", [2, 3])
def test_a_server_that_dies_is_named(victim):
    dead = Dead()
    job = Job(2, algorithm="ps", servers=2, policies=policy(), cut=dead)
    _, operations = start(job)
    dead.kill(victim, job)
    errors, seconds = job.errors(operations)
    assert all(isinstance(e, PeerLostError) and e.rank == victim for e in errors) and seconds < 2.7
    job.network.run(lambda: False, limit_ns=SECOND // 100)
    assert all(job.nodes[rank].error.rank == victim for rank in range(4) if rank != victim)


@KINDS
def test_half_of_the_network_is_gone(algorithm, servers):
    """Each side names a rank of the other one."""
    halves = ({0, 1}, {2, 3})

    def cut(source, destination, now):
        return now > 100_000 and (source in halves[0]) != (destination in halves[0])

    if servers:
        halves[0].add(4)
        halves[1].add(5)
    job = Job(4, algorithm=algorithm, servers=servers, policies=policy(), cut=cut)
    _, operations = start(job)
    errors, seconds = job.errors(operations)
    assert seconds < 2.7
    for rank, error in enumerate(errors):
        assert isinstance(error, PeerLostError)
        assert error.rank in halves[rank in halves[0]], (rank, error)


@KINDS
def test_a_rank_that_raises_ends_all_of_them_with_its_reason(algorithm, servers):
    job = Job(3, algorithm=algorithm, servers=servers, policies=policy(), weather=Weather(drop=0.1), seed=1)
    arrays, operations = start(job)
    job.network.run(lambda: False, limit_ns=100_000)
    job.communicators[1].abort("ValueError: the batch is empty")
    errors, seconds = job.errors(operations)
    for error in errors:
        assert isinstance(error, RemoteError)
        assert (error.rank, error.reason) == (1, "ValueError: the batch is empty")
    assert seconds < 0.5
    assert str(errors[0]) == "rank 1 failed: ValueError: the batch is empty"
    np.testing.assert_array_equal(arrays[0], np.ones(3000, np.float32))


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.integers(0, 2_000), st.sampled_from([0.0, 0.1, 0.3]))
def test_an_abort_reaches_everybody_in_any_weather(seed, world, after_us, drop):
    """Nobody acknowledges it, so it is repeated, and told to whoever still asks."""
    job = Job(world, policies=policy(), weather=Weather(drop=drop, jitter_ns=200_000), seed=seed)
    _, operations = start(job, 20_000)
    job.network.run(lambda: False, limit_ns=after_us * 1000)
    job.communicators[0].abort("enough")
    later = [c.barrier_async() for c in job.communicators]
    errors, seconds = job.errors([*operations, *later])
    assert all(isinstance(e, RemoteError) and e.rank == 0 and e.reason == "enough" for e in errors[world:])
    assert seconds < 2.0


def test_an_abort_reaches_those_who_ask_for_nothing():
    """Nobody would notice that the first copy was lost."""
    job = Job(3, policies=policy(), cut=lambda source, destination, now: now < 10_000_000)
    job.communicators[1].abort("enough")
    job.network.run(lambda: False, limit_ns=SECOND // 5)
    assert all(isinstance(job.nodes[rank].error, RemoteError) for rank in (0, 2))


def test_a_long_reason_is_cut_but_arrives():
    job = Job(2, policies=policy())
    _, operations = start(job)
    job.communicators[0].abort("ä" * 5000)
    errors, _ = job.errors(operations)
    assert errors[0].reason == "ä" * 5000
    assert errors[1].reason == "ä" * 200


@KINDS
def test_a_rank_that_never_calls_ends_the_others_by_the_operation_timeout(algorithm, servers):
    """It is alive, so the peer timeout does not help; the error says what is missing and from whom."""
    job = Job(3, algorithm=algorithm, servers=servers, policies=policy())
    arrays = [np.ones(3000, np.float32) for _ in range(3)]
    operations = [job.communicators[rank].allreduce_async(arrays[rank]) for rank in (0, 2)]
    errors, seconds = job.errors(operations, limit_s=100)
    assert 29.9 < seconds < 30.6
    assert all(isinstance(e, OperationTimeoutError) for e in errors)
    assert all("operation 1" in str(e) and "30 s" in str(e) for e in errors)
    assert all("ranks [1] do not seem to have called it" in str(e) for e in errors), errors
    if algorithm == "sharded":
        assert "contributions of ranks [1], results of ranks [1, 2], acknowledgements" not in str(errors[0])
        assert "still waiting for contributions of ranks [1]" in str(errors[0])
    job.network.run(lambda: False, limit_ns=SECOND // 100)
    late = job.communicators[1].allreduce_async(arrays[1])
    assert isinstance(late.exception(), OperationTimeoutError)
    assert "reports" in str(late.exception())


@KINDS
def test_a_barrier_that_one_rank_does_not_call(algorithm, servers):
    job = Job(3, algorithm=algorithm, servers=servers, policies=policy())
    errors, _ = job.errors([job.communicators[rank].barrier_async() for rank in (0, 2)], limit_s=100)
    assert any("calls of ranks [1]" in str(e) for e in errors)
    assert all(isinstance(e, OperationTimeoutError) for e in errors)


def test_a_slow_rank_is_waited_for():
    """Longer than the peer timeout: it is alive, only its caller is busy."""
    job = Job(3, policies=policy())
    first = [job.communicators[rank].allreduce_async(np.full(3000, 1.0, np.float32), op="sum") for rank in (0, 2)]
    assert not job.run(first, limit_s=20)
    last = job.communicators[1].allreduce_async(np.full(3000, 1.0, np.float32), op="sum")
    assert job.run([*first, last])
    assert all((op.result().output == 3).all() for op in (*first, last))


# -- leaving ---------------------------------------------------------------------------------------------------------------


@KINDS
def test_leaving_with_debts_to_others_is_an_error_there(algorithm, servers):
    """Rank 1 closes although the others still call: they name it, without waiting for silence."""
    job = Job(3, algorithm=algorithm, servers=servers, policies=policy())
    start_ = [c.barrier_async() for c in job.communicators]
    assert job.run(start_)
    job.communicators[1].close()
    job.network.run(lambda: False, limit_ns=SECOND // 100)
    operations = [job.communicators[rank].allreduce_async(np.ones(3000, np.float32)) for rank in (0, 2)]
    errors, seconds = job.errors(operations)
    assert all(isinstance(e, PeerLostError) and e.rank == 1 for e in errors), errors
    assert any("it has closed" in str(e) for e in errors)
    assert seconds < 1.0
    for rank in (0, 2):
        endpoint = job.nodes[rank].endpoint
        assert not any(flow.outgoing or flow.expected for flow in map(endpoint.flow, endpoint.peers)), "nothing of it goes on"
    with pytest.raises(ClosedError, match="the communicator is closed"):
        job.communicators[1].barrier()


def test_leaving_while_the_others_already_wait():
    job = Job(3, policies=policy())
    operations = [job.communicators[rank].allreduce_async(np.ones(3000, np.float32)) for rank in (0, 2)]
    job.network.run(lambda: False, limit_ns=SECOND)
    job.communicators[1].close()
    errors, seconds = job.errors(operations)
    assert all(isinstance(e, PeerLostError) and e.rank == 1 for e in errors)
    assert seconds < 0.5


@pytest.mark.parametrize("drop", [0.0, 0.2])
def test_a_root_may_leave_before_the_others_call(drop):
    """All it had to give is with them already, only not yet asked for."""
    job = Job(3, policies=policy(), weather=Weather(drop=drop), seed=4)
    data = np.arange(5000, dtype=np.float64)
    root = job.communicators[0].broadcast_async(data)
    assert job.run([root])
    job.communicators[0].close()
    job.network.run(lambda: job.nodes[1].left >= {0} and job.nodes[2].left >= {0}, limit_ns=5 * SECOND)
    rest = [c.broadcast_async(np.zeros(5000)) for c in job.communicators[1:]]
    assert job.run(rest)
    assert all((op.result().output == data).all() for op in rest)


@pytest.mark.parametrize("seed", range(10))
def test_everybody_learns_that_everybody_has_left(seed):
    """Also when goodbyes are lost: they are repeated."""
    job = Job(4, algorithm="ps", servers=1, policies=policy(), seed=seed)
    assert job.run([c.barrier_async() for c in job.communicators]) and job.settle()
    job.network.weather = Weather(drop=0.7)
    for node in job.nodes.values():
        node.leave(job.network.now)
    everybody = set(range(5))
    assert job.network.run(lambda: all(node.left == everybody - {rank} for rank, node in job.nodes.items()), limit_ns=2 * SECOND)
    assert all(node.error is None for node in job.nodes.values()), [node.error for node in job.nodes.values()]


# -- nothing half applied --------------------------------------------------------------------------------------------------


def test_a_broadcast_that_fails_leaves_the_array_alone():
    dead = Dead()
    job = Job(2, policies=policy(), cut=dead)
    target = np.zeros(100_000)
    operations = [job.communicators[0].broadcast_async(np.ones(100_000)), job.communicators[1].broadcast_async(target)]
    assert job.network.run(lambda: job.nodes[1].endpoint.counters().get("delivered", 0) > 100)
    dead.kill(0, job)
    errors, _ = job.errors(operations[1:])
    assert isinstance(errors[0], PeerLostError)
    assert not target.any()


@KINDS
def test_after_a_failure_nobody_touches_the_arrays_any_more(algorithm, servers):
    """What is still in the air must not land in memory that the caller has back."""
    job = Job(3, algorithm=algorithm, servers=servers, policies=policy(), weather=Weather(jitter_ns=5_000_000))
    arrays = [np.full(3000, 1.0, np.float32) for _ in range(3)]
    outs = [np.zeros(3000, np.float32) for _ in range(3)]
    operations = [c.allreduce_async(a, out=o) for c, a, o in zip(job.communicators, arrays, outs, strict=True)]
    job.network.run(lambda: False, limit_ns=2_500_000)
    job.communicators[0].abort("stop")
    assert job.run(operations)
    for out in outs:
        out[:] = 7
    job.network.run(lambda: False, limit_ns=2 * SECOND)
    for out in outs:
        assert (out == 7).all()
    for node in job.nodes.values():
        assert node.endpoint.idle
        assert all(not flow.incoming and not flow.outgoing for flow in map(node.endpoint.flow, node.endpoint.peers))


def test_a_failed_job_falls_silent():
    job = Job(4, policies=policy())
    start(job)
    job.communicators[2].abort("stop")
    job.network.run(lambda: False, limit_ns=SECOND)
    sent = job.network.fate["sent"]
    job.network.run(lambda: False, limit_ns=60 * SECOND)
    assert job.network.fate["sent"] == sent


def test_the_first_failure_stays():
    dead = Dead()
    job = Job(3, policies=policy(), cut=dead)
    _, operations = start(job)
    job.communicators[1].abort("first")
    job.communicators[2].abort("second")
    errors, _ = job.errors(operations)
    assert [e.reason for e in errors[1:]] == ["first", "second"]
    job.communicators[1].abort("third")
    again = job.communicators[1].barrier_async()
    assert again.exception() is errors[1]


# -- errors inside -----------------------------------------------------------------------------------------------------------


def test_a_bug_in_the_transport_is_told_to_everybody(monkeypatch):
    """One rank's endpoint raises: that rank gets the error as the cause of a typed one, the others hear of it at once."""
    job = Job(3, policies=policy())
    _, operations = start(job)
    endpoint = job.nodes[1].endpoint

    def broken(frames, now):
        raise KeyError("no such thing")

    monkeypatch.setattr(endpoint, "receive", broken)
    job.network.run(lambda: any(op.done() for op in operations))
    monkeypatch.undo()
    errors, seconds = job.errors(operations)
    assert type(errors[1]) is DLCPError and isinstance(errors[1].__cause__, KeyError)
    assert str(errors[1]) == "the transport failed: KeyError: 'no such thing'"
    assert all(isinstance(errors[rank], RemoteError) and errors[rank].rank == 1 for rank in (0, 2))
    assert errors[0].reason == "KeyError: 'no such thing'"
    assert seconds < 0.5


def test_a_transport_that_stays_broken_ends_the_thread(monkeypatch):
    job = Job(2, policies=policy())
    node = job.nodes[0]
    monkeypatch.setattr(node.endpoint, "handle_timer", lambda now: 1 // 0)
    node.handle_timer(0)
    with pytest.raises(ZeroDivisionError):
        node.handle_timer(0)


def test_a_dead_shell_tells_peers_with_its_last_words():
    """Port errors end the I/O thread: what the engine says then goes straight to the port."""
    said = []
    job = Job(3, policies=policy())
    node = job.nodes[0]
    node._last_words = lambda bursts: said.extend((b.peer, d) for b in bursts for d in b.datagrams())
    _, operations = start(job)
    node.fail(MtuError("datagrams of 9000 bytes do not pass"))
    assert isinstance(operations[0].exception(), MtuError)
    assert {peer for peer, _ in said} == {1, 2}
    job.network.endpoints.pop(0)
    for peer, datagram in said:
        job.network.inject(peer, datagram)
    errors, seconds = job.errors(operations[1:])
    assert all(isinstance(e, RemoteError) and e.rank == 0 and e.reason.startswith("MtuError: datagrams") for e in errors)
    assert seconds < 0.1
    assert isinstance(job.communicators[0].barrier_async().exception(), MtuError)


def test_callbacks_that_raise_do_not_stop_others(caplog):
    job = Job(2, policies=policy())
    _, operations = start(job)
    called = []
    for operation in operations:
        operation.add_done_callback(lambda op: 1 // 0)
        operation.add_done_callback(called.append)
    job.communicators[0].abort("stop")
    assert job.run(operations)
    assert called == operations
    assert sum("a callback of operation 1" in r.message for r in caplog.records) == 2
    late = []
    operations[0].add_done_callback(late.append)
    assert late == operations[:1]


def test_a_callback_may_start_the_next_operation():
    """Also when the communicator has failed, so that the next one ends within the call that starts it."""
    job = Job(2, policies=policy())
    more = []

    def again(communicator):
        def call(operation):
            if len(more) < 6:
                more.append(communicator.allreduce_async(np.ones(10, np.float32)))
                more[-1].add_done_callback(call)

        return call

    _, operations = start(job)
    for communicator, operation in zip(job.communicators, operations, strict=True):
        operation.add_done_callback(again(communicator))
    assert job.run(operations) and job.network.run(lambda: len(more) == 6 and all(op.done() for op in more))
    job.communicators[0].abort("stop")
    more.clear()
    job.communicators[0].allreduce_async(np.ones(10, np.float32)).add_done_callback(again(job.communicators[0]))
    assert len(more) == 6 and all(isinstance(op.exception(), RemoteError) for op in more)


def test_an_error_does_not_gather_the_frames_of_those_who_get_it():
    operation = Operation("x")
    operation.finish(None, MismatchError("y"))

    def depth():
        try:
            operation.wait()
        except MismatchError as error:
            trace, count = error.__traceback__, 0
            while trace is not None:
                trace, count = trace.tb_next, count + 1
            return count

    assert len({depth() for _ in range(5)}) == 1


def test_waiting_with_a_timeout_does_not_end_the_operation():
    operation = Operation("operation 7 (barrier)")
    with pytest.raises(OperationTimeoutError, match=r"operation 7 \(barrier\) has not finished within 0\.01 s"):
        operation.wait(0.01)
    with pytest.raises(RuntimeError, match="has not ended"):
        operation.result()
    assert not operation.done() and operation.exception() is None


# -- callers that would wait for themselves --------------------------------------------------------------------------------


def test_a_callback_that_waits_is_told_so():
    """In the I/O thread, waiting for an operation would stop the only one who can end it."""
    job = Job(2, policies=policy())
    _, operations = start(job)
    later = job.communicators[0].allreduce_async(np.ones(4000, np.float32))
    told = []

    def wait(operation):
        with pytest.raises(RuntimeError, match="a callback waits for operation 2"):
            later.wait()
        told.append(operation.wait().output[0])

    operations[0].add_done_callback(wait)
    assert job.run(operations)
    assert told == [1.5]


@pytest.mark.parametrize(("algorithm", "servers"), [("sharded", 0), ("ps", 1)])
@pytest.mark.parametrize("later", [0, 3, 600])
def test_a_copy_that_was_under_way_for_very_long_is_no_new_message(algorithm, servers, later):
    """So long that the transport has forgotten that the message is complete."""
    job = Job(2, algorithm=algorithm, servers=servers, policies=policy())
    copies = []
    send = job.network._send

    def spy(source, destination, ecn, datagram):
        copies.append((destination, datagram))
        send(source, destination, ecn, datagram)

    job.network._send = spy
    job.allreduce([np.ones(20, np.float32)] * 2)
    job.network._send = send
    for _ in range(later):
        job.allreduce([np.ones(20, np.float32)] * 2)
    assert job.settle()
    for node in job.nodes.values():
        for peer in node.endpoint.peers:
            node.endpoint.flow(peer).finished.clear()
    for destination, datagram in copies:
        job.network.inject(destination, datagram)
    job.network.run(lambda: False, limit_ns=20 * SECOND)
    assert all(node.error is None for node in job.nodes.values())
    assert (job.allreduce([np.ones(20, np.float32)] * 2)[0].output == 1).all()
