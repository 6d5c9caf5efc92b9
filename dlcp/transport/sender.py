"""The sending half of an endpoint: schedules packets of all messages to all peers, probes until each is acknowledged.

What happens when an answer does not come, fastest first:

* Feedback says that packets after a probe have arrived, or the probe itself, but no answer to it has: probe again after a
  fraction of a round trip.
* No feedback at all: probe again after the probe timeout (RFC 9002, section 6.2), doubling up to the policy's limit.  While a
  closed window keeps data from being sent, PING takes the probe's place.
* Feedback comes after several such timeouts, and most of what was in flight is lost: the congestion window collapses (persistent
  congestion, RFC 9002, section 7.6).  Silence alone is no reason: the host at the other end may have been busy, and a closed
  window keeps the network safe meanwhile.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from dlcp.transport.core import Core, microseconds
from dlcp.transport.events import Indices, MessageSent, MessageUnknown, describe
from dlcp.transport.incoming import unpack_bitmap
from dlcp.transport.outgoing import DataBurst, OutgoingMessage
from dlcp.transport.packets import Burst, control_burst
from dlcp.transport.peer import FEEDBACK_EVERY, Peer
from dlcp.transport.serial import MASK, ahead
from dlcp.wire.header import CONTROL_CLASS, OVER, REPORT_BODY

TRANSMIT_BYTES: Final = 8 << 20
"""What one call hands out at most, so that receiving gets its turn."""
PEER_QUANTUM_BYTES: Final = 4 << 20
"""What one peer may send before the next one gets its turn."""

_ORDER_BITS: Final = 48
_SENT: Final = [f"sent_class_{priority}" for priority in range(8)]
PROBE_TIMER: Final = "probe"
PING_TIMER: Final = "ping"


class Sender:
    """Sends messages; see the module docs of :mod:`dlcp.transport.outgoing` for a message's life."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._order = 0
        self._tos = [core.policy.tos(priority, bool(protected)) for priority in range(8) for protected in (0, 1)]
        ranks = sorted(core.peers)
        # Start at the next rank up: if all started at rank 0, it would receive from everybody at once.
        split = sum(rank < core.identity.rank for rank in ranks)
        self._turn = [core.peers[rank] for rank in ranks[split:] + ranks[:split]]

    def send(
        self, peer: int, message: int, payload: NDArray[np.uint8], tags: NDArray[np.uint8], bound: int, now: int, order: int = 0
    ) -> None:
        """Queues a message.

        Raises:
            ValueError: The id is in use towards this peer, or shape and size do not fit.
        """
        core = self._core
        flow = core.peers[peer]
        if message in flow.outgoing:
            raise ValueError(f"{describe(message)} is on its way to rank {peer} already")
        identity = core.identity
        self._order += 1
        order = (order << _ORDER_BITS) + self._order
        out = OutgoingMessage(identity.rank, peer, identity.cookie, message, payload, core.stride, tags, bound, order)
        if out.packets > core.max_packets:
            raise ValueError(f"message of {out.packets} packets, one report lists {core.max_packets}; cut it into parts")
        flow.start_waiting(now)
        flow.outgoing[message] = out
        flow.enqueue(out)

    def transmit(self, now: int, budget: int = TRANSMIT_BYTES) -> list[Burst]:
        """Hands out what windows and pacers allow now, at most about ``budget`` bytes: the most urgent first, for whomever."""
        bursts: list[Burst] = []
        turn = self._turn
        # Pacers are charged at the end: what one allows now is for all classes.
        sent: dict[int, tuple[int, int]] = {}
        waiting = [(flow, message.standing) for flow in turn if (message := flow.next_message()) is not None]
        while waiting and budget > 0:
            level = max(standing for _, standing in waiting)
            group = [flow for flow, standing in waiting if standing == level]
            waiting = [entry for entry in waiting if entry[1] != level]
            share = min(max(budget // len(group), self._core.packet_bytes), PEER_QUANTUM_BYTES)
            for flow in group:
                if budget <= 0:
                    break
                packets, charge = sent.get(flow.rank, (0, 0))
                count, used, message = self._serve(flow, min(share, budget), level, packets, bursts, now)
                sent[flow.rank] = packets + count, charge + used
                budget -= used
                if message is not None:
                    waiting.append((flow, message.standing))
        for rank, (count, used) in sent.items():
            if count:
                self._core.peers[rank].sent(used, now)
        self._turn = turn[1:] + turn[:1]
        return bursts

    def release_time(self, now: int) -> int | None:
        """Returns when a pacer next allows what is queued."""
        times = [t for flow in self._turn if flow.next_message() is not None and (t := flow.release_time(now)) is not None]
        return min(times, default=None)

    def _serve(
        self, flow: Peer, budget: int, level: int, before: int, bursts: list[Burst], now: int
    ) -> tuple[int, int, OutgoingMessage | None]:
        """Hands out packets to one peer, of class ``level`` or above, whether sent before or not; ``before`` so many now.

        Returns:
            Packets and bytes handed out, and what could be sent next if it were its turn; None if nothing could.
        """
        message = flow.next_message()
        if message is None:
            return 0, 0, None
        allowed = flow.allowance(now, message.standing, before)
        allowance = min(allowed, max(budget // self._core.packet_bytes, 1))
        used = sent = 0
        timestamp = microseconds(now)
        while allowance > 0 and message is not None and message.standing >= level:
            priority = message.urgency
            indices, again = message.take(allowance)
            count = int(indices.size)
            tos = self._tos[priority * 2 + (int(message.tags[indices[0]]) & 1)]
            burst = DataBurst(tos, message, indices, again, flow.number(count, now, priority), timestamp)
            bursts.append(burst)
            self._core.counters["retransmitted" if again else _SENT[priority]] += count
            used += burst.most_bytes
            allowance -= count
            sent += count
            flow.last_class = priority
            probed = None if message.remaining else message
            flow.requeue(message)
            message = flow.next_message()
            if message is not None:
                # Behind this class another one may come, of which fewer packets are allowed.
                room = flow.room(message.standing)
                allowance, allowed = min(allowance, room), min(allowed, sent + room)
            if probed is not None:
                probed.probe_priority = priority
                if flow.lossy or flow.rtt.minimum is None:
                    # With nothing behind it, only a timeout would tell that this probe was lost.
                    self._probe(flow, probed, bursts, now, copies=2 if message is None and flow.lossy else 1)
                else:
                    # Where nothing gets lost the receiver knows by itself that it has all; ask only if it does not say so
                    # although feedback, or a timeout, says that it should by now.
                    probed.attempt = -1
                    flow.probing.pop(probed.message, None)
                    flow.probing[probed.message] = (flow.next_sequence - 1) & MASK
                    self._core.timers.set((PROBE_TIMER, flow.rank, probed.message), now + flow.rtt.probe_timeout())
        if message is not None and flow.in_flight and (PING_TIMER, flow.rank, 0) not in self._core.timers:
            self._core.timers.set((PING_TIMER, flow.rank, 0), now + flow.rtt.probe_timeout(flow.unanswered))
        return sent, used, message if allowed > sent else None

    def _probe(self, flow: Peer, message: OutgoingMessage, bursts: list[Burst], now: int, copies: int = 1) -> None:
        core = self._core
        tos = core.policy.tos(message.probe_priority, True)
        # Zero in a report means that no probe is answered.
        asked = message.probe_priority
        sequences = [flow.number(1, now, asked) or flow.number(1, now, asked) for _ in range(copies)]
        bursts.extend(control_burst(flow.rank, tos, message.probe(s, microseconds(now))) for s in sequences)
        core.counters["probes"] += copies
        flow.probing.pop(message.message, None)
        flow.probing[message.message] = sequences[0]
        core.timers.set((PROBE_TIMER, flow.rank, message.message), now + flow.rtt.probe_timeout(message.attempt))

    # -- answers ---------------------------------------------------------------------------------------------------------

    def on_report(self, peer: int, message: int, body: NDArray[np.uint8], final: bool, now: int) -> None:
        """Takes STATUS (``final`` false) or STOP: ``body`` is what follows the header.

        Raises:
            ValueError: The report does not fit the message.
        """
        core = self._core
        flow = core.peers[peer]
        out = flow.outgoing.get(message)
        if out is None:
            core.counters["stale_report"] += 1
            return
        report = REPORT_BODY.decode_one(body[: REPORT_BODY.size])
        if report["busy"] and not final:
            if report["busy"] == OVER:
                self._forget(flow, out)
                core.events.append(MessageUnknown(peer, message))
            core.counters["busy"] += 1
            # It says so itself as soon as it has room, and need not be asked as often as about losses.
            out.busy = True
            return
        missing = _missing(report, body[REPORT_BODY.size :], out, final)
        if final:
            self._finish(flow, out, missing)
        else:
            self._on_status(flow, out, missing, report, now)

    def _on_status(self, flow: Peer, out: OutgoingMessage, missing: Indices, report: dict[str, int], now: int) -> None:
        core = self._core
        if report["echo"] == 0:
            core.counters["trim_requests"] += int(missing.size)
            if out.remaining > 2 * out.packets:
                # No switch trims that much: a peer that has gone mad must not fill our memory.
                return
        elif out.remaining or out.probe_round is None or ahead(report["echo"], out.probe_round) < 0:
            core.counters["stale_report"] += 1
            return
        core.timers.cancel((PROBE_TIMER, flow.rank, out.message))
        flow.probing.pop(out.message, None)
        out.resend(missing, report["needed"])
        flow.enqueue(out)

    def _forget(self, flow: Peer, out: OutgoingMessage) -> None:
        del flow.outgoing[out.message]
        flow.probing.pop(out.message, None)
        self._core.timers.cancel((PROBE_TIMER, flow.rank, out.message))

    def _finish(self, flow: Peer, out: OutgoingMessage, lost: Indices) -> None:
        core = self._core
        self._forget(flow, out)
        for index in lost.tolist():
            core.counters[f"given_up_class_{int(out.tags[index]) >> 1}"] += 1
        core.evenness.sent(out.message, out.packets, int(lost.size), out.bound)
        core.events.append(MessageSent(flow.rank, out.message, lost))

    def on_feedback(self, peer: int, body: dict[str, int], now: int, waited_us: int) -> None:
        """Takes FEEDBACK, which waited so many microseconds on this host."""
        core = self._core
        flow = core.peers[peer]
        unknown = flow.rtt.minimum is None
        if not flow.on_feedback(body, now, waited_us):
            core.counters["stale_feedback"] += 1
            return
        ping = (PING_TIMER, peer, 0)
        if not flow.in_flight or flow.next_message() is None:
            core.timers.cancel(ping)
        elif flow.acknowledged == (flow.next_sequence - 1) & MASK:
            # Only stragglers are out, and nothing that would draw feedback: do not wait for a timeout to count them as lost.
            core.timers.set(ping, now + flow.rtt.smoothed // 2)
        else:
            core.timers.set(ping, now + flow.rtt.probe_timeout())
        self._hasten(flow, unknown, now)

    def _hasten(self, flow: Peer, everything: bool, now: int) -> None:
        """Brings forward the timers of probes that the peer has seen, or seen overtaken, without an answer so far."""
        core = self._core
        passed = []
        for message, sequence in flow.probing.items():
            beyond = ahead(sequence, flow.acknowledged)
            if beyond > (FEEDBACK_EVERY if flow.lossy else 0):
                break
            out = flow.outgoing[message]
            if out.busy:
                passed.append(message)
                continue
            if beyond > 0:
                # It left right behind what has arrived, so it should be there by now too, and feedback about it on its way.
                allowed = max(flow.rtt.minimum or flow.rtt.smoothed, flow.feedback_delay())
            else:
                passed.append(message)
                allowed = flow.answer_delay(beyond == 0)
                # The path works: timeouts need not back off any more (RFC 9002, section 6.2.1).
                out.attempt = min(out.attempt, 0)
            delay = min(allowed << min(out.nudges, 16), flow.rtt.probe_timeout())
            core.timers.set_earlier((PROBE_TIMER, flow.rank, message), now + delay)
        for message in passed:
            del flow.probing[message]
        if everything and flow.rtt.minimum is not None:
            # These were armed when the round trip was anybody's guess.
            for message in flow.probing:
                deadline = now + flow.rtt.probe_timeout(max(flow.outgoing[message].attempt, 0))
                core.timers.set_earlier((PROBE_TIMER, flow.rank, message), deadline)

    # -- timers ----------------------------------------------------------------------------------------------------------

    def on_probe_timer(self, peer: int, message: int, now: int) -> None:
        """A probe went unanswered: probe again, more slowly each time."""
        core = self._core
        flow = core.peers[peer]
        out = flow.outgoing.get(message)
        if out is None or out.remaining:
            return
        out.attempt += 1
        out.nudges += 1
        # Two, as RFC 9002, section 6.2.4 allows, unless nothing else gets lost and the probes of other messages ask as well.
        self._probe(flow, out, core.control_out, now, copies=2 if flow.lossy or len(flow.probing) <= 1 else 1)

    def on_ping_timer(self, peer: int, now: int) -> None:
        """The window is closed, and the end of it may be lost, or the feedback about it: ask."""
        core = self._core
        flow = core.peers[peer]
        if not flow.in_flight or flow.next_message() is None:
            return
        flow.unanswered += 1
        for _ in range(2):
            # In class 7 it would arrive before the data, and make that look lost.
            self.ping(flow, now, flow.last_class)
        core.timers.set((PING_TIMER, peer, 0), now + flow.rtt.probe_timeout(flow.unanswered))

    def ping(self, flow: Peer, now: int, priority: int = CONTROL_CLASS) -> None:
        """Sends a PING, which draws FEEDBACK, in a class of which nothing should be overtaken."""
        core = self._core
        core.counters["pings"] += 1
        packet = core.build.ping(flow.rank, flow.number(1, now, priority), microseconds(now), priority)
        core.control_out.append(control_burst(flow.rank, self._tos[priority * 2 + 1], packet))


def _missing(report: dict[str, int], bits: NDArray[np.uint8], out: OutgoingMessage, final: bool) -> Indices:
    """Returns what a report says is missing.

    Raises:
        ValueError: It contradicts itself, or the message, or the rules by which a message is complete.
    """
    packets = report["packets"]
    if packets == 0 and not final:
        if report["missing"]:
            raise ValueError("packets are missing of a message of which nothing is known")
        return np.arange(out.packets, dtype=np.int64)
    if packets != out.packets or bits.size != (packets + 7) // 8:
        raise ValueError("report about another number of packets")
    missing = unpack_bitmap(bits, packets)
    if missing.size != report["missing"]:
        raise ValueError("count and bitmap differ")
    if final and not out.may_lack(missing):
        raise ValueError("more is missing than protection and bound allow")
    if not final and not missing.size:
        raise ValueError("a question about nothing")
    return missing
