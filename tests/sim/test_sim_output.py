"""What a run writes: tables that add up, the same with and without samples, a page and a timeline that open."""

import csv
import json
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.cli.main import main
from sim.engine.layout import C_BINS
from sim.output import TABLES
from sim.ports_table import bin_start, found
from sim.report.figures import distribution
from sim.report.network import filled, thinned
from sim.report.reading import Run
from sim.training_table import BUS_FACTORS
from tests.testbed.chromium import COMMAND, Browser
from tests.testbed.test_report_browser import LOOK
from tests.testbed.test_trace_timeline import load, validate

NET = '[generate]\nkind = "star"\nhosts = 4\nrate = "1 Gbit/s"\nbuffer = "20 packets"\nloss = {loss}\n'
WORKLOAD = """
name = "small"
layers = [
  { name = "a", elements = 3000, forward = "20 us", backward = "40 us" },
  { name = "b", elements = 9000, forward = "30 us", backward = "60 us" },
]
"""
RUN = """
topology = "net.toml"
workload = "model.toml"
[transport]
name = "dctcp"
[traffic]
kind = "training"
algorithm = "sharded"
iterations = 2
bucket = "20 kB"
"""


def write(folder, loss=0.0):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "net.toml").write_text(NET.format(loss=loss))
    (folder / "model.toml").write_text(WORKLOAD)
    (folder / "run.toml").write_text(RUN)
    return folder / "run.toml"


def run(path, out, *changes, code=0):
    arguments = [word for change in changes for word in ("--set", change)]
    assert main(["sim", "run", str(path), "--engine", "python", "--quiet", "--json", "--out", str(out), *arguments]) == code
    return Run(out)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    return run(write(folder), folder / "out", "series=20 us", "traffic.slowness=[1, 4, 1, 1]")


@pytest.fixture(scope="module")
def lossy(tmp_path_factory):
    """DLCP that loses, drops, marks and has several classes."""
    folder = tmp_path_factory.mktemp("lossy")
    return run(write(folder, loss=0.02), folder / "out", "series=50 us", "transport.name=dlcp", "transport.host_times=0.1")


@settings(max_examples=5, deadline=None)
@given(
    interval=st.sampled_from(("7 us", "50 us", "1 ms", "1 s")),
    seed=st.integers(0, 100),
    transport=st.sampled_from(("dlcp", "dctcp", "ndp", "tcp")),
)
def test_samples_change_nothing(tmp_path_factory, interval, seed, transport):
    folder = tmp_path_factory.mktemp("same")
    path = write(folder, loss=0.01)
    changes = (f"seed={seed}", f"transport.name={transport}", "transport.host_times=0.1", "traffic.iterations=1")
    run(path, folder / "without", *changes)
    run(path, folder / "with", *changes, f"series={interval}")
    for name in (*(f"{table}.csv" for table in TABLES if table != "series"), "summary.json"):
        assert (folder / "without" / name).read_bytes() == (folder / "with" / name).read_bytes(), name
    assert not (folder / "without" / "series.csv").exists()


@pytest.mark.parametrize("which", ["trained", "lossy"])
def test_samples_add_up_to_what_was_sent(request, which):
    made = request.getfixturevalue(which)
    busy, marked, dropped = defaultdict(float), defaultdict(int), defaultdict(int)
    for row in made.rows("series"):
        key = row["node"], row["port"]
        busy[key] += row["utilisation"] * row["interval_s"]
        marked[key] += row["marked_packets"]
        dropped[key] += row["dropped_packets"]
        assert row["queue_packets"] == sum(row[f"class{number}_packets"] for number in range(8))
        assert (row["queue_bytes"] > 0) == (row["queue_packets"] > 0)
    end = made.summary["now_s"]
    for row in made.rows("ports"):
        key = row["node"], row["port"]
        # The last samples lie before the end.
        assert busy[key] <= row["utilisation"] * end + 1e-9
        assert busy[key] == pytest.approx(row["utilisation"] * end, abs=2e-4)
        assert marked[key] <= row["marked_packets"]
        assert dropped[key] <= sum(row[name] for name in ("dropped_selectively", "dropped_full", "dropped_down", "lost_on_link"))


