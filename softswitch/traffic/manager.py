"""The traffic manager: all ports of a switch, and when which packet leaves.

A packet waits in the queue of its priority until the port's link is free.  A port that is served late is served as of the times
at which its link became free, so that rates are exact and the order of priorities is decided among the packets that were there
at that moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from operator import attrgetter
from types import EllipsisType
from typing import Final

from softswitch.errors import BadValue, UnknownObject
from softswitch.traffic.port import Port, make_port
from softswitch.traffic.queues import DEFAULT_DEPTH, Item

_number: Final = attrgetter("number")


class TrafficManager:
    """Ports with their queues and links.

    Args:
        queues: Priorities of each port.  A packet with a priority beyond is dropped and counted.
        seed: Of losses.
        leave: Called when a packet's turn has come, with its port, the packet, the time, and how many packets it leaves behind in
            its queue; it may call ``emit``.
    """

    def __init__(self, *, queues: int, seed: int, leave: Callable[[Port, Item, int, int], None]) -> None:
        if queues < 1:
            raise BadValue(f"a switch needs at least one queue per port, not {queues}")
        self.queues = queues
        self.ports: dict[int, Port] = {}
        self.drops: Counter[str] = Counter()
        """Packets for ports that do not exist."""
        self.shaped = False
        """Whether any port has a rate, a delay or losses, so that it matters when exactly packets come."""
        self._seed = seed
        self._leave = leave
        self._active: set[Port] = set()
        """Ports with packets in queues or on a link."""

    # Configuration

    def add_port(
        self,
        number: int,
        *,
        rate_bps: int | None = None,
        queue_depth: int | None = DEFAULT_DEPTH,
        queue_bytes: int | None = None,
        delay_ns: int = 0,
        loss: float = 0.0,
        loss_in: float = 0.0,
        up: bool = True,
    ) -> Port:
        """Adds a port.

        Args:
            number: 0 or more, and not taken.
            rate_bps: Bits per second, shared by the port's queues; None: as fast as the machine.
            queue_depth: Most packets in each queue, or None for no such limit.
            queue_bytes: Most bytes in each queue, or None for no such limit.
            delay_ns: Travel time behind the port.
            loss: Probability that a packet is lost behind the port.
            loss_in: Probability that a packet is lost before it arrives.
            up: Whether its link is up.

        Raises:
            BadValue: A value out of range, or a number that is taken.
        """
        if number < 0 or number in self.ports:
            raise BadValue(f"port {number} is taken or negative")
        self.ports[number] = port = make_port(
            number,
            queues=self.queues,
            seed=self._seed,
            rate_bps=rate_bps,
            queue_depth=queue_depth,
            queue_bytes=queue_bytes,
            delay_ns=delay_ns,
            loss=loss,
            loss_in=loss_in,
            up=up,
        )
        self._note_shapes()
        return port

    def port(self, number: int) -> Port:
        """Returns a port.

        Raises:
            UnknownObject: There is no such port.
        """
        try:
            return self.ports[number]
        except KeyError:
            raise UnknownObject(f"no port {number}") from None

    def set_link(
        self,
        number: int,
        now: int,
        *,
        rate_bps: int | EllipsisType | None = ...,
        delay_ns: int | EllipsisType = ...,
        loss: float | EllipsisType = ...,
        loss_in: float | EllipsisType = ...,
    ) -> None:
        """Changes a port's link; what is not given stays."""
        port = self.port(number)
        link = port.link
        self.serve(port, now)
        link.configure(
            rate_bps=link.rate_bps if rate_bps is ... else rate_bps,
            delay_ns=link.delay_ns if delay_ns is ... else delay_ns,
            loss=link.loss if loss is ... else loss,
        )
        if loss_in is not ...:
            port.set_loss_in(loss_in)
        self.serve(port, now)
        self._settle(port)
        self._note_shapes()

    def set_state(self, number: int, up: bool, now: int) -> bool:
        """Marks a port up or down; what waits at a port that goes down is lost, and counted.  Returns whether that was news."""
        port = self.port(number)
        if port.up == up:
            return False
        if not up:
            self.serve(port, now)
            port.drop_all("port-down", now)
        port.up = up
        self._settle(port)
        return True

    def set_blocked(self, number: int, blocked: bool, now: int) -> None:
        """Pauses a port while whoever sends its packets cannot take more: they wait in the queues, by priority."""
        port = self.port(number)
        if port.blocked and not blocked and port.link.free_at < now:
            # What came during the pause cannot have left before it.
            port.link.free_at = now
        port.blocked = blocked
        self.serve(port, now)
        self._settle(port)

    def discard_queued(self, cause: str) -> None:
        """Drops all that is queued, but not what is on a link already."""
        for port in list(self._active):
            gone = port.queues.clear()
            if gone:
                port.drops[cause] += gone
            self._settle(port)

    # Packets

    def enqueue(self, number: int, item: Item, now: int) -> None:
        """Sends a packet to a port: at once if the link is free and nothing waits, else through its queue."""
        port = self.ports.get(number)
        if port is None:
            self.drops["no-port"] += 1
            return
        if item.priority >= self.queues:
            port.drops["no-queue"] += 1
            return
        if not port.up:
            port.drops["port-down"] += 1
            return
        queues, link = port.queues, port.link
        if queues.packets or link.line:
            self.serve(port, now)
        if not queues.packets and not port.blocked and (link.rate_bps is None or link.free_at <= now):
            queues.enqueued[item.priority] += 1
            self._leave(port, item, now, 0)
        elif not queues.push(item):
            port.drops["queue-full"] += 1
            return
        self._settle(port)

    def emit(self, port: Port, data: bytes, start: int) -> None:
        """Puts what egress made of a packet on the link, at ``start`` or when the link became free."""
        link = port.link
        if link.transparent and not link.line:
            port.deliver(data)
        elif not link.send(data, start):
            port.drops["link-loss"] += 1

    def serve(self, port: Port, now: int) -> None:
        """Starts on the link what could start by ``now``, and delivers what has arrived by then."""
        queues, link = port.queues, port.link
        leave = self._leave
        if port.up and not port.blocked:
            while queues.packets and (link.rate_bps is None or link.free_at <= now):
                item = queues.pop()
                leave(port, item, now if link.rate_bps is None else link.free_at, queues.depth_of(item.priority))
        port.release(now)

    def advance(self, now: int) -> None:
        """Serves every port up to ``now``."""
        for port in sorted(self._active, key=_number):
            self.serve(port, now)
            self._settle(port)

    def next_timer(self) -> int | None:
        """When ``advance`` next has something to do, in ns, or None."""
        if not self._active:
            return None
        return min((due for port in self._active if (due := port.due()) is not None), default=None)

    def waiting(self) -> int:
        """Packets in queues and on links."""
        return sum(port.queues.packets + len(port.link.line) for port in self._active)

    def _note_shapes(self) -> None:
        self.shaped = not all(port.link.transparent for port in self.ports.values())

    def _settle(self, port: Port) -> None:
        port.refresh()
        if port.queues.packets or port.link.line:
            self._active.add(port)
        else:
            self._active.discard(port)


__all__ = ["TrafficManager"]
