"""The UDP shell: sockets, one I/O thread and fault injection around the sans-IO core.

Everything that depends on the kernel lives here.  :func:`dlcp.udp.probe.probe` finds out by real round trips what this kernel
can do, :class:`DatagramPort` moves batches of datagrams with the best of it, and :class:`IOThread` drives a :class:`Machine` with
them.  :class:`FaultyPort` wraps a port and damages what it sends after a :class:`FaultPlan`.
"""

from dlcp.udp.faults import FaultPlan, FaultRule
from dlcp.udp.inject import FaultyPort
from dlcp.udp.metrics import render_prometheus
from dlcp.udp.port import DatagramPort
from dlcp.udp.probe import Capabilities
from dlcp.udp.thread import IOThread, Machine, Port

__all__ = [
    "Capabilities",
    "DatagramPort",
    "FaultPlan",
    "FaultRule",
    "FaultyPort",
    "IOThread",
    "Machine",
    "Port",
    "render_prometheus",
]
