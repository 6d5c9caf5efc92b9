"""A port: its queues, its link, and what is counted there."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from softswitch.errors import BadValue
from softswitch.traffic.link import Link
from softswitch.traffic.queues import PriorityQueues

_OTHER_WAY: Final = 1 << 60
"""Tells the seed of what arrives from that of what leaves."""


class Port:
    """State of one port; ``softswitch.switch.Switch`` moves packets through it.

    Attributes:
        number: The program's number for it.
        up: Whether packets may leave and enter.
        blocked: Whoever sends the packets asked for a pause; they wait in the queues.
        direct: Packets need no queue: the link is transparent, up, not blocked, and nothing waits.
        out: Packets that have left the link, oldest first, for the caller to take.
        emit: Takes a packet that has left the link.
        drops: Packets lost here, by cause.
        loss_in: Probability that a packet is lost before it enters: the other direction of the port's cable.
    """

    __slots__ = (
        "_chance",
        "blocked",
        "direct",
        "drops",
        "emit",
        "in_bytes",
        "in_packets",
        "link",
        "loss_in",
        "number",
        "out",
        "out_bytes",
        "out_packets",
        "queues",
        "up",
    )

    def __init__(
        self,
        number: int,
        queues: PriorityQueues,
        link: Link,
        *,
        up: bool = True,
        emit: Callable[[bytes], object] | None = None,
        loss_in: float = 0.0,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.number = number
        self.queues = queues
        self.link = link
        self.up = up
        self.blocked = False
        self.out: list[bytes] = []
        self.emit = self.out.append if emit is None else emit
        self.in_packets = self.in_bytes = self.out_packets = self.out_bytes = 0
        self.drops: Counter[str] = Counter()
        self.loss_in = 0.0
        self._chance = chance
        self.direct = False
        self.set_loss_in(loss_in)
        self.refresh()

    def set_loss_in(self, loss: float) -> None:
        """Changes the loss of arriving packets; BadValue if it is no probability."""
        if not 0.0 <= loss <= 1.0:
            raise BadValue(f"a loss probability is within 0 and 1: {loss}")
        self.loss_in = loss

    def arriving(self, packets: Sequence[bytes]) -> Sequence[bytes]:
        """Returns the packets that get here, and counts those that do not."""
        chance, loss = self._chance, self.loss_in
        kept = [data for data in packets if chance() >= loss]
        if len(kept) < len(packets):
            self.drops["link-loss"] += len(packets) - len(kept)
        return kept

    def refresh(self) -> None:
        """Works out ``direct`` after any change."""
        self.direct = self.up and not self.blocked and self.link.transparent and not self.queues.packets and not self.link.line

    def deliver(self, data: bytes) -> None:
        """Hands a packet to the outside and counts it."""
        self.out_packets += 1
        self.out_bytes += len(data)
        self.emit(data)

    def release(self, now: int) -> None:
        """Delivers what has arrived at the far end of the link by ``now``."""
        line = self.link.line
        while line and line[0][0] <= now:
            self.deliver(line.popleft()[1])

    def due(self) -> int | None:
        """When this port next has something to do, or None."""
        times = []
        if self.link.line:
            times.append(self.link.line[0][0])
        if self.queues.packets and not self.blocked and self.up:
            times.append(self.link.free_at)
        return min(times, default=None)

    def drop_all(self, cause: str, now: int) -> None:
        """Empties queues and link, counting what was there under ``cause``."""
        gone = self.queues.clear() + self.link.clear(now)
        if gone:
            self.drops[cause] += gone
        self.refresh()

    def statistics(self, elapsed_ns: int) -> dict[str, Any]:
        """Counters of the port as JSON-able data; ``utilisation`` is None for a link without a rate."""
        queues, link = self.queues, self.link
        depths = queues.depths()
        return {
            "up": self.up,
            "rate_bps": link.rate_bps,
            "delay_ns": link.delay_ns,
            "loss": link.loss,
            "loss_in": self.loss_in,
            "in_packets": self.in_packets,
            "in_bytes": self.in_bytes,
            "out_packets": self.out_packets,
            "out_bytes": self.out_bytes,
            "on_link": len(link.line),
            "utilisation": None if link.rate_bps is None else min(1.0, link.busy_ns / max(1, elapsed_ns)),
            "drops": dict(self.drops),
            "queues": [
                {
                    "priority": priority,
                    "packets": depths[priority],
                    "bytes": queues.bytes[priority],
                    "enqueued": queues.enqueued[priority],
                    "dropped": queues.dropped[priority],
                    "high_water": queues.high_water[priority],
                    "high_water_bytes": queues.high_water_bytes[priority],
                }
                for priority in range(len(queues))
            ],
        }


def make_port(
    number: int,
    *,
    queues: int,
    seed: int,
    rate_bps: int | None = None,
    queue_depth: int | None = None,
    queue_bytes: int | None = None,
    delay_ns: int = 0,
    loss: float = 0.0,
    loss_in: float = 0.0,
    up: bool = True,
) -> Port:
    """Builds a port; its losses depend on ``seed`` and ``number`` only."""
    rng, other = random.Random((seed << 16) ^ number), random.Random((seed << 16) ^ number ^ _OTHER_WAY)
    line = Link(rate_bps, delay_ns, loss, rng)
    return Port(number, PriorityQueues(queues, queue_depth, queue_bytes), line, up=up, loss_in=loss_in, chance=other.random)


__all__ = ["Port", "make_port"]
