"""Candidates: how each becomes a command line of the training script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from testbed.experiment import Candidate, Experiment

TEXT_BYTES: Final = 300_000


@dataclass(frozen=True)
class Kind:
    """A way to carry gradients.

    Attributes:
        summary: In words.
        options: Options of the training script that choose it, given the candidate and the folder of its run.
        over_dlcp: Whether gradients travel over DLCP, and the policy counts.
    """

    summary: str
    options: Callable[[Candidate, Path], list[str]]
    over_dlcp: bool = False


def _comm(name: str) -> Callable[[Candidate, Path], list[str]]:
    return lambda candidate, folder: ["--comm", name]


def _group(name: str) -> Callable[[Candidate, Path], list[str]]:
    """What uses the process group by itself: that may be gloo's or DLCP's."""
    return lambda candidate, folder: ["--comm", name, "--backend", candidate.over]


def _ds_sync(candidate: Candidate, folder: Path) -> list[str]:
    words = ["--sync", "ds-sync", "--comm", candidate.over, "--schedule", candidate.schedule]
    return [*words, "--topology", str(folder / "topology.toml")] if candidate.schedule == "topology" else words


def _powersgd(candidate: Candidate, folder: Path) -> list[str]:
    # torch's hook starts collectives from within callbacks.  With several buckets over gloo ranks start them in different orders,
    # and wait for each other for ever (torch 2.13): so there is one bucket, as with DDP's own default for models of this size.
    return [*_group("powersgd")(candidate, folder), "--bucket-mb", "1024.0"]


KINDS: Final = {
    "gloo": Kind("plain DDP: gloo's ring over TCP", _group("gloo")),
    "gloo-fp16": Kind("gloo's ring over TCP, gradients rounded to 16 bits", _comm("gloo-fp16")),
    "powersgd": Kind("torch's low-rank compression over gloo", _powersgd),
    "postlocalsgd": Kind("torch's local SGD over gloo: parameters are averaged every few steps", _group("postlocalsgd")),
    "dlcp": Kind("gradients over DLCP", _comm("dlcp"), over_dlcp=True),
    "pipelined": Kind(
        "gradients over DLCP, and the next forward pass does not wait for all of them", _comm("pipelined"), over_dlcp=True
    ),
    "ds-sync": Kind("parameters averaged in small groups that change every round", _ds_sync),
}
"""Each ``comm`` of an experiment."""


OVER_EITHER: Final = frozenset(("gloo", "powersgd", "postlocalsgd", "ds-sync"))
"""Those whose ``over`` counts."""


def over_dlcp(candidate: Candidate) -> bool:
    """Returns whether anything of a candidate travels over DLCP, so that the policy counts."""
    return KINDS[candidate.comm].over_dlcp or (candidate.comm in OVER_EITHER and candidate.over == "dlcp")


def write_inputs(experiment: Experiment, candidate: Candidate, folder: Path) -> None:
    """Writes the files that a run's ranks read: the policy and the topology."""
    (folder / "policy.toml").write_text(experiment.policy_of(candidate).to_toml())
    (folder / "topology.toml").write_text(experiment.network.to_toml())


def arguments(experiment: Experiment, candidate: Candidate, seed: int, folder: Path, host: str, store: Path | None) -> list[str]:
    """Returns the command line of a rank's training script.

    Args:
        experiment: What is trained.
        candidate: How.
        seed: Of weights and order of samples.
        folder: Of the run; absolute.
        host: Address of the rank's host.
        store: File at which the ranks meet; None: as torchrun says.
    """
    training = experiment.training
    words = ["--task", training.task, "--width", str(training.width), "--batch-size", str(training.batch_size)]
    words += ["--epochs", str(training.epochs), "--lr", repr(training.lr), "--bucket-mb", repr(training.bucket_mb)]
    words += ["--seed", str(seed), "--eval-every", str(training.eval_every), "--trace", "--quiet"]
    words += ["--json-log", str(folder / "rank.jsonl"), "--host", host]
    words += KINDS[candidate.comm].options(candidate, folder)
    if training.task == "charlm":
        words += ["--text-bytes", str(TEXT_BYTES)]
    if over_dlcp(candidate):
        words += ["--policy", str(folder / "policy.toml"), "--algorithm", experiment.algorithm_of(candidate)]
    if store is not None:
        words += ["--store", str(store)]
    return words


class Place(NamedTuple):
    """Where a rank of the topology is.

    Attributes:
        job: Its job, from 0.
        rank: Its rank in that.
        world: Ranks of that.
        host: Its host.
    """

    job: int
    rank: int
    world: int
    host: str

    def folder(self, folder: Path) -> Path:
        """Returns where a job writes: the first one into the run's folder, others beneath."""
        return folder if self.job == 0 else folder / f"job{self.job}"


def places_of(experiment: Experiment) -> dict[int, Place]:
    """Returns where every rank of the topology is."""
    jobs, hosts = experiment.jobs, experiment.network.places
    return {number: Place(number % jobs, number // jobs, len(hosts) // jobs, host) for number, host in enumerate(hosts)}


__all__ = ["KINDS", "Kind", "Place", "arguments", "over_dlcp", "places_of", "write_inputs"]
