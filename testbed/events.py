"""What happens to the network or the job at set times: links that fail, lose or change their rate, switches and ranks that die.

Times count from the first training step.  An event that cannot be carried out is noted with its error, and the run goes on: what
it was to show will be missing, and the notes say why.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

from dlcp.errors import DLCPError
from testbed.experiment import Event
from testbed.lab.network import Lab


@dataclass(frozen=True)
class Happened:
    """An event that was carried out, or was to be.

    Attributes:
        at_s: When, since the beginning.
        took_s: How long it took.
        kind: Of the event.
        what: In words.
        error: What went wrong; empty if nothing did.
    """

    at_s: float
    took_s: float
    kind: str
    what: str
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return asdict(self)


def lossy_links(events: Sequence[Event]) -> tuple[tuple[str, str], ...]:
    """Returns the links whose losses or state events change, for ``Lab(lossy=...)``."""
    kinds = ("link-loss", "link-down", "link-up")
    return tuple(dict.fromkeys((event.link[0], event.link[1]) for event in events if event.kind in kinds))


def describe(event: Event) -> str:
    """Returns what an event does, in a few words."""
    link = " - ".join(event.link)
    texts = {
        "link-down": f"{link} goes down",
        "link-up": f"{link} comes up",
        "link-loss": f"{link} loses {event.loss:.3g}",
        "link-rate": f"{link} carries {'what it did' if isinstance(event.rate, str) else event.rate}",
        "switch-restart": f"{event.switch} restarts",
        "rank-kill": f"rank {event.rank} is killed",
    }
    return texts[event.kind]


class Events:
    """Carries events out, in a thread of its own; a context manager that ends it.

    Args:
        lab: The network.
        events: Of the experiment; they need not be in order.
        kill_rank: Ends a rank as a crash does; raises if it cannot.
    """

    def __init__(self, lab: Lab, events: Sequence[Event], kill_rank: Callable[[int], object]) -> None:
        self._lab = lab
        self._kill_rank = kill_rank
        self._events = sorted(events, key=lambda event: int(event.at))
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.happened: list[Happened] = []
        """What has happened so far."""

    def begin(self, at_ns: int | None = None) -> None:
        """Lets time begin, at ``at_ns`` of ``time.monotonic_ns``, or now."""
        beginning = time.monotonic_ns() if at_ns is None else at_ns
        if self._events and self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(beginning,), name="events", daemon=True)
            self._thread.start()

    def stop(self) -> list[Happened]:
        """Lets nothing more happen, and returns what has."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        return list(self.happened)

    def _run(self, beginning: int) -> None:
        for event in self._events:
            left = beginning + int(event.at) // 1000 - time.monotonic_ns()
            if self._stopping.wait(max(left, 0) / 1e9):
                return
            started = time.monotonic_ns()
            error = ""
            try:
                self._do(event)
            except (DLCPError, OSError, LookupError) as problem:
                error = str(problem) or type(problem).__name__
            took = (time.monotonic_ns() - started) / 1e9
            self.happened.append(Happened((started - beginning) / 1e9, took, event.kind, describe(event), error))

    def _do(self, event: Event) -> None:
        lab = self._lab
        if event.kind == "link-down":
            lab.link_down(*event.link)
        elif event.kind == "link-up":
            lab.link_up(*event.link)
        elif event.kind == "link-loss":
            lab.link_loss(event.link[0], event.link[1], event.loss)
        elif event.kind == "link-rate":
            lab.link_rate(event.link[0], event.link[1], None if isinstance(event.rate, str) else int(event.rate))
        elif event.kind == "switch-restart":
            lab.restart_switch(event.switch)
        else:
            self._kill_rank(event.rank)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


__all__ = ["Events", "Happened", "describe", "lossy_links"]
