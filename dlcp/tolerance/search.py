"""The largest loss that is tolerated, for several ways of losing: bisection in a list of losses, many runs at once.

Bisection takes for granted that more loss is never better.  A cell (one way of losing, one share) ends early only to refuse: when
its first seeds all lose far more than the margin.  That cannot make anything look more harmless than it is.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dlcp.tolerance.patterns import Loss
from dlcp.tolerance.training import Outcome, Run, train
from dlcp.tolerance.verdict import Verdict, judge

EARLY_SEEDS: Final = 3
EARLY_FACTOR: Final = 3
"""So many seeds that all lose so many times the margin refuse a loss without the others."""

_PR_SET_PDEATHSIG: Final = 1
"""See prctl(2)."""

Progress = Callable[[int, int, float, str], None]
"""Called with runs done, runs there will be (an estimate), seconds left (an estimate), and what has been found."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is tested.

    Attributes:
        base: The run without loss; its seed is replaced.
        losses: Shares, ascending.
        seeds: How many, from 0 on; at least 2.
        margin, confidence: See :func:`~dlcp.tolerance.verdict.judge`.
        kinds: Ways of losing that are tested with each compensation.
        once: Ways that are tested only with ``base.compensation``; ``class`` stands for all classes that packets have.
        compensations: To be tested.
        burst: Mean length of a run of lost packets.
        jobs: Processes; 1 runs everything here.
    """

    base: Run
    losses: tuple[float, ...]
    seeds: int
    margin: float
    confidence: float
    kinds: tuple[str, ...]
    once: tuple[str, ...]
    compensations: tuple[str, ...]
    burst: float = 1.0
    jobs: int = 1


@dataclass(slots=True)
class Cell:
    """One way of losing, one share."""

    loss: Loss
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    verdict: Verdict | None = None


@dataclass(slots=True)
class Column:
    """One way of losing, with one compensation.

    Attributes:
        cells: One a share that is possible, ascending.
        low: Index of the largest that is tolerated, -1 if none is known to be.
        high: Index of the smallest that is not, ``len(cells)`` if none is known not to be.
    """

    kind: str
    layer_class: int
    compensation: str
    cells: list[Cell]
    low: int = -1
    high: int = 0

    def __post_init__(self) -> None:
        self.high = len(self.cells)

    @property
    def next(self) -> int | None:
        """Index of the cell to test, None if all is known."""
        return (self.low + self.high) // 2 if self.high - self.low > 1 else None

    @property
    def tests_left(self) -> int:
        """How many more cells this takes at most."""
        return math.ceil(math.log2(self.high - self.low))

    @property
    def tolerated(self) -> float:
        """The largest tolerated share, 0 if none is."""
        return self.cells[self.low].loss.share if self.low >= 0 else 0.0


@dataclass(slots=True)
class Findings:
    """What has been found.

    Attributes:
        baseline: Outcomes without loss, by seed.
        columns: All ways of losing.
        runs: Runs that ended.
        seconds: Wall-clock time.
    """

    baseline: dict[int, Outcome] = field(default_factory=dict)
    columns: list[Column] = field(default_factory=list)
    runs: int = 0
    seconds: float = 0.0


def search(plan: Plan, progress: Progress = lambda done, total, left, text: None) -> Findings:
    """Runs everything.

    Raises:
        ConfigError: The task does not fit.
    """
    if plan.jobs == 1:
        return _Search(plan, progress, _Here()).run()
    # Not forked: torch's threads do not survive that.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(plan.jobs, mp_context=context, initializer=_die_with_parent, initargs=(os.getpid(),)) as pool:
        try:
            return _Search(plan, progress, pool).run()
        except BaseException:
            # A run may take minutes: nobody waits for those that are under way.
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _die_with_parent(parent: int) -> None:
    """Ends this process when the one that started it is killed: it would wait for work for ever."""
    with contextlib.suppress(OSError, AttributeError):  # other systems do without
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and sees to the end of this one
    if os.getppid() != parent:
        os._exit(1)


class _Here(concurrent.futures.Executor):
    """Runs what it is given at once."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class _Search:
    def __init__(self, plan: Plan, progress: Progress, pool: concurrent.futures.Executor) -> None:
        self._plan = plan
        self._progress = progress
        self._pool = pool
        self._found = Findings()
        self._pending: dict[Future[Outcome], tuple[Column, Cell, int]] = {}
        self._begin = time.monotonic()

    def run(self) -> Findings:
        plan, found = self._plan, self._found
        waiting = {self._pool.submit(train, replace(plan.base, seed=seed)): seed for seed in range(plan.seeds)}
        for future in concurrent.futures.as_completed(waiting):
            found.baseline[waiting[future]] = future.result()
            found.runs += 1
            self._tell(f"without loss: accuracy {future.result().accuracy:.4f}")
        found.columns = self._columns(found.baseline[0].classes)
        for column in found.columns:
            self._submit(column)
        while self._pending:
            done, _ = concurrent.futures.wait(self._pending, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                # A cell that was refused early takes its other runs along.
                if future in self._pending:
                    self._take(future)
        found.seconds = time.monotonic() - self._begin
        return found

    def _columns(self, classes: Sequence[int]) -> list[Column]:
        plan, columns = self._plan, []
        kept = plan.base.compensation
        for compensation in (kept, *(other for other in plan.compensations if other != kept)):
            for kind in (*plan.kinds, *(plan.once if compensation == kept else ())):
                for number in classes if kind == "class" else (0,):
                    losses = [Loss(kind, share, number, plan.burst) for share in plan.losses]
                    cells = [Cell(loss) for loss in losses if loss.possible(plan.base.ranks)]
                    columns.append(Column(kind, number, compensation, cells))
        return columns

    def _submit(self, column: Column) -> None:
        index = column.next
        if index is None:
            return
        cell = column.cells[index]
        for seed in range(self._plan.seeds):
            run = replace(self._plan.base, seed=seed, loss=cell.loss, compensation=column.compensation)
            self._pending[self._pool.submit(train, run)] = (column, cell, seed)

    def _take(self, future: Future[Outcome]) -> None:
        column, cell, seed = self._pending.pop(future)
        cell.outcomes[seed] = future.result()
        self._found.runs += 1
        early = self._refused_early(cell)
        if early:
            for other in [other for other, (_, same, _) in self._pending.items() if same is cell]:
                other.cancel()
                del self._pending[other]
        if early or len(cell.outcomes) == self._plan.seeds:
            self._settle(column, cell)
        self._tell("")

    def _drops(self, cell: Cell) -> list[float]:
        return [self._found.baseline[seed].accuracy - outcome.accuracy for seed, outcome in sorted(cell.outcomes.items())]

    def _refused_early(self, cell: Cell) -> bool:
        drops = self._drops(cell)
        return len(drops) >= EARLY_SEEDS and min(drops) > EARLY_FACTOR * self._plan.margin

    def _settle(self, column: Column, cell: Cell) -> None:
        cell.verdict = judge(self._drops(cell), self._plan.margin, self._plan.confidence)
        if len(cell.outcomes) < self._plan.seeds:
            cell.verdict = cell.verdict._replace(judgement="refused")
        index = column.cells.index(cell)
        if cell.verdict.judgement == "tolerated":
            column.low = index
        else:
            column.high = index
        words = f"{describe(column)}, {column.compensation}: {100 * cell.loss.share:g} % {cell.verdict.judgement}"
        self._tell(f"{words}, accuracy {-100 * cell.verdict.mean:+.2f} points")
        self._submit(column)

    def _tell(self, text: str) -> None:
        plan, found = self._plan, self._found
        if found.columns:
            # The cell that is being tested counts among the tests left.
            under_way = sum(len(c.cells[c.next].outcomes) for c in found.columns if c.next is not None)
            left = plan.seeds * sum(column.tests_left for column in found.columns) - under_way
        else:
            # Classes are not known yet: about five.
            ways = len(plan.compensations) * len(plan.kinds) + len(plan.once) + 4 * ("class" in plan.once)
            left = plan.seeds * (1 + ways * math.ceil(math.log2(len(plan.losses) + 1))) - found.runs
        left = max(left, 0)
        rate = (time.monotonic() - self._begin) / found.runs
        self._progress(found.runs, found.runs + left, left * rate, text)


def describe(column: Column) -> str:
    """Names a way of losing."""
    return f"class {column.layer_class}" if column.kind == "class" else column.kind
