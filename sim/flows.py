"""Puts messages into a memory, as flows of a transport."""

from __future__ import annotations

from collections.abc import Sequence

from dlcp.policy import Policy
from dlcp.wire.header import HEADER_BYTES
from sim.dlcp_flows import Pairs, write_dlcp, write_rules
from sim.engine.layout import (
    B_BYTES,
    B_FLOW,
    B_GATE,
    B_RETURN,
    B_URGENCY,
    B_WORDS,
    D_WORDS,
    E_KIND,
    ECT,
    F_ACKS,
    F_AFTER,
    F_ALPHA,
    F_ARC,
    F_BACK,
    F_CLASS,
    F_CREDIT,
    F_DUPS,
    F_EDGE_COUNT,
    F_EDGES,
    F_EXTRA,
    F_FLAGS,
    F_FROM,
    F_FULL,
    F_GAIN,
    F_GATE,
    F_GOT,
    F_GREATEST,
    F_HASH,
    F_HIGH,
    F_HOLES,
    F_KIND,
    F_MISSING,
    F_NUMBER,
    F_PACKETS,
    F_RTO,
    F_START,
    F_TAIL,
    F_THRESHOLD,
    F_TIMER,
    F_TO,
    F_WAITS,
    F_WINDOW,
    F_WORDS,
    HEAP_WORDS,
    K_CREDIT,
    K_START,
    KEPT,
    S_CREDIT,
    S_HEAP,
    S_WORDS,
    SPRAY_SHIFT,
)
from sim.engine.layout_rates import (
    V_WORDS,
)
from sim.engine.loop import begin
from sim.engine.window import ALPHA_ONE, ONE
from sim.engine.words import mix
from sim.messages import Gate, Message
from sim.network import ETHERNET_BYTES, Network
from sim.rate_flows import Bounds, Ranked, write_rate
from sim.transports import CONTROL_BYTES, KINDS, MARKED, RATED, SPRAYS, Transport, ideal_time, path_mtu


