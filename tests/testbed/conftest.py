"""Networks for tests of the testbed: each has its own folder of ledgers, so that tests side by side leave each other alone."""

import os
import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from testbed.lab.capabilities import require  # noqa: E402
from testbed.lab.errors import HostLacks  # noqa: E402
from testbed.lab.ledger import STATE  # noqa: E402
from testbed.lab.processes import MARK  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what needs networks where this host cannot make any; which tests those are says the marker ``root``."""
    own = [item for item in items if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("root")]
    if not own or os.geteuid() != 0:
        return
    try:
        require("bridge")
    except HostLacks as lacks:
        for item in own:
            item.add_marker(pytest.mark.skip(reason=f"no emulated networks: {lacks.missing[0]}"))


@pytest.fixture
def state(tmp_path_factory, monkeypatch):
    """The folder of the ledgers; its path is short, as those of sockets have to be."""
    folder = tmp_path_factory.mktemp("state")
    folder.chmod(0o700)
    monkeypatch.setenv(STATE, str(folder))
    return folder


def marked_processes(runs=None):
    """Pids of the processes that bear the mark of a run, or of one of ``runs``."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
                zombie = (entry / "stat").read_text().rpartition(") ")[2].startswith("Z")
            except OSError:
                continue
            for word in environment:
                if word.startswith(MARK.encode() + b"=") and not zombie:
                    run = word.partition(b"=")[2].decode()
                    if runs is None or run in runs:
                        found[int(entry.name)] = run
    return found


SYSCTLS = [
    *Path("/proc/sys/net/core").glob("*mem*"),
    *Path("/proc/sys/net/ipv4").glob("tcp_*mem"),
    *Path("/proc/sys/net/ipv4/neigh/default").glob("gc_thresh*"),
    *map(Path, ("/proc/sys/net/core/netdev_max_backlog", "/proc/sys/fs/file-max", "/proc/sys/kernel/pty/max")),
]


def sysctls():
    """What Mininet would change by itself."""
    return {str(path): path.read_text() for path in SYSCTLS if path.exists()}


@pytest.fixture
def nothing_left(state):
    """Checks afterwards that nothing of any network is left: processes, namespaces, ledgers, kernel parameters."""
    before = sysctls()
    links = sorted(path.name for path in Path("/sys/class/net").iterdir() if path.name.startswith(("eth", "w", "br0")))
    runs = []

    def note(lab):
        runs.append(lab.ledger.run)

    yield note
    assert not marked_processes(set(runs)), "processes are left"
    assert sorted(path.name for path in state.iterdir()) in ([], ["lock"])
    assert sysctls() == before
    assert links == sorted(path.name for path in Path("/sys/class/net").iterdir() if path.name.startswith(("eth", "w", "br0")))
