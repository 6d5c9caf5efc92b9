"""Sweeps: every cell once, none lost, none twice, wherever they run."""

import csv
import itertools
import json
import math
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcp.cli.main import main
from dlcp.errors import ConfigError
from sim.sweep import command
from sim.sweep.cells import plan, run_cell
from sim.sweep.command import sweep
from sim.sweep.grid import Grid, apply
from sim.sweep.page import plot
from sim.sweep.pool import Worker
from tests.conftest import ROOT

NET = '[generate]\nkind = "star"\nhosts = 4\nrate = "10 Gbit/s"\n'
RUN = """
topology = "net.toml"
[transport]
name = "dctcp"
[traffic]
kind = "incast"
fan_in = 2
size = "20 kB"
"""
GRID = """
scenario = "run.toml"
[set]
transport.initial_window = 5
[grid]
traffic.fan_in = [1, 2, 3]
seed = [0, 1]
"""


@pytest.fixture
def grid(tmp_path):
    (tmp_path / "net.toml").write_text(NET)
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "grid.toml").write_text(GRID)
    return tmp_path / "grid.toml"


def go(grid, out, **options):
    return sweep(grid, out, jobs=2, engine="python", **options)


lists = st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True)
grids = st.dictionaries(st.sampled_from(("a", "b.c", "b.d", "e")), lists, max_size=3)


@given(grids, st.lists(st.integers(1, 4), max_size=2))
def test_cells_are_all_combinations_and_zipped_lists_go_together(cartesian, zipped):
    tables = [{f"z{index}.x": list(range(n)), f"z{index}.y": list(range(100, 100 + n))} for index, n in enumerate(zipped)]
    if not cartesian and not tables:
        with pytest.raises(ConfigError, match="no key takes several values"):
            Grid.from_dict({"scenario": "x.toml"})
        return
    found = Grid.from_dict({"scenario": "x.toml", "grid": cartesian, "zip": tables})
    cells = list(found.cells())
    assert len(cells) == found.count == math.prod(map(len, cartesian.values())) * math.prod(zipped)
    assert {tuple(sorted(cell.items())) for cell in cells} == {
        tuple(sorted([*zip(cartesian, values, strict=True)] + [(f"z{i}.x", n) for i, n in enumerate(numbers)]
                     + [(f"z{i}.y", 100 + n) for i, n in enumerate(numbers)]))
        for values in itertools.product(*cartesian.values()) for numbers in itertools.product(*map(range, zipped))
    }  # fmt: skip
    assert Grid.from_dict(found.to_dict()) == found


@given(st.dictionaries(st.sampled_from(("a.b", "a.c", "d", "e.f.g")), st.integers(), min_size=1))
def test_changes_leave_the_scenario_as_it_was(changes):
    fields = {"a": {"b": 1}, "d": 2, "list": [{"x": 1}]}
    made = apply(fields, changes, "<test>")
    assert fields == {"a": {"b": 1}, "d": 2, "list": [{"x": 1}]}
    for key, value in changes.items():
        table = made
        for part in key.split("."):
            table = table[part]
        assert table == value
    made["list"][0]["x"] = 5
    assert fields["list"] == [{"x": 1}]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[grid]\nseed = 3", "is no list of values"),
        ("[grid]\nseed = []", "is no list of values"),
        ("[grid]", "no key takes several values"),
        ("[set]\nseed = 1\n[grid]\nseed = [1]", "stands in set, too"),
        ("[[zip]]\nseed = [1, 2]\ntraffic.fan_in = [1]", "lists of 1, 2 values"),
        ("[grid]\nseed = [1]\nlimits = ['1 s']", "unknown key"),
        ("[grid]\nseed.x = [1]\n[set]\nseed = 1", "seed is no table"),
        ("grid = 3", "is no table"),
    ],
)
def test_a_wrong_grid_is_refused(grid, capsys, text, says):
    grid.write_text(f'scenario = "run.toml"\n{text}\n')
    assert main(["sim", "sweep", str(grid), "--engine", "python", "--out", str(grid.parent / "out")]) == 2
    assert says in capsys.readouterr().err


def test_all_cells_run_once_and_are_kept(grid, tmp_path, monkeypatch):
    seen = []
    first = go(grid, tmp_path / "out", report=lambda *numbers: seen.append(numbers))
    assert first.count("done") == 6 and first.kept == 0
    assert seen == [(done, 6, 0) for done in range(7)]
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    assert [(row["traffic.fan_in"], row["seed"]) for row in table] == [(fan, seed) for fan in (1, 2, 3) for seed in (0, 1)]
    assert [row["completion_s.count"] for row in table] == [1, 1, 2, 2, 3, 3]
    with (tmp_path / "out" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["completion_s.p99"]) for row in rows] == [row["completion_s.p99"] for row in table]
    monkeypatch.setattr(command, "run_here", lambda cells, *rest: iter(()) if not cells else pytest.fail("runs again"))
    again = go(grid, tmp_path / "out")
    assert again.kept == 6 and again.rows == first.rows
    # More cells: only they run.
    monkeypatch.undo()
    grid.write_text(GRID.replace("[0, 1]", "[0, 1, 2]"))
    assert go(grid, tmp_path / "out").kept == 6


def test_cells_that_would_give_something_else_run_again(grid, tmp_path):
    before = {cell.digest for cell in plan(grid, "python")[1]}
    assert len(before) == 6
    assert {cell.digest for cell in plan(grid, "compiled")[1]} == before, "engines give the same"
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("net.toml", "run.toml", "grid.toml"):
        (moved / name).write_text((tmp_path / name).read_text())
    assert {cell.digest for cell in plan(moved / "grid.toml", "python")[1]} == before, "whatever the folder"
    (moved / "net.toml").write_text(NET.replace("10 Gbit/s", "20 Gbit/s"))
    assert not {cell.digest for cell in plan(moved / "grid.toml", "python")[1]} & before


