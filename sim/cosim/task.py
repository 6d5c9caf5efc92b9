"""What is trained: a task of the examples, and its model's parameters in the layout of the simulated buckets."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from dlcp.errors import ConfigError, MissingPackage
from dlcp.workload import Workload
from sim.traffic.units import Unit

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

TASKS: Final = ("digits", "charlm")


@dataclass(frozen=True)
class Options:
    """Of the training.

    Attributes:
        task: One of :data:`TASKS`.
        epochs: Passes over the data.
        batch_size: Samples of a rank in a step.
        lr: Learning rate; 0 is the task's own.
        seed: Of the model and of the order of samples.
        eval_every: Steps between two looks at the test data; 0 is once an epoch.
        dtype: ``float32`` or ``float64``, of all computing.
        width: Of the model; 0 is the task's own.
        text_bytes: Text of the language model.
    """

    task: str = "digits"
    epochs: int = 3
    batch_size: int = 32
    lr: float = 0.0
    seed: int = 0
    eval_every: int = 0
    dtype: str = "float32"
    width: int = 32
    text_bytes: int = 100_000


class Task:
    """A model with its data and optimizer.

    Args:
        options: What is wanted.

    Raises:
        MissingPackage: torch, or what the task needs, is not installed.
    """

    def __init__(self, options: Options) -> None:
        try:
            import torch

            from examples.train import build_task

            torch.manual_seed(options.seed)
            task = build_task(argparse.Namespace(task=options.task, width=options.width, text_bytes=options.text_bytes))
        except ImportError as error:
            raise MissingPackage(f"this needs torch and scikit-learn ({error}): pip install 'dlcp[examples]'") from error
        dtype = getattr(torch, options.dtype)
        self.options = options
        self.model: nn.Module = task.model.to(dtype)
        self.optimizer: Optimizer = task.optimizer(self.model, options.lr or None)
        inputs = (task.data.train_inputs, task.data.test_inputs)
        train, test = (each.to(dtype) if each.is_floating_point() else each for each in inputs)
        self.data = task.data._replace(train_inputs=train, test_inputs=test)

    def batches(self, world: int) -> Iterator[list[Tensor]]:
        """Yields for each step the samples of every rank, ``int64[batch]`` each; the shards of an epoch do not overlap.

        Raises:
            ConfigError: There are fewer samples than the ranks take in a step.
        """
        import torch

        options, samples = self.options, len(self.data.train_inputs)
        steps = samples // (world * options.batch_size)
        if not steps:
            problem = f"{world} ranks with {options.batch_size} each take more than the {samples} samples there are"
            raise ConfigError("cosim", "--batch-size", problem, f"at most {samples // world}")
        for epoch in range(options.epochs):
            order = torch.randperm(samples, generator=torch.Generator().manual_seed(options.seed * 1_000_003 + epoch))
            for step in range(steps):
                yield [order[rank::world][step * options.batch_size :][: options.batch_size] for rank in range(world)]

    def steps_per_epoch(self, world: int) -> int:
        """Returns the steps of an epoch."""
        return len(self.data.train_inputs) // (world * self.options.batch_size)


def layout_of(model: nn.Module, workload: Workload, parts: Sequence[Unit]) -> list[list[str]]:
    """Returns the parameters of each group in the order in which they stand in its array.

    Raises:
        ConfigError: The workload is not that of the model.
    """
    free = {name: parameter.numel() for name, parameter in model.named_parameters()}
    root = type(model).__name__
    found: list[list[str]] = [[] for _ in workload.layers]
    for index, layer in enumerate(workload.layers):
        own = [name for name in free if name.rpartition(".")[0] == ("" if layer.name == root else layer.name)]
        below = [name for name in free if name.startswith(f"{layer.name}.")]
        names = next((each for each in (own, below) if sum(free[name] for name in each) == layer.elements), None)
        if names is None:
            mine = sum(free[name] for name in below or own)
            raise ConfigError(
                "<workload>",
                f"layers[{index}]",
                f"{layer.name!r} has {layer.elements} elements, in the model {mine or 'none'}",
                "the workload of the task's model, as dlcp sim profile writes it",
            )
        found[index] = names
        for name in names:
            del free[name]
    if free:
        raise ConfigError("<workload>", "layers", f"{', '.join(sorted(free))} of the model are missing", "all of its layers")
    return [[name for layer in part.layers for name in found[layer]] for part in parts]


def flat(model: nn.Module, groups: Sequence[Sequence[str]]) -> list[NDArray[Any]]:
    """Returns the gradients of each group as one array."""
    import torch

    parameters = dict(model.named_parameters())

    def gradient(name: str) -> Tensor:
        found = parameters[name].grad
        return torch.zeros_like(parameters[name]).ravel() if found is None else found.detach().ravel()

    return [np.array(torch.cat([gradient(name) for name in names]).numpy()) for names in groups]


def put(model: nn.Module, groups: Sequence[Sequence[str]], arrays: Sequence[NDArray[Any]]) -> None:
    """Makes arrays the gradients of a model."""
    import torch

    parameters = dict(model.named_parameters())
    for names, array in zip(groups, arrays, strict=True):
        at = 0
        for name in names:
            parameter = parameters[name]
            part = array[at : at + parameter.numel()]
            parameter.grad = torch.from_numpy(part.copy()).reshape(parameter.shape)
            at += parameter.numel()


__all__ = ["TASKS", "Options", "Task", "flat", "layout_of", "put"]
