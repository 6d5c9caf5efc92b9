"""DLCP: gradients over a tagged, loss-bounded transport.

Public names are imported when they are first used, so that ``import dlcp`` costs neither numpy nor torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlcp.collectives.communicator import Communicator as Communicator
    from dlcp.collectives.operation import Operation as Operation
    from dlcp.collectives.operation import Reduction as Reduction
    from dlcp.collectives.server import serve as serve
    from dlcp.errors import ConfigError as ConfigError
    from dlcp.errors import DLCPError as DLCPError
    from dlcp.policy import Policy as Policy
    from dlcp.store import FileStore as FileStore
    from dlcp.store import MemoryStore as MemoryStore
    from dlcp.store import Store as Store
    from dlcp.udp.faults import FaultPlan as FaultPlan

__version__ = "0.1.0"

_HOME = {
    "Communicator": "dlcp.collectives.communicator",
    "Operation": "dlcp.collectives.operation",
    "Reduction": "dlcp.collectives.operation",
    "FaultPlan": "dlcp.udp.faults",
    "FileStore": "dlcp.store",
    "MemoryStore": "dlcp.store",
    "Policy": "dlcp.policy",
    "Store": "dlcp.store",
    "ConfigError": "dlcp.errors",
    "DLCPError": "dlcp.errors",
    "serve": "dlcp.collectives.server",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
