"""Compiles the engine: the same functions, on raw memory.  The engine's modules know nothing of this."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

import sim.engine
from dlcp.compiler.llvm import Program
from sim.engine import (
    agenda,
    bounded,
    dlcp_receive,
    dlcp_rules,
    dlcp_send,
    dlcp_window,
    gates,
    hosts,
    loop,
    ndp,
    pause,
    pfabric,
    ports,
    ranks,
    rate,
    roce,
    routing,
    window,
    words,
)

ENTRY: Final = "run"
_FOLDER: Final = Path(str(sim.engine.__file__)).parent

ENGINE: Final = Program(
    name="sim",
    modules=(
        words,
        agenda,
        pause,
        ranks,
        ports,
        routing,
        window,
        ndp,
        pfabric,
        dlcp_rules,
        rate,
        dlcp_window,
        dlcp_send,
        hosts,
        dlcp_receive,
        roce,
        bounded,
        gates,
        loop,
    ),
    entries=(ENTRY,),
    # Constants stand in modules that hold no functions.
    sources=tuple(import_module(f"sim.engine.{path.stem}") for path in sorted(_FOLDER.glob("*.py")) if path.stem != "__init__"),
    extra=("dlcp[sim]", ", or choose --engine python"),
)
"""The engine."""


@cache
def compiled() -> Callable[[int], int]:
    """Returns the engine's ``run`` for the address of a memory.

    Raises:
        MissingPackage: llvmlite is not installed.
    """
    find = ENGINE.load()
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(find(ENTRY))

    def run(address: int) -> int:
        assert find is not None  # which keeps the machine code in memory
        return int(function(address))

    return run


def address_of(memory: NDArray[np.int64]) -> int:
    """Returns the address of the first word."""
    return int(memory.ctypes.data)


__all__ = ["ENGINE", "ENTRY", "address_of", "compiled"]
