"""The sending and receiving end of flows in one host: a process that loads nothing but the standard library.

It is told what to do by JSON objects, a line each, and answers likewise:

    {"flows": [...], "host": NAME, "address": IPV4, "log": FILE}
                                                     answers {"listening": {ID: PORT}}: its sinks
    {"connect": {ID: [ADDRESS, PORT]}}               answers {"ready": []}: its sources
    {"go": NANOSECONDS}                              the time, on the clock that all processes share, at which flows begin
    {"stop": true}                                   answers {"done": {ID and role: {...}}}, and it ends

The log has a line each 100 ms: ``t_us`` since the beginning, and for each flow the bytes so far; what iperf3 carried follows at
the end.  When its input ends, it does too.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from testbed.traffic.iperf import Iperf, client_command, server_command, summary
from testbed.traffic.pacing import MOST_LATE_NS, Pacer

SAMPLE_S: Final = 0.1
_CHUNK: Final = 65_536
_STAMP: Final = struct.Struct("!QQ")
"""Number and time (ns) at the beginning of each datagram."""
_SO_MAX_PACING_RATE: Final = 47
_BUFFER: Final = 4 << 20


class End:
    """One end of a flow: what it counts.

    Attributes:
        counts: By name, plain numbers; written by one thread.
    """

    def __init__(self, flow: dict[str, Any], role: str) -> None:
        self.flow = flow
        self.role = role
        self.socket: socket.socket | None = None
        self.counts: dict[str, float] = {"bytes": 0}
        self.error = ""


class Sink(End):
    """Receives a flow."""

    def __init__(self, flow: dict[str, Any], address: str) -> None:
        super().__init__(flow, "sink")
        self.tcp = flow["kind"] == "tcp"
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM if self.tcp else socket.SOCK_DGRAM)
        if not self.tcp:
            self.counts.update(packets=0, lost=0, delay_ns=0, longest_delay_ns=0)
            with contextlib.suppress(OSError):
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        self.socket.bind((address, 0))
        if self.tcp:
            self.socket.listen(1)
        self.port = self.socket.getsockname()[1]

    def run(self, agent: Agent) -> None:
        """Receives until there is no more or it is stopped."""
        if self.tcp:
            self._run_tcp(agent)
        else:
            self._run_udp(agent)

    def _run_tcp(self, agent: Agent) -> None:
        assert self.socket is not None
        connection, _ = self.socket.accept()
        self.socket.close()
        self.socket = connection
        buffer = bytearray(4 * _CHUNK)
        while size := connection.recv_into(buffer):
            self.counts["bytes"] += size

    def _run_udp(self, agent: Agent) -> None:
        assert self.socket is not None
        counts, buffer = self.counts, bytearray(_CHUNK)
        highest = -1
        while not agent.stopping.is_set():
            size = self.socket.recv_into(buffer)
            if size < _STAMP.size:
                continue
            number, sent = _STAMP.unpack_from(buffer)
            delay = time.monotonic_ns() - sent
            counts["bytes"] += size
            counts["packets"] += 1
            counts["delay_ns"] += delay
            counts["longest_delay_ns"] = max(counts["longest_delay_ns"], delay)
            highest = max(highest, number)
            counts["lost"] = highest + 1 - counts["packets"]


class Source(End):
    """Sends a flow."""

    def __init__(self, flow: dict[str, Any]) -> None:
        super().__init__(flow, "source")
        self.tcp = flow["kind"] == "tcp"
        if not self.tcp:
            self.counts.update(packets=0, skipped=0)

    def connect(self, address: tuple[str, int]) -> None:
        """Connects to the sink."""
        flow = self.flow
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM if self.tcp else socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, flow["tos"])
        if self.tcp:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, flow["congestion"].encode())
            if flow["rate_bps"] is not None:
                rate = struct.pack("=Q", max(flow["rate_bps"] // 8, 1))
                self.socket.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, rate)
        self.socket.connect(address)

    def run(self, agent: Agent) -> None:
        """Sends from its start to its end."""
        flow = self.flow
        assert self.socket is not None
        begin = agent.beginning + flow["start_ns"]
        end = None if flow["stop_ns"] is None else agent.beginning + flow["stop_ns"]
        if agent.wait_until(begin):
            return
        if self.tcp:
            self._run_tcp(agent, end)
        else:
            self._run_udp(agent, begin, end)

    def _run_tcp(self, agent: Agent, end: int | None) -> None:
        assert self.socket is not None
        chunk = memoryview(bytes(_CHUNK))
        try:
            while not agent.stopping.is_set():
                left = 3600.0 if end is None else (end - time.monotonic_ns()) / 1e9
                if left <= 0:
                    break
                self.socket.settimeout(left)
                with contextlib.suppress(TimeoutError):
                    self.counts["bytes"] += self.socket.send(chunk)
        finally:
            with contextlib.suppress(OSError):
                info = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
                # struct tcp_info (include/uapi/linux/tcp.h): tcpi_rtt stands at 68, tcpi_total_retrans at 100.
                self.counts["rtt_us"] = struct.unpack_from("=I", info, 68)[0]
                self.counts["retransmits"] = struct.unpack_from("=I", info, 100)[0]
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)

    def _run_udp(self, agent: Agent, begin: int, end: int | None) -> None:
        assert self.socket is not None
        counts, pacer, late = self.counts, Pacer(self.flow), MOST_LATE_NS
        packet = bytearray(max(self.flow["payload"], _STAMP.size))
        number = done = 0
        while True:
            now = time.monotonic_ns()
            if end is not None and now >= end:
                return
            owed = pacer.owed(now - begin)
            if self.flow["kind"] != "incast":
                forgone = max(pacer.owed(now - begin - late) - done, 0)
                counts["skipped"] += forgone
                done += forgone
            for _ in range(owed - done):
                _STAMP.pack_into(packet, 0, number, time.monotonic_ns())
                number += 1
                try:
                    counts["bytes"] += self.socket.send(packet)
                    counts["packets"] += 1
                except OSError as error:
                    # Nobody listens any more, the link is down, or the host's queue is full: a constant rate does not mind.
                    self.error = str(error)
            done = owed
            if agent.wait_until(begin + pacer.next(now - begin)):
                return


class IperfSink(Sink):
    """Lets iperf3 receive a flow."""

    def __init__(self, flow: dict[str, Any], address: str) -> None:
        End.__init__(self, flow, "sink")
        self.counts = {}  # until the server has ended
        self.port = flow["port"]
        self.server = Iperf(server_command(address, self.port, SAMPLE_S))

    def run(self, agent: Agent) -> None:
        """Waits for the server, and takes in what it prints at its end."""
        self.server.wait()
        counts, samples, self.error = summary(self.server.result())
        self.counts["bytes"] = counts["bytes"]
        agent.note(self, self.server, samples)

    def end(self) -> None:
        """Ends the server."""
        self.server.stop()


class IperfSource(Source):
    """Lets iperf3 send a flow."""

    def __init__(self, flow: dict[str, Any]) -> None:
        super().__init__(flow)
        self.counts = {}  # until the client has ended
        self._client: Iperf | None = None

    def connect(self, address: tuple[str, int]) -> None:
        """Does nothing: the client connects when it begins."""

    def run(self, agent: Agent) -> None:
        """Runs the client, and takes in what it prints at its end."""
        if agent.wait_until(agent.beginning + self.flow["start_ns"]):
            return
        command = client_command(self.flow, self.flow["address"], self.flow["port"], SAMPLE_S)
        self._client = client = Iperf(command)
        client.wait()
        counts, samples, self.error = summary(client.result())
        self.counts.update(counts)
        agent.note(self, client, samples)

    def end(self) -> None:
        """Ends the client."""
        if self._client is not None:
            self._client.stop()


class Agent:
    """All ends of flows in this host.

    Attributes:
        beginning: When flows begin, in ns of the monotonic clock.
        stopping: Is set when they are to end.
    """

    def __init__(self) -> None:
        self.beginning = 0
        self.stopping = threading.Event()
        self.ends: list[Sink | Source] = []
        self.late: list[tuple[int, str, int]] = []
        """What is known only afterwards: time (us), flow and role, bytes so far."""
        self._threads: list[threading.Thread] = []

    def wait_until(self, when_ns: int) -> bool:
        """Waits for a time, and returns whether it was stopped instead."""
        left = when_ns - time.monotonic_ns()
        if left <= 0:
            return self.stopping.is_set()
        if left < 20_000_000:
            time.sleep(left / 1e9)  # finer than an event's wait
            return self.stopping.is_set()
        return self.stopping.wait(left / 1e9)

    def note(self, end: End, process: Iperf, samples: list[tuple[float, int]]) -> None:
        """Notes what iperf3 has counted over time, from the connection on, of which a server's start says nothing."""
        began = process.started_ns
        if end.role == "sink" and samples:
            began = time.monotonic_ns() - round(samples[-1][0] * 1e9)
        shift = (began - self.beginning) // 1000
        self.late += [(shift + round(seconds * 1e6), f"{end.flow['id']} {end.role}", total) for seconds, total in samples]

    def listen(self, flows: list[dict[str, Any]], host: str, address: str) -> dict[str, int]:
        """Makes the ends, and returns where the sinks listen."""
        iperf = "iperf3"
        sinks = [(IperfSink if flow["tool"] == iperf else Sink)(flow, address) for flow in flows if flow["sink"] == host]
        sources = [(IperfSource if flow["tool"] == iperf else Source)(flow) for flow in flows if flow["source"] == host]
        self.ends = [*sinks, *sources]
        return {sink.flow["id"]: sink.port for sink in sinks}

    def connect(self, where: dict[str, list[Any]]) -> None:
        """Connects the sources, and makes sure that iperf3's servers are there."""
        for end in self.ends:
            if isinstance(end, IperfSink):
                end.server.wait_until_listening(end.port)
            elif isinstance(end, Source):
                end.connect((where[end.flow["id"]][0], where[end.flow["id"]][1]))

    def go(self, beginning: int) -> None:
        """Starts all ends."""
        self.beginning = beginning
        for end in self.ends:
            thread = threading.Thread(target=self._run, args=(end,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, end: Sink | Source) -> None:
        try:
            end.run(self)
        except OSError as error:
            if not self.stopping.is_set():
                end.error = str(error)

    def stop(self) -> dict[str, Any]:
        """Ends all and returns what they have counted, by flow and role."""
        self.stopping.set()
        for end in self.ends:
            if end.socket is not None and isinstance(end, Sink):
                with contextlib.suppress(OSError):
                    end.socket.shutdown(socket.SHUT_RDWR)
        for end in self.ends:
            if end.socket is not None and isinstance(end, Source) and end.tcp:
                # A thread that waits for room in the socket's buffer wakes up by that.
                with contextlib.suppress(OSError):
                    end.socket.shutdown(socket.SHUT_WR)
        for end in self.ends:
            if isinstance(end, IperfSource | IperfSink):
                end.end()
        for thread in self._threads:
            thread.join(1.0)
        return {f"{end.flow['id']} {end.role}": {**end.counts, "error": end.error} for end in self.ends}

    def sample(self) -> dict[str, Any]:
        """Returns the bytes so far."""
        t_us = (time.monotonic_ns() - self.beginning) // 1000
        return {
            "t_us": t_us,
            **{f"{end.flow['id']} {end.role}": int(end.counts["bytes"]) for end in self.ends if "bytes" in end.counts},
        }


def main() -> int:
    """Serves the requests of standard input."""
    agent = Agent()
    log: Any = None
    waiting = b""
    next_sample: float | None = None
    while True:
        wait = None if next_sample is None else max(next_sample - time.monotonic(), 0)
        readable, _, _ = select.select([0], [], [], wait)
        if not readable:
            log.write(json.dumps(agent.sample(), separators=(",", ":")) + "\n")
            log.flush()
            next_sample = (next_sample or 0) + SAMPLE_S
            continue
        data = os.read(0, 1 << 16)
        if not data:
            return 0
        *lines, waiting = (waiting + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if "flows" in request:
                log = Path(request["log"]).open("w", encoding="utf-8")
                _say({"listening": agent.listen(request["flows"], request["host"], request["address"])})
            elif "connect" in request:
                agent.connect(request["connect"])
                _say({"ready": []})
            elif "go" in request:
                agent.go(request["go"])
                next_sample = time.monotonic() + SAMPLE_S
            else:
                done = agent.stop()
                log.write(json.dumps(agent.sample(), separators=(",", ":")) + "\n")
                for t_us, name, total in agent.late:
                    log.write(json.dumps({"t_us": t_us, name: total}, separators=(",", ":")) + "\n")
                log.close()
                _say({"done": done})
                return 0


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # Threads that wait for the network do not keep the process.
    code = main()
    sys.stdout.flush()
    os._exit(code)
