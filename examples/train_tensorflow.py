"""Trains a small Keras model in a TensorFlow loop, with gradients averaged over DLCP: each rank is a process of its own.

python -m examples.launch --ranks 2 examples/train_tensorflow.py --faults drop=0.01
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for "python examples/..." without an installation

import numpy as np
from numpy.typing import NDArray

from dlcp import Communicator
from dlcp.tensorflow import GradientAverager
from examples.framework import run

Array = NDArray[Any]


class TensorFlowLearner:
    """A Keras model of two hidden layers, and Keras' SGD.

    Args:
        communicator: To the other ranks.
        options: The command line.
    """

    def __init__(self, communicator: Communicator, options: argparse.Namespace) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        tf: Any = import_module("tensorflow")
        self.version = tf.__version__
        self._tf = tf
        tf.keras.utils.set_random_seed(options.seed)
        layers = tf.keras.layers
        self.model = tf.keras.Sequential(
            [
                layers.Input((64,)),
                layers.Dense(options.width, activation="relu"),
                layers.Dense(options.width, activation="relu"),
                layers.Dense(10),
            ]
        )
        self._loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.optimizer = tf.keras.optimizers.SGD(options.lr, momentum=0.9)
        self.optimizer.build(self.model.trainable_variables)
        self.averager = GradientAverager(communicator, self.model.trainable_variables)
        self.averager.broadcast(self.model.variables)
        self._step = tf.function(self._whole_step) if options.in_jit else self._whole_step

    def _whole_step(self, images: Any, labels: Any) -> Any:
        with self._tf.GradientTape() as tape:
            loss = self._loss(labels, self.model(images, training=True))
        gradients = tape.gradient(loss, self.model.trainable_variables)
        gradients = self.averager.average(gradients)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        return loss

    def step(self, images: Array, labels: Array) -> float:
        return float(self._step(self._tf.constant(images), self._tf.constant(labels)))

    def predict(self, images: Array) -> Array:
        logits: Array = self.model(images, training=False).numpy()
        return logits

    def state(self) -> dict[str, Array]:
        return {f"{i:03d}": np.asarray(variable) for i, variable in enumerate(self._variables())}

    def load(self, state: dict[str, Array]) -> None:
        for variable, key in zip(self._variables(), sorted(state), strict=True):
            variable.assign(state[key])

    def _variables(self) -> list[Any]:
        return [*self.model.variables, *self.optimizer.variables]


if __name__ == "__main__":
    sys.exit(run("tensorflow", TensorFlowLearner))
