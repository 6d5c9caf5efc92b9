"""The pages about topologies and workloads: their examples run, and they name every key, unit and sample."""

import dataclasses
import re

import pytest

from dlcp.cli.main import main
from dlcp.topology import Host, LeafSpine, Link, Switch, Topology
from dlcp.topology.builders import SHAPES
from dlcp.units import Buffer, Delay, Rate, Size
from dlcp.workload import Layer, Workload
from dlcp.workload.named import MODELS

PAGES = ("topology", "workload")


def page(project, name):
    return (project / "docs" / f"{name}.md").read_text()


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("name", PAGES)
def test_python_on_the_page_runs(name, project):
    code = blocks(page(project, name), "python")
    assert code
    exec("\n".join(code), {})


def test_the_console_on_the_page_is_real(project, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    refusal, dialogue = blocks(page(project, "topology"), "console")
    steps = re.split(r"^\$ dlcp (.*)\n", dialogue, flags=re.MULTILINE)[1:]
    for command, expected in zip(steps[::2], steps[1::2], strict=True):
        assert main(command.split()) == 0
        assert capsys.readouterr().out.startswith(expected)
    text = LeafSpine(leaves=2, spines=1, hosts_per_leaf=1).build().to_toml()
    (tmp_path / "net.toml").write_text(text.replace('a = "leaf0", b = "spine0"', 'a = "spine0", b = "laef1"'))
    command, message = re.fullmatch(r"\$ dlcp (.*)\n(.*)\n", refusal).groups()
    assert main(command.split()) == 2
    assert capsys.readouterr().err == message + "\n"


@pytest.mark.parametrize(
    ("name", "sections"), [("topology", (Topology, Host, Switch, Link, *SHAPES.values())), ("workload", (Workload, Layer))]
)
def test_every_key_is_on_the_page(name, sections, project):
    text = page(project, name)
    for section in sections:
        for field in dataclasses.fields(section):
            assert f"`{field.name}`" in text, field.name


def test_every_unit_is_on_the_page(project):
    text = page(project, "topology")
    for quantity in (Rate, Delay, Size, Buffer):
        for unit in {*quantity.units, *(f"_{suffix}" for suffix in quantity.suffixes)} - {"packet", "\u03bcs"}:
            assert f"`{unit}`" in text, unit


def test_every_sample_is_on_the_page(project):
    for path in (project / "topologies").glob("*.toml"):
        assert f"`{path.stem}`" in page(project, "topology"), path.stem
    for name in MODELS:
        (row,) = (line for line in page(project, "workload").splitlines() if line.startswith(f"| `{name}`"))
        workload = Workload.named(name)
        cells = [cell.strip() for cell in row.split("|")]
        assert cells[3] == str(sum(layer.elements > 0 for layer in workload.layers))
        assert cells[4] == f"{workload.elements:,}" and cells[6] == str(workload.batch)


def test_shapes_on_the_page_have_their_keys(project):
    rows = {line.split("`")[1]: line for line in page(project, "topology").splitlines() if line.startswith("| `")}
    common = {field.name for field in dataclasses.fields(next(iter(SHAPES.values())).__mro__[1])}
    for kind, shape in SHAPES.items():
        own = [field.name for field in dataclasses.fields(shape) if field.name not in common]
        assert all(f"`{name}`" in rows[kind] for name in own)
