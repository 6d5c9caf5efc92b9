"""Parameter servers: what they keep, how their answers are tagged, how they end."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlcp
from dlcp.cli.main import main
from dlcp.cli.serve import open_store
from dlcp.collectives.server import fill_classes
from dlcp.errors import ClosedError, ConfigError, MismatchError, RemoteError, RendezvousError
from dlcp.policy import Policy
from dlcp.transport.virtual import Weather
from dlcp.wire.header import HEADER, HEADER_BYTES, PacketType, Phase
from tests.collectives.processes import Ranks, note, policy, run_ranks
from tests.collectives.virtual_job import STRIDE, Job

ROOT = Path(__file__).resolve().parents[2]


# -- tags --------------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 15), min_size=1, max_size=40))
def test_unknown_classes_become_a_neighbours(tags):
    filled = fill_classes(np.array(tags, np.uint8))
    assert filled.shape == (len(tags),) and filled.dtype == np.uint8 and (filled < 14).all()
    known = [k for k, tag in enumerate(tags) if tag < 14]
    for k, tag in enumerate(filled.tolist()):
        if not known:
            assert tag == 6
        else:
            before = [j for j in known if j <= k]
            assert tag == tags[before[-1] if before else known[0]]


class _Recorder(Job):
    """Keeps the headers of results on their way back."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.pulls = []
        send = self.network._send

        def spy(source, destination, ecn, datagram):
            header = HEADER.decode_one(datagram[:HEADER_BYTES])
            if header["type"] == PacketType.DATA and header["phase"] == Phase.PULL and not header["retransmission"]:
                self.pulls.append((header["part"], header["offset"] // STRIDE, header["priority"], header["protected"]))
            send(source, destination, ecn, datagram)

        self.network._send = spy


@pytest.mark.parametrize("pull", [0.0, 0.1])
def test_results_have_the_classes_of_the_contributions(pull):
    """Layers keep their priority on both ways."""
    loss = {"push": 0.0, "pull": pull, "resync_steps": 5 if pull else 0}
    rules = Policy.from_dict({"loss": loss, "wire": {"message_bytes": 8 * STRIDE}})
    job = _Recorder(2, algorithm="ps", servers=1, policies=rules)
    packets = 20
    tags = np.array([2 * (k // 3) + k % 2 for k in range(packets)], np.uint8)
    job.allreduce([np.ones(packets * STRIDE // 4, np.float32)] * 2, tags=tags)
    seen = {(part * 8 + packet): (priority, protected) for part, packet, priority, protected in job.pulls}
    assert {k: priority for k, (priority, _) in seen.items()} == {k: int(tag) >> 1 for k, tag in enumerate(tags)}
    assert all(protected == (1 if not pull else int(tags[k]) & 1) for k, (_, protected) in seen.items())


def test_a_packet_that_was_sent_again_by_all_takes_a_neighbours_class():
    rules = Policy.from_dict({"loss": {"push": 0.0}, "wire": {"message_bytes": 64 * STRIDE}})
    job = _Recorder(2, algorithm="ps", servers=1, policies=rules, weather=Weather(drop=0.5), seed=3)
    tags = np.repeat(np.array([10, 4], np.uint8), 16)
    job.allreduce([np.ones(32 * STRIDE // 4, np.float32)] * 2, tags=tags)
    classes = {packet: priority for _, packet, priority, _ in job.pulls}
    assert set(classes.values()) <= {2, 5}
    wrong = [packet for packet, priority in classes.items() if priority != tags[packet] >> 1]
    assert len(wrong) <= 2, "only at the border between two classes may a neighbour be of the other one"


# -- memory ------------------------------------------------------------------------------------------------------------------


def test_nothing_is_kept_of_what_is_over():
    """Contributions nobody announced count against the memory for early messages until the server takes them."""
    rules = Policy.from_dict(
        {"loss": {"push": 0.05}, "memory": {"early_bytes": 64 * 1024}, "wire": {"message_bytes": 8 * STRIDE}}
    )
    job = Job(3, algorithm="ps", servers=1, policies=rules, weather=Weather(drop=0.05, jitter_ns=300_000), seed=1)
    for _ in range(12):
        job.allreduce([np.ones(3000, np.float32)] * 3)
    assert job.settle()
    server = job.nodes[3]
    assert server.endpoint._receiver.admission.early_bytes == 0
    assert not server._running and not server._deadlines and not len(server._claims) and not server._early
    assert server.endpoint.counters()["completed"] >= 12 * 3


# -- ends --------------------------------------------------------------------------------------------------------------------


def _serve_until(rank, folder, how):
    store = dlcp.FileStore(folder)
    if rank == 2:
        stop = threading.Event()
        if how == "stop":
            threading.Timer(0.3, stop.set).start()
        return sorted(dlcp.serve(0, 1, 2, store, policy=policy(), stop=stop, on_ready=note))
    with dlcp.Communicator(rank, 2, store, policy=policy(), algorithm="ps", servers=1) as communicator:
        for _ in range(3):
            communicator.allreduce(np.ones(1000, np.float32))
        if how == "fail" and rank == 0:
            raise dlcp.DLCPError("on purpose")
        if how != "leave":
            communicator._link.wait_until(lambda: communicator._link.engine.error is not None, 10)
            communicator.barrier()
        return "left"


@pytest.mark.parametrize("how", ["leave", "stop", "fail"])
def test_serving_ends(how):
    with Ranks(_serve_until, 3, how) as ranks:
        host, port = ranks.notes(1)[0]
        results = ranks.results(20)
    assert host == "127.0.0.1" and port > 0
    if how == "leave":
        assert results == ["left", "left", ["peers", "senders", "transport", "udp"]]
    elif how == "stop":
        assert isinstance(results[2], ClosedError) and "parameter server 0 was stopped" in str(results[2])
        for error in results[:2]:
            assert isinstance(error, RemoteError) and (error.rank, error.reason) == (2, "parameter server 0 was stopped")
    else:
        assert all(isinstance(error, RemoteError) and error.rank == 0 for error in results[1:])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, 0, 2), "servers: 0 servers; accepted: 1 or more"),
        ((2, 2, 2), "server_index: 2 is not one of 2 servers; accepted: 0 to 1"),
        ((-1, 2, 2), "server_index: -1"),
        ((0, 1, 0), "world: 0 workers"),
        ((0, 1, 65535), "world: 65535 workers; accepted: 1 to 65534"),
    ],
)
def test_wrong_arguments(arguments, text):
    with pytest.raises(ConfigError, match=text):
        dlcp.serve(*arguments, dlcp.MemoryStore())


def _other_policy(rank, folder):
    if rank == 2:
        return dlcp.serve(0, 1, 2, dlcp.FileStore(folder), policy=policy(loss={"push": 0.5}))
    return dlcp.Communicator(rank, 2, dlcp.FileStore(folder), policy=policy(), algorithm="ps", servers=1)


def test_a_server_with_another_policy():
    assert all(isinstance(e, MismatchError) and "loss.push" in str(e) for e in run_ranks(_other_policy, 3))


# -- command line --------------------------------------------------------------------------------------------------------------


def _worker(rank, folder, directory, hold):
    rules = Policy.from_toml(Path(directory) / "job.toml")
    store = dlcp.FileStore(directory)
    with dlcp.Communicator(rank, 2, store, policy=rules, algorithm="ps", servers=1) as communicator:
        total = communicator.allreduce(np.full(50_000, rank + 1, np.float32), op="sum").sum()
        if hold:
            note("met")
            communicator._link.wait_until(lambda: communicator._link.engine.error is not None, 20)
            communicator.barrier()
        return float(total)


def _command(directory, *more):
    return [
        *(sys.executable, "-m", "dlcp", "serve", "--rank-of-server", "0", "--servers", "1", "--world", "2", "--port", "0"),
        *("--store", f"file:{directory}", "--policy", str(directory / "job.toml"), *more),
    ]


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "job.toml").write_text(policy().to_toml())
    return tmp_path


def test_command(directory):
    server = subprocess.Popen(_command(directory, "--json"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with server:
        assert run_ranks(_worker, 2, str(directory), False) == [150_000.0] * 2
        out, err = server.communicate(timeout=20)
    assert server.returncode == 0, err
    assert json.loads(out)["transport"]["completed"] >= 2
    assert "serving 2 workers at 127.0.0.1:" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_command_is_stopped(directory, number):
    server = subprocess.Popen(_command(directory), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with server, Ranks(_worker, 2, str(directory), True) as ranks:
        ranks.notes(2)
        server.send_signal(number)
        out, _ = server.communicate(timeout=20)
        results = ranks.results(20)
    assert server.returncode == 130 and out == ""
    assert all(isinstance(error, RemoteError) and error.rank == 2 for error in results), results


def test_command_without_workers(directory, capsys):
    (directory / "job.toml").write_text(policy(timeouts={"connect_s": 0.2}).to_toml())
    assert main(_command(directory)[3:]) == 4
    assert "rank 0 has not appeared within 0.2 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "prefix", "problem"),
    [
        ("", "", "'' is no store"),
        ("/tmp/x", "", "'/tmp/x' is no store"),
        ("file:", "", "no path"),
        ("file:x", "p", "--prefix goes with tcp:// only"),
        ("tcp://host", "", "is no host and port"),
        ("tcp://:29500", "", "is no host and port"),
        ("tcp://host:99999", "", "out of range"),
        ("tcp://host:x", "", "could not be cast|invalid literal|Port"),
        ("tcp://host:1/path", "", "is no host and port"),
    ],
)
def test_wrong_stores(text, prefix, problem):
    with pytest.raises(ConfigError, match=problem):
        open_store(text, prefix, 1.0)


def test_a_store_that_does_not_answer():
    pytest.importorskip("torch")
    with pytest.raises(RendezvousError, match=r"no store at 127\.0\.0\.1:9 within 1 s"):
        open_store("tcp://127.0.0.1:9", "", 1.0)


def test_torch_stores_fit():
    torch = pytest.importorskip("torch")
    from datetime import timedelta

    host = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=5), wait_for_workers=False)
    store = open_store(f"tcp://127.0.0.1:{host.port}", "job", 5.0)
    store.set("a", "b")
    assert torch.distributed.PrefixStore("job", host).get("a") == b"b"


def test_command_with_wrong_arguments(capsys):
    with pytest.raises(SystemExit) as usage:
        main(["serve", "--world", "x"])
    assert usage.value.code == 2
    assert main(["serve", "--rank-of-server", "1", "--servers", "1", "--world", "2", "--store", "file:/nowhere-at-all/x"]) in (
        2,
        4,
    )
    assert capsys.readouterr().err