@pytest.mark.parametrize("which", ["trained", "lossy"])
def test_classes_add_up_to_their_port(request, which):
    made = request.getfixturevalue(which)
    classes = defaultdict(list)
    for row in made.rows("classes"):
        classes[row["node"], row["port"]].append(row)
    seen = set()
    for port in made.rows("ports"):
        rows = classes.pop((port["node"], port["port"]), [])
        counters = (
            "packets",
            "bytes",
            "marked_packets",
            "trimmed_packets",
            "dropped_selectively",
            "dropped_full",
            "lost_on_link",
        )
        for column in counters:
            assert sum(row[column] for row in rows) == port[column], column
        assert sum(row["mean_queue_packets"] for row in rows) == pytest.approx(port["mean_queue_packets"], abs=1e-5)
        assert all(row["deepest_queue_bytes"] <= port["deepest_queue_bytes"] for row in rows)
        for row in rows:
            seen.add(row["class"])
            if row["p50_found_packets"] is not None:
                assert 0 <= row["p50_found_packets"] <= row["p99_found_packets"] <= row["p999_found_packets"] <= 20
    assert not classes and len(seen) > (2 if which == "lossy" else 0)


@given(st.lists(st.integers(0, 7000), min_size=1, max_size=200), st.sampled_from((0.5, 0.99, 0.999)))
def test_a_percentile_of_bins_is_within_a_quarter_of_a_doubling(depths, share):
    bins = [0] * C_BINS
    for depth in depths:
        bins[max(index for index in range(C_BINS) if bin_start(index) <= depth)] += 1
    exact = sorted(depths)[max(-(-len(depths) * round(1000 * share) // 1000) - 1, 0)]
    binned = found(bins, share)
    assert binned <= exact <= binned * 1.25 or exact == binned
    assert found([0] * C_BINS, share) is None


def test_lost_bytes_are_those_of_the_lost_frames(tmp_path):
    path = write(tmp_path, loss=0.2)
    size = ["traffic.kind=incast", "traffic.fan_in=3", f"traffic.size={1472 * 40} B", "transport.name=raw", "limit=1 s"]
    made = run(path, tmp_path / "out", *size, code=1)
    assert made.summary["packets"]["lost_on_link"] + made.summary["packets"]["dropped_full"] > 5
    made = run(path, tmp_path / "out", *size[:3], "transport.name=tcp")
    rows = list(made.rows("messages"))
    assert sum(row["lost_packets"] for row in rows) > 5
    for row in rows:
        assert 54 * row["lost_packets"] < row["lost_bytes"] <= 1514 * row["lost_packets"] or row["lost_packets"] == 0


def test_collectives_have_the_bandwidths_of_nccls_tests(trained):
    rows = list(trained.rows("collectives"))
    assert len(rows) == 2 * 2
    assert {row["size_bytes"] for row in rows} == {36000, 12000}
    for row in rows:
        assert row["ranks"] == 4 and row["operation"] == "all-reduce"
        assert row["begin_s"] <= row["ready_s"] < row["end_s"]
        assert row["time_s"] == pytest.approx(row["end_s"] - row["begin_s"], abs=2e-12)
        assert row["algbw_bit_per_s"] == pytest.approx(8 * row["size_bytes"] / row["time_s"], rel=1e-6, abs=1)
        assert row["busbw_bit_per_s"] == pytest.approx(1.5 * row["algbw_bit_per_s"], rel=1e-6, abs=1)
        assert row["busbw_bit_per_s"] < 1e9
        assert row["sent_bytes"] == 2 * 3 * row["size_bytes"]
        assert row["last_ready_host"] == "h1", "which computes four times as long"
    assert {name: factor(8) for name, factor in BUS_FACTORS.items()} == {
        "all-reduce": 1.75, "reduce-scatter": 0.875, "all-gather": 0.875, "all-to-all": 0.875, "broadcast": 1.0, "reduce": 1.0,
    }  # fmt: skip


def test_steps_are_computing_and_waiting(trained):
    rows = list(trained.rows("iterations"))
    assert [row["step_s"] for row in rows] == pytest.approx(trained.summary["steps_s"])
    for row in rows:
        assert row["compute_s"] == pytest.approx(4 * 150e-6)
        assert row["compute_s"] + row["exposed_s"] == pytest.approx(row["step_s"])
        # The other three compute for 150 us and wait for the rest.
        assert row["mean_exposed_s"] == pytest.approx((3 * (row["step_s"] - 150e-6) + row["exposed_s"]) / 4, rel=0.1)
        assert row["straggler_host"] == "h1" and row["straggler_behind_s"] > 250e-6
    worked = defaultdict(float)
    for row in trained.rows("computing"):
        worked[row["host"]] += row["end_s"] - row["begin_s"]
    assert worked["h1"] == pytest.approx(4 * worked["h0"])


@pytest.mark.parametrize("which", ["trained", "lossy"])
def test_the_timeline_is_valid_and_whole(request, which):
    made = request.getfixturevalue(which)
    document = load(made.folder / "trace.json")
    counts = validate(document["traceEvents"])
    tables = ("messages", "computing", "collectives")
    assert counts["X"] == sum(len(list(made.rows(table))) for table in tables)
    assert counts["C"] > 10 and document["otherData"]["events_left_out"] == 0


def test_the_page_needs_nothing_else_and_has_every_figure(trained, lossy, tmp_path, capsys):
    for made in (trained, lossy):
        text = (made.folder / "report.html").read_text()
        assert "src=" not in text and "url(" not in text and "http://" not in text
        for key in ("steps", "collectives", "completion", "slowdown", "queues", "utilisation", "drops"):
            assert f'id="{key}"' in text, key
    again = (trained.folder / "report.html").read_bytes()
    assert main(["sim", "report", str(trained.folder)]) == 0
    assert (trained.folder / "report.html").read_bytes() == again
    runs = [str(trained.folder), str(lossy.folder), str(trained.folder / "summary.json")]
    capsys.readouterr()
    assert main(["sim", "compare", *runs, "--html", str(tmp_path / "compare.html"), "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["steps_s.mean"]["values"][0] == rows["steps_s.mean"]["values"][2]
    assert rows["steps_s.mean"]["changes"][1] == pytest.approx(
        rows["steps_s.mean"]["values"][1] / rows["steps_s.mean"]["values"][0] - 1
    )
    page = (tmp_path / "compare.html").read_text()
    assert all(f'id="{key}"' in page for key in ("steps", "completion_s", "slowdown"))
    assert main(["sim", "compare", runs[0]]) == 2


@pytest.mark.skipif(COMMAND is None, reason="needs the command chromium, chromium-browser or google-chrome")
def test_a_browser_shows_the_pages(trained, lossy, tmp_path):
    assert main(["sim", "compare", str(trained.folder), str(lossy.folder), "--html", str(tmp_path / "c.html"), "--json"]) == 0
    with Browser(tmp_path / "profile") as browser:
        for page in (trained.folder / "report.html", lossy.folder / "report.html", tmp_path / "c.html"):
            browser.open(page)
            for figure in browser.run(LOOK):
                assert figure["drawings"] or figure["empty"], figure["key"]
                for drawing in figure["drawings"]:
                    assert drawing["marks"] and not drawing["unseen"] and not drawing["outside"], (figure["key"], drawing)
            assert not browser.messages and not browser.violations


def test_json_lines_say_the_same_as_csv(tmp_path):
    path = write(tmp_path)
    made = run(path, tmp_path / "csv", "series=100 us")
    arguments = ["sim", "run", str(path), "--engine", "python", "--set", "series=100 us", "--quiet", "--json", "--jsonl"]
    assert main([*arguments, "--out", str(tmp_path / "lines")]) == 0
    lines = Run(tmp_path / "lines")
    for table, columns in TABLES.items():
        assert list(made.rows(table)) == list(lines.rows(table)), table
        assert tuple(made.table(table)) == tuple(columns)
        with (tmp_path / "csv" / f"{table}.csv").open() as file:
            assert tuple(next(csv.reader(file))) == tuple(columns)
    # A folder that is used again does not keep tables of the other kind.
    assert main([*arguments, "--out", str(tmp_path / "csv")]) == 0
    assert not list((tmp_path / "csv").glob("*.csv"))


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("messages.csv", "class,completion_s\n1\n", "line 2"),
        ("messages.csv", "class,completion_s\n1,soon\n", "completion_s is 'soon'"),
        ("messages.csv", "class,completion_s\n1,inf\n", "completion_s is 'inf'"),
        ("messages.jsonl", '{"class": 1}\n{"klass": 1}\n', "line 2"),
        ("messages.jsonl", "[]\n", "other columns"),
        ("messages.jsonl", '{"source": 3}\n', "source is 3"),
        ("ports.csv", "node,port\ns0,1\n", "ports.csv: peer: missing"),
    ],
)
def test_a_broken_table_is_an_error_that_says_where(tmp_path, capsys, name, text, says):
    (tmp_path / "summary.json").write_text('{"completion_s": {}}')
    (tmp_path / name).write_text(text)
    assert main(["sim", "report", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err


@given(st.lists(st.floats(1e-9, 10), min_size=1, max_size=2000))
def test_a_distribution_keeps_its_ends_and_rises(values):
    points = distribution(values)
    assert len(points) <= 402
    assert points[0][0] == min(values) and points[-1] == (max(values), 1.0)
    assert points == sorted(points)


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 9)), max_size=60, unique_by=lambda pair: pair[0]))
def test_curves_of_queues_keep_peaks_and_show_what_is_idle(pairs):
    points = [(time * 0.5, float(depth)) for time, depth in sorted(pairs)]
    whole = filled(points, 0.5)
    assert [time for time, _ in whole] == sorted(time for time, _ in whole)
    assert set(points) <= set(whole)
    if points:
        assert max(depth for _, depth in thinned(whole, 7)) == max(depth for _, depth in points)
        assert len(thinned(whole, 7)) <= 7