class Carriage:
    """Writes messages into a network's memory, at any time.

    Args:
        network: Where.
        transport: Of the messages that name none.
        policy: Rules of DLCP.
        seed: Tells the hashes of flows of one run from those of another.
    """

    def __init__(self, network: Network, transport: Transport, policy: Policy | None = None, seed: int = 0) -> None:
        self._network = network
        self._transport = transport
        self._policy = policy or Policy()
        self._seed = seed
        self._dlcp: Transport | None = None
        self._pairs: Pairs | None = None
        self._bounds: Bounds | None = None
        self._ranked: Ranked | None = None
        self._count = 0

    def add(self, messages: Sequence[Message]) -> list[int]:
        """Writes messages and enters the starts of those that wait for nothing.

        Args:
            messages: They wait for each other only; :attr:`~sim.messages.Message.after` counts from the first of them.

        Returns:
            The position of each flow's record.

        Raises:
            ValueError: A message is empty, waits for one that does not exist, there is no path for it, or DLCP would have to run
                with two settings at once.
        """
        network, memory = self._network, self._network.memory
        stepwise = any(message.iteration for message in messages)
        carriers = [message.transport or self._transport for message in messages]
        flows = [memory.take(_words(carrier.name)) for carrier in carriers]
        for number, (at, message, carrier) in enumerate(zip(flows, messages, carriers, strict=True), self._count):
            _write_ends(network, at, message, number, self._seed)
            size = _write_packets(network, at, message, carrier)
            memory[at + F_GOT] = memory.take((size + 31) // 32)
            if carrier.name == "dlcp":
                pairs = self._dlcp_pairs(carrier)
                if message.source != message.destination:
                    write_dlcp(memory, at, message, pairs)
            elif carrier.name != "raw":
                _write_window(network, at, carrier, size)
                if carrier.name in RATED:
                    write_rate(network, at, message, carrier)
                self._write_own(at, message, carrier, stepwise)
        self._count += len(flows)
        write_gates(network, flows, messages)
        write_waits(network, flows, messages)
        return flows

    def _write_own(self, at: int, message: Message, transport: Transport, stepwise: bool) -> None:
        if transport.name == "timeout":
            self._bounds = self._bounds or Bounds(self._network)
            self._bounds.write(at, transport, stepwise and message.iteration < transport.warmup)
        elif transport.name == "pfabric":
            self._ranked = self._ranked or Ranked(self._network)
            self._ranked.write(at, message)

    def _dlcp_pairs(self, transport: Transport) -> Pairs:
        """Returns the pairs of ranks, which all messages of DLCP share; the rules are written with the first."""
        if self._pairs is None or self._dlcp is None:
            write_rules(self._network.memory, self._policy, transport.payload_bytes(1500) + HEADER_BYTES, transport.scale)
            self._pairs = Pairs(self._network, self._policy, SPRAYS[transport.spray], self._seed)
            self._dlcp = transport
        elif transport != self._dlcp:
            raise ValueError("DLCP with two different settings in one network")
        return self._pairs


def add_flows(
    network: Network, messages: Sequence[Message], transport: Transport, policy: Policy | None = None, seed: int = 0
) -> list[int]:
    """Writes messages into the network's memory, once; see :class:`Carriage`."""
    return Carriage(network, transport, policy, seed).add(messages)


def _words(name: str) -> int:
    return V_WORDS if name in RATED else D_WORDS if name == "dlcp" else F_WORDS


def _write_ends(network: Network, at: int, message: Message, number: int, seed: int) -> None:
    memory, hosts = network.memory, network.hosts
    if message.size < 1:
        raise ValueError(f"message {number} has {message.size} bytes")
    entropy = mix(number << 20 ^ seed & 0xFFFFF)
    memory[at + F_TIMER + E_KIND] = K_START
    memory[at + F_NUMBER] = number
    memory[at + F_FROM] = network.nodes[hosts[message.source]]
    memory[at + F_TO] = network.nodes[hosts[message.destination]]
    memory[at + F_START] = message.start
    memory[at + F_EXTRA] = int(message.extra)
    memory[at + F_HASH] = entropy
    if message.source != message.destination:
        memory[at + F_ARC] = network.arcs[network.access(message.source, message.destination, entropy).number]
        memory[at + F_BACK] = network.arcs[network.access(message.destination, message.source, entropy).number]


def _write_packets(network: Network, at: int, message: Message, transport: Transport) -> int:
    memory = network.memory
    payload = transport.payload_bytes(path_mtu(network.topology, message))
    overhead = transport.headers + ETHERNET_BYTES
    count = -(-message.size // payload)
    memory[at + F_KIND] = KINDS[transport.name]
    memory[at + F_PACKETS] = memory[at + F_MISSING] = count
    memory[at + F_FULL] = payload + overhead
    memory[at + F_TAIL] = max(message.size - (count - 1) * payload + overhead, CONTROL_BYTES)
    memory[at + F_CLASS] = priority = message.priority if transport.trust_class or transport.name == "dlcp" else 0
    ecn = ECT if transport.name in MARKED else 0
    kept = 0 if transport.name == "ndp" else KEPT
    memory[at + F_FLAGS] = priority | kept | ecn | SPRAYS[transport.spray] << SPRAY_SHIFT
    return count


def _write_window(network: Network, at: int, transport: Transport, packets: int) -> None:
    memory = network.memory
    memory[at + F_ACKS] = memory.take((packets + 31) // 32)
    memory[at + F_HOLES] = memory.take((packets + 31) // 32)
    memory[at + F_HIGH] = -1
    memory[at + F_WINDOW] = transport.initial_window * ONE
    memory[at + F_GREATEST] = memory[at + F_THRESHOLD] = transport.largest_window * ONE
    memory[at + F_ALPHA] = ALPHA_ONE
    memory[at + F_GAIN] = round(transport.gain * ALPHA_ONE)
    memory[at + F_RTO] = transport.least_timeout
    memory[at + F_DUPS] = transport.reordering
    memory[at + F_CREDIT] = transport.initial_window


def write_gates(network: Network, flows: Sequence[int], messages: Sequence[Message]) -> None:
    """Writes the gates that messages go through, and a ticket for each such message."""
    memory, hosts = network.memory, network.hosts
    through: dict[int, tuple[Gate, list[int]]] = {}
    for number, message in enumerate(messages):
        if message.gate is not None and message.source != message.destination:
            through.setdefault(id(message.gate), (message.gate, []))[1].append(number)
    ways: dict[tuple[int, int], int] = {}
    for gate, numbers in through.values():
        place = memory.take(S_WORDS)
        memory[place + S_CREDIT] = gate.credit
        memory[place + S_HEAP] = memory.take(len(numbers) * HEAP_WORDS)
        for number in numbers:
            message = messages[number]
            way = (message.destination, message.source)
            if way not in ways:
                back = network.topology.routes.delay(hosts[way[0]], hosts[way[1]])
                ways[way] = max(back or 0, 1)
            ticket = memory.take(B_WORDS)
            memory[ticket + E_KIND] = K_CREDIT
            memory[ticket + B_FLOW] = flows[number]
            memory[ticket + B_GATE] = place
            memory[ticket + B_BYTES] = message.size
            memory[ticket + B_URGENCY] = message.urgency
            memory[ticket + B_RETURN] = ways[way]
            memory[flows[number] + F_GATE] = ticket


def write_waits(network: Network, flows: Sequence[int], messages: Sequence[Message]) -> None:
    """Writes who waits for whom, and enters the start of every flow that waits for nobody.

    Raises:
        ValueError: A message waits for one that does not exist.
    """
    memory = network.memory
    followers: list[list[int]] = [[] for _ in flows]
    for number, (at, message) in enumerate(zip(flows, messages, strict=True)):
        memory[at + F_AFTER] = message.delay
        memory[at + F_WAITS] = len(message.after)
        for other in message.after:
            if not 0 <= other < len(flows):
                raise ValueError(f"message {number} waits for message {other}, of {len(flows)}")
            followers[other].append(at)
    for at, mine in zip(flows, followers, strict=True):
        if mine:
            memory[at + F_EDGES] = memory.take(len(mine))
            memory[at + F_EDGE_COUNT] = len(mine)
            memory.store(memory[at + F_EDGES], mine)
    memory.add_events(len(flows))
    for at, message in zip(flows, messages, strict=True):
        if not message.after:
            begin(memory, at, message.start + message.delay)  # type: ignore[arg-type]


__all__ = ["CONTROL_BYTES", "KINDS", "SPRAYS", "Carriage", "Transport", "add_flows", "ideal_time", "path_mtu"]
