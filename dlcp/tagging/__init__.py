"""Tags: each packet's priority class, from its layer, and its protection, from its magnitude."""

from dlcp.tagging.layers import (
    ExecutionRecorder,
    FirstForward,
    assign_classes,
    packet_classes,
    record_execution_order,
)
from dlcp.tagging.magnitude import PacketLayout, packet_scores, packet_tags, protect

__all__ = [
    "ExecutionRecorder",
    "FirstForward",
    "PacketLayout",
    "assign_classes",
    "packet_classes",
    "packet_scores",
    "packet_tags",
    "protect",
    "record_execution_order",
]
