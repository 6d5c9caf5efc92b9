"""Switches in this process, each behind a real P4Runtime server: for tests and demonstrations.

Example::

    with running_switches(4) as switches:
        controller = ...  # connect to switches[0].address, device_id switches[0].device_id
        switches[0].receive(1, packet)
        sent = switches[0].transmit()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from softswitch.server.device import Device, InMemoryDevice
from softswitch.server.pipeline_config import Loader
from softswitch.server.server import P4RuntimeServer, TLSFiles, default_loader


@dataclass(frozen=True, slots=True)
class RunningSwitch:
    """A switch that is being served.

    Attributes:
        address: Where its server listens, ``127.0.0.1:port``.
    """

    device: InMemoryDevice
    server: P4RuntimeServer
    address: str

    @property
    def device_id(self) -> int:
        """P4Runtime number of the switch."""
        return self.device.device_id

    def receive(self, port: int, data: bytes) -> None:
        """Hands a packet to a port."""
        switch = self.device.switch
        self.device.call(lambda: switch.receive(port, data, switch.clock()))

    def transmit(self) -> list[tuple[int, bytes]]:
        """Returns what has left since the last call: (port, packet)."""
        switch = self.device.switch
        return self.device.call(lambda: switch.transmit(switch.clock()))

    def set_port_state(self, port: int, up: bool) -> None:
        """Takes a link down or up."""
        self.device.call(lambda: self.device.switch.set_port_state(port, up))


@contextmanager
def running_switches(
    count: int = 1,
    *,
    one_server: bool = False,
    ports: Iterable[int] = range(1, 17),
    cpu_port: int | None = 510,
    tls: TLSFiles | None = None,
    loader: Callable[[Device], Loader] = default_loader,
    **server_options: Any,
) -> Iterator[list[RunningSwitch]]:
    """Starts switches with the device ids 1 to ``count`` on free ports of the loopback, and ends them at the end.

    Args:
        count: How many.
        one_server: One server for all of them, or one for each.
        ports: Port numbers of each switch.
        cpu_port: Port of the controller.
        tls: Of all servers.
        loader: Compiles programs.
        server_options: Further arguments of ``P4RuntimeServer``.
    """
    numbers = tuple(ports)
    devices = [InMemoryDevice(number, ports=numbers, cpu_port=cpu_port) for number in range(1, count + 1)]
    groups = [devices] if one_server else [[device] for device in devices]
    with ExitStack() as stack:
        switches = []
        for group in groups:
            server = P4RuntimeServer(group, "127.0.0.1:0", tls, loader=loader, **server_options)
            stack.callback(server.stop)
            address = f"127.0.0.1:{server.start()}"
            switches += [RunningSwitch(device, server, address) for device in group]
        yield switches


__all__ = ["RunningSwitch", "running_switches"]
