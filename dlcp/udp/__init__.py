"""The UDP shell: sockets and one I/O thread around the sans-IO core.

Everything that depends on the kernel lives here.  :func:`probe` finds out by real round trips what this kernel can do,
:class:`DatagramPort` moves batches of datagrams with the best of it, and :class:`IOThread` drives a :class:`Machine` with them.
"""

from dlcp.udp.metrics import render_prometheus
from dlcp.udp.port import DatagramPort
from dlcp.udp.probe import Capabilities, probe
from dlcp.udp.thread import IOThread, Machine, Port

__all__ = ["Capabilities", "DatagramPort", "IOThread", "Machine", "Port", "probe", "render_prometheus"]
