"""The all-reduce benchmark: what one rank does, and the run that drives all ranks.

Theory of operation.  All candidates live in the same processes at the same time.  In each turn the parent asks all ranks to load
their buffers, names a moment at which all begin, collects each rank's time, and only when the last rank is done asks for the CPU
time, so that what a rank still does for others is counted.  A turn's time is that of the slowest rank; its CPU time is the sum
over ranks.  Then every rank checks every element of its result.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dlcp.bench.candidates import Candidate, DlcpCandidate, GlooCandidate, StreamCandidate
from dlcp.bench.crew import Crew, Worker
from dlcp.bench.data import Data, Residuals
from dlcp.bench.meters import CpuMeter, MemoryLedger, take_stock
from dlcp.bench.numbers import counted, difference, turns
from dlcp.bench.server import Server
from dlcp.collectives.communicator import Algorithm, Communicator
from dlcp.collectives.operation import Reduction
from dlcp.policy import Policy
from dlcp.udp.faults import FaultPlan

_START_DELAY_NS: Final = 1_000_000
_START_DELAY_PER_RANK_NS: Final = 200_000
_OPEN_EXTRA_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured.

    Attributes:
        ranks: Number of ranks, at least 2.
        elements: float32 elements of the array.
        iterations: Measured turns of each candidate.
        warmup: Turns before them that are not.
        candidates: Names, ``dlcp`` first; of ``dlcp``, ``dlcp_lossless``, ``gloo`` and ``stream``.
        policy: For DLCP.
        algorithm: For DLCP.
        servers: Dedicated servers, processes of their own, for ``ps``; otherwise 0.
        faults: Injected into DLCP's packets, except those of ``dlcp_lossless``.
        tagged: Whether packets carry classes and protection, as under the DDP hook.
        seed: Of data, tags and the choice of protected packets.
        timeout_s: Longest turn.
    """

    ranks: int
    elements: int
    iterations: int
    warmup: int
    candidates: tuple[str, ...]
    policy: Policy
    algorithm: Algorithm
    servers: int
    faults: FaultPlan | None
    tagged: bool
    seed: int
    timeout_s: float


