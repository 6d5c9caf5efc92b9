"""Checkpoints of all ranks, and going on from the newest that is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dlcp.errors import ConfigError
from dlcp.torch import DLCPState

KEPT = 2
"""Epochs kept: the newest may be incomplete when a rank has died while it was saving."""


def _path(folder: Path, epoch: int, rank: int) -> Path:
    return folder / f"epoch{epoch:05d}.rank{rank}.pt"


def save(
    folder: Path,
    epoch: int,
    rank: int,
    world: int,
    identity: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: DLCPState | None,
) -> None:
    """Writes this rank's file, whole or not at all, and removes its oldest.

    Args:
        folder: Made if it is missing.
        epoch: Epochs that are done.
        rank: Own rank.
        world: Number of ranks.
        identity: What must be the same when the checkpoint is taken up.
        model: The bare module.
        optimizer: Its optimizer.
        state: DLCP's state, if DLCP carries the gradients.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, epoch, rank)
    temporary = path.with_suffix(".new")
    content = {
        "identity": {**identity, "world": world, "rank": rank},
        "epoch": epoch,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "dlcp": state.state_dict() if state is not None else None,
        "random": torch.get_rng_state(),
    }
    torch.save(content, temporary)
    temporary.replace(path)
    _path(folder, epoch - KEPT, rank).unlink(missing_ok=True)


def load_latest(
    folder: Path,
    rank: int,
    world: int,
    identity: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: DLCPState | None,
) -> int:
    """Takes up the newest epoch that all ranks have, and returns how many epochs are done: 0 if there is none.

    Raises:
        ConfigError: The files are of another job.
    """
    mine = sorted(int(path.name[5:10]) for path in folder.glob(f"epoch?????.rank{rank}.pt"))
    newest = torch.tensor(mine[-1] if mine else 0)
    dist.all_reduce(newest, op=dist.ReduceOp.MIN)
    epoch = int(newest)
    if epoch == 0:
        return 0
    path = _path(folder, epoch, rank)
    if not path.exists():
        raise ConfigError(folder, path.name, "missing, though other ranks have nothing newer", "checkpoints of one run")
    saved = torch.load(path, weights_only=True)
    for key, value in {**identity, "world": world, "rank": rank}.items():
        if saved["identity"].get(key) != value:
            raise ConfigError(path, key, f"the checkpoint says {saved['identity'].get(key)!r}", f"{value!r}, as in this run")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    if state is not None:
        state.load_state_dict(saved["dlcp"], str(path))
    torch.set_rng_state(saved["random"])
    return epoch
