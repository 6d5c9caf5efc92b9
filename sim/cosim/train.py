"""Data-parallel training of N virtual ranks in one process, whose gradients go through the simulated network."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dlcp.workload import Workload
from sim.cosim.network import Network, Step
from sim.cosim.reduce import Array, all_reduce
from sim.cosim.task import Task, flat, layout_of, put

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


@dataclass(frozen=True)
class Point:
    """A step of the training, and what was seen of it.

    Attributes:
        step: Steps so far.
        time_s: Simulated seconds so far.
        step_s, exposed_s: Of this step.
        loss: Mean of the ranks' losses on their batches.
        missing, packets: Packets that were given up, and all, of this step.
        residual: Sum of the absolute values of what all ranks still owe.
        accuracy, test_loss: On the test data, if it was looked at.
    """

    step: int
    time_s: float
    step_s: float
    exposed_s: float
    loss: float
    missing: int
    packets: int
    residual: float
    accuracy: float | None = None
    test_loss: float | None = None

    def row(self) -> dict[str, Any]:
        """Returns it as a row of a table."""
        return asdict(self)


@dataclass
class Ledger:
    """Keeps account of gradients: what ranks contributed is what was delivered and what they owe.

    Attributes:
        contributed: Sum of all gradients of all ranks and steps.
        delivered: Sum of all results, times the number of ranks; not a number once replicas differ.
        owed: Sum of what ranks have yet to contribute.
        forgotten: Of what was lost and is not owed.
    """

    contributed: float = 0.0
    delivered: float = 0.0
    owed: float = 0.0
    forgotten: float = 0.0


@dataclass
class Trainer:
    """Trains a task over a network.

    Attributes:
        task: What to train.
        network: Over what.
        workload: The model, as the network has it.
        algorithm: Of the all-reduce.
        compensation: ``error-feedback``, ``zero`` or ``rescale``.
    """

    task: Task
    network: Network
    workload: Workload
    algorithm: str
    compensation: str
    ledger: Ledger = field(default_factory=Ledger)

    def __post_init__(self) -> None:
        self.groups = layout_of(self.task.model, self.workload, self.network.parts)
        self.replicas: list[tuple[nn.Module, Optimizer]] = [(self.task.model, self.task.optimizer)]
        """One model of all ranks; one each from the first result on that some of them did not get whole."""
        self._sizes = {name: parameter.numel() for name, parameter in self.task.model.named_parameters()}
        self._owed: list[NDArray[Any] | None] = [None] * len(self.groups)
        self._names = {f"{self.network.schedule}{number}": number for number in range(len(self.groups))}

    def run(self, steps: Sequence[Step]) -> Iterator[Point]:
        """Trains, and yields every step of the training; each has a step of the network, in turn."""
        batches = list(self.task.batches(self.network.world))
        every = self.task.options.eval_every or self.task.steps_per_epoch(self.network.world)
        now = 0.0
        for number, batch in enumerate(batches, 1):
            step = steps[(number - 1) % len(steps)]
            now += step.seconds
            loss = self.step(batch, step)
            seen: dict[str, float] = {}
            if number % every == 0 or number == len(batches):
                seen = self.evaluate()
            point = Point(
                number,
                now,
                step.seconds,
                step.exposed,
                loss,
                sum(int(lost.sum()) for lost in step.missing.values()),
                step.packets,
                sum(float(np.abs(owed).sum()) for owed in self._owed if owed is not None),
                **seen,
            )
            yield point

    def step(self, batch: list[Any], step: Step) -> float:
        """Makes one step of all ranks; returns their mean loss."""
        from examples.evaluation import loss_of

        data, world = self.task.data, self.network.world
        gradients: list[list[NDArray[Any]]] = []
        losses = []
        for rank, samples in enumerate(batch):
            model, _ = self.replicas[rank % len(self.replicas)]
            model.zero_grad()
            loss = loss_of(model(data.train_inputs[samples]), data.train_targets[samples])
            loss.backward()
            losses.append(float(loss.detach()))
            gradients.append(flat(model, self.groups))
        means: list[Array] = []
        for number in range(len(self.groups)):
            contributions = np.stack([gradients[rank][number] for rank in range(world)])
            means.append(self._exchange(number, contributions, step))
        if len(self.replicas) == 1 and any(len(mean) > 1 for mean in means):
            # Copied together, so that each optimizer has the parameters of its model.
            self.replicas += [copy.deepcopy(self.replicas[0]) for _ in range(world - 1)]
        for rank, (model, optimizer) in enumerate(self.replicas):
            put(model, self.groups, [mean[rank % len(mean)] for mean in means])
            optimizer.step()
        return sum(losses) / len(losses)

    def _exchange(self, number: int, contributions: Array, step: Step) -> Array:
        """Returns the means of one group, and notes what is owed."""
        owed = self._owed[number]
        self.ledger.contributed += float(contributions.sum(dtype=np.float64))
        if owed is not None:
            contributions = contributions + owed
        means: list[Array] = []
        losses: list[Array | None] = []
        item = self.network.layout.item
        scores = self._scores(number, contributions) if self.network.sorts and step.missing else None
        for each in step.collectives:
            if self._names[each.group] != number:
                continue
            first, last = -(-each.offset // item), -(-(each.offset + each.size) // item)
            found = all_reduce(
                contributions[:, first:last],
                each,
                self.algorithm,
                step.missing,
                self.network.layout,
                rescale=self.compensation == "rescale",
                scores=None if scores is None else scores[:, first:last],
            )
            means.append(found.means)
            losses.append(found.lost)
        lost = None
        if any(each is not None for each in losses):
            lost = np.concatenate(
                [np.zeros((len(contributions), mean.shape[1]), mean.dtype) if each is None else each
                 for mean, each in zip(means, losses, strict=True)],
                axis=1,
            )  # fmt: skip
        rows = max(len(mean) for mean in means)
        mean = np.concatenate([np.broadcast_to(each, (rows, each.shape[1])) for each in means], axis=1)
        self._keep_account(number, mean, lost)
        return mean

    def _scores(self, number: int, contributions: Array) -> Array:
        """Returns magnitudes over the mean magnitude of their tensor, as :mod:`dlcp.tagging.magnitude` has it."""
        sizes = [self._sizes[name] for name in self.groups[number]]
        parts = np.split(np.abs(contributions), np.cumsum(sizes)[:-1], axis=1)
        means = [part.mean(axis=1, keepdims=True) for part in parts]
        return np.concatenate([part / np.where(mean > 0, mean, 1) for part, mean in zip(parts, means, strict=True)], axis=1)

    def _keep_account(self, number: int, mean: Array, lost: Array | None) -> None:
        feedback = self.compensation == "error-feedback"
        ledger, before = self.ledger, self._owed[number]
        if len(mean) == 1:
            ledger.delivered += float(mean.sum(dtype=np.float64)) * self.network.world
        else:
            ledger.delivered = float("nan")  # replicas differ, and there is no sum that all have
        if lost is not None and not feedback:
            ledger.forgotten += float(lost.sum(dtype=np.float64))
        ledger.owed -= 0.0 if before is None else float(before.sum(dtype=np.float64))
        self._owed[number] = lost if feedback else None
        ledger.owed += float(lost.sum(dtype=np.float64)) if feedback and lost is not None else 0.0

    def evaluate(self) -> dict[str, float]:
        """Returns accuracy and loss on the test data, of the mean of all models if they differ."""
        import torch

        from examples.evaluation import evaluate_alone

        model = self.replicas[0][0]
        if len(self.replicas) > 1:
            model = copy.deepcopy(model)
            with torch.no_grad():
                others = [dict(each.named_parameters()) for each, _ in self.replicas]
                for name, parameter in model.named_parameters():
                    parameter.copy_(torch.stack([other[name] for other in others]).mean(0))
        test_loss, accuracy = evaluate_alone(model, self.task.data)
        return {"accuracy": accuracy, "test_loss": test_loss}


__all__ = ["Ledger", "Point", "Trainer"]