@dataclass(slots=True)
class Measured:
    """What came out for one candidate, measured turns only.

    Attributes:
        times: Seconds of each turn.
        cpu_s: CPU seconds of all ranks, summed over turns.
        held: Bytes held after the warm-up, in the rank that holds most; None without a warm-up.
        peak: Most bytes at any moment of set-up and warm-up, in the rank with most; None if unknown.
        error: Largest absolute difference, in any element, between what was contributed and what was delivered or is kept as
            residual.
        counters: What the communicator of each rank counted; with dedicated servers theirs too, and warm-up included.
        stride: Payload bytes of a packet; 0 without packets.
    """

    times: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    held: int | None = None
    peak: int | None = None
    error: float | None = None
    counters: list[dict[str, Any]] = field(default_factory=list)
    stride: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that was measured.

    Attributes:
        candidates: By name.
        peak: Most bytes of a rank at any moment of the measured turns, all candidates together; None if unknown.
        growth: Live bytes that a rank gained in the measured turns, all candidates together, in the rank that gained most.
    """

    candidates: dict[str, Measured]
    peak: int | None
    growth: int


class Rank:
    """One rank: opens candidates, and gives each its turn when asked.

    Args:
        rank: Own rank.
        settings: Of the run.
        data: Shared.
        residuals: Shared.
        folder: Where the ranks meet.
    """

    def __init__(self, rank: int, settings: Settings, data: Data, residuals: Residuals, folder: str) -> None:
        import torch.distributed as dist

        self._rank = rank
        self._settings = settings
        self._data = data
        self._residuals = residuals
        self._dist: Any = dist  # torch hides the stores from type checkers
        self._store = self._dist.FileStore(str(Path(folder) / "store"), settings.ranks)
        # Filled rather than empty: what the candidates are charged for must not include the first touch of these pages.
        residuals.touch()
        self._contribution = np.ones(settings.elements, np.float32)
        self._output = np.ones(settings.elements, np.float32)
        self._open: dict[str, Candidate] = {}
        self._ledgers: dict[str, MemoryLedger] = {name: MemoryLedger() for name in settings.candidates}
        self._cpu = CpuMeter()
        self._reduction: Reduction | None = None

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Does what ``question["do"]`` says."""
        act = {
            "open": self._on_open,
            "load": self._on_load,
            "run": self._on_run,
            "settle": self._on_settle,
            "check": self._on_check,
            "counters": self._on_counters,
            "memory": lambda _: take_stock(),
            "close": self._on_close,
        }[question["do"]]
        return act({key: value for key, value in question.items() if key != "do"})

    def _on_open(self, question: dict[str, Any]) -> dict[str, Any]:
        name = question["candidate"]
        ledger = self._ledgers[name]
        ledger.enter()
        self._open[name] = candidate = self._make(name)
        ledger.leave()
        return {"stride": candidate.communicator.stride if isinstance(candidate, DlcpCandidate) else 0}

    def _make(self, name: str) -> Candidate:
        settings = self._settings
        if name == "gloo":
            store = self._dist.PrefixStore("gloo", self._store)
            return GlooCandidate(self._rank, settings.ranks, store, self._contribution, self._output, settings.timeout_s)
        if name == "stream":
            return StreamCandidate(
                self._rank, settings.ranks, self._dist.PrefixStore("stream", self._store), self._contribution, settings.timeout_s
            )
        communicator = Communicator(
            self._rank,
            settings.ranks,
            self._store,
            policy=settings.policy,
            algorithm=settings.algorithm,
            servers=settings.servers,
            faults=None if name == "dlcp_lossless" else settings.faults,
            name=name,
        )
        return DlcpCandidate(communicator, self._contribution, self._output, self._tags)

    def _tags(self, communicator: Communicator) -> NDArray[np.uint8] | None:
        """Tags as the hook makes them: classes in contiguous stretches of equal size, protected packets scattered among them."""
        if not self._settings.tagged:
            return None
        policy = self._settings.policy
        packets = communicator.packets(self._settings.elements, np.float32)
        # The front of the model is needed first, and its gradients stand at the end of DDP's bucket.
        tags = (np.arange(packets) * policy.classes.count // packets * 2).astype(np.uint8)
        wanted = int(np.ceil(policy.protection.share * packets))
        tags[np.random.default_rng((self._settings.seed, self._rank)).permutation(packets)[:wanted]] |= 1
        return tags

    def _on_load(self, question: dict[str, Any]) -> dict[str, Any]:
        if self._reduction is not None:
            self._residuals.clear(self._reduction)
            self._reduction = None
        self._data.contribute(self._rank, question["iteration"], self._contribution)
        self._open[question["candidate"]].prepare()
        return {}

    def _on_run(self, question: dict[str, Any]) -> dict[str, Any]:
        candidate = self._open[question["candidate"]]
        if question["metered"]:
            self._ledgers[question["candidate"]].enter()
        time.sleep(max(question["at"] - time.monotonic_ns(), 0) / 1e9)
        self._cpu.start()
        begin = time.perf_counter()
        self._reduction = candidate.run()
        return {"seconds": time.perf_counter() - begin}

    def _on_settle(self, question: dict[str, Any]) -> dict[str, Any]:
        cpu = self._cpu.stop()
        if question["metered"]:
            self._ledgers[question["candidate"]].leave()
        reduction = self._reduction
        kept = self._settings.policy.loss.compensation == "error-feedback"
        if reduction is not None and reduction.lost.size and kept:
            self._residuals.add(reduction)
        else:
            self._reduction = None
        return {"cpu_s": cpu, "residual": self._reduction is not None}

    def _on_check(self, question: dict[str, Any]) -> dict[str, Any]:
        candidate = self._open[question["candidate"]]
        if not candidate.scale:
            return {"difference": None}
        if candidate.scale > 1:
            self._output *= candidate.scale
        residual = self._residuals.values if question["residual"] else None
        return {"difference": self._data.error(question["iteration"], self._output, residual)}

    def _on_counters(self, question: dict[str, Any]) -> dict[str, Any]:
        name = question["candidate"]
        candidate, ledger = self._open[name], self._ledgers[name]
        return {"counters": _counters(candidate), "held": ledger.held, "peak": ledger.peak}

    def _on_close(self, question: dict[str, Any]) -> dict[str, Any]:
        counters = {name: _counters(candidate) for name, candidate in self._open.items()}
        for candidate in self._open.values():
            candidate.close()
        self._open.clear()
        return {"counters": counters}


def _counters(candidate: Candidate) -> dict[str, Any]:
    return counted(candidate.communicator.metrics()) if isinstance(candidate, DlcpCandidate) else {}


Progress = Callable[[str, int, int], None]
"""Called with what is going on, turns done, and turns in all."""


def measure(settings: Settings, progress: Progress) -> Outcome:
    """Runs the benchmark and returns what was measured.

    It forks; see :mod:`dlcp.bench.crew` for what the calling process must not have done.

    Raises:
        ConfigError: The policy does not fit this host or the algorithm.
        RemoteError, OperationTimeoutError: The transport failed, or a turn took too long.
    """
    # gloo would otherwise ask the resolver for this host's name, and take whatever interface has that address.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    data = Data(settings.elements, settings.ranks, settings.policy.wire.dtype, settings.seed)
    residuals = Residuals(settings.elements)

    def make(rank: int) -> Worker:
        if rank < settings.ranks:
            return Rank(rank, settings, data, residuals, folder)
        return Server(rank - settings.ranks, settings, folder)

    with (
        tempfile.TemporaryDirectory(prefix="dlcp-bench-") as folder,
        Crew(settings.ranks + settings.servers, make) as crew,
    ):
        return _Run(settings, crew, progress).all()


class _Run:
    """The parent's side."""

    def __init__(self, settings: Settings, crew: Crew, progress: Progress) -> None:
        self._settings = settings
        self._crew = crew
        self._progress = progress
        self._results = {name: Measured() for name in settings.candidates}
        self._done = 0
        self._turns = (settings.iterations + settings.warmup) * len(settings.candidates)

    def all(self) -> Outcome:
        settings = self._settings
        limit = settings.policy.timeouts.connect_s + _OPEN_EXTRA_S
        empty = self._crew.ask(limit, do="memory")
        for name in settings.candidates:
            self._progress(f"opening {name}", 0, self._turns)
            opened = self._crew.ask(limit, do="open", candidate=name)
            self._results[name].stride = opened[0]["stride"]
        for iteration, order in turns(settings.candidates, settings.warmup):
            for name in order:
                self._turn(name, iteration, None)
        before = {name: self._crew.ask(limit, do="counters", candidate=name) for name in settings.candidates}
        warm = self._crew.ask(limit, do="memory")
        for iteration, order in turns(settings.candidates, settings.iterations):
            for name in order:
                self._turn(name, settings.warmup + iteration, self._results[name])
        late = self._crew.ask(limit, do="memory")
        for name, result in self._results.items():
            _take(result, self._crew.ask(limit, do="counters", candidate=name), before[name])
            if not settings.warmup:
                result.held = result.peak = None
        self._progress("closing", self._done, self._turns)
        closed = self._crew.ask(limit, do="close")
        if settings.servers:
            # What a server counted is known at its end only, so all count from the start, or packets would not add up.
            for name, result in self._results.items():
                result.counters = [answer["counters"].get(name, {}) for answer in closed]
        peaks = [None if end["peak"] is None else end["peak"] - start["live"] for end, start in zip(late, empty, strict=True)]
        growth = max(end["live"] - start["live"] for end, start in zip(late, warm, strict=True))
        return Outcome(self._results, _most(peaks), growth)

    def _turn(self, name: str, iteration: int, result: Measured | None) -> None:
        self._progress(f"{'warming up' if result is None else 'measuring'} {name}", self._done, self._turns)
        ask, limit = self._crew.ask, self._settings.timeout_s
        ask(limit, do="load", candidate=name, iteration=iteration)
        at = time.monotonic_ns() + _START_DELAY_NS + _START_DELAY_PER_RANK_NS * self._settings.ranks
        metered = result is None
        ran = ask(limit, do="run", candidate=name, at=at, metered=metered)
        settled = ask(limit, do="settle", candidate=name, metered=metered)
        residual = any(answer["residual"] for answer in settled)
        checked = ask(limit, do="check", candidate=name, iteration=iteration, residual=residual)
        self._done += 1
        if result is None:
            return
        result.times.append(max(answer["seconds"] for answer in ran))
        result.cpu_s += sum(answer["cpu_s"] for answer in settled)
        differences = [answer["difference"] for answer in checked if answer["difference"] is not None]
        if differences:
            result.error = max(differences + ([] if result.error is None else [result.error]))


def _take(result: Measured, after: Sequence[dict[str, Any]], before: Sequence[dict[str, Any]]) -> None:
    """Takes over counters and memory of all ranks."""
    result.counters = [difference(late["counters"], early["counters"]) for late, early in zip(after, before, strict=True)]
    result.held = max(answer["held"] for answer in after)
    result.peak = _most([answer["peak"] for answer in after])


def _most(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None
