"""Puts messages into a memory as senders with a rate have them, and as pFabric does."""

from __future__ import annotations

from typing import Final

from sim.engine.bounded import POINT
from sim.engine.layout import (
    E_KIND,
    F_CREDIT,
    F_DUPS,
    F_GREATEST,
    F_PACKETS,
    F_RTO,
    F_THRESHOLD,
    F_WINDOW,
    K_DEADLINE,
    K_DECAY,
    K_RISE,
    K_SPEND,
)
from sim.engine.layout_rates import (
    L_BOUND,
    L_SHARE,
    L_WORDS,
    V_ALPHA,
    V_BOUND,
    V_DEADLINE,
    V_DECAY,
    V_LAST,
    V_LINE,
    V_RATE,
    V_RISE,
    V_SPEND,
    V_TARGET,
    V_WARM,
)
from sim.engine.rate import WHOLE
from sim.engine.window import ONE
from sim.messages import Message
from sim.network import ETHERNET_BYTES, PICOSECONDS, Network
from sim.transports import Transport, path_mtu, round_trip

NEVER: Final = 1 << 40
ROUND_TRIPS: Final = 3
"""Of pFabric's timeout."""


def write_rate(network: Network, at: int, message: Message, transport: Transport) -> None:
    """Writes what a sender with a rate has; it begins at that of its interface."""
    memory, hosts = network.memory, network.hosts
    for timer, kind in ((V_SPEND, K_SPEND), (V_DECAY, K_DECAY), (V_RISE, K_RISE), (V_DEADLINE, K_DEADLINE)):
        memory[at + timer + E_KIND] = kind
    memory[at + F_RTO] = transport.least_timeout
    memory[at + V_ALPHA] = WHOLE
    if message.source != message.destination:
        rate = max(network.topology.routes.next_hops(hosts[message.source], hosts[message.destination])[0].rate // 1000, 1)
        memory[at + V_LINE] = memory[at + V_RATE] = memory[at + V_TARGET] = rate


class Bounds:
    """What receivers with a deadline know of messages, by size to a power of two packets."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._known: dict[tuple[int, int], int] = {}

    def write(self, at: int, transport: Transport, warm: bool) -> None:
        """Gives a message, whose packets are written already, its record, and tells which of its packets are the last percent.

        ``warm`` has it carried reliably whatever is known.
        """
        memory = self._network.memory
        packets = memory[at + F_PACKETS]
        key = (packets.bit_length(), transport.deadline)
        if key not in self._known:
            place = self._known[key] = memory.take(L_WORDS)
            memory[place + L_BOUND] = transport.deadline
            memory[place + L_SHARE] = 10 * POINT
        memory[at + V_BOUND] = self._known[key]
        memory[at + V_WARM] = int(warm and not transport.deadline)
        memory[at + V_LAST] = packets - max(packets // 100, 1)


class Ranked:
    """pFabric: windows of a bandwidth-delay product, timeouts of three round trips, and ports that hold two products."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._known: dict[tuple[str, str], tuple[int, int]] = {}
        topology = network.topology
        far = network.samples
        most = max((self._product(far[0], other) for other in far[1:]), default=0)
        near = max((self._product(*topology.graph.hosts[:2]),), default=0)
        network.bound_queues(2 * max(most, near))

    def _trip(self, source: str, destination: str) -> tuple[int, int]:
        key = (source, destination)
        if key not in self._known:
            self._known[key] = round_trip(self._network.topology, source, destination)
        return self._known[key]

    def _product(self, source: str, destination: str) -> int:
        """Returns a bandwidth-delay product, bytes."""
        time, rate = self._trip(source, destination)
        return time * rate // (8 * PICOSECONDS)

    def write(self, at: int, message: Message) -> None:
        """Writes what is pFabric's of a message, of which all that is a window's is written already."""
        memory, hosts = self._network.memory, self._network.hosts
        if message.source == message.destination:
            return
        ends = hosts[message.source], hosts[message.destination]
        full = path_mtu(self._network.topology, message) + ETHERNET_BYTES
        window = max(-(-self._product(*ends) // full), 2) * ONE
        memory[at + F_WINDOW] = memory[at + F_GREATEST] = memory[at + F_THRESHOLD] = window
        memory[at + F_RTO] = ROUND_TRIPS * self._trip(*ends)[0]
        memory[at + F_DUPS] = NEVER
        memory[at + F_CREDIT] = 0


__all__ = ["Bounds", "Ranked", "write_rate"]
