"""Carries a fault plan out on outgoing bursts.

Faults work on whole bursts: the rows that a rule concerns are found by table look-ups on header bytes, and dropping is a boolean
index.  Packets that are held back are copied, because the memory of a burst is the sender's again after the call.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dlcp.transport.packets import Burst, Frames
from dlcp.udp.faults import FaultPlan, FaultRule
from dlcp.udp.port import DatagramPort
from dlcp.udp.probe import Capabilities
from dlcp.wire.header import HEADER, HEADER_BYTES

_CLASSES: Final = 8
_HELD_BYTES: Final = 256 << 20
_MS: Final = 1_000_000
_COUNTERS: Final = ("drop", "duplicate", "corrupt", "reorder", "delay", "overflow")

_TYPE: Final = HEADER.slots["type"]
_PRIORITY: Final = HEADER.slots["priority"]
_PROTECTED: Final = HEADER.slots["protected"]
assert _PRIORITY.byte == _PROTECTED.byte and _TYPE.word_bytes == _PRIORITY.word_bytes == 1
_BYTES: Final = np.arange(256)
_CLASS_OF_BYTE: Final = (_BYTES >> _PRIORITY.shift) & _PRIORITY.mask
_CHECKED_BITS: Final = np.flatnonzero(np.unpackbits(HEADER.immutable_mask()))


class _Filter:
    """Finds the rows that a rule may touch."""

    def __init__(self, rule: FaultRule) -> None:
        self.rule = rule
        self._tags: NDArray[np.bool_] | None = None
        self._types: NDArray[np.bool_] | None = None
        if rule.classes is not None or rule.protected is not None:
            protected = (_BYTES >> _PROTECTED.shift) & _PROTECTED.mask
            self._tags = np.isin(_CLASS_OF_BYTE, sorted(range(_CLASSES) if rule.classes is None else rule.classes))
            if rule.protected is not None:
                self._tags &= protected == rule.protected
        if rule.types is not None:
            self._types = np.isin((_BYTES >> _TYPE.shift) & _TYPE.mask, sorted(rule.types))

    def draw(self, headers: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.bool_] | None:
        """Returns ``bool[n]``: the rows that the rule hits this time; None if there is none."""
        hits: NDArray[np.bool_] = rng.random(len(headers)) < self.rule.probability
        if self._tags is not None:
            hits &= self._tags[headers[:, _PRIORITY.byte]]
        if self._types is not None:
            hits &= self._types[headers[:, _TYPE.byte]]
        return hits if hits.any() else None


def _select(burst: Burst, rows: NDArray[np.bool_]) -> Burst:
    return Burst(burst.peer, burst.tos, burst.headers[rows], burst.payload, burst.offsets[rows], burst.sizes[rows])


def _detach(burst: Burst) -> Burst:
    """Copies the payload that a burst refers to, so that it no longer depends on the sender's memory."""
    if burst.payload is None:
        return burst
    pieces = [
        burst.payload[start : start + size] for start, size in zip(burst.offsets.tolist(), burst.sizes.tolist(), strict=True)
    ]
    offsets = np.cumsum(burst.sizes) - burst.sizes
    return Burst(burst.peer, burst.tos, burst.headers, np.concatenate(pieces), offsets, burst.sizes)


