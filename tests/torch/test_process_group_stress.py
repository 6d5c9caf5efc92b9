"""Calls of all kinds at once, in an order drawn by chance, on a network that loses and reorders packets."""

import random

import torch
import torch.distributed as dist

from dlcp.torch.options import ProcessGroupOptions
from tests.torch.groups import run_group

CALLS = 60


def _at_once(rank, world, seed):
    """All ranks draw the same calls; each starts them all before it waits for any, and checks every result."""
    draw = random.Random(seed)
    pair = dist.new_group([0, 1])
    started, checks = [], []

    def values(who, number, size):
        return torch.arange(size, dtype=torch.int64) * 7 + 1000 * who + number

    for number in range(CALLS):
        kind, size, root = draw.randrange(8), draw.choice([0, 1, 100, 30_000]), draw.randrange(world)
        mine, everyone = values(rank, number, size), [values(r, number, size) for r in range(world)]
        if kind == 0:
            started.append(dist.all_reduce(mine, async_op=True))
            checks.append((mine, sum(everyone)))
        elif kind == 1:
            started.append(dist.broadcast(mine, root, async_op=True))
            checks.append((mine, everyone[root]))
        elif kind == 2:
            outs = [torch.empty_like(mine) for _ in range(world)]
            started.append(dist.all_gather(outs, mine, async_op=True))
            checks += zip(outs, everyone, strict=True)
        elif kind == 3:
            out = torch.empty_like(mine)
            started.append(dist.reduce_scatter(out, [mine + r for r in range(world)], dist.ReduceOp.MAX, async_op=True))
            checks.append((out, everyone[-1] + rank))
        elif kind == 4:
            # A message to the next rank, which is asked for only after other calls have been started.
            out = torch.empty_like(mine)
            started.append(dist.isend(mine, (rank + 1) % world, tag=number % 3))
            left = (rank - 1) % world
            started.append(dist.irecv(out, left, tag=number % 3))
            checks.append((out, everyone[left]))
        elif kind == 5:
            outs = [torch.empty_like(mine) for _ in range(world)] if rank == root else None
            started.append(dist.gather(mine, outs, root, async_op=True))
            checks += zip(outs or [], everyone if outs else [], strict=True)
        elif kind == 6 and rank < 2:
            started.append(dist.all_reduce(mine, dist.ReduceOp.MIN, group=pair, async_op=True))
            checks.append((mine, everyone[0]))
        elif kind == 7:
            started.append(dist.barrier(async_op=True))
    for index in random.Random(rank).sample(range(len(started)), len(started)):
        started[index].wait()
    return all(torch.equal(found, wanted) for found, wanted in checks) and len(checks)


def test_everything_at_once():
    options = ProcessGroupOptions(faults="drop=0.01")
    for seed in (1, 2):
        assert all(run_group(_at_once, seed, world=3, options=options, group_timeout=50))
