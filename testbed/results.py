"""``results.json``: what an experiment leaves, in one document; everything that a report needs is in it or named by it.

An experiment's folder::

    results.json                      this document, rewritten after every run, so that it is there whatever happens
    experiment.toml                   the experiment with all its defaults, as it was run
    CANDIDATE/SEED/rank.R.jsonl       a line for each step, evaluation, bucket and message of rank R (see below)
    CANDIDATE/SEED/ranks/R.log        what rank R printed
    CANDIDATE/SEED/policy.toml        the policy of this candidate
    CANDIDATE/SEED/switches/...       traces and logs of the switches
    CANDIDATE/SEED/traffic/HOST.jsonl cross traffic: bytes so far of each flow, every 100 ms

**Units.**  Seconds, bytes, bits per second; shares and accuracies from 0 to 1.  Names say so: ``_s``, ``_bytes``.

**Time.**  A run's time 0 is the moment at which rank 0 begins its first step.  Before it all ranks have met.  ``clock_s`` is the
wall-clock since then without the time spent in evaluations, which no candidate should be charged for; all other times include it.
In the files of ranks ``t`` is the machine's monotonic clock (``time.monotonic()``, one for all processes); subtract the run's
``zero_s``.  A switch's trace has ``t_us`` since the start of the switch; add the trace's ``start_s``, which is in the run's time.

**Lines of ranks.**  Each has ``event``, ``rank`` and ``t``, when it was noted:

    start        options, world, gradient_bytes, steps_per_epoch
    training     the first step begins
    step         step, epoch, loss (this rank's), step_s, clock_s (when it ended)
    evaluation   rank 0: step (number of steps done), clock_s, accuracy, test_loss, seconds
    residual     over DLCP: step, clock_s, l1, elements: what this rank owes
    bucket       number, bytes, begin_s and end_s (monotonic): the reduction of a gradient bucket, or with pipelined of a part of
                 one; over DLCP also class (of most of what is sent), and number is that of the call, as in messages
    message      over DLCP: operation, phase, part, peer, bytes, packets, class (of most of its packets), lost (packets),
                 begin_s and end_s (monotonic): from its submission until its receiver acknowledged it for good
    epoch        train_loss, metrics (see DLCPState.metrics), packets (see :class:`Packets`)
    trouble      peer, what, at_s: the transport heard nothing from a peer, or that it gave up
    end          epochs; cpu_s: processor time of the rank, all its threads together
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final, Literal, NotRequired, TypedDict

from dlcp.errors import ConfigError

FORMAT: Final = "dlcp-testbed-results"
VERSION: Final = 1
FILE: Final = "results.json"

Outcome = Literal["ok", "failed", "timeout", "killed", "interrupted"]
"""``ok``: all ranks ended well.  ``killed``: an event of the experiment ended a rank, and the others noticed.  ``timeout``: the
run was ended because it took longer than the experiment's ``timeout``.  ``interrupted``: by the user."""


class Distribution(TypedDict):
    """Of times: their number, and in seconds the mean, percentiles and extremes; None where there are none."""

    count: int
    mean_s: float | None
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    min_s: float | None
    max_s: float | None


class Evaluation(TypedDict):
    """The model on the test data."""

    clock_s: float
    step: int
    accuracy: float
    test_loss: float


class Completion(TypedDict):
    """Completion times of one class of messages, or of buckets."""

    count: int
    bytes: int
    lost_packets: int
    """Packets that messages went without."""
    quantiles_s: list[float]
    """The 0, 1, ... 100 % quantiles, so that element ``i`` against ``i / 100`` is the CDF; empty if there are none."""


class Packets(TypedDict):
    """Data packets of one class, as senders tagged them, summed over all ranks; retransmissions are not counted again."""

    protected: int
    droppable: int
    lost_protected: int
    lost_droppable: int
    """What messages went without; it is owed and leaves with the next step."""


class Residual(TypedDict):
    """Gradient mass that is owed, summed over all ranks."""

    clock_s: float
    step: int
    l1: float
    elements: int


class RankResult(TypedDict):
    """One rank."""

    rank: int
    host: str
    exit_code: int | None
    """Negative: the number of the signal that ended it; None: it did not end by itself."""
    steps: int
    log: str
    output: str
    """Both relative to the folder of ``results.json``."""
    said: str
    """The last line that it printed, or an empty string."""


class JobResult(TypedDict):
    """Another job that ran at the same time, in short; its files are in ``jobN/`` beneath the run's, its clock is its own."""

    job: int
    steps: int
    step_s: Distribution
    time_to_accuracy_s: float | None
    final_accuracy: float | None


class TraceFile(TypedDict):
    """A switch's queues over time: the format of ``softswitch --trace`` (softswitch/statistics.py), a line every 10 ms."""

    switch: str
    file: str
    start_s: float
    ports: dict[str, str]
    """Number of a port to the node at its other end."""


class HappenedEvent(TypedDict):
    """An event of the experiment that happened."""

    at_s: float
    kind: str
    what: str
    error: str
    """Empty if it could be done."""


