"""A whole job between real sockets, captured: decoder and dissector read the same, and what the ranks say they sent."""

import json
import shutil
import subprocess
import sys
from collections import Counter

import pytest

from dlcp.cli.main import main
from dlcp.wire.header import PacketType

JOB = """
import json, socket, struct, sys, threading, time
import numpy as np
from dlcp.collectives.communicator import Communicator
from dlcp.store import MemoryStore

tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
tap.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
tap.bind(("lo", 3))
frames, over = [], threading.Event()

def listen():
    tap.settimeout(0.2)
    while True:
        try:
            frame, address = tap.recvfrom(70_000)
        except TimeoutError:
            if over.is_set():
                return
            continue
        if address[2] == 4:  # PACKET_OUTGOING; each passes a second time as it comes in
            frames.append(frame)

listener = threading.Thread(target=listen)
listener.start()
store, metrics, failures = MemoryStore(), [], []

def work(rank):
    try:
        with_others = Communicator(rank, 3, store)
        array = np.random.default_rng(rank).standard_normal(60_000).astype(np.float32)
        for _ in range(3):
            with_others.allreduce(array, timeout=30)
        with_others.barrier()
        with_others.close()
        metrics.append(with_others.metrics()["transport"])
    except BaseException as error:
        failures.append(repr(error))
        raise

ranks = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
for rank in ranks:
    rank.start()
for rank in ranks:
    rank.join()
over.set()
listener.join()
packets, drops = struct.unpack("II", tap.getsockopt(263, 6, 8))  # SOL_PACKET, PACKET_STATISTICS
tap.close()
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1))
    for k, frame in enumerate(frames):
        file.write(struct.pack("<IIII", k // 1000, k % 1000, len(frame), len(frame)) + frame)
print(json.dumps({"metrics": metrics, "failures": failures, "drops": drops}))
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Runs the job in a network namespace of its own, where nobody else's packets pass."""
    enter = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if not shutil.which("unshare") or not shutil.which("ip"):
        pytest.skip("network namespaces need the programs unshare and ip (util-linux, iproute2)")
    if subprocess.run([*enter, "true"], capture_output=True, check=False).returncode:
        pytest.skip("making a network namespace needs root or CAP_SYS_ADMIN, and this process has neither")
    path = tmp_path_factory.mktemp("job") / "job.pcap"
    done = subprocess.run([*enter, sys.executable, "-c", JOB, path], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert not report["failures"]
    if report["drops"]:
        pytest.skip(f"the capture itself lost {report['drops']} frames")
    return path, report["metrics"]


@pytest.mark.root
def test_what_was_captured_is_what_the_ranks_sent(job, capsys):
    path, metrics = job
    assert main(["wire", "decode", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {name for name, count in document["verdicts"].items() if count} <= {"good", "foreign"}  # foreign: capability probes
    sent = sum(count for m in metrics for name, count in m.items() if name.startswith("sent_class_") or name == "retransmitted")
    assert document["types"]["data"]["packets"] == sent > 0
    assert document["types"]["probe"]["packets"] == sum(m["probes"] for m in metrics)
    assert len(document["jobs"]) == 1 and len(document["flows"]) == 6
    assert {"hello", "hello_ack", "probe", "stop", "feedback", "goodbye"} <= set(document["types"])


@pytest.mark.root
def test_tshark_and_the_decoder_agree(job, tshark, capsys):
    path, _ = job
    main(["wire", "decode", str(path), "--json"])
    types = json.loads(capsys.readouterr().out)["types"]
    troubles = (
        "_ws.lua.error",
        *(f"dlcp.expert.{name}" for name in ("short", "cut", "reserved", "body", "size", "bitmap", "abort")),
    )
    names = ("dlcp.type", "dlcp.check.status", *troubles)
    # A GOODBYE to a rank that has left comes back quoted in an ICMP error, which tshark dissects too.
    rows = tshark.fields(path, *names, options=[*tshark.any_port, "-Y", "!icmp"])
    counted = Counter(PacketType(int(kind)).name.lower() for row in rows for kind in row["dlcp.type"])
    assert counted == {name: sums["packets"] for name, sums in types.items()}
    assert {status for row in rows for status in row["dlcp.check.status"]} == {"1"}
    assert not any(row[name] for row in rows for name in troubles)
