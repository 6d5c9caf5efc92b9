"""The frame: what the package promises about itself, checked against the tree."""

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import dlcp
from dlcp.cli.main import SUBCOMMANDS, available
from dlcp.topology import Topology
from dlcp.workload import Workload
from sim.scenario import Scenario
from sim.sweep.grid import Grid
from testbed.experiment import Experiment

ROOT = Path(__file__).resolve().parents[2]
ROOMS = [name for name in ("dlcp", "dssync", "softswitch", "sim", "testbed") if (ROOT / name).is_dir()]
MODULES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

MAY_IMPORT = {
    "dlcp": set(),
    "dssync": {"dlcp"},
    "sim": {"dlcp", "softswitch", "dssync"},
    "softswitch": set(),
    "testbed": {"dlcp", "softswitch", "dssync", "sim"},
}
# The protocol core gets time, randomness and datagrams as arguments, so that a test can replay anything.
SANS_IO = {"socket", "select", "selectors", "threading", "time", "random", "secrets", "asyncio", "subprocess", "torch"}


def identifier(path):
    return str(path.relative_to(ROOT))


def imports(path):
    """Top-level names that a module imports anywhere, those under TYPE_CHECKING included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


@pytest.mark.parametrize("path", MODULES, ids=identifier)
def test_a_module_is_small_and_imports_only_what_its_room_may(path):
    assert len(path.read_text().splitlines()) <= 450, "one idea a module"
    room = path.relative_to(ROOT).parts[0]
    allowed = MAY_IMPORT[room] | {room}
    tops = {name.split(".")[0] for name in imports(path)}
    assert not (tops & set(MAY_IMPORT)) - allowed
    if path.is_relative_to(ROOT / "dlcp" / "transport") or path.is_relative_to(ROOT / "dlcp" / "wire"):
        assert not tops & SANS_IO
    assert "pickle" not in tops, "nothing from a wire or a file is ever unpickled"


@pytest.mark.parametrize("path", [path for path in MODULES if path.name != "__init__.py"], ids=identifier)
def test_a_module_says_what_it_is_for(path):
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("room", ROOMS)
def test_types_are_shipped(room):
    assert (ROOT / room / "py.typed").is_file()


def test_public_names_are_real():
    for name in dlcp.__all__:
        assert getattr(dlcp, name) is not None
    assert set(dlcp.__all__) <= set(dir(dlcp))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = dlcp.nonsense


def test_lazy_names_and_typed_names_are_the_same():
    tree = ast.parse((ROOT / "dlcp" / "__init__.py").read_text())
    typed = {
        (alias.asname, node.module)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == set(dlcp._HOME.items())


@pytest.mark.parametrize(
    "package",
    [
        name
        for name in ("dlcp.wire", "dlcp.udp", "dlcp.tagging", "dlcp.transport", "dlcp.collectives", "dlcp.torch")
        if find_spec(name)
    ],
)
def test_all_of_a_package_is_real(package):
    module = importlib.import_module(package)
    for name in getattr(module, "__all__", []):
        assert hasattr(module, name)


def test_importing_the_package_is_cheap():
    code = "import sys, dlcp, dlcp.cli.main; print('numpy' in sys.modules, 'torch' in sys.modules, 'rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["False", "False", "False"]


def test_the_collectives_do_not_need_torch():
    code = "import sys; sys.modules['torch'] = None; from dlcp import Communicator, MemoryStore, Policy; print('fine')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout == "fine\n", done.stderr


def test_a_wheel_holds_the_packages_and_nothing_else(tmp_path):
    pytest.importorskip("setuptools")
    # Building in place would leave folders behind.
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in (*ROOMS, "examples", "tests", "docs", "p4"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "constraints.txt"):
        shutil.copy(ROOT / name, tree)
    (tree / "p4" / "__init__.py").write_text("")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(tmp_path),
        ".",
    ]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"dlcp-{dlcp.__version__}-")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = next(name for name in names if name.endswith("/METADATA"))
        scripts = archive.read(next(name for name in names if name.endswith("/entry_points.txt"))).decode()
        metadata = archive.read(info).decode()
    data = info.split("/")[0].replace(".dist-info", ".data")
    tops = {name.split("/")[0] for name in names} - {info.split("/")[0], data}
    assert tops <= {*ROOMS, "examples"}
    program = {str(path.relative_to(ROOT)) for path in (ROOT / "p4").rglob("*") if path.suffix in (".p4", ".json", ".txtpb")}
    assert {f"{data}/data/share/dlcp/{name}" for name in program} <= {name for name in names if name.startswith(data)}
    assert {identifier(path) for path in MODULES} <= set(names)
    assert {f"{room}/py.typed" for room in ROOMS} <= set(names)
    assert "dlcp = dlcp.cli.main:main" in scripts
    assert "License-Expression: Apache-2.0" in metadata
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_every_dependency_of_the_tests_is_pinned():
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            assert re.fullmatch(r"[0-9][0-9a-z.]*", version), f"{line}: a plain version"
            pins[name.lower().replace("_", "-")] = version
    assert pins["torch"] == "2.13.0"
    project = PYPROJECT["project"]
    for line in [
        *project["dependencies"],
        *project["optional-dependencies"]["dev"],
        *project["optional-dependencies"]["examples"],
        *project["optional-dependencies"]["p4"],
    ]:
        name = re.match(r"[A-Za-z0-9_-]+", line).group().lower()
        assert name in pins or name == "dlcp", line


def test_the_changelog_knows_the_version():
    assert re.search(rf"^## {re.escape(dlcp.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def documents():
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", documents(), ids=identifier)
def test_links_between_documents_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file) if file else path
        assert there.exists(), f"{path.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, f"{path.name}: {target}"


@pytest.mark.parametrize("path", documents(), ids=identifier)
def test_descriptions_in_documents_are_accepted(path):
    described = {"topology.md": Topology, "workload.md": Workload, "testbed.md": Experiment, "simulator.md": Scenario}.get(
        path.name, dlcp.Policy
    )
    for block in re.findall(r"^```toml\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL):
        values = tomllib.loads(block)
        kind = Topology if "hosts" in values else Grid if "grid" in values else described
        kind.from_dict(values, source=path.name)


@pytest.mark.parametrize("path", documents(), ids=identifier)
def test_names_in_documents_can_be_imported(path):
    for block in re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in ROOMS:
                for alias in node.names:
                    assert hasattr(importlib.import_module(node.module), alias.name), f"{node.module}.{alias.name}"


def test_every_subcommand_is_there():
    assert set(available()) == set(SUBCOMMANDS)


@pytest.mark.parametrize("path", documents(), ids=identifier)
def test_commands_in_documents_exist(path):
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for block in re.findall(r"^```(?:sh|console|bash)\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            words = line.removeprefix("$ ").split()
            if words[:1] == ["make"] and len(words) > 1:
                assert words[1] in targets, line
            if words[:1] == ["dlcp"] and len(words) > 1 and not words[1].startswith("-"):
                assert words[1] in SUBCOMMANDS, line


def make(*arguments, cwd):
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_make_names_its_targets():
    listed = {line.split()[1] for line in make("help", cwd=ROOT).stdout.splitlines()}
    assert {"demo", "test", "lint", "check-all", "bench", "venv", "system"} <= listed


@pytest.mark.parametrize(("alone", "others", "code"), [(0, 0, 0), (1, 0, 2), (0, 1, 2), (1, 1, 2), (None, 0, 0), (None, 1, 2)])
def test_make_test_fails_when_any_test_does(tmp_path, alone, others, code):
    """The recipe itself, with a stand-in for pytest; the last line is that of the larger run."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "tests").mkdir()
    if alone is not None:
        (tmp_path / "tests" / "test_a.py").write_text("@pytest.mark." + "exclusive")
    runner = tmp_path / "runner"
    runner.write_text(
        "#!/bin/sh\n"
        f'case "$*" in "-m exclusive tests/test_a.py") echo alone; exit {alone or 0};; esac\n'
        f'echo "others $*"; exit {others}\n'
    )
    runner.chmod(0o755)
    done = make("test", f"PYTEST={runner}", "-o", "lint", cwd=tmp_path)
    assert done.returncode == code, done
    lines = done.stdout.splitlines()
    assert lines[-1] == "others -n 2 -m not exclusive"
    assert ("alone" in lines) == (alone is not None)


def test_ci_calls_make_test_from_anywhere(tmp_path):
    copy = tmp_path / "checkout"
    (copy / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", copy / ".ci")
    (copy / "Makefile").write_text("test:\n\t@echo in $(notdir $(CURDIR)); exit $(CODE)\n")
    for code in (0, 1):
        command = ["bash", str(copy / ".ci" / "run")]
        environment = {**os.environ, "CODE": str(code), "MAKEFLAGS": ""}
        done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode == 0) == (code == 0)
        assert done.stdout == "in checkout\n"
