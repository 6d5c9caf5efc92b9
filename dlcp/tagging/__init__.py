"""Tags: each packet's priority class, from its layer, and its protection, from its magnitude.

Names are imported when they are first used: those that work on numpy arrays need no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlcp.tagging.classes import assign_classes as assign_classes
    from dlcp.tagging.classes import packet_classes as packet_classes
    from dlcp.tagging.flat import FlatTags as FlatTags
    from dlcp.tagging.layers import ExecutionRecorder as ExecutionRecorder
    from dlcp.tagging.layers import FirstForward as FirstForward
    from dlcp.tagging.layers import record_execution_order as record_execution_order
    from dlcp.tagging.magnitude import PacketLayout as PacketLayout
    from dlcp.tagging.magnitude import packet_scores as packet_scores
    from dlcp.tagging.magnitude import packet_tags as packet_tags
    from dlcp.tagging.magnitude import protect as protect

_HOME = {
    "ExecutionRecorder": "layers",
    "FirstForward": "layers",
    "FlatTags": "flat",
    "PacketLayout": "magnitude",
    "assign_classes": "classes",
    "packet_classes": "classes",
    "packet_scores": "magnitude",
    "packet_tags": "magnitude",
    "protect": "magnitude",
    "record_execution_order": "layers",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
