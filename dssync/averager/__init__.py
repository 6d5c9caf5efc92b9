"""Averages of parameters in the style of ``torch.distributed.algorithms.model_averaging``."""

from dssync.averager.averager import DivideShuffleAverager
from dssync.averager.ddp import local_gradients_hook
from dssync.averager.optimizer import DivideShuffleOptimizer

__all__ = ["DivideShuffleAverager", "DivideShuffleOptimizer", "local_gradients_hook"]
