"""Trains a small model with DDP over gloo, DLCP or one of torch's own alternatives.

torchrun --nproc-per-node 4 examples/train.py --comm dlcp --faults drop=0.01
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for "python examples/train.py" without an installation

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import BatchSampler, DistributedSampler, TensorDataset

from dlcp.errors import ConfigError, DLCPError
from dlcp.policy import Policy
from dlcp.torch import DLCPState
from examples.checkpoint import load_latest, save
from examples.data import SYMBOLS, Split, load_digits, load_text
from examples.models import CharModel, DigitsNet
from examples.reporting import Report, percentile

LOCAL_SGD_PERIOD = 4
EXIT_USAGE, EXIT_TRANSPORT = 2, 4


class Task(NamedTuple):
    """What is learnt: a model, its data, and how well a batch of logits fits its targets."""

    model: nn.Module
    data: Split
    optimizer: Callable[[nn.Module, float | None], Optimizer]


class Carrier(NamedTuple):
    """How gradients travel.

    Attributes:
        optimizer: The task's, or a wrapper that this way needs.
        guard: Context for training.
        state: DLCP's state, or None.
    """

    optimizer: Optimizer
    guard: Callable[[], AbstractContextManager[Any]]
    state: DLCPState | None = None


def build_task(options: argparse.Namespace) -> Task:
    """Returns one of the two tasks."""
    if options.task == "digits":
        return Task(DigitsNet(options.width), load_digits(), lambda m, lr: SGD(m.parameters(), lr=lr or 0.05, momentum=0.9))
    text = load_text(options.text_bytes)
    return Task(CharModel(SYMBOLS, options.width), text, lambda m, lr: AdamW(m.parameters(), lr=lr or 0.001))


def carry_dlcp(model: DistributedDataParallel, optimizer: Optimizer, options: argparse.Namespace) -> Carrier:
    """Gradients over DLCP: these three lines are all that a training script needs, and guard() around its loop."""
    state = DLCPState.from_process_group(
        policy=Policy.from_toml(options.policy) if options.policy else Policy(),
        algorithm=options.algorithm,
        host=options.host,
        faults=options.faults,
    )
    state.attach(model)
    return Carrier(optimizer, state.guard, state)


def carry_gloo(model: DistributedDataParallel, optimizer: Optimizer, options: argparse.Namespace) -> Carrier:
    """Plain DDP: gloo's all-reduce over TCP."""
    return Carrier(optimizer, nullcontext)


def carry_powersgd(model: DistributedDataParallel, optimizer: Optimizer, options: argparse.Namespace) -> Carrier:
    """torch's low-rank compression, over gloo."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

    state = powersgd.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=10)
    model.register_comm_hook(state, powersgd.powerSGD_hook)
    return Carrier(optimizer, nullcontext)


def carry_postlocalsgd(model: DistributedDataParallel, optimizer: Optimizer, options: argparse.Namespace) -> Carrier:
    """torch's local SGD, over gloo: after a warm-up ranks average parameters every few steps instead of gradients."""
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    with warnings.catch_warnings():
        # This package of torch scripts some optimizers as it is imported, which torch itself warns of.
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import PostLocalSGDOptimizer

    warm_up = 20
    # A group of one: gradients stay local after the warm-up, which is what makes the averaging worth while.
    alone = dist.new_subgroups(group_size=1)[0]
    model.register_comm_hook(PostLocalSGDState(None, alone, start_localSGD_iter=warm_up), post_localSGD_hook)
    return Carrier(PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(LOCAL_SGD_PERIOD, warm_up)), nullcontext)


CARRIERS = {"gloo": carry_gloo, "dlcp": carry_dlcp, "powersgd": carry_powersgd, "postlocalsgd": carry_postlocalsgd}


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Returns the mean cross-entropy over all targets, whatever their shape."""
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


@torch.no_grad()
def evaluate(model: nn.Module, data: Split, rank: int, world: int) -> tuple[float, float]:
    """Returns loss and accuracy on the test data, of which every rank looks at its share."""
    model.eval()
    loss, right, count = 0.0, 0, 0
    inputs, targets = data.test_inputs[rank::world], data.test_targets[rank::world]
    for x, y in zip(inputs.split(256), targets.split(256), strict=True):
        logits = model(x)
        loss += float(loss_of(logits, y)) * y.numel()
        right += int((logits.argmax(-1) == y).sum())
        count += y.numel()
    model.train()
    sums = torch.tensor([loss, right, count], dtype=torch.float64)
    dist.all_reduce(sums)
    return float(sums[0] / sums[2]), float(sums[1] / sums[2])


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
        self.carrier = CARRIERS[options.comm](self.model, self.task.optimizer(self.task.model, options.lr), options)
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
                test_loss, accuracy = evaluate(self.task.model, self.task.data, self.rank, self.world)
                report.epoch(
                    epoch,
                    (epoch + 1) * self.steps,
                    accuracy=accuracy,
                    test_loss=test_loss,
                    train_loss=sum(losses) / len(losses),
                    seconds=sum(seconds),
                    step_p50_s=percentile(seconds, 0.5),
                    step_p99_s=percentile(seconds, 0.99),
                    metrics=state.metrics() if state is not None else {},
                )
                if options.checkpoint is not None:
                    save(options.checkpoint, epoch + 1, self.rank, self.world, *saved)
            report.write("end", epochs=options.epochs)

    def train_epoch(self, epoch: int, report: Report) -> tuple[list[float], list[float]]:
        """Returns the loss and the seconds of each step."""
        losses: list[float] = []
        seconds: list[float] = []
        self.sampler.set_epoch(epoch)
        report.begin_epoch(epoch, self.steps)
        for number, (inputs, targets) in enumerate(batches(self.task.data, self.sampler, self.options.batch_size)):
            begin = time.perf_counter()
            self.carrier.optimizer.zero_grad()
            loss = loss_of(self.model(inputs), targets)
            loss.backward()
            self.carrier.optimizer.step()
            seconds.append(time.perf_counter() - begin)
            losses.append(loss.item())
            report.step(epoch, epoch * self.steps + number, losses[-1], seconds[-1])
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
            options=options,
        )
        report.say(
            f"{self.options.task} over {self.options.comm}: {self.world} ranks, {self.gradient_bytes / 1e6:.2f} MB of gradients, "
            f"{self.steps} steps an epoch"
        )


def identity(options: argparse.Namespace) -> dict[str, Any]:
    """Returns what must be the same for a checkpoint to be taken up."""
    return {"task": options.task, "width": options.width, "seed": options.seed, "comm": options.comm}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="train.py",
        description="Train a small model on real data with DistributedDataParallel, and choose what carries the gradients.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="""\
