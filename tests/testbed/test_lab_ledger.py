"""Ledgers: what is in them is ended and put back after a crash, and nothing else."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.lab import ledger as module
from testbed.lab.errors import LabError
from testbed.lab.ledger import Ledger, clean_up, folder, live_runs
from testbed.lab.processes import MARK, Process, boot, end, marked, wait

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(1000)"]
STUBBORN = [*SLEEP[:2], "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP[2]]


@pytest.fixture
def start():
    """Starts processes that have a run's mark, and ends them."""
    started = []

    def begin(command=SLEEP, run=""):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, MARK: run} if run else None)
        started.append(process)
        assert process.stdout.readline() == b"up\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def parameters(tmp_path, monkeypatch):
    """A file that stands for a kernel parameter."""
    monkeypatch.setattr(module, "_SYSCTL", tmp_path)
    (tmp_path / "net").mkdir()
    file = tmp_path / "net" / "some"
    file.write_text("10\t20\n")
    return file


def abandoned(state, run="1-abc", records=(), boot_id=None):
    """A ledger whose driver is gone."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    driver = {"kind": "driver", "pid": dead.pid, "started": 1, "boot": boot_id or boot(), "run_dir": "/somewhere"}
    (state / f"{run}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in (driver, *records)))
    (state / run).mkdir()
    return run


def test_a_run_that_ends_well_leaves_nothing(state, start, parameters):
    ledger = Ledger.open(state / "run")
    gentle, stubborn = start(), start(STUBBORN)
    ledger.add(gentle.pid, "a process")
    ledger.add(stubborn.pid, "another")
    forgotten = start(run=ledger.run)
    ledger.set_sysctl("net.some", "30 40")
    assert parameters.read_text() == "30 40"
    assert live_runs() == [ledger.run] and not clean_up(), "its driver is at work"
    assert {process.pid for process in ledger.running()} == {gentle.pid, stubborn.pid}
    killed = ledger.close()
    assert [process.pid for process in killed] == [stubborn.pid]
    assert (gentle.wait(5), stubborn.wait(5), forgotten.wait(5)) == (-signal.SIGTERM, -signal.SIGKILL, -signal.SIGTERM)
    assert parameters.read_text() == "10 20"
    assert list(state.iterdir()) == [state / "lock"]
    assert ledger.close() == []


def test_what_a_crashed_run_left_is_taken_away_and_nothing_else(state, start, parameters):
    noted, reused, stranger = start(STUBBORN), start(), start()
    process = Process.of(noted.pid)
    records = [
        {"kind": "process", "pid": noted.pid, "started": process.started, "what": "noted"},
        {"kind": "process", "pid": reused.pid, "started": 7, "what": "had this number before"},
        {"kind": "sysctl", "name": "net.some", "former": "1 2", "value": "10 20"},
    ]
    run = abandoned(state, records=records)
    unnoted = start(STUBBORN, run=run)
    other = Ledger.open(state / "other")
    theirs = start(run=other.run)
    (remains,) = clean_up()
    assert (remains.run, remains.run_dir, remains.processes, remains.sysctls) == (run, "/somewhere", 2, ("net.some",))
    assert noted.wait(5) == unnoted.wait(5) == -signal.SIGKILL
    assert parameters.read_text() == "1 2"
    assert reused.poll() is None and stranger.poll() is None and theirs.poll() is None
    assert not (state / f"{run}.jsonl").exists() and not (state / run).exists()
    assert other.file.exists() and not clean_up()
    other.close()


def test_a_parameter_that_somebody_has_set_since_stays(state, parameters):
    abandoned(state, records=[{"kind": "sysctl", "name": "net.some", "former": "1 2", "value": "3 4"}])
    assert clean_up()[0].sysctls == ()
    assert parameters.read_text() == "10\t20\n"


def test_after_a_restart_of_the_machine_numbers_mean_nothing(state, start):
    process = start()
    records = [{"kind": "process", "pid": process.pid, "started": Process.of(process.pid).started, "what": ""}]
    run = abandoned(state, records=records, boot_id="another")
    assert clean_up() == []
    assert process.poll() is None and not (state / f"{run}.jsonl").exists()


@given(cut=st.integers(0, 400), noise=st.binary(max_size=20))
def test_a_ledger_that_is_cut_or_damaged_does_no_harm(cut, noise, tmp_path_factory):
    file = tmp_path_factory.mktemp("ledger") / "1.jsonl"
    records = [{"kind": "driver", "pid": 1, "started": 1, "boot": "x"}, {"kind": "process", "pid": 2, "started": 3, "what": "é"}]
    text = "".join(json.dumps(record) + "\n" for record in records).encode()
    file.write_bytes(text[:cut] + noise)
    found = module._read(file)
    # What was written before the cut is still there, and nothing is there that nobody wrote.
    assert found == records[: len(found)]
    if cut >= len(text) and not noise:
        assert found == records


def test_a_ledger_without_a_driver_is_dropped_unless_it_is_being_written(state):
    (state / f"{os.getpid()}-new.jsonl").write_text("")
    (state / "999999999-old.jsonl").write_text("not json\n")
    assert [remains.run for remains in clean_up()] == ["999999999-old"]
    assert (state / f"{os.getpid()}-new.jsonl").exists()


def test_a_folder_that_others_can_write_is_refused(state):
    state.chmod(0o777)
    with pytest.raises(LabError, match="only this user can write"):
        folder()


def test_processes_are_known_by_their_start(start):
    process = start()
    found = Process.of(process.pid)
    assert found.alive and not Process(found.pid, found.started + 1).alive
    Process(found.pid, found.started + 1).signal(signal.SIGKILL)
    assert wait([found], 0.05) == [found]
    begin = time.monotonic()
    assert end([found], patience_s=30) == []
    assert time.monotonic() - begin < 20, "it does not wait longer than it has to"
    assert not found.alive, "what is left until somebody asks for its exit code is no process"
    process.wait()
    assert Process.of(process.pid) is None


def test_marks_are_found(start):
    run = f"test-{os.getpid()}"
    process, other = start(run=run), start(run=f"{run}0")
    assert [each.pid for each in marked(run)] == [process.pid]
    assert other.poll() is None
