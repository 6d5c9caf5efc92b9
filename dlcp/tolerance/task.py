"""What is trained: the protocol that a user's function follows, and finding that function."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dlcp.errors import ConfigError

_ACCEPTED = "MODULE:FUNCTION, importable from here; the function takes no arguments and returns a dlcp.tolerance.Task"


@dataclass
class Task:
    """A model that is about to be trained.

    The function that makes it is called once for each run, with torch's random generator seeded; whatever else it draws from must
    be the same in every call.

    Attributes:
        model: With fresh weights, on the CPU.
        optimizer: Of the model's parameters.
        inputs: Training inputs; the first dimension counts samples.
        targets: Training targets, as many.
        loss: From the model's output and a batch of targets to a scalar.
        accuracy: From the model to a number, of which more is better, such as the share of right answers on data held back.
        batch_size: Samples of each worker in a step.
        epochs: Passes over the training data.
        schedule: From the share of all steps that is done, 0 to 1, to a factor for the learning rate, or None.  A rate that falls
            to 0 makes accuracies scatter less, so that fewer seeds will do.
    """

    model: nn.Module
    optimizer: Optimizer
    inputs: Tensor
    targets: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]
    accuracy: Callable[[nn.Module], float]
    batch_size: int = 16
    epochs: int = 8
    schedule: Callable[[float], float] | None = None


def find_task(spec: str) -> Callable[[], Task]:
    """Imports the function that ``MODULE:FUNCTION`` names; the working directory counts as installed.

    Raises:
        ConfigError: There is no such module or function.
    """
    module_name, colon, name = spec.partition(":")
    if not (module_name and colon and name):
        raise ConfigError("dlcp tolerance", "TASK", f"{spec!r} names no function", _ACCEPTED)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError("dlcp tolerance", "TASK", f"{module_name} cannot be imported: {error}", _ACCEPTED) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError("dlcp tolerance", "TASK", f"{module_name} has no function {name}", _ACCEPTED)
    return function  # type: ignore[no-any-return]


def make_task(spec: str, seed: int) -> Task:
    """Makes the task of one run.

    Raises:
        ConfigError: It is none, or does not fit together.
    """
    function = find_task(spec)
    torch.manual_seed(seed)
    task = function()
    if not isinstance(task, Task):
        raise ConfigError("dlcp tolerance", spec, f"returns a {type(task).__name__}", "a function that returns a Task")
    if len(task.inputs) != len(task.targets) or len(task.inputs) == 0:
        problem = f"{len(task.inputs)} inputs and {len(task.targets)} targets"
        raise ConfigError("dlcp tolerance", spec, problem, "as many inputs as targets, at least one")
    if not any(parameter.requires_grad for parameter in task.model.parameters()):
        raise ConfigError("dlcp tolerance", spec, "the model has nothing to learn", "a model with parameters")
    return task
