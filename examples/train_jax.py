"""Trains a small network in JAX, with gradients averaged over DLCP: each rank is a process of its own.

python -m examples.launch --ranks 2 examples/train_jax.py --faults drop=0.01
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for "python examples/..." without an installation

import numpy as np
from numpy.typing import NDArray

from dlcp import Communicator
from dlcp.jax import GradientAverager
from examples.framework import run

Array = NDArray[Any]
MOMENTUM = 0.9


class JaxLearner:
    """A network of two hidden layers, and stochastic gradient descent with momentum.

    Args:
        communicator: To the other ranks.
        options: The command line.
    """

    def __init__(self, communicator: Communicator, options: argparse.Namespace) -> None:
        jax: Any = import_module("jax")
        self.version = jax.__version__
        self._jax = jax
        keys = jax.random.split(jax.random.key(options.seed), 3)
        sizes = [64, options.width, options.width, 10]
        parameters = [
            {"weight": jax.random.normal(key, (i, o)) * (2 / i) ** 0.5, "bias": jax.numpy.zeros(o)}
            for key, (i, o) in zip(keys, pairwise(sizes), strict=True)
        ]
        self.averager = GradientAverager(communicator, parameters)
        self.parameters = self.averager.broadcast(parameters)
        self.velocity = jax.tree.map(jax.numpy.zeros_like, parameters)
        self._gradients = jax.jit(jax.value_and_grad(self._loss))
        self._update = jax.jit(lambda p, v, g: _update(jax, options.lr, p, v, g))
        self._in_jit = jax.jit(self._whole_step) if options.in_jit else None
        self._logits = jax.jit(self._forward)

    def step(self, images: Array, labels: Array) -> float:
        if self._in_jit is not None:
            loss, self.parameters, self.velocity = self._in_jit(self.parameters, self.velocity, images, labels)
            return float(loss)
        loss, gradients = self._gradients(self.parameters, images, labels)
        gradients = self.averager.average(gradients)
        self.parameters, self.velocity = self._update(self.parameters, self.velocity, gradients)
        return float(loss)

    def predict(self, images: Array) -> Array:
        return np.asarray(self._logits(self.parameters, images))

    def state(self) -> dict[str, Array]:
        leaves = self._jax.tree.leaves((self.parameters, self.velocity))
        return {f"{i:03d}": np.asarray(leaf) for i, leaf in enumerate(leaves)}

    def load(self, state: dict[str, Array]) -> None:
        structure = self._jax.tree.structure((self.parameters, self.velocity))
        leaves = [self._jax.numpy.asarray(state[key]) for key in sorted(state)]
        self.parameters, self.velocity = self._jax.tree.unflatten(structure, leaves)

    def _whole_step(self, parameters: Any, velocity: Any, images: Any, labels: Any) -> Any:
        loss, gradients = self._jax.value_and_grad(self._loss)(parameters, images, labels)
        gradients = self.averager.average(gradients)
        return loss, *self._update(parameters, velocity, gradients)

    def _forward(self, parameters: Any, images: Any) -> Any:
        for layer in parameters[:-1]:
            images = self._jax.nn.relu(images @ layer["weight"] + layer["bias"])
        return images @ parameters[-1]["weight"] + parameters[-1]["bias"]

    def _loss(self, parameters: Any, images: Any, labels: Any) -> Any:
        logs = self._jax.nn.log_softmax(self._forward(parameters, images))
        return -logs[self._jax.numpy.arange(len(labels)), labels].mean()


def _update(jax: Any, lr: float, parameters: Any, velocity: Any, gradients: Any) -> Any:
    velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, gradients)
    return jax.tree.map(lambda p, v: p - lr * v, parameters, velocity), velocity


if __name__ == "__main__":
    sys.exit(run("jax", JaxLearner))
