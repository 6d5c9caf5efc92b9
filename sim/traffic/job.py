"""A training job under construction: where its ranks are, and the messages that they send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from dlcp.policy import Policy
from sim.messages import Gate, Message

Ready: TypeAlias = Sequence[Sequence[int]]
"""For every rank the messages that it waits for."""


@dataclass
class Job:
    """A training job under construction.

    Attributes:
        places: Host of every rank, by position.
        policy: Its loss bounds and protected shares.
        messages: What it sends; jobs of one simulation share the list.
        name: What it is called in results.
        servers: Hosts of parameter servers, which are numbered after the ranks.
        racks: The ranks of every rack, for hierarchical collectives; all in one if it is empty.
        rounds: For every round its groups of ranks, for divide-and-shuffle synchronization; it begins anew after the last.
        inner, across: How racks and groups reduce, and how racks do among each other: ``ring`` or ``sharded``.
        local_steps: Steps from one synchronization, and round, to the next.
        start: When it begins, picoseconds.
        credit: Bytes that a rank or server has under way at most; None is no bound.
    """

    places: Sequence[int]
    policy: Policy = field(default_factory=Policy)
    messages: list[Message] = field(default_factory=list)
    name: str = ""
    servers: Sequence[int] = ()
    racks: Sequence[Sequence[int]] = ()
    rounds: Sequence[Sequence[Sequence[int]]] = ()
    inner: str = "ring"
    across: str = "ring"
    local_steps: int = 1
    start: int = 0
    credit: int | None = None

    def __post_init__(self) -> None:
        self._hosts = [*self.places, *self.servers]
        self._gates = [Gate(self.credit) for _ in self._hosts] if self.credit is not None else []

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.places)

    def send(self, source: int, destination: int, size: int, after: Sequence[int] = (), **fields: object) -> int:
        """Adds a message between two ranks or servers; returns its number."""
        message = Message(
            self._hosts[source],
            self._hosts[destination],
            max(size, 1),
            start=self.start,
            after=list(after),
            job=self.name,
            gate=self._gates[source] if self._gates else None,
        )
        for name, value in fields.items():
            setattr(message, name, value)
        self.messages.append(message)
        return len(self.messages) - 1

    def push(self, source: int, destination: int, size: int, after: Sequence[int] = (), **fields: object) -> int:
        """Adds a message that the policy allows to lose a part of."""
        return self.send(
            source, destination, size, after, protected=self.policy.protection.share, bound=self.policy.loss.push, **fields
        )

    def pull(self, source: int, destination: int, size: int, after: Sequence[int] = (), **fields: object) -> int:
        """Adds a message of the way back."""
        bound = self.policy.loss.pull
        share = self.policy.protection.share if bound else 1.0
        return self.send(source, destination, size, after, protected=share, bound=bound, **fields)

    def compute(self, rank: int, duration: int, after: Sequence[int] = (), **fields: object) -> int:
        """Adds a time, in picoseconds, for which a rank computes: a message to itself, which takes no time but this."""
        return self.send(rank, rank, 1, after, delay=duration, **fields)


__all__ = ["Job", "Ready"]
