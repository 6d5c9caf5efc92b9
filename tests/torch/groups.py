"""Ranks whose default group is of the backend dlcp."""

from datetime import timedelta
from functools import partial

from tests.torch.ranks import run_ranks


def run_group(function, *args, world=2, timeout=60.0, group_timeout=20.0, options=None, may_die=()):
    """Like run_ranks, but ``function`` runs with a default group of the backend dlcp."""
    setup = partial(make_group, group_timeout, options)
    return run_ranks(function, *args, world=world, timeout=timeout, may_die=may_die, setup=setup)


def make_group(group_timeout, options, store, rank, world):
    import torch.distributed as dist

    import dlcp.torch  # noqa: F401 - registers the backend

    limit = timedelta(seconds=group_timeout)
    dist.init_process_group("dlcp", store=store, rank=rank, world_size=world, timeout=limit, pg_options=options)
