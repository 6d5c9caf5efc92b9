"""Anything at any time, in virtual time: every call ends, with the right result or with an error that names the right rank."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlcp.errors import DLCPError, MismatchError, OperationTimeoutError, PeerLostError, RemoteError
from dlcp.policy import Policy
from dlcp.transport.virtual import Weather
from tests.collectives.virtual_job import SECOND, STRIDE, Job

WEATHERS = (Weather(), Weather(drop=0.05, jitter_ns=500_000), Weather(drop=0.2, duplicate=0.1, corrupt=0.02, jitter_ns=2_000_000))
CALLS = st.sampled_from(["reduce", "large", "broadcast", "barrier"])
TROUBLE = st.sampled_from(["none", "kill", "abort", "mismatch", "absent", "leave", "freeze"])


def call(communicator, kind, number, wrong):
    rank = communicator.rank
    if wrong:
        kind = {"reduce": "barrier", "large": "reduce", "broadcast": "large", "barrier": "broadcast"}[kind]
    if kind == "barrier":
        return communicator.barrier_async()
    if kind == "broadcast":
        return communicator.broadcast_async(np.full(700, rank + number, np.float64), root=number % communicator.world)
    size = 5000 if kind == "large" else 100
    return communicator.allreduce_async(np.full(size, 2.0**rank, np.float32), op="sum")


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    st.sampled_from([("sharded", 0), ("ring", 0), ("ps", 1), ("ps", 2)]),
    st.integers(2, 5),
    st.lists(CALLS, min_size=1, max_size=7),
    TROUBLE,
    st.integers(0, 4),
    st.integers(0, 20_000),
    st.sampled_from(WEATHERS),
    st.integers(0, 2**32 - 1),
)
def test_every_call_ends(kind, world, calls, trouble, victim, at_us, weather, seed):
    rules = Policy.from_dict(
        {
            "loss": {"push": 0.2},
            "wire": {"message_bytes": 16 * STRIDE},
            "timeouts": {"peer_s": 5.0, "operation_s": 30.0, "probe_max_ms": 100.0},
            "memory": {"early_bytes": 65536},
        }
    )
    victim %= world
    rng = np.random.default_rng(seed)
    dead = {}

    def cut(source, destination, now):
        return any(begin <= now < end for begin, end in (dead.get(source, (0, 0)), dead.get(destination, (0, 0))))

    algorithm, servers = kind
    job = Job(world, algorithm=algorithm, servers=servers, policies=rules, weather=weather, seed=seed, cut=cut)
    moment = at_us * 1000
    starts = sorted((int(rng.integers(0, 10_000_000)) * (rank != victim), rank) for rank in range(world))
    operations = {rank: [] for rank in range(world)}
    gone = set()

    def strike():
        communicator = job.communicators[victim]
        if trouble == "kill":
            dead[victim] = (moment, 1 << 62)
            gone.add(victim)
        elif trouble == "freeze":
            # Shorter than the peer timeout: nobody may notice.
            dead[victim] = (moment, moment + 3 * SECOND)
        elif trouble == "abort":
            communicator.abort("on purpose")
        elif trouble == "leave" and job.nodes[victim].idle:
            communicator.close()
            gone.add(victim)

    struck = False
    for when, rank in starts:
        if not struck and when >= moment:
            job.network.run(lambda: False, limit_ns=max(moment - job.network.now, 0))
            strike()
            struck = True
        job.network.run(lambda: False, limit_ns=max(when - job.network.now, 0))
        if rank in gone:
            continue
        for number, what in enumerate(calls):
            last = number == len(calls) - 1
            if rank == victim and last and trouble == "absent":
                break
            operations[rank].append(
                call(job.communicators[rank], what, number, rank == victim and last and trouble == "mismatch")
            )
    if not struck:
        job.network.run(lambda: False, limit_ns=max(moment - job.network.now, 0))
        strike()
    waited = [op for rank, mine in operations.items() if rank not in gone or trouble == "leave" for op in mine]
    begin = job.network.now
    assert job.run(waited, limit_s=40), "a call hangs"
    seconds = (job.network.now - begin) / SECOND
    job.network.run(lambda: False, limit_ns=SECOND)

    survivors = [rank for rank in range(world) if rank not in gone]
    errors = [job.nodes[rank].error for rank in survivors]
    if trouble in ("none", "freeze"):
        assert not any(errors), errors
    for error in filter(None, errors):
        assert isinstance(error, DLCPError)
        if trouble == "kill":
            assert isinstance(error, PeerLostError) and error.rank == victim
            assert seconds < 5 * 1.3
        elif trouble == "abort":
            assert isinstance(error, RemoteError) and (error.rank, error.reason) == (victim, "on purpose")
        elif trouble == "mismatch":
            assert isinstance(error, MismatchError)
            assert seconds < 6
        elif trouble == "leave":
            assert isinstance(error, PeerLostError) and error.rank == victim
        elif trouble == "absent":
            assert isinstance(error, OperationTimeoutError)
    for number, what in enumerate(calls):
        for rank, mine in operations.items():
            if number >= len(mine) or not mine[number].done() or mine[number].exception() is not None:
                continue
            if rank == victim and trouble == "mismatch" and number == len(calls) - 1:
                continue
            output = mine[number].result().output
            if what == "broadcast":
                assert (output == number % world + number).all()
            elif what in ("reduce", "large"):
                # What was lost may be missing, but nothing else.
                assert ((output >= 0) & (output <= 2**world - 1) & (output == np.floor(output))).all()
                assert (output == 2**world - 1).mean() >= 1 - world * 0.2 - 0.05 or output.size < 1000
