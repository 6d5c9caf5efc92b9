"""How busy this machine's processors are: an emulated network is as fast as they let it be."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

_STAT: Final = Path("/proc/stat")
_IDLE: Final = (3, 4)
"""Columns of proc(5) that count as idle: idle, and waiting for disks."""
_COUNTED: Final = 8
"""Columns up to ``steal``, which is as good as busy; those of guests are contained in the others."""


class Ticks(NamedTuple):
    """Processor time since the machine started, of all processors together, in ticks of the kernel."""

    busy: int
    total: int


def ticks(text: str | None = None) -> Ticks:
    """Returns the time so far.

    Args:
        text: Of ``/proc/stat``; read if left out.

    Raises:
        ValueError: The text is something else.
    """
    first = (_STAT.read_text() if text is None else text).partition("\n")[0].split()
    if first[:1] != ["cpu"] or len(first) <= _COUNTED:
        raise ValueError("not what proc(5) says of /proc/stat")
    counted = [int(word) for word in first[1 : _COUNTED + 1]]
    idle = sum(counted[column] for column in _IDLE)
    return Ticks(sum(counted) - idle, sum(counted))


def share(before: Ticks, after: Ticks) -> float | None:
    """Returns which share of the processors was busy in between, whoever used them; None if no time has passed."""
    total = after.total - before.total
    return min(max((after.busy - before.busy) / total, 0.0), 1.0) if total > 0 else None


__all__ = ["Ticks", "share", "ticks"]
