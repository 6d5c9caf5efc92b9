"""What the examples for numpy, JAX and TensorFlow have in common: their data, their loop, their command line.  No torch."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dlcp import Communicator, ConfigError, DLCPError, FileStore, MemoryStore, Policy, Store
from dlcp.gradients import ArrayAverager

Array = NDArray[Any]
EXIT_USAGE, EXIT_TRANSPORT = 2, 4


class Digits(NamedTuple):
    """scikit-learn's handwritten digits: ``float32[n, 64]`` in [0, 1] and ``int32[n]``, four fifths of them for training."""

    train_images: Array
    train_labels: Array
    test_images: Array
    test_labels: Array


def load_digits() -> Digits:
    """Returns the digits, in an order that is the same on every machine."""
    from sklearn.datasets import load_digits as load

    digits = load()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.data[order] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int32)
    cut = len(order) * 4 // 5
    return Digits(images[:cut], labels[:cut], images[cut:], labels[cut:])


class Learner(Protocol):
    """A model in some framework, with its optimizer."""

    @property
    def version(self) -> str:
        """Version of the framework."""

    @property
    def averager(self) -> ArrayAverager:
        """What averages its gradients."""

    def step(self, images: Array, labels: Array) -> float:
        """Makes a step: gradients of this rank's batch, their average over all ranks, an update.  Returns the loss."""

    def predict(self, images: Array) -> Array:
        """Returns ``[n, 10]`` logits."""

    def state(self) -> dict[str, Array]:
        """Returns parameters and the optimizer's state as arrays."""

    def load(self, state: dict[str, Array]) -> None:
        """Takes up what :meth:`state` has returned."""


