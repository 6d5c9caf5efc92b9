"""Divide-and-shuffle synchronization: ranks average parameters in small groups that change every round.

Public names are imported when they are first used, so that schedules cost neither numpy nor torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dssync.averager.averager import DivideShuffleAverager as DivideShuffleAverager
    from dssync.averager.ddp import local_gradients_hook as local_gradients_hook
    from dssync.averager.optimizer import DivideShuffleOptimizer as DivideShuffleOptimizer
    from dssync.contention import Contention as Contention
    from dssync.errors import GroupError as GroupError
    from dssync.groups.shuffle import ShuffleOptions as ShuffleOptions
    from dssync.groups.shuffle import ShuffleProcessGroup as ShuffleProcessGroup
    from dssync.mixing.plan import make_plan as make_plan
    from dssync.schedule.base import Schedule as Schedule
    from dssync.schedule.make import make_schedule as make_schedule

_HOME = {
    "Contention": "dssync.contention",
    "DivideShuffleAverager": "dssync.averager.averager",
    "DivideShuffleOptimizer": "dssync.averager.optimizer",
    "GroupError": "dssync.errors",
    "Schedule": "dssync.schedule.base",
    "ShuffleOptions": "dssync.groups.shuffle",
    "ShuffleProcessGroup": "dssync.groups.shuffle",
    "local_gradients_hook": "dssync.averager.ddp",
    "make_plan": "dssync.mixing.plan",
    "make_schedule": "dssync.schedule.make",
}

__all__ = [*_HOME]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
