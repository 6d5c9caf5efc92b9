"""With DLCP_COMPILED=0 a port needs no machine code, and puts the same bytes on the wire."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dlcp
from dlcp.udp.probe import probe

CHILD = """
import hashlib, json, os, select, sys
import numpy as np
from dlcp.transport.outgoing import DataBurst, OutgoingMessage
from dlcp.transport.packets import Burst, control_burst
from dlcp.udp import DatagramPort, batch

assert (batch.compiled() is None) == (os.environ["DLCP_COMPILED"] == "0")
sender, receiver = DatagramPort(), DatagramPort()
sender.connect_peer(1, receiver.address)
rng = np.random.default_rng(3)
payload = rng.integers(0, 256, 1200 * 300 - 7).astype(np.uint8)
out = OutgoingMessage(0, 1, 99, 1 << 40, payload, 1200, np.full(300, 5, np.uint8), 100, 0)
indices = np.arange(300, dtype=np.int64)
headers = rng.integers(0, 256, (90, 80)).astype(np.uint8)
bursts = [
    DataBurst(0x22, out, indices, False, 2**32 - 100, 7),
    DataBurst(0xE2, out, np.roll(indices, 9)[:40], True, 200, 8),
    Burst(1, 2, headers, payload, np.arange(90), np.full(90, 300)),
    control_burst(1, 0xE2, headers[5]),
]
left, got = list(bursts), []


def take():
    for one in receiver.receive():
        for row, size, ecn in zip(one.data, one.lengths.tolist(), one.ecn.tolist()):
            got.append((row[:size].tobytes(), ecn))


wanted = [(datagram, burst.tos & 3) for burst in bursts for datagram in burst.datagrams()]
while left or len(got) < len(wanted):
    if left:
        del left[:sender.send(left)]
    elif not select.select([receiver], [], [], 20)[0]:
        sys.exit("datagrams are missing")
    take()
if not receiver.capabilities.recv_tos:
    wanted = [(datagram, 0) for datagram, _ in wanted]
assert sorted(got) == sorted(wanted)
digest = hashlib.sha256(b"".join(sorted(datagram for datagram, _ in got))).hexdigest()
counted = sender.metrics()
print(json.dumps([digest, counted["packets_sent"], counted["bytes_sent"], counted["batches_sent"]]))
"""


@pytest.mark.skipif(not probe().sendmmsg, reason="no sendmmsg here")
def test_the_same_bytes_in_the_same_messages():
    found = []
    for compiled in ("0", "1"):
        surroundings = {**os.environ, "DLCP_COMPILED": compiled, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", CHILD],
            env=surroundings,
            cwd=Path(dlcp.__file__).parents[1],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    assert found[0] == found[1]
    assert found[0][1] == 431
