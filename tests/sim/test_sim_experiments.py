"""Experiments: their files are right, what they say is what came out, and they run, with few hosts and bytes."""

import csv
import re
import shutil
import tomllib
from xml.etree import ElementTree

import pytest

from dlcp.errors import ConfigError
from sim.experiments import __main__ as command
from sim.experiments import figure, tables
from sim.experiments.declaration import Declaration
from sim.sweep.cells import plan
from sim.sweep.command import Line
from tests.conftest import ROOT

FOLDERS = [command.ROOT / name for name in command.NAMES]
TINY = 'layers = [{ name = "a", elements = 1000, backward = "5 us" }, { name = "b", elements = 4000, forward = "5 us" }]\n'
SMALL = {
    "leaves": "4",
    "hosts_per_leaf": "2",
    "k": "4",
    "seed": "[0]",
    "iterations": "2",
    "server_count": "2",
    "servers": '["h1", "h7"]',
}


def names(folder):
    return folder.name


def test_all_are_there():
    assert set(command.NAMES) == {"transports-144", "mechanisms", "ds-sync", "scaling"}
    described = (command.ROOT / "README.md").read_text()
    assert all(f"]({name}/README.md)" in described for name in command.NAMES)


@pytest.mark.parametrize("folder", FOLDERS, ids=names)
def test_every_cell_is_valid_and_has_its_result(folder):
    declaration = Declaration.from_toml(folder / "experiment.toml")
    grid, cells = plan(folder / "grid.toml", "compiled")
    assert not [cell.error for cell in cells if cell.error]
    found = tables.read(folder / "results.csv", declaration)
    blank = tables.results(declaration, grid, [{"state": "done"} for _ in cells])
    keys = [*(axis.heading for axis in declaration.axes), "seed"]
    assert [[str(row[key]) for key in keys] for row in found] == [[str(row[key]) for key in keys] for row in blank]
    assert all(row["state"] == "done" for row in found)


@pytest.mark.parametrize("folder", FOLDERS, ids=names)
def test_what_is_said_is_what_came_out(folder):
    declaration = Declaration.from_toml(folder / "experiment.toml")
    found = tables.read(folder / "results.csv", declaration)
    readme = (folder / "README.md").read_text()
    assert tables.replace(readme, tables.markdown(declaration, found)) == readme
    assert "figure.svg" in readme and f"python -m sim.experiments {folder.name}" in readme
    assert (folder / "figure.svg").read_text() == figure.draw(declaration, found)
    ElementTree.fromstring(figure.draw(declaration, found))


def test_the_main_tables_are_those_of_the_experiments():
    section = (ROOT / "docs" / "results.md").read_text().partition("\n## Simulated networks\n")[2].partition("\n## ")[0]
    shown = [line for line in section.splitlines() if line.startswith("| ")]
    known = {line for folder in FOLDERS for line in (folder / "README.md").read_text().splitlines()}
    assert len(shown) > 40 and set(shown) <= known


def test_results_are_small():
    assert sum(path.stat().st_size for folder in FOLDERS for path in folder.glob("results.csv")) < 200_000


