"""Congestion feedback: tells senders what has come, when it is time."""

from __future__ import annotations

from typing import Final

from dlcp.transport.core import Core, microseconds
from dlcp.transport.peer import FEEDBACK_EVERY, MIN_FEEDBACK_DELAY_NS, Peer

FEEDBACK_TIMER: Final = "feedback"


class FeedbackSender:
    """Sends FEEDBACK: after so many packets, at once to who asks, and otherwise a little later."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def consider(self, flow: Peer, urgent: bool, now: int) -> None:
        """Something numbered has come from a peer: sends FEEDBACK if it is time, or to one that waits for it."""
        if urgent or flow.unreported >= FEEDBACK_EVERY:
            self.send(flow, now)
        elif flow.unreported:
            self._core.timers.set_earlier((FEEDBACK_TIMER, flow.rank, 0), now + flow.feedback_delay())

    def send(self, flow: Peer, now: int, *, repeat: bool = True) -> None:
        """Queues FEEDBACK and ends the interval; on a path that loses packets it is said once more if nothing comes of it."""
        core = self._core
        core.timers.cancel((FEEDBACK_TIMER, flow.rank, 0))
        core.counters["feedback_sent"] += 1
        core.send_control(flow.rank, core.build.feedback(flow.rank, microseconds(now), flow.feedback(core.window_per_peer, now)))
        if repeat and flow.incoming and flow.loses_lately:
            core.timers.set((FEEDBACK_TIMER, flow.rank, 0), now + 3 * flow.rtt.smoothed // 2 + MIN_FEEDBACK_DELAY_NS)

    def on_timer(self, flow: Peer, now: int) -> None:
        """Feedback has been held back for long enough; or nothing came of it, and a closed window may be waiting for it."""
        if flow.unreported:
            self.send(flow, now)
        elif flow.incoming:
            self.send(flow, now, repeat=False)
