"""Halves of an all-reduce among some of the ranks: reduce-scatter and all-gather, along a ring or directly.

The array is cut into shards, of which the first ranks own one each; there may be fewer shards than ranks. A reduce-scatter leaves
the sum of a shard with its owner, an all-gather brings every shard from its owner to all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from sim.traffic.job import Job, Ready

Half: TypeAlias = Callable[..., list[list[int]]]
PARTS: Final = 4
"""Parts that a shard is cut into if it is large enough, as ``dlcp.collectives.plan`` does: results of the first travel while
contributions to the last still do."""
PART_BYTES: Final = 64 * 1424
"""No shard is cut into parts smaller than this: 64 packets of DLCP, with an MTU of 1500 bytes."""


def cut(size: int, parts: int) -> list[int]:
    """Returns the lengths of ``parts`` parts that differ by one byte at most."""
    return [size * (part + 1) // parts - size * part // parts for part in range(parts)]


def cut_further(lengths: Sequence[int]) -> list[tuple[int, ...]]:
    """Cuts shards into parts.

    Args:
        lengths: Bytes of every shard; they differ by one at most.

    Returns:
        For every part its length in each shard.
    """
    longest = max(lengths)
    count = max(-(-longest // max(-(-longest // PARTS), PART_BYTES)), 1)
    return list(zip(*(cut(length, count) for length in lengths), strict=True))


def scatter_ring(job: Job, ranks: Sequence[int], lengths: Sequence[int], ready: Ready, **fields: object) -> list[list[int]]:
    """Reduce-scatter along a ring: a shard starts behind its owner and comes round to it in n - 1 steps.

    Args:
        job: Where.
        ranks: Those that take part, shard s being that of ``ranks[s]``.
        lengths: Bytes of every shard.
        ready: What each of ``ranks`` waits for before it has data.
        fields: Of the messages.

    Returns:
        For every shard the messages with which its owner has the sum.
    """
    count = len(ranks)
    held: list[list[int]] = [[] for _ in lengths]
    for step in range(count - 1):
        for shard, length in enumerate(lengths):
            at = (shard + 1 + step) % count
            after = [*held[shard], *ready[at]]
            held[shard] = [job.push(ranks[at], ranks[(at + 1) % count], length, after, **fields)]
    return [[*mine, *ready[shard]] for shard, mine in enumerate(held)]


def scatter_direct(job: Job, ranks: Sequence[int], lengths: Sequence[int], ready: Ready, **fields: object) -> list[list[int]]:
    """Reduce-scatter in one step: everybody sends to every owner.  Like :func:`scatter_ring` otherwise."""
    count = len(ranks)
    held: list[list[int]] = [[] for _ in lengths]
    for offset in range(1, count):
        for at in range(count):
            shard = (at + offset) % count
            if shard < len(lengths):
                held[shard].append(job.push(ranks[at], ranks[shard], lengths[shard], ready[at], **fields))
    # One node joins them, lest every message of the way back waits for every one of these.
    return [
        [job.compute(ranks[shard], 0, [*mine, *ready[shard]], **fields)] if mine else list(ready[shard])
        for shard, mine in enumerate(held)
    ]


def gather_ring(job: Job, ranks: Sequence[int], lengths: Sequence[int], held: Ready, **fields: object) -> list[list[int]]:
    """All-gather along a ring.

    Args:
        job: Where.
        ranks: Those that take part.
        lengths: Bytes of every shard.
        held: For every shard what its owner waits for before it has it.
        fields: Of the messages.

    Returns:
        For every one of ``ranks`` the messages with which it has all shards.
    """
    count = len(ranks)
    got: list[list[int]] = [[] for _ in ranks]
    last = [list(mine) for mine in held]
    for step in range(count - 1):
        for shard, length in enumerate(lengths):
            at = (shard + step) % count
            last[shard] = [job.pull(ranks[at], ranks[(at + 1) % count], length, last[shard], **fields)]
            got[(at + 1) % count] += last[shard]
    return [[*mine, *(held[at] if at < len(held) else ())] for at, mine in enumerate(got)]


def gather_direct(job: Job, ranks: Sequence[int], lengths: Sequence[int], held: Ready, **fields: object) -> list[list[int]]:
    """All-gather in one step: every owner sends to everybody.  Like :func:`gather_ring` otherwise."""
    count = len(ranks)
    got: list[list[int]] = [[] for _ in ranks]
    for offset in range(1, count):
        for shard, length in enumerate(lengths):
            at = (shard + offset) % count
            got[at].append(job.pull(ranks[shard], ranks[at], length, held[shard], **fields))
    return [[*mine, *(held[at] if at < len(held) else ())] for at, mine in enumerate(got)]


HALVES: Final[dict[str, tuple[Half, Half]]] = {
    "ring": (scatter_ring, gather_ring),
    "sharded": (scatter_direct, gather_direct),
}
"""Reduce-scatter and all-gather by name."""


def all_reduce(kind: str, job: Job, ranks: Sequence[int], size: int, ready: Ready, **fields: object) -> list[list[int]]:
    """All-reduce among some ranks; returns for each of them the messages with which it has the result.

    Not along a ring, shards travel in parts, each of which is reduced by itself.
    """
    scatter, gather = HALVES[kind]
    shards = cut(size, len(ranks))
    results: list[list[int]] = [[] for _ in ranks]
    for lengths in [shards] if kind == "ring" else cut_further(shards):
        done = gather(job, ranks, lengths, scatter(job, ranks, lengths, ready, **fields), **fields)
        for mine, more in zip(results, done, strict=True):
            mine += more
    return results


__all__ = ["HALVES", "all_reduce", "cut", "cut_further", "gather_direct", "gather_ring", "scatter_direct", "scatter_ring"]
