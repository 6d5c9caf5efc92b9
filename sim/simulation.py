"""A simulation: a network and messages in a memory, run to the end, to a time, or until somebody interrupts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from dlcp.policy import Policy
from dlcp.topology import Topology
from sim.changes import Change, apply
from sim.engine.layout import (
    H_BITS,
    H_BUDGET,
    H_CONTROL_BYTES,
    H_DONE,
    H_DONE_COUNT,
    H_EVENTS,
    H_HOPS,
    H_NEAR,
    H_NOW,
    H_OPEN,
    H_PATIENCE,
    H_RANDOM,
    H_SHIFT,
    H_SLOTS,
    H_TRIM,
    H_TRIM_BYTES,
    H_UNTIL,
    H_WHEEL,
    HEAP_WORDS,
    MORE_EVENTS,
    MORE_PACKETS,
    PAUSED,
    RESERVE,
)
from sim.engine.words import MASK63, mix
from sim.flows import CONTROL_BYTES, Carriage, Transport
from sim.memory import Memory
from sim.messages import Message
from sim.network import ETHERNET_BYTES, PICOSECONDS, Buffers, Network

SLOTS: Final = 1 << 14
PATIENCE: Final = 255
"""Packets turned away in a row before a depth counts as stale (p4/constants.p4)."""
TRIMMED_BYTES: Final = ETHERNET_BYTES + 20 + 8 + 48
AHEAD: Final = 1024
"""Messages of the background that are written at a time."""
BUDGET: Final = {"compiled": 2_000_000, "python": 20_000}
"""Events between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a simulation has come.

    Attributes:
        now: Simulated time, picoseconds.
        hops: Packets that have crossed a link, each link counted.
        events: Events so far.
        done, total: Messages that the run waits for.
    """

    now: int
    hops: int
    events: int
    done: int
    total: int


@dataclass
class Simulation:
    """What is simulated; :meth:`run` does it, and may be called again to go on.

    Attributes:
        topology, policy: Descriptions.
        messages: What is carried; what background traffic adds stands behind it.
        transport: By what.
        seed: Of all randomness.
        engine: ``compiled`` or ``python``; both give the same.
        buffers: How switches share their memory.
        changes: What happens to links, by time.
        reroute: How long after a change of a link's state routes follow it, picoseconds.
        background: Messages by their start, perhaps without end; all are ``extra``, or none and they do end.
    """

    topology: Topology
    messages: list[Message]
    transport: Transport
    policy: Policy = field(default_factory=Policy)
    seed: int = 0
    engine: str = "compiled"
    buffers: Buffers = field(default_factory=Buffers)
    changes: Sequence[Change] = ()
    reroute: int = 10**9
    background: Iterator[Message] | None = None

    def __post_init__(self) -> None:
        self.memory = memory = Memory(self.engine)
        memory[H_RANDOM] = mix(self.seed & MASK63) | 1
        memory[H_TRIM] = int(self.policy.switch.overload == "trim")
        memory[H_TRIM_BYTES] = TRIMMED_BYTES
        memory[H_CONTROL_BYTES] = CONTROL_BYTES
        memory[H_PATIENCE] = PATIENCE
        arcs = len(self.topology.graph.arcs)
        memory[H_NEAR] = memory.take((2 * arcs + 8) * HEAP_WORDS)
        memory[H_SLOTS] = SLOTS
        memory[H_SHIFT] = _shift(self.topology)
        memory[H_WHEEL] = memory.take(SLOTS)
        memory[H_BITS] = memory.take(SLOTS // 32)
        memory.add_events(2 * RESERVE)
        self.network = Network(memory, self.topology, self.policy, self.buffers, self.seed)
        self.messages = list(self.messages)
        self._required = memory[H_OPEN] = sum(not message.extra for message in self.messages)
        self._room = len(self.messages) + AHEAD * (self.background is not None)
        memory[H_DONE] = memory.take(max(self._room, 1))
        self._carriage = Carriage(self.network, self.transport, self.policy, self.seed)
        self.flows = self._carriage.add(self.messages)
        self._next: Message | None = None
        self._held = 0
        """1 while the run has to wait for messages of the background that are not written yet."""
        self._horizon = MASK63
        """Up to here background traffic has been written."""
        if self.background is not None:
            self._extend()
        memory.add_packets(2 * RESERVE)
        self._plan = sorted(
            [(change.at, 0, index) for index, change in enumerate(self.changes)]
            + [(change.at + self.reroute, 1, index) for index, change in enumerate(self.changes) if change.up is not None]
        )

    def progress(self) -> Progress:
        """Returns how far the simulation has come."""
        memory = self.memory
        return Progress(
            memory[H_NOW], memory[H_HOPS], memory[H_EVENTS], self._required - memory[H_OPEN] + self._held, self._required
        )

    @property
    def finished(self) -> bool:
        """Whether every message is complete."""
        return self.memory[H_OPEN] == 0

    def run(self, until: int | None = None, report: Callable[[Progress], bool | None] | None = None) -> bool:
        """Runs until all messages are complete, nothing can happen any more, or ``until`` (picoseconds).

        Args:
            until: Events before this time are done, later ones are not.
            report: Called now and then; the simulation stops where it is if it returns True.

        Returns:
            Whether every message is complete.
        """
        memory = self.memory
        end = MASK63 if until is None else until
        while memory[H_OPEN]:
            planned = self._plan[0][0] if self._plan else MASK63
            if memory[H_NOW] >= self._horizon:
                self._extend()
            memory[H_UNTIL] = min(end, planned, self._horizon)
            memory[H_BUDGET] = BUDGET[self.engine]
            verdict = memory.run()
            if verdict == MORE_PACKETS:
                memory.add_packets(max(memory.packets, RESERVE))
            elif verdict == MORE_EVENTS:
                memory.add_events(memory.events)
            elif memory[H_OPEN] == 0:
                break
            elif memory[H_BUDGET] == 0:
                if report is not None and report(self.progress()):
                    break
            elif self._horizon < min(end, planned):
                memory[H_NOW] = self._horizon
            elif planned <= end and self._plan:
                memory[H_NOW] = planned
                self._apply()
            elif verdict == PAUSED:
                memory[H_NOW] = end
                break
            else:
                break
        return self.finished

    def drain(self) -> None:
        """Lets what is still under way when the last message is complete arrive; acknowledgements, mostly."""
        memory = self.memory
        memory[H_OPEN] += 1
        memory[H_UNTIL] = MASK63
        memory[H_BUDGET] = BUDGET["compiled"]
        while (verdict := memory.run()) in (MORE_PACKETS, MORE_EVENTS):
            memory.add_packets(RESERVE) if verdict == MORE_PACKETS else memory.add_events(memory.events)
        memory[H_OPEN] -= 1

    def _extend(self) -> None:
        """Writes the next messages of the background."""
        assert self.background is not None
        memory = self.memory
        chunk = [*([self._next] if self._next else []), *islice(self.background, AHEAD)]
        self._next = chunk.pop() if len(chunk) > 1 else None
        self._horizon = MASK63 if self._next is None else self._next.start
        # What comes later starts later, so that nothing is written before the time has come to write it.
        known, count = len(self.messages) + len(chunk), memory[H_DONE_COUNT]
        if known > self._room:
            self._room = 2 * known
            place, old = memory.take(self._room), memory[H_DONE]
            memory.words[place : place + count] = memory.words[old : old + count]
            memory[H_DONE] = place
        self.messages.extend(chunk)
        self.flows.extend(self._carriage.add(chunk))
        held = int(self._next is not None and not self._next.extra)
        required = sum(not message.extra for message in chunk)
        self._required += required
        memory[H_OPEN] += required + held - self._held
        self._held = held

    def _apply(self) -> None:
        _, kind, index = self._plan.pop(0)
        if kind:
            self.network.write_routes()
        else:
            apply(self.network, self.changes[index], self.memory[H_NOW])


def _shift(topology: Topology) -> int:
    """Returns the width of a slot of the wheel, as a power of two picoseconds: some four full packets' worth of all links."""
    work = sum(arc.rate for arc in topology.graph.arcs)
    packets = max(work / (8 * 1514), 1e-6)
    return max(int(4 * PICOSECONDS / packets).bit_length() - 1, 6)


__all__ = ["Progress", "Simulation"]
