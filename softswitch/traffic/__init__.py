"""Traffic management: strict-priority queues, a rate per port shared by its queues, delay lines and loss."""

from softswitch.traffic.link import WIRE_OVERHEAD_BYTES, Link
from softswitch.traffic.manager import TrafficManager
from softswitch.traffic.port import Port
from softswitch.traffic.queues import Item, PriorityQueues

__all__ = ["WIRE_OVERHEAD_BYTES", "Item", "Link", "Port", "PriorityQueues", "TrafficManager"]
