"""What leaves a rank at once during the backward pass: buckets, layers, or chunks of layers."""

from __future__ import annotations

from typing import Final, NamedTuple

from dlcp.workload import Workload


class Unit(NamedTuple):
    """Layers whose gradients leave together.

    Attributes:
        layers: Their positions, the last of the model first.
        when: When their gradients are ready, picoseconds since the backward pass began.
        sizes: Bytes of the parts in which they travel, one all-reduce each.
    """

    layers: list[int]
    when: int
    sizes: list[int]


def buckets(workload: Workload, bucket_bytes: int) -> list[Unit]:
    """Collects layers into buckets that are full from a size on, as plain DDP does."""
    found: list[Unit] = []
    size, layers, when = 0, [], 0
    for index, layer, ready in workload.gradients():
        size += layer.bytes
        layers.append(index)
        when = int(ready)
        if size >= bucket_bytes:
            found.append(Unit(layers, when, [size]))
            size, layers = 0, []
    if layers:
        found.append(Unit(layers, when, [size]))
    return found


def by_layer(workload: Workload, chunk_bytes: int = 0) -> list[Unit]:
    """Lets every layer leave by itself, cut into chunks of equal size that is at most ``chunk_bytes`` (0: whole)."""
    found = []
    for index, layer, ready in workload.gradients():
        count = -(-layer.bytes // chunk_bytes) if chunk_bytes else 1
        sizes = [layer.bytes * (part + 1) // count - layer.bytes * part // count for part in range(count)]
        found.append(Unit([index], int(ready), sizes))
    return found


SCHEDULES: Final = ("buckets", "layers", "chunks")


def units(workload: Workload, schedule: str, bucket_bytes: int, chunk_bytes: int) -> list[Unit]:
    """Returns the units of a schedule, in the order in which they are ready."""
    if schedule == "buckets":
        return buckets(workload, bucket_bytes)
    return by_layer(workload, chunk_bytes if schedule == "chunks" else 0)


__all__ = ["SCHEDULES", "Unit", "buckets", "by_layer", "units"]
