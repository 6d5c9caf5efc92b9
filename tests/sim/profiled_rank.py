"""A rank of a job over gloo that profiles itself: rank, folder.  Run as a program by the tests of traces."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile


def main(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(300, 100))
    model(torch.randn(4, 300)).sum().backward()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        for _ in range(2):
            model(torch.randn(4, 300)).sum().backward()
        dist.broadcast(torch.ones(50, dtype=torch.float64), 1)
        dist.all_gather([torch.ones(10), torch.ones(10)], torch.ones(10))
        dist.send(torch.ones(77), 1) if rank == 0 else dist.recv(torch.ones(77), 0)
        dist.reduce(torch.ones(5, dtype=torch.int64), 1)
        dist.scatter(torch.ones(6), [torch.ones(6), torch.ones(6)] if rank == 0 else None, 0)
        dist.barrier()
    found.export_chrome_trace(str(Path(folder) / f"rank{rank}.json"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
