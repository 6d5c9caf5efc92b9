"""The sans-IO transport endpoint of one rank.

Theory of operation.  Nothing here reads a clock, owns a socket or starts a thread.  The shell calls

* :meth:`Endpoint.receive` with datagrams that came,
* :meth:`Endpoint.handle_timer` when :meth:`Endpoint.next_timer` is due,
* :meth:`Endpoint.transmit` for datagrams to send,

each with the time in nanoseconds; the layer above calls :meth:`Endpoint.send` and :meth:`Endpoint.expect`, and takes what
happened from :meth:`Endpoint.events`.  Given the same calls, an endpoint does the same things.

Every message ends: with a STOP from its receiver, or with :class:`~dlcp.transport.events.PeerSilent` when the peer has
said nothing for the peer timeout although it was asked.  ``docs/transport.md`` tells the whole story.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dlcp.policy import Policy
from dlcp.transport.arrivals import DONE, UNKNOWN, Identity
from dlcp.transport.core import MILLISECOND, SECOND, Core, microseconds
from dlcp.transport.datagram import Datagram, datagram
from dlcp.transport.evenness import Evenness
from dlcp.transport.events import Event, PeerAborted, PeerLeft, PeerReached, PeerSilent, describe
from dlcp.transport.feedback import FEEDBACK_TIMER, FeedbackSender
from dlcp.transport.intake_layout import P_ASKING, P_COUNT
from dlcp.transport.packets import Burst, Frames
from dlcp.transport.peer import Peer
from dlcp.transport.receiver import COMPLETION_TIMER, Receiver
from dlcp.transport.sender import PING_TIMER, PROBE_TIMER, TRANSMIT_BYTES, Sender
from dlcp.transport.serial import MASK, ahead
from dlcp.wire.header import ABORT_BODY, FEEDBACK_BODY, HEADER_BYTES, HELLO_BODY, AbortKind, PacketType

HELLO_TIMER: Final = "hello"
LIVENESS_TIMER: Final = "liveness"
PACE_TIMER: Final = "pace"
"""Nothing to do when it fires: it is there so that :meth:`Endpoint.transmit` is called again."""
HELLO_EVERY_NS: Final = 50 * MILLISECOND
FAREWELL_EVERY_NS: Final = 20 * MILLISECOND
"""How often an endpoint that has given up says so to a peer that still wants something."""
RECEIVE_SHARE: Final = 8
"""What is received may wait for this part of the shortest round trip, so that a pass of the loop handles more."""
SLOW_NS: Final = 4_000_000
"""Where a round trip takes that long, it may wait for twice that part: packets come slowly, and passes are dear."""
RECEIVE_INTERVAL_NS: Final = 4_000_000
"""Longest such time."""
_ASKING: Final = (PacketType.DATA, PacketType.PROBE, PacketType.PING, PacketType.HELLO)


class Endpoint:
    """One rank's end of all its flows.

    Args:
        rank: Own rank.
        world: Number of ranks, servers included.
        cookie: 64-bit job cookie; datagrams without it are foreign.
        policy: The job's policy.
        stride: Payload bytes per packet, a multiple of 8.
        receive_window: Bytes that may be in flight towards this endpoint, all peers together.
        now: Nanoseconds.
    """

    def __init__(self, *, rank: int, world: int, cookie: int, policy: Policy, stride: int, receive_window: int, now: int) -> None:
        if stride % 8 or stride <= 0:
            raise ValueError(f"stride {stride} is not a positive multiple of 8")
        self._core = Core(Identity(rank, world, cookie), policy, stride, receive_window, now)
        self._sender = Sender(self._core)
        self._receiver = Receiver(self._core)
        self._feedback = FeedbackSender(self._core)
        self._greeting: dict[int, set[int]] = {}
        self._silence_ns = int(policy.timeouts.peer_s * SECOND)
        self._ping_ns = min(int(policy.timeouts.probe_max_ms * MILLISECOND), self._silence_ns // 4)
        self._closed = False
        self._farewell: tuple[AbortKind, int, float, str] | None = None
        self._said: dict[int, int] = {}
        self._core.timers.set((LIVENESS_TIMER, 0, 0), now + self._silence_ns // 4)

    # -- the layer above -----------------------------------------------------------------------------------------------------

    @property
    def stride(self) -> int:
        """Payload bytes per packet."""
        return self._core.stride

    @property
    def keep_tags(self) -> bool:
        """Whether received messages tell with which tags their packets came, for those who answer with the same."""
        return self._receiver.keep_tags

    @keep_tags.setter
    def keep_tags(self, keep: bool) -> None:
        self._receiver.keep_tags = keep

    @property
    def evenness(self) -> Evenness:
        """What each sender's messages go without, and the corrections so far."""
        return self._core.evenness

    def send(
        self,
        peer: int,
        message: int,
        payload: NDArray[np.uint8],
        *,
        tags: NDArray[np.uint8],
        bound: int,
        now: int,
        order: int = 0,
    ) -> None:
        """Queues a message.

        Args:
            peer: Receiver.
            message: 64-bit id (:func:`~dlcp.transport.events.message_id`), not in use towards this peer.
            payload: ``uint8[n]``, contiguous; must not change until :class:`~dlcp.transport.events.MessageSent`.
            tags: ``uint8[packets]``, class * 2 + protected.
            bound: Loss bound in 1/65536; 0 is reliable.
            now: Nanoseconds.
            order: Among messages whose next packets are of the same class lower goes first, and then what was queued first.
        """
        if payload.size > self._core.policy.wire.message_bytes:
            raise ValueError(f"message of {payload.size} bytes, the policy allows {self._core.policy.wire.message_bytes}")
        self._sender.send(peer, message, payload, tags, bound, now, order)

    def expect(self, peer: int, message: int, length: int, *, buffer: NDArray[np.uint8] | None = None, now: int) -> None:
        """Announces that ``peer`` will send ``message``; its packets are then placed in ``buffer`` (or one made here)."""
        self._receiver.expect(peer, message, length, buffer, now)

    def expected_from(self, peer: int) -> int | None:
        """Returns a message that ``peer`` still owes, if there is one."""
        return self._receiver.waits_for(peer)

    def drop_all(self) -> None:
        """Forgets every message in either direction: the layer above has failed, and its buffers must not be touched again.

        From then on this endpoint answers whoever wants something of it with the ABORT it has said, if any, and with silence
        otherwise: were it to look alive, peers whose copy of the ABORT was lost would wait for it.
        """
        self._closed = True
        self._receiver.drop_all()
        self._core.arrivals.clear()
        for flow in self._core.peers.values():
            flow.drop_messages()
        self._core.timers.clear()

    def retire(self, operation: int) -> None:
        """Declares every operation up to this one over here: packets for unknown messages of it are stale."""
        self._receiver.retire(operation)

    def retire_direct(self, peer: int, number: int) -> None:
        """Declares point-to-point messages of ``peer`` up to this number over here, as :meth:`retire` does collectives."""
        self._receiver.retire_direct(peer, number)

    def greet(self, peer: int, now: int) -> None:
        """Sends HELLOs, a short one and one of full size, until both have come back or :meth:`stop_greeting`."""
        self._greeting[peer] = {0, self._core.packet_bytes}
        self._hello(peer, now)

    def stop_greeting(self) -> None:
        """Gives up on the greetings that are still unanswered."""
        for peer in self._greeting:
            self._core.timers.cancel((HELLO_TIMER, peer, 0))
        self._greeting.clear()

    def abort(self, kind: AbortKind, culprit: int, silence_s: float, reason: str, now: int) -> None:
        """Tells every peer that this rank gives up."""
        self._farewell = (kind, culprit, silence_s, reason)
        for peer, flow in self._core.peers.items():
            if not flow.left:
                self._say_farewell(peer, now)

    def goodbye(self, now: int) -> None:
        """Tells every peer that this rank closes in good order."""
        for peer in self._core.peers:
            self._core.send_control(peer, self._core.build.goodbye(peer, microseconds(now)))

    def events(self) -> Iterator[Event]:
        """Yields what has happened and forgets it."""
        events = self._core.events
        while events:
            yield events.popleft()

    def counters(self) -> dict[str, int]:
        """Returns packets by verdict and messages by fate."""
        return {name: count for name, count in sorted(self._core.counters.items()) if count}

    @property
    def peers(self) -> tuple[int, ...]:
        """The other ranks, ascending."""
        return tuple(sorted(self._core.peers))

    def flow(self, peer: int) -> Peer:
        """Returns the state shared with ``peer``, for metrics and tests."""
        return self._core.peers[peer]

    @property
    def idle(self) -> bool:
        """Nothing is on its way out."""
        return not any(flow.outgoing for flow in self._core.peers.values()) and not self._core.control_out

    # -- the shell -----------------------------------------------------------------------------------------------------------

    def transmit(self, now: int, room: int = TRANSMIT_BYTES) -> list[Burst]:
        """Returns datagrams to send now; an empty list when windows and pacers allow none.

        Args:
            now: Nanoseconds.
            room: About how many bytes; what is not handed out now may be overtaken by something more urgent.
        """
        data = self._sender.transmit(now, min(room, TRANSMIT_BYTES))
        release = self._sender.release_time(now)
        if release is not None:
            self._core.timers.set((PACE_TIMER, 0, 0), release)
        control = self._core.control_out
        if control:
            self._core.control_out = []
            return control + data
        return data

    def receive_interval(self) -> int:
        """Returns for how many nanoseconds datagrams may wait for others: a small part of the round trip, which grows by it."""
        shortest = min((flow.rtt.smoothed for flow in self._core.peers.values() if flow.rtt.minimum is not None), default=0)
        share = RECEIVE_SHARE // 2 if shortest >= SLOW_NS else RECEIVE_SHARE
        return min(shortest // share, RECEIVE_INTERVAL_NS)

    def next_timer(self) -> int | None:
        """Returns when :meth:`handle_timer` wants to be called."""
        return self._core.timers.next()

    def handle_timer(self, now: int) -> None:
        """Does everything that is due."""
        for kind, peer, message in self._core.timers.pop_due(now):
            if kind == PROBE_TIMER:
                self._sender.on_probe_timer(peer, message, now)
            elif kind == COMPLETION_TIMER:
                self._receiver.on_completion_timer(peer, message, now)
            elif kind == FEEDBACK_TIMER:
                self._feedback.on_timer(self._core.peers[peer], now)
            elif kind == PING_TIMER:
                self._sender.on_ping_timer(peer, now)
            elif kind == HELLO_TIMER:
                self._hello(peer, now)
            elif kind == LIVENESS_TIMER:
                self._check_liveness(now)

    def receive(self, frames: list[Frames], now: int) -> None:
        """Takes datagrams; views into ``frames`` are not kept.

        What is numbered is counted first, then data, then control: so the answer to a probe knows of all that came with it.
        """
        arrivals = self._core.arrivals
        arrivals.begin(frames, now, self._closed)
        verdict = UNKNOWN
        while verdict != DONE:
            verdict = arrivals.take()
            if verdict == UNKNOWN:
                frame, row = arrivals.position
                incoming = self._receiver.meet(datagram(frames[frame], row), now)
                if incoming is None:
                    arrivals.orphan()
                elif not arrivals.open(incoming):
                    self._settle(frames, now)
                    arrivals.renew()
            else:
                self._settle(frames, now)
                arrivals.renew()

    def _settle(self, frames: list[Frames], now: int) -> None:
        """Draws conclusions from what a pass over a batch has done so far."""
        core, arrivals = self._core, self._core.arrivals
        core.counters.update(arrivals.refused())
        for source in arrivals.sources():
            flow = core.peers[source]
            flow.heard(now)
            if flow.block[P_COUNT]:
                flow.note_arrivals(now)
                self._feedback.consider(flow, bool(flow.block[P_ASKING]), now)
        for came in arrivals.messages():
            self._receiver.on_came(came, now)
        rest = arrivals.rest()
        if not rest:
            return
        packets = [datagram(frames[frame], row, waited_us) for frame, row, waited_us in rest]
        if self._closed:
            self._answer_closed(packets, now)
            return
        data = [packet for packet in packets if packet.kind == PacketType.DATA]
        if data:
            self._receiver.on_odd(data, now)
        for packet in packets:
            if packet.kind != PacketType.DATA:
                self._on_control(packet, now)

    def _answer_closed(self, packets: list[Datagram], now: int) -> None:
        """After the end: takes farewells, and answers everything that wants an answer with one's own."""
        for packet in packets:
            peer, kind = packet.source, packet.kind
            if kind in (PacketType.ABORT, PacketType.GOODBYE):
                self._on_control(packet, now)
            elif kind in _ASKING and self._farewell is not None and now >= self._said.get(peer, now) + FAREWELL_EVERY_NS:
                self._say_farewell(peer, now)

    def _say_farewell(self, peer: int, now: int) -> None:
        assert self._farewell is not None
        self._said[peer] = now
        self._core.send_control(peer, self._core.build.abort(peer, microseconds(now), *self._farewell))

    # -- control -------------------------------------------------------------------------------------------------------------

    def _on_control(self, packet: Datagram, now: int) -> None:
        kind, peer, body = PacketType(packet.kind), packet.source, packet.body
        core = self._core
        try:
            if kind is PacketType.FEEDBACK:
                self._sender.on_feedback(peer, FEEDBACK_BODY.decode_one(body[: FEEDBACK_BODY.size]), now, packet.waited_us)
            elif kind is PacketType.PROBE:
                self._receiver.on_probe(packet, now)
            elif kind in (PacketType.STATUS, PacketType.STOP):
                self._sender.on_report(peer, packet.message, body, kind is PacketType.STOP, now)
            elif kind is PacketType.HELLO:
                hello = HELLO_BODY.decode_one(body[: HELLO_BODY.size])
                if hello["datagram"] != body.size + HEADER_BYTES:
                    raise ValueError("not the size it left with")
                core.send_control(peer, core.build.hello_ack(peer, microseconds(now), hello["nonce"]))
            elif kind is PacketType.HELLO_ACK:
                self._on_hello_ack(peer, HELLO_BODY.decode_one(body[: HELLO_BODY.size])["nonce"], now)
            elif kind is PacketType.ABORT:
                abort = ABORT_BODY.decode_one(body[: ABORT_BODY.size])
                reason = body[ABORT_BODY.size :].tobytes().decode(errors="replace")
                what = AbortKind(abort["kind"])
                if not core.peers[peer].aborted:
                    core.peers[peer].aborted = True
                    core.events.append(PeerAborted(peer, what, abort["culprit"], abort["silence_ms"] / 1000, reason))
            elif kind is PacketType.GOODBYE and not core.peers[peer].left:
                core.peers[peer].left = True
                core.events.append(PeerLeft(peer))
        except ValueError:
            core.counters["malformed"] += 1

    def _hello(self, peer: int, now: int) -> None:
        timestamp = microseconds(now)
        for size in sorted(self._greeting.get(peer, ())):
            self._core.send_control(peer, self._core.build.hello(peer, timestamp, timestamp << 32 | size, size))
            self._core.timers.set((HELLO_TIMER, peer, 0), now + HELLO_EVERY_NS)

    def _on_hello_ack(self, peer: int, nonce: int, now: int) -> None:
        """The nonce holds when the HELLO left and its size: small ones prove the address, large ones the path's MTU."""
        waiting = self._greeting.get(peer)
        size = nonce & MASK
        if waiting is None or size not in waiting:
            return
        elapsed_us = ahead(microseconds(now), nonce >> 32)
        if elapsed_us >= 0:
            self._core.peers[peer].rtt.sample(elapsed_us * 1000)
        waiting.discard(size)
        self._core.events.append(PeerReached(peer, size != 0))
        if not waiting:
            del self._greeting[peer]
            self._core.timers.cancel((HELLO_TIMER, peer, 0))

    def _check_liveness(self, now: int) -> None:
        """Asks peers that something waits for whether they live; says so, once, when one has been silent for too long."""
        again = self._silence_ns // 4
        for flow in self._core.peers.values():
            flow.finished.forget(now)
            expected = self._receiver.waits_for(flow.rank)
            if not flow.outgoing and expected is None:
                continue
            silence = now - max(flow.last_heard, flow.waiting_since)
            if silence < self._silence_ns // 4:
                continue
            if silence < self._silence_ns:
                again = min(again, self._ping_ns, self._silence_ns - silence)
                self._sender.ping(flow, now)
            elif not flow.silent:
                flow.silent = True
                message = next(iter(flow.outgoing), None)
                if message is not None:
                    waiting = f"sending it {describe(message)}"
                else:
                    waiting = f"expecting {describe(expected or 0)} from it"
                self._core.events.append(PeerSilent(flow.rank, silence / SECOND, waiting))
        self._core.timers.set((LIVENESS_TIMER, 0, 0), now + again)
