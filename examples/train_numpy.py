"""Trains a small network in plain numpy, with gradients averaged over DLCP.

python -m examples.launch --ranks 2 examples/train_numpy.py --faults drop=0.01
"""

from __future__ import annotations

import argparse
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for "python examples/..." without an installation

import numpy as np
from numpy.typing import NDArray

from dlcp import Communicator
from dlcp.numpy import GradientAverager
from examples.framework import run

Array = NDArray[Any]
MOMENTUM = 0.9


class NumpyLearner:
    """A network of two hidden layers, and stochastic gradient descent with momentum.

    Args:
        communicator: To the other ranks.
        options: The command line.
    """

    version = np.__version__

    def __init__(self, communicator: Communicator, options: argparse.Namespace) -> None:
        random = np.random.default_rng(options.seed)
        sizes = [64, options.width, options.width, 10]
        self.lr = options.lr
        self.parameters: dict[str, Array] = {}
        for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            self.parameters[f"weight{i}"] = (random.normal(size=(fan_in, fan_out)) * np.sqrt(2 / fan_in)).astype(np.float32)
            self.parameters[f"bias{i}"] = np.zeros(fan_out, np.float32)
        self.averager: GradientAverager[Any] = GradientAverager(communicator, self.parameters)
        self.parameters = self.averager.broadcast(self.parameters)
        self.velocity = {name: np.zeros_like(array) for name, array in self.parameters.items()}

    def step(self, images: Array, labels: Array) -> float:
        loss, gradients = self._gradients(images, labels)
        gradients = self.averager.average(gradients)
        for name, gradient in gradients.items():
            self.velocity[name] = MOMENTUM * self.velocity[name] + gradient
            self.parameters[name] -= np.float32(self.lr) * self.velocity[name]
        return loss

    def predict(self, images: Array) -> Array:
        return self._forward(images)[-1]

    def state(self) -> dict[str, Array]:
        velocity = {f"velocity.{name}": array for name, array in self.velocity.items()}
        return {**self.parameters, **velocity}

    def load(self, state: dict[str, Array]) -> None:
        self.parameters = {name: state[name] for name in self.parameters}
        self.velocity = {name: state[f"velocity.{name}"] for name in self.parameters}

    def _forward(self, images: Array) -> list[Array]:
        """Returns the input, the activations of the hidden layers, and the logits."""
        values, layers = [images], len(self.parameters) // 2
        for i in range(layers):
            value = values[-1] @ self.parameters[f"weight{i}"] + self.parameters[f"bias{i}"]
            values.append(np.maximum(value, 0) if i < layers - 1 else value)
        return values

    def _gradients(self, images: Array, labels: Array) -> tuple[float, dict[str, Array]]:
        values = self._forward(images)
        logits = values[-1] - values[-1].max(1, keepdims=True)
        logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        rows = np.arange(len(labels))
        back = np.exp(logs)
        back[rows, labels] -= 1
        back /= np.float32(len(labels))
        found = {}
        for i in reversed(range(len(values) - 1)):
            found[f"weight{i}"], found[f"bias{i}"] = values[i].T @ back, back.sum(0)
            back = (back @ self.parameters[f"weight{i}"].T) * (values[i] > 0)
        return float(-logs[rows, labels].mean()), found


if __name__ == "__main__":
    sys.exit(run("numpy", NumpyLearner))
