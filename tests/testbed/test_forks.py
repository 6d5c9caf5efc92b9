"""The fork server: what children get, what is heard of them, and that none outlives it."""

import json
import os
import select
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.lab.forks import PACKET, ROOT, last_line, spawn, with_packages
from testbed.lab.processes import Process

PATHS = st.lists(st.sampled_from([str(ROOT), "/a", "/b c", "x"]), max_size=4).map(os.pathsep.join)


class Server:
    def __init__(self, folder):
        self.folder = folder
        self.process, self.channel = spawn("tests.testbed.fork_work", os.environ, folder / "server.log")
        assert self.hear() == {"ready": True}

    def ask(self, name, do="print", **more):
        request = {"name": name, "log": str(self.folder / f"{name}.log"), "namespaces": None, "do": do, **more}
        self.channel.send(json.dumps(request).encode())
        heard = self.hear()
        assert heard["started"] == name
        return heard["pid"]

    def hear(self):
        assert select.select([self.channel], [], [], 60)[0], "it says nothing"
        packet = self.channel.recv(PACKET)
        assert packet, last_line(self.folder / "server.log")
        return json.loads(packet)

    def log(self, name):
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def close(self):
        self.channel.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def server(tmp_path):
    made = Server(tmp_path)
    yield made
    made.close()


def gone(pid):
    deadline = time.monotonic() + 20
    while Process.of(pid) is not None:
        assert time.monotonic() < deadline, f"{pid} is still there"
        time.sleep(0.005)
    return True


@pytest.mark.parametrize(
    ("do", "code", "said"),
    [("print", 0, "Ctrl-C is default_int_handler"), ("print", 7, "hello"), ("leave", 3, "hello"), ("fail", 1, "as asked for")],
)
def test_a_child_works_and_its_end_is_told(server, do, code, said):
    pid = server.ask("one", do, code=code)
    assert server.hear() == {"ended": "one", "pid": pid, "code": code}
    assert f"hello from one {pid}\nstandard input holds ''\n" in server.log("one") and said in server.log("one")
    if do == "fail":
        assert last_line(server.folder / "one.log") == "ValueError: as asked for"


def test_children_are_told_apart(server):
    pids = {name: server.ask(name, "sleep") for name in (0, 1, "two")}
    assert len(set(pids.values())) == 3
    # It is named before it begins to work.
    end = time.monotonic() + 20
    while "hello" not in server.log(1):
        assert time.monotonic() < end, "the child says nothing"
        time.sleep(0.01)
    assert Path(f"/proc/{pids[1]}/comm").read_text() == "work-1\n"
    os.kill(pids[1], signal.SIGKILL)
    assert server.hear() == {"ended": 1, "pid": pids[1], "code": -signal.SIGKILL}
    assert server.ask(1, "print", code=0) != pids[1], "a name may be used again"
    assert server.hear()["ended"] == 1 and server.log(1).count("hello") == 2


@pytest.mark.parametrize("how", ["close", "kill"])
def test_no_child_outlives_it(server, how):
    pids = [server.ask(name, "sleep") for name in range(3)]
    if how == "close":
        server.channel.close()
        assert server.process.wait(20) == 0
    else:
        server.process.kill()
    assert all(gone(pid) for pid in pids)


def test_what_it_said_last(tmp_path):
    assert last_line(tmp_path / "none") == "it said nothing"
    (tmp_path / "log").write_bytes(b"first\nlast \xff\n\n")
    assert last_line(tmp_path / "log") == "last �"


@given(PATHS, st.dictionaries(st.sampled_from(["A", "B"]), st.text("xyz")))
def test_children_find_the_packages_first(path, others):
    made = with_packages({**others, "PYTHONPATH": path})
    assert made["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
    assert {key: value for key, value in made.items() if key != "PYTHONPATH"} == others
    assert with_packages(made) == made
    assert set(filter(None, path.split(os.pathsep))) <= set(made["PYTHONPATH"].split(os.pathsep))
