"""Strict-priority queues of one port, with a limit in packets, in bytes, or both.

The highest number is served first, as simple_switch does; inside a priority packets leave in the order they came.  Each priority
has its own room, so a flood in one cannot take the places of another.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from softswitch.errors import BadValue

DEFAULT_DEPTH = 64
"""Packets per queue, as in simple_switch."""


class Item:
    """A packet between ingress and egress.

    Attributes:
        priority: Its queue.
        length: Bytes, for limits in bytes: those of the packet as it arrived.
        phv: What ingress left; opaque.
        enqueued_us: When it was queued, in microseconds of the switch.
        port: Where the packet came in.
        instance_type: simple_switch's ``PktInstanceType`` for egress.
        passes: How often this packet has been through the switch already.
        rid: Replication id of a multicast copy.
        truncate: Bytes to which a clone session cuts the copy; 0: none.
        depth: Packets in the queue before it, once it is queued.
    """

    __slots__ = ("depth", "enqueued_us", "instance_type", "length", "passes", "phv", "port", "priority", "rid", "truncate")

    def __init__(
        self,
        priority: int,
        length: int,
        phv: Any,
        enqueued_us: int,
        port: int,
        instance_type: int = 0,
        passes: int = 0,
        rid: int = 0,
        truncate: int = 0,
    ) -> None:
        self.priority = priority
        self.length = length
        self.phv = phv
        self.enqueued_us = enqueued_us
        self.port = port
        self.instance_type = instance_type
        self.passes = passes
        self.rid = rid
        self.truncate = truncate
        self.depth = 0


class PriorityQueues:
    """The queues of a port.

    Args:
        count: Number of priorities, 1 or more.
        depth: Most packets in each queue, or None for no limit.
        depth_bytes: Most bytes in each queue, or None for no limit.

    Raises:
        BadValue: A limit or the count is below one.
    """

    __slots__ = (
        "_lowest_first",
        "_occupied",
        "bytes",
        "depth",
        "depth_bytes",
        "dropped",
        "enqueued",
        "high_water",
        "high_water_bytes",
        "packets",
    )

    def __init__(self, count: int, depth: int | None = DEFAULT_DEPTH, depth_bytes: int | None = None) -> None:
        if count < 1:
            raise BadValue(f"a port needs at least one queue, not {count}")
        self._lowest_first: list[deque[Item]] = [deque() for _ in range(count)]
        self._occupied = 0
        self.packets = 0
        """Packets in all queues together."""
        self.bytes = [0] * count
        self.enqueued = [0] * count
        """Packets that got through a queue or straight to an idle link, since the start."""
        self.dropped = [0] * count
        """Packets that found their queue full."""
        self.high_water = [0] * count
        self.high_water_bytes = [0] * count
        self.limit(depth, depth_bytes)

    def limit(self, depth: int | None, depth_bytes: int | None) -> None:
        """Sets the room of each queue; what is queued already stays."""
        if (depth is not None and depth < 1) or (depth_bytes is not None and depth_bytes < 1):
            raise BadValue("the depth of a queue is at least one packet and one byte")
        self.depth = depth
        self.depth_bytes = depth_bytes

    def __len__(self) -> int:
        return len(self._lowest_first)

    def depth_of(self, priority: int) -> int:
        """Packets in one queue."""
        return len(self._lowest_first[priority])

    def depths(self) -> list[int]:
        """Packets in each queue, lowest priority first."""
        return [len(queue) for queue in self._lowest_first]

    def push(self, item: Item) -> bool:
        """Queues ``item``, or counts a drop and returns False if there is no room."""
        priority = item.priority
        queue = self._lowest_first[priority]
        item.depth = depth = len(queue)
        size = self.bytes[priority] + item.length
        if (self.depth is not None and depth >= self.depth) or (self.depth_bytes is not None and size > self.depth_bytes):
            self.dropped[priority] += 1
            return False
        queue.append(item)
        self._occupied |= 1 << priority
        self.packets += 1
        self.bytes[priority] = size
        self.enqueued[priority] += 1
        if depth >= self.high_water[priority]:
            self.high_water[priority] = depth + 1
        if size > self.high_water_bytes[priority]:
            self.high_water_bytes[priority] = size
        return True

    def pop(self) -> Item:
        """Takes the oldest packet of the highest priority that has one.

        Raises:
            IndexError: All queues are empty.
        """
        priority = self._occupied.bit_length() - 1
        if priority < 0:
            raise IndexError("pop from empty queues")
        queue = self._lowest_first[priority]
        item = queue.popleft()
        if not queue:
            self._occupied ^= 1 << priority
        self.packets -= 1
        self.bytes[priority] -= item.length
        return item

    def clear(self) -> int:
        """Empties all queues and returns how many packets were in them."""
        gone = self.packets
        for queue in self._lowest_first:
            queue.clear()
        self._occupied = self.packets = 0
        self.bytes[:] = [0] * len(self.bytes)
        return gone


__all__ = ["DEFAULT_DEPTH", "Item", "PriorityQueues"]
