"""What the averager costs beyond one fused all-reduce of the same bytes in the same group, and how long planning takes.

python benchmarks/dssync_overhead.py
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.dssync_slow_link import Network, enter


def rank_main(
    rank: int, world: int, namespace: str, folder: str, megabytes: float, bucket: float, rounds: int, backend: str, pipe: Any
) -> None:
    """Measures both, taking turns, and sends the seconds."""
    if namespace:
        enter(namespace)
    import torch
    import torch.distributed as dist
    from torch import nn

    from dssync import DivideShuffleAverager

    torch.set_num_threads(1)
    host = f"10.9.0.{rank + 1}" if namespace else "127.0.0.1"
    store = dist.FileStore(f"{folder}/store", world)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    width = int((megabytes * 1e6 / 4 / 24) ** 0.5)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(24)))
    averager = DivideShuffleAverager(model, "bsp", bucket_mb=bucket, backend=backend, host=host)
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    averager.average_parameters()
    group: Any = dist.group.WORLD
    fused: list[float] = []
    ours: list[float] = []
    for _ in range(rounds):
        for times, act in ((fused, lambda: group.allreduce([flat]).wait()), (ours, averager.average_parameters)):
            dist.barrier()
            begin = time.perf_counter()
            act()
            times.append(time.perf_counter() - begin)
        flat.mul_(1 / world)
    pipe.send((fused, ours, flat.numel() * 4))
    averager.close()


def compare(
    world: int, megabytes: float, bucket: float, rounds: int, rate: float, backend: str
) -> tuple[list[float], list[float], int]:
    """Returns the seconds of rank 0 for both, and the bytes."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, Network([rate] * world, 0.0) if rate else nullcontext() as network:
        pipes, processes = [], []
        for rank in range(world):
            ours, theirs = context.Pipe(duplex=False)
            space = network.hosts[rank] if network is not None else ""
            process = context.Process(
                target=rank_main, args=(rank, world, space, folder, megabytes, bucket, rounds, backend, theirs)
            )
            process.start()
            pipes.append(ours)
            processes.append(process)
        result: tuple[list[float], list[float], int] = pipes[0].recv()
        for process in processes:
            process.join()
    return result


def plan_seconds() -> tuple[float, float]:
    """Returns seconds of processor time for all schedules, and for a plan, of 1,024 ranks."""
    from dlcp.topology import LeafSpine
    from dssync.mixing import make_plan
    from dssync.schedule import BaseK, Digits, Shuffled

    topology = LeafSpine(leaves=32, hosts_per_leaf=32, spines=4, oversubscription=4.0).build()
    best = [float("inf"), float("inf")]
    for _ in range(3):
        begin = time.thread_time()
        for schedule in (BaseK(1023, 2), Digits(1024, 2), Shuffled(1024, 2)):
            _ = schedule.rounds
        middle = time.thread_time()
        make_plan(topology, 100_000_000)
        end = time.thread_time()
        best = [min(best[0], middle - begin), min(best[1], end - middle)]
    return best[0], best[1]


def main() -> None:
    """Prints tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--megabytes", type=float, default=25.0)
    parser.add_argument("--bucket", type=float, default=25.0, help="MiB of the averager's buckets")
    parser.add_argument("--backend", default="gloo", help="of the averager: gloo or dlcp; the fused all-reduce is gloo's")
    parser.add_argument("--rate", type=float, default=0.0, help="Mbit/s of links between namespaces (root); 0: loopback")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    print("| ranks in the group | MB | fused all-reduce, median (least) | averager, median (least) | overhead, median (least) |")
    print("|---|---|---|---|---|")
    for world in options.ranks:
        fused, ours, size = compare(world, options.megabytes, options.bucket, options.rounds, options.rate, options.backend)
        typical = [statistics.median(times) * 1e3 for times in (fused, ours)]
        least = [min(times) * 1e3 for times in (fused, ours)]
        print(
            f"| {world} | {size / 1e6:.1f} | {typical[0]:.1f} ms ({least[0]:.1f}) | {typical[1]:.1f} ms ({least[1]:.1f}) "
            f"| {typical[1] / typical[0] - 1:+.1%} ({least[1] / least[0] - 1:+.1%}) |",
            flush=True,
        )
    schedules, plan = plan_seconds()
    print(f"\n1,024 ranks: three schedules of them {schedules:.2f} s, a plan with 8 of them {plan:.2f} s of processor time")


if __name__ == "__main__":
    main()
