"""All-reduces of a job as graphs of messages.

Every function takes the bytes of the array and what each rank waits for before it has its part, and returns for every rank the
messages with which it has the result.  ``fields`` are those of the messages, such as their class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sim.traffic.job import Job, Ready
from sim.traffic.primitives import HALVES, all_reduce, cut, cut_further


def ring(job: Job, size: int, ready: Ready, **fields: object) -> list[list[int]]:
    """Ring: every rank passes parts on for 2 (N - 1) steps, reducing in the first half; it sends 2 (N - 1) / N of the array."""
    return all_reduce("ring", job, range(job.world), size, ready, **fields)


def sharded(job: Job, size: int, ready: Ready, **fields: object) -> list[list[int]]:
    """Sharded: every rank reduces a shard of all ranks' data and sends it back to all; as many bytes as a ring, in two steps.

    Large shards travel in parts (:func:`~sim.traffic.primitives.cut_further`).
    """
    return all_reduce("sharded", job, range(job.world), size, ready, **fields)


def parameter_servers(job: Job, size: int, ready: Ready, **fields: object) -> list[list[int]]:
    """Dedicated parameter servers: every rank pushes a shard to each, and each sends its sum back.

    A rank sends and receives the array once; each of K servers N / K of it in each direction.

    Raises:
        ValueError: The job has no servers.
    """
    if not job.servers:
        raise ValueError("a job without servers")
    done: list[list[int]] = [[] for _ in range(job.world)]
    for lengths in cut_further(cut(size, len(job.servers))):
        for server, length in enumerate(lengths, job.world):
            pushed = [job.push(rank, server, length, ready[rank], **fields) for rank in range(job.world)]
            joined = [job.compute(server, 0, pushed, **fields)]
            for rank, mine in enumerate(done):
                mine.append(job.pull(server, rank, length, joined, **fields))
    return done


def halving_doubling(job: Job, size: int, ready: Ready, **fields: object) -> list[list[int]]:
    """Recursive halving and doubling (Thakur et al., IJHPCA 2005, section 4.5).

    Of N = 2^m + r ranks the first 2 r form pairs: the even one gives its whole array to the odd one and gets the result at the
    end.  The 2^m others exchange halves of what they still reduce, m times, and then double what they have in the same way.
    """
    power = 1 << (job.world.bit_length() - 1)
    extra = job.world - power
    members = [2 * pair + 1 for pair in range(extra)] + list(range(2 * extra, job.world))
    state = [list(mine) for mine in ready]
    for rank in range(0, 2 * extra, 2):
        state[rank + 1].append(job.push(rank, rank + 1, size, ready[rank], **fields))
    low, high = [0] * power, [size] * power
    distance = power >> 1
    while distance:
        middle = [(a + b) // 2 for a, b in zip(low, high, strict=True)]
        sent = [
            job.push(
                rank,
                members[place ^ distance],
                middle[place] - low[place] if place & distance else high[place] - middle[place],
                state[rank],
                **fields,
            )
            for place, rank in enumerate(members)
        ]
        for place, rank in enumerate(members):
            (low if place & distance else high)[place] = middle[place]
            state[rank].append(sent[place ^ distance])
        distance >>= 1
    distance = 1
    while distance < power:
        sent = [
            job.pull(rank, members[place ^ distance], high[place] - low[place], state[rank], **fields)
            for place, rank in enumerate(members)
        ]
        spans = list(zip(low, high, strict=True))
        for place, rank in enumerate(members):
            other = spans[place ^ distance]
            low[place], high[place] = min(low[place], other[0]), max(high[place], other[1])
            state[rank].append(sent[place ^ distance])
        distance <<= 1
    for rank in range(0, 2 * extra, 2):
        state[rank].append(job.pull(rank + 1, rank, size, state[rank + 1], **fields))
    return state


def hierarchical(job: Job, size: int, ready: Ready, **fields: object) -> list[list[int]]:
    """Two levels: reduce-scatter within every rack, an all-reduce of each shard among racks, an all-gather within every rack.

    The array has as many shards as the smallest rack has ranks, and so have racks owners.  With racks of one size, k, a rank
    sends 2 (k - 1) / k of the array within its rack, and 2 (R - 1) / R of a k-th of it to other racks.  With one rank in the
    smallest rack this is the classic scheme: one leader a rack, and a broadcast from it.
    """
    racks = job.racks or [range(job.world)]
    lengths = cut(size, min(len(rack) for rack in racks))
    scatter, gather = HALVES[job.inner]
    held = [scatter(job, rack, lengths, [ready[rank] for rank in rack], **fields) for rack in racks]
    for shard, length in enumerate(lengths):
        owners = [rack[shard] for rack in racks]
        shared = all_reduce(job.across, job, owners, length, [mine[shard] for mine in held], **fields)
        for mine, result in zip(held, shared, strict=True):
            mine[shard] = result
    done: list[list[int]] = [[] for _ in range(job.world)]
    for rack, mine in zip(racks, held, strict=True):
        for rank, result in zip(rack, gather(job, rack, lengths, mine, **fields), strict=True):
            done[rank] = result
    return done


def grouped(job: Job, size: int, ready: Ready, *, iteration: int = 0, **fields: object) -> list[list[int]]:
    """Divide-and-shuffle synchronization: all-reduces within the groups of the iteration's round.

    Raises:
        ValueError: The job has no rounds.
    """
    if not job.rounds:
        raise ValueError("a job without rounds of groups")
    done = [list(mine) for mine in ready]
    for group in job.rounds[iteration // job.local_steps % len(job.rounds)]:
        results = all_reduce(job.inner, job, group, size, [ready[rank] for rank in group], iteration=iteration, **fields)
        for rank, result in zip(group, results, strict=True):
            done[rank] = result
    return done


COLLECTIVES: Final[dict[str, Callable[..., list[list[int]]]]] = {
    "ring": ring,
    "sharded": sharded,
    "ps": parameter_servers,
    "halving-doubling": halving_doubling,
    "hierarchical": hierarchical,
    "ds-sync": grouped,
}
"""All-reduces by name."""

__all__ = [
    "COLLECTIVES",
    "grouped",
    "halving_doubling",
    "hierarchical",
    "parameter_servers",
    "ring",
    "sharded",
]
