"""Compiles the engine: the same functions, on raw memory.

The engine's modules know nothing of this. Every function of theirs is copied with globals in which the names of the engine's
functions mean the compiled ones, and ``ld`` and ``st`` load and store at an address. The machine code is kept in a cache
folder named by a digest of the sources, so that it is compiled once; ``DLCP_CACHE`` or ``XDG_CACHE_HOME`` says where.
"""

from __future__ import annotations

import hashlib
import os
import types
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sim.engine import agenda, dlcp_receive, dlcp_rules, dlcp_send, dlcp_window, hosts, loop, ndp, ports, routing, window, words
from sim.errors import MissingPackage

MODULES: Final = (words, agenda, ports, routing, window, ndp, dlcp_rules, dlcp_window, dlcp_send, hosts, dlcp_receive, loop)
"""The engine, each module after those that it uses."""

_PRIMITIVES: Final = ("ld", "st", "lowest", "highest")


def cache_folder() -> Path:
    """Returns where machine code is kept for the sources as they are."""
    sources = hashlib.sha256()
    for module in (*MODULES, None):
        sources.update(Path(str(__file__ if module is None else module.__file__)).read_bytes())
    given = os.environ.get("DLCP_CACHE")
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dlcp"
    return base / "sim" / sources.hexdigest()[:16]


def _primitives() -> dict[str, Any]:
    """Returns what a word and a bit are to the machine."""
    try:
        ir, numba, extending = (import_module(name) for name in ("llvmlite.ir", "numba", "numba.extending"))
    except ImportError as error:
        raise MissingPackage("the compiled engine needs numba: pip install 'dlcp[sim]', or choose --engine python") from error
    kinds, intrinsic = numba.types, extending.intrinsic
    word, bits = ir.IntType(64), ir.IntType(1)

    def address(builder: Any, args: Any) -> Any:
        return builder.gep(builder.inttoptr(args[0], word.as_pointer()), [args[1]])

    def load(context: Any, m: Any, at: Any) -> Any:
        return kinds.int64(kinds.int64, kinds.int64), lambda c, builder, s, args: builder.load(address(builder, args))

    def store(context: Any, m: Any, at: Any, value: Any) -> Any:
        def generate(c: Any, builder: Any, s: Any, args: Any) -> Any:
            builder.store(args[2], address(builder, args))
            return c.get_dummy_value()

        return kinds.void(kinds.int64, kinds.int64, kinds.int64), generate

    def trailing(context: Any, value: Any) -> Any:
        return kinds.int64(kinds.int64), lambda c, builder, s, args: builder.cttz(args[0], bits(1))

    def leading(context: Any, value: Any) -> Any:
        return kinds.int64(kinds.int64), lambda c, builder, s, args: builder.sub(word(63), builder.ctlz(args[0], bits(1)))

    made = {"ld": load, "st": store, "lowest": trailing, "highest": leading}
    return {name: intrinsic(function) for name, function in made.items()}


@cache
def compiled() -> Callable[[int], int]:
    """Returns the engine's ``run`` for the address of a memory.

    Raises:
        MissingPackage: numba is not installed.
    """
    primitives = _primitives()
    numba = import_module("numba")
    config, njit = numba.config, numba.njit
    before = config.CACHE_DIR
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        config.CACHE_DIR = str(folder)
    except OSError:
        pass  # nowhere to keep it: it is compiled every time
    functions: dict[str, Any] = {}
    spaces: list[dict[str, Any]] = []
    try:
        for module in MODULES:
            space = dict(vars(module))
            spaces.append(space)
            for name, function in vars(module).items():
                own = isinstance(function, types.FunctionType) and function.__module__ == module.__name__
                if own and name not in _PRIMITIVES:
                    entry = name == "run"
                    # Only the entry is called from Python; wrappers for the others would take as long again to compile.
                    options: dict[str, Any] = {} if entry else {"no_cpython_wrapper": True}
                    options |= {"cache": entry, "no_cfunc_wrapper": True, "error_model": "numpy", "_nrt": False}
                    functions[name] = njit(**options)(_copy(function, space))
    finally:
        config.CACHE_DIR = before
    # Nothing is compiled before the first call, so functions may use others that come after them.
    for space in spaces:
        space.update({name: value for name, value in {**primitives, **functions}.items() if name in space})
    run: Callable[[int], int] = functions["run"]
    return run


def _copy(function: types.FunctionType, space: dict[str, Any]) -> types.FunctionType:
    copy = types.FunctionType(function.__code__, space, function.__name__)
    copy.__module__ = function.__module__
    copy.__qualname__ = function.__qualname__
    return copy


def address_of(memory: NDArray[np.int64]) -> int:
    """Returns the address of the first word."""
    return int(memory.ctypes.data)


__all__ = ["MODULES", "address_of", "cache_folder", "compiled"]
