"""Everything an endpoint knows about one peer: the flow towards it, and what came from it.

Packets that need an answer (data, probes, pings) are numbered per flow.  A receiver reports the highest number it has seen and
how many numbered packets came; what was passed over and is not counted is lost or late.  That is enough for congestion control
and needs no order.

In flight is what was numbered after the highest number reported, and what was passed over but may still be late.  As long as
nothing has ever been late on this path, what is passed over counts as lost at once; after that only what has been missing for a
whole round trip does (the idea of RACK, RFC 8985: reordering costs time, and must not cost rate).

The window holds for each class with the more urgent ones; for all classes together it is two windows.  Were there but one, it
would fill up with packets that wait in switches behind urgent ones of *other* pairs, and the pair's own urgent ones could not
leave: an inversion of priorities that makes classes worse than none (``sim/experiments/mechanisms``).  Which packets arrived
feedback does not tell; the most urgent come first, so they count as those.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlcp.transport.congestion import CongestionControl, Sample
from dlcp.transport.finished import FinishedMessages
from dlcp.transport.incoming import IncomingMessage
from dlcp.transport.intake_layout import P_ECHO, P_HIGHEST, P_WAITED
from dlcp.transport.ordering import MIN_WINDOW_NS, UNKNOWN_WINDOW_NS, Ordering
from dlcp.transport.outgoing import OutgoingMessage
from dlcp.transport.rtt import PathDelay, RttEstimator
from dlcp.transport.serial import MASK, ahead
from dlcp.wire.header import CONTROL_CLASS

FEEDBACK_EVERY: Final = 16
"""Numbered packets after which feedback is due at once."""
FEEDBACK_DELAY_NS: Final = 500_000
"""Longest time for which feedback is held back as long as no round trip has been measured."""
LONG_FEEDBACK_DELAY_NS: Final = 5_000_000
"""Longest time for which it is held back at all."""
MIN_FEEDBACK_DELAY_NS: Final = 100_000
"""Shortest such time."""
PACING_QUANTUM_NS: Final = 1_000_000
"""A paced flow may send this much time's worth in one go, as Linux sizes its TSO bursts; a part of a round trip if longer."""
PACING_SHARE: Final = 8
"""Which part: several flows that meet at a port with half a window each at once fill its queue, though they need not."""
COLLAPSE_TIMEOUTS: Final = 7
"""Probe timeouts of silence that make a loss persistent congestion: three in a row, each twice as long as the one before."""
CLEAN_RUN: Final = 1024
"""Packets in a row, none lost, after which a path is taken for one that loses nothing."""


class Expected(NamedTuple):
    """What is known of a message before it comes: its length, and where it shall go if that matters."""

    length: int
    buffer: NDArray[np.uint8] | None


PACING_CATCH_UP_NS: Final = 20_000_000
"""How much lateness of its timer a paced flow may make up for."""


