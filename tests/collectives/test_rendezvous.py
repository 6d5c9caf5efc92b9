"""How ranks meet: they agree, or every one of them learns at once why not, whatever earlier jobs have left in the store."""

import json
import os
import signal
import socket
import time
from dataclasses import asdict, replace

import numpy as np
import pytest

import dlcp
from dlcp.collectives.rendezvous import Entry, Rendezvous, compare
from dlcp.errors import (
    AddressError,
    ConfigError,
    MismatchError,
    MtuError,
    PeerLostError,
    RemoteError,
    RendezvousError,
    UnreachableError,
)
from dlcp.policy import Policy
from dlcp.store import MemoryStore
from tests.collectives.processes import Died, Ranks, Resources, note, policy, run_ranks

GONE = 4_194_305
"""A process number that no Linux kernel gives out."""


class Clock:
    def __init__(self):
        self.now = 0.0
        self.at = []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        for when, action in list(self.at):
            if when <= self.now:
                self.at.remove((when, action))
                action()


class Store(MemoryStore):
    """Waits in the clock's time."""

    def __init__(self, clock):
        super().__init__(timeout_s=0.0)
        self.clock = clock

    def wait(self, keys, timeout):
        end = self.clock.now + timeout.total_seconds()
        while True:
            try:
                return super().wait(keys, type(timeout)(0))
            except RendezvousError:
                if self.clock.now >= end:
                    raise
                self.clock.sleep(0.01)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(clock):
    return Store(clock)


def make(store, rank, world=2, nonce=None):
    draw = {} if nonce is None else {"draw_nonce": lambda: nonce}
    return Rendezvous(store, rank, world, prefix="p", timeout_s=10.0, clock=store.clock, sleep=store.clock.sleep, **draw)


def entry(rank, meeting=None, **changes):
    base = Entry(
        rank=rank,
        world=2,
        servers=0,
        protocol=1,
        algorithm="sharded",
        policy=Policy().to_dict(),
        host="127.0.0.1",
        port=4000 + rank,
        mtu=9000,
        stride=8000 + 8 * rank,
        nonce=meeting.nonce if meeting else 7 + rank,
        node=meeting.node if meeting else "elsewhere",
        pid=meeting.pid if meeting else 1,
    )
    return replace(base, **changes)


def publish(store, document, rank=None):
    store.set(f"p/rank/{document['rank'] if rank is None else rank}", json.dumps(document))


