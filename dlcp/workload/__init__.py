"""The workload: the layers of a model in the order in which they run, what they weigh, and how long they compute."""

from dlcp.workload.description import DTYPE_BYTES, Layer, Workload

__all__ = ["DTYPE_BYTES", "Layer", "Workload"]
