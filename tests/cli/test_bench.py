"""The benchmark: its arithmetic, the processes it runs, and what it prints."""

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcp.bench.allreduce import Measured, Outcome, Settings
from dlcp.bench.candidates import stream_bytes
from dlcp.bench.crew import _raise
from dlcp.bench.data import Data, Residuals
from dlcp.bench.meters import CpuMeter, MemoryLedger
from dlcp.bench.numbers import balanced_orders, difference, ratio_interval, summarize, total, turns
from dlcp.bench.report import document
from dlcp.cli import main as cli
from dlcp.cli.bench import size
from dlcp.collectives.operation import Reduction
from dlcp.errors import ConfigError, RemoteError
from dlcp.policy import Policy

ROOT = Path(__file__).resolve().parents[2]
times = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=50)


# -- order of turns, and arithmetic


@given(st.integers(1, 9))
def test_every_candidate_stands_everywhere_and_follows_every_other_equally_often(count):
    orders = balanced_orders(count)
    assert all(sorted(order) == list(range(count)) for order in orders)
    for place in range(count):
        standing = [order[place] for order in orders]
        assert {standing.count(candidate) for candidate in range(count)} == {len(orders) // count}
    follows = [pair for order in orders for pair in itertools.pairwise(order)]
    wanted = {(first, then) for first in range(count) for then in range(count) if first != then}
    assert set(follows) == wanted
    assert len({follows.count(pair) for pair in wanted}) <= 1


def test_two_candidates_alternate():
    assert list(turns(("dlcp", "gloo"), 3)) == [(0, ("dlcp", "gloo")), (1, ("gloo", "dlcp")), (2, ("dlcp", "gloo"))]


@given(times)
def test_percentiles_are_numpys(values):
    found = summarize(values)
    assert found.p50_s == pytest.approx(np.percentile(values, 50))
    assert found.p99_s == pytest.approx(np.percentile(values, 99))
    assert (found.min_s, found.max_s) == (min(values), max(values))
    assert found.min_s <= found.p50_s <= found.p99_s <= found.max_s


def test_percentiles_by_hand():
    found = summarize([4.0, 1.0, 3.0, 2.0])
    assert (found.p50_s, found.mean_s) == (2.5, 2.5)
    assert found.p99_s == pytest.approx(3.97)  # 99 % of the way from the first to the last of four: 2.97 steps
    with pytest.raises(ValueError, match="no times"):
        summarize([])


@given(times, st.floats(0.1, 10))
def test_a_constant_ratio_has_an_interval_of_no_width(values, factor):
    low, high = ratio_interval([factor * value for value in values], values)
    assert low == pytest.approx(factor)
    assert high == pytest.approx(factor)


def test_the_interval_holds_the_ratio_and_shrinks_with_more_iterations():
    rng = np.random.default_rng(1)
    widths = []
    for count in (10, 1000):
        reference = rng.uniform(1, 2, count).tolist()
        low, high = ratio_interval((1.5 * rng.uniform(1, 2, count)).tolist(), reference)
        assert low < 1.5 < high
        widths.append(high - low)
    assert widths[1] < widths[0] / 3
    with pytest.raises(ValueError, match="cannot be paired"):
        ratio_interval([1.0], [1.0, 2.0])


counters = st.fixed_dictionaries(
    {},
    optional={
        "a": st.integers(0, 99),
        "b": st.lists(st.integers(0, 9), min_size=2, max_size=2),
        "c": st.fixed_dictionaries({"d": st.integers(0, 9)}),
    },
)


@given(st.lists(st.tuples(counters, counters), min_size=1, max_size=4))
def test_counters_add_up_and_subtract(pairs):
    later = [total([before, more]) for before, more in pairs]
    more = total([difference(after, before) for after, (before, _) in zip(later, pairs, strict=True)])
    wanted = total([more for _, more in pairs])
    # A counter that did not move is there, as zero.
    assert {key: value for key, value in more.items() if key in wanted} == wanted
    assert not np.any(
        [np.sum(list(value.values()) if isinstance(value, dict) else value) for key, value in more.items() if key not in wanted]
    )


def test_least_traffic_of_an_allreduce():
    assert stream_bytes(1000, 2) == 1000
    assert stream_bytes(1000, 4) == 1500
    assert stream_bytes(10, 3) == 14


# -- contributions, and the check of every element


@pytest.fixture(params=["float32", "float16", "bfloat16"])
def data(request):
    return Data(1001, 3, request.param, seed=5)


def contributions(data, iteration):
    made = np.empty((data.ranks, data.elements), np.float32)
    for rank in range(data.ranks):
        data.contribute(rank, iteration, made[rank])
    return made


@pytest.mark.parametrize("iteration", [0, 1, 400])
def test_an_exact_sum_has_no_error_and_any_other_has(data, iteration):
    made = contributions(data, iteration)
    assert (made % data.ranks == 0).all()
    exact = made.sum(axis=0)
    assert data.error(iteration, exact, None) == 0
    assert data.error(iteration + 1, exact, None) > 0
    for wrong in (made.sum(axis=0) + made[0], made[1:].sum(axis=0)):
        assert data.error(iteration, wrong, None) > 0
    for position in (0, 500, 1000):
        spoilt = exact.copy()
        spoilt[position] += 3
        assert data.error(iteration, spoilt, None) == 3
        spoilt[position] = np.nan
        assert data.error(iteration, spoilt, None) == float("inf")


def test_values_and_sums_are_exact_on_the_wire():
    for dtype, limit in (("float32", 1 << 24), ("float16", 1 << 11), ("bfloat16", 1 << 8)):
        data = Data(500, 4, dtype, seed=0)
        assert 0 < data.total.max() <= limit
        assert np.unique(data.pattern).size > 8


def test_what_was_lost_makes_up_for_what_is_missing():
    data = Data(1001, 3, "float32", seed=5)
    residuals = Residuals(data.elements)
    made = contributions(data, 7)
    delivered = made.sum(axis=0)
    lost = [np.array([[10, 20], [1000, 1001]]), np.array([[15, 30]]), np.zeros((0, 2), np.int64)]
    reductions = []
    for rank, ranges in enumerate(lost):
        values = np.concatenate([made[rank, start:stop] for start, stop in ranges] or [np.zeros(0, np.float32)])
        for start, stop in ranges:
            delivered[start:stop] -= made[rank, start:stop]
        reductions.append(Reduction(delivered, ranges, values))
    assert data.error(7, delivered, residuals.values) > 0
    for reduction in reductions:
        residuals.add(reduction)
    assert data.error(7, delivered, residuals.values) == 0
    for reduction in reductions:
        residuals.clear(reduction)
    assert not residuals.values.any()


# -- meters


def test_memory_is_charged_to_whoever_took_it():
    ledger, other = MemoryLedger(), MemoryLedger()
    megabyte = 1 << 20
    ledger.enter()
    kept = np.ones(32 * megabyte, np.uint8)
    passing = np.ones(64 * megabyte, np.uint8)
    del passing
    ledger.leave()
    other.enter()
    other.leave()
    assert 30 * megabyte < ledger.held < 40 * megabyte
    assert other.held < megabyte
    if ledger.peak is not None:
        assert 94 * megabyte < ledger.peak < 104 * megabyte
        assert other.peak < megabyte
    ledger.enter()
    del kept
    ledger.leave()
    assert ledger.held < 8 * megabyte


def test_cpu_time_of_other_threads_counts_and_sleep_does_not():
    def burn():
        while time.thread_time() < 0.03:
            pass

    meter = CpuMeter()
    meter.start()
    thread = threading.Thread(target=burn)
    thread.start()
    thread.join()
    assert meter.stop() >= 0.03


# -- ranks

CREW = """
import json, os, signal, sys, time
from dlcp.bench.crew import Crew
from dlcp.errors import ConfigError, DLCPError, PeerLostError

class Worker:
    def __init__(self, rank):
        self.rank = rank
    def answer(self, question):
        do = question["do"] if self.rank == question.get("rank", self.rank) else "nothing"
        if do == "config":
            raise ConfigError("file.toml", "loss.push", "2", "less")
        if do == "lost":
            raise PeerLostError(0, "waiting", 1.0)
        if do == "bug":
            raise KeyError("x")
        if do == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if do == "hang":
            time.sleep(600)
        print("a rank's own words")
        return {"rank": self.rank, "pid": os.getpid(), "twice": 2 * question.get("n", 0)}

with Crew(3, Worker) as crew:
    print(json.dumps(crew.pids), flush=True)
    if sys.argv[1] == "answers":
        found = crew.ask(5, do="double", n=21)
        assert [a["rank"] for a in found] == [0, 1, 2] and [a["pid"] for a in found] == crew.pids
        print(json.dumps([a["twice"] for a in found]), flush=True)
    elif sys.argv[1] == "wait":
        crew.ask(600, do="hang")
    else:
        try:
            crew.ask(float(sys.argv[2]), do=sys.argv[1], rank=1)
        except Exception as error:
            print(json.dumps([type(error).__name__, str(error)]), flush=True)
"""


def crew(*words):
    done = subprocess.run([sys.executable, "-c", CREW, *words], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    pids, *found = [json.loads(line) for line in done.stdout.splitlines()]
    assert not any(alive(pid) for pid in pids)
    return found, done.stderr


def alive(pid):
    """Whether a process runs; one that is dead but not yet reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_ranks_answer_in_order_and_leave_stdout_alone():
    found, err = crew("answers")
    assert found == [[42, 42, 42]]
    assert err.count("a rank's own words") == 3


@pytest.mark.parametrize(
    ("do", "timeout", "kind", "text"),
    [
        ("config", "20", "ConfigError", "file.toml: loss.push: 2; accepted: less"),
        ("lost", "20", "RemoteError", "rank 1 failed: PeerLostError: rank 0 has been silent"),
        ("bug", "20", "RuntimeError", "rank 1: KeyError: 'x'"),
        ("die", "20", "RemoteError", "rank 1 failed: the process ended with exit code -9"),
        ("hang", "0.3", "OperationTimeoutError", "ranks 1 have not finished hang within 0.3 s"),
    ],
)
def test_a_rank_that_fails_fails_the_run_and_all_ranks_end(do, timeout, kind, text):
    ((name, message),), _ = crew(do, timeout)
    assert name == kind
    assert text in message


def test_of_several_failures_the_cause_is_told():
    lost = {"error": "PeerLostError", "message": "rank 2 has been silent"}
    with pytest.raises(RuntimeError, match="rank 2: ValueError: bad"):
        _raise({0: lost, 1: lost, 2: {"error": "ValueError", "message": "bad"}})
    with pytest.raises(RemoteError, match="rank 2 failed: the process"):
        _raise({0: lost, 1: lost, 2: {"error": "Died", "message": "the process ended"}})


def test_ranks_die_with_their_parent():
    parent = subprocess.Popen([sys.executable, "-c", CREW, "wait"], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        pids = json.loads(parent.stdout.readline())
        assert all(map(alive, pids))
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    until(lambda: not any(map(alive, pids)))


# -- the command


def bench(*words, **more):
    return subprocess.run(
        [sys.executable, "-m", "dlcp", "bench", "allreduce", *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=ROOT,
        **more,
    )


@pytest.mark.parametrize(
    ("text", "value"), [("25e6", 25_000_000), ("25MB", 25_000_000), ("4 MiB", 4 << 20), ("1.5kb", 1500), ("64", 64)]
)
def test_sizes(text, value):
    assert size(text) == value


@pytest.mark.parametrize("text", ["", "x", "-1", "3", "1e20", "1.2.3", "10 parsecs", "e6", "nan"])
def test_what_is_no_size(text):
    with pytest.raises(argparse.ArgumentTypeError, match="25e6"):
        size(text)


@pytest.mark.parametrize(
    "words",
    [
        ["--ranks", "1"],
        ["--ranks", "four"],
        ["--bytes", "much"],
        ["--loss", "1"],
        ["--loss", "-0.1"],
        ["--loss", "0.1", "--faults", "drop=0.1"],
        ["--iters", "0"],
        ["--mtu", "100"],
        ["--link-gbps", "0"],
        ["--timeout", "inf"],
        ["--baseline", "nccl"],
        ["--algorithm", "tree"],
    ],
)
def test_wrong_arguments_are_usage(words, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", "allreduce", *words])
    assert caught.value.code == 2
    assert words[-2].lstrip("-") in capsys.readouterr().err.replace("_", "-")


def test_help_says_how_it_is_measured(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", "allreduce", "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for word in (
        "slowest rank",
        "never sees the injected faults",
        "ideal_s",
        "mass_error",
        "cpu_s_per_gb",
        "exit codes",
        "--loss 0.01",
    ):
        assert word in text


def test_with_loss(tmp_path):
    done = bench("--ranks", "2", "--bytes", "400e3", "--iters", "6", "--warmup", "1", "--loss", "0.05", "--mtu", "1500", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)  # one document, nothing else
    assert "measuring" in done.stderr

    for name in ("dlcp", "dlcp_lossless", "gloo", "stream"):
        figures = report[name]
        assert len(figures["times_s"]) == 6
        assert figures["p50_s"] == pytest.approx(np.percentile(figures["times_s"], 50))
        assert figures["p99_s"] == pytest.approx(np.percentile(figures["times_s"], 99))
        assert figures["cpu_s_per_gb"] > 0
        assert figures["held_bytes"] < 100e6
        assert figures["peak_bytes"] is None or figures["held_bytes"] <= figures["peak_bytes"] < 100e6
    assert report["memory"]["growth_bytes"] < 20e6
    assert report["ratio_p50"] == pytest.approx(report["dlcp"]["p50_s"] / report["gloo"]["p50_s"])
    assert report["ratio_lossless_p99"] == pytest.approx(report["dlcp"]["p99_s"] / report["dlcp_lossless"]["p99_s"])
    assert report["ratio_cpu"] == pytest.approx(report["dlcp"]["cpu_s_per_gb"] / report["gloo"]["cpu_s_per_gb"])
    low, high = report["ratio_p50_interval"]
    assert low <= report["ratio_p50"] <= high
    assert report["ideal_s"] == report["stream"]["p50_s"]
    assert report["ideal"]["bytes_per_rank"] == 400_000

    assert report["mass_error"] == report["dlcp_lossless"]["error"] == report["gloo"]["error"] == 0
    packets = report["packets"]
    # Each rank pushes and pulls half of the array in packets of 1424 bytes, six times.
    assert packets["sent"] == 2 * 6 * 281
    assert packets["sent"] == packets["delivered"] + packets["lost"]
    assert packets["dropped_injected"] > 0
    assert packets["lost"] + packets["retransmitted"] > 0
    by_class = report["packets_by_class"]
    assert sum(row["sent"] for row in by_class) == packets["sent"]
    assert sum(row["lost"] for row in by_class) == packets["lost"]
    assert sum(row["dropped_injected"] for row in by_class) == packets["dropped_injected"]
    assert all(row["sent"] > 0 for row in by_class[:7])

    assert report["arguments"]["loss"] == 0.05
    assert report["policy"]["changed"] == ["wire.mtu"]
    assert report["packet_payload_bytes"] == 1424
    assert {"cpus", "kernel", "cpu", "torch", "dlcp", "load_before"} <= report["machine"].keys()


def test_without_loss_and_with_a_link_to_compare_with(tmp_path):
    policy = tmp_path / "job.toml"
    policy.write_text('[wire]\ndtype = "float16"\n')
    words = ["--ranks", "3", "--bytes", "90kB", "--iters", "2", "--warmup", "0", "--algorithm", "ring", "--link-gbps", "1"]
    done = bench(*words, "--policy", str(policy))
    assert done.returncode == 0, done.stderr
    # 2 (N - 1) / N of 90 kB at 1 Gbit/s
    assert "ideal 1.0 ms (computed" in done.stdout
    for word in ("dlcp takes", "mass error 0", "gloo", "delivered"):
        assert word in done.stdout
    assert "plain TCP" not in done.stdout
    assert "faults" not in done.stdout


def test_dedicated_servers_are_counted_too():
    words = ["--ranks", "2", "--bytes", "200kB", "--iters", "2", "--warmup", "1", "--baseline", "none", "--mtu", "1500"]
    done = bench(*words, "--algorithm", "ps", "--servers", "2", "--loss", "0.05", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["mass_error"], report["dlcp_lossless"]["error"]) == (0, 0)
    packets = report["packets"]
    # Two workers push, two servers answer both, three times.
    assert packets["sent"] == 2 * 2 * 3 * 141
    assert packets["sent"] == packets["delivered"] + packets["lost"]
    assert packets["dropped_injected"] > 0
    assert bench("--servers", "2").returncode == 2


def test_what_is_forgotten_is_an_error_of_mass(tmp_path):
    policy = tmp_path / "job.toml"
    policy.write_text('[loss]\npush = 0.5\ncompensation = "zero"\n[protection]\nshare = 0.0\n')
    words = ["--ranks", "2", "--bytes", "200kB", "--iters", "2", "--warmup", "0", "--baseline", "none", "--link-gbps", "1"]
    done = bench(*words, "--policy", str(policy), "--faults", "drop=0.3,type=data", "--json", "--untagged", "--mtu", "1500")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["packets"]["lost"] > 0
    assert report["mass_error"] > 0
    assert report["dlcp_lossless"]["error"] == 0
    assert report["ratio_p50"] is None and "gloo" not in report
    assert [row["class"] for row in report["packets_by_class"] if row["sent"]] == [3]


def test_a_policy_that_does_not_fit_is_told_by_the_ranks(tmp_path):
    policy = tmp_path / "job.toml"
    policy.write_text('[loss]\ncompensation = "rescale"\n')
    done = bench("--ranks", "2", "--algorithm", "ring", "--policy", str(policy), "--bytes", "1kB", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "policy.loss.compensation" in done.stderr
    policy.write_text("[loss]\npush = 2\n")
    done = bench("--policy", str(policy))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{policy}: loss.push" in done.stderr


def test_a_turn_that_takes_too_long_is_a_failure_of_transport():
    done = bench("--ranks", "2", "--bytes", "1MB", "--faults", "delay_ms=200", "--timeout", "0.05", "--baseline", "none")
    assert done.returncode == 4, done.stderr
    assert "have not finished" in done.stderr


def test_ctrl_c_ends_everything():
    words = [
        sys.executable,
        "-m",
        "dlcp",
        "bench",
        "allreduce",
        "--ranks",
        "2",
        "--bytes",
        "40kB",
        "--iters",
        "1000000",
        "--json",
    ]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True)
    try:
        while "measuring" not in (line := process.stderr.readline()):
            assert line, "ended before it measured"
        ranks = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        assert len(ranks) == 2
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to all of them
        out, err = process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert (process.returncode, out, err) == (130, "", "")
    assert not any(map(alive, ranks))


def test_ratios_of_what_was_not_measured_are_none():
    settings = Settings(
        ranks=2,
        elements=10,
        iterations=1,
        warmup=0,
        candidates=("dlcp", "stream"),
        policy=Policy(),
        algorithm="sharded",
        servers=0,
        faults=None,
        tagged=True,
        seed=0,
        timeout_s=1.0,
    )
    results = {"dlcp": Measured(times=[2.0], cpu_s=4.0, counters=[{}]), "stream": Measured(times=[1.0])}
    report = document(settings, Outcome(results, None, 0), None)
    assert report["ratio_p50"] is None
    assert report["ratio_lossless_p50"] is None
    assert report["ratio_ideal_p50"] == 2.0
    assert report["dlcp"]["cpu_s_per_gb"] == 4.0 / 40e-9
    json.dumps(report, allow_nan=False)


def test_errors_keep_their_fields():
    with pytest.raises(ConfigError) as caught:
        _raise({1: {"error": "ConfigError", "message": "", "config": ["a.toml", "b", "c", "d"]}})
    assert (caught.value.source, caught.value.key) == ("a.toml", "b")
