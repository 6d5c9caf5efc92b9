"""What a simulation carries: messages between hosts, and which of them wait for which."""

from __future__ import annotations

from dataclasses import dataclass, field


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


__all__ = ["Message"]
