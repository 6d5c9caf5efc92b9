"""The three algorithms that come with DLCP.

All react once per round trip (a round is one window's worth of feedback).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from typing import Final

from dlcp.transport.congestion.base import CongestionControl, FlowParameters, Sample, register

CHANCE_DEVIATIONS: Final = 4.0
"""Standard deviations by which losses must exceed the tolerated share before they are more than bad luck."""
LOSS_SAMPLE: Final = 64
"""Packets over which the share of lost ones is taken at least: a small window tells little about it in one round trip."""


def excess_loss(lost: int, total: int, tolerance: float) -> float:
    """Returns the share of lost packets beyond the tolerated one; 0 while chance explains it.

    With 16 packets and a tolerance of 5 % one is often lost, and that is 6 %: only what a binomial distribution of the tolerated
    share makes unlikely is a signal (one packet more than the deviations say, because it is skewed).  Without any tolerance every
    loss is one.
    """
    if not lost or not total:
        return 0.0
    likely = tolerance * total + CHANCE_DEVIATIONS * math.sqrt(tolerance * (1 - tolerance) * total) + 1 if tolerance else 0.0
    return lost / total - tolerance if lost > likely else 0.0


class _Rounds(CongestionControl):
    """Counts deliveries, losses and marks over rounds of one smoothed round trip."""

    def __init__(self, parameters: FlowParameters) -> None:
        super().__init__(parameters)
        self._round_end: int | None = None
        self._delivered = self._lost = self._marked = 0
        self._limited = False
        self._history: deque[tuple[int, int]] = deque()
        self._history_lost = self._history_total = 0

    def on_feedback(self, sample: Sample) -> None:
        self._delivered += sample.delivered
        self._lost += sample.lost
        self._marked += sample.marked
        self._limited = self._limited or sample.limited
        if self._round_end is None:
            self._round_end = sample.now + sample.smoothed_rtt
        self._every_feedback(sample)
        if sample.now >= self._round_end:
            total = self._delivered + self._lost
            if total:
                excess = self._excess(self._lost, total)
                self._end_of_round(sample, self._marked / max(self._delivered, 1), excess, self._limited)
            self._delivered = self._lost = self._marked = 0
            self._limited = False
            self._round_end = sample.now + sample.smoothed_rtt
        self._clamp()

    def _excess(self, lost: int, total: int) -> float:
        """Adds a round to the sample of recent packets and returns the share lost beyond what is tolerated."""
        self._history.append((lost, total))
        self._history_lost += lost
        self._history_total += total
        while self._history_total - self._history[0][1] >= LOSS_SAMPLE:
            old_lost, old_total = self._history.popleft()
            self._history_lost -= old_lost
            self._history_total -= old_total
        return excess_loss(self._history_lost, self._history_total, self.parameters.loss_tolerance)

    @abstractmethod
    def _every_feedback(self, sample: Sample) -> None:
        """Called for each feedback, before a round ends."""

    @abstractmethod
    def _end_of_round(self, sample: Sample, marked: float, excess: float, limited: bool) -> None:
        """Called once a round with the share of marked packets, that of packets lost beyond tolerance, and the limit."""


@register("dctcp")
class Dctcp(_Rounds):
    """DCTCP-like: additive increase, decrease in proportion to the share of marked packets (RFC 8257).

    Loss below the tolerated share is no signal: a loss-bounded transport may lose that much for good.  Loss above it counts as
    marks, which keeps the algorithm safe on networks that never mark: with a share q lost, the window settles at 2 / q packets,
    as it does with a share q marked.
    """

    def __init__(self, parameters: FlowParameters) -> None:
        super().__init__(parameters)
        self.alpha = 1.0
        self.threshold = math.inf

    @property
    def probing(self) -> bool:
        """Slow start."""
        return self.window < self.threshold

    def _every_feedback(self, sample: Sample) -> None:
        if self.window < self.threshold and sample.limited and not sample.marked:
            self.window = min(self.window + sample.delivered, max(self.threshold, self.window))

    def _end_of_round(self, sample: Sample, marked: float, excess: float, limited: bool) -> None:
        share = min(max(marked, excess), 1.0)
        gain = self.parameters.gain
        self.alpha = (1 - gain) * self.alpha + gain * min(marked, 1.0)
        growing = self.window < self.threshold
        if share > 0:
            # Growing by doubling ends in a window of twice what the path takes.
            self.window *= 1 - max(self.alpha if marked > 0 else 0.0, excess, 1.0 if growing else 0.0) / 2
            self.threshold = self.window
        if limited and (share > 0 or not growing):
            self.window += 1

    def on_timeout(self) -> None:
        self.threshold = max(self.window / 2, self.MINIMUM_WINDOW)
        super().on_timeout()


@register("delay")
class Delay(_Rounds):
    """Delay-based, after Swift (SIGCOMM 2020): grow below the target queueing delay, shrink in proportion to the excess.

    Time on hosts is left out as far as their kernels tell when packets came, as Swift's split of fabric and host delay has it; of
    what is left the smallest delay of a round counts: what stands in the queue delays every packet, a busy host only some.
    """

    BETA = 0.8
    MAX_DECREASE = 0.5

    def __init__(self, parameters: FlowParameters) -> None:
        super().__init__(parameters)
        self._queueing: int | None = None

    def _every_feedback(self, sample: Sample) -> None:
        queueing = sample.queueing
        if queueing is None:
            return
        self._queueing = queueing if self._queueing is None else min(self._queueing, queueing)
        if self._queueing <= self.parameters.target_delay_ns and sample.limited and not sample.marked:
            self.window += sample.delivered / max(self.window, 1.0) * max(1.0, self.window / 16)

    def _end_of_round(self, sample: Sample, marked: float, excess: float, limited: bool) -> None:
        decrease = 0.0
        if self._queueing is not None and self._queueing > self.parameters.target_delay_ns:
            over = self._queueing - self.parameters.target_delay_ns
            decrease = self.BETA * over / max(sample.smoothed_rtt, self._queueing)
        self._queueing = None
        decrease = max(decrease, excess / 2, marked / 2)
        self.window *= 1 - min(decrease, self.MAX_DECREASE)


@register("fixed")
class Fixed(CongestionControl):
    """Sends at the policy's rate whatever happens; for reserved paths, and for experiments."""

    def __init__(self, parameters: FlowParameters) -> None:
        super().__init__(parameters)
        if parameters.rate <= 0:
            raise ValueError("congestion control 'fixed' needs a rate > 0")
        self.window = float(parameters.max_window)

    def on_feedback(self, sample: Sample) -> None:
        """Feedback changes nothing."""

    def on_timeout(self) -> None:
        """Nor does silence."""

    def pacing_rate(self, smoothed_rtt: int) -> float | None:
        return self.parameters.rate
