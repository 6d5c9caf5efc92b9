"""Memory by address: single instructions do what the functions in Python do, at any alignment."""

import ctypes
import importlib.util

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcp.compiler import raw
from dlcp.compiler.llvm import linked, object_file
from dlcp.compiler.translate import translate
from dlcp.transport.arrivals import TRANSPORT

pytest.importorskip("llvmlite")

SOURCE = """
from __future__ import annotations
from dlcp.compiler.raw import Words, big64, here64, ld, move, octet, put_big64, put_here64, put_octet, st


def read(m: Words, at: int) -> int:
    st(m, 0, octet(at))
    st(m, 1, big64(at))
    st(m, 2, here64(at))
    st(m, 3, (big64(at) >> 32) & 0xFFFFFFFF)
    return 0


def write(m: Words, at: int) -> int:
    put_octet(at, ld(m, 0))
    put_big64(at + 1, ld(m, 1))
    put_here64(at + 9, ld(m, 2))
    move(at + 17, at + 1, ld(m, 3))
    return 0
"""

words = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**63 - 1, -(2**63), -1, 0, 1 << 62, -(1 << 62) - 1]))


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The functions as Python, and compiled."""
    path = tmp_path_factory.mktemp("raw") / "rawsample.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("rawsample", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    llvm = TRANSPORT.load_llvm()
    engine = linked(llvm, object_file(llvm, translate([made], "read", "write")))
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    yield made, {name: kind(engine.get_function_address(name)) for name in ("read", "write")}
    engine.close()


@given(st.binary(min_size=8, max_size=8), st.integers(0, 7))
def test_reading(both, content, shift):
    made, compiled = both
    memory = np.zeros(32, np.uint8)
    memory[shift : shift + 8] = np.frombuffer(content, np.uint8)
    python, machine = np.zeros(4, np.int64), np.zeros(4, np.int64)
    made.read(python.data, raw.address_of(memory) + shift)
    compiled["read"](raw.address_of(machine), raw.address_of(memory) + shift)
    big = int.from_bytes(content, "big", signed=True)
    here = int(np.frombuffer(content, np.int64)[0])
    assert python.tolist() == machine.tolist() == [content[0], big, here, int.from_bytes(content[:4], "big")]


@given(st.integers(0, 255), words, words, st.integers(0, 8), st.integers(0, 7))
def test_writing(both, byte, big, here, count, shift):
    made, compiled = both
    given_words = np.array([byte, big, here, count], np.int64)
    python, machine = np.full(48, 0xA5, np.uint8), np.full(48, 0xA5, np.uint8)
    made.write(given_words.data, raw.address_of(python) + shift)
    compiled["write"](raw.address_of(given_words), raw.address_of(machine) + shift)
    expected = bytes([byte]) + big.to_bytes(8, "big", signed=True) + np.int64(here).tobytes()
    expected = b"\xa5" * shift + expected + expected[1 : 1 + count]
    assert python.tobytes() == machine.tobytes() == expected.ljust(48, b"\xa5")


def test_what_needs_more_than_a_word_is_an_error_in_python():
    memory = np.zeros(2, np.int64)
    at = raw.address_of(memory)
    raw.put_big64(at, (1 << 63) + 5)  # of which it writes the bits, as the machine does: sequence numbers are unsigned
    assert memory[:1].tobytes() == b"\x80" + bytes(6) + b"\5"
    memory[0] = 0
    with pytest.raises(ValueError, match="format"):
        raw.st(memory.data, 0, 1 << 63)
    for position in (-1, 2):
        with pytest.raises(IndexError):
            raw.ld(memory.data, position)
        with pytest.raises(IndexError):
            raw.st(memory.data, position, 1)
    assert not memory.any()
