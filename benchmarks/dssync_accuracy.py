"""Accuracy of divide-and-shuffle synchronization against bulk-synchronous SGD, over seeds, numbers of ranks and optimizers.

python benchmarks/dssync_accuracy.py --seeds 5 --json out/dssync-accuracy.json

All ranks live in one process: their parameters are stacked along a first dimension, each rank's slice sees its own batch,
optimizers
are elementwise and so keep a state for each rank, and rounds multiply the stack by the round's matrix.  That is what processes
compute (tests/dssync compare them with the same matrices), at a fraction of the time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer

from dssync.mixing.operator import Mixing
from dssync.schedule import BSP, BaseK, Domains, Schedule
from examples.data import SYMBOLS, Split, load_digits, load_text
from examples.models import CharModel, DigitsNet

GLOBAL_BATCH = 64
RATES = {("digits", "sgd"): 0.05, ("charlm", "sgd"): 0.1, ("digits", "adamw"): 0.002, ("charlm", "adamw"): 0.012}
"""Of bulk-synchronous SGD.  Those of AdamW are the best of a coarse search on seed 0."""
OPTIMIZERS: dict[str, Callable[[list[Tensor], float], Optimizer]] = {
    "sgd": lambda parameters, rate: SGD(parameters, lr=rate, momentum=0.9),
    "adamw": lambda parameters, rate: AdamW(parameters, lr=rate),
}
METHODS = ("bsp", "base-k(2)", "base-k(2), moments too", "1 slow rank", "gradients only")


def rate_of(task: str, optimizer: str, method: str, world: int) -> float:
    """Returns the learning rate: AdamW on the batch of one rank takes steps that are shorter by up to the root of the world."""
    rate = RATES[task, optimizer]
    return rate * world**0.5 if optimizer == "adamw" and method not in ("bsp", "gradients only") else rate


def schedule_of(method: str, world: int) -> Schedule:
    """Returns the schedule of a method; ``gradients only`` shuffles like ``base-k(2)``."""
    if method == "bsp":
        return BSP(world)
    if method == "1 slow rank":
        return Domains(world, [range(world - 1), [world - 1]], local=4)
    return BaseK(world, 2)


class Run:
    """One training run of all ranks.

    Args:
        task: ``digits`` or ``charlm``.
        optimizer: ``sgd`` or ``adamw``.
        method: One of :data:`METHODS`.
        world: Number of ranks.
        seed: Of weights and order of samples.
        data: What is learnt.
    """

    def __init__(self, task: str, optimizer: str, method: str, world: int, seed: int, data: Split) -> None:
        torch.manual_seed(seed)
        self.task, self.method, self.world, self.data = task, method, world, data
        self.model: nn.Module = DigitsNet(12) if task == "digits" else CharModel(SYMBOLS, 12, 32)
        self.stacks = {
            name: p.detach().expand(world, *p.shape).clone().requires_grad_(True) for name, p in self.model.named_parameters()
        }
        self.optimizer = OPTIMIZERS[optimizer](list(self.stacks.values()), rate_of(task, optimizer, method, world))
        mixing = Mixing(schedule_of(method, world))
        self.period = mixing.schedule.period
        self.matrices = [torch.from_numpy(mixing.operator(number).matrix()).float() for number in range(self.period)]
        self.generator = torch.Generator().manual_seed(seed)
        self.forward = vmap(lambda values, x: functional_call(self.model, values, (x,)))
        self.steps = 0

    def epoch(self) -> None:
        """Goes once over the data; every rank sees its share."""
        order = torch.randperm(len(self.data.train_inputs), generator=self.generator)
        batch = GLOBAL_BATCH // self.world
        for start in range(0, len(order) - GLOBAL_BATCH + 1, GLOBAL_BATCH):
            indices = order[start : start + GLOBAL_BATCH].view(self.world, batch)
            self.step(self.data.train_inputs[indices], self.data.train_targets[indices])

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        """A step of every rank, and a round."""
        self.optimizer.zero_grad()
        logits = self.forward(self.stacks, inputs)
        # A sum over the ranks of each rank's mean: every slice gets its own rank's gradient.
        loss = functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
        (loss.view(self.world, -1).mean(dim=1).sum()).backward()
        matrix = self.matrices[self.steps % self.period]
        self.steps += 1
        with torch.no_grad():
            if self.method in ("bsp", "gradients only"):
                for stack in self.stacks.values():
                    assert stack.grad is not None
                    stack.grad.copy_((matrix @ stack.grad.view(self.world, -1)).view(stack.shape))
                self.optimizer.step()
                return
            self.optimizer.step()
            stacks = list(self.stacks.values())
            if self.method.endswith("moments too"):
                state = [value for stack in self.stacks.values() for value in self.optimizer.state[stack].values()]
                stacks += [value for value in state if value.dim() and value.shape[0] == self.world]
            for stack in stacks:
                stack.copy_((matrix @ stack.view(self.world, -1)).view(stack.shape))

    @torch.no_grad()
    def accuracy(self) -> tuple[float, float]:
        """Returns the accuracy of the mean model, and how far models are apart: rms distance over rms size."""
        mean = {name: stack.mean(dim=0) for name, stack in self.stacks.items()}
        right = count = 0
        for x, y in zip(self.data.test_inputs.split(256), self.data.test_targets.split(256), strict=True):
            right += int((functional_call(self.model, mean, (x,)).argmax(-1) == y).sum())
            count += y.numel()
        far = sum(float((stack - mean[name]).square().sum()) for name, stack in self.stacks.items()) / self.world
        size = sum(float(value.square().sum()) for value in mean.values())
        return right / count, (far / size) ** 0.5


def main() -> None:
    """Runs everything and prints tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--worlds", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--tasks", nargs="+", default=["digits", "charlm"])
    parser.add_argument("--optimizers", nargs="+", default=list(OPTIMIZERS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    # vmap knows no batching rule for the fused attention.
    torch.backends.cuda.enable_flash_sdp(False)
    results: list[dict[str, Any]] = []
    for task in options.tasks:
        data = load_digits() if task == "digits" else load_text(60_000, 32)
        epochs = 15 if task == "digits" else 8
        for optimizer in options.optimizers:
            for world in options.worlds:
                print(f"\n| {task}, {optimizer}, {world} ranks | accuracy, mean ± sd | lowest to highest | apart |", flush=True)
                print("|---|---|---|---|")
                for method in options.methods:
                    found = []
                    begin = time.perf_counter()
                    for seed in range(options.seeds):
                        run = Run(task, optimizer, method, world, seed, data)
                        for _ in range(epochs):
                            run.epoch()
                        found.append(run.accuracy())
                    values = [accuracy for accuracy, _ in found]
                    apart = statistics.mean(far for _, far in found)
                    results.append(
                        {
                            **{"task": task, "optimizer": optimizer, "world": world, "method": method},
                            **{"accuracy": values, "apart": apart, "seconds": time.perf_counter() - begin},
                        }
                    )
                    spread = statistics.stdev(values) if len(values) > 1 else 0.0
                    print(
                        f"| {method} | {statistics.mean(values):.2%} ± {spread:.2%} | {min(values):.2%} to {max(values):.2%} "
                        f"| {apart:.3f} |",
                        flush=True,
                    )
                    if options.json is not None:
                        options.json.parent.mkdir(parents=True, exist_ok=True)
                        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
