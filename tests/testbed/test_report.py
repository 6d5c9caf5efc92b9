"""The report of an experiment: its numbers are those of the document, its names stay text, and half an experiment is enough."""

import copy
import json
import math
import random
import re
import shutil
import statistics
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from dlcp.cli.main import main
from dlcp.errors import ConfigError
from testbed.report import markdown, write_comparison, write_report
from testbed.report.drops import ANY, EMULATION, dropped
from testbed.report.outcome import ladder
from testbed.report.view import View
from testbed.results import read_results, write_results
from testbed.summary import summarize
from tests.testbed import report_samples
from tests.testbed.html_tree import headings, parse, rows
from tests.testbed.report_samples import CANDIDATES, EVERY, STEPS, make

SAMPLE = Path(__file__).parent / "data" / "sample"
FIGURES = "ranking gains accuracy loss steps buckets completion queues utilisation drops losses residual".split()
YARDSTICK = "the yardstick"
EVIL = "<img src=x onerror=alert(1)>\"'&</script><script>alert(2)</script>"


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """A folder, its document and its page; not to be changed."""
    folder = tmp_path_factory.mktemp("experiment")
    results = make(folder, seeds=(1, 2, 3))
    path = write_report(results, folder)
    return folder, results, parse(path.read_text())


def figure(page, key):
    (found,) = [each for each in page.all("figure") if each.attributes.get("id") == key]
    return found


def table(page, key, place=0):
    return figure(page, key).all("table")[place]


def column(table, heading):
    """Values of a column, by the names in the first."""
    index = headings(table).index(heading)
    return {line[0]: line[index] for line in rows(table)}


def runs_of(results, name):
    return [run for run in results["runs"] if run["candidate"] == name]


def gaps(page):
    return [item.text for box in page.all("aside", class_="gaps") for item in box.all("li")]


# Structure


def test_every_figure_is_there_with_data_a_caption_and_a_table(experiment):
    _, _, page = experiment
    assert [each["id"] for each in page.all("figure")] == FIGURES
    for key in FIGURES:
        found = figure(page, key)
        assert not found.all("p", class_="nothing")
        drawings = [svg for svg in found.all("svg") if "data-marks" in svg.attributes]
        assert drawings and all(int(svg["data-marks"]) > 0 for svg in drawings), key
        assert found.all("figcaption")[0].text.strip()
        assert rows(found.all("table")[0])
        for svg in drawings:
            assert svg.all("title")[0].text and svg["aria-label"]


def test_drawings_have_no_number_that_is_none(experiment):
    _, _, page = experiment
    for svg in page.all("svg"):
        width, height = map(float, re.findall(r"[\d.]+", svg.attributes.get("viewbox", "0 0 22 12"))[2:])
        for tag in ("line", "rect", "circle", "text", "path"):
            for node in svg.all(tag):
                for name in ("x", "x1", "x2", "cx", "y", "y1", "y2", "cy", "width", "height"):
                    if name in node.attributes:
                        value = float(node[name])
                        limit = width if "x" in name or name == "width" else height
                        assert math.isfinite(value) and -1 <= value <= limit + 1, (node.tag, name, value)
                assert re.fullmatch(r"[MLHVZhvz\d. -]*", node.attributes.get("d", ""))


def test_the_page_refers_to_nothing_outside(experiment):
    folder, _, page = experiment
    text = (folder / "report.html").read_text()
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text.replace("chrome://tracing", ""))
    links = [node["href"] for node in page.all("a") if not node["href"].startswith("#")]
    assert links and all((folder / link).is_file() for link in links)
    anchors = {node["id"] for tag in ("section", "figure", "h3") for node in page.all(tag) if "id" in node.attributes}
    assert {node["href"][1:] for node in page.all("a") if node["href"].startswith("#")} <= anchors
    names = [node["id"] for tag in ("section", "figure", "h3") for node in page.all(tag) if "id" in node.attributes]
    assert len(names) == len(set(names))


def test_legends_name_marks_that_are_there(experiment):
    _, _, page = experiment
    for found in page.all("figure"):
        classes = {
            word
            for svg in found.all("svg")
            if "data-marks" in svg.attributes
            for tag in ("path", "circle", "rect", "g", "line")
            for node in svg.all(tag)
            for word in node.attributes.get("class", "").split()
        }
        for button in found.all("ul", class_="legend")[0].all("button") if found.all("ul", class_="legend") else []:
            style = button["data-style"]
            # A scale of shades is whole even where no cell has one of them.
            assert re.fullmatch(r"best|[bsdkh]\d+", style) and (style in classes or style.startswith("h"))


