"""The small interface behind which congestion control algorithms stand, and their registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar


@dataclass(frozen=True, slots=True)
class FlowParameters:
    """What a flow tells its congestion control at birth.

    Attributes:
        packet_bytes: UDP payload bytes of a full packet.
        initial_window: Packets.
        max_window: Packets; neither policy nor receiver allows more.
        loss_tolerance: Share of packets whose loss is not taken for congestion (the policy's loss bound).
        target_delay_ns: Queueing delay that delay-based control aims at.
        gain: Weight of a round's mark share in the moving average (DCTCP's g).
        rate: Bytes per second of a fixed-rate flow.
    """

    packet_bytes: int
    initial_window: int
    max_window: int
    loss_tolerance: float = 0.0
    target_delay_ns: int = 500_000
    gain: float = 1 / 16
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """What one feedback packet says about the packets since the one before.

    Attributes:
        now: Nanoseconds.
        delivered: Packets that arrived.
        lost: Packets that count as lost from now on: passed over in sequence, and not merely late as far as one can tell.
        marked: Arrived packets that carried a congestion mark, or arrived trimmed.
        rtt: Round trip in nanoseconds, if the feedback allowed to measure one.
        smoothed_rtt: Moving average of it.
        queueing: How long packets waited in queues of the network, in nanoseconds, in both directions, if that could be measured.
        limited: The window, not the application, held the flow back.
    """

    now: int
    delivered: int
    lost: int
    marked: int
    rtt: int | None
    smoothed_rtt: int
    queueing: int | None = None
    limited: bool = True


PROBING_GAIN = 2.0
"""Windows a round trip at which a flow that grows quickly is paced."""
STEADY_GAIN = 1.25
"""The same for one that does not: enough to fill the window, too little to send it as a burst (Linux: 2.0 and 1.2 for TCP)."""


class CongestionControl(ABC):
    """One flow's window and pace."""

    name: ClassVar[str]
    MINIMUM_WINDOW: ClassVar[float] = 2.0

    def __init__(self, parameters: FlowParameters) -> None:
        self.parameters = parameters
        self.window = float(min(parameters.initial_window, parameters.max_window))

    @abstractmethod
    def on_feedback(self, sample: Sample) -> None:
        """Takes one feedback; changes :attr:`window`."""

    def on_timeout(self) -> None:
        """Several probes in a row went unanswered."""
        self.window = self.MINIMUM_WINDOW

    def pacing_rate(self, smoothed_rtt: int) -> float | None:
        """Returns bytes per second, or None when bursts of a whole window are fine."""
        gain = PROBING_GAIN if self.probing else STEADY_GAIN
        return gain * self.window * self.parameters.packet_bytes * 1e9 / max(smoothed_rtt, 1_000)

    @property
    def probing(self) -> bool:
        """Whether the window is far from what the path takes as far as one knows, and grows quickly."""
        return False

    def _clamp(self) -> None:
        self.window = min(max(self.window, self.MINIMUM_WINDOW), float(self.parameters.max_window))


_registry: dict[str, type[CongestionControl]] = {}
C = TypeVar("C", bound=type[CongestionControl])


def register(name: str) -> Callable[[C], C]:
    """Class decorator: makes an algorithm available to policies under ``name``.

    Raises:
        ValueError: The name is taken.
    """

    def decorate(cls: C) -> C:
        if name in _registry:
            raise ValueError(f"congestion control {name!r} is registered already")
        cls.name = name
        _registry[name] = cls
        return cls

    return decorate


def create(name: str, parameters: FlowParameters) -> CongestionControl:
    """Makes a flow's congestion control.

    Raises:
        KeyError: Nothing is registered under ``name``.
    """
    try:
        return _registry[name](parameters)
    except KeyError:
        raise KeyError(f"unknown congestion control {name!r}; known: {', '.join(sorted(_registry))}") from None


def names() -> tuple[str, ...]:
    """Returns the registered names, sorted."""
    return tuple(sorted(_registry))
