"""Runs tasks: in processes of this machine, or on a Dask cluster.

Processes are started afresh rather than forked, speak JSON over pipes, and are replaced when they die: then only the cell that
they were at has failed.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from dlcp.errors import DLCPError, MissingPackage
from sim.sweep.cells import Cell, Outcome, run_cell

LIMIT: Final = 1 << 28
"""Bytes of an outcome."""


class Worker:
    """A process that runs one cell at a time."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        # A session of its own: Ctrl-C is for the parent, who tells the workers.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sim.sweep.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=environment,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.requests, self.answers = self.process.stdin, self.process.stdout
        self.cell: Cell | None = None

    def give(self, cell: Cell) -> None:
        """Gives it a cell."""
        self.cell = cell
        try:
            self.requests.write(json.dumps(cell.task).encode() + b"\n")
            self.requests.flush()
        except OSError:
            pass  # it has died, as reading will show

    def take(self) -> Outcome:
        """Returns the outcome of its cell; if the process has died, how."""
        line = self.answers.readline(LIMIT)
        self.cell = None
        try:
            found = json.loads(line)
            if isinstance(found, dict):
                return found
        except ValueError:
            pass
        self.end()
        code = self.process.returncode
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return {"error": f"the process ended with {how}"}

    @property
    def alive(self) -> bool:
        """Whether it can be given a cell."""
        return self.process.poll() is None

    def end(self) -> None:
        """Ends it, whatever it is doing."""
        if self.process.poll() is None and not self.answers.closed:
            self.process.kill()
        self.process.wait()
        for pipe in (self.requests, self.answers):
            try:
                pipe.close()
            except OSError:
                pass


def run_here(cells: Iterable[Cell], jobs: int, stop: Callable[[], bool]) -> Iterator[tuple[Cell, Outcome]]:
    """Runs cells in processes, and yields each with its outcome as soon as it is there.

    Args:
        cells: Those with a task.
        jobs: Processes at once.
        stop: Asked several times a second; once it returns True, what is not done is given up.
    """
    waiting = list(reversed(list(cells)))
    workers: list[Worker] = []
    selector = selectors.DefaultSelector()

    def start() -> None:
        worker = Worker()
        workers.append(worker)
        selector.register(worker.answers, selectors.EVENT_READ, worker)
        worker.give(waiting.pop())

    try:
        while (waiting or any(worker.cell for worker in workers)) and not stop():
            while waiting and len(workers) < jobs:
                start()
            for key, _ in selector.select(0.2):
                worker: Worker = key.data
                cell = worker.cell
                if cell is None:
                    continue
                selector.unregister(worker.answers)
                outcome = worker.take()
                if not waiting or not worker.alive:
                    worker.end()
                    workers.remove(worker)
                else:
                    selector.register(worker.answers, selectors.EVENT_READ, worker)
                    worker.give(waiting.pop())
                yield cell, outcome
    finally:
        for worker in workers:
            worker.end()
        selector.close()


def run_dask(cells: Iterable[Cell], address: str, stop: Callable[[], bool]) -> Iterator[tuple[Cell, Outcome]]:
    """Runs cells on a Dask cluster, whose workers need this package and nothing else: files travel with the tasks.

    Args:
        cells: Those with a task.
        address: Of the scheduler, such as ``tcp://10.0.0.1:8786``.
        stop: As for :func:`run_here`.

    Raises:
        MissingPackage: distributed is not installed.
        DLCPError: The scheduler does not answer.
    """
    try:
        from distributed import Client
        from distributed import wait as wait_for
    except ImportError as error:
        raise MissingPackage("--dask needs distributed: pip install 'dlcp[dask]'") from error
    try:
        client: Any = Client(address, timeout="10s")
    except (OSError, ValueError) as error:
        raise DLCPError(f"no Dask scheduler answers at {address}: {error}") from None
    with client:
        futures = {
            client.submit(run_cell, cell.task, key=f"dlcp-cell-{cell.number}-{cell.digest}", retries=1, pure=True): cell
            for cell in cells
        }
        open_ = set(futures)
        while open_ and not stop():
            try:
                done = wait_for(open_, timeout=0.5, return_when="FIRST_COMPLETED").done
            except TimeoutError:
                continue
            for future in done:
                open_.discard(future)
                if future.status == "finished":
                    yield futures[future], future.result()
                else:
                    yield futures[future], {"error": f"lost by the cluster: {future.exception()!r:.300}"}
        if open_:
            client.cancel(list(open_), force=True)


__all__ = ["Worker", "run_dask", "run_here"]
