"""Background traffic: flows that arrive at random, without end, at a load."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import TYPE_CHECKING, Final

from dlcp.topology import Topology, bisection
from sim.messages import Message
from sim.network import PICOSECONDS
from sim.traffic.sizes import Sizes

if TYPE_CHECKING:
    from sim.flows import Transport

SHARES_OF: Final = ("hosts", "bisection")
BETWEEN: Final = ("hosts", "racks")


@dataclass(frozen=True)
class Background:
    """Flows with Poisson arrivals.

    Attributes:
        load: Bytes that are offered, over the bytes that ``of`` carries.
        sizes: Distribution of their sizes.
        of: ``hosts``: the interfaces of the hosts that send; ``bisection``: what the network's narrowest cut into halves carries
            in both directions, with only the flows across it counted.
        between: ``hosts``: any two; ``racks``: two in different racks.
        hosts: Those that send and receive, by position; none is all.
        priority: Class of the flows.
        transport: What carries them; None is the simulation's.
        start: When they begin, picoseconds.
        duration: For how long they arrive; 0 is without end, and then the run does not wait for them.
        required: Whether the run waits for them.
        name: Their group in results.
    """

    load: float
    sizes: Sizes
    of: str = "hosts"
    between: str = "hosts"
    hosts: Sequence[int] = ()
    priority: int = 0
    transport: Transport | None = None
    start: int = 0
    duration: int = 0
    required: bool = False
    name: str = "background"

    def rate(self, topology: Topology) -> float:
        """Returns flows a second.

        Raises:
            ValueError: There are no two hosts to choose, or none across the cut.
        """
        return self._rate(topology, self._destinations(topology))

    def flows(self, topology: Topology, seed: int | str = 0) -> Iterator[Message]:
        """Yields the flows by their start.

        Raises:
            ValueError: As for :meth:`rate`.
        """
        choices = self._destinations(topology)
        source = random.Random(f"background/{seed}")
        return self._flows(choices, self._rate(topology, choices), source)

    def _flows(self, choices: dict[int, list[int]], rate: float, source: random.Random) -> Iterator[Message]:
        senders = list(choices)
        now = 0.0
        while True:
            now += source.expovariate(rate)
            at = round(now * PICOSECONDS)
            if self.duration and at >= self.duration:
                return
            sender = senders[source.randrange(len(senders))]
            others = choices[sender]
            receiver = others[source.randrange(len(others))]
            yield Message(
                sender,
                receiver,
                self.sizes.at(source.random()),
                start=self.start + at,
                priority=self.priority,
                group=self.name,
                transport=self.transport,
                extra=not self.required,
            )

    def _destinations(self, topology: Topology) -> dict[int, list[int]]:
        """Returns for every host that sends those that it may send to."""
        hosts = list(self.hosts) or list(range(len(topology.hosts)))
        rack = racks(topology)
        apart = self.between == "racks"
        choices = {
            host: [other for other in hosts if other != host and (not apart or rack[other] != rack[host])] for host in hosts
        }
        choices = {host: others for host, others in choices.items() if others}
        if not choices:
            raise ValueError(
                f"{len(hosts)} hosts" + (" in one rack" if apart and len(hosts) > 1 else "") + " have nobody to send to"
            )
        return choices

    def _rate(self, topology: Topology, choices: dict[int, list[int]]) -> float:
        names = topology.graph.hosts
        if self.of == "hosts":
            capacity = float(sum(topology.nics[names[host]] for host in choices))
            share = 1.0
        else:
            cut = bisection(topology)
            side = set(cut.side)
            capacity = 2.0 * cut.rate
            # A host sends to each of its choices alike.
            crossing = (
                sum((names[other] in side) != (names[host] in side) for other in others) / len(others)
                for host, others in choices.items()
            )
            share = sum(crossing) / len(choices)
            if not share:
                raise ValueError("no flow crosses the bisection")
        return self.load * capacity / share / (8 * self.sizes.mean)


def racks(topology: Topology) -> list[str]:
    """Returns for every host what it hangs on: the switch of its first link, or itself."""
    graph = topology.graph
    return [next((arc.target for arc in graph.leaving(host) if not graph.is_host(arc.target)), host) for host in graph.hosts]


def together(parts: Sequence[Iterator[Message]]) -> Iterator[Message] | None:
    """Merges flows by their start; None if there are none."""
    return merge(*parts, key=lambda message: message.start) if parts else None


__all__ = ["BETWEEN", "SHARES_OF", "Background", "racks", "together"]
