"""Runs functions as ranks: processes that meet through a directory and talk over loopback UDP."""

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
import warnings
from multiprocessing.connection import wait
from pathlib import Path

from dlcp.errors import DLCPError
from dlcp.policy import Policy

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["pytest", "hypothesis", "dlcp.collectives", "dlcp.collectives.link", "dlcp.udp.inject"])


def policy(**more):
    """Short timeouts, and sections of a policy over them."""
    tree = {"timeouts": {"connect_s": 15.0, "peer_s": 1.0, "operation_s": 20.0, "probe_max_ms": 50.0}}
    for key, value in more.items():
        tree[key] = tree.get(key, {}) | value
    return Policy.from_dict(tree)


class Died:
    """What a rank leaves that ended without a result."""

    def __init__(self, code):
        self.code = code

    def __repr__(self):
        return f"Died({self.code})"


class Ranks:
    """Processes under way; all are gone when the block ends.

    Args:
        function: Called as ``function(rank, folder, *args)`` in a process for each rank; what it returns is the rank's result,
            and so is a DLCPError, KeyboardInterrupt or SystemExit that it raises.  Any other exception fails the test.
    """

    def __init__(self, function, count, *args):
        self._stack = contextlib.ExitStack()
        self.folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        self.processes, self._pipes = [], []
        self._notes, theirs_notes = _CONTEXT.Pipe(duplex=False)
        for rank in range(count):
            ours, theirs = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(target=_main, args=(function, rank, self.folder, theirs, theirs_notes, args), daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self._pipes.append(ours)
        theirs_notes.close()

    def __enter__(self):
        return self

    def __exit__(self, *details):
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()
            process.close()
        for pipe in (*self._pipes, self._notes):
            pipe.close()
        self._stack.close()

    def notes(self, count, timeout=30.0):
        """Returns the next ``count`` things that ranks have said with :func:`note`, in order of arrival."""
        found = []
        end = time.monotonic() + timeout
        while len(found) < count:
            if not self._notes.poll(max(0.0, end - time.monotonic())):
                raise AssertionError(f"only {found} in {timeout} s")
            found.append(self._notes.recv())
        return found

    def signal(self, rank, number):
        """Sends a signal to a rank."""
        os.kill(self.processes[rank].pid, number)

    def results(self, timeout=60.0):
        """Waits for all ranks and returns what came of them."""
        results = {}
        end = time.monotonic() + timeout
        while len(results) < len(self._pipes):
            waiting = [pipe for rank, pipe in enumerate(self._pipes) if rank not in results]
            ready = wait(waiting, max(0.0, end - time.monotonic()))
            if not ready:
                missing = [rank for rank in range(len(self._pipes)) if rank not in results]
                raise AssertionError(f"ranks {missing} have not ended in {timeout} s; others: {results}")
            for pipe in ready:
                rank = self._pipes.index(pipe)
                try:
                    good, value = pipe.recv()
                except EOFError:
                    self.processes[rank].join()
                    good, value = True, Died(self.processes[rank].exitcode)
                if not good:
                    raise AssertionError(f"rank {rank}: {value}")
                results[rank] = value
        return [results[rank] for rank in range(len(self._pipes))]


def run_ranks(function, count, *args, timeout=60.0):
    """Runs ranks to their ends and returns their results."""
    with Ranks(function, count, *args) as ranks:
        return ranks.results(timeout)


_note_pipe = None


def note(value):
    """Tells the test something from within a rank."""
    _note_pipe.send(value)


def _main(function, rank, folder, pipe, notes, args):
    global _note_pipe
    _note_pipe = notes
    warnings.simplefilter("error")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        value = True, function(rank, folder, *args)
    except (DLCPError, KeyboardInterrupt, SystemExit) as error:
        value = True, error.with_traceback(None)
    except BaseException:
        value = False, traceback.format_exc()
    try:
        pipe.send(value)
    except Exception:
        pipe.send((False, traceback.format_exc()))
    pipe.close()


class Resources:
    """Threads and file descriptors of this process; what has come on top since."""

    def __init__(self):
        self.threads = set(threading.enumerate())
        self.files = self._open()

    def _open(self):
        found = {}
        for entry in list(Path("/proc/self/fd").iterdir()):
            # The one that listed the folder is gone again.
            with contextlib.suppress(FileNotFoundError):
                found[entry.name] = str(entry.readlink())
        return found

    def leaked(self):
        threads = [t.name for t in threading.enumerate() if t not in self.threads]
        files = [f for name, f in self._open().items() if self.files.get(name) != f and "/proc/" not in f]
        return threads + files