class TestMeet:
    def test_all_get_the_same_job(self, store):
        entries = [entry(rank, nonce=100 + rank, world=3) for rank in range(3)]
        for one in entries:
            publish(store, asdict(one))
        jobs = [make(store, rank, 3, nonce=100 + rank).meet(entries[rank]) for rank in range(3)]
        assert jobs[0] == jobs[1] == jobs[2]
        assert jobs[0].stride == 8000 and jobs[0].entries == tuple(entries)
        assert 0 <= jobs[0].cookie < 2**64

    def test_every_nonce_makes_another_cookie(self, store):
        cookies = set()
        for a in range(4):
            for b in range(4):
                publish(store, asdict(entry(1, nonce=b)))
                cookies.add(make(store, 0, nonce=a).meet(entry(0, nonce=a)).cookie)
        assert len(cookies) == 16

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"world": 3}, "world differs: rank 0 says 2, rank 1 says 3"),
            ({"servers": 1}, "servers differs: rank 0 says 0, rank 1 says 1"),
            ({"protocol": 2}, "protocol differs: rank 0 says 1, rank 1 says 2"),
            ({"algorithm": "ring"}, "algorithm differs: rank 0 says sharded, rank 1 says ring"),
            (
                {"policy": Policy.from_dict({"loss": {"push": 0.25}, "wire": {"dtype": "float16"}}).to_dict()},
                "policies of ranks 0 and 1 differ: loss.push is 0.05 / 0.25, wire.dtype is float32 / float16",
            ),
        ],
    )
    def test_mismatch(self, store, clock, change, text):
        publish(store, asdict(entry(1, **change)))
        with pytest.raises(MismatchError, match=text.replace("/", r"\/")):
            make(store, 0).meet(entry(0))
        assert clock.now < 0.1

    def test_a_packet_size_that_an_interface_does_not_take(self, store):
        rules = Policy.from_dict({"wire": {"mtu": 9000}}).to_dict()
        publish(store, asdict(entry(1, policy=rules, mtu=1500)))
        with pytest.raises(MtuError, match=r"wire\.mtu is 9000, but the interface of rank 1 \(127\.0\.0\.1\) takes 1500 bytes"):
            make(store, 0).meet(entry(0, policy=rules))
        with pytest.raises(MtuError, match="rank 1"):
            compare(entry(1, policy=rules, mtu=1500), entry(0, policy=rules))

    @pytest.mark.parametrize(
        "raw",
        [
            b"",
            b"\xff\xfe",
            b"[]",
            b"7",
            b"{}",
            json.dumps(asdict(entry(0))).encode(),
            json.dumps(asdict(entry(1)) | {"port": "x"}).encode(),
            json.dumps(asdict(entry(1)) | {"port": True}).encode(),
            json.dumps(asdict(entry(1)) | {"policy": {"loss": {"push": 7}}}).encode(),
            json.dumps(asdict(entry(1)) | {"policy": []}).encode(),
            json.dumps(asdict(entry(1)) | {"more": 1}).encode(),
            json.dumps({k: v for k, v in asdict(entry(1)).items() if k != "host"}).encode(),
            json.dumps({"rank": 1, "failed": True}).encode(),
        ],
    )
    def test_unreadable(self, store, raw):
        store.set("p/rank/1", raw)
        with pytest.raises(RendezvousError, match=r"rank 1 published something unreadable \(another version of dlcp\?\)"):
            make(store, 0).meet(entry(0))

    def test_nobody_there(self, store, clock):
        with pytest.raises(RendezvousError, match="rank 1 has not appeared within 10 s"):
            make(store, 0).meet(entry(0))
        assert 10 <= clock.now < 10.1

    def test_the_timeout_is_for_all_together(self, store, clock):
        clock.at.append((6.0, lambda: publish(store, asdict(entry(1, world=3)))))
        with pytest.raises(RendezvousError, match="rank 2 has not appeared"):
            make(store, 0, 3).meet(entry(0, world=3))
        assert 10 <= clock.now < 10.1

    def test_a_store_that_does_not_take_it(self, store, monkeypatch):
        monkeypatch.setattr(store, "set", lambda key, value: (_ for _ in ()).throw(RuntimeError("connection reset")))
        with pytest.raises(RendezvousError, match="cannot write to Store: connection reset"):
            make(store, 0).meet(entry(0))


class TestLeftovers:
    """What earlier jobs leave in the same store."""

    def test_a_spent_entry_is_waited_over(self, store, clock):
        before = make(store, 1)
        publish(store, asdict(entry(0)))
        before.meet(entry(1))
        before.done()
        clock.at.append((3.0, lambda: publish(store, asdict(entry(1, nonce=99)))))
        job = make(store, 0).meet(entry(0))
        assert job.entries[1].nonce == 99 and clock.now >= 3.0

    def test_a_stale_entry_is_taken_and_found_out(self, store):
        publish(store, asdict(entry(1, nonce=1)))
        meeting = make(store, 0)
        job = meeting.meet(entry(0))
        assert not meeting.changed(job)
        publish(store, asdict(entry(1, nonce=2)))
        assert meeting.changed(job)
        again = meeting.meet(entry(0))
        assert again.cookie != job.cookie and not meeting.changed(again)

    def test_a_peer_that_is_done_is_no_change(self, store):
        publish(store, asdict(entry(1)))
        meeting = make(store, 0)
        job = meeting.meet(entry(0))
        publish(store, {"rank": 1, "spent": True})
        assert not meeting.changed(job)

    @pytest.mark.parametrize("what", ["mismatch", "failure"])
    def test_what_a_dead_process_left_does_not_count_at_once(self, store, clock, what):
        meeting = make(store, 0)
        if what == "mismatch":
            old = asdict(entry(1, algorithm="ring", node=meeting.node, pid=GONE))
        else:
            old = {"rank": 1, "failed": True, "error": "ValueError", "reason": "old", "node": meeting.node, "pid": GONE}
        publish(store, old)
        clock.at.append((3.0, lambda: publish(store, asdict(entry(1)))))
        assert meeting.meet(entry(0)).entries[1] == entry(1)

    def test_but_it_does_when_nobody_else_comes(self, store, clock):
        meeting = make(store, 0)
        publish(store, asdict(entry(1, algorithm="ring", node=meeting.node, pid=GONE)))
        with pytest.raises(MismatchError, match="algorithm differs"):
            meeting.meet(entry(0))
        assert clock.now >= 10


