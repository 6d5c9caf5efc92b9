"""Namespaces of other processes: entering them, and running commands in them.

``mnexec -a`` runs a command in the network and mount namespaces of a process; a forked child enters them by itself.  A mount
namespace belongs to each network namespace, because ``/sys/class/net`` shows the network in which it was mounted.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from testbed.lab.errors import LabError

NEWNS: Final = 0x0002_0000
NEWNET: Final = 0x4000_0000
_CLONE_FS: Final = 0x0000_0200
_PATIENCE_S: Final = 30.0
_libc: Final = ctypes.CDLL(None, use_errno=True)


def enter(pid: int) -> None:
    """Moves the calling thread, and those that it starts from then on, into the namespaces of another process, for good.

    Those are its network and mount namespaces.  Threads that are there already stay where they are, so there had better be none.

    Raises:
        LabError: Not permitted, or the other process is gone.
    """
    here = Path.cwd()
    try:
        with ExitStack() as stack:
            # Opened before any is entered: in the other mount namespace /proc may be another one.
            handles = [
                (stack.enter_context(Path(f"/proc/{pid}/ns/{kind}").open("rb")), flag)
                for kind, flag in (("net", NEWNET), ("mnt", NEWNS))
            ]
            # A mount namespace takes only who shares root and working folder with no thread, not even an idle one of a library.
            _check(_libc.unshare(_CLONE_FS))
            for handle, flag in handles:
                _check(_libc.setns(handle.fileno(), flag))
        os.chdir(here)  # entering a mount namespace leads to its root folder
    except OSError as error:
        raise LabError(f"entering the namespaces of process {pid}: {error}") from error


def _check(result: int) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def inside(pid: int, argv: Sequence[str]) -> list[str]:
    """Returns the command that runs ``argv`` in the namespaces of a process; the command becomes ``argv`` itself by exec."""
    return ["mnexec", "-a", str(pid), *argv]


def start(argv: Sequence[str], *, text: str | None = None, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Starts a command whose output will be wanted; ``finish`` waits for it.  ``text`` is its input."""
    try:
        process = subprocess.Popen(
            list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )
    except FileNotFoundError:
        raise LabError(f"the command {argv[0]} is missing") from None
    assert process.stdin is not None
    try:
        # Scripts are far shorter than what a pipe holds (64 KiB) or their readers take them in at once.
        process.stdin.write(text or "")
        process.stdin.close()
    except BrokenPipeError:
        pass  # it ended without reading all, and says why
    process.stdin = None
    return process


def finish(process: subprocess.Popen[str], what: str) -> str:
    """Waits for a command and returns what it printed.

    Raises:
        LabError: It failed; the message has ``what`` it was to do and its last words.
    """
    try:
        output, errors = process.communicate(timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise LabError(f"{what}: no answer within {_PATIENCE_S:g} s") from None
    if process.returncode:
        said = " | ".join((errors or output).strip().splitlines()[-3:])
        raise LabError(f"{what}: {said or f'exit code {process.returncode}'}")
    return output


def run(argv: Sequence[str], *, what: str = "", **how: Any) -> str:
    """Runs a command and returns what it printed; LabError if it fails."""
    return finish(start(argv, **how), what or " ".join(argv))


def run_all(scripts: Mapping[int, str], what: str) -> dict[int, str]:
    """Runs shell scripts in the namespaces of processes, all at once, and returns what each printed.

    Raises:
        LabError: One failed.
    """
    started = {pid: start(inside(pid, ["sh", "-s"]), text=f"set -e\n{script}\n") for pid, script in scripts.items()}
    outputs: dict[int, str] = {}
    failure: LabError | None = None
    for pid, process in started.items():
        try:
            outputs[pid] = finish(process, what)
        except LabError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return outputs


__all__ = ["NEWNET", "NEWNS", "enter", "finish", "inside", "run", "run_all", "start"]
