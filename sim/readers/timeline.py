"""What ranks do, as messages: computing, collectives, and who waits for whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sim.messages import Message
from sim.readers.found import POLICY
from sim.readers.text import MAX_MESSAGES

KINDS: Final = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
)
_LOSSY: Final = ("all_reduce", "reduce_scatter", "reduce")
"""What sums gradients, and may miss as much as the policy says; the rest arrives whole."""

Ready = Sequence[Sequence[int]]
"""For each member the messages that it waits for."""


class TooMany(ValueError):
    """More messages than a simulation should have."""


class Timeline:
    """Messages under construction.

    Args:
        limit: Most of them.

    Attributes:
        messages: So far; rank and host are one.
    """

    def __init__(self, limit: int = MAX_MESSAGES) -> None:
        self.messages: list[Message] = []
        self._limit = limit

    def compute(self, rank: int, duration: int, after: Sequence[int] = (), *, group: str = "compute", iteration: int = 0) -> int:
        """Adds a time, in picoseconds, for which a rank computes; returns its number.

        Raises:
            TooMany: There is no room.
        """
        self._reserve(1)
        self.messages.append(Message(rank, rank, 1, after=list(after), delay=duration, group=group, iteration=iteration))
        return len(self.messages) - 1

    def send(self, source: int, destination: int, size: int, after: Sequence[int] = (), *, group: str = "send") -> int:
        """Adds a message that arrives whole; returns its number; raises TooMany."""
        self._reserve(1)
        self.messages.append(Message(source, destination, max(size, 1), after=list(after), group=group))
        return len(self.messages) - 1

    def collective(
        self,
        kind: str,
        members: Sequence[int],
        size: int,
        ready: Ready,
        *,
        root: int = 0,
        group: str = "",
        iteration: int = 0,
        priority: int = 0,
    ) -> list[int]:
        """Adds a collective.

        Args:
            kind: One of :data:`KINDS`.
            members: The ranks.
            size: Bytes of the whole: what every rank has of an all-reduce, broadcast, reduce, or all-to-all; what all ranks have
                together of an all-gather, gather, scatter, or reduce-scatter.
            ready: For each member the messages that it waits for.
            root: Position of the root in ``members``.
            group, iteration, priority: Of every message.

        Returns:
            For each member a message with which it is through.

        Raises:
            TooMany: There is no room.
        """
        first, count = len(self.messages), len(members)
        self._reserve(cost(kind, count))
        if count > 1:
            done = _WAYS[kind](_Ranks(members, self.messages), size, ready, root)
        else:
            done = [list(mine) for mine in ready]
        lossy = kind in _LOSSY
        for message in self.messages[first:]:
            message.bound = POLICY if lossy else 0.0
            message.protected = POLICY if lossy else 1.0
            message.group, message.iteration, message.priority = group or kind, iteration, priority
        # One message for each member stands for all that it waits for: whatever follows has one edge rather than many.
        return [self.compute(rank, 0, mine, group="done", iteration=iteration) for rank, mine in zip(members, done, strict=True)]

    def _reserve(self, count: int) -> None:
        if len(self.messages) + count > self._limit:
            raise TooMany(f"more than {self._limit} messages")


def cost(kind: str, count: int) -> int:
    """Returns how many messages a collective takes, at most, those at its end included."""
    if kind == "all_reduce":
        return 2 * count * (count - 1) + count
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return count * count
    return count * (count.bit_length() + 1) if kind == "barrier" else 2 * count - 1


class _Ranks:
    """Members of a group, by position, and what they send."""

    def __init__(self, members: Sequence[int], messages: list[Message]) -> None:
        self.members, self._messages = members, messages
        self.world = len(members)

    def send(self, source: int, target: int, size: int, after: Sequence[int]) -> int:
        """Adds a message; returns its number."""
        self._messages.append(Message(self.members[source], self.members[target], max(size, 1), after=list(after)))
        return len(self._messages) - 1


def _around(ranks: _Ranks, size: int, ready: Ready, reduced: int, gathered: int) -> list[list[int]]:
    """Passes shares on around a ring: so many times adding one's own, then so many times as they are.

    A rank is through when it has every share of the second part, or else the last of the first.
    """
    world = ranks.world
    before = [list(mine) for mine in ready]
    done: list[list[int]] = [list(mine) for mine in ready]
    for step in range(reduced + gathered):
        sent = []
        for rank in range(world):
            part = (rank - step) % world
            length = size * (part + 1) // world - size * part // world
            sent.append(ranks.send(rank, (rank + 1) % world, length, before[rank]))
        # What a rank sends next is what it has just received, once it takes part itself.
        before = [[sent[(rank - 1) % world], *ready[rank]] for rank in range(world)]
        for rank in range(world):
            if step >= reduced:
                done[rank].append(sent[(rank - 1) % world])
    return done if gathered else before


def _all_reduce(ranks: _Ranks, size: int, ready: Ready, root: int) -> list[list[int]]:
    return _around(ranks, size, ready, ranks.world - 1, ranks.world - 1)


def _all_gather(ranks: _Ranks, size: int, ready: Ready, root: int) -> list[list[int]]:
    return _around(ranks, size, ready, 0, ranks.world - 1)


def _reduce_scatter(ranks: _Ranks, size: int, ready: Ready, root: int) -> list[list[int]]:
    return _around(ranks, size, ready, ranks.world - 1, 0)


def _all_to_all(ranks: _Ranks, size: int, ready: Ready, root: int) -> list[list[int]]:
    world = ranks.world
    done = [list(mine) for mine in ready]
    for offset in range(1, world):
        for rank in range(world):
            other = (rank + offset) % world
            done[other].append(ranks.send(rank, other, size // world, ready[rank]))
    return done


def _broadcast(ranks: _Ranks, size: int, ready: Ready, root: int) -> list[list[int]]:
    """A binomial tree: those who have it send to as many who do not."""
    world = ranks.world
    done = [list(mine) for mine in ready]
    reach = 1
    while reach < world:
        for place in range(min(reach, world - reach)):
            source, target = (root + place) % world, (root + place + reach) % world
            message = ranks.send(source, target, size, done[source])
            done[target].append(message)
        reach *= 2
    return done


def _reduce(ranks: _Ranks, size: int, ready: Ready, root: int) -> list[list[int]]:
    world = ranks.world
    done = [list(mine) for mine in ready]
    reach = 1 << (world - 1).bit_length()
    while reach > 1:
        reach //= 2
        for place in range(min(reach, world - reach)):
            target, source = (root + place) % world, (root + place + reach) % world
            done[target].append(ranks.send(source, target, size, done[source]))
    return done


def _gather(ranks: _Ranks, size: int, ready: Ready, root: int) -> list[list[int]]:
    done = [list(mine) for mine in ready]
    for rank in range(ranks.world):
        if rank != root:
            done[root].append(ranks.send(rank, root, size // ranks.world, ready[rank]))
    return done


def _scatter(ranks: _Ranks, size: int, ready: Ready, root: int) -> list[list[int]]:
    done = [list(mine) for mine in ready]
    for rank in range(ranks.world):
        if rank != root:
            done[rank].append(ranks.send(root, rank, size // ranks.world, ready[root]))
    return done


def _barrier(ranks: _Ranks, size: int, ready: Ready, root: int) -> list[list[int]]:
    """Dissemination: in round k everybody tells who is 2^k further on."""
    world = ranks.world
    before = [list(mine) for mine in ready]
    reach = 1
    while reach < world:
        sent = [ranks.send(rank, (rank + reach) % world, 1, before[rank]) for rank in range(world)]
        before = [[sent[(rank - reach) % world], *before[rank]] for rank in range(world)]
        reach *= 2
    return before


_WAYS: Final[dict[str, Callable[[_Ranks, int, Ready, int], list[list[int]]]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "barrier": _barrier,
}


__all__ = ["KINDS", "Timeline", "TooMany", "cost"]
