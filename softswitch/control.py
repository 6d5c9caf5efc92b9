"""A Unix socket through which a running switch tells its statistics and changes its links.

A request is a JSON object on a line, and so is its answer: ``{"ok": ...}``, or ``{"error": "..."}``.

    {"do": "statistics"}                                        answers what --stats writes; start_ns (monotonic clock); and
                                                                outside_drops: by port, frames that its interface lost
    {"do": "link", "port": 2, "rate_bps": 10000000}             rate_bps, delay_ns, loss, loss_in; what is left out stays

Only who may open the socket, which is the user who started the switch, can ask.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any, Final

from softswitch.errors import BadValue, SwitchError
from softswitch.loop import SwitchLoop
from softswitch.statistics import statistics

MAX_REQUEST: Final = 4096
"""Bytes of a request."""
_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "rate_bps": (int, type(None)),
    "delay_ns": (int,),
    "loss": (int, float),
    "loss_in": (int, float),
}


class ControlSocket:
    """Answers on a Unix socket, in a thread of its own, one connection after the other.

    Args:
        loop: The switch.
        path: Where; what is left there of a switch that has ended is replaced.

    Raises:
        SwitchError: The socket cannot be made.
    """

    def __init__(self, loop: SwitchLoop, path: Path) -> None:
        self._loop = loop
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path.unlink(missing_ok=True)
            before = os.umask(0o177)
            try:
                self._listener.bind(str(path))
            finally:
                os.umask(before)
            self._listener.listen()
        except OSError as error:
            self._listener.close()
            raise SwitchError(f"{path}: {error}") from error
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends it and deletes the socket."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            with connection, contextlib.suppress(OSError):
                connection.settimeout(10)
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        waiting = b""
        while data := connection.recv(MAX_REQUEST):
            waiting += data
            *lines, waiting = waiting.split(b"\n")
            for line in lines:
                try:
                    answer = {"ok": self._do(line)}
                except SwitchError as error:
                    answer = {"error": str(error)}
                connection.sendall(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
            if len(waiting) > MAX_REQUEST:
                return

    def _do(self, line: bytes) -> Any:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            raise BadValue("a request is a JSON object on a line") from None
        verb = request.get("do") if isinstance(request, dict) else None
        loop = self._loop
        if verb == "statistics":
            return loop.call(self._statistics)
        if verb == "link":
            port, options = _link(request)
            loop.call(lambda: loop.switch.set_link(port, **options))
            return None
        raise BadValue('"do" is "statistics" or "link"')

    def _statistics(self) -> dict[str, Any]:
        loop = self._loop
        outside = {str(number): dict(io.drops) for number, io in loop.outsides().items()}
        return {**statistics(loop.switch, loop.switch.clock()), "start_ns": loop.switch.start, "outside_drops": outside}


def _link(request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Returns the port, and what is to change.

    Raises:
        BadValue: A key or a value is wrong.
    """
    options = {key: value for key, value in request.items() if key not in ("do", "port")}
    port = request.get("port")
    if type(port) is not int:
        raise BadValue('"port" is the number of a port')
    for key, value in options.items():
        if key not in _KINDS or type(value) not in _KINDS[key]:
            raise BadValue(f"{key} = {value!r} is none of {', '.join(_KINDS)} with a number")
    return port, options


__all__ = ["ControlSocket"]