examples:
  python examples/train.py                                             one rank, to see that it learns
  torchrun --nproc-per-node 4 examples/train.py --comm gloo            the baseline
  torchrun --nproc-per-node 4 examples/train.py --comm dlcp            the same over DLCP
  torchrun --nproc-per-node 4 examples/train.py --comm dlcp --faults drop=0.01
                                                                       the same, one packet in a hundred lost
  torchrun --nproc-per-node 2 examples/train.py --task charlm --epochs 3 --json-log runs/chars.jsonl

exit codes: 0 done, 2 wrong usage or policy, 4 the transport or another rank failed, 1 anything else
""",
    )
    add = parser.add_argument_group("what to train").add_argument
    add(
        "--task",
        choices=("digits", "charlm"),
        default="digits",
        help="digits: a CNN on scikit-learn's handwritten digits; "
        "charlm: a transformer on the source text of Python's standard library (default: %(default)s)",
    )
    add(
        "--width",
        type=_positive,
        default=32,
        metavar="N",
        help="scales the model; bytes of gradients grow with its square (default: %(default)s, over 1 MB)",
    )
    add(
        "--text-bytes",
        type=_positive,
        default=300_000,
        metavar="N",
        help="charlm only: how much text to learn (default: %(default)s)",
    )
    add("--epochs", type=_positive, default=8, metavar="N", help="passes over the data (default: %(default)s)")
    add("--batch-size", type=_positive, default=16, metavar="N", help="samples for each rank and step (default: %(default)s)")
    add("--lr", type=float, metavar="X", help="learning rate (default: 0.05 for digits, SGD; 0.001 for charlm, AdamW)")
    add("--seed", type=int, default=0, metavar="N", help="of initial weights and order of samples (default: %(default)s)")
    add(
        "--threads",
        type=_positive,
        default=1,
        metavar="N",
        help="of torch in each rank; ranks of one machine share its cores (default: %(default)s)",
    )
    add = parser.add_argument_group("what carries the gradients").add_argument
    add(
        "--comm",
        choices=tuple(CARRIERS),
        default="gloo",
        help="gloo: plain DDP over TCP; dlcp: this project; powersgd: torch's "
        "low-rank compression over gloo; postlocalsgd: torch's local SGD over gloo (default: %(default)s)",
    )
    add(
        "--policy",
        type=Path,
        metavar="FILE",
        help="dlcp only: TOML file of classes, loss bounds and the rest ('dlcp policy init' writes one with all keys)",
    )
    add("--algorithm", choices=("sharded", "ring"), default="sharded", help="dlcp only (default: %(default)s)")
    add(
        "--faults",
        metavar="PLAN",
        help="dlcp only: loss to inject into what a rank sends, for example drop=0.01 or "
        "'drop=0.05,class=0-3,protected=no'. It happens in DLCP's own sockets, out of gloo's reach: to hurt gloo, hurt the "
        "network it runs in",
    )
    add(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="dlcp only: address of this rank that the others can reach (default: %(default)s, all ranks on this machine)",
    )
    add("--bucket-mb", type=float, default=25.0, metavar="X", help="DDP's bucket size (default: %(default)s)")
    add = parser.add_argument_group("what to keep").add_argument
    add(
        "--json-log",
        type=Path,
        metavar="FILE",
        help="a JSON line for each step and epoch; each rank writes its own file, run.jsonl becomes run.0.jsonl and so on",
    )
    add("--tensorboard", type=Path, metavar="DIR", help="scalars for TensorBoard, of rank 0 (needs the package tensorboard)")
    add(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="save after each epoch; every rank saves its own file, since what is owed to the network differs",
    )
    add("--resume", action="store_true", help="go on from the newest epoch in --checkpoint that all ranks have")
    add("--quiet", action="store_true", help="show no progress")
    options = parser.parse_args(arguments)
    if options.resume and options.checkpoint is None:
        parser.error("--resume needs --checkpoint")
    for name in ("policy", "faults"):
        if getattr(options, name) is not None and options.comm != "dlcp":
            parser.error(f"--{name} has no effect on --comm {options.comm}: use --comm dlcp")
    return options


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value


def main(arguments: list[str] | None = None) -> int:
    """Runs one rank; under torchrun the environment says which."""
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
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