class FaultInjector:
    """The plan at work: random numbers, counters, and the packets that are held back.

    Args:
        plan: What to do.
        stream: Makes the random numbers of one rank differ from those of another with the same plan.

    Attributes:
        counts: Effect to ``int64[8]``, packets by class.  ``overflow``: dropped because too many bytes were held back already.
    """

    def __init__(self, plan: FaultPlan, *, stream: int = 0) -> None:
        self.plan = plan
        self.counts = {name: np.zeros(_CLASSES, np.int64) for name in _COUNTERS}
        self._rng = np.random.default_rng((plan.seed, stream))
        self._filters = [_Filter(rule) for rule in plan.rules if rule.probability > 0]
        self._held: list[tuple[int, int, Burst]] = []
        self._held_bytes = 0
        self._order = 0

    def apply(self, burst: Burst, now: int) -> list[Burst]:
        """Returns what is to be sent at once instead of ``burst``; the rest is lost, or held back.

        The burst itself is never changed, and is returned as it is if nothing happens to it.
        """
        if burst.headers.shape[1] < HEADER_BYTES:
            return [burst]
        out = [burst]
        for rule in self._filters:
            out = [piece for before in out for piece in self._one(rule, before, now)]
        return out

    def _one(self, rule: _Filter, burst: Burst, now: int) -> list[Burst]:
        hits = rule.draw(burst.headers, self._rng)
        if hits is None:
            return [burst]
        effect = rule.rule.effect
        self._count(effect, burst.headers[hits])
        if effect == "duplicate":
            return [burst, _select(burst, hits)]
        if effect == "corrupt":
            return [self._corrupt(burst, hits)]
        if effect != "drop":
            self._hold(_select(burst, hits), rule.rule, now)
        rest = ~hits
        return [_select(burst, rest)] if rest.any() else []

    def _count(self, effect: str, headers: NDArray[np.uint8]) -> None:
        self.counts[effect] += np.bincount(_CLASS_OF_BYTE[headers[:, _PRIORITY.byte]], minlength=_CLASSES)

    def _corrupt(self, burst: Burst, hits: NDArray[np.bool_]) -> Burst:
        """Flips one bit that the header check covers; the payload is what UDP's own checksum protects on a real path."""
        headers = burst.headers.copy()
        rows = np.flatnonzero(hits)
        bits = self._rng.choice(_CHECKED_BITS, len(rows))
        headers[rows, bits // 8] ^= (0x80 >> (bits % 8)).astype(np.uint8)
        return Burst(burst.peer, burst.tos, headers, burst.payload, burst.offsets, burst.sizes)

    def _hold(self, burst: Burst, rule: FaultRule, now: int) -> None:
        if self._held_bytes + burst.wire_bytes > _HELD_BYTES:
            self._count("overflow", burst.headers)
            return
        self._held_bytes += burst.wire_bytes
        burst = _detach(burst)
        low, high = (
            (0.0, rule.delay_ms) if rule.effect == "reorder" else (rule.delay_ms - rule.jitter_ms, rule.delay_ms + rule.jitter_ms)
        )
        if low == high:
            self._push(now + round(low * _MS), burst)
            return
        for row, delay in enumerate(self._rng.uniform(low * _MS, high * _MS, len(burst)).tolist()):
            one = slice(row, row + 1)
            single = Burst(burst.peer, burst.tos, burst.headers[one], burst.payload, burst.offsets[one], burst.sizes[one])
            self._push(now + round(delay), single)

    def _push(self, release: int, burst: Burst) -> None:
        heapq.heappush(self._held, (release, self._order, burst))
        self._order += 1

    def next_release(self) -> int | None:
        """Returns when the next held packets are due, in the unit of ``now``, or None."""
        return self._held[0][0] if self._held else None

    def due(self, now: int) -> list[Burst]:
        """Takes out the packets whose time has come, in order of their time."""
        out: list[Burst] = []
        while self._held and self._held[0][0] <= now:
            burst = heapq.heappop(self._held)[2]
            self._held_bytes -= burst.wire_bytes
            out.append(burst)
        return out

    def metrics(self) -> dict[str, list[int]]:
        """Returns the counters as plain lists, one number for each class."""
        return {name: counts.tolist() for name, counts in self.counts.items()}


class FaultyPort:
    """A :class:`DatagramPort` behind a bad network: the same interface, with faults on what is sent.

    Bursts count as sent once the plan has been applied to them; what a full send buffer leaves of them is kept here and goes
    first next time.

    Args:
        port: The port to send through; this object closes it.
        plan: What to do.
        stream: See :class:`FaultInjector`; usually the rank.
        clock: The clock of the I/O thread, in nanoseconds.
    """

    def __init__(
        self, port: DatagramPort, plan: FaultPlan, *, stream: int = 0, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._port = port
        self._clock = clock
        self.injector = FaultInjector(plan, stream=stream)
        self._left: list[Burst] = []

    @property
    def address(self) -> tuple[str, int]:
        return self._port.address

    @property
    def mtu(self) -> int:
        return self._port.mtu

    @property
    def capabilities(self) -> Capabilities:
        return self._port.capabilities

    @property
    def receive_buffer(self) -> int:
        return self._port.receive_buffer

    @property
    def send_buffer(self) -> int:
        return self._port.send_buffer

    @property
    def room(self) -> int:
        """See :attr:`DatagramPort.room`."""
        return self._port.room

    def connect_peer(self, rank: int, address: tuple[str, int]) -> None:
        self._port.connect_peer(rank, address)

    def path_mtu(self, rank: int) -> int | None:
        return self._port.path_mtu(rank)

    def receive(self) -> list[Frames]:
        return self._port.receive()

    def fileno(self) -> int:
        return self._port.fileno()

    def send(self, bursts: Sequence[Burst], /) -> int:
        """Applies the plan to bursts and sends what is left of them.  See :meth:`DatagramPort.send`."""
        self._flush()
        if self._left:
            return 0
        now = self._clock()
        self._left = [piece for burst in bursts for piece in self.injector.apply(burst, now)]
        self._flush()
        return len(bursts)

    def next_release(self) -> int | None:
        return self.injector.next_release()

    def release(self, now: int) -> None:
        """Sends the held packets whose time has come, and what was left over before them."""
        self._left += self.injector.due(now)
        self._flush()

    def blocked(self) -> bool:
        """Tells whether packets wait here for room in the kernel's send buffer."""
        return bool(self._left)

    def _flush(self) -> None:
        if self._left:
            del self._left[: self._port.send(self._left)]

    def metrics(self) -> dict[str, Any]:
        """Returns the metrics of the port and, under ``faults``, packets by effect and class."""
        return {**self._port.metrics(), "faults": self.injector.metrics()}

    def close(self) -> None:
        self._port.close()
