"""Programs: entries that can be called, the way out without LLVM, and whose machine code is trusted."""

import ctypes
import logging
import os
import sys

import numpy as np
import pytest

from dlcp.compiler import llvm as llvm_module
from dlcp.compiler.llvm import Program, callable_entry
from dlcp.compiler.raw import address_of
from dlcp.errors import MissingPackage
from dlcp.transport.arrivals import TRANSPORT, Arrivals, Identity, compiled
from dlcp.transport.intake_layout import DONE

pytest.importorskip("llvmlite")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def fresh(folder, monkeypatch):
    """A cache folder of these tests' own, and nothing remembered of what was loaded or said."""
    monkeypatch.setenv("DLCP_CACHE", str(folder))
    monkeypatch.delenv("DLCP_COMPILED", raising=False)
    for remembered in (compiled, llvm_module._loaded, llvm_module._warn):
        remembered.cache_clear()
    yield
    for remembered in (compiled, llvm_module._loaded, llvm_module._warn):
        remembered.cache_clear()


def entry(kind=ctypes.PYFUNCTYPE):
    return callable_entry(TRANSPORT, "take", kind, 3)


@pytest.mark.parametrize("kind", [ctypes.PYFUNCTYPE, ctypes.CFUNCTYPE])
def test_an_entry_is_called_with_addresses(kind):
    arrivals = Arrivals(Identity(0, 2, 1), use_compiled=False)
    arrivals.begin([], 5, False)
    frames = np.zeros(8, np.int64)
    assert entry(kind)(arrivals._address, address_of(frames), 0) == DONE
    assert arrivals.position == (0, 0)


def test_if_it_is_asked_for_python_runs_and_nobody_is_warned(monkeypatch, caplog):
    monkeypatch.setenv("DLCP_COMPILED", "0")
    with caplog.at_level(logging.WARNING):
        assert entry() is None and compiled() is None and Arrivals(Identity(0, 2, 1))._functions is None
    assert not caplog.records


def test_without_llvm_python_runs_and_says_so_once(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    with caplog.at_level(logging.WARNING):
        assert compiled() is None and entry() is None and Arrivals(Identity(0, 2, 1))._functions is None
    (record,) = caplog.records
    assert "interpreted Python" in record.getMessage() and "pip install 'llvmlite'" in record.getMessage()


def test_an_llvm_that_is_too_old_is_none(monkeypatch):
    llvm = TRANSPORT.load_llvm()
    monkeypatch.delattr(llvm, "create_pass_builder")
    with pytest.raises(MissingPackage, match=r"0\.44 or newer"):
        TRANSPORT.load_llvm()
    assert entry() is None


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """LLVM, the file that machine code is kept in, and the code."""
    monkeypatch.setenv("DLCP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Program, "machine_code", lambda *_: b"made first")
    llvm = TRANSPORT.load_llvm()
    code = TRANSPORT.kept(llvm)
    (path,) = TRANSPORT.folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    return llvm, path, code


@pytest.mark.parametrize(("mode", "trusted"), [(0o600, True), (0o644, True), (0o400, True), (0o620, False), (0o602, False)])
def test_a_file_that_others_may_write_is_not_trusted(kept, monkeypatch, mode, trusted):
    llvm, path, code = kept
    path.chmod(mode)
    monkeypatch.setattr(Program, "machine_code", lambda *_: b"made anew")
    assert TRANSPORT.kept(llvm) == (code if trusted else b"made anew")
    assert path.stat().st_mode & 0o022 == 0, "what is put in its place is ours alone"


def test_a_file_of_another_user_is_not_trusted(kept, monkeypatch):
    llvm, path, code = kept
    monkeypatch.setattr(Program, "machine_code", lambda *_: b"made anew")
    assert TRANSPORT.kept(llvm) == code
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert TRANSPORT.kept(llvm) == b"made anew"


def test_a_file_that_was_changed_is_not_trusted(kept, monkeypatch):
    llvm, path, _ = kept
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    monkeypatch.setattr(Program, "machine_code", lambda *_: b"made anew")
    assert TRANSPORT.kept(llvm) == b"made anew"


def test_other_sources_or_entries_have_another_file(kept):
    llvm, path, _ = kept
    names = {
        Program("transport", TRANSPORT.modules, entries, sources).digest(llvm)
        for entries, sources in ((TRANSPORT.entries, TRANSPORT.sources), (("gate",), TRANSPORT.sources), (TRANSPORT.entries, ()))
    }
    assert len(names) == 3 and path.stem in names