class Peer:
    """State shared with one peer.

    Args:
        rank: The peer.
        control: Congestion control of the flow towards it.
        rtt: Estimator of the path.
        packet_bytes: UDP payload bytes of a full packet.
        finished: Where what is complete is remembered.
        block: What is counted of its packets: its block in the memory of :mod:`dlcp.transport.intake`.
        now: Nanoseconds.
    """

    def __init__(
        self,
        rank: int,
        control: CongestionControl,
        rtt: RttEstimator,
        packet_bytes: int,
        finished: FinishedMessages,
        block: memoryview,
        now: int,
    ) -> None:
        self.rank = rank
        self.block = block
        self.control = control
        self.rtt = rtt
        self.path = PathDelay()
        self.packet_bytes = packet_bytes
        self.outgoing: dict[int, OutgoingMessage] = {}
        self.incoming: dict[int, IncomingMessage] = {}
        self.last_heard = now
        self.expected: dict[int, Expected] = {}
        self.unclaimed: dict[int, int] = {}
        """Early messages that are complete but were never expected, with their length."""
        self.refused: dict[int, int] = {}
        """Early messages that found no memory, with the sequence number of their last probe."""
        self.disputed: set[int] = set()
        """Messages about whose length this rank and the peer disagree."""
        self.finished = finished
        self.waiting_since = now
        self.silent = False
        self.left = False
        self.aborted = False
        # Towards the peer.
        self.next_sequence = 1
        self.acknowledged = 0
        self.peer_window: int | None = None
        self.unanswered = 0
        self.last_class = CONTROL_CLASS
        self.quiet_since = now
        self.delivered_since_loss = 0
        self.probing: dict[int, int] = {}
        """Messages that were sent and are not acknowledged: the sequence number of the last probe, or packet; in that order."""
        self._ready: list[tuple[int, int, int, OutgoingMessage]] = []
        self._tickets = 0
        self._reported_received = 0
        self._reported_marked = 0
        self._passed_over = 0
        self._out = [0] * (CONTROL_CLASS + 1)
        self._late_seen = False
        self._least_passed_over = 0
        self._round_end = now
        self._release = 0
        self._blocked_by_window = False
        self._held_by_pacer = False
        # From the peer.
        self.received = 0
        self.marked = 0
        self.trimmed = 0
        self.echo_arrival = now
        self.echo_waited = 0
        self.queue_depth = 0
        self.unreported = 0
        self.last_data = now
        self._gap = 0
        self._gap_widened_at: int | None = None
        self.ordering = Ordering(block)

    def heard(self, now: int) -> None:
        """Something genuine came from the peer."""
        self.last_heard = now
        self.silent = False
        self.finished.heard(now)

    def drop_messages(self) -> None:
        """Forgets every message in either direction."""
        self.outgoing.clear()
        self.incoming.clear()
        self.finished.clear()
        self.probing.clear()
        self._ready.clear()

    # -- towards the peer ------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Numbered packets of which the peer has not reported that they came, and that do not count as lost."""
        beyond = ahead(self.next_sequence - 1, self.acknowledged) + self._passed_over
        return beyond if beyond > 0 else 0

    @property
    def lossy(self) -> bool:
        """The path has been losing packets lately, or is too new to tell."""
        return self.delivered_since_loss < CLEAN_RUN

    def enqueue(self, message: OutgoingMessage) -> None:
        """Makes a message with packets left eligible for sending, or moves it to where it now belongs."""
        if message.remaining and (not message.ticket or message.precedence != message.queued_precedence):
            heapq.heappush(self._ready, self._entry(message))

    def next_message(self) -> OutgoingMessage | None:
        """Returns the most urgent message that has packets to send, without removing it."""
        while self._ready:
            _, _, ticket, message = self._ready[0]
            # Entries are not removed when a message moves up or is gone: only the one that holds the latest ticket counts.
            if ticket == message.ticket:
                if message.remaining and self.outgoing.get(message.message) is message:
                    return message
                message.ticket = 0
            heapq.heappop(self._ready)
        return None

    def requeue(self, message: OutgoingMessage) -> None:
        """Puts the head of the queue, from which packets were taken, where it now belongs."""
        if message.remaining:
            heapq.heapreplace(self._ready, self._entry(message))
        else:
            heapq.heappop(self._ready)
            message.ticket = 0

    def _entry(self, message: OutgoingMessage) -> tuple[int, int, int, OutgoingMessage]:
        self._tickets += 1
        message.ticket = self._tickets
        message.queued_precedence = message.precedence
        return (-message.queued_precedence, message.order, message.ticket, message)

    def start_waiting(self, now: int) -> None:
        """Something is sent to the peer or expected from it: if nothing was before, its silence counts from now."""
        if not self.outgoing and not self.expected:
            self.waiting_since = now

    def number(self, count: int, now: int, priority: int) -> int:
        """Draws ``count`` sequence numbers for packets of a class and returns the first."""
        if self.in_flight == 0:
            self.quiet_since = now
        self._out[priority] += count
        first = self.next_sequence & MASK
        self.next_sequence = (self.next_sequence + count) & MASK
        return first

    def room(self, priority: int) -> int:
        """Returns how many packets of a class the window allows."""
        window = max(int(self.control.window), 1)
        most = 2 * window
        if self.peer_window is not None:
            most = max(min(most, self.peer_window // self.packet_bytes), 1)
            window = min(window, most)
        flying = self.in_flight
        if flying < window:
            return window - flying
        return min(window - sum(self._out[priority:]), most - flying)

    def allowance(self, now: int, priority: int, before: int = 0) -> int:
        """Returns how many packets of a class window and pace allow now, after ``before`` that it is yet to be charged with."""
        room = self.room(priority)
        self._blocked_by_window = room <= 0
        if room <= 0:
            return 0
        rate = self.control.pacing_rate(self.rtt.smoothed)
        if rate is None:
            return room
        if now < self._release:
            self._held_by_pacer = True
            return 0
        # A timer that fires late must not slow the flow down: what it has missed may go now.
        late = min(now - self._release, PACING_CATCH_UP_NS) if self._held_by_pacer else 0
        quantum = max(PACING_QUANTUM_NS, self.rtt.smoothed // PACING_SHARE)
        return min(room, max(1, int(rate * (quantum + late) / 1e9) // self.packet_bytes) - before)

    def sent(self, wire_bytes: int, now: int) -> None:
        """Charges the pacer."""
        rate = self.control.pacing_rate(self.rtt.smoothed)
        if rate:
            earliest = now - PACING_CATCH_UP_NS if self._held_by_pacer else now
            self._release = max(self._release, earliest) + int(wire_bytes * 1e9 / rate)
            self._held_by_pacer = False

    def release_time(self, now: int) -> int | None:
        """Returns when the pacer lets the next packet go, if it and not the window holds it back."""
        return self._release if now < self._release and not self._blocked_by_window else None

    def on_feedback(self, body: dict[str, int], now: int, waited_us: int = 0) -> bool:
        """Takes a feedback body; returns False if it was older than what is known, or claims what was never sent.

        ``waited_us``: how long it waited on this host before it was taken.
        """
        highest = body["highest_sequence"]
        progress = ahead(highest, self.acknowledged)
        if progress < 0 or ahead(highest, self.next_sequence - 1) > 0:
            return False
        received = ahead(body["received"], self._reported_received)
        if received < 0 and progress == 0:
            return False
        # More is known to have arrived, yet fewer packets in all: what was believed before was wrong.  Start from here.
        received = max(received, 0)
        limited = self._blocked_by_window or self.in_flight >= int(self.control.window) // 2
        marked = max(ahead((body["marked"] + body["trimmed"]) & MASK, self._reported_marked), 0)
        rtt: int | None = None
        queueing: int | None = None
        if progress > 0:
            elapsed_us = ahead(now // 1000 & MASK, body["timestamp_echo"]) - body["delay"]
            if 0 <= elapsed_us:
                rtt = elapsed_us * 1000
                before = self.control.pacing_rate(self.rtt.smoothed) if self.rtt.minimum is None else None
                self.rtt.sample(rtt)
                queueing = self.path.sample(max(elapsed_us - 10 * body["wait"] - waited_us, 1) * 1000, now)
                if before and now < self._release:
                    # What was sent so far was charged as if a round trip took what is assumed before one is known.
                    faster = (self.control.pacing_rate(self.rtt.smoothed) or before) / before
                    self._release = now + int((self._release - now) / faster)
        self.acknowledged = highest
        self._reported_received = body["received"]
        self._reported_marked = (body["marked"] + body["trimmed"]) & MASK
        self.peer_window = body["window"]
        self.unanswered = 0
        silence, self.quiet_since = now - self.quiet_since, now
        lost = self._losses(progress, received, now)
        self.delivered_since_loss = 0 if lost else self.delivered_since_loss + received
        self._note_arrived()
        self.control.on_feedback(
            Sample(
                now=now,
                delivered=received,
                lost=lost,
                marked=min(marked, received),
                rtt=rtt,
                smoothed_rtt=self.rtt.smoothed,
                queueing=queueing,
                limited=limited,
            )
        )
        if silence >= COLLAPSE_TIMEOUTS * self.rtt.probe_timeout() and 2 * lost > progress:
            self.control.on_timeout()
        return True

    def _note_arrived(self) -> None:
        """Fewer packets are under way than were counted by class."""
        excess = sum(self._out) - self.in_flight
        if excess <= 0:
            return
        for priority in range(CONTROL_CLASS, -1, -1):
            if excess <= 0:
                return
            gone = min(self._out[priority], excess)
            self._out[priority] -= gone
            excess -= gone

    def _losses(self, progress: int, received: int, now: int) -> int:
        """Returns how many packets count as lost from now on; moves packets between in flight, late and lost."""
        if received > progress:
            # More came than was passed: some had been overtaken (or were duplicated on the way).
            self._late_seen = True
        self._passed_over = max(self._passed_over + progress - received, 0)
        if not self._late_seen:
            lost, self._passed_over = self._passed_over, 0
            return lost
        self._least_passed_over = min(self._least_passed_over, self._passed_over)
        if now < self._round_end:
            return 0
        lost = self._least_passed_over
        self._passed_over -= lost
        self._least_passed_over = self._passed_over
        # Urgent packets overtake others, and the round trip may have been measured with either.
        self._round_end = now + self.rtt.smoothed + 4 * self.rtt.variation
        return lost

    # -- from the peer ---------------------------------------------------------------------------------------------------

    @property
    def highest(self) -> int:
        """Highest sequence number that has come."""
        highest: int = self.block[P_HIGHEST]
        return highest

    def note_arrivals(self, now: int) -> None:
        """Takes the count of numbered packets in a batch from the block."""
        _, count, marked, depth, _, newest = self.block[:P_HIGHEST].tolist()
        if newest:
            self.echo_arrival = now
            self.echo_waited = self.block[P_WAITED]
        self.received = (self.received + count) & MASK
        self.marked = (self.marked + marked) & MASK
        self.queue_depth = max(self.queue_depth, depth)
        self.unreported += count

    def feedback(self, window: int, now: int) -> dict[str, int]:
        """Returns the columns of a feedback body and starts a new interval."""
        self.unreported = 0
        gap = (self.highest - self.received) & MASK
        if gap != self._gap:
            self._gap, self._gap_widened_at = gap, self.received
        depth, self.queue_depth = self.queue_depth, 0
        return {
            "highest_sequence": self.highest,
            "received": self.received,
            "marked": self.marked,
            "trimmed": self.trimmed,
            "timestamp_echo": self.block[P_ECHO],
            "delay": min((now - self.echo_arrival) // 1000, MASK),
            "window": min(window, MASK),
            "queue_depth": depth,
            "wait": min(self.echo_waited // 10, 0xFFFF),
        }

    def answer_delay(self, seen: bool) -> int:
        """Returns how long to wait for the answer to a probe on news that the peer has seen it, or something sent after it.

        Args:
            seen: The probe itself was the last to arrive; else it may be under way still, if packets overtake each other here.
        """
        rtt = self.rtt
        if rtt.minimum is None:
            return 2 * UNKNOWN_WINDOW_NS
        return max(rtt.minimum // 4 if seen or not self._late_seen else rtt.smoothed, 2 * MIN_WINDOW_NS)

    @property
    def loses_lately(self) -> bool:
        """Packets from the peer have been getting lost (or duplicated, or late)."""
        since = self._gap_widened_at
        return since is not None and 0 <= ahead(self.received, since) < CLEAN_RUN

    def feedback_delay(self) -> int:
        """Returns how long feedback may be held back: a flow with a small window waits for it."""
        rtt = self.rtt
        longest = FEEDBACK_DELAY_NS if rtt.minimum is None else LONG_FEEDBACK_DELAY_NS
        return min(max(rtt.smoothed // 4, MIN_FEEDBACK_DELAY_NS), longest)
