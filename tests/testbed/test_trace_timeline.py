"""Timelines keep to the Chrome trace event format, and show what the files say."""

import json
import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.report import write_trace
from testbed.report.trace import Timeline
from testbed.results import read_results
from tests.testbed.report_samples import CANDIDATES, make

SAMPLE = Path(__file__).parent / "data" / "sample"
REQUIRED = {
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "C": {"name", "pid", "ts", "args"},
    "i": {"name", "pid", "tid", "ts", "s"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
    "M": {"name", "pid", "tid", "args"},
}


def validate(events):
    """Checks a list of events against the Chrome trace event format, and what viewers need beyond it."""
    named, last, stacks, flows = set(), 0.0, defaultdict(list), {}
    for event in events:
        phase = event["ph"]
        assert set(event) >= REQUIRED[phase], event
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int) and isinstance(event["name"], str)
        if phase == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name", "thread_sort_index")
            assert last == 0.0, "names come first"
            key = (event["name"], event["pid"], event["tid"] if event["name"].startswith("thread") else 0)
            assert key not in named
            named.add(key)
            continue
        assert event["ts"] >= last, "in the order of time"
        last = event["ts"]
        assert ("process_name", event["pid"], 0) in named and ("thread_name", event["pid"], event["tid"]) in named
        key = (event["pid"], event["tid"])
        if phase == "X":
            assert event["dur"] >= 0
            # Slices of one thread must nest or follow each other.
            ends = stacks[key]
            while ends and ends[-1][1] <= event["ts"] + 1e-4:
                ends.pop()
            end = event["ts"] + event["dur"]
            assert not ends or end <= ends[-1][1] + 1e-4, "overlap without nesting"
            ends.append((event["ts"], end))
        elif phase == "C":
            assert event["args"] and all(isinstance(value, int | float) for value in event["args"].values())
        elif phase == "i":
            assert event["s"] in ("g", "p", "t")
        elif phase == "s":
            assert event["id"] not in flows, "every arrow begins once"
            flows[event["id"]] = (event["ts"], event["cat"], event["name"])
            assert stacks[key] and stacks[key][-1][0] <= event["ts"] <= stacks[key][-1][1], "an arrow begins in a slice"
        elif phase == "f":
            begin, *kind = flows.pop(event["id"])
            assert begin <= event["ts"] and kind == [event["cat"], event["name"]]
            assert event["bp"] == "e"
            assert stacks[key] and stacks[key][-1][0] <= event["ts"] <= stacks[key][-1][1], "an arrow ends in a slice"
    assert not flows, "every arrow ends"
    return Counter(event["ph"] for event in events)


