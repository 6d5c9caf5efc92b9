"""Trains a small model with DDP over gloo, DLCP or one of torch's own alternatives.

torchrun --nproc-per-node 4 examples/train.py --comm dlcp --faults drop=0.01
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for "python examples/train.py" without an installation

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import BatchSampler, DistributedSampler, TensorDataset

from dlcp.errors import ConfigError, DLCPError
from dlcp.torch.pipeline import PipelinedOptimizer
from examples.carriers import CARRIERS, carry_ds_sync
from examples.checkpoint import load_latest, save
from examples.data import SYMBOLS, Split, load_digits, load_text
from examples.evaluation import Watch, evaluate, loss_of
from examples.models import CharModel, DigitsNet
from examples.options import parse
from examples.recorder import Recorder
from examples.reporting import Report, percentile
from examples.tolerance import charlm, digits

EXIT_USAGE, EXIT_TRANSPORT = 2, 4

__all__ = ["Task", "Trainer", "batches", "build_task", "charlm", "digits", "identity", "main"]


class Task(NamedTuple):
    """What is learnt: a model, its data, and how well a batch of logits fits its targets."""

    model: nn.Module
    data: Split
    optimizer: Callable[[nn.Module, float | None], Optimizer]


def build_task(options: argparse.Namespace) -> Task:
    """Returns one of the two tasks."""
    if options.task == "digits":
        return Task(DigitsNet(options.width), load_digits(), lambda m, lr: SGD(m.parameters(), lr=lr or 0.05, momentum=0.9))
    text = load_text(options.text_bytes)
    return Task(CharModel(SYMBOLS, options.width), text, lambda m, lr: AdamW(m.parameters(), lr=lr or 0.001))


def batches(data: Split, sampler: DistributedSampler[Any], size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields this rank's batches of one epoch."""
    for indices in BatchSampler(sampler, size, drop_last=True):
        yield data.train_inputs[indices], data.train_targets[indices]