class TestTwice:
    """Two processes that both believe to be rank 1."""

    def test_the_first_is_told_and_leaves_the_second_alone(self, store):
        first, second = make(store, 1), make(store, 1)
        publish(store, asdict(entry(0)))
        job = first.meet(entry(1, first))
        second.meet(entry(1, second))
        with pytest.raises(MismatchError, match="another process has joined as rank 1"):
            first.changed(job)
        first.refuse(MismatchError("another process"))
        assert json.loads(store.get("p/rank/1"))["nonce"] == second.nonce


class TestFailure:
    @pytest.mark.parametrize(
        ("error", "expected", "text"),
        [
            (MismatchError("x differs"), MismatchError, "rank 1 reports: x differs"),
            (MtuError("too small"), MtuError, "rank 1 reports: too small"),
            (RendezvousError("rank 2 has not appeared"), RendezvousError, "rank 1 reports: rank 2"),
            (AddressError("port 5 is taken"), RemoteError, "rank 1 failed: AddressError: port 5 is taken"),
            (KeyboardInterrupt(), RemoteError, "rank 1 failed: KeyboardInterrupt"),
        ],
    )
    def test_others_hear_of_it_at_once(self, store, clock, error, expected, text):
        failing = make(store, 1)
        publish(store, {"rank": 0, "spent": True})
        failing.refuse(error)
        begin = clock.now
        with pytest.raises(expected, match=text):
            make(store, 0).meet(entry(0))
        assert clock.now - begin < 0.1

    def test_also_those_who_have_met_already(self, store):
        failing, other = make(store, 1), make(store, 0)
        publish(store, asdict(entry(1)))
        job = other.meet(entry(0))
        publish(store, {"rank": 0, "spent": True})
        failing.refuse(MtuError("too small"))
        with pytest.raises(MtuError, match="rank 1 reports"):
            other.changed(job)

    def test_the_failing_rank_stays_until_the_others_know(self, store, clock):
        """The store may live in its process."""
        failing = make(store, 0)
        publish(store, asdict(entry(1)))
        failure = {"rank": 1, "failed": True, "error": "MismatchError", "reason": "", "node": "n", "pid": 1}
        clock.at.append((0.5, lambda: publish(store, failure)))
        failing.refuse(MismatchError("x"))
        assert 0.5 <= clock.now < 0.6

    def test_but_not_for_long(self, store, clock):
        make(store, 0, 50).refuse(MismatchError("x"))
        assert 2.0 <= clock.now < 2.2

    def test_a_broken_store_does_not_hide_the_error(self, store, monkeypatch):
        monkeypatch.setattr(store, "set", lambda key, value: (_ for _ in ()).throw(OSError("gone")))
        make(store, 0).refuse(MismatchError("x"))


# -- between processes -------------------------------------------------------------------------------------------------------


def _meet(rank, folder, changes):
    """Joins a job of three, each with what ``changes`` says for this rank."""
    mine = changes.get(rank, {})
    arguments = {"rank": rank, "world": 3, "store": dlcp.FileStore(folder), "policy": policy(**mine.pop("policy", {})), **mine}
    before = Resources()
    begin = time.monotonic()
    try:
        with dlcp.Communicator(**arguments) as communicator:
            communicator.barrier()
            return "met"
    except dlcp.DLCPError as error:
        assert time.monotonic() - begin < 12.0, error
        assert before.leaked() == []
        return error


