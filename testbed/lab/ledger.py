"""The ledger of a run: what it started and changed, written down before anything else can happen, so that nothing is forgotten.

A ledger is a file in a folder of its own (:func:`folder`), one JSON object a line.  Who builds a network first goes through the
ledgers of others: where the driver is no longer there, what it left is ended, put back and deleted, and nothing else is touched.
Namespaces and virtual links need no entry: they are gone when the last process in them is.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from testbed.lab.errors import LabError
from testbed.lab.privileges import outer_uid
from testbed.lab.processes import Process, boot, end, marked, wait

STATE: Final = "DLCP_TESTBED_STATE"
"""Environment variable with the folder of the ledgers, in place of the usual one."""
_SYSCTL: Final = Path("/proc/sys")
_FIELDS: Final[dict[str, dict[str, type]]] = {
    "driver": {"pid": int, "started": int, "boot": str},
    "process": {"pid": int, "started": int},
    "sysctl": {"name": str, "former": str, "value": str},
}


def folder() -> Path:
    """Returns the folder of the ledgers; it is the same for all runs of a user.

    Raises:
        LabError: It cannot be made, or is someone else's.
    """
    given, runtime = os.environ.get(STATE), os.environ.get("XDG_RUNTIME_DIR")
    if given:
        place = Path(given)
    elif os.geteuid() == 0 and os.access("/run", os.W_OK):
        place = Path("/run/dlcp-testbed")
    elif runtime and os.access(runtime, os.W_OK):
        place = Path(runtime) / "dlcp-testbed"
    else:
        place = Path(f"/tmp/dlcp-testbed-{outer_uid()}")
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = place.lstat()
    except OSError as error:
        raise LabError(f"the folder of the ledgers: {error}; name another one with {STATE}") from error
    # What stands in a ledger is ended by its number, so nobody else may write one.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise LabError(f"{place} is not a folder that only this user can write; name another one with {STATE}")
    return place


@dataclass
class Ledger:
    """What one run started and changed.

    Attributes:
        run: The run's name; it stands in the environment of its processes.
        file: The ledger.
        scratch: A folder for sockets, which is deleted with it; its path is short, as those of sockets have to be.
    """

    run: str
    file: Path
    scratch: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _processes: dict[int, Process] = field(default_factory=dict)
    _sysctls: dict[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, run_dir: Path) -> Ledger:
        """Begins a ledger for this process."""
        place = folder()
        run = f"{os.getpid()}-{secrets.token_hex(4)}"
        ledger = cls(run, place / f"{run}.jsonl", place / run)
        driver = Process.of(os.getpid())
        assert driver is not None
        ledger.scratch.mkdir(mode=0o700)
        ledger._write({"kind": "driver", "pid": driver.pid, "started": driver.started, "boot": boot(), "run_dir": str(run_dir)})
        return ledger

    def add(self, pid: int, what: str) -> None:
        """Notes a process that was started."""
        process = Process.of(pid)
        if process is None:
            return  # it is over already
        with self._lock:
            self._processes[pid] = process
        self._write({"kind": "process", "pid": pid, "started": process.started, "what": what})

    def set_sysctl(self, name: str, value: str) -> None:
        """Changes a kernel parameter until the end of the run, such as ``net.core.netdev_max_backlog``.

        Raises:
            LabError: It cannot be changed.
        """
        path = _path(name)
        try:
            former = " ".join(path.read_text().split())
            if former == value:
                return
            with self._lock:
                first = name not in self._sysctls
                self._sysctls.setdefault(name, former)
            if first:
                self._write({"kind": "sysctl", "name": name, "former": former, "value": value})
            path.write_text(value)
        except OSError as error:
            raise LabError(f"{name}: {error.strerror}") from error

    def running(self) -> list[Process]:
        """Returns the processes noted that have not ended."""
        with self._lock:
            return [process for process in self._processes.values() if process.alive]

    def close(self) -> list[Process]:
        """Ends all processes of the run, puts back what was changed, and deletes the ledger; returns those that had to be killed.

        May be repeated.
        """
        # Who was started by those that were noted may have a session of its own, but bears the mark.
        killed = end({*self.running(), *marked(self.run)}, patience_s=0.5)
        with self._lock:
            self._processes.clear()
            _restore(self._sysctls)
            self._sysctls.clear()
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.file.unlink(missing_ok=True)
        return killed

    def _write(self, record: dict[str, Any]) -> None:
        line = json.dumps(record) + "\n"
        with self._lock, self.file.open("a") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(line)


@dataclass(frozen=True)
class Remains:
    """What a run left that did not end by itself.

    Attributes:
        run: Its name.
        run_dir: Where its results are.
        processes: How many processes were ended.
        sysctls: Kernel parameters that were put back.
    """

    run: str
    run_dir: str
    processes: int
    sysctls: tuple[str, ...]


def clean_up() -> list[Remains]:
    """Takes away what runs left whose drivers are gone, and nothing else."""
    place = folder()
    found: list[Remains] = []
    with _locked(place / "lock"):
        for file in sorted(place.glob("*.jsonl")):
            records = _read(file)
            driver = records[0] if records and records[0].get("kind") == "driver" else None
            if driver is None:
                owner = file.stem.partition("-")[0]
                if owner.isdigit() and Process.of(int(owner)) is not None:
                    continue  # it is being written
                found.append(Remains(file.stem, "", 0, ()))
            elif driver["boot"] == boot():
                if Process(driver["pid"], driver["started"]).alive:
                    continue
                found.append(_end_of(file.stem, driver, records[1:]))
            shutil.rmtree(place / file.stem, ignore_errors=True)
            file.unlink(missing_ok=True)
    return found


def live_runs() -> list[str]:
    """Returns the runs whose drivers are at work."""
    runs = []
    for file in sorted(folder().glob("*.jsonl")):
        records = _read(file)
        if records and records[0].get("kind") == "driver" and records[0]["boot"] == boot():
            if Process(records[0]["pid"], records[0]["started"]).alive:
                runs.append(file.stem)
    return runs


def _end_of(run: str, driver: dict[str, Any], records: list[dict[str, Any]]) -> Remains:
    noted = (Process(record["pid"], record["started"]) for record in records if record["kind"] == "process")
    alive = {process for process in (*noted, *marked(run)) if process.alive}
    count = len(alive)
    # A process may be forked while others are killed: until there are none.
    while alive:
        for process in alive:
            process.signal(signal.SIGKILL)
        if wait(alive, 5.0):
            raise LabError(f"processes of the run {run} cannot be ended: {', '.join(str(each.pid) for each in alive)}")
        alive = set(marked(run))
        count += len(alive)
    changed = {record["name"]: record for record in records if record["kind"] == "sysctl"}
    # Whoever set it to something else since then meant it.
    former = {name: record["former"] for name, record in changed.items() if _value(name) == record["value"]}
    _restore(former)
    return Remains(run, driver.get("run_dir", ""), count, tuple(sorted(former)))


def _read(file: Path) -> list[dict[str, Any]]:
    records = []
    with contextlib.suppress(OSError):
        for line in file.read_text(errors="replace").splitlines():
            # The last line may be cut where the driver was killed.
            with contextlib.suppress(ValueError, RecursionError):
                record = json.loads(line)
                kinds = _FIELDS.get(str(record.get("kind"))) if isinstance(record, dict) else None
                if kinds is not None and all(type(record.get(key)) is kind for key, kind in kinds.items()):
                    records.append(record)
    return records


def _path(name: str) -> Path:
    return _SYSCTL.joinpath(*name.split("."))


def _value(name: str) -> str | None:
    try:
        return " ".join(_path(name).read_text().split())
    except OSError:
        return None


def _restore(sysctls: dict[str, str]) -> None:
    for name, value in sysctls.items():
        with contextlib.suppress(OSError):
            _path(name).write_text(value)


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


__all__ = ["STATE", "Ledger", "Remains", "clean_up", "folder", "live_runs"]
