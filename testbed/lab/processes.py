"""Processes by pid and start time, so that a number that was used again is never mistaken for the process that had it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

MARK: Final = "DLCP_TESTBED_RUN"
"""Environment variable that all processes of a run bear."""


@dataclass(frozen=True)
class Process:
    """A process.

    Attributes:
        pid: Its number.
        started: When it started, in clock ticks since the machine did (field 22 of ``/proc/PID/stat``).
    """

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Returns the process that has a number now; None if there is none, or only its remains (a zombie)."""
        fields = _stat(pid)
        return None if fields is None or fields[0] in "ZX" else cls(pid, int(fields[19]))

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return Process.of(self.pid) == self

    def signal(self, number: int) -> None:
        """Sends a signal, if it still runs."""
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(self.pid)
            try:
                # The descriptor stays with one process; so what is true after opening it stays true.
                if self.alive:
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name stands in parentheses and may hold any.
    return text.rpartition(") ")[2].split()


def boot() -> str:
    """Returns a text that differs after every start of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def marked(run: str) -> Iterator[Process]:
    """Yields the processes that bear a run's mark, as far as this user may see."""
    wanted = f"{MARK}={run}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        process = Process.of(int(entry.name)) if wanted in environment else None
        if process is not None:
            yield process


def end(processes: Collection[Process], *, patience_s: float = 0.5) -> list[Process]:
    """Asks processes to end (SIGTERM), and kills those that have not within ``patience_s``; returns those that had to be."""
    for process in processes:
        process.signal(signal.SIGTERM)
    late = wait(processes, patience_s)
    for process in late:
        process.signal(signal.SIGKILL)
    wait(late, 5.0)
    return late


def wait(processes: Collection[Process], seconds: float) -> list[Process]:
    """Waits until processes have ended, and returns those that have not in time."""
    deadline = time.monotonic() + seconds
    poll = select.poll()
    opened: dict[int, Process] = {}
    try:
        for process in processes:
            try:
                descriptor = os.pidfd_open(process.pid)
            except OSError:
                continue
            if process.alive:
                opened[descriptor] = process
                poll.register(descriptor, select.POLLIN)
            else:
                os.close(descriptor)
        while opened and (left := deadline - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(left * 1000):
                poll.unregister(descriptor)
                os.close(descriptor)
                del opened[descriptor]
        return list(opened.values())
    finally:
        for descriptor in opened:
            os.close(descriptor)


__all__ = ["MARK", "Process", "boot", "end", "marked", "wait"]