def load(path):
    document = json.loads(path.read_text(), parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    assert document["displayTimeUnit"] in ("ms", "ns")
    return document


def names(events, what):
    return {(event["pid"], event["tid"] if what == "thread_name" else 0): event["args"]["name"] for event in events
            if event["ph"] == "M" and event["name"] == what}  # fmt: skip


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    return folder, make(folder, candidates=CANDIDATES[3:6], seeds=(1,))


def test_a_timeline_of_dlcp_is_valid_and_whole(experiment):
    folder, results = experiment
    run = next(run for run in results["runs"] if run["candidate"] == "dlcp-loss")
    document = load(write_trace(run, folder, folder / "trace.json"))
    events = document["traceEvents"]
    counts = validate(events)
    lines = [json.loads(line) for rank in run["ranks"] for line in (folder / rank["log"]).read_text().splitlines()]
    wanted = Counter(line["event"] for line in lines)
    assert counts["X"] == wanted["step"] + wanted["bucket"] + wanted["message"]
    assert counts["s"] == counts["f"] == wanted["message"]
    assert counts["i"] == 1 and counts["C"] > 100
    assert document["otherData"]["events_left_out"] == 0
    # All is where it belongs, and at its time.
    processes, threads = names(events, "process_name"), names(events, "thread_name")
    assert set(processes.values()) >= {"host h0", "host h1", "host h3", "host h4", "switch leaf0", "experiment"}
    zero = document["otherData"]["first_step_us"]
    expected = sorted(
        (f"host {run['ranks'][line['rank']]['host']}", round(1e6 * (line["begin_s"] - run["zero_s"]), 1), line["number"])
        for line in lines
        if line["event"] == "bucket"
    )
    found = sorted(
        (processes[event["pid"], 0], round(event["ts"] - zero, 1), event["args"]["number"])
        for event in events
        if event["ph"] == "X" and event["cat"] == "bucket"
    )
    for one, two in zip(found, expected, strict=True):
        assert one[0] == two[0] and one[1] == pytest.approx(two[1], abs=0.2)
    for event in events:
        if event["ph"] == "X":
            assert threads[event["pid"], event["tid"]].split()[2].startswith(event["cat"])


def test_arrows_lead_from_a_message_to_the_reduction_at_its_receiver(experiment):
    folder, results = experiment
    run = next(run for run in results["runs"] if run["candidate"] == "dlcp-loss")
    events = load(write_trace(run, folder, folder / "trace.json"))["traceEvents"]
    threads = names(events, "thread_name")
    slices = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append(event)

    def around(event):
        key = (event["pid"], event["tid"])
        (found,) = [each for each in slices[key] if each["ts"] <= event["ts"] < each["ts"] + each["dur"]]
        return found, int(threads[key].split()[1])

    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    for end in [event for event in events if event["ph"] == "f"][::7]:
        message, _ = around(starts[end["id"]])
        bucket, receiver = around(end)
        assert message["cat"] == "message" and bucket["cat"] == "bucket"
        assert message["args"]["peer"] == receiver and message["args"]["operation"] == bucket["args"]["number"]


def test_counters_are_the_samples_of_the_switch(experiment):
    folder, results = experiment
    run = results["runs"][0]
    document = load(write_trace(run, folder, folder / "trace.json"))
    events, zero = document["traceEvents"], document["otherData"]["first_step_us"]
    processes = names(events, "process_name")
    (trace,) = [trace for trace in run["traces"] if trace["switch"] == "leaf0"]
    samples = [json.loads(line) for line in (folder / trace["file"]).read_text().splitlines()]
    name = "queue to spine0 (port 4), packets"
    changes = {
        round(event["ts"] - zero): event["args"]
        for event in events
        if event["ph"] == "C" and event["name"] == name and processes[event["pid"], 0] == "switch leaf0"
    }
    assert changes
    now = None
    for sample in samples:
        now = changes.get(round(1e6 * trace["start_s"] + sample["t_us"]), now)
        assert list(now.values()) == sample["ports"]["4"]["depth"]


def test_a_long_run_is_cut_at_its_end(experiment):
    folder, results = experiment
    run = next(run for run in results["runs"] if run["candidate"] == "dlcp-loss")
    whole = load(write_trace(run, folder, folder / "trace.json"))["traceEvents"]
    document = load(write_trace(run, folder, folder / "trace.json", limit=1000))
    events = [event for event in document["traceEvents"] if event["ph"] != "M"]
    validate(document["traceEvents"])
    assert 900 < len(events) <= 1000
    assert document["otherData"]["events_left_out"] == sum(event["ph"] != "M" for event in whole) - len(events)


def test_timelines_of_a_real_experiment(tmp_path):
    results = read_results(SAMPLE)
    for number, run in enumerate(results["runs"]):
        told = []
        document = load(write_trace(run, SAMPLE, tmp_path / f"{number}.json", tell=told.append))
        counts = validate(document["traceEvents"])
        assert not told
        assert counts["X"] > 50 and counts["C"] > 10 and counts["i"] == len(run["events"])
        assert (counts["s"] > 0) == (run["candidate"] == "dlcp")


def test_nonsense_in_files_is_left_out(tmp_path):
    _, results = tmp_path, make(tmp_path, candidates=CANDIDATES[4:5], seeds=(1,))
    run = results["runs"][0]
    path = tmp_path / run["ranks"][0]["log"]
    dice = random.Random(3)
    lines = []
    for line in path.read_text().splitlines():
        value = json.loads(line)
        key = dice.choice(list(value))
        value[key] = dice.choice([None, "x", [], {}, -1e300, True, float("nan"), 10**400])
        lines.append(json.dumps(value))
    path.write_text("\n".join(lines))
    validate(load(write_trace(run, tmp_path, tmp_path / "trace.json"))["traceEvents"])


times = st.floats(0, 50)
spans = st.tuples(times, st.floats(0, 5))


@given(
    st.lists(st.tuples(spans, st.integers(0, 2), st.integers(1, 4)), max_size=30),
    st.lists(spans, max_size=12),
    st.integers(0, 200),
)
def test_whatever_overlaps_becomes_a_valid_timeline(messages, buckets, limit):
    timeline = Timeline(10.0)
    for rank in range(3):
        lines = [
            {"event": "bucket", "number": number, "begin_s": begin, "end_s": begin + lasted}
            for number, (begin, lasted) in enumerate(buckets)
        ]
        lines += [
            {"event": "message", "peer": peer, "operation": number, "class": number, "begin_s": begin, "end_s": begin + lasted}
            for (begin, lasted), peer, number in messages
        ]
        lines += [{"event": "step", "step": number, "t": end, "step_s": took} for number, (end, took) in enumerate(buckets)]
        timeline.add_rank(rank, f"h{rank}", lines)
    timeline.add_arrows()
    timeline.add_moment(-3.0, "begin")
    events, left_out = timeline.events(limit)
    counts = validate(events)
    assert sum(counts.values()) - counts["M"] + left_out >= 1 + 3 * (len(messages) + 2 * len(buckets))
