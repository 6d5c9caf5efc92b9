"""What ranks of all adapters' tests have in common."""

import warnings

import numpy as np

from dlcp import Communicator, FileStore
from tests.collectives.processes import policy

LOSSY = {"loss": {"push": 0.2, "evenness": 0.0}, "wire": {"mtu": 1500}, "protection": {"share": 0.1}}
DROPS = "drop=0.1,type=data;seed=3"


def communicator(rank, folder, world=2, *, faults=None, name="default", **more):
    """Joins the ranks of a test; frameworks' own warnings are none of its business."""
    warnings.simplefilter("default")
    return Communicator(rank, world, FileStore(folder), policy=policy(**more), faults=faults, name=name)


def whole_numbers(rank, step, shape):
    """Gradients whose sums and halves are exact in every type."""
    return np.random.default_rng((rank, step)).integers(-8, 9, shape) * 2


def mean_of(world, step, shape):
    return sum(whole_numbers(rank, step, shape) for rank in range(world)) / world


def digest(arrays):
    return b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
