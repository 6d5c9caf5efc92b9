"""Puts messages into a memory as DLCP sends them, by the rules of a policy."""

from __future__ import annotations

import math
from typing import Final

from dlcp.policy import Policy
from dlcp.transport.core import INITIAL_RTT_NS, MILLISECOND
from dlcp.transport.ordering import MIN_WINDOW_NS, UNKNOWN_WINDOW_NS
from dlcp.transport.outgoing import BOUND_SCALE, bound_to_wire
from dlcp.transport.peer import (
    FEEDBACK_DELAY_NS,
    FEEDBACK_EVERY,
    LONG_FEEDBACK_DELAY_NS,
    MIN_FEEDBACK_DELAY_NS,
    PACING_QUANTUM_NS,
)
from dlcp.wire.header import HEADER_BYTES, HELLO_BODY
from sim.engine.dlcp_rules import MOST_PATIENCE
from sim.engine.dlcp_window import PACKET, SHARE
from sim.engine.layout import (
    D_AGAIN,
    D_ALLOWED,
    D_COMPLETE,
    D_ORDER,
    D_PROTECTED,
    D_PROTECTED_MISSING,
    D_REPORT,
    D_SETTLED,
    D_URGENCY,
    E_KIND,
    F_PACKETS,
    F_PAIR,
    H_RULES,
    K_COMPLETE,
    K_FEEDBACK,
    K_PACE,
    K_PING,
    R_ALPHA,
    R_BACK,
    R_FEEDBACK,
    R_FORTH,
    R_FROM,
    R_HASH,
    R_LAST_CLASS,
    R_NEXT,
    R_PACE,
    R_PATIENCE,
    R_PING,
    R_REVERSE,
    R_RTTMIN,
    R_RTTVAR,
    R_SPRAY,
    R_SRTT,
    R_THRESHOLD,
    R_TO,
    R_WINDOW,
    R_WORDS,
    SPRAY_SHIFT,
    U_EVERY,
    U_FIRST_RTT,
    U_GAIN,
    U_GRACE_FACTOR,
    U_GRACE_FLOOR,
    U_GREATEST,
    U_LEAST_DELAY,
    U_LONG_DELAY,
    U_MOST_DELAY,
    U_PROBE_LEAST,
    U_PROBE_MOST,
    U_QUANTUM,
    U_SHORTEST,
    U_TOLERANCE,
    U_UNKNOWN,
    U_WORDS,
)
from sim.engine.words import mix
from sim.memory import Memory
from sim.messages import Message
from sim.network import ETHERNET_BYTES, Network
from sim.transports import UDP_HEADERS, round_trip

NANOSECOND: Final = 1000
GREETING_BYTES: Final = ETHERNET_BYTES + UDP_HEADERS + HEADER_BYTES + HELLO_BODY.size
"""A short HELLO on the wire."""


