"""Small exchanges among all ranks: do they agree, and where do they start.  No pickle: bytes in tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dlcp.errors import MismatchError, RendezvousError
from dssync.averager.layout import Slot, partition


def control_device(group: dist.ProcessGroup) -> torch.device:
    """Returns where tensors have to lie for collectives of ``group``."""
    kinds = {device.type for device in group._device_types}
    return torch.device("cpu") if "cpu" in kinds or not kinds else torch.device(next(iter(kinds)))


def gather_bytes(group: dist.ProcessGroup, own: bytes) -> list[bytes]:
    """Returns the ``own`` of every rank, which have the same length.

    Raises:
        RendezvousError: A rank did not take part within the group's timeout.
    """
    device = control_device(group)
    mine = torch.frombuffer(bytearray(own), dtype=torch.uint8).to(device)
    everybody = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    try:
        dist.all_gather(everybody, mine, group=group)
    except RuntimeError as error:
        raise RendezvousError(f"a rank did not take part in an exchange: {first_line(error)}") from error
    return [bytes(tensor.cpu().numpy().tobytes()) for tensor in everybody]


def check_equal(group: dist.ProcessGroup, own: bytes, what: str) -> None:
    """Compares digests.

    Raises:
        MismatchError: On every rank, if one of them differs.
    """
    found = gather_bytes(group, own)
    differing = [rank for rank, digest in enumerate(found) if digest != found[0]]
    if differing:
        verb = "differ" if len(differing) > 1 else "differs"
        raise MismatchError(f"{what}: {verb} from rank 0's on rank {', '.join(map(str, differing))}")


def broadcast_slots(group: dist.ProcessGroup, slots: Sequence[Slot], bucket_bytes: int) -> None:
    """Gives every rank the values of the first one.

    Raises:
        RendezvousError: A rank did not take part within the group's timeout.
    """
    device = control_device(group)
    source = dist.get_global_rank(group, 0)
    for part in partition(slots, bucket_bytes):
        flat = torch.cat([slot.tensor.reshape(-1) for slot in part]).to(device)
        try:
            dist.broadcast(flat, source, group=group)
        except RuntimeError as error:
            raise RendezvousError(f"a rank did not take part in the first broadcast: {first_line(error)}") from error
        at = 0
        for slot in part:
            count = slot.tensor.numel()
            slot.tensor.copy_(flat[at : at + count].view(slot.tensor.shape))
            at += count


def maximum(group: dist.ProcessGroup, values: Tensor) -> Tensor:
    """Returns the elementwise maximum over all ranks."""
    moved = values.to(control_device(group))
    dist.all_reduce(moved, op=dist.ReduceOp.MAX, group=group)
    return moved.to(values.device)


def first_line(error: BaseException) -> str:
    """Returns what an error says, without the stack that torch appends."""
    lines: Any = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


__all__ = ["broadcast_slots", "check_equal", "control_device", "first_line", "gather_bytes", "maximum"]
