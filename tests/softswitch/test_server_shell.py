"""p4runtime-shell, unchanged, in an environment of its own, against the server."""

import json
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("finsy", reason="needs the extra p4")

from softswitch.server import Code
from softswitch.server.testing import running_switches
from tests.softswitch.server_lab import JSON, P4INFO
from tests.softswitch.shell_environment import shell_python
from tests.softswitch.test_server_streams import ethernet

SESSION = Path(__file__).parent / "shell" / "session.py"


@pytest.fixture(scope="module")
def python():
    return shell_python()


def test_a_session(python):
    with running_switches(2) as (first, second):
        command = [str(python), str(SESSION), first.address, second.address, str(P4INFO), str(JSON)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            line = process.stdout.readline()
            if line.strip() == "ready":
                first.receive(7, ethernet(destination=1))
            out, err = process.communicate("\n", timeout=60)
            assert process.returncode == 0, err[-3000:]
            found = json.loads(out.splitlines()[-1])
            deadline = time.monotonic() + 20
            sent = []
            while not sent and time.monotonic() < deadline:
                sent = first.transmit()
        finally:
            process.kill()
            process.wait()
    assert tuple(map(int, found.pop("version").split("."))) >= (1, 4, 0)
    assert found == {
        "duplicate": [Code.ALREADY_EXISTS],
        "entries": ["04"],
        "missing": [Code.NOT_FOUND],
        "empty": [],
        "default": ["07"],
        "all": ["routes"],
        "const": 2,
        "in use": [Code.FAILED_PRECONDITION],
        "groups": [[1, 5]],
        "one shot": 1,
        "counters": [16, 5],
        "beyond": [Code.OUT_OF_RANGE],
        "meter": [3],
        "direct counter": [0],
        "replicas": [2],
        "packet in": [ethernet(destination=1).hex(), ["07", "05"]],
        "second": [],
    }
    assert sent == [(4, b"\x01\x02")]
