"""What the package promises about itself."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import dssync

ROOT = Path(__file__).resolve().parents[2]


def test_public_names_are_real():
    for name in dssync.__all__:
        assert getattr(dssync, name) is not None
    assert set(dssync.__all__) <= set(dir(dssync))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = dssync.nonsense


def test_lazy_names_and_typed_names_are_the_same():
    tree = ast.parse((ROOT / "dssync" / "__init__.py").read_text())
    typed = {
        (alias.asname, node.module)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == set(dssync._HOME.items())


@pytest.mark.parametrize("name", ["schedule", "mixing", "groups", "averager", "contention", "errors"])
def test_all_of_a_package_is_real(name):
    module = importlib.import_module(f"dssync.{name}")
    for exported in module.__all__:
        assert hasattr(module, exported)


def test_importing_the_package_is_cheap():
    code = "import sys, dssync, dssync.schedule, dssync.cli; print(*(n in sys.modules for n in ('numpy', 'torch', 'rich')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["False", "False", "False"]


def test_plans_do_not_need_torch():
    code = (
        "import sys; sys.modules['torch'] = None; from dssync import make_plan; from dlcp.topology import Star; "
        "print(make_plan(Star(hosts=4).build(), 1000).recommended.schedule.kind)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0 and done.stdout.strip() in ("digits", "bsp"), done.stderr