def shrink(root):
    """Makes networks of a few hosts, models of a few packets, single steps, and one seed of a copy."""
    for path in root.rglob("*.toml"):
        text = path.read_text()
        if path.name == "workload.toml":
            text = TINY
        for key, value in SMALL.items():
            text = re.sub(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
        path.write_text(text)


@pytest.mark.parametrize("name", command.NAMES)
def test_a_tiny_one_runs(name, tmp_path, capsys):
    pytest.importorskip("llvmlite")
    folder = tmp_path / "sim" / "experiments" / name
    shutil.copytree(command.ROOT / name, folder)
    shutil.copytree(ROOT / "topologies", tmp_path / "topologies")
    shrink(tmp_path)
    before = (folder / "README.md").read_text()
    assert command.run(folder, tmp_path / "out", 2, Line(quiet=True)) == 0
    declaration = Declaration.from_toml(folder / "experiment.toml")
    found = tables.read(folder / "results.csv", declaration)
    with (tmp_path / "out" / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(found) == len(rows)
    plain = next(column for column in declaration.columns if not (column.over or column.inverse or column.bus))
    for mine, row in zip(found, rows, strict=True):
        assert mine[plain.heading] == pytest.approx(float(row[plain.metric]) * plain.factor, rel=1e-5)
    after = (folder / "README.md").read_text()
    assert after != before and tables.markdown(declaration, found) in after
    assert tables.markdown(declaration, found) in capsys.readouterr().out
    ElementTree.parse(folder / "figure.svg")


DECLARED = {
    "name": "x",
    "axes": [{"heading": "n", "names": ["8", "16"]}, {"heading": "how", "names": ["all", "pairs"]}],
    "columns": [{"heading": "bw", "metric": "t", "factor": 4.0, "inverse": True, "bus": True, "figure": True}],
    "ranks": [8, 2],
}


def grid_of(text):
    from sim.sweep.grid import Grid

    return Grid.from_dict(tomllib.loads(text), "grid.toml")


def test_bandwidth_counts_the_ranks_that_sum_together():
    grid = grid_of('scenario = "x"\n[grid]\na = [1, 2]\nseed = [5, 6]\n[[zip]]\nb = [1, 2]\n')
    declaration = Declaration.from_dict(DECLARED)
    rows = [{"state": "done", "t": 2.0} for _ in range(7)] + [{"state": "failed"}]
    found = tables.results(declaration, grid, rows)
    assert [(row["n"], row["seed"], row["how"], row["bw"]) for row in found] == [
        ("8", 5, "all", 3.5), ("8", 5, "pairs", 2.0), ("8", 6, "all", 3.5), ("8", 6, "pairs", 2.0),
        ("16", 5, "all", 3.5), ("16", 5, "pairs", 2.0), ("16", 6, "all", 3.5), ("16", 6, "pairs", None),
    ]  # fmt: skip
    lines = tables.markdown(declaration, found).splitlines()
    assert lines[2] == "| 8 | all | 3.50 (3.50 to 3.50) |"
    assert lines[-1] == "| 16 | pairs | failed |"
    ElementTree.fromstring(figure.draw(declaration, found))


def test_what_does_not_fit_is_refused(tmp_path):
    declaration = Declaration.from_dict(DECLARED)
    with pytest.raises(ConfigError, match="as many as the grid has values"):
        tables.results(declaration, grid_of('scenario = "x"\n[grid]\na = [1, 2, 3]\nb = [1, 2]\n'), [])
    with pytest.raises(ConfigError, match="has no place"):
        tables.replace("# title\n", "| a |")
    with pytest.raises(ConfigError, match="one for each"):
        Declaration.from_dict({**DECLARED, "ranks": [8]})
    with pytest.raises(ConfigError, match="a heading of its own"):
        Declaration.from_dict({**DECLARED, "columns": DECLARED["columns"] * 2})
    (tmp_path / "results.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="header"):
        tables.read(tmp_path / "results.csv", declaration)


def test_the_command_tells_what_is_wrong(tmp_path, monkeypatch, capsys):
    shutil.copytree(command.ROOT / "mechanisms", tmp_path / "mechanisms")
    (tmp_path / "mechanisms" / "experiment.toml").write_text('name = "x"\n')
    monkeypatch.setattr(command, "ROOT", tmp_path)
    assert command.main(["mechanisms", "--out", str(tmp_path / "out"), "--quiet"]) == 2
    assert "axes" in capsys.readouterr().err


def test_results_are_drawn_again(tmp_path, monkeypatch):
    shutil.copytree(command.ROOT / "ds-sync", tmp_path / "ds-sync")
    folder = tmp_path / "ds-sync"
    before = {name: (folder / name).read_text() for name in ("README.md", "figure.svg", "results.csv")}
    (folder / "figure.svg").unlink()
    (folder / "README.md").write_text(f"{tables.BEGIN}{tables.END}")
    monkeypatch.setattr(command, "ROOT", tmp_path)
    assert command.main(["ds-sync", "--redraw"]) == 0
    assert (folder / "figure.svg").read_text() == before["figure.svg"]
    assert (folder / "results.csv").read_text() == before["results.csv"]
    table = before["README.md"].partition(tables.BEGIN)[2].partition(tables.END)[0]
    assert (folder / "README.md").read_text() == f"{tables.BEGIN}{table}{tables.END}"
