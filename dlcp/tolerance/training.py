"""One training run with virtual workers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dlcp.errors import ConfigError
from dlcp.policy import Policy
from dlcp.tagging.layers import record_execution_order
from dlcp.tolerance.patterns import Loss
from dlcp.tolerance.task import Task, make_task
from dlcp.tolerance.workers import VirtualJob


@dataclass(frozen=True, slots=True)
class Run:
    """What to run.

    Attributes:
        task: ``MODULE:FUNCTION``.
        seed: Of weights, order of samples, and what gets lost.
        ranks: Virtual workers.
        policy: As plain values.
        compensation: One of the policy's.
        loss: None for nothing.
        epochs: None for the task's.
        batch_size: None for the task's.
    """

    task: str
    seed: int
    ranks: int
    policy: dict[str, object]
    compensation: str
    loss: Loss | None
    epochs: int | None = None
    batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it.

    Attributes:
        accuracy: As the task says, at the end; 0 if the model diverged.
        diverged: A parameter is infinite or no number.
        packets: Packets that travelled.
        lost: Those that got lost.
        classes: Classes that droppable packets had.
    """

    accuracy: float
    diverged: bool
    packets: int
    lost: int
    classes: tuple[int, ...]


def train(run: Run) -> Outcome:
    """Trains once.  The same run gives the same outcome, on the same machine.

    Raises:
        ConfigError: The task does not fit.
    """
    torch.set_num_threads(1)
    task = make_task(run.task, run.seed)
    policy = Policy.from_dict(run.policy)
    policy = replace(policy, loss=replace(policy.loss, compensation=run.compensation, bound="fixed"))
    batch = run.batch_size or task.batch_size
    steps = len(task.inputs) // (batch * run.ranks)
    if steps == 0:
        problem = f"{len(task.inputs)} samples do not fill {run.ranks} batches of {batch}"
        raise ConfigError("dlcp tolerance", run.task, problem, "fewer ranks, or a smaller --batch-size")
    order = record_execution_order(task.model, task.inputs[:1])
    job = VirtualJob(task.model, policy, run.ranks, run.loss, run.seed, order)
    epochs = run.epochs or task.epochs
    rates = [group["lr"] for group in task.optimizer.param_groups]
    for epoch in range(epochs):
        for step, batches in enumerate(_batches(task, run, epoch, steps, batch)):
            if task.schedule is not None:
                factor = task.schedule((epoch * steps + step) / (epochs * steps))
                for group, rate in zip(task.optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * factor
            gradients = [job.gradient(task.loss(task.model(task.inputs[b]), task.targets[b])) for b in batches]
            job.give(job.reduce(gradients))
            task.optimizer.step()
    job.close()
    classes = tuple(sorted(job.hub.classes))
    diverged = not all(bool(torch.isfinite(parameter).all()) for parameter in task.model.parameters())
    accuracy = math.nan if diverged else _accuracy(task)
    diverged = diverged or not math.isfinite(accuracy)
    return Outcome(0.0 if diverged else accuracy, diverged, job.hub.packets, job.hub.lost, classes)


def _batches(task: Task, run: Run, epoch: int, steps: int, batch: int) -> Iterator[tuple[Tensor, ...]]:
    """Yields, for each step, the indices of each rank's samples."""
    task.model.train()
    generator = torch.Generator().manual_seed(run.seed * 100_003 + epoch)
    order = torch.randperm(len(task.inputs), generator=generator)[: steps * run.ranks * batch]
    for step in order.split(run.ranks * batch):
        yield step.split(batch)


def _accuracy(task: Task) -> float:
    model: nn.Module = task.model
    model.eval()
    with torch.no_grad():
        return float(task.accuracy(model))
