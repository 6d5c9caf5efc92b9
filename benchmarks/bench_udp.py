"""What the UDP shell costs per datagram, for every way the kernel lets it send and receive.

One process sends a batch over the loopback and then receives it, alternately, so that both directions are measured alone and do
not share a core.  On the loopback the sender's system call also pays for the kernel's receive path.  All ways are interleaved,
round by round, so that other load on the machine hits them alike; the figures are medians over rounds.

    python benchmarks/bench_udp.py [--rounds 200] [--packets 512] [--burst 64] [--payload 1400 8900] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace

import numpy as np

from dlcp.transport.packets import Burst
from dlcp.udp import Capabilities, DatagramPort
from dlcp.udp.probe import probe
from dlcp.wire.header import HEADER_BYTES


def sending(found: Capabilities) -> dict[str, Capabilities]:
    """Ways to send, from the best to the plainest; the way to receive is the plainest batch."""
    base = replace(found, receive_offload=False)
    ways = {
        "sendmmsg + GSO": base,
        "sendmsg + GSO": replace(base, sendmmsg=False),
        "sendmmsg": replace(base, segmentation=False, max_segments=1),
        "sendmmsg, ToS on socket": replace(base, segmentation=False, max_segments=1, tos_cmsg=False),
        "sendmsg": replace(base, segmentation=False, max_segments=1, sendmmsg=False),
    }
    return {name: way for name, way in ways.items() if way.segmentation <= found.segmentation and way.sendmmsg <= found.sendmmsg}


def receiving(found: Capabilities) -> dict[str, Capabilities]:
    return {
        "recvmmsg + GRO": found,
        "recvmsg + GRO": replace(found, recvmmsg=False),
        "recvmmsg": replace(found, receive_offload=False),
        "recvmmsg, no ToS": replace(found, receive_offload=False, recv_tos=False),
        "recvmsg": replace(found, receive_offload=False, recvmmsg=False),
        "recv_into": replace(found, receive_offload=False, recvmmsg=False, recv_tos=False),
    }


def make_bursts(packets: int, burst: int, size: int) -> list[Burst]:
    payload = np.zeros(packets * size, np.uint8)
    bursts = []
    for first in range(0, packets, burst):
        count = min(burst, packets - first)
        headers = np.zeros((count, HEADER_BYTES), np.uint8)
        offsets = (first + np.arange(count)) * size
        bursts.append(Burst(0, 0xB9 if first else 0x22, headers, payload, offsets, np.full(count, size, np.int64)))
    return bursts


class Pair:
    """One way to send, one way to receive."""

    def __init__(self, send: Capabilities, receive: Capabilities, datagram: int) -> None:
        self.sender = DatagramPort(capabilities=send, datagram_bytes=datagram)
        self.receiver = DatagramPort(capabilities=receive, datagram_bytes=datagram)
        self.sender.connect_peer(0, self.receiver.address)
        self.tx: list[float] = []
        self.rx: list[float] = []
        self.lost = 0

    def round(self, bursts: list[Burst], packets: int) -> None:
        left, clock = bursts, time.thread_time()
        while left:
            left = left[self.sender.send(left) :]
        sent = time.thread_time() - clock
        clock = time.thread_time()
        got = 0
        while frames := self.receiver.receive():
            got += sum(len(frame.lengths) for frame in frames)
        received = time.thread_time() - clock
        self.tx.append(sent / packets * 1e6)
        self.rx.append(received / max(got, 1) * 1e6)
        self.lost += packets - got

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU time of the UDP shell per datagram, over the loopback")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--packets", type=int, default=512, help="datagrams in one round")
    parser.add_argument("--burst", type=int, default=64, help="datagrams in one burst")
    parser.add_argument("--payload", type=int, nargs="+", default=[1400, 8900])
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    arguments = parser.parse_args()
    found = probe()
    best_send = next(iter(sending(found).values()))
    best_receive = next(iter(receiving(found).values()))
    results = []
    for size in arguments.payload:
        bursts = make_bursts(arguments.packets, arguments.burst, size)
        datagram = size + HEADER_BYTES
        pairs = {f"send: {name}": Pair(way, best_receive, datagram) for name, way in sending(found).items()}
        pairs |= {f"receive: {name}": Pair(best_send, way, datagram) for name, way in receiving(found).items()}
        plain = replace(found, segmentation=False, max_segments=1)
        pairs["singles: recvmmsg + GRO"] = Pair(plain, found, datagram)
        pairs["singles: recvmmsg"] = Pair(plain, replace(found, receive_offload=False), datagram)
        for _ in range(arguments.rounds):
            for pair in pairs.values():
                pair.round(bursts, arguments.packets)
        for name, pair in pairs.items():
            tx, rx = statistics.median(pair.tx), statistics.median(pair.rx)
            gbit = datagram * 8 / (tx + rx) / 1e3
            row = {"payload": size, "way": name, "tx_us": tx, "rx_us": rx, "gbit_per_core": gbit, "lost": pair.lost}
            results.append(row)
            pair.close()
    if arguments.json:
        print(json.dumps({"capabilities": str(found), "rounds": arguments.rounds, "results": results}))
        return
    print(found)
    print(f"{'payload':>7}  {'way':<44}{'tx µs':>8}{'rx µs':>8}{'Gbit/s per core':>17}{'lost':>7}")
    for row in results:
        print("{payload:>7}  {way:<44}{tx_us:>8.3f}{rx_us:>8.3f}{gbit_per_core:>17.1f}{lost:>7}".format(**row))


if __name__ == "__main__":
    main()
