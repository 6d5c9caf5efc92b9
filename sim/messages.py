"""What a simulation carries: messages between hosts, and which of them wait for which."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.flows import Transport


@dataclass(slots=True, eq=False)
class Gate:
    """Lets the messages of one sender out while no more than its credit is under way, the most urgent first.

    Attributes:
        credit: Bytes; one message alone may be larger.
    """

    credit: int


@dataclass(slots=True)
class Message:
    """Bytes from one host to another.

    Attributes:
        source, destination: Positions of the hosts in the topology.
        size: Payload bytes, at least 1.
        start: Earliest time at which it is sent, in picoseconds.
        priority: Class, 0 to 7.
        after: Messages, by position, that have to be complete before.
        delay: How long its sender needs from then on, in picoseconds.
        protected: Share of its packets that no switch should drop selectively.
        bound: Largest share of its packets that may be missing.
        group: What it belongs to, for summaries: a collective, a layer.
        iteration: Training step.
        job: Which training job it belongs to, if there are several.
        transport: What carries it; None is the simulation's.
        gate: What its sender lets it through, if anything.
        urgency: Its place at the gate; the lowest goes first.
        order: Its place among messages of its class from its rank to the same other one, with DLCP; the lowest goes first.
        extra: The run does not wait for it.
        whole: Bytes that each rank contributes to the collective it is a part of; 0 if that is not known.
    """

    source: int
    destination: int
    size: int
    start: int = 0
    priority: int = 0
    after: list[int] = field(default_factory=list)
    delay: int = 0
    protected: float = 1.0
    bound: float = 0.0
    group: str = ""
    iteration: int = 0
    job: str = ""
    transport: Transport | None = None
    gate: Gate | None = None
    urgency: int = 0
    order: int = 0
    extra: bool = False
    whole: int = 0


__all__ = ["Gate", "Message"]
