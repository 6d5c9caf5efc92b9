"""Averages of gradients that are numpy arrays, which :mod:`dlcp.numpy`, :mod:`dlcp.jax` and :mod:`dlcp.tensorflow` build upon."""

from dlcp.gradients.averager import ArrayAverager, Pass
from dlcp.gradients.layout import BUCKET_BYTES, Leaf

__all__ = ["BUCKET_BYTES", "ArrayAverager", "Leaf", "Pass"]
