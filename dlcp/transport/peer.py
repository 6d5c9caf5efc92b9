"""Everything an endpoint knows about one peer: the flow towards it, and what came from it.

Packets that need an answer (data, probes, pings) are numbered per flow.  A receiver reports the highest number it has seen and
how many numbered packets came; what was passed over and is not counted is lost or late.  That is enough for congestion control
and needs no order: in flight is what was numbered after the highest number reported.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dlcp.transport.congestion import CongestionControl, Sample
from dlcp.transport.incoming import IncomingMessage
from dlcp.transport.outgoing import OutgoingMessage
from dlcp.transport.rtt import RttEstimator
from dlcp.transport.serial import MASK, ahead, ahead_array
from dlcp.wire.header import HEADER_BYTES

FEEDBACK_EVERY: Final = 16
"""Numbered packets after which feedback is due at once."""
FEEDBACK_DELAY_NS: Final = 500_000
"""Longest time for which feedback is held back."""
PACING_QUANTUM_NS: Final = 1_000_000
"""A paced flow may send this much time's worth in one go, as Linux sizes its TSO bursts."""


class Peer:
    """State shared with one peer.

    Args:
        rank: The peer.
        control: Congestion control of the flow towards it.
        rtt: Estimator of the path.
        packet_bytes: UDP payload bytes of a full packet.
        now: Nanoseconds.
    """

    def __init__(self, rank: int, control: CongestionControl, rtt: RttEstimator, packet_bytes: int, now: int) -> None:
        self.rank = rank
        self.control = control
        self.rtt = rtt
        self.packet_bytes = packet_bytes
        self.outgoing: dict[int, OutgoingMessage] = {}
        self.incoming: dict[int, IncomingMessage] = {}
        self.last_heard = now
        self.waiting_since: int | None = None
        self.left = False
        # Towards the peer.
        self.next_sequence = 1
        self.acknowledged = 0
        self.peer_window: int | None = None
        self.unanswered = 0
        self._ready: list[tuple[int, int, OutgoingMessage]] = []
        self._reported_received = 0
        self._reported_marked = 0
        self._release = 0
        self._blocked_by_window = False
        # From the peer.
        self.highest = 0
        self.received = 0
        self.marked = 0
        self.trimmed = 0
        self.echo_timestamp = 0
        self.echo_arrival = now
        self.queue_depth = 0
        self.unreported = 0
        self.reordering_seen = False
        self.control_queue: deque[NDArray[np.uint8]] = deque()

    # -- towards the peer ------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Numbered packets beyond the highest that the peer has reported."""
        return ahead(self.next_sequence - 1, self.acknowledged)

    def enqueue(self, message: OutgoingMessage) -> None:
        """Makes a message with packets left eligible for sending."""
        if not message.queued and message.remaining:
            message.queued = True
            heapq.heappush(self._ready, (-message.urgency, message.order, message))

    def next_message(self) -> OutgoingMessage | None:
        """Returns the most urgent message that has packets to send, without removing it."""
        while self._ready:
            message = self._ready[0][2]
            if message.remaining and self.outgoing.get(message.message) is message:
                return message
            heapq.heappop(self._ready)
            message.queued = False
        return None

    def requeue(self, message: OutgoingMessage) -> None:
        """Puts the head of the queue, from which packets were taken, where it now belongs."""
        if message.remaining:
            heapq.heapreplace(self._ready, (-message.urgency, message.order, message))
        else:
            heapq.heappop(self._ready)
            message.queued = False

    def number(self, count: int) -> int:
        """Draws ``count`` sequence numbers and returns the first."""
        first = self.next_sequence & MASK
        self.next_sequence = (self.next_sequence + count) & MASK
        return first

    def allowance(self, now: int) -> int:
        """Returns how many packets window and pace allow now."""
        window = int(self.control.window)
        if self.peer_window is not None:
            window = min(window, self.peer_window // self.packet_bytes)
        room = max(window, 1) - self.in_flight
        self._blocked_by_window = room <= 0
        if room <= 0:
            return 0
        rate = self.control.pacing_rate(self.rtt.smoothed)
        if rate is None:
            return room
        if now < self._release:
            return 0
        return min(room, max(1, int(rate * PACING_QUANTUM_NS / 1e9) // self.packet_bytes))

    def sent(self, wire_bytes: int, now: int) -> None:
        """Charges the pacer."""
        rate = self.control.pacing_rate(self.rtt.smoothed)
        if rate:
            self._release = max(self._release, now) + int(wire_bytes * 1e9 / rate)

    def release_time(self, now: int) -> int | None:
        """Returns when the pacer lets the next packet go, if it and not the window holds it back."""
        return self._release if now < self._release and not self._blocked_by_window else None

    def on_feedback(self, body: dict[str, int], now: int) -> bool:
        """Takes a feedback body; returns False if it was older than what is known."""
        highest = body["highest_sequence"]
        progress = ahead(highest, self.acknowledged)
        if progress < 0 or ahead(highest, self.next_sequence - 1) > 0:
            return False
        received = ahead(body["received"], self._reported_received)
        if received < 0:
            return False
        limited = self._blocked_by_window or self.in_flight >= int(self.control.window) // 2
        marked = max(ahead((body["marked"] + body["trimmed"]) & MASK, self._reported_marked), 0)
        rtt: int | None = None
        if progress > 0:
            elapsed_us = ahead(now // 1000 & MASK, body["timestamp_echo"]) - body["delay"]
            if 0 <= elapsed_us:
                rtt = elapsed_us * 1000
                self.rtt.sample(rtt)
        self.acknowledged = highest
        self._reported_received = body["received"]
        self._reported_marked = (body["marked"] + body["trimmed"]) & MASK
        self.peer_window = body["window"]
        self.unanswered = 0
        self.control.on_feedback(
            Sample(
                now=now,
                delivered=received,
                lost=progress - received,
                marked=min(marked, received),
                rtt=rtt,
                smoothed_rtt=self.rtt.smoothed,
                minimum_rtt=self.rtt.minimum or self.rtt.smoothed,
                limited=limited,
            )
        )
        return True

    # -- from the peer ---------------------------------------------------------------------------------------------------

    def note_arrivals(
        self,
        sequences: NDArray[np.uint32],
        timestamps: NDArray[np.uint32],
        marked: int,
        queue_depth: int,
        now: int,
    ) -> None:
        """Counts numbered packets that came in one batch (arrays in order of arrival)."""
        distance = ahead_array(sequences, self.highest)
        top = int(distance.argmax())
        if not self.reordering_seen and (distance[0] < 0 or (distance.size > 1 and bool((np.diff(distance) < 0).any()))):
            self.reordering_seen = True
        if distance[top] > 0:
            self.highest = int(sequences[top])
            self.echo_timestamp = int(timestamps[top])
            self.echo_arrival = now
        count = int(sequences.size)
        self.received = (self.received + count) & MASK
        self.marked = (self.marked + marked) & MASK
        self.queue_depth = max(self.queue_depth, queue_depth)
        self.unreported += count

    def feedback(self, window: int, now: int) -> dict[str, int]:
        """Returns the columns of a feedback body and starts a new interval."""
        self.unreported = 0
        depth, self.queue_depth = self.queue_depth, 0
        return {
            "highest_sequence": self.highest,
            "received": self.received,
            "marked": self.marked,
            "trimmed": self.trimmed,
            "timestamp_echo": self.echo_timestamp,
            "delay": min((now - self.echo_arrival) // 1000, MASK),
            "window": min(window, MASK),
            "queue_depth": depth,
        }

    def reordering_window(self) -> int:
        """Returns how long to wait for stragglers before calling them lost (RACK, RFC 8985): none until reordering is seen."""
        if not self.reordering_seen:
            return 0
        return max(self.rtt.smoothed // 4, 100_000)

    @property
    def headroom(self) -> int:
        """Bytes of a full packet on the wire, header included."""
        return self.packet_bytes + HEADER_BYTES
