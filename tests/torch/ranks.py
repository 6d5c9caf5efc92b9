"""Runs a function on several ranks, each a process of its own with a gloo process group.

Importing torch takes seconds, so the ranks are forked from a server process that has imported it.  That process runs no tensor
operation: a fork after the first one would leave autograd and OpenMP with threads that are not there.
"""

import multiprocessing
import os
import tempfile
import time
import traceback
import warnings
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        *("torch", "torch.distributed", "torch._dynamo", "torch.nn.parallel", "pytest", "hypothesis", "sklearn.datasets"),
        *("dlcp.torch", "dlcp.udp.faults", "examples.train"),
    ]
)


class Died:
    """What a rank leaves that ended without a result."""

    def __init__(self, code):
        self.code = code

    def __repr__(self):
        return f"Died({self.code})"


def run_ranks(function, *args, world=2, timeout=60.0, may_die=(), setup=None):
    """Calls ``function(rank, world, *args)`` in ``world`` processes and returns the results in the order of the ranks.

    An exception in any rank fails the test with that rank's traceback.  Ranks in ``may_die`` may end without a result.
    ``setup(store, rank, world)`` makes the default group; without it it is of gloo.
    """
    with tempfile.TemporaryDirectory() as folder:
        processes, pipes = [], []
        try:
            for rank in range(world):
                ours, theirs = _CONTEXT.Pipe(duplex=False)
                process = _CONTEXT.Process(target=_main, args=(function, rank, world, folder, theirs, args, setup), daemon=True)
                process.start()
                theirs.close()
                processes.append(process)
                pipes.append(ours)
            return _collect(processes, pipes, timeout, may_die)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()
                process.close()
            for pipe in pipes:
                pipe.close()


def _collect(processes, pipes, timeout, may_die):
    results = {}
    end = time.monotonic() + timeout
    while len(results) < len(pipes):
        open_pipes = [pipe for rank, pipe in enumerate(pipes) if rank not in results]
        ready = wait(open_pipes, max(0.0, end - time.monotonic()))
        if not ready:
            raise AssertionError(f"ranks {[r for r in range(len(pipes)) if r not in results]} have not ended in {timeout} s")
        for pipe in ready:
            rank = pipes.index(pipe)
            try:
                good, value = pipe.recv()
            except EOFError:
                processes[rank].join()
                good, value = rank in may_die, Died(processes[rank].exitcode)
            if not good:
                raise AssertionError(f"rank {rank}: {value}")
            results[rank] = value
    return [results[rank] for rank in range(len(pipes))]


def _main(function, rank, world, folder, pipe, args, setup):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("error")
    try:
        store = dist.FileStore(str(Path(folder) / "store"), world)
        if setup is not None:
            setup(store, rank, world)
        else:
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
        value = function(rank, world, *args)
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    else:
        pipe.send((True, value))
        dist.destroy_process_group()
    pipe.close()
    os._exit(0)
