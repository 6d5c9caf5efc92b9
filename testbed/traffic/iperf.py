"""A TCP flow by iperf3, for who wants the figures of the tool that everyone knows."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO, Any, Final

COMMAND: Final = "iperf3"
FIRST_PORT: Final = 5201
_LONGEST_S: Final = 86_400
_PATIENCE_S: Final = 10.0
_LISTENING: Final = "0A"
"""State of a socket in ``/proc/net/tcp``."""


def server_command(address: str, port: int, interval_s: float) -> list[str]:
    """Returns the command that receives one flow, and prints a JSON document at its end."""
    words = [COMMAND, "--server", "--one-off", "--bind", address, "--port", str(port)]
    return [*words, "--interval", f"{interval_s:g}", "--json"]


def client_command(flow: dict[str, Any], address: str, port: int, interval_s: float) -> list[str]:
    """Returns the command that sends a flow, and prints a JSON document at its end."""
    stop, start = flow["stop_ns"], flow["start_ns"]
    seconds = _LONGEST_S if stop is None else max(round((stop - start) / 1e9), 1)
    words = [COMMAND, "--client", address, "--port", str(port), "--time", str(seconds), "--interval", f"{interval_s:g}"]
    words += ["--congestion", flow["congestion"], "--tos", str(flow["tos"]), "--json"]
    if flow["rate_bps"] is not None:
        words += ["--bitrate", str(flow["rate_bps"])]
    return words


class Iperf:
    """A client or a server that runs.

    Args:
        command: One of the above.
    """

    def __init__(self, command: list[str]) -> None:
        # In a file: a document of an hour does not fit into a pipe.
        self._output: IO[str] = tempfile.TemporaryFile("w+")
        self.started_ns = time.monotonic_ns()
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT)

    def wait_until_listening(self, port: int) -> None:
        """Waits until a server listens.

        Raises:
            OSError: It has ended instead, or takes too long.
        """
        ending, deadline = f":{port:04X}", time.monotonic() + _PATIENCE_S
        while self._process.poll() is None and time.monotonic() < deadline:
            for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[1].endswith(ending) and fields[3] == _LISTENING:
                    return
            time.sleep(0.01)
        raise OSError(f"{COMMAND} does not listen at port {port}")

    def wait(self) -> None:
        """Waits until it has ended."""
        self._process.wait()

    def stop(self) -> None:
        """Asks it to end, which makes a client print what it has."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def result(self) -> dict[str, Any]:
        """Returns the document of a process that has ended; ``{"error": ...}`` if there is none."""
        self._output.seek(0)
        text = self._output.read()
        self._output.close()
        try:
            document = json.loads(text)
        except ValueError:
            document = None
        return document if isinstance(document, dict) else {"error": " ".join(text.split())[-200:] or "it said nothing"}


def summary(document: dict[str, Any]) -> tuple[dict[str, float], list[tuple[float, int]], str]:
    """Returns what a document comes to: counts, (seconds, bytes so far) for each interval, and an error or nothing."""
    samples, total = [], 0
    retransmits, rtt = 0, 0
    for interval in document.get("intervals", []):
        part = interval.get("sum", {})
        total += int(part.get("bytes", 0))
        retransmits += int(part.get("retransmits", 0))
        samples.append((float(part.get("end", 0.0)), total))
        for stream in interval.get("streams", []):
            rtt = int(stream.get("rtt", rtt))
    error = str(document.get("error", ""))
    if error.startswith("interrupt") or "has terminated" in error:
        error = ""  # it was we who ended it
    return {"bytes": total, "retransmits": retransmits, "rtt_us": rtt}, samples, error


__all__ = ["COMMAND", "FIRST_PORT", "Iperf", "client_command", "server_command", "summary"]
