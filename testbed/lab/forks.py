"""A fork server: a process that has loaded what its children need, and forks one for each request, in milliseconds.

It is started with a socket (``SOCK_SEQPACKET``) as its standard input.  A request is a JSON object in a packet, and so is what
the server says::

    {"ready": true}                                       once, when all is loaded
    {"name": NAME, "log": FILE, "namespaces": PID or null, ...}   a request; what else is in it is the child's business
    {"started": NAME, "pid": PID}                         answers a request
    {"ended": NAME, "pid": PID, "code": CODE}             when a child has ended

When the socket is closed, it ends its children and itself; and they end when it does.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

PACKET: Final = 1 << 16
"""Bytes of the longest request."""
ROOT: Final = Path(__file__).resolve().parents[2]
"""Where the packages are, so that children find them wherever this process did."""
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_libc: Final = ctypes.CDLL(None, use_errno=True)

Request = dict[str, Any]


def spawn(module: str, environment: Mapping[str, str], log: Path) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts a server, in a session of its own: Ctrl-C reaches the driver alone, which ends the others in order.

    Args:
        module: Its ``main`` calls :func:`serve`.
        environment: Of the server and its children.
        log: Receives what the server itself prints.

    Returns:
        The process, and this side's end of its socket.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", f"import sys; from {module} import main; sys.exit(main())"]
    with theirs, log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=theirs.fileno(), stdout=output, stderr=output, env=with_packages(environment), start_new_session=True
        )
    return process, ours


def with_packages(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment in which Python finds this project's packages where this process found them."""
    path = environment.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    if path == str(ROOT) or path.startswith(f"{ROOT}{os.pathsep}"):
        return dict(environment) | {"PYTHONPATH": path}
    return {**environment, "PYTHONPATH": f"{ROOT}{os.pathsep}{path}" if path else str(ROOT)}


def serve(load: Callable[[], object], work: Callable[[Request], int], title: Callable[[Request], str]) -> int:
    """Serves requests until the other side is gone.

    Args:
        load: Imports what every child needs; it starts no thread, because a fork would leave that behind.
        work: What a child does, in its namespaces and with its output in its log; returns its exit code.
        title: What a child is called in lists of processes, up to 15 bytes.
    """
    # While it loads it does not listen, but ends with the driver all the same.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    channel = socket.socket(fileno=os.dup(0))
    # Whatever reads standard input by mistake finds nothing, and the socket stays ours.
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever interrupts means the driver, which ends this process
    load()
    # Children write to the counts of references; what is frozen is at least not moved about by the collector.
    gc.collect()
    gc.freeze()
    # From now on the socket tells; the other would also come when only the driver's thread is gone that started this.
    _libc.prctl(_PR_SET_PDEATHSIG, 0)
    _say(channel, {"ready": True})
    children: dict[int, Any] = {}
    server = os.getpid()
    try:
        while True:
            readable, _, _ = select.select([channel, woken], [], [])
            if woken in readable:
                woken.recv(4096)
                _reap(children, channel)
            if channel in readable:
                packet = channel.recv(PACKET)
                if not packet:
                    return 0
                request = json.loads(packet)
                pid = os.fork()
                if pid == 0:
                    _become(request, work, title(request), (channel, woken, wake), server)
                children[pid] = request["name"]
                _say(channel, {"started": request["name"], "pid": pid})
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


def _reap(children: dict[int, Any], channel: socket.socket) -> None:
    for pid in list(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            _say(channel, {"ended": children.pop(pid), "pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _say(channel: socket.socket, message: dict[str, Any]) -> None:
    try:
        channel.send(json.dumps(message).encode())
    except (BrokenPipeError, ConnectionResetError):
        pass  # the next wait ends this process


def _become(
    request: Request, work: Callable[[Request], int], title: str, inherited: tuple[socket.socket, ...], server: int
) -> None:
    """Turns a forked child of process ``server`` into what was asked for; does not return."""
    code = 1
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:
            os._exit(1)  # the server has ended before, and nobody would tell
        _libc.prctl(_PR_SET_NAME, title.encode()[:15])
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for each in inherited:
            each.close()
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        if request["namespaces"] is not None:
            from testbed.lab.namespaces import enter

            enter(request["namespaces"])
        code = work(request)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # What is registered for the end of the interpreter is the parent's, and torch's own shutdown may abort.
        os._exit(code)


def last_line(log: Path) -> str:
    """Returns the last line of a server's log."""
    said = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return said[-1] if said else "it said nothing"


__all__ = ["PACKET", "ROOT", "Request", "last_line", "serve", "spawn", "with_packages"]
