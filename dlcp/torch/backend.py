"""Registers the backend with torch and makes its groups."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from dlcp.torch.options import ProcessGroupOptions
from dlcp.torch.process_group import NAME, ProcessGroupDLCP


def register_backend() -> None:
    """Makes ``init_process_group("dlcp")`` and ``new_group(backend="dlcp")`` work; importing :mod:`dlcp.torch` does so."""
    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _make, extended_api=True, devices=["cpu"])


def _make(options: Any, backend_options: object) -> ProcessGroupDLCP:
    """Makes a group, as torch asks for it."""
    if backend_options is not None and not isinstance(backend_options, ProcessGroupOptions):
        raise TypeError(f"pg_options is a {type(backend_options).__name__}; dlcp takes dlcp.torch.ProcessGroupOptions")
    own = backend_options
    # Torch lists no ranks for the default group.
    if own is None and options.global_ranks_in_group and isinstance(dist.group.WORLD, ProcessGroupDLCP):
        own = dist.group.WORLD.options.for_subgroup()
    chosen = (own or ProcessGroupOptions()).completed()
    return ProcessGroupDLCP(options.store, options.group_rank, options.group_size, options.timeout, chosen)
