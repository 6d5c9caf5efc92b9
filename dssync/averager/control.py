"""Small exchanges among all ranks: do they agree, and where do they start.  No pickle: bytes in tensors.

All go over the control group of :class:`~dssync.groups.members.GroupSet`, which torch does not know by name, hence its methods
and not the functions of ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from dlcp.errors import MismatchError, RendezvousError
from dssync.averager.layout import Slot, Transfer, partition
from dssync.groups.link import GroupLink


def gather_bytes(group: dist.ProcessGroup, own: bytes) -> list[bytes]:
    """Returns the ``own`` of every rank, which have the same length.

    Raises:
        RendezvousError: A rank did not take part within the group's timeout.
    """
    mine = torch.frombuffer(bytearray(own), dtype=torch.uint8)
    everybody = [torch.empty_like(mine) for _ in range(group.size())]
    try:
        group.allgather([everybody], [mine]).wait()
    except RuntimeError as error:
        raise RendezvousError(f"a rank did not take part in an exchange: {first_line(error)}") from error
    return [bytes(tensor.numpy().tobytes()) for tensor in everybody]


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
    for part in partition(slots, bucket_bytes):
        flat = torch.cat([slot.tensor.reshape(-1) for slot in part]).cpu()
        try:
            group.broadcast([flat], dist.BroadcastOptions()).wait()
        except RuntimeError as error:
            raise RendezvousError(f"a rank did not take part in the first broadcast: {first_line(error)}") from error
        at = 0
        for slot in part:
            count = slot.tensor.numel()
            slot.tensor.copy_(flat[at : at + count].view(slot.tensor.shape))
            at += count


def keep_highest(group: dist.ProcessGroup, slots: Sequence[Slot]) -> None:
    """Gives every rank the highest value of any, element by element, of tensors of whole numbers."""
    flat = torch.cat([slot.tensor.reshape(-1).to("cpu", torch.int64) for slot in slots])
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX  # type: ignore[assignment]
    group.allreduce([flat], options).wait()
    for slot, values in zip(slots, flat.split([slot.tensor.numel() for slot in slots]), strict=True):
        slot.tensor.copy_(values.view(slot.tensor.shape))


def average_once(
    slots: Sequence[Slot], link: GroupLink, weights: Sequence[float], rank: int, number: int, bucket_bytes: int
) -> bool:
    """Gives all members of a group the mean of ``slots``.

    Args:
        slots: The tensors.
        link: To the members, which lose nothing.
        weights: Of all ranks; a weight of 0 leaves a rank's values out.
        rank: Own rank.
        number: Of the round.
        bucket_bytes: Size of a bucket.

    Returns:
        Whether all members were in that round; if not, nothing has changed.

    Raises:
        RuntimeError, DLCPError: It failed.
    """
    transfer = Transfer(slots, link, bucket_bytes, keep=False)
    total = sum(weights[member] for member in link.ranks)
    tag = number if all(weights[member] for member in link.ranks) else 0
    pending = transfer.start(link, link.scale(weights[rank], total), tag)
    if not transfer.wait(pending, tag, len(link.ranks)):
        return False
    transfer.settle(1.0, delayed=False)
    return True


def first_line(error: BaseException) -> str:
    """Returns what an error says, without the stack that torch appends."""
    lines: Any = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


__all__ = ["average_once", "broadcast_slots", "check_equal", "first_line", "gather_bytes", "keep_highest"]
