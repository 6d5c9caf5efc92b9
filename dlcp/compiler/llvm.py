"""Compiles functions with LLVM, and keeps the machine code.

:mod:`dlcp.compiler.translate` turns their source into LLVM's assembly language, LLVM (in the package llvmlite, which numba is
built on) into machine code.  That is kept in a cache folder, in a file named by a digest of the sources and of the machine;
``DLCP_CACHE`` or ``XDG_CACHE_HOME`` says where.  As with Python's own byte code, whoever may write there decides what runs: so
only files of this user that no one else may write are taken.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import stat
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import dlcp.compiler.translate
from dlcp.compiler.translate import translate
from dlcp.errors import MissingPackage

_DIGEST_BYTES: Final = 32
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Program:
    """What is compiled together.

    Attributes:
        name: Folder in the cache.
        modules: Modules with functions.
        entries: Functions that are called from outside.
        sources: Modules that only constants come from.
        extra: The extra of this project's package that brings llvmlite, and what to do without it.
    """

    name: str
    modules: tuple[types.ModuleType, ...]
    entries: tuple[str, ...]
    sources: tuple[types.ModuleType, ...] = ()
    extra: tuple[str, str] = ("dlcp", "")

    @property
    def folder(self) -> Path:
        """Returns where its machine code is kept."""
        given = os.environ.get("DLCP_CACHE")
        base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dlcp"
        return base / self.name

    def load_llvm(self) -> Any:
        """Returns LLVM.

        Raises:
            MissingPackage: llvmlite is not installed, or too old.
        """
        package, otherwise = self.extra
        what = f"the compiled {self.name} needs llvmlite"
        try:
            llvm = import_module("llvmlite.binding")
            version = import_module("llvmlite").__version__
        except ImportError as error:
            raise MissingPackage(f"{what}: pip install '{package}'{otherwise}") from error
        if not hasattr(llvm, "create_pass_builder"):
            raise MissingPackage(f"{what} 0.44 or newer, not {version}: pip install --upgrade '{package}'{otherwise}")
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        return llvm

    def digest(self, llvm: Any) -> str:
        """Returns a digest of whatever the machine code depends on."""
        found = hashlib.sha256()
        for module in (*self.modules, *self.sources, dlcp.compiler.translate):
            found.update(Path(str(module.__file__)).read_bytes())
        machine = (
            llvm.get_process_triple(),
            llvm.get_host_cpu_name(),
            llvm.get_host_cpu_features().flatten(),
            llvm.llvm_version_info,
        )
        found.update(repr((machine, self.entries)).encode())
        found.update(Path(__file__).read_bytes())
        return found.hexdigest()[:32]

    def machine_code(self, llvm: Any) -> bytes:
        """Translates and compiles; returns an object file."""
        return object_file(llvm, translate(self.modules, *self.entries))

    def kept(self, llvm: Any) -> bytes:
        """Returns the machine code, from the cache if it is there whole."""
        path = self.folder / f"{self.digest(llvm)}.o"
        found = _trusted(path)
        # A digest of the code stands before it.
        if found is not None and hashlib.sha256(found[_DIGEST_BYTES:]).digest() == found[:_DIGEST_BYTES]:
            return found[_DIGEST_BYTES:]
        code = self.machine_code(llvm)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Of several processes that compile at once, each puts a whole file in place.
            part = path.with_name(f"{path.name}.{os.getpid()}")
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(hashlib.sha256(code).digest() + code)
            part.replace(path)
        except OSError:
            pass  # nowhere to keep it: it is compiled every time
        return code

    def load(self) -> Callable[[str], int]:
        """Returns what tells the address of each entry, and keeps the machine code in memory as long as it lives.

        Raises:
            MissingPackage: llvmlite is not installed.
        """
        llvm = self.load_llvm()
        engine = linked(llvm, self.kept(llvm))

        def address(entry: str) -> int:
            return int(engine.get_function_address(entry))

        return address


def callable_entry(program: Program, entry: str, kind: Callable[..., Any], arguments: int) -> Callable[..., int] | None:
    """Returns an entry that takes addresses and words, and returns a word; None, and a warning once, if there is no LLVM.

    Args:
        program: What it is part of.
        entry: Its name.
        kind: ``ctypes.PYFUNCTYPE``, or ``ctypes.CFUNCTYPE`` to let other threads run meanwhile.
        arguments: How many it takes.
    """
    if os.environ.get("DLCP_COMPILED", "1") == "0":
        return None
    try:
        find = _loaded(program)
    except MissingPackage as problem:
        _warn(str(problem))
        return None
    function = kind(*[ctypes.c_int64] * (arguments + 1))(find(entry))
    # The machine code lives as long as what finds it: see Program.load.
    function.owner = find
    found: Callable[..., int] = function
    return found


@cache
def _warn(problem: str) -> None:
    _log.warning("packets are handled by interpreted Python, which is slow: %s", problem)


@cache
def _loaded(program: Program) -> Callable[[str], int]:
    return program.load()


def _trusted(path: Path) -> bytes | None:
    """Returns what a file of this user holds, into which nobody else can have written; None without one."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return None
            return file.read()
    except OSError:
        return None


def _machine(llvm: Any) -> Any:
    target = llvm.Target.from_default_triple()
    features = llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=2, reloc="pic", codemodel="jitdefault"
    )


def object_file(llvm: Any, text: str) -> bytes:
    """Compiles assembly text."""
    module = llvm.parse_assembly(text)
    module.verify()
    machine = _machine(llvm)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    code: bytes = machine.emit_object(module)
    return code


def linked(llvm: Any, code: bytes) -> Any:
    """Loads an object file; returns what its functions are found by, and live as long as."""
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(llvm))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


__all__ = ["Program", "callable_entry", "linked", "object_file"]