class RunResult(TypedDict):
    """One run of one candidate."""

    candidate: str
    repeat: int
    """From 0."""
    seed: int
    folder: str
    outcome: Outcome
    error: str
    """In words; empty if ``outcome`` is ``ok``."""
    started_s: float
    """Since the start of the experiment."""
    zero_s: float | None
    """The monotonic clock at the run's time 0; None if it never came to a step."""
    bring_up_s: float
    """To build the network."""
    meeting_s: float | None
    """From the start of the ranks until the first step."""
    training_s: float | None
    """From the first step until the last rank ended."""
    tear_down_s: float

    steps: int
    step_s: Distribution
    """Of the steps of all ranks, but not the first, which also sets up, nor those after an evaluation, which wait for rank 0."""
    losses: list[list[float | None]]
    """``[clock_s, loss]`` of every step (or every n-th, at most 1000): rank 0's clock, mean loss over all ranks."""
    evaluations: list[Evaluation]
    time_to_accuracy_s: float | None
    """``clock_s`` of the first evaluation that reached ``goal``; None if none did."""
    final_accuracy: float | None
    final_loss: float | None
    buckets: Completion
    classes: dict[str, Completion]
    """Messages by class, ``"0"`` least urgent to ``"6"``; empty for what does not travel over DLCP."""
    packets: dict[str, Packets]
    """By class, likewise."""
    residual: list[Residual]
    transport: dict[str, int]
    """DLCP's counters, summed over ranks (packets by verdict, messages by fate)."""

    ranks: list[RankResult]
    network: dict[str, Any]
    """What ``Lab.statistics()`` returned at the end: ``switches`` by name, with ``ports`` by number, their queues, and ``drops``
    by cause; ``hosts``; times in it are since the start of a switch."""
    traces: list[TraceFile]
    events: list[HappenedEvent]
    traffic: list[dict[str, Any]]
    """What each flow of cross traffic did: ``FlowResult.to_dict()`` of testbed/traffic/cross.py."""
    processors_busy: NotRequired[float | None]
    """Share of this machine's processors that was busy from the first step to the last, whoever used them; None without one."""
    jobs: NotRequired[list[JobResult]]
    """Other jobs, where the experiment has several; all else is about the first."""


class Median(TypedDict):
    """Of several runs."""

    median: float | None
    min: float | None
    max: float | None
    values: list[float | None]
    """In the order of the repeats; None for a run that has none."""


class Summary(TypedDict):
    """Of all runs of a candidate; medians are those of the runs that have a value."""

    runs: int
    failed: int
    """Runs whose outcome is not ``ok``."""
    reached: int
    """Runs that reached the goal."""
    time_to_accuracy_s: Median
    final_accuracy: Median
    step_p50_s: Median
    step_p99_s: Median
    speedup: float | None
    """Time to accuracy of the best baseline over that of this candidate, of medians; above 1 is faster.  None without either."""
    p99_gain: float | None
    """Likewise of ``step_p99_s``, against the baseline that is best in time to accuracy."""


class CandidateResult(TypedDict):
    """One candidate."""

    name: str
    comm: str
    baseline: bool
    congestion: str
    target: str
    algorithm: str
    policy: dict[str, Any]
    """All of it."""
    summary: Summary


class Results(TypedDict):
    """The document."""

    format: str
    version: int
    experiment: dict[str, Any]
    """All of it, as ``Experiment.to_dict()`` has it."""
    topology: dict[str, Any]
    """All of it, as ``Topology.to_dict()`` has it: ``hosts``, ``switches``, ``links``."""
    hosts: dict[str, list[int]]
    """Ranks on each host."""
    goal: float
    """Accuracy whose first reaching is timed."""
    machine: dict[str, Any]
    command: list[str]
    started: str
    """UTC, ISO 8601."""
    seconds: float
    launcher: str
    """``fork`` or ``torchrun``."""
    complete: bool
    """All runs that were asked for were made, whatever came of them."""
    interrupted: str
    """The signal that ended it, or an empty string."""
    planned: int
    """Runs that were asked for."""
    best_baseline: str | None
    """The baseline with the smallest median time to accuracy."""
    candidates: list[CandidateResult]
    runs: list[RunResult]
    missing: list[dict[str, str]]
    """What this host lacks, and what is lost by it: ``key``, ``what``, ``lost``."""
    notes: NotRequired[list[str]]
    """Candidates that were left out, runs that were tried again as their network could not be built, when it was gone on with."""


def write_results(results: Results, folder: Path) -> Path:
    """Writes the document, whole or not at all, and returns its path."""
    path = folder / FILE
    temporary = path.with_suffix(f".{os.getpid()}.new")
    temporary.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")
    temporary.replace(path)
    return path


def read_results(path: Path) -> Results:
    """Reads a document; ``path`` may be its folder.

    Raises:
        ConfigError: It cannot be read, or is something else.
    """
    file = path / FILE if path.is_dir() else path
    try:
        loaded = json.loads(file.read_text())
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise ConfigError(file, "", problem, "results.json of an experiment, or its folder") from error
    except ValueError as error:
        raise ConfigError(file, "", f"is no JSON: {error}", "results.json of an experiment") from error
    if not isinstance(loaded, dict) or loaded.get("format") != FORMAT:
        raise ConfigError(file, "format", "is missing or something else", FORMAT)
    if loaded.get("version") != VERSION:
        raise ConfigError(file, "version", f"{loaded.get('version')!r} is unknown", str(VERSION))
    document: Results = loaded  # type: ignore[assignment]
    return document


__all__ = [
    "FILE",
    "FORMAT",
    "VERSION",
    "CandidateResult",
    "Completion",
    "Distribution",
    "Evaluation",
    "HappenedEvent",
    "JobResult",
    "Median",
    "Outcome",
    "Packets",
    "RankResult",
    "Residual",
    "Results",
    "RunResult",
    "Summary",
    "TraceFile",
    "read_results",
    "write_results",
]