def test_cells_that_fail_do_not_take_others_along(grid, tmp_path, capsys):
    # Four of three hosts fails when the scenario is built, the name of the transport when it is read.
    grid.write_text(GRID.replace("[1, 2, 3]", "[1, 4]").replace("seed = [0, 1]", 'transport.name = ["dctcp", "nonsense"]'))
    out = tmp_path / "out"
    assert main(["sim", "sweep", str(grid), "--engine", "python", "--out", str(out), "--jobs", "2"]) == 1
    captured = capsys.readouterr()
    assert "4 cells: 1 done, 3 failed" in captured.out and "from 1 to 3" in captured.err and "nonsense" in captured.err
    rows = json.loads((out / "table.json").read_text())
    assert [row["state"] for row in rows] == ["done", "failed", "failed", "failed"]
    assert "/tmp/" not in "".join(row["error"] for row in rows[2:3]), "the folder that a worker used is nobody's business"
    # What has failed is tried again.
    assert main(["sim", "sweep", str(grid), "--engine", "python", "--out", str(out), "--json"]) == 1


def test_a_worker_that_dies_fails_its_cell_only(grid):
    cell = plan(grid, "python")[1][0]
    worker = Worker()
    worker.give(cell)
    os.kill(worker.process.pid, signal.SIGKILL)
    assert worker.take() == {"error": "the process ended with signal SIGKILL"}
    assert not worker.alive
    worker = Worker()
    try:
        worker.give(cell)
        outcome = worker.take()
        assert outcome["summary"] == run_cell(cell.task)["summary"]
        assert worker.alive
    finally:
        worker.end()
    assert not worker.alive


def test_an_unfinished_cell_says_so(grid, tmp_path):
    grid.write_text(GRID.replace("seed = [0, 1]", 'limit = ["3 us", "1 s"]'))
    found = go(grid, tmp_path / "out")
    assert [row["state"] for row in found.rows] == ["unfinished", "done"] * 3


def test_ctrl_c_keeps_what_is_done(grid, tmp_path):
    out = tmp_path / "out"
    grid.write_text(GRID.replace("fan_in = [1, 2, 3]", 'size = ["20 kB", "2 GB"]'))
    line = [sys.executable, "-m", "dlcp", "sim", "sweep", str(grid), "--engine", "python", "--out", str(out), "--jobs", "1"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True) as process:
        while len(list(out.glob("cells/*.json"))) < 2:
            assert process.poll() is None
            os.sched_yield()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "4 cells: 2 done, 2 missing" in output
    assert [row["state"] for row in json.loads((out / "table.json").read_text())] == ["done", "done", "missing", "missing"]
    grid.write_text(GRID.replace("fan_in = [1, 2, 3]", 'size = ["20 kB"]'))
    assert go(grid, out).kept == 2


def test_any_metric_is_plotted_over_any_axis(grid, tmp_path, capsys):
    found = go(grid, tmp_path / "out", plots=[("completion_s.max", "traffic.fan_in"), ("events", "seed")])
    page = found.page.read_text()
    assert "completion_s.max over traffic.fan_in" in page and "events over seed" in page
    figure = plot(found.rows, "completion_s.max", "traffic.fan_in", found.grid.axes)
    (table,) = figure.tables
    assert [row[2].value for row in table.rows] == [2, 2, 2], "two seeds a point"
    for plot_, says in (("events:nothing", "is no axis"), ("nothing:seed", "is no metric")):
        arguments = ["--engine", "python", "--out", str(tmp_path / "out"), "--plot", plot_]
        assert main(["sim", "sweep", str(grid), *arguments]) == 2
        assert says in capsys.readouterr().err


@given(st.lists(st.tuples(st.sampled_from(("dlcp", "tcp")), st.sampled_from(("1 kB", "1 MB", "30 MB")), st.integers(0, 2),
                          st.floats(1e-6, 10)), min_size=1, max_size=20))  # fmt: skip
def test_a_plot_loses_no_cell(cells):
    rows = [{"name": name, "size": size, "seed": seed, "time_s": time} for name, size, seed, time in cells]
    for axis in ("name", "size", "seed"):
        figure = plot(rows, "time_s", axis, ["name", "size", "seed"])
        assert sum(row[2].value for row in figure.tables[0].rows) == len(rows)
        values = [row["time_s"] for row in rows]
        assert min(row[4].value for row in figure.tables[0].rows) == min(values)
        assert max(row[5].value for row in figure.tables[0].rows) == max(values)
        figure.render()


def test_the_sweep_that_comes_along_is_right():
    for path in (ROOT / "scenarios" / "sweeps").glob("*.toml"):
        assert all(cell.task for cell in plan(path, "python")[1])


def test_without_dask_it_says_what_to_install(grid, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main(["sim", "sweep", str(grid), "--out", str(tmp_path / "out"), "--dask", "tcp://127.0.0.1:1"]) == 3
    assert "pip install 'dlcp[dask]'" in capsys.readouterr().err


@pytest.mark.filterwarnings("default")
def test_a_dask_cluster_gives_the_same(grid, tmp_path):
    distributed = pytest.importorskip("distributed", reason="needs distributed: pip install 'dlcp[dask]'")
    grid.write_text(GRID.replace("[1, 2, 3]", "[1, 4]"))
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as cluster:
        theirs = go(grid, tmp_path / "dask", dask=cluster.scheduler_address)
    mine = go(grid, tmp_path / "here")
    for row in (*mine.rows, *theirs.rows):
        row.pop("cpu_s")
    assert mine.rows == theirs.rows
    assert [row["state"] for row in theirs.rows] == ["done", "done", "failed", "failed"]
