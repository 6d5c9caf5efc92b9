"""The translation of the engine: what Python says of whole numbers, the machine says too; anything else is refused."""

import ctypes
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.compiler import llvm as compiled
from dlcp.compiler.llvm import Program
from dlcp.compiler.translate import NotTranslatable, translate
from sim.compiled import ENGINE, ENTRY
from sim.engine import loop

llvmlite = pytest.importorskip("llvmlite")

SOURCE = '''
from __future__ import annotations
from sim.engine.words import Words, ld, lowest, highest, st

SEVEN = 7


def divide(a: int, b: int) -> int:
    return a // b


def both(m: Words, a: int, b: int) -> int:
    """Everything that the engine may use, in one."""
    total = 0
    st(m, 0, a // 7)
    st(m, 1, a % 7)
    st(m, 2, a // 16 + a % 16)
    st(m, 3, divide(a, b) if b else -1)
    st(m, 4, a % b if b and a > -SEVEN else SEVEN)
    st(m, 5, a and b)
    st(m, 6, a or b or SEVEN)
    st(m, 7, not a)
    st(m, 8, (a < b) + (a == b) * 2 + (a != b) * 4 + (a >= b) * 8)
    st(m, 9, ~a ^ (b & 0xFFFF) | (a >> 3))
    st(m, 10, lowest(a) if a > 0 else highest(b) if b > 0 else -1)
    left = 0
    while True:
        left += 1
        if left == 3:
            continue
        if left > 9 or (a < 0 and left > 5):
            break
        total += left
        while total > 40:
            total -= SEVEN
    st(m, 11, total)
    write(m, total)
    return ld(m, 11) - a


def write(m: Words, value: int) -> None:
    if value > 20:
        st(m, 12, value)
        return
    elif value < 0:
        st(m, 12, -value)
    else:
        st(m, 12, 0)
    st(m, 13, 1)
'''


def module(tmp_path, source):
    path = tmp_path / "sample.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("sample", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    made = module(tmp_path_factory.mktemp("sample"), SOURCE)
    llvm = ENGINE.load_llvm()
    code = compiled.object_file(llvm, translate([made], "both"))
    engine = compiled.linked(llvm, code)
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    yield made, kind(engine.get_function_address("both"))
    engine.close()


numbers = st.one_of(st.integers(-40, 40), st.integers(-(2**60), 2**60))


@settings(max_examples=200)
@given(numbers, numbers)
def test_the_machine_reckons_as_python_does(sample, a, b):
    made, both = sample
    words = [0] * 16
    memory = (ctypes.c_int64 * 16)()
    assert made.both(words, a, b) == both(ctypes.addressof(memory), a, b)
    assert [int(word) for word in words] == list(memory)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("    for i in range(3):\n        pass\n    return 0", "For"),
        ("    return a / 2", "Div"),
        ("    return 1.5", "Constant"),
        ("    return max(a, 2)", "the function max"),
        ("    return other", "the name other"),
        ("    return ld(a, 1)", "a memory that is no parameter"),
        ("    x, y = a, a\n    return x", "Assign"),
        ("    return [a][0]", "Subscript"),
        ("    return 1 < a < 3", "Compare"),
        ("    return nothing(m)", "a value of nothing"),
        ("    return f(m)", "f with 1 arguments"),
    ],
)
def test_anything_else_is_refused_with_its_place(tmp_path, body, what):
    head = "from __future__ import annotations\nfrom sim.engine.words import Words, ld\n\n\n"
    source = f"{head}def nothing(m: Words) -> None:\n    pass\n\n\ndef f(m: Words, a: int) -> int:\n{body}\n"
    with pytest.raises(NotTranslatable, match=rf"sample\.py:\d+: {what}"):
        translate([module(tmp_path, source)], "f")


def test_only_the_entry_is_visible_and_nothing_is_left_out():
    text = translate(ENGINE.modules, ENTRY)
    defined = [line for line in text.splitlines() if line.startswith("define ")]
    assert [line for line in defined if "internal" not in line] == [f"define i64 @{ENTRY}(ptr %m) nounwind {{"]
    names = {module.__name__ for module in ENGINE.modules}
    assert loop.__name__ in names
    folder = Path(loop.__file__).parent
    holding = {f"sim.engine.{path.stem}" for path in folder.glob("*.py") if "\ndef " in path.read_text()}
    assert holding == names


def test_machine_code_is_kept_and_found_again(tmp_path, monkeypatch):
    monkeypatch.setenv("DLCP_CACHE", str(tmp_path))
    llvm = ENGINE.load_llvm()
    code = ENGINE.kept(llvm)
    (path,) = (tmp_path / "sim").iterdir()
    assert path.read_bytes()[32:] == code
    monkeypatch.setattr(Program, "machine_code", lambda *_: pytest.fail("compiled again"))
    assert ENGINE.kept(llvm) == code


def test_without_a_place_for_it_machine_code_is_made_every_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DLCP_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(Program, "machine_code", lambda *_: b"made")
    assert ENGINE.kept(ENGINE.load_llvm()) == b"made"


def test_a_damaged_file_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("DLCP_CACHE", str(tmp_path))
    (tmp_path / "sim").mkdir()
    path = tmp_path / "sim" / f"{ENGINE.digest(ENGINE.load_llvm())}.o"
    path.write_bytes(b"half")
    script = "from sim.compiled import compiled; compiled(); print('ran')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert done.stdout == "ran\n", done.stderr
    assert path.stat().st_size > 10_000
