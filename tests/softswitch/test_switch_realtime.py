"""The shared bottleneck in real time: dlcp.p4 between interfaces, 100 Mbit/s, twice as much offered."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("finsy")

from dlcp.bench.switch.control import deploy, scene
from dlcp.bench.switch.network import make_pair, private_network
from dlcp.fabric.entities import Action, Entry
from dlcp.fabric.program import load
from tests.softswitch.lab import hear

ROOT = Path(__file__).resolve().parents[2]
SIZE = 1024
RATE = 100_000_000
SECONDS = 1.0
NEVER = 2**19 - 1
MIX = ((6, 0.2), (3, 0.4), (0, 1.4))
"""Class and load as a share of the link; a quarter of each is protected.  What is protected, and class 6 and 3 whole, fits."""


def frames_of(where, priority, protected, count, first):
    """Frames with a number of their own, between the hosts of a scene."""
    from dlcp.wire.codec import encode_header
    from dlcp.wire.header import PacketType

    ethernet = bytes.fromhex((where.destination[0] + where.source[0]).replace(":", "")) + b"\x08\0"
    addresses = socket.inet_aton(where.source[1]) + socket.inet_aton(where.destination[1])
    length = 20 + 8 + 48 + SIZE
    ip = b"\x45" + bytes([priority << 5]) + length.to_bytes(2, "big") + bytes(4) + b"\x40\x11\0\0" + addresses
    check = 0xFFFF - int.from_bytes(ip, "big") % 0xFFFF
    ip = ip[:10] + check.to_bytes(2, "big") + ip[12:]
    udp = (9753).to_bytes(2, "big") * 2 + (length - 20).to_bytes(2, "big") + bytes(2)
    for number in range(first, first + count):
        header = encode_header(
            type=int(PacketType.DATA), priority=priority, protected=protected, length=1 << 20, sequence=number, stride=SIZE
        )
        yield ethernet + ip + udp + header + bytes(SIZE)


@pytest.mark.root
@pytest.mark.exclusive
def test_class_6_and_protected_packets_lose_nothing_and_classes_are_strict(tmp_path):
    where = scene(4, 1)
    entities = [entry for entry in where.entities if not (isinstance(entry, Entry) and entry.table == "limits")]
    for queue in range(7):
        for protected, drop_at in ((0, 16), (1, NEVER)):
            match = (("queue", queue), ("protected", protected))
            entities.append(Entry("limits", match, Action.of("drop_from", drop_at=drop_at, mark_at=NEVER), priority=1))

    # One second of traffic in the order of time, each stream evenly spaced.
    size = 14 + 20 + 8 + 48 + SIZE
    slot = size * 8 / RATE
    plan = []
    first = 1
    sent = Counter()
    for priority, load_share in MIX:
        count = int(SECONDS / slot * load_share)
        for index in range(count):
            protected = int(index % 4 == 0)
            plan.append(((index + 0.5) * slot / load_share, priority, protected, first + index))
            sent[priority, protected] += 1
        first += count
    plan.sort()
    packets = [next(frames_of(where, priority, protected, 1, number)) for _, priority, protected, number in plan]
    kinds = {number: (priority, protected) for _, priority, protected, number in plan}

    with private_network():
        ports = {where.port_in: "in0", where.ports_out[0]: "out0"}
        for name in ports.values():
            make_pair(name, f"{name}h")
        out = where.ports_out[0]
        command = [sys.executable, "-m", "softswitch", "--no-p4", "--device-id", "1", "--rate", f"{out}=100M"]
        command += [
            "--stats",
            str(tmp_path / "stats.json"),
            *(word for n, name in ports.items() for word in ("-i", f"{n}@{name}")),
        ]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert "ready" in process.stdout.readline()
            deploy("127.0.0.1:9559", load(), entities)
            sender, receiver = hear("in0h"), hear("out0h")
            begin = time.monotonic()
            done = 0
            while done < len(plan):
                late = time.monotonic() - begin
                if late - plan[done][0] > 0.002:
                    # A sender that makes up for a pause would offer more than twice the rate.
                    begin += late - plan[done][0]
                    continue
                while done < len(plan) and plan[done][0] <= late:
                    sender.send(packets[done])
                    done += 1
                time.sleep(0.0002)
            stats = statistics_when_through(process, tmp_path / "stats.json", len(plan))
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            process.stdout.close()
        finally:
            process.kill()
            process.wait(30)
        receiver.setblocking(False)
        arrived, order = Counter(), {}
        while True:
            try:
                data = receiver.recv(2048)
            except BlockingIOError:
                break
            if data[12:14] == b"\x08\0":
                number = sequence_of(data)
                kind = kinds[number]
                arrived[kind] += 1
                assert order.get(kind, 0) < number, "a stream was reordered"
                order[kind] = number
        sender.close()
        receiver.close()
    assert stats["elapsed_ns"] < 120e9 and stats["ports"][str(out)]["utilisation"] > 0.01
    lost = {kind: sent[kind] - arrived[kind] for kind in sent}
    assert lost[6, 0] == lost[6, 1] == lost[3, 1] == lost[0, 1] == 0, lost
    # Class 3 waits for class 6 only, and class 0 bears all.
    assert lost[3, 0] <= 0.02 * sent[3, 0], lost
    assert lost[0, 0] > 0.3 * sent[0, 0], lost
    # The program dropped them; no queue was ever full.
    assert stats["drops"] == {"ingress": lost[0, 0] + lost[3, 0]}


def statistics_when_through(process, path, count):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.05)
        if path.exists():
            stats = json.loads(path.read_text())
            if stats["received"] >= count and not stats["waiting"]:
                return stats
    raise AssertionError("the switch is not done")


def sequence_of(data):
    from dlcp.wire.header import HEADER

    return HEADER.decode_one(data[42:90])["sequence"]
