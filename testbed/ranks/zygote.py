"""A process that has torch and the training script loaded, and forks a process for each rank: milliseconds, not seconds.

It is started with a socket as its standard input.  A request is a JSON object in a packet, and so is what it says:

    {"ready": true}                                   once, when all is loaded
    {"rank": R, "arguments": [...], "environment": {...}, "namespaces": PID or null, "output": FILE}
    {"started": R, "pid": PID}                        answers a request
    {"ended": R, "pid": PID, "code": CODE}            when a child has ended

When the socket is closed, it ends its children and itself; and they end when it does.  It runs no tensor operation: a fork after
the first one would leave autograd and OpenMP with threads that are not there.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from typing import Any, Final

PACKET: Final = 1 << 16
THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""One each: ranks of one machine share its cores, and a thread pool would not survive the fork."""
PRELOADED: Final = (
    "torch",
    "torch._dynamo",
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
    "torch.nn.parallel",
    "sklearn.datasets",
    "dlcp.torch",
    "dlcp.udp.faults",
    "examples.train",
)
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_libc: Final = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    """Serves requests until the other side is gone."""
    # While it loads it does not listen, but ends with the driver all the same.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    channel = socket.socket(fileno=os.dup(0))
    # Whatever reads standard input by mistake finds nothing, and the socket stays ours.
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    children: dict[int, int] = {}
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    _load()
    _say(channel, {"ready": True})
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
                children[pid] = request["rank"]
                _say(channel, {"started": request["rank"], "pid": pid})
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


def _load() -> None:
    """Imports what every rank needs."""
    for name in PRELOADED:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    # Children write to the counts of references; what is frozen is at least not moved about by the collector.
    gc.collect()
    gc.freeze()


def _reap(children: dict[int, int], channel: socket.socket) -> None:
    for pid in list(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            _say(channel, {"ended": children.pop(pid), "pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _say(channel: socket.socket, message: dict[str, Any]) -> None:
    try:
        channel.send(json.dumps(message).encode())
    except (BrokenPipeError, ConnectionResetError):
        pass  # the next wait ends this process


def _become(request: dict[str, Any], inherited: tuple[socket.socket, ...]) -> None:
    """Turns a forked child into a rank; does not return."""
    code = 1
    try:
        parent = os.getppid()
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # the zygote ended in between, and nobody would tell
        _libc.prctl(_PR_SET_NAME, f"rank-{request['rank']}".encode()[:15])
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in inherited:
            each.close()
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        if request["namespaces"] is not None:
            from testbed.lab.namespaces import enter

            enter(request["namespaces"])
        os.environ.update(request["environment"])
        from examples.train import main as train

        code = train(request["arguments"])
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # What is registered for the end of the interpreter is the parent's, and torch's own shutdown may abort.
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
