"""Transports and their settings: names, headers, what a packet carries, and how long a message takes at best."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from dlcp.topology import Topology
from dlcp.wire.header import HEADER_BYTES
from sim.engine.layout import (
    CUBIC,
    DCQCN,
    DCTCP,
    DLCP,
    NDP,
    PFABRIC,
    RAW,
    ROCE,
    SPRAY_HASH,
    SPRAY_LEAST,
    SPRAY_RANDOM,
    SPRAY_TURN,
    TCP,
    TIMEOUT,
)
from sim.messages import Message
from sim.network import ETHERNET_BYTES, PICOSECONDS

KINDS: Final = {
    "raw": RAW,
    "tcp": TCP,
    "cubic": CUBIC,
    "dctcp": DCTCP,
    "dlcp": DLCP,
    "ndp": NDP,
    "roce": ROCE,
    "dcqcn": DCQCN,
    "pfabric": PFABRIC,
    "timeout": TIMEOUT,
}
SPRAYS: Final = {"hash": SPRAY_HASH, "round-robin": SPRAY_TURN, "random": SPRAY_RANDOM, "least-queue": SPRAY_LEAST}
RATED: Final = ("roce", "dcqcn", "timeout")
"""Transports whose senders have a rate."""
MARKED: Final = ("dctcp", "dcqcn", "timeout")
"""Transports whose data packets are ECN-capable."""

TCP_HEADERS: Final = 40
"""IPv4 and TCP without options."""
UDP_HEADERS: Final = 28
ROCE_HEADERS: Final = UDP_HEADERS + 12 + 4
"""With base transport header and invariant checksum."""
BOUNDED_HEADERS: Final = UDP_HEADERS + 9
"""With number of the bucket, offset, and what tells the last packets."""
CONTROL_BYTES: Final = 64
"""An acknowledgement, or a frame of the shortest length that Ethernet has."""


@dataclass(frozen=True, slots=True)
class Transport:
    """A transport and its settings; the defaults are usual ones in data centres.

    Attributes:
        name: ``raw`` (datagrams, nothing is sent again), ``tcp`` (Reno with SACK), ``cubic``, ``dctcp``, ``ndp``, ``roce``
            (go-back-N at line rate), ``dcqcn``, ``pfabric``, ``timeout`` (datagrams with a deadline) or ``dlcp``.
        spray: How its packets spread over paths: ``hash``, ``round-robin``, ``random``, ``least-queue``.
        initial_window: Packets.
        largest_window: Packets.
        reordering: By how many packets one has to be passed over before it counts as lost.
        least_timeout: Shortest retransmission timeout, picoseconds; that of RoCE.
        gain: Weight of the newest share of marks in DCTCP's average.
        trust_class: Switches put its packets into the queue of their class; otherwise all into queue 0.
        payload: Most payload bytes of a packet; 0 is what the MTU leaves.
        scale: Factor on every wait of DLCP's end hosts; 1 is the product on ordinary hosts.
        deadline: Of ``timeout``: how long a message may take, picoseconds; 0 is what the first ones show.
        warmup: Of ``timeout``: training steps whose messages are carried reliably to find that out.
    """

    name: str
    spray: str = "hash"
    initial_window: int = 10
    largest_window: int = 1 << 20
    reordering: int = 3
    least_timeout: int = 10**9
    gain: float = 1 / 16
    trust_class: bool = False
    payload: int = 0
    scale: float = 1.0
    deadline: int = 0
    warmup: int = 1

    @property
    def headers(self) -> int:
        """IP and transport headers of a data packet, bytes."""
        known = {
            "dlcp": UDP_HEADERS + HEADER_BYTES,
            "raw": UDP_HEADERS,
            "roce": ROCE_HEADERS,
            "dcqcn": ROCE_HEADERS,
            "timeout": BOUNDED_HEADERS,
        }
        return known.get(self.name, TCP_HEADERS)

    def payload_bytes(self, mtu: int) -> int:
        """Returns the payload of a full packet."""
        whole = mtu - self.headers
        return self.payload or (whole // 8 * 8 if self.name == "dlcp" else whole)


def path_mtu(topology: Topology, message: Message) -> int:
    """Returns the smaller MTU of the two hosts' links."""
    graph = topology.graph
    ends = (graph.hosts[message.source], graph.hosts[message.destination])
    return min((topology.link(arc).mtu for end in ends for arc in graph.leaving(end)), default=1500)


def ideal_time(topology: Topology, message: Message, transport: Transport) -> int:
    """Returns how long a message takes alone in the network, sent without a pause over a shortest path, in picoseconds."""
    hosts = topology.graph.hosts
    if message.source == message.destination:
        return 0
    payload = transport.payload_bytes(path_mtu(topology, message))
    overhead = transport.headers + ETHERNET_BYTES
    count = -(-message.size // payload)
    tail = max(message.size - (count - 1) * payload + overhead, CONTROL_BYTES)
    path = next(iter(topology.routes.paths(hosts[message.source], hosts[message.destination])), ())
    bits = 8 * PICOSECONDS
    first, slowest, last = 0.0, 0.0, 0.0
    for arc in path:
        # The full packets before the last one leave a link at the pace of the slowest so far; the last one follows them.
        full = (payload + overhead) * bits / arc.rate
        slowest = max(slowest, full)
        first += full
        before = first + (count - 2) * slowest if count > 1 else 0.0
        delay = int(topology.link(arc).delay)
        last = max(last, before) + tail * bits / arc.rate + delay
        first += delay
    return math.ceil(last)


def round_trip(topology: Topology, source: str, destination: str, size: int | None = None) -> tuple[int, int]:
    """Returns how long a frame and its answer take between two hosts in an idle network, and the slowest rate between them.

    Args:
        topology: The network.
        source, destination: Hosts.
        size: Bytes of the frame; None: a full one.

    Returns:
        Picoseconds; bit/s.
    """
    path = next(iter(topology.routes.paths(source, destination)), ())
    total, slowest = 0.0, 0
    for arc in path:
        link = topology.link(arc)
        total += ((size or link.mtu + ETHERNET_BYTES) + CONTROL_BYTES) * 8 * PICOSECONDS / arc.rate + 2 * int(link.delay)
        slowest = min(slowest or int(arc.rate), int(arc.rate))
    return math.ceil(total), slowest


__all__ = ["CONTROL_BYTES", "KINDS", "MARKED", "RATED", "SPRAYS", "Transport", "ideal_time", "path_mtu", "round_trip"]
