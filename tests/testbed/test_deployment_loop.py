"""Deployments share one event loop, whatever threads ask for them, and end when whoever asked is interrupted."""

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from testbed.lab.signals import Ended, unwinding
from testbed.switches.deploy import _run

ROOT = Path(__file__).resolve().parents[2]


async def loop():
    return asyncio.get_running_loop()


def test_all_threads_share_one_loop():
    found = [_run(loop())]
    threads = [threading.Thread(target=lambda: found.append(_run(loop()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 5 and len(set(map(id, found))) == 1 and not found[0].is_closed()


def test_errors_arrive_as_the_first_of_their_group():
    async def fail():
        raise ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError("the first")]), KeyError("the second")])

    with pytest.raises(ValueError, match="the first"):
        _run(fail())


def test_a_signal_cancels_what_is_under_way():
    cancelled = threading.Event()

    async def wait():
        signal.raise_signal(signal.SIGTERM)
        try:
            await asyncio.sleep(600)
        finally:
            cancelled.set()

    with unwinding(), pytest.raises(Ended):
        _run(wait())
    assert cancelled.wait(20)
    assert _run(loop()).is_running()


def test_a_process_that_used_it_ends_in_silence():
    code = "import asyncio; from testbed.switches.deploy import _run; _run(asyncio.sleep(0))"
    words = [sys.executable, "-X", "dev", "-c", code]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
