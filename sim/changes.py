"""What happens to links while a simulation runs: failures, flaps, degradations."""

from __future__ import annotations

from dataclasses import dataclass

from sim.engine.hosts import wake
from sim.engine.layout import A_HOST
from sim.network import Network


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one link.

    Attributes:
        at: When, picoseconds.
        link: Position of the link in the topology.
        up: Whether it is up from then on; None: as before.
        rate: Bit/s; None: as before.
        delay: Picoseconds; None: as before.
        loss: Probability that it loses a packet; None: as before.
    """

    at: int
    link: int
    up: bool | None = None
    rate: int | None = None
    delay: int | None = None
    loss: float | None = None


def apply(network: Network, change: Change, now: int) -> None:
    """Changes the link."""
    network.set_link(change.link, rate=change.rate, delay=change.delay, loss=change.loss)
    if change.up is False:
        network.cut(change.link)
    elif change.up:
        for arc in network.mend(change.link):
            if network.memory[arc + A_HOST]:
                wake(network.memory, arc, now)  # type: ignore[arg-type]


__all__ = ["Change", "apply"]
