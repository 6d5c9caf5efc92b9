"""What the server drives: a switch, and the thread that owns it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from softswitch.switch import Switch

T = TypeVar("T")


class Device(Protocol):
    """A switch with its P4Runtime number; ``softswitch.loop.SwitchLoop`` is one.

    Attributes:
        device_id: Number of the device, unique in a server.
        switch: Touched only inside ``call``, except for its numbers of ports, queues and CPU port, which do not change.
    """

    device_id: int
    switch: Switch

    def call(self, function: Callable[[], T]) -> T:
        """Runs ``function`` in the thread that owns the switch and returns what it returns."""


class InMemoryDevice:
    """A switch without a thread of its own: whoever calls runs it, one at a time.

    For tests, and for models of networks: hand packets to ``switch.receive`` and take them from ``switch.transmit`` inside
    ``call``.

    Args:
        device_id: P4Runtime number.
        switch: Its switch; by default one with the ports given.
        ports: Numbers of the default switch's ports.
        cpu_port: Port of the controller of the default switch.
    """

    def __init__(
        self, device_id: int = 1, switch: Switch | None = None, *, ports: Iterable[int] = range(1, 17), cpu_port: int | None = 510
    ) -> None:
        self.device_id = device_id
        self._lock = threading.RLock()
        if switch is None:
            switch = Switch(cpu_port=cpu_port, seed=device_id)
            for number in ports:
                switch.add_port(number)
        self.switch = switch

    def call(self, function: Callable[[], T]) -> T:
        """Runs ``function`` in the caller's thread, alone."""
        with self._lock:
            return function()


__all__ = ["Device", "InMemoryDevice"]
