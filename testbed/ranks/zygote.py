"""A process that has torch and the training script loaded, and forks a process for each rank: milliseconds, not seconds.

It is a fork server (:mod:`testbed.lab.forks`) whose requests have, besides what all have, ``name`` (the rank), ``arguments`` (of
examples/train.py) and ``environment``.  It runs no tensor operation: a fork after the first one would leave autograd and OpenMP
with threads that are not there.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Final

from testbed.lab.forks import Request, serve

THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""One each: ranks of one machine share its cores, and a thread pool would not survive the fork."""
PRELOADED: Final = (
    "torch",
    "torch._dynamo",
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
    "torch.nn.parallel",
    "sklearn.datasets",
    "dlcp.torch",
    "dlcp.udp.faults",
    "examples.train",
)


def main() -> int:
    """Serves requests until the other side is gone."""
    return serve(_load, _train, lambda request: f"rank-{request['name']}")


def _load() -> None:
    """Imports what every rank needs."""
    for name in PRELOADED:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)


def _train(request: Request) -> int:
    os.environ.update(request["environment"])
    from examples.train import main as train

    return int(train(request["arguments"]))


if __name__ == "__main__":
    sys.exit(main())