def write_rules(memory: Memory, policy: Policy, packet_bytes: int, scale: float) -> None:
    """Writes the rules of a policy; ``scale`` shortens all waits of the end host, for hosts faster than the product's loop."""
    rules = memory.take(U_WORDS)
    memory[H_RULES] = rules
    congestion, timeouts, grace = policy.congestion, policy.timeouts, policy.grace

    def wait(nanoseconds: float) -> int:
        return max(round(nanoseconds * NANOSECOND * scale), 1)

    memory[rules + U_EVERY] = FEEDBACK_EVERY
    memory[rules + U_LEAST_DELAY] = wait(MIN_FEEDBACK_DELAY_NS)
    memory[rules + U_MOST_DELAY] = wait(FEEDBACK_DELAY_NS)
    memory[rules + U_LONG_DELAY] = wait(LONG_FEEDBACK_DELAY_NS)
    memory[rules + U_UNKNOWN] = wait(UNKNOWN_WINDOW_NS)
    memory[rules + U_SHORTEST] = wait(MIN_WINDOW_NS)
    memory[rules + U_GRACE_FLOOR] = wait(grace.floor_ms * MILLISECOND)
    memory[rules + U_GRACE_FACTOR] = round(256 * grace.factor)
    memory[rules + U_PROBE_LEAST] = wait(timeouts.probe_min_ms * MILLISECOND)
    memory[rules + U_PROBE_MOST] = wait(timeouts.probe_max_ms * MILLISECOND)
    memory[rules + U_QUANTUM] = wait(PACING_QUANTUM_NS)
    memory[rules + U_GAIN] = round(SHARE * congestion.gain)
    memory[rules + U_TOLERANCE] = round(1024 * policy.loss.push)
    memory[rules + U_GREATEST] = max(congestion.max_window_bytes // packet_bytes, 2) * PACKET
    memory[rules + U_FIRST_RTT] = wait(INITIAL_RTT_NS)


class Pairs:
    """Pairs of a sender and a receiver, made when first asked for.

    Args:
        network: The network they are in.
        policy: The policy.
        spray: How their packets spread over paths.
        seed: Of what picks one of several interfaces, and hashes.
    """

    def __init__(self, network: Network, policy: Policy, spray: int, seed: int) -> None:
        self._network = network
        self._policy = policy
        self._spray = spray << SPRAY_SHIFT
        self._seed = seed
        self._pairs: dict[tuple[int, int], int] = {}

    def get(self, source: int, destination: int) -> int:
        """Returns the position of a pair's record."""
        found = self._pairs.get((source, destination))
        if found is None:
            found = self._pairs[source, destination] = self._make(source, destination)
            back = self._pairs[destination, source] = self._make(destination, source)
            memory = self._network.memory
            memory[found + R_REVERSE], memory[back + R_REVERSE] = back, found
        return found

    def _make(self, source: int, destination: int) -> int:
        network, memory, hosts = self._network, self._network.memory, self._network.hosts
        pair = memory.take(R_WORDS)
        entropy = mix(((source + 1) * 100_003 + destination) << 20 ^ self._seed & 0xFFFFF)
        memory[pair + R_FEEDBACK + E_KIND] = K_FEEDBACK
        memory[pair + R_PING + E_KIND] = K_PING
        memory[pair + R_PACE + E_KIND] = K_PACE
        memory[pair + R_HASH] = entropy
        memory[pair + R_NEXT] = 1
        memory[pair + R_WINDOW] = self._policy.congestion.initial_window_packets * PACKET
        memory[pair + R_THRESHOLD] = 1 << 40
        memory[pair + R_ALPHA] = SHARE
        memory[pair + R_PATIENCE] = MOST_PATIENCE
        memory[pair + R_LAST_CLASS] = 7
        memory[pair + R_SPRAY] = self._spray
        self._greet(pair, hosts[source], hosts[destination])
        memory[pair + R_FROM], memory[pair + R_TO] = network.nodes[hosts[source]], network.nodes[hosts[destination]]
        memory[pair + R_FORTH] = network.arcs[network.access(source, destination, entropy).number]
        memory[pair + R_BACK] = network.arcs[network.access(destination, source, entropy).number]
        return pair

    def _greet(self, pair: int, source: str, destination: str) -> None:
        """Ranks greet each other before the first message, with a short packet and a full one, so they know the round trip."""
        memory = self._network.memory
        short, full = (round_trip(self._network.topology, source, destination, size)[0] for size in (GREETING_BYTES, None))
        memory[pair + R_RTTMIN] = short
        memory[pair + R_SRTT] = short + (full - short) // 8
        memory[pair + R_RTTVAR] = short // 2 + (full - short - short // 2) // 4


def write_dlcp(memory: Memory, at: int, message: Message, pairs: Pairs) -> None:
    """Writes what is DLCP's of a message, whose packets are written already."""
    packets = memory[at + F_PACKETS]
    words = (packets + 31) // 32
    memory[at + D_COMPLETE + E_KIND] = K_COMPLETE
    memory[at + D_PROTECTED] = memory[at + D_PROTECTED_MISSING] = protected_of(packets, message.protected)
    memory[at + D_ALLOWED] = packets * bound_to_wire(message.bound) // BOUND_SCALE
    memory[at + D_URGENCY] = message.priority
    memory[at + D_ORDER] = message.order
    for bitmap in (D_AGAIN, D_REPORT, D_SETTLED):
        memory[at + bitmap] = memory.take(words)
    memory[at + F_PAIR] = pairs.get(message.source, message.destination)


def protected_of(packets: int, share: float) -> int:
    """Returns how many packets of a message are protected, as ``dlcp.tagging.magnitude.protect`` has it."""
    return max(min(math.ceil(share * packets - 1e-9 * packets), packets), 0)


__all__ = ["Pairs", "protected_of", "write_dlcp", "write_rules"]
