"""What an operation costs a process: CPU time of all its threads, and memory.

CPU time is CLOCK_PROCESS_CPUTIME_ID: user and system time of every thread of the process, so gloo's and DLCP's I/O threads alike,
in nanoseconds (``os.times`` counts in ticks of 10 ms).

Memory is the resident set.  The kernel keeps its peak (VmHWM), which a process may reset by writing 5 to /proc/self/clear_refs
(proc(5)).
"""

from __future__ import annotations

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


class MemoryLedger:
    """Memory that one candidate took, among several in one process.

    What grows between :meth:`enter` and :meth:`leave` is this candidate's.

    Attributes:
        held: Bytes it has taken so far and not given back.
        peak: Most bytes it had at any moment, what it holds included; None if the kernel lets nobody reset the peak.
    """

    def __init__(self) -> None:
        self.held = 0
        self.peak: int | None = 0
        self._before = 0

    def enter(self) -> None:
        """The candidate's turn begins."""
        try:
            _CLEAR.write_text(_RESET_PEAK)
        except OSError:
            self.peak = None
        self._before = resident_bytes()[0]

    def leave(self) -> None:
        """The candidate's turn is over."""
        now, peak = resident_bytes()
        if self.peak is not None:
            self.peak = max(self.peak, self.held + peak - self._before)
        self.held += now - self._before


class CpuMeter:
    """CPU seconds of this process between :meth:`start` and :meth:`stop`."""

    def __init__(self) -> None:
        self._begin = 0

    def start(self) -> None:
        self._begin = time.process_time_ns()

    def stop(self) -> float:
        return (time.process_time_ns() - self._begin) / 1e9
