"""Looking at the test data: after epochs, or every few steps with the clock stopped."""

from __future__ import annotations

import copy
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from dlcp.torch.pipeline import PipelinedOptimizer
from examples.carriers import Carrier
from examples.data import Split
from examples.reporting import Report


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Returns the mean cross-entropy over all targets, whatever their shape."""
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


@torch.no_grad()
def _sums(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[float, int, int]:
    """Returns summed loss, number of right answers, and number of answers."""
    model.eval()
    loss, right, count = 0.0, 0, 0
    for x, y in zip(inputs.split(256), targets.split(256), strict=True):
        logits = model(x)
        loss += float(loss_of(logits, y)) * y.numel()
        right += int((logits.argmax(-1) == y).sum())
        count += y.numel()
    model.train()
    return loss, right, count


def evaluate(model: nn.Module, data: Split, rank: int, world: int) -> tuple[float, float]:
    """Returns loss and accuracy on the test data, of which every rank looks at its share."""
    sums = torch.tensor(_sums(model, data.test_inputs[rank::world], data.test_targets[rank::world]), dtype=torch.float64)
    dist.all_reduce(sums)
    return float(sums[0] / sums[2]), float(sums[1] / sums[2])


def evaluate_alone(model: nn.Module, data: Split) -> tuple[float, float]:
    """Returns loss and accuracy on the test data, without the other ranks."""
    loss, right, count = _sums(model, data.test_inputs, data.test_targets)
    return loss / count, right / count


class Watch:
    """Evaluates every few steps, with its clock stopped meanwhile: no way of carrying gradients is charged for it.

    Where all ranks have the same model, rank 0 evaluates by itself and the network carries nothing.  Otherwise the mean of all
    models is what counts: the ranks meet first, which the clock does see, and then average them.

    Args:
        model: The bare module.
        data: With the test data.
        carrier: What carries the gradients.
        rank: Own rank.
        every: Steps; None: never.
    """

    def __init__(self, model: nn.Module, data: Split, carrier: Carrier, rank: int, every: int | None) -> None:
        self._model, self._data, self._carrier, self._rank, self._every = model, data, carrier, rank, every
        self._zero: float | None = None
        self._stopped = 0.0
        self._evaluated = -1

    def begin(self, report: Report) -> None:
        """The first step begins now."""
        if self._zero is None:
            report.write("training")
            self._zero = time.monotonic()

    def clock(self) -> float:
        """Seconds since the first step began, without evaluations."""
        return 0.0 if self._zero is None else time.monotonic() - self._zero - self._stopped

    def stepped(self, done: int, report: Report, last: bool = False) -> None:
        """Evaluates if it is time to; ``done``: number of steps done."""
        if self._every is None or done == self._evaluated or not (last or done % self._every == 0):
            return
        self._evaluated = done
        if isinstance(self._carrier.optimizer, PipelinedOptimizer):
            # What is still under way belongs to the steps that are done, and so does what of it gets lost.
            self._carrier.optimizer.drain()
        if self._carrier.state is not None:
            mass = self._carrier.state.residuals.mass()
            report.write("residual", step=done, clock_s=self.clock(), l1=mass.l1, elements=mass.elements)
        if self._rank == 0 or self._carrier.replicas_differ:
            self._evaluate(done, report)

    def _evaluate(self, done: int, report: Report) -> None:
        carrier = self._carrier
        if carrier.state is None and carrier.replicas_differ:
            dist.barrier()
        clock, begin = self.clock(), time.monotonic()
        averager = carrier.averager
        with averager.consensus_model() if averager is not None else nullcontext():
            model = _mean(self._model) if carrier.replicas_differ and averager is None else self._model
            if self._rank == 0:
                loss, accuracy = evaluate_alone(model, self._data)
                seconds = time.monotonic() - begin
                report.write("evaluation", step=done, clock_s=clock, accuracy=accuracy, test_loss=loss, seconds=seconds)
        self._stopped += time.monotonic() - begin


@torch.no_grad()
def _mean(model: nn.Module) -> nn.Module:
    """Returns a copy of a model that is the mean over all ranks, which all call this."""
    mean = copy.deepcopy(model)
    flat = torch.cat([parameter.reshape(-1) for parameter in mean.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    torch.nn.utils.vector_to_parameters(flat, mean.parameters())
    return mean


__all__ = ["Watch", "evaluate", "evaluate_alone", "loss_of"]
