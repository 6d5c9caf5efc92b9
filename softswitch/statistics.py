"""What a switch has counted, as JSON-able data; and a trace of its queues over time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from softswitch.switch import Switch


def drops_by_cause(switch: Switch) -> Counter[str]:
    """All packets that a switch dropped since it started, by cause.

    ``ingress``, ``egress`` and ``parser-...`` are the program's doing; ``queue-full``, ``no-queue`` (a priority beyond the last
    queue), ``link-loss``, ``port-down``, ``program-replaced`` and ``no-interface`` the ports'; ``no-port``, ``no-replica`` (an
    empty multicast group or clone session), ``no-controller``, ``no-program``, ``too-many-passes`` and ``internal-error`` the
    switch's.
    """
    drops = switch.drops + switch.traffic.drops
    if switch.pipeline is not None:
        drops.update(switch.pipeline.runtime.drops)
    for port in switch.ports.values():
        drops.update(port.drops)
    return drops


def statistics(switch: Switch, now: int) -> dict[str, Any]:
    """Counters of a switch: totals, drops by cause, and each port with its queues.

    ``received + copies == transmitted + packet_in + waiting + sum of drops``, always.
    """
    outside = [port for port in switch.ports.values() if port.number != switch.cpu_port]
    elapsed = max(1, now - switch.start)
    return {
        "elapsed_ns": elapsed,
        "received": switch.received,
        "copies": switch.copies,
        "transmitted": sum(port.out_packets for port in outside),
        "packet_in": switch.packet_ins,
        "waiting": switch.traffic.waiting() + switch.pending(),
        "drops": dict(sorted(drops_by_cause(switch).items())),
        "fault": None if switch.last_fault is None else f"{type(switch.last_fault).__name__}: {switch.last_fault}",
        "ports": {str(port.number): port.statistics(elapsed) for port in switch.ports.values()},
    }


class Trace:
    """Samples the queues of a switch, one JSON object a line.

    A line has ``t_us``, and for each port ``depth`` (packets in each queue, lowest priority first), ``bytes`` (likewise),
    and since the line before: ``out_packets``, ``out_bytes``, ``utilisation`` (None without a rate), ``drops`` by cause.

    Args:
        switch: Whose queues.
        write: Takes a line, newline included.
    """

    def __init__(self, switch: Switch, write: Callable[[str], object]) -> None:
        self._switch = switch
        self._write = write
        self._last: dict[int, tuple[int, int, int, Counter[str]]] = {}
        self._time = switch.start

    def sample(self, now: int) -> None:
        """Writes one line for the time ``now``."""
        elapsed = max(1, now - self._time)
        self._time = now
        ports: dict[str, Any] = {}
        for port in self._switch.ports.values():
            # Serialization is booked when it begins; what of it lies ahead belongs to the next line.
            busy = port.link.busy_ns - max(0, port.link.free_at - now)
            state = (port.out_packets, port.out_bytes, busy, port.drops.copy())
            packets, octets, busy_before, drops = self._last.get(port.number, (0, 0, 0, Counter[str]()))
            self._last[port.number] = state
            ports[str(port.number)] = {
                "depth": port.queues.depths(),
                "bytes": list(port.queues.bytes),
                "out_packets": state[0] - packets,
                "out_bytes": state[1] - octets,
                "utilisation": None if port.link.rate_bps is None else round((busy - busy_before) / elapsed, 4),
                "drops": dict(state[3] - drops),
            }
        line = {"t_us": (now - self._switch.start) // 1000, "ports": ports}
        self._write(json.dumps(line, separators=(",", ":")) + "\n")


__all__ = ["Trace", "drops_by_cause", "statistics"]
