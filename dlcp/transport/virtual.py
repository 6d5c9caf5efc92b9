"""A virtual network: machines, links and time inside one function call, for tests and for cross-checking simulators.

Time is an integer in nanoseconds and moves from event to event; randomness comes from the generator passed in, so a run repeats
bit for bit.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dlcp.transport.events import Event
from dlcp.transport.packets import Burst, Frames
from dlcp.transport.virtual_link import Link, LinkModel
from dlcp.wire.header import HEADER, HEADER_BYTES

MAX_IDLE_STEPS: Final = 10_000
"""An endpoint that wants to be called so often, while no datagram moves, is spinning."""


@dataclass(frozen=True, slots=True)
class Flight:
    """A datagram that has just left.

    Attributes:
        source, destination: Ranks.
        tos: IP ToS byte.
        datagram: UDP payload.
        at: Nanoseconds.
    """

    source: int
    destination: int
    tos: int
    datagram: bytes
    at: int


@dataclass(frozen=True, slots=True)
class Weather:
    """What happens to datagrams; probabilities are per datagram.

    Attributes:
        drop: Lost.
        duplicate: Delivered twice.
        corrupt: One bit of the header flipped on the way and not caught by the UDP checksum.  (A flipped bit elsewhere is caught
            by it, which is a drop.)
        truncate: Cut to a random length.
        mark: ECN-capable datagrams that get a congestion mark.
        delay_ns: One-way delay.
        jitter_ns: Additional uniform delay: datagrams overtake each other.
        mtu: Longest datagram (UDP payload bytes) that passes.
    """

    drop: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    truncate: float = 0.0
    mark: float = 0.0
    delay_ns: int = 50_000
    jitter_ns: int = 0
    mtu: int = 1 << 30


class Node(Protocol):
    """What the network connects: an endpoint, or an engine on one, which keeps its events to itself."""

    def receive(self, frames: list[Frames], now: int) -> None: ...

    def transmit(self, now: int) -> list[Burst]: ...

    def next_timer(self) -> int | None: ...

    def handle_timer(self, now: int) -> None: ...

    def events(self) -> Iterable[Event]: ...


N = TypeVar("N", bound=Node)


class VirtualNetwork(Generic[N]):
    """Connects machines.

    Args:
        endpoints: By rank.
        random: Source of all randomness.
        weather: What happens to datagrams.
        cut: ``cut(source, destination, now)``: whether the way is down; for partitions and dead peers.
        meddle: What a switch, or an attacker, makes of each datagram: none, itself, a changed one, more than one.
        link: A bottleneck in front of every receiver.

    Attributes:
        now: Nanoseconds.
        fate: Datagrams by what happened to them.
        log: (time, rank, event) of everything that endpoints said.
        steps: Moments at which something happened.
    """

    def __init__(
        self,
        endpoints: Mapping[int, N],
        random: np.random.Generator,
        weather: Weather | None = None,
        cut: Callable[[int, int, int], bool] = lambda source, destination, now: False,
        *,
        meddle: Callable[[Flight], Iterable[bytes]] | None = None,
        link: LinkModel | None = None,
    ) -> None:
        self.endpoints = dict(endpoints)
        self.random = random
        self.weather = weather or Weather()
        self.cut = cut
        self.meddle = meddle
        self.links = {} if link is None else {rank: Link(link) for rank in endpoints}
        self.now = 0
        self.steps = 0
        self.fate: Counter[str] = Counter()
        self.log: list[tuple[int, int, Event]] = []
        self._flying: list[tuple[int, int, int, int, bytes]] = []
        self._count = 0

    def inject(self, destination: int, datagram: bytes, ecn: int = 0) -> None:
        """Delivers a datagram of unknown origin now."""
        self._fly(self.now, destination, ecn, datagram)

    def run(self, until: Callable[[], bool], *, limit_ns: int = 60_000_000_000) -> bool:
        """Runs until ``until()`` holds, nothing can happen any more, or ``limit_ns`` has passed.

        Returns:
            Whether ``until()`` holds.

        Raises:
            AssertionError: An endpoint is spinning.
        """
        end = self.now + limit_ns
        self._collect()
        self._transmit()
        idle = 0
        while not until():
            times = [t for e in self.endpoints.values() if (t := e.next_timer()) is not None]
            times.extend(t for link in self.links.values() if (t := link.next_departure()) is not None)
            if self._flying:
                times.append(self._flying[0][0])
            if not times or min(times) > end:
                return until()
            self.steps += 1
            before = self.fate["sent"], self._count
            self.now = max(self.now, min(times))
            self._leave_links()
            self._deliver()
            for endpoint in self.endpoints.values():
                endpoint.handle_timer(self.now)
            self._collect()
            self._transmit()
            idle = 0 if (self.fate["sent"], self._count) != before else idle + 1
            if idle > MAX_IDLE_STEPS:
                raise AssertionError("an endpoint asks to be called again and again with nothing to do")
        return True

    def received(self, kind: type[Event], rank: int) -> list[Event]:
        """Returns the events of one kind at one rank so far."""
        return [event for _, where, event in self.log if where == rank and isinstance(event, kind)]

    def _collect(self) -> None:
        for rank, endpoint in self.endpoints.items():
            self.log.extend((self.now, rank, event) for event in endpoint.events())

    def _deliver(self) -> None:
        due: dict[int, list[tuple[int, bytes]]] = {}
        while self._flying and self._flying[0][0] <= self.now:
            _, _, destination, ecn, datagram = heapq.heappop(self._flying)
            due.setdefault(destination, []).append((ecn, datagram))
        for destination, datagrams in due.items():
            if destination in self.endpoints:
                self.endpoints[destination].receive([as_frames(datagrams)], self.now)
        self._collect()

    def _transmit(self) -> None:
        for rank, endpoint in self.endpoints.items():
            for _ in range(10_000):
                bursts = endpoint.transmit(self.now)
                if not bursts:
                    break
                for burst in bursts:
                    for datagram in burst.datagrams():
                        flight = Flight(rank, burst.peer, burst.tos, datagram, self.now)
                        for result in (datagram,) if self.meddle is None else self.meddle(flight):
                            self._send(rank, burst.peer, burst.tos & 3, result)
            else:
                raise AssertionError("an endpoint never stops transmitting")

    def _send(self, source: int, destination: int, ecn: int, datagram: bytes) -> None:
        weather, random = self.weather, self.random
        self.fate["sent"] += 1
        if self.cut(source, destination, self.now) or random.random() < weather.drop or len(datagram) > weather.mtu:
            self.fate["dropped"] += 1
            return
        if random.random() < weather.corrupt:
            self.fate["corrupted"] += 1
            datagram = flip_header_bit(datagram, random)
        if random.random() < weather.truncate:
            self.fate["truncated"] += 1
            datagram = datagram[: int(random.integers(len(datagram)))]
        if ecn in (1, 2) and random.random() < weather.mark:
            self.fate["marked"] += 1
            ecn = 3
        for _ in range(2 if random.random() < weather.duplicate else 1):
            link = self.links.get(destination)
            if link is None:
                self._propagate(self.now, destination, ecn, datagram)
            else:
                self.fate[f"link_{link.offer(ecn, datagram, self.now)}"] += 1

    def _leave_links(self) -> None:
        for destination, link in self.links.items():
            while (departure := link.next_departure()) is not None and departure <= self.now:
                at, ecn, datagram = link.depart()
                self._propagate(at, destination, ecn, datagram)

    def _propagate(self, at: int, destination: int, ecn: int, datagram: bytes) -> None:
        jitter = int(self.random.integers(self.weather.jitter_ns + 1))
        self._fly(at + self.weather.delay_ns + jitter, destination, ecn, datagram)

    def _fly(self, at: int, destination: int, ecn: int, datagram: bytes) -> None:
        self._count += 1
        heapq.heappush(self._flying, (at, self._count, destination, ecn, datagram))


def as_frames(datagrams: list[tuple[int, bytes]]) -> Frames:
    """Packs (ECN bits, datagram) pairs into frames as a socket without receive offload would."""
    pitch = max(len(datagram) for _, datagram in datagrams)
    data = np.zeros((len(datagrams), max(pitch, 1)), np.uint8)
    for row, (_, datagram) in zip(data, datagrams, strict=True):
        row[: len(datagram)] = np.frombuffer(datagram, np.uint8)
    lengths = np.array([len(datagram) for _, datagram in datagrams], np.int64)
    return Frames(data, lengths, np.array([ecn for ecn, _ in datagrams], np.uint8))


def flip_header_bit(datagram: bytes, random: np.random.Generator) -> bytes:
    """Flips one bit of the header that no switch may change."""
    raw: NDArray[np.uint8] = np.frombuffer(datagram, np.uint8).copy()
    immutable = np.unpackbits(HEADER.immutable_mask())[: 8 * min(raw.size, HEADER_BYTES)]
    bit = int(random.choice(np.flatnonzero(immutable)))
    raw[bit // 8] ^= 0x80 >> bit % 8
    return raw.tobytes()