# Numbers


def test_times_to_accuracy_are_medians_of_the_runs(experiment):
    _, results, page = experiment
    shown = {name.removesuffix(YARDSTICK): value for name, value in column(table(page, "ranking"), "Time to accuracy").items()}
    factors = column(table(page, "ranking"), "Times as fast")
    medians = {}
    for candidate in results["candidates"]:
        times = []
        for run in runs_of(results, candidate["name"]):
            reached = [each["clock_s"] for each in run["evaluations"] if each["accuracy"] >= results["goal"]]
            times += reached[:1]
        medians[candidate["name"]] = statistics.median(times)
    assert shown == medians
    best = min(medians[name] for name, *_ in CANDIDATES[:4])
    for name, factor in factors.items():
        assert factor == pytest.approx(best / medians[name.removesuffix(YARDSTICK)])
    assert results["best_baseline"] == min((name for name, *_ in CANDIDATES[:4]), key=medians.__getitem__)


def test_step_times_are_those_in_the_files_of_ranks(experiment):
    folder, results, page = experiment
    counted = column(table(page, "steps"), "Steps in the files")
    middle = column(table(page, "steps"), "p50")
    for candidate in results["candidates"]:
        name, total, medians = candidate["name"], 0, []
        for run in runs_of(results, name):
            times = []
            for rank in run["ranks"]:
                lines = [json.loads(line) for line in (folder / rank["log"]).read_text().splitlines()]
                steps = [line for line in lines if line["event"] == "step"]
                times += [line["step_s"] for line in steps if line["step"] > 0 and line["step"] % EVERY != 0]
            total += len(times)
            assert run["step_s"]["count"] == len(times)
            medians.append(sorted(times)[len(times) // 2])
        assert counted[name] == total
        assert middle[name] == pytest.approx(statistics.median(medians))


def test_shares_of_the_gain_add_up(experiment):
    folder, results, page = experiment
    found = rows(table(page, "gains"))
    names = [line[0] for line in found]
    assert names == [results["best_baseline"], "dlcp-reliable", "dlcp-loss", "dlcp-magnitude", "dlcp-all"]
    times = [line[2] for line in found]
    gains = [line[3] for line in found][1:]
    assert gains == [pytest.approx(before / after) for before, after in pairwise(times)]
    assert sum(line[4] for line in found[1:]) == pytest.approx(1)
    assert math.prod(gains) == pytest.approx(times[0] / times[-1])
    assert found[2][1] == "protection.share 0.25 → 1.0; loss.push 0.0 → 0.05" and "pipelined in place of dlcp" in found[4][1]
    view = View.of(results, folder)
    assert ladder(view)[1] == "time to accuracy"


def test_queue_depths_are_those_of_the_traces(experiment):
    folder, results, page = experiment
    found = table(page, "queues")
    names = headings(found)
    for line in rows(found):
        candidate, port, samples, mean, _, largest = line[:6]
        times = [run["time_to_accuracy_s"] for run in runs_of(results, candidate)]
        run = next(run for run in runs_of(results, candidate) if run["time_to_accuracy_s"] == statistics.median(times))
        switch, peer = port.split(" → ")
        (trace,) = [each for each in run["traces"] if each["switch"] == switch]
        number = next(number for number, other in trace["ports"].items() if other == peer)
        depths = []
        for text in (folder / trace["file"]).read_text().splitlines():
            sample = json.loads(text)
            if trace["start_s"] + sample["t_us"] / 1e6 >= 0:
                depths.append(sum(sample["ports"][number]["depth"]))
        assert (samples, largest) == (len(depths), max(depths))
        assert mean == pytest.approx(statistics.mean(depths))
    assert names[2] == "Samples" and {line[0] for line in rows(found)} == {name for name, *_ in CANDIDATES[:8]}


def test_drops_by_class_and_cause_are_the_counters_of_switches_and_hosts(experiment):
    _, results, page = experiment
    found = rows(table(page, "drops"))
    for name in ("gloo-cubic", "dlcp-loss", "dlcp-kernel"):
        lines = {line[1]: line[2:] for line in found if line[0] == name}
        runs = runs_of(results, name)
        queues, given_up = Counter(), Counter()
        for run in runs:
            for switch in run["network"]["switches"].values():
                for port in switch["ports"].values():
                    queues.update({queue["priority"]: queue["dropped"] for queue in port["queues"]})
                for of_class, packets in enumerate(
                    switch.get("program", {}).get("dropped", {}).get("droppable", {}).get("packets", [])
                ):
                    given_up[of_class] += packets
        assert lines["queue full"][:8] == [pytest.approx(queues[place] / len(runs)) for place in range(8)]
        assert lines["host's own queue full"][8:] == [18.0, 18.0]
        if name == "dlcp-loss":
            assert lines["given up by the program: droppable"][:8] == [
                pytest.approx(given_up[place] / len(runs)) for place in range(8)
            ]
            assert lines["link loss"][8] == 28.0 and lines["refused by the program: unknown"][8] == 8.0
        for values in lines.values():
            assert sum(values[:9]) == pytest.approx(values[9])


def test_where_nothing_is_gained_nothing_is_shared(tmp_path):
    results = make(tmp_path, seeds=(1,))
    rungs, _ = ladder(View.of(results, tmp_path))
    for factor, shared in ((2.0, True), (1.05, False), (0.5, False)):
        for run in results["runs"]:
            run["time_to_accuracy_s"] = 10.0
        for run in runs_of(results, rungs[-1].contender.name):
            run["time_to_accuracy_s"] = 10.0 / factor
        summarize(results)
        # All baselines are alike now, and one of them is the yardstick.
        shares = [rung.share for rung in ladder(View.of(results, tmp_path))[0][1:]]
        assert all((share is not None) == shared for share in shares) and len(shares) == len(rungs) - 1
        if shared:
            assert sum(shares) == pytest.approx(1.0)


def test_a_busy_machine_is_told(tmp_path):
    results = make(tmp_path, candidates=CANDIDATES[3:9:5], seeds=(1, 2, 3))
    for name, values in (("powersgd", (0.5, 0.91, 0.97)), ("dlcp-kernel", (0.5, 0.6, None))):
        for run, busy in zip(runs_of(results, name), values, strict=True):
            run["processors_busy"] = busy
    found = gaps(parse(write_report(results, tmp_path).read_text()))
    assert [item.partition(" while")[0] for item in found if "processors were" in item] == [
        "powersgd: this machine's processors were 91\xa0% busy"
    ]


def test_what_bmv2_does_not_count_is_told(tmp_path):
    results = make(tmp_path, candidates=CANDIDATES[3:9:5], seeds=(1,))
    assert not any("BMv2" in item for item in gaps(parse(write_report(results, tmp_path).read_text())))
    results["candidates"][1]["target"] = "bmv2"
    found = gaps(parse(write_report(results, tmp_path).read_text()))
    assert any(item.startswith("Drops at full queues were not counted for dlcp-kernel: BMv2") for item in found)


def test_the_quickest_baseline_is_compared_with_where_nothing_reached_the_goal(tmp_path):
    results = make(tmp_path, seeds=(1,))
    for run in results["runs"]:
        run["time_to_accuracy_s"] = None
    summarize(results)
    view = View.of(results, tmp_path)
    rungs, words = ladder(view)
    assert words == "median time of a step" and view.best_baseline is None
    quickest = view.quickest(baseline=True)
    assert rungs[0].contender is quickest and not any(rung.contender.baseline for rung in rungs[1:]) and len(rungs) >= 2


def test_an_emulation_that_could_not_keep_up_is_told(tmp_path):
    results = make(tmp_path, candidates=CANDIDATES[3:9:5], seeds=(1, 2))
    switch, other = [run["network"] for run in runs_of(results, "powersgd")]
    switch["switches"]["leaf0"]["outside_drops"]["2"] = {"receive-buffer-full": 30, "interface-full": 4, "interface-down": 9}
    switch["switches"]["leaf1"]["fault"] = EVIL
    other["backlog_drops"] = 0
    kernel = runs_of(results, "dlcp-kernel")[0]
    kernel["network"].update(backlog_drops=5)
    kernel["network"]["wires"]["outside_drops"]["0"] = {"receive-buffer-full": 2}
    kernel["events"][0]["error"] = "no such link"
    page = parse(write_report(results, tmp_path).read_text())
    found = gaps(page)
    assert sum("could not keep up in 1 of 2 runs" in item for item in found) == 2
    assert any("powersgd" in item and "34 frames were lost where" in item for item in found)
    assert any("dlcp-kernel" in item and ": 7 frames were lost where" in item for item in found)
    assert f"powersgd: an error inside of a switch, leaf1: {EVIL}" in found
    assert any(item.endswith("(1 times): leaf0 - spine1 loses 0.01: no such link") for item in found)
    lines = {(line[0], line[1]): line for line in rows(table(page, "drops"))}
    assert lines["powersgd", EMULATION][-1] == 17.0 and lines["dlcp-kernel", EMULATION][-1] == 3.5
    assert lines["dlcp-kernel", "link loss"][-1] == 5.0 and lines["powersgd", "interface down"][-1] == 4.5


def test_drops_of_kernel_switches_have_the_classes_of_their_classifier(tmp_path):
    (run,) = make(tmp_path, candidates=CANDIDATES[8:9], seeds=(1,))["runs"]
    run["network"]["switches"] = {
        "s0": {
            "ports": {
                "1": {
                    "drops": {"queue-full": 14},
                    "queues": [{"priority": place, "dropped": 0} for place in range(8)],
                    "classes": [{"packets": 50, "bytes": 5000, "dropped": place, "marked": 0} for place in range(4)],
                }
            }
        }
    }
    found = {key: packets for key, packets in dropped(run).items() if key[0] == "queue full"}
    assert found == {("queue full", 1): 1, ("queue full", 2): 2, ("queue full", 3): 3, ("queue full", ANY): 8}


def test_drops_of_a_real_run_count_every_packet_once():
    results = read_results(SAMPLE)
    for run in results["runs"]:
        found = dropped(run)
        for switch in run["network"]["switches"].values():
            outside = {cause: n for cause, n in switch["drops"].items() if cause not in ("queue-full", "ingress", "egress")}
            assert {cause: found[cause.replace("-", " "), ANY] for cause in outside} == outside
            full = sum(n for (cause, _), n in found.items() if cause == "queue full")
            assert full == switch["drops"].get("queue-full", 0)
            program = sum(n for (cause, _), n in found.items() if "the program" in cause)
            assert program == switch["drops"].get("ingress", 0)


def test_losses_and_residual_and_utilisation_are_those_of_the_runs(experiment):
    _, results, page = experiment
    found = [line for line in rows(table(page, "losses")) if line[0] == "dlcp-loss"]
    for line in found:
        sums = Counter()
        for run in runs_of(results, "dlcp-loss"):
            sums.update(run["packets"].get(line[1].removeprefix("class "), {}))
        assert line[2:6] == [sums[key] for key in ("protected", "droppable", "lost_protected", "lost_droppable")]
        assert line[6] == pytest.approx((line[4] + line[5]) / (line[2] + line[3]))
    ends = column(table(page, "residual"), "At the end")
    assert ends["dlcp-all"] == statistics.median(run["residual"][-1]["l1"] for run in runs_of(results, "dlcp-all"))
    assert "dlcp-reliable" not in ends
    busy = {(line[0], line[1]): line[2] for line in rows(table(page, "utilisation"))}
    shares = []
    for run in runs_of(results, "gloo-bbr"):
        port = run["network"]["switches"]["leaf0"]["ports"]["4"]
        shares.append(8 * port["out_bytes"] / port["rate_bps"] / run["training_s"])
    assert busy["leaf0 → spine0", "gloo-bbr"] == pytest.approx(statistics.median(shares))


def test_completion_times_are_quantiles_over_runs(experiment):
    _, results, page = experiment
    for line in rows(table(page, "completion")):
        name = line[1].removeprefix("class ")
        found = [run["classes"][name] for run in runs_of(results, line[0]) if name in run["classes"]]
        assert line[2] == sum(each["count"] for each in found)
        assert line[4] == pytest.approx(statistics.median(each["quantiles_s"][50] for each in found))
        assert line[7] == pytest.approx(statistics.median(each["quantiles_s"][100] for each in found))


def test_the_first_sentence_says_what_came_out(experiment):
    _, results, page = experiment
    text = page.all("p", class_="verdict")[0].text
    assert re.match(r"dlcp-all reached 90\s% accuracy in [\d.]+\s(m?s) \(median of 3\), [\d.]+ times as fast as ", text)
    factor = next(each["summary"]["speedup"] for each in results["candidates"] if each["name"] == "dlcp-all")
    assert f"{factor:.2f} times" in text
    assert any("Some medians are of 3 runs only" in item for item in gaps(page))
    assert any("netem" in item for item in gaps(page))
    assert any("dlcp-kernel (kernel), dlcp-bridge (bridge)" in item for item in gaps(page))


# Drawings


def scale(svg, axis):
    """Returns what turns pixels of a drawing into values, from two of the axis's own labels."""
    anchor, place = {"x": ("middle", "x"), "y": ("end", "y")}[axis]
    ticks = [node for node in svg.all("text", class_="tick") if node["text-anchor"] == anchor]
    shift = {"x": 0.0, "y": 4.0}[axis]
    known = [
        (float(node[place]) - shift, float(node.text.removesuffix(" %").replace(",", "")))
        for node in ticks
        if ":" not in node.text
    ]
    (p0, v0), (p1, v1) = known[0], known[-1]
    for pixel, value in known:
        assert value == pytest.approx(v0 + (pixel - p0) * (v1 - v0) / (p1 - p0), abs=2e-2 * abs(v1 - v0)), "ticks stand evenly"
    return lambda pixel: v0 + (pixel - p0) * (v1 - v0) / (p1 - p0)


def points(svg, style):
    (curve,) = [node for node in svg.all("path", class_="curve") if style in node["class"].split()]
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", curve["d"])]


def test_curves_are_where_their_data_are(tmp_path):
    results = make(tmp_path, candidates=CANDIDATES[3:6], seeds=(1,))
    page = parse(write_report(results, tmp_path).read_text())
    (svg,) = [each for each in figure(page, "accuracy").all("svg") if "data-marks" in each.attributes]
    x, y = scale(svg, "x"), scale(svg, "y")
    for run, style in zip(results["runs"], ("best", "s0", "s1"), strict=True):
        drawn = [(x(a), y(b)) for a, b in points(svg, style)]
        assert len(drawn) == len(run["evaluations"])
        for (clock, accuracy), data in zip(drawn, run["evaluations"], strict=True):
            assert clock == pytest.approx(data["clock_s"], abs=0.03) and accuracy == pytest.approx(
                100 * data["accuracy"], abs=0.15
            )
        (flag,) = [node for group in svg.all("g", class_=style) for node in group.all("circle", class_="flag")]
        assert x(float(flag["cx"])) == pytest.approx(run["time_to_accuracy_s"], abs=0.03)
        assert y(float(flag["cy"])) == pytest.approx(90, abs=0.15)


def test_rows_and_bars_are_as_long_as_they_say(experiment):
    _, results, page = experiment
    (svg,) = [each for each in figure(page, "ranking").all("svg") if "data-marks" in each.attributes]
    x = scale(svg, "x")
    groups = [each for each in svg.all("g") if each.all("circle", class_="flag")]
    order = [line[0].removesuffix(YARDSTICK) for line in rows(table(page, "ranking"))]
    for name, group in zip(order, groups, strict=True):
        times = [run["time_to_accuracy_s"] for run in runs_of(results, name)]
        drawn = sorted(x(float(node["cx"])) for node in group.all("circle", class_="run"))
        assert drawn == [pytest.approx(time, abs=0.05) for time in sorted(times)]
        (flag,) = group.all("circle", class_="flag")
        assert x(float(flag["cx"])) == pytest.approx(statistics.median(times), abs=0.05)
        (whisker,) = group.all("line", class_="whisker")
        assert [x(float(whisker[end])) for end in ("x1", "x2")] == [
            pytest.approx(end, abs=0.05) for end in (min(times), max(times))
        ]
    (svg,) = [each for each in figure(page, "drops").all("svg") if "data-marks" in each.attributes]
    x, zero = scale(svg, "x"), scale(svg, "x")
    drawn = Counter()
    for bar in svg.all("rect", class_="fill"):
        name, cause, _ = re.match(r"(.*?): (.*): ([\d,.]+)$", bar.text).groups()
        drawn[name, cause] = x(float(bar["x"]) + float(bar["width"])) - zero(float(bar["x"]))
    for line in rows(table(page, "drops")):
        assert drawn[line[0], line[1]] == pytest.approx(line[-1], abs=8)


def test_strips_are_dark_where_queues_are_long(tmp_path, monkeypatch):
    monkeypatch.setattr(report_samples, "INTERVAL", 0.02)
    results = make(tmp_path, candidates=CANDIDATES[:1], seeds=(1,))
    page = parse(write_report(results, tmp_path).read_text())
    (svg,) = [each for each in figure(page, "queues").all("svg") if "data-marks" in each.attributes]
    (run,) = results["runs"]
    (trace,) = [each for each in run["traces"] if each["switch"] == "leaf0"]
    number = next(number for number, peer in trace["ports"].items() if peer == "spine1")
    cells, lasted = [[] for _ in range(240)], run["training_s"]
    for text in (tmp_path / trace["file"]).read_text().splitlines():
        sample = json.loads(text)
        place = math.floor((trace["start_s"] + sample["t_us"] / 1e6) / lasted * 240)
        if 0 <= place < 240:
            cells[place].append(sum(sample["ports"][number]["depth"]))
    assert max(map(len, cells)) > 3 and min(map(len, cells)) > 0
    (label,) = [node for node in svg.all("text", class_="name") if node.text.endswith("leaf0 → spine1")]
    track = svg.all("rect", class_="track")[0]
    left, width = float(track["x"]), float(track["width"])
    drawn = [
        (float(x), float(x) + float(w), int(path["class"][-1]))
        for path in svg.all("path", class_="cell")
        for x, y, w in re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)", path["d"])
        if float(y) == float(label["y"]) - 13
    ]
    for place, depths in enumerate(cells):
        middle = left + width * (place + 0.5) / 240
        shades = [level for start, end, level in drawn if start < middle < end]
        assert shades == ([math.ceil(max(depths) / 64 * 7)] if max(depths) else [])


# Names from outside


def test_names_stay_text_wherever_they_stand(tmp_path):
    results = make(tmp_path, candidates=CANDIDATES[3:6], seeds=(1, 2), prefix=EVIL)
    results["notes"] = [EVIL]
    results["runs"][0].update(outcome="failed", error=EVIL)
    results["runs"][0]["network"]["switches"][EVIL] = {"ports": {EVIL: {"rate_bps": 1e6, "out_bytes": 10, "drops": {EVIL: 3}}}}
    results["runs"][2]["classes"] = {EVIL: results["runs"][2]["classes"].popitem()[1]}
    results["runs"][2]["ranks"][0].update(log=EVIL, said=EVIL)
    summarize(results)
    page = parse(write_report(results, tmp_path).read_text())
    assert len(page.all("script")) == 1 and not page.all("img") and "alert" not in page.all("script")[0].text
    assert page.text.count(EVIL) > 20
    assert not [name for tag in ("p", "td", "th", "svg", "text", "li", "button") for node in page.all(tag)
                for name in node.attributes if name.startswith("on")]  # fmt: skip
    for style in (node.attributes.get("class", "") for tag in ("g", "path", "rect") for node in page.all(tag)):
        assert re.fullmatch(r"[a-z0-9 ]*", style)
    compared = parse(write_comparison([tmp_path], tmp_path / "compared.html").read_text())
    assert len(compared.all("script")) == 1 and EVIL in compared.text
    assert EVIL.replace("|", "\\|") in markdown(results)


def test_files_outside_of_the_folder_are_not_read(tmp_path):
    outside = tmp_path / "outside.jsonl"
    outside.write_text(json.dumps({"event": "step", "step": 1, "step_s": 123.0, "t": 1.0}) + "\n")
    folder = tmp_path / "inside"
    folder.mkdir()
    results = make(folder, candidates=CANDIDATES[4:5], seeds=(1,))
    results["runs"][0]["ranks"][0]["log"] = "../outside.jsonl"
    results["runs"][0]["ranks"][1]["log"] = str(outside)
    page = parse(write_report(results, folder).read_text())
    assert sum("leads out of the folder" in item for item in gaps(page)) == 2
    steps = rows(table(page, "steps"))
    assert steps[0][6] == 2 * len([step for step in range(STEPS) if step % EVERY])


# Half an experiment


def test_an_experiment_that_was_killed_says_so(tmp_path):
    results = make(tmp_path, candidates=CANDIDATES[2:9:2], seeds=(1, 2))
    results["complete"] = False
    results["runs"] = results["runs"][:3]
    summarize(results)
    page = parse(write_report(results, tmp_path).read_text())
    assert "The experiment did not come to its end: 3 of 8 runs are here." in gaps(page)[0]
    assert any(item == "dlcp-kernel: no run was made." for item in gaps(page))


def test_runs_that_failed_are_named_with_what_they_said(tmp_path):
    results = make(tmp_path, candidates=CANDIDATES[2:6], seeds=(1, 2, 3))
    first, *_ = runs_of(results, "dlcp-loss")
    first.update(outcome="failed", error="", time_to_accuracy_s=None, steps=9)
    first["ranks"][1].update(exit_code=4, said="rank 1: PeerLostError: rank 0 said nothing for 5.0 s")
    for run in runs_of(results, "dlcp-reliable"):
        run.update(outcome="timeout", error="ranks [2] had not ended after 60 s", time_to_accuracy_s=None)
    results["interrupted"] = "SIGTERM"
    summarize(results)
    page = parse(write_report(results, tmp_path).read_text())
    found = gaps(page)
    assert found[0] == "The experiment was interrupted (SIGTERM) after 12 of 12 runs."
    assert "dlcp-loss, seed 1: failed after 9 steps. rank 1: PeerLostError: rank 0 said nothing for 5.0 s" in found
    assert "dlcp-loss: 2 of 3 runs reached the goal; its median is of those, so it is too good." in found
    assert sum("had not ended after 60 s" in item for item in found) == 3
    reached = column(table(page, "ranking"), "Reached")
    assert (reached["dlcp-loss"], reached["dlcp-reliable"]) == (2, 0)
    # Where a rung has no time to accuracy, times of steps are compared.
    assert "median time of a step" in figure(page, "gains").text.lower()


def test_runs_that_the_user_interrupted_do_not_count(tmp_path):
    results = make(tmp_path, candidates=CANDIDATES[3:6], seeds=(1, 2, 3))
    last = runs_of(results, "dlcp-loss")[-1]
    last.update(outcome="interrupted", error="the experiment was interrupted", time_to_accuracy_s=None)
    summarize(results)
    page = parse(write_report(results, tmp_path).read_text())
    others = runs_of(results, "dlcp-loss")[:2]
    steps = {line[0]: line for line in rows(table(page, "steps"))}
    assert steps["dlcp-loss"][1] == statistics.mean(run["step_s"]["p50_s"] for run in others)
    assert steps["dlcp-loss"][-1] == sum(run["step_s"]["count"] for run in others)
    times = column(table(page, "ranking"), "Time to accuracy")
    assert times["dlcp-loss"] == statistics.mean(run["time_to_accuracy_s"] for run in others)


def test_files_that_are_missing_or_cut_short_are_named(tmp_path):
    results = make(tmp_path, candidates=CANDIDATES[3:5], seeds=(1,))
    first, second = results["runs"]
    whole = (tmp_path / first["ranks"][0]["log"]).read_bytes()
    (tmp_path / first["ranks"][0]["log"]).write_bytes(whole[: whole.index(b"\n", len(whole) // 2) - 9])
    (tmp_path / second["ranks"][0]["log"]).unlink()
    (tmp_path / first["traces"][0]["file"]).write_bytes(b'{"t_us": 1}\n[1]\n{"t_us": 5, "ports": {"1": 3}}\n\xff\xfe\n')
    page = parse(write_report(results, tmp_path).read_text())
    found = " ".join(gaps(page))
    assert f"{first['ranks'][0]['log']}: 1 line is no JSON object" in found
    assert f"{second['ranks'][0]['log']}: No such file" in found
    assert f"{first['traces'][0]['file']}: 2 lines are no JSON object" in found
    assert not figure(page, "steps").all("p", class_="nothing")


def test_where_nobody_reached_the_goal_steps_are_compared(tmp_path):
    results = make(tmp_path, candidates=CANDIDATES[2:6], seeds=(1, 2))
    results["goal"] = 0.999
    for run in results["runs"]:
        run["time_to_accuracy_s"] = None
    summarize(results)
    page = parse(write_report(results, tmp_path).read_text())
    text = page.all("p", class_="verdict")[0].text.replace("\xa0", " ")
    assert text.startswith("Nothing reached 99.9 % accuracy. Half of the steps of dlcp-loss were shorter than ")
    assert "of gloo-fp16, the quickest baseline" in text
    assert figure(page, "ranking").all("p", class_="nothing") and rows(table(page, "ranking"))
    assert any("No baseline reached the goal" in item for item in gaps(page))
    # Columns in which nobody has anything are left out.
    runs = next(each for each in page.all("table") if each.all("caption")[0].text.startswith("All runs"))
    assert "What went wrong" not in headings(runs) and "Seed" in headings(runs)


def test_nothing_at_all_is_a_report_too(tmp_path):
    page = parse(write_report({}, tmp_path).read_text())
    assert [each["id"] for each in page.all("figure")] == FIGURES
    assert all(each.all("p", class_="nothing") for each in page.all("figure"))
    assert any("goal: missing" in item for item in gaps(page))


def test_spoiled_documents_never_end_in_a_traceback(tmp_path):
    whole = read_results(SAMPLE)
    dice = random.Random(5)
    junk = [None, -1, 0, 1e308, "x", [], {}, [None], {"x": None}, True, [[]], [[1, 2, 3]], "../..", float("inf")]

    def places(node, path=()):
        yield path
        for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            if len(path) < 6:
                yield from places(node[key], (*path, key))

    every = [path for path in places(whole) if path]
    for path in dice.sample(every, 40):
        spoiled = copy.deepcopy(whole)
        at = spoiled
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = dice.choice(junk)
        text = write_report(spoiled, tmp_path, traces=False).read_text()
        assert [each["id"] for each in parse(text).all("figure")] == FIGURES, path


def test_the_sample_of_a_real_experiment(tmp_path):
    folder = tmp_path / "sample"
    shutil.copytree(SAMPLE, folder)
    results = read_results(folder)
    page = parse(write_report(results, folder).read_text())
    assert not any(item.startswith("Left out") for item in gaps(page))
    assert not [each["id"] for each in page.all("figure") if each.all("p", class_="nothing")]
    counted = column(table(page, "steps"), "Steps in the files")
    for candidate in results["candidates"]:
        assert counted[candidate["name"]] == sum(run["step_s"]["count"] for run in runs_of(results, candidate["name"]))


# Several experiments


def test_experiments_are_compared(tmp_path):
    folders = []
    for name, candidates in (("one", CANDIDATES[:6]), ("two", CANDIDATES[2:8])):
        folder = tmp_path / name
        folder.mkdir()
        results = make(folder, candidates=candidates, seeds=(1, 2))
        results["experiment"]["name"] = name
        write_results(results, folder)
        folders.append(folder)
    path = write_comparison(folders, tmp_path / "compared.html")
    page = parse(path.read_text())
    for line in rows(table(page, "time")):
        results = read_results(tmp_path / line[0])
        assert line[2] == results["best_baseline"]
        assert line[3] == next(each["summary"]["speedup"] for each in results["candidates"] if each["name"] == line[1])
        ours, theirs = [runs_of(results, name) for name in (line[1], results["best_baseline"])]
        pairs = [b["time_to_accuracy_s"] / a["time_to_accuracy_s"] for a, b in zip(ours, theirs, strict=True)]
        assert line[4] == pytest.approx(statistics.median(pairs))
    assert len(rows(table(page, "time"))) == 10
    assert len(markdown(read_results(folders[0])).splitlines()) == 2 + 6


def test_comparing_what_is_no_experiment_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        write_comparison([tmp_path], tmp_path / "compared.html")


def test_the_command_writes_reports_comparisons_and_tables(tmp_path, capsys):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        shutil.copytree(SAMPLE, folder)
    assert main(["testbed", "report", str(folders[0])]) == 0
    assert capsys.readouterr().out == f"{folders[0] / 'report.html'}\n"
    assert main(["testbed", "report", str(folders[0] / "results.json")]) == 0
    assert figure(parse(Path(capsys.readouterr().out.strip()).read_text()), "ranking")
    page = tmp_path / "both.html"
    assert main(["testbed", "report", *map(str, folders), "--out", str(page)]) == 0
    assert figure(parse(page.read_text()), "time")
    capsys.readouterr()
    assert main(["testbed", "report", "--markdown", *map(str, folders)]) == 0
    assert capsys.readouterr().out.count("| candidate |") == 2
    assert main(["testbed", "report", str(tmp_path)]) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err
