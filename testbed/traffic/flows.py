"""Flows: what an experiment's ``[[traffic]]`` comes to, and when each flow sends.

A flow's schedule is a pure function of the time since the first training step, so that all hosts agree on it by the clock that
they share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from dlcp.topology import Topology
from testbed.experiment import Traffic


@dataclass(frozen=True)
class Flow:
    """One flow; times are nanoseconds.

    Attributes:
        name: Of the traffic that it belongs to.
        number: Of the flow in that, from 0.
        kind: ``tcp``, ``udp``, ``on-off`` or ``incast``.
        source: Host that sends.
        sink: Host that receives.
        rate_bps: While it sends; None: what it gets.
        congestion: TCP's congestion control.
        on_ns: Length of a burst, for ``on-off``.
        off_ns: Pause between two, for ``on-off``; period, for ``incast``.
        phase_ns: How far into its first period an ``on-off`` flow is when it starts.
        burst_packets: Packets of a burst, for ``incast``.
        start_ns: When it begins.
        stop_ns: When it ends; None: when it is stopped.
        tos: IP ToS byte.
        payload: Bytes of a datagram.
    """

    name: str
    number: int
    kind: str
    source: str
    sink: str
    rate_bps: int | None
    congestion: str
    on_ns: int
    off_ns: int
    phase_ns: int
    burst_packets: int
    start_ns: int
    stop_ns: int | None
    tos: int
    payload: int

    @property
    def id(self) -> str:
        """Its name among all flows."""
        return f"{self.name}.{self.number}"

    def to_dict(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return {"id": self.id, **asdict(self)}


def flows_of(traffic: Sequence[Traffic], topology: Topology, seed: int) -> list[Flow]:
    """Returns all flows: flow i of a traffic goes from its source i to its sink i, cyclic.

    Args:
        traffic: From the experiment.
        topology: The network; a datagram is as long as the host's link allows.
        seed: Of the phases of ``on-off`` flows, which would otherwise all burst at once.
    """
    flows = []
    for item in traffic:
        random = Random(f"{seed} {item.name}")
        on, off = _ns(int(item.on)), _ns(int(item.off))
        for number in range(item.flows):
            source = item.sources[number % len(item.sources)]
            sink = item.sinks[number % len(item.sinks)]
            mtu = min(topology.link(arc).mtu for host in (source, sink) for arc in topology.graph.leaving(host))
            phase = random.randrange(on + off) if item.kind == "on-off" and on + off else 0
            flow = Flow(
                name=item.name,
                number=number,
                kind=item.kind,
                source=source,
                sink=sink,
                rate_bps=None if isinstance(item.rate, str) else int(item.rate),
                congestion=item.congestion,
                on_ns=on,
                off_ns=off,
                phase_ns=phase if item.flows > 1 else 0,
                burst_packets=item.burst_packets,
                start_ns=_ns(int(item.start)),
                stop_ns=None if isinstance(item.stop, str) else _ns(int(item.stop)),
                tos=item.dscp << 2,
                payload=mtu - 28,
            )
            flows.append(flow)
    return flows


def _ns(picoseconds: int) -> int:
    return round(picoseconds / 1000)


__all__ = ["Flow", "flows_of"]