class Trainer:
    """Model, data and carrier of one rank.

    Args:
        options: The command line.
        rank: Own rank.
        world: Number of ranks.

    Raises:
        ConfigError: The policy is malformed, or a rank has fewer samples than a batch.
        DLCPError: The ranks did not meet.
    """

    def __init__(self, options: argparse.Namespace, rank: int, world: int) -> None:
        torch.manual_seed(options.seed)
        self.options, self.rank, self.world = options, rank, world
        self.task = build_task(options)
        samples = len(self.task.data.train_inputs)
        self.sampler: DistributedSampler[Any] = DistributedSampler(
            TensorDataset(torch.arange(samples)), world, rank, seed=options.seed, drop_last=True
        )
        self.steps = len(self.sampler) // options.batch_size
        if self.steps == 0:
            raise ConfigError(
                "train.py", "--batch-size", f"{options.batch_size} exceeds a rank's {len(self.sampler)} samples", "less"
            )
        self.model = DistributedDataParallel(self.task.model, bucket_cap_mb=options.bucket_mb)
        self.recorder = Recorder() if options.trace else None
        carry = carry_ds_sync if options.sync == "ds-sync" else CARRIERS[options.comm]
        self.carrier = carry(self.model, self.task.optimizer(self.task.model, options.lr), options, self.recorder)
        self.watch = Watch(self.task.model, self.task.data, self.carrier, rank, options.eval_every)
        self.gradient_bytes = sum(p.numel() * p.element_size() for p in self.task.model.parameters())

    def run(self) -> None:
        """Trains, reports and saves."""
        options, state = self.options, self.carrier.state
        with ExitStack() as stack:
            if state is not None:
                stack.callback(state.close)
            saved = (identity(options), self.task.model, self.carrier.optimizer, state)
            first = load_latest(options.checkpoint, self.rank, self.world, *saved) if options.resume else 0
            report = stack.enter_context(
                Report(
                    self.rank,
                    json_log=options.json_log,
                    tensorboard=options.tensorboard,
                    append=first > 0,
                    quiet=options.quiet,
                )
            )
            self.introduce(report, first)
            stack.enter_context(self.carrier.guard())
            for epoch in range(first, options.epochs):
                losses, seconds = self.train_epoch(epoch, report)
                done = (epoch + 1) * self.steps
                self.watch.stepped(done, report, last=epoch == options.epochs - 1)
                averager = self.carrier.averager
                report.epoch(
                    epoch,
                    done,
                    **self.evaluate(),
                    train_loss=sum(losses) / len(losses),
                    seconds=sum(seconds),
                    step_p50_s=percentile(seconds, 0.5),
                    step_p99_s=percentile(seconds, 0.99),
                    metrics=state.metrics() if state is not None else (averager.counts if averager is not None else {}),
                    **({"packets": self.recorder.packets()} if self.recorder is not None else {}),
                )
                if options.checkpoint is not None:
                    save(options.checkpoint, epoch + 1, self.rank, self.world, *saved)
            if self.carrier.averager is not None:
                self.carrier.averager.consensus()
            if isinstance(self.carrier.optimizer, PipelinedOptimizer):
                self.carrier.optimizer.drain()
            if state is not None:
                state.metrics()  # a round trip through the transport's thread, which has then told the recorder everything
            self.note(report)
            report.write("end", epochs=options.epochs, cpu_s=time.process_time())

    def evaluate(self) -> dict[str, float]:
        """Returns accuracy and loss on the test data, unless these are looked at every few steps anyway; all ranks call it."""
        if self.options.eval_every is not None:
            return {}
        averager = self.carrier.averager
        # Models of different ranks differ between averages: what counts is their mean.
        with averager.consensus_model() if averager is not None else nullcontext():
            test_loss, accuracy = evaluate(self.task.model, self.task.data, self.rank, self.world)
        return {"accuracy": accuracy, "test_loss": test_loss}

    def note(self, report: Report) -> None:
        """Writes what has been recorded since the last time, and what happened to loss bounds."""
        state = self.carrier.state
        while state is not None and state.events:
            happened = dict(state.events.popleft())
            report.write(happened.pop("event"), **happened)
        if self.recorder is not None:
            for event, values in self.recorder.take():
                report.write(event, **values)

    def train_epoch(self, epoch: int, report: Report) -> tuple[list[float], list[float]]:
        """Returns the loss and the seconds of each step."""
        losses: list[float] = []
        seconds: list[float] = []
        self.sampler.set_epoch(epoch)
        report.begin_epoch(epoch, self.steps)
        for number, (inputs, targets) in enumerate(batches(self.task.data, self.sampler, self.options.batch_size)):
            self.watch.begin(report)
            begin = time.perf_counter()
            self.carrier.optimizer.zero_grad()
            loss = loss_of(self.model(inputs), targets)
            loss.backward()
            self.carrier.optimizer.step()
            seconds.append(time.perf_counter() - begin)
            losses.append(loss.item())
            done = epoch * self.steps + number + 1
            report.step(epoch, done - 1, losses[-1], seconds[-1], clock_s=self.watch.clock())
            self.note(report)
            self.watch.stepped(done, report)
        return losses, seconds

    def introduce(self, report: Report, first: int) -> None:
        """Reports what is about to be done."""
        options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(self.options).items()}
        report.write(
            "start",
            world=self.world,
            first_epoch=first,
            steps_per_epoch=self.steps,
            gradient_bytes=self.gradient_bytes,
            torch=torch.__version__,
            pid=os.getpid(),
            options=options,
        )
        what = self.options.task if self.options.sync == "bsp" else f"{self.options.task}, {self.options.sync}"
        report.say(
            f"{what} over {self.options.comm}: {self.world} ranks, {self.gradient_bytes / 1e6:.2f} MB of gradients, "
            f"{self.steps} steps an epoch"
        )


def identity(options: argparse.Namespace) -> dict[str, Any]:
    """Returns what must be the same for a checkpoint to be taken up."""
    job = {"task": options.task, "width": options.width, "seed": options.seed, "comm": options.comm}
    return job if options.sync == "bsp" else {**job, "sync": options.sync}


def main(arguments: list[str] | None = None) -> int:
    """Runs one rank; under torchrun the environment says which."""
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    if options.backend == "dlcp":
        for name in ("host", "policy", "faults"):
            value = getattr(options, name)
            if value is not None:
                os.environ.setdefault(f"DLCP_{name.upper()}", str(value))
    if options.store is not None:
        place = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = dist.FileStore(str(options.store), place[1])  # type: ignore[attr-defined]
        dist.init_process_group(options.backend, store=store, rank=place[0], world_size=place[1])
    elif "RANK" in os.environ:
        dist.init_process_group(options.backend)
    else:
        dist.init_process_group(options.backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    rank, world = dist.get_rank(), dist.get_world_size()
    try:
        Trainer(options, rank, world).run()
    except ConfigError as error:
        print(f"rank {rank}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except DLCPError as error:
        print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_TRANSPORT
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # With DDP over gloo, torch 2.13 now and then aborts in a thread of its own while the interpreter shuts down ("terminate
    # called without an active exception"), which torchrun takes for a rank that failed.  Everything is closed by now.
    os._exit(code)
