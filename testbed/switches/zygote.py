"""A process that has the switch's code loaded and forks a process for each switch: that takes milliseconds, not half a second.

It is started with a socket as its standard input.  A request is a JSON object in a packet, and so is what it says:

    {"name": ..., "run": "softswitch" | "wires", "arguments": [...], "namespaces": PID, "log": FILE}
    {"started": NAME, "pid": PID}                      answers a request
    {"ended": NAME, "pid": PID, "code": CODE}          when a child has ended

When the socket is closed, it ends its children and itself; and they end when it does.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any, Final

from testbed.lab.namespaces import enter

PACKET: Final = 1 << 16
NICENESS: Final = -10
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_libc: Final = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    """Serves requests until the other side is gone."""
    channel = socket.socket(fileno=os.dup(0))
    # Whatever reads standard input by mistake finds nothing, and the socket stays ours.
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    _load()
    children: dict[int, str] = {}
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    woken.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever interrupts means the driver, which ends this process
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
                    _become(request, (channel, woken, wake))
                children[pid] = request["name"]
                _say(channel, {"started": request["name"], "pid": pid})
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


def _load() -> None:
    """Imports what every switch needs, and compiles nothing yet."""
    for name in ("softswitch.cli", "softswitch.pipeline", "softswitch.process", "testbed.switches.wires"):
        importlib.import_module(name)
    with contextlib.suppress(ModuleNotFoundError):  # wires need no P4Runtime
        importlib.import_module("softswitch.server")
    # Children write to the counts of references; what is frozen is at least not moved about by the collector.
    gc.collect()
    gc.freeze()


def _reap(children: dict[int, str], channel: socket.socket) -> None:
    for pid in list(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            _say(channel, {"ended": children.pop(pid), "pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _say(channel: socket.socket, message: dict[str, Any]) -> None:
    try:
        channel.send(json.dumps(message).encode())
    except BrokenPipeError:
        pass  # the next wait ends this process


def _become(request: dict[str, Any], inherited: tuple[socket.socket, ...]) -> None:
    """Turns a forked child into what was asked for; does not return."""
    code = 1
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _libc.prctl(_PR_SET_NAME, request["name"].encode()[:15])
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for each in inherited:
            each.close()
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        enter(request["namespaces"])
        # A switch does not compute with its hosts' processors: what it does should not wait for what they do.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
        if request["run"] == "wires":
            from testbed.switches import wires

            code = wires.main(request["arguments"])
        else:
            from softswitch import cli

            code = cli.main(request["arguments"])
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # What is registered for the end of the interpreter is the parent's.
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
