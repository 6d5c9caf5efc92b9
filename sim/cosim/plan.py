"""Which part of the gradients each simulated message carries, and from whom to whom.

The messages of an all-reduce say who sends how many bytes to whom, in the order in which :mod:`sim.traffic` makes them.  This
module knows that order, too, and which shard each one carries; whatever does not agree is an error, so that nothing is trained
with the losses of something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dlcp.errors import DLCPError
from sim.messages import Message
from sim.traffic.primitives import cut, cut_further

ALGORITHMS: Final = ("sharded", "ring", "ps")
"""Collectives whose messages are understood."""


class Way(NamedTuple):
    """One message as the algorithm has it: ``pull`` is the way back of a result; ranks from ``world`` on are servers.

    Where shards travel in parts, ``shard`` numbers parts: first those that are the first of their shard, then the second ones.
    """

    pull: bool
    source: int
    destination: int
    shard: int


@dataclass(frozen=True)
class Piece:
    """One message of the simulation.

    Attributes:
        number: Its position among the messages.
        way: From whom to whom, and which shard.
        offset: Where its bytes stand in the array of its collective.
        size: Bytes.
        protected: Share of its packets that no switch should drop.
    """

    number: int
    way: Way
    offset: int
    size: int
    protected: float = 1.0


@dataclass(frozen=True)
class Collective:
    """One all-reduce.

    Attributes:
        group: Its name: that of what leaves a rank at once.
        offset: Where its bytes stand among those of the group.
        size: Bytes.
        pieces: Its messages, in the order in which they were made.
    """

    group: str
    offset: int
    size: int
    pieces: tuple[Piece, ...]


def stretches(algorithm: str, size: int, owners: int) -> list[tuple[int, int]]:
    """Returns offset and length of every part of every shard of an array, in the order in which :class:`Way` numbers them."""
    shards = cut(size, owners)
    parts = [tuple(shards)] if algorithm == "ring" else cut_further(shards)
    at = [sum(shards[:owner]) for owner in range(owners)]
    found = []
    for lengths in parts:
        found += list(zip(at, lengths, strict=True))
        at = [begin + length for begin, length in zip(at, lengths, strict=True)]
    return found


def ways(algorithm: str, world: int, servers: int = 0, parts: int = 1) -> Iterator[Way]:
    """Yields the messages of an all-reduce in the order of :mod:`sim.traffic.collectives`."""
    owners = servers if algorithm == "ps" else world
    for part in range(parts):
        for way in _ways(algorithm, world, servers):
            yield way._replace(shard=part * owners + way.shard)


def _ways(algorithm: str, world: int, servers: int) -> Iterator[Way]:
    if algorithm == "ps":
        for server in range(servers):
            yield from (Way(False, rank, world + server, server) for rank in range(world))
            yield from (Way(True, world + server, rank, server) for rank in range(world))
    elif algorithm == "ring":
        for pull in (False, True):
            for step in range(world - 1):
                for shard in range(world):
                    at = (shard + step + (not pull)) % world
                    yield Way(pull, at, (at + 1) % world, shard)
    else:
        for offset in range(1, world):
            yield from (Way(False, rank, (rank + offset) % world, (rank + offset) % world) for rank in range(world))
        for offset in range(1, world):
            yield from (Way(True, shard, (shard + offset) % world, shard) for shard in range(world))


def understood(
    messages: Sequence[Message],
    algorithm: str,
    hosts: Sequence[int],
    world: int,
    parts: Sequence[tuple[str, Sequence[int]]],
) -> list[list[Collective]]:
    """Returns the collectives of every step.

    Args:
        messages: Of the simulation.
        algorithm: One of :data:`ALGORITHMS`.
        hosts: Position of the host of every rank, servers behind the ranks.
        world: Ranks, servers left out.
        parts: Name of each group, and the bytes of its collectives.

    Raises:
        DLCPError: The messages are not those of such a job.
    """
    found: dict[int, dict[str, list[int]]] = {}
    for number, message in enumerate(messages):
        if message.source != message.destination and not message.extra:
            found.setdefault(message.iteration, {}).setdefault(message.group, []).append(number)
    servers = len(hosts) - world
    steps = []
    for iteration in range(len(found)):
        groups = found.get(iteration, {})
        if set(groups) != {name for name, _ in parts}:
            raise _strange(f"step {iteration} sends {', '.join(sorted(groups)) or 'nothing'}")
        collectives = []
        for name, sizes in parts:
            numbers = iter(groups[name])
            offset = 0
            for size in sizes:
                places = stretches(algorithm, size, servers or world)
                pieces = []
                for way in ways(algorithm, world, servers, len(places) // (servers or world)):
                    at = next(numbers, -1)
                    begin, length = places[way.shard]
                    if at < 0 or not _agrees(messages[at], way, hosts, length):
                        raise _strange(f"message {at} of {name} in step {iteration} is not {way}")
                    pieces.append(Piece(at, way, begin, length, messages[at].protected))
                collectives.append(Collective(name, offset, size, tuple(pieces)))
                offset += size
            if next(numbers, None) is not None:
                raise _strange(f"{name} in step {iteration} has more messages than {algorithm} needs")
        steps.append(collectives)
    return steps


def _agrees(message: Message, way: Way, hosts: Sequence[int], length: int) -> bool:
    ends = (message.source, message.destination, message.size)
    return ends == (hosts[way.source], hosts[way.destination], max(length, 1))


def _strange(problem: str) -> DLCPError:
    return DLCPError(f"these are not the messages of one job that co-simulation understands: {problem}")


__all__ = ["ALGORITHMS", "Collective", "Piece", "Way", "stretches", "understood", "ways"]
