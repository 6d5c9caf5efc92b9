"""Ranks on one machine: processes forked from one that has imported torch, and asked over pipes.

A fresh interpreter that imports torch takes seconds and 250 MB; a fork of one takes milliseconds and shares its memory.  The
rules for that are torch's: the parent runs no tensor operation, and starts no thread, before it forks.

Theory of operation.  The parent asks all ranks the same question and waits for all answers, up to a limit.  A rank's error comes
back as data and is raised again in the parent; if several ranks fail, the one that is a cause goes before those that only report
another rank's failure.  Questions and answers are JSON.  Ranks ignore Ctrl-C, which a terminal sends to all of them: the parent
gets it too, and ends them.  If the parent dies, the kernel kills them.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, Final, NoReturn, Protocol

from dlcp import errors
from dlcp.errors import ConfigError, DLCPError, OperationTimeoutError, RemoteError

_PR_SET_PDEATHSIG: Final = 1
_AFTER_ERROR_S: Final = 2.0
_TERMINATE_S: Final = 1.0
_CONSEQUENCES: Final = frozenset({"RemoteError", "PeerLostError", "Died"})


class Worker(Protocol):
    """What a rank does."""

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Does what is asked; the answer is plain data."""


class Crew:
    """The ranks of one run.

    Args:
        ranks: How many.
        make: Called in each rank with its number; returns what answers.

    Raises:
        OSError: A process could not be started.
    """

    def __init__(self, ranks: int, make: Callable[[int], Worker]) -> None:
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._pipes: list[Connection] = []
        context = multiprocessing.get_context("fork")
        try:
            for rank in range(ranks):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_live, args=(rank, make, theirs, [*self._pipes, ours], os.getpid()), name=f"rank-{rank}", daemon=True
                )
                process.start()
                # Held here, the rank's end would never read as closed after its death.
                theirs.close()
                self._processes.append(process)
                self._pipes.append(ours)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids, by rank."""
        return [process.pid or 0 for process in self._processes]

    def ask(self, timeout_s: float, **question: Any) -> list[dict[str, Any]]:
        """Asks every rank and returns the answers, by rank.

        Args:
            timeout_s: Seconds within which all must have answered.
            question: Plain data; ``do`` says what is asked.

        Raises:
            ConfigError, RemoteError, RuntimeError: A rank failed, with a configuration error, in the transport, or otherwise.
            OperationTimeoutError: A rank has not answered in time.
        """
        data = json.dumps(question).encode()
        answers: dict[int, dict[str, Any]] = {}
        failures: dict[int, dict[str, Any]] = {}
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send_bytes(data)
            except OSError:
                failures[rank] = self._death(rank)
        end = time.monotonic() + timeout_s
        while left := [rank for rank in range(len(self._pipes)) if rank not in answers and rank not in failures]:
            if failures:
                end = min(end, time.monotonic() + _AFTER_ERROR_S)
            ready = wait([self._pipes[rank] for rank in left], max(end - time.monotonic(), 0))
            if not ready:
                break
            for rank in left:
                if self._pipes[rank] in ready:
                    answer = self._read(rank)
                    (failures if "error" in answer else answers)[rank] = answer
        if failures:
            _raise(failures)
        if left:
            names = ", ".join(map(str, left))
            raise OperationTimeoutError(f"ranks {names} have not finished {question.get('do', 'it')} within {timeout_s:g} s")
        return [answers[rank] for rank in range(len(self._pipes))]

    def _read(self, rank: int) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = json.loads(self._pipes[rank].recv_bytes())
        except (EOFError, OSError):
            return self._death(rank)
        return answer

    def _death(self, rank: int) -> dict[str, Any]:
        process = self._processes[rank]
        process.join(_TERMINATE_S)
        return {"error": "Died", "message": f"the process ended with exit code {process.exitcode}"}

    def close(self) -> None:
        """Ends all processes, politely at first; may be repeated."""
        for pipe in self._pipes:
            pipe.close()
        end = time.monotonic() + _TERMINATE_S
        for process in self._processes:
            process.join(max(end - time.monotonic(), 0))
        for process in self._processes:
            if process.exitcode is None:
                process.kill()
                process.join()
        self._processes.clear()
        self._pipes.clear()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _raise(failures: dict[int, dict[str, Any]]) -> NoReturn:
    causes = [rank for rank, failure in failures.items() if failure["error"] not in _CONSEQUENCES]
    # A rank that died is the cause if all others merely missed somebody.
    died = [rank for rank, failure in failures.items() if failure["error"] == "Died"]
    rank = min(causes or died or failures)
    failure = failures[rank]
    name, message = failure["error"], failure["message"]
    if name == "ConfigError":
        raise ConfigError(*failure["config"])
    kind = getattr(errors, name, None)
    if name == "Died" or (isinstance(kind, type) and issubclass(kind, DLCPError)):
        raise RemoteError(rank, f"{name}: {message}" if name != "Died" else message)
    raise RuntimeError(f"rank {rank}: {name}: {message}")


def _live(rank: int, make: Callable[[int], Worker], pipe: Connection, others: list[Connection], parent: int) -> NoReturn:
    """A rank's life, from fork to exit; never returns into the parent's code."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(code)
        # Standard output belongs to the report.
        os.dup2(2, 1)
        for other in others:
            other.close()
        worker = make(rank)
        with suppress(EOFError, OSError):
            while True:
                pipe.send_bytes(json.dumps(_answer(worker, json.loads(pipe.recv_bytes()))).encode())
        code = 0
    finally:
        os._exit(code)


def _answer(worker: Worker, question: dict[str, Any]) -> dict[str, Any]:
    try:
        return worker.answer(question)
    except Exception as error:
        answer: dict[str, Any] = {"error": type(error).__name__, "message": str(error)}
        if isinstance(error, ConfigError):
            answer["config"] = [error.source, error.key, error.problem, error.accepted]
        return answer