@pytest.mark.parametrize("odd", [0, 2])
@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"world": 4}, "world differs"),
        ({"algorithm": "ring"}, "algorithm differs"),
        ({"algorithm": "ps", "servers": 1}, "world differs|servers differs|algorithm differs"),
        ({"policy": {"loss": {"push": 0.2}}}, "loss.push is 0.05 / 0.2|loss.push is 0.2 / 0.05"),
        ({"policy": {"timeouts": {"peer_s": 3.0}}}, "timeouts.peer_s is 1.0 / 3.0|timeouts.peer_s is 3.0 / 1.0"),
    ],
)
def test_every_rank_notices_a_mismatch(change, key, odd):
    """At once, though the connect timeout is long."""
    results = run_ranks(_meet, 3, {odd: change})
    for error in results:
        assert isinstance(error, MismatchError), error
        assert any(part in str(error) for part in key.split("|")), error


def _versions(rank, folder):
    import dlcp.collectives.link as link

    if rank == 1:
        link.VERSION = 2
    return _meet(rank, folder, {})


def test_every_rank_notices_another_wire_version():
    assert all(isinstance(e, MismatchError) and "protocol differs" in str(e) for e in run_ranks(_versions, 3))


def test_a_port_in_use():
    """The rank that wants it raises AddressError; the others need not wait for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        results = run_ranks(_meet, 3, {1: {"port": port}})
    assert isinstance(results[1], AddressError) and f"127.0.0.1:{port}" in str(results[1])
    for rank in (0, 2):
        assert isinstance(results[rank], RemoteError) and results[rank].rank in (0, 1, 2)
        assert "AddressError" in str(results[rank]) and str(port) in str(results[rank])


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"host": "192.0.2.1"}, AddressError, "cannot use the local address 192.0.2.1"),
        ({"host": "no-such-host.invalid"}, AddressError, "cannot use the local address no-such-host.invalid"),
        ({"host": "0.0.0.0"}, ConfigError, "host: 0.0.0.0 is not an address to send to"),
        ({"faults": "drop=2"}, ConfigError, "drop"),
    ],
)
def test_wrong_arguments(change, kind, text):
    results = run_ranks(_meet, 3, {0: change})
    assert isinstance(results[0], kind) and text in str(results[0])
    for error in results[1:]:
        assert isinstance(error, RemoteError) and kind.__name__ in str(error) and text in str(error)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"world": 0}, "world: 0 ranks"),
        ({"world": 70_000}, "world: 70000 ranks"),
        ({"rank": -1}, "rank: -1"),
        ({"rank": 2}, "rank: 2 is not a rank of 2; accepted: 0 to 1"),
        ({"algorithm": "tree"}, "algorithm: 'tree' is unknown; accepted: sharded, ring, ps"),
        ({"algorithm": "ps"}, "servers: 0 with algorithm 'ps'; accepted: 1 or more"),
        ({"servers": 2}, "servers: 2 with algorithm 'sharded'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_happens(change, text):
    before = Resources()
    with pytest.raises(ConfigError, match=text.replace("(", r"\(")):
        dlcp.Communicator(**({"rank": 0, "world": 2, "store": MemoryStore()} | change))
    assert before.leaked() == []


def test_nobody_else():
    before = Resources()
    with pytest.raises(RendezvousError, match=r"rank 1 has not appeared within 0\.3 s"):
        dlcp.Communicator(0, 2, MemoryStore(), policy=policy(timeouts={"connect_s": 0.3}))
    assert before.leaked() == []


def _silent(rank, folder):
    """Rank 1 dies between publishing and answering."""
    store = dlcp.FileStore(folder)
    rules = policy(timeouts={"connect_s": 1.5})
    if rank == 1:
        meeting = Rendezvous(store, 1, 3, prefix="dlcp/default", timeout_s=5.0)
        changes = {"world": 3, "policy": rules.to_dict(), "node": "elsewhere", "nonce": meeting.nonce, "port": 9}
        meeting.meet(entry(1, **changes))
        os.kill(os.getpid(), signal.SIGKILL)
    before = Resources()
    begin = time.monotonic()
    try:
        dlcp.Communicator(rank, 3, store, policy=rules)
    except dlcp.DLCPError as error:
        return error, time.monotonic() - begin, before.leaked()


def test_a_peer_that_does_not_answer():
    results = run_ranks(_silent, 3)
    assert isinstance(results[1], Died)
    for error, seconds, leaked in (results[0], results[2]):
        # Whoever is first tells the other.
        assert isinstance(error, UnreachableError | RemoteError), error
        assert "rank 1 at 127.0.0.1:9 did not answer for 1.5 s" in str(error)
        assert seconds < 12.0 and leaked == []
    assert any(isinstance(result[0], UnreachableError) and result[0].rank == 1 for result in (results[0], results[2]))


def _again(rank, folder, times, hold):
    found = []
    for number in range(times):
        with dlcp.Communicator(rank, 2, dlcp.FileStore(folder), policy=policy()) as communicator:
            found.append(communicator.allreduce(np.full(3, number, np.float32), op="sum").tolist())
            if hold:
                note("met")
                time.sleep(60)
    return found


def test_one_communicator_after_another_under_one_name():
    assert run_ranks(_again, 2, 8, False) == [[[2.0 * k] * 3 for k in range(8)]] * 2


def test_a_store_that_a_killed_job_has_used():
    """Its entries are spent, or stale; the next job in the same directory meets all the same."""
    with Ranks(_again, 2, 1, True) as ranks:
        ranks.notes(2)
        store = dlcp.FileStore(ranks.folder)
        for process in ranks.processes:
            process.kill()
            process.join()
        assert json.loads(store.get("dlcp/default/rank/0")) == {"rank": 0, "spent": True}
        for stale in ("spent", "stale", "mismatched", "failed"):
            if stale != "spent":
                for rank in range(2):
                    left = asdict(entry(rank, node=os.uname().nodename, pid=GONE, policy=policy().to_dict()))
                    if stale == "mismatched":
                        left["algorithm"] = "ring"
                    if stale == "failed":
                        left = {"rank": rank, "failed": True, "error": "X", "reason": "", "node": left["node"], "pid": GONE}
                    store.set(f"dlcp/default/rank/{rank}", json.dumps(left))
            results = run_ranks(_in_folder, 2, ranks.folder)
            assert results == [[4.0] * 3] * 2


def _in_folder(rank, own_folder, folder):
    # One of them comes late, so that the other has time to be misled.
    time.sleep(0.4 * rank)
    with dlcp.Communicator(rank, 2, dlcp.FileStore(folder), policy=policy()) as communicator:
        return communicator.allreduce(np.full(3, 2, np.float32), op="sum").tolist()


def _bad_weather(rank, folder):
    with dlcp.Communicator(rank, 3, dlcp.FileStore(folder), policy=policy(), faults="drop=0.4") as communicator:
        communicator.barrier()
        return "met"


def test_meeting_in_bad_weather():
    assert run_ranks(_bad_weather, 3) == ["met"] * 3


def _torch_store(rank, folder, port):
    """Rank 0 runs the store, and leaves as soon as it has found the mismatch."""
    from datetime import timedelta

    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", port, 2, rank == 0, timeout=timedelta(seconds=20), wait_for_workers=False)
    if rank == 1:
        time.sleep(0.3)
    try:
        dlcp.Communicator(rank, 2, store, policy=policy(loss={"push": 0.1 * rank}))
    except dlcp.DLCPError as error:
        return error
    finally:
        del store


def test_a_store_that_lives_in_a_rank_that_fails():
    pytest.importorskip("torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = run_ranks(_torch_store, 2, port)
    assert all(isinstance(e, MismatchError) and "loss.push" in str(e) for e in results), results


def _dies_while_greeting(rank, folder):
    """The others have met, then one of them gives up: no need to wait for the connect timeout."""
    if rank == 1:
        time.sleep(0.2)
        import dlcp.collectives.link as link

        real = link.Link._greet

        def greet(self, meeting, job):
            real(self, meeting, job)
            raise MtuError("as if")

        link.Link._greet = greet
    begin = time.monotonic()
    try:
        communicator = dlcp.Communicator(rank, 2, dlcp.FileStore(folder), policy=policy())
        communicator.barrier()
    except dlcp.DLCPError as error:
        return error, time.monotonic() - begin
    finally:
        if rank == 0 and "communicator" in locals():
            communicator.close()


def test_a_rank_that_gives_up_late():
    results = run_ranks(_dies_while_greeting, 2)
    assert isinstance(results[1][0], MtuError)
    assert isinstance(results[0][0], MtuError | RemoteError | PeerLostError) and "as if" in str(results[0][0])
    assert results[0][1] < 12.0
