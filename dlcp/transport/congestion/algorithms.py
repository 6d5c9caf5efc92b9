"""The three algorithms that come with DLCP.

All react once per round trip (a round is one window's worth of feedback).
"""

from __future__ import annotations

from abc import abstractmethod

from dlcp.transport.congestion.base import CongestionControl, FlowParameters, Sample, register


class _Rounds(CongestionControl):
    """Counts deliveries, losses and marks over rounds of one smoothed round trip."""

    def __init__(self, parameters: FlowParameters) -> None:
        super().__init__(parameters)
        self._round_end: int | None = None
        self._delivered = self._lost = self._marked = 0

    def on_feedback(self, sample: Sample) -> None:
        self._delivered += sample.delivered
        self._lost += max(sample.lost, 0)
        self._marked += sample.marked
        if self._round_end is None:
            self._round_end = sample.now + sample.smoothed_rtt
        self._every_feedback(sample)
        if sample.now >= self._round_end:
            total = self._delivered + self._lost
            if total:
                self._end_of_round(sample, self._marked / max(self._delivered, 1), self._lost / total)
            self._delivered = self._lost = self._marked = 0
            self._round_end = sample.now + sample.smoothed_rtt
        self._clamp()

    @abstractmethod
    def _every_feedback(self, sample: Sample) -> None:
        """Called for each feedback, before a round ends."""

    @abstractmethod
    def _end_of_round(self, sample: Sample, marked: float, lost: float) -> None:
        """Called once a round with the shares of marked and of lost packets."""


@register("dctcp")
class Dctcp(_Rounds):
    """DCTCP-like: additive increase, decrease in proportion to the share of marked packets (RFC 8257).

    Loss below the tolerated share is no signal: a loss-bounded transport may lose that much for good.  Loss above it counts as
    marks, which keeps the algorithm safe on networks that never mark.
    """

    def __init__(self, parameters: FlowParameters) -> None:
        super().__init__(parameters)
        self.alpha = 1.0
        self.slow_start = True

    def _every_feedback(self, sample: Sample) -> None:
        if self.slow_start and sample.limited and not sample.marked:
            self.window += sample.delivered

    def _end_of_round(self, sample: Sample, marked: float, lost: float) -> None:
        excess = lost if lost > self.parameters.loss_tolerance else 0.0
        share = min(max(marked, excess), 1.0)
        gain = self.parameters.gain
        self.alpha = (1 - gain) * self.alpha + gain * share
        if share > 0:
            self.slow_start = False
            self.window *= 1 - max(self.alpha, excess) / 2
        elif not self.slow_start and sample.limited:
            self.window += 1


@register("delay")
class Delay(_Rounds):
    """Delay-based, after Swift (SIGCOMM 2020): grow below the target queueing delay, shrink in proportion to the excess."""

    BETA = 0.8
    MAX_DECREASE = 0.5

    def _every_feedback(self, sample: Sample) -> None:
        if sample.rtt is None or sample.marked:
            return
        if sample.rtt - sample.minimum_rtt <= self.parameters.target_delay_ns and sample.limited:
            self.window += sample.delivered / max(self.window, 1.0) * max(1.0, self.window / 16)

    def _end_of_round(self, sample: Sample, marked: float, lost: float) -> None:
        decrease = 0.0
        if sample.rtt is not None:
            target = sample.minimum_rtt + self.parameters.target_delay_ns
            if sample.rtt > target:
                decrease = self.BETA * (sample.rtt - target) / sample.rtt
        if lost > self.parameters.loss_tolerance:
            decrease = max(decrease, lost / 2)
        decrease = max(decrease, marked / 2)
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