def run(name: str, make: Callable[[Communicator, argparse.Namespace], Learner], arguments: list[str] | None = None) -> int:
    """Runs one rank and returns its exit code.

    Args:
        name: Of the framework.
        make: Makes the learner; every rank's starts from rank 0's parameters.
        arguments: The command line.
    """
    options = _parse(name, arguments)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    try:
        policy = Policy.from_toml(options.policy) if options.policy else Policy()
        store: Store = FileStore(os.environ["DLCP_STORE"]) if "DLCP_STORE" in os.environ else MemoryStore()
        with Communicator(rank, world, store, policy=policy, host=options.host, faults=options.faults) as communicator:
            learner = make(communicator, options)
            with learner.averager.guard():  # an error on one rank ends all of them
                _train(name, learner, options, rank, world)
    except ConfigError as error:
        print(f"rank {rank}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except (DLCPError, ImportError) as error:
        print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_TRANSPORT if isinstance(error, DLCPError) else EXIT_USAGE
    return 0


def _train(name: str, learner: Learner, options: argparse.Namespace, rank: int, world: int) -> None:
    digits = load_digits()
    first = _resume(learner, options, rank) if options.resume else 0
    checked = 0
    for epoch in range(first, options.epochs):
        losses, begin = [], time.perf_counter()
        for images, labels in _batches(digits, options, epoch, rank, world):
            losses.append(learner.step(images, labels))
            if options.check:
                _compare(learner, world)
                checked += 1
        accuracy = float(np.mean(np.argmax(learner.predict(digits.test_images), 1) == digits.test_labels))
        if rank == 0 and not options.quiet:
            seconds = time.perf_counter() - begin
            print(f"epoch {epoch}: loss {np.mean(losses):.4f}, accuracy {accuracy:.4f}, {seconds:.2f} s", file=sys.stderr)
        if options.checkpoint is not None:
            _save(learner, options.checkpoint, epoch + 1, rank)
    accuracy = float(np.mean(np.argmax(learner.predict(digits.test_images), 1) == digits.test_labels))
    hook = learner.averager.metrics()["hook"]
    summary = {"framework": name, "version": learner.version, "rank": rank, "world": world, "accuracy": accuracy}
    summary |= {"digest": _digest(learner), "compared_steps": checked, "hook": hook}
    if options.json is not None:
        options.json.with_suffix(f".{rank}.json").write_text(json.dumps(summary))
    if rank == 0 and not options.quiet:
        print(f"{name} {learner.version}, {world} ranks: accuracy {accuracy:.4f}, {hook['lost_elements']} elements lost and owed")


def _batches(digits: Digits, options: argparse.Namespace, epoch: int, rank: int, world: int) -> Iterator[tuple[Array, Array]]:
    """Yields this rank's batches of one epoch; all ranks have the same number."""
    order = np.random.default_rng((options.seed, epoch)).permutation(len(digits.train_labels))
    size = options.batch_size
    for start in range(0, len(order) - size * world + 1, size * world):
        mine = order[start + rank * size : start + (rank + 1) * size]
        yield digits.train_images[mine], digits.train_labels[mine]


def _digest(learner: Learner) -> str:
    digest = hashlib.sha256()
    for key, array in sorted(learner.state().items()):
        digest.update(key.encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _compare(learner: Learner, world: int) -> None:
    """Raises unless parameters and optimizer are bit for bit the same on all ranks."""
    mine = np.frombuffer(bytes.fromhex(_digest(learner)), np.uint8).copy()
    found = [np.empty_like(mine) for _ in range(world)]
    learner.averager.communicator.allgather_async(mine, found).wait()
    if any(not np.array_equal(other, mine) for other in found):
        raise AssertionError(f"replicas differ after step {learner.averager.passes}")


def _paths(folder: Path, epoch: int, rank: int) -> tuple[Path, Path]:
    return folder / f"epoch{epoch:05d}.model.npz", folder / f"epoch{epoch:05d}.rank{rank}.npz"


def _save(learner: Learner, folder: Path, epoch: int, rank: int) -> None:
    """Rank 0 saves the model, which is everybody's; every rank what it owes, which is its own."""
    folder.mkdir(parents=True, exist_ok=True)
    model, owed = _paths(folder, epoch, rank)
    learner.averager.save(owed)
    if rank == 0:
        temporary = model.with_suffix(".new")
        with temporary.open("wb") as file:
            np.savez(file, **learner.state())  # type: ignore[arg-type]
        temporary.replace(model)
    learner.averager.communicator.barrier()


def _resume(learner: Learner, options: argparse.Namespace, rank: int) -> int:
    """Takes up the newest epoch that all ranks have; returns how many are done."""
    done = [int(path.name[5:10]) for path in options.checkpoint.glob(f"epoch?????.rank{rank}.npz")]
    newest = learner.averager.communicator.exact_allreduce_async(np.array([max(done, default=0)]), op="min").wait().output
    epoch = int(newest[0])
    if epoch:
        model, owed = _paths(options.checkpoint, epoch, rank)
        with np.load(model, allow_pickle=False) as archive:
            learner.load({key: archive[key] for key in archive.files})
        learner.averager.load(owed)
    return epoch


def _parse(name: str, arguments: list[str] | None) -> argparse.Namespace:
    script = f"train_{name}.py"
    parser = argparse.ArgumentParser(
        prog=script,
        description=f"Train a small network on handwritten digits with {name}; gradients are averaged over DLCP.",
        epilog=f"example: python -m examples.launch --ranks 2 examples/{script} --epochs 3 --faults drop=0.01",
    )
    add = parser.add_argument
    add("--epochs", type=int, default=5, metavar="N", help="passes over the data (default: %(default)s)")
    add("--batch-size", type=int, default=32, metavar="N", help="samples for each rank and step (default: %(default)s)")
    add("--width", type=int, default=256, metavar="N", help="units of the hidden layers (default: %(default)s)")
    add("--lr", type=float, default=0.1, metavar="X", help="learning rate (default: %(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="of weights and order (default: %(default)s)")
    add("--policy", type=Path, metavar="FILE", help="TOML file: what may be lost, and how packets are tagged")
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="own address (default: %(default)s)")
    add("--faults", metavar="PLAN", help="packets to lose, for example drop=0.01")
    add("--in-jit", action="store_true", help="average inside the compiled step instead of between two (jax, tensorflow)")
    add("--check", action="store_true", help="compare all ranks' parameters after each step, and end if a bit differs")
    add("--checkpoint", type=Path, metavar="DIR", help="save after each epoch")
    add("--resume", action="store_true", help="go on from the newest epoch in --checkpoint that all ranks have")
    add("--json", type=Path, metavar="FILE", help="a summary of each rank: run.json becomes run.0.json and so on")
    add("--quiet", action="store_true", help="print nothing")
    options = parser.parse_args(arguments)
    if options.resume and options.checkpoint is None:
        parser.error("--resume needs --checkpoint")
    return options
