"""The sending half of an endpoint: schedules packets of all messages to all peers, probes until each is acknowledged."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from dlcp.transport.core import Core, microseconds
from dlcp.transport.events import Indices, MessageSent, describe
from dlcp.transport.incoming import unpack_bitmap
from dlcp.transport.outgoing import OutgoingMessage
from dlcp.transport.packets import Burst, control_burst
from dlcp.transport.peer import Peer
from dlcp.transport.serial import ahead
from dlcp.wire.header import REPORT_BODY

TRANSMIT_BYTES: Final = 1 << 20
"""What one call hands out at most, so that receiving gets its turn."""
PEER_QUANTUM_BYTES: Final = 256 << 10
"""What one peer may send before the next one gets its turn."""
TIMEOUTS_BEFORE_COLLAPSE: Final = 3

PROBE_TIMER: Final = "probe"
PING_TIMER: Final = "ping"


class Sender:
    """Sends messages; see the module docs of :mod:`dlcp.transport.outgoing` for a message's life."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._order = 0
        ranks = sorted(core.peers)
        # Start at the next rank up: if all started at rank 0, it would receive from everybody at once.
        split = sum(rank < core.identity.rank for rank in ranks)
        self._turn = [core.peers[rank] for rank in ranks[split:] + ranks[:split]]

    def send(self, peer: int, message: int, payload: NDArray[np.uint8], tags: NDArray[np.uint8], bound: int, now: int) -> None:
        """Queues a message.

        Raises:
            ValueError: The id is in use towards this peer, or shape and size do not fit.
        """
        flow = self._core.peers[peer]
        if message in flow.outgoing:
            raise ValueError(f"{describe(message)} is on its way to rank {peer} already")
        identity = self._core.identity
        self._order += 1
        out = OutgoingMessage(identity.rank, peer, identity.cookie, message, payload, self._core.stride, tags, bound, self._order)
        flow.outgoing[message] = out
        if flow.waiting_since is None:
            flow.waiting_since = now
        flow.enqueue(out)

    def transmit(self, now: int) -> list[Burst]:
        """Hands out what windows and pacers allow now, at most about 1 MiB."""
        bursts: list[Burst] = []
        budget = TRANSMIT_BYTES
        turn = self._turn
        progress = True
        while budget > 0 and progress:
            progress = False
            for flow in turn:
                used = self._serve(flow, min(budget, PEER_QUANTUM_BYTES), bursts, now)
                if used:
                    progress = True
                    budget -= used
                if budget <= 0:
                    break
        self._turn = turn[1:] + turn[:1]
        return bursts

    def release_time(self, now: int) -> int | None:
        """Returns when a pacer next allows what is queued."""
        times = [t for flow in self._turn if flow.next_message() is not None and (t := flow.release_time(now)) is not None]
        return min(times, default=None)

    def _serve(self, flow: Peer, budget: int, bursts: list[Burst], now: int) -> int:
        message = flow.next_message()
        if message is None:
            return 0
        allowance = min(flow.allowance(now), max(budget // self._core.packet_bytes, 1))
        used = 0
        policy = self._core.policy
        timestamp = microseconds(now)
        idle = flow.in_flight == 0
        while allowance > 0 and message is not None:
            indices, again = message.take(allowance)
            count = int(indices.size)
            priority, protected = message.tag_of(int(indices[0]), again)
            burst = Burst(
                flow.rank,
                policy.tos(priority, protected),
                message.headers(indices, again, flow.number(count), timestamp),
                message.payload,
                indices * message.stride,
                message.sizes(indices),
            )
            bursts.append(burst)
            self._core.counters["retransmitted" if again else f"sent_class_{priority}"] += count
            used += burst.wire_bytes
            allowance -= count
            if not message.remaining:
                bursts.append(self._probe(flow, message, now))
            flow.requeue(message)
            message = flow.next_message()
        if used:
            flow.sent(used, now)
            if idle:
                self._core.timers.set((PING_TIMER, flow.rank, 0), now + 2 * flow.rtt.probe_timeout())
        return used

    def _probe(self, flow: Peer, message: OutgoingMessage, now: int) -> Burst:
        packet = message.probe(flow.number(1), microseconds(now))
        self._core.counters["probes"] += 1
        self._core.timers.set((PROBE_TIMER, flow.rank, message.message), now + flow.rtt.probe_timeout(message.attempt))
        return control_burst(flow.rank, self._core.control_tos, packet)

    # -- answers ---------------------------------------------------------------------------------------------------------

    def on_report(self, peer: int, message: int, body: NDArray[np.uint8], final: bool, now: int) -> None:
        """Takes STATUS (``final`` false) or STOP: ``body`` is what follows the header."""
        core = self._core
        flow = core.peers[peer]
        out = flow.outgoing.get(message)
        if out is None:
            core.counters["stale_report"] += 1
            return
        try:
            report = REPORT_BODY.decode_one(body)
            if report["packets"] not in (0, out.packets):
                raise ValueError("report about another number of packets")
            missing = unpack_bitmap(body[REPORT_BODY.size :], report["packets"])
        except ValueError:
            core.counters["malformed"] += 1
            return
        if missing.size != report["missing"] and not report["busy"]:
            core.counters["malformed"] += 1
            return
        if final:
            self._finish(flow, out, missing)
        elif report["busy"]:
            core.counters["busy"] += 1
        elif report["echo"] == 0:
            core.counters["trim_requests"] += int(missing.size)
            out.resend(missing, report["needed"])
            core.timers.cancel((PROBE_TIMER, peer, message))
            flow.enqueue(out)
        elif out.remaining or out.probe_round is None or ahead(report["echo"], out.probe_round) < 0:
            core.counters["stale_report"] += 1
        else:
            core.timers.cancel((PROBE_TIMER, peer, message))
            out.resend(missing, report["needed"])
            flow.enqueue(out)

    def _finish(self, flow: Peer, out: OutgoingMessage, lost: Indices) -> None:
        del flow.outgoing[out.message]
        self._core.timers.cancel((PROBE_TIMER, flow.rank, out.message))
        for index in lost.tolist():
            self._core.counters[f"given_up_class_{int(out.tags[index]) >> 1}"] += 1
        self._core.events.append(MessageSent(flow.rank, out.message, lost))

    def on_feedback(self, peer: int, body: dict[str, int], now: int) -> None:
        """Takes FEEDBACK."""
        flow = self._core.peers[peer]
        if not flow.on_feedback(body, now):
            self._core.counters["stale_feedback"] += 1
            return
        if flow.in_flight:
            self._core.timers.set((PING_TIMER, peer, 0), now + 2 * flow.rtt.probe_timeout())
        else:
            self._core.timers.cancel((PING_TIMER, peer, 0))

    # -- timers ----------------------------------------------------------------------------------------------------------

    def on_probe_timer(self, peer: int, message: int, now: int) -> None:
        """A probe went unanswered: probe again, more slowly each time."""
        flow = self._core.peers[peer]
        out = flow.outgoing.get(message)
        if out is None or out.remaining:
            return
        out.attempt += 1
        self._core.control_out.append(self._probe(flow, out, now))

    def on_ping_timer(self, peer: int, now: int) -> None:
        """The end of a window may be lost, or the feedback about it: ask."""
        flow = self._core.peers[peer]
        if flow.in_flight <= 0:
            return
        flow.unanswered += 1
        if flow.unanswered == TIMEOUTS_BEFORE_COLLAPSE:
            flow.control.on_timeout()
        self.ping(flow, now)
        self._core.timers.set((PING_TIMER, peer, 0), now + 2 * flow.rtt.probe_timeout(flow.unanswered))

    def ping(self, flow: Peer, now: int) -> None:
        """Sends a PING, which draws FEEDBACK."""
        self._core.counters["pings"] += 1
        self._core.send_control(flow.rank, self._core.build.ping(flow.rank, flow.number(1), microseconds(now)))
