"""A dedicated parameter server among the ranks of a benchmark."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlcp.bench.meters import CpuMeter, MemoryLedger, take_stock
from dlcp.bench.numbers import counted
from dlcp.collectives.server import serve

if TYPE_CHECKING:
    from dlcp.bench.allreduce import Settings


class Server:
    """Serves every candidate that is DLCP, each in a thread, and says what that costs.

    Args:
        index: Number of the server.
        settings: Of the run.
        folder: Where the ranks meet.
    """

    def __init__(self, index: int, settings: Settings, folder: str) -> None:
        import torch.distributed as dist

        hidden: Any = dist  # torch hides the stores from type checkers
        self._index = index
        self._settings = settings
        self._store: Any = hidden.FileStore(str(Path(folder) / "store"), settings.ranks)
        self._threads: dict[str, _Serving] = {}
        self._ledgers = {name: MemoryLedger() for name in settings.candidates}
        self._cpu = CpuMeter()

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Does what ``question["do"]`` says; see :class:`dlcp.bench.allreduce.Rank`, which the answers resemble."""
        do, name = question["do"], question.get("candidate", "")
        if do == "open" and name.startswith("dlcp"):
            self._ledgers[name].enter()
            self._threads[name] = _Serving(self._index, self._settings, self._store, name)
            self._threads[name].wait_until_ready()
            self._ledgers[name].leave()
        elif do == "run":
            if question["metered"]:
                self._ledgers[name].enter()
            self._cpu.start()
            return {"seconds": 0.0}
        elif do == "settle":
            cpu = self._cpu.stop()
            if question["metered"]:
                self._ledgers[name].leave()
            return {"cpu_s": cpu, "residual": False}
        elif do == "check":
            return {"difference": None}
        elif do == "counters":
            return {"counters": {}, "held": self._ledgers[name].held, "peak": self._ledgers[name].peak}
        elif do == "memory":
            return take_stock()
        elif do == "close":
            return {"counters": {name: serving.counters() for name, serving in self._threads.items()}}
        return {"stride": 0}


class _Serving(threading.Thread):
    """One communicator's server."""

    def __init__(self, index: int, settings: Settings, store: Any, name: str) -> None:
        super().__init__(name=f"serve-{name}", daemon=True)
        self._ready = threading.Event()
        self._arguments = (index, settings.servers, settings.ranks, store)
        self._more: dict[str, Any] = {
            "policy": settings.policy,
            "faults": None if name == "dlcp_lossless" else settings.faults,
            "name": name,
            "on_ready": lambda address: self._ready.set(),
        }
        self._error: BaseException | None = None
        self._counters: dict[str, Any] = {}
        self.start()

    def run(self) -> None:
        try:
            self._counters = counted(serve(*self._arguments, **self._more))
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    def wait_until_ready(self) -> None:
        """Returns when all ranks have met; serve() bounds the time."""
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def counters(self) -> dict[str, Any]:
        """Waits for the end, and returns the counters."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._counters
