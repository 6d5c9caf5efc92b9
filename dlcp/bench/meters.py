"""What an operation costs a process: CPU time of all its threads, and memory.

CPU time is CLOCK_PROCESS_CPUTIME_ID: user and system time of every thread of the process, so gloo's and DLCP's I/O threads alike,
in nanoseconds (``os.times`` counts in ticks of 10 ms).

Memory is the resident set.  The kernel keeps its peak (VmHWM), which a process may reset by writing 5 to /proc/self/clear_refs
(proc(5)).
"""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import Final

_STATUS: Final = Path("/proc/self/status")
_CLEAR: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = "5"


def resident_bytes() -> tuple[int, int]:
    """Returns the resident set of this process and its peak since the last reset, in bytes."""
    sizes = {}
    for line in _STATUS.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("VmRSS", "VmHWM"):
            sizes[name] = int(rest.split()[0]) << 10
    return sizes["VmRSS"], sizes["VmHWM"]


def live_bytes() -> int:
    """Returns the resident set once the allocator has given back what nobody uses, so that it is what is really held."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
    if trim is not None:
        trim(0)
    return resident_bytes()[0]


def reset_peak() -> bool:
    """Makes the peak start again from what is resident now; returns whether the kernel lets us."""
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def take_stock() -> dict[str, int | None]:
    """Returns the bytes of this process that are live, and its peak since this was last called; None if nobody may reset it."""
    peak = resident_bytes()[1]
    live = live_bytes()
    return {"live": live, "peak": peak if reset_peak() else None}


class MemoryLedger:
    """Memory that one candidate takes, among several in one process.

    What grows between :meth:`enter` and :meth:`leave` is this candidate's.  Both make the allocator give back what is free, or
    memory that one candidate has freed and another one uses would be charged to the wrong one.  The pages must then be got again,
    which takes time, so that turns that are timed must not be metered.

    Attributes:
        held: Bytes it has taken so far and not given back.
        peak: Most bytes it had at any moment, what it holds included; None if that is not known.
    """

    def __init__(self) -> None:
        self.held = 0
        self.peak: int | None = 0
        self._before = 0

    def enter(self) -> None:
        """The candidate's turn begins."""
        self._before = live_bytes()
        if not reset_peak():
            self.peak = None

    def leave(self) -> None:
        """The candidate's turn is over."""
        peak = resident_bytes()[1]
        if self.peak is not None:
            self.peak = max(self.peak, self.held + peak - self._before)
        self.held += live_bytes() - self._before


class CpuMeter:
    """CPU seconds of this process between :meth:`start` and :meth:`stop`."""

    def __init__(self) -> None:
        self._begin = 0

    def start(self) -> None:
        self._begin = time.process_time_ns()

    def stop(self) -> float:
        return (time.process_time_ns() - self._begin) / 1e9
