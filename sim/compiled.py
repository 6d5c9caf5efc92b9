"""Compiles the engine: the same functions, on raw memory.

The engine's modules know nothing of this. :mod:`sim.translate` turns their source into LLVM's assembly language, LLVM (in the
package llvmlite, which numba is built on) into machine code. That is kept in a cache folder, in a file named by a digest of the
sources and of the machine; ``DLCP_CACHE`` or ``XDG_CACHE_HOME`` says where.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import sim.translate
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
from sim.errors import MissingPackage

MODULES: Final = (
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
)
"""The engine."""

ENTRY: Final = "run"


def cache_folder() -> Path:
    """Returns where machine code is kept."""
    given = os.environ.get("DLCP_CACHE")
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dlcp"
    return base / "sim"


def load_llvm() -> Any:
    """Returns LLVM.

    Raises:
        MissingPackage: llvmlite is not installed, or too old.
    """
    try:
        llvm = import_module("llvmlite.binding")
        version = import_module("llvmlite").__version__
    except ImportError as error:
        raise MissingPackage("the compiled engine needs llvmlite: pip install 'dlcp[sim]', or choose --engine python") from error
    if not hasattr(llvm, "create_pass_builder"):
        raise MissingPackage(
            f"the compiled engine needs llvmlite 0.44 or newer, not {version}: pip install --upgrade 'dlcp[sim]'"
        )
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def _machine(llvm: Any) -> Any:
    target = llvm.Target.from_default_triple()
    features = llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=2, reloc="pic", codemodel="jitdefault"
    )


def digest(llvm: Any) -> str:
    """Returns a digest of whatever the machine code depends on."""
    found = hashlib.sha256()
    for module in (*MODULES, sim.translate, None):
        found.update(Path(str(__file__ if module is None else module.__file__)).read_bytes())
    # Constants stand in modules that hold no functions.
    folder = Path(str(words.__file__)).parent
    for path in sorted(folder.glob("*.py")):
        found.update(path.read_bytes())
    machine = (
        llvm.get_process_triple(),
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
        llvm.llvm_version_info,
    )
    found.update(repr(machine).encode())
    return found.hexdigest()[:32]


def machine_code(llvm: Any) -> bytes:
    """Translates and compiles the engine; returns an object file."""
    return object_file(llvm, sim.translate.translate(MODULES, ENTRY))


def object_file(llvm: Any, text: str) -> bytes:
    """Compiles assembly text."""
    module = llvm.parse_assembly(text)
    module.verify()
    machine = _machine(llvm)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    code: bytes = machine.emit_object(module)
    return code


def kept(llvm: Any) -> bytes:
    """Returns the machine code, from the cache if it is there whole."""
    path = cache_folder() / f"{digest(llvm)}.o"
    try:
        found = path.read_bytes()
        # A digest of the code stands before it.
        if hashlib.sha256(found[32:]).digest() == found[:32]:
            return found[32:]
    except OSError:
        pass
    code = machine_code(llvm)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Of several processes that compile at once, each puts a whole file in place.
        part = path.with_name(f"{path.name}.{os.getpid()}")
        part.write_bytes(hashlib.sha256(code).digest() + code)
        part.replace(path)
    except OSError:
        pass  # nowhere to keep it: it is compiled every time
    return code


def linked(llvm: Any, code: bytes) -> Any:
    """Loads an object file; returns what its functions are found by, and live as long as."""
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(llvm))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


@cache
def compiled() -> Callable[[int], int]:
    """Returns the engine's ``run`` for the address of a memory.

    Raises:
        MissingPackage: llvmlite is not installed.
    """
    llvm = load_llvm()
    engine = linked(llvm, kept(llvm))
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(engine.get_function_address(ENTRY))

    def run(address: int) -> int:
        assert engine is not None  # whose machine code it is
        return int(function(address))

    return run


def address_of(memory: NDArray[np.int64]) -> int:
    """Returns the address of the first word."""
    return int(memory.ctypes.data)


__all__ = [
    "ENTRY",
    "MODULES",
    "address_of",
    "cache_folder",
    "compiled",
    "digest",
    "kept",
    "linked",
    "load_llvm",
    "machine_code",
    "object_file",
]
