"""The receiving half of an endpoint: places packets, decides when a message is complete, reports what is missing."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from dlcp.transport.admission import Admission
from dlcp.transport.arrivals import Came
from dlcp.transport.core import MILLISECOND, Core, microseconds
from dlcp.transport.datagram import Datagram
from dlcp.transport.events import MessageReceived
from dlcp.transport.finished import Finished
from dlcp.transport.incoming import IncomingMessage
from dlcp.wire.header import BUSY, OVER, PacketType

Bytes = NDArray[np.uint8]

COMPLETION_TIMER: Final = "completion"
_NONE: Final = np.zeros(0, np.int64)


class Receiver:
    """Receives messages; see :mod:`dlcp.transport.incoming` for the completion rule."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.admission = Admission(core)
        self.keep_tags = False

    # -- what the layer above says -----------------------------------------------------------------------------------------

    def expect(self, peer: int, message: int, length: int, buffer: Bytes | None, now: int) -> None:
        """Announces a message that must come; its packets then go straight into ``buffer``, if one is given.

        A message that is complete already has been handed over in an event, in a buffer of its own; saying that it was expected
        gives its share of the memory for early messages back.

        Raises:
            ValueError: ``buffer`` is not ``length`` bytes long, or the message was expected before.
        """
        probe = self.admission.expect(self._core.peers[peer], message, length, buffer, now)
        if probe:
            # Its sender found no room here, and asks again only now and then.
            self._report_nothing(peer, message, probe, now, busy=0)

    def waits_for(self, peer: int) -> int | None:
        """Returns a message that is expected from ``peer`` and not complete, if there is one."""
        return next(iter(self._core.peers[peer].expected), None)

    def drop_all(self) -> None:
        """Forgets what is expected and what has come too early."""
        self.admission.drop_all()

    def retire(self, operation: int) -> None:
        """Declares every operation up to this one over: what still comes for it is stale."""
        for peer, message in self.admission.retire(operation):
            self._core.timers.cancel((COMPLETION_TIMER, peer, message))

    def retire_direct(self, peer: int, number: int) -> None:
        """Declares point-to-point messages of ``peer`` up to this number, which are complete, over here."""
        self.admission.retire_direct(peer, number)

    # -- data --------------------------------------------------------------------------------------------------------------

    def meet(self, packet: Datagram, now: int) -> IncomingMessage | None:
        """Returns the message that a data packet, whole and well-formed, belongs to; None if it must not be placed."""
        incoming = self._find(packet.source, packet.message, packet.described, 1, now)
        if incoming is None:
            self._note_straggler(packet)
        return incoming

    def on_came(self, came: Came, now: int) -> None:
        """Packets of a message have been placed."""
        incoming = came.message
        incoming.account(came.new, came.new_protected, now)
        counters = self._core.counters
        counters["delivered"] += came.new
        if came.new != came.packets:
            counters["duplicate"] += came.packets - came.new
        self._placed(incoming, came.again == came.packets, came.new, now)

    def on_odd(self, packets: list[Datagram], now: int) -> None:
        """Takes data packets that are trimmed, malformed, or contradict what is known of their message."""
        trimmed: dict[IncomingMessage, list[Datagram]] = {}
        for packet in packets:
            incoming = self.meet(packet, now)
            if incoming is None:
                continue
            inside = packet.offset < incoming.length or packet.offset == incoming.length == 0
            if packet.trimmed and inside and packet.offset % incoming.stride == 0:
                trimmed.setdefault(incoming, []).append(packet)
            else:
                self._core.counters["malformed"] += 1
        for incoming, cut in trimmed.items():
            indices = np.array([packet.offset // incoming.stride for packet in cut], np.int64)
            self._on_trimmed(incoming, indices, np.array([packet.protected for packet in cut], bool), now)

    def _note_straggler(self, packet: Datagram) -> None:
        """A packet came for which there is no message: was it given up?"""
        flow = self._core.peers[packet.source]
        finished = flow.finished.get(packet.message)
        if finished is not None and finished.missing and not packet.again:
            flow.ordering.straggler_came()

    def _placed(self, incoming: IncomingMessage, again: bool, new: int, now: int) -> None:
        flow = self._core.peers[incoming.peer]
        flow.last_data = now
        if incoming.reported:
            if not again:
                flow.ordering.straggler_came()
            elif new:
                # The copy that was asked for came, and the first one did not even by now: it was lost.
                flow.ordering.waited_in_vain()
        if incoming.missing == 0:
            self._complete(incoming, now)
        else:
            self._arm(incoming)

    def _find(
        self, source: int, message: int, described: tuple[int, int, int, int], count: int, now: int, probe: int = 0
    ) -> IncomingMessage | None:
        """Returns the message that a header belongs to; makes it if it is new and there is room.

        ``probe`` is the sequence number if the header is a probe, whose sender wants to know if there is no room.
        """
        core = self._core
        flow = core.peers[source]
        length, stride, bound, protected_packets = described
        incoming = flow.incoming.get(message)
        if incoming is not None:
            if (incoming.length, incoming.stride, incoming.bound, incoming.protected_packets) != described:
                core.counters["inconsistent"] += count
                return None
            return incoming
        if message in flow.finished:
            core.counters["late"] += count
            return None
        if self.admission.over(source, message):
            core.counters["stale"] += count
            if probe:
                self._report_nothing(source, message, probe, now, busy=OVER)
            return None
        if stride != core.stride or length > core.max_message_bytes:
            core.counters["malformed"] += count
            return None
        expected = flow.expected.get(message)
        if expected is None:
            if not self.admission.room(length):
                core.counters["no_memory"] += count
                if probe:
                    self.admission.remember(flow, message, probe)
                    self._report_nothing(source, message, probe, now, busy=BUSY)
                return None
            self.admission.charge(length)
            buffer = np.empty(length, np.uint8)
        elif expected.length != length:
            core.counters["inconsistent"] += count
            self.admission.refuse(flow, message, length, expected.length)
            return None
        else:
            buffer = np.empty(length, np.uint8) if expected.buffer is None else expected.buffer
        incoming = IncomingMessage(source, message, length, stride, bound, protected_packets, buffer, now)
        incoming.posted = expected is not None
        incoming.allowed = core.evenness.allowed(source, message, incoming.packets, bound)
        if self.keep_tags:
            incoming.keep_tags()
        flow.incoming[message] = incoming
        return incoming

    def _on_trimmed(self, incoming: IncomingMessage, indices: NDArray[np.int64], protected: NDArray[np.bool_], now: int) -> None:
        """A switch kept only the headers: ask at once for what the bound does not cover."""
        core = self._core
        core.peers[incoming.peer].trimmed += int(indices.size)
        core.counters["trimmed"] += int(indices.size)
        wanted = incoming.note_trimmed(indices, protected)
        if not wanted.size:
            return
        lost = np.zeros(incoming.packets, bool)
        lost[wanted] = True
        packet = core.build.report(
            PacketType.STATUS,
            incoming.peer,
            incoming.message,
            microseconds(now),
            np.packbits(lost),
            packets=incoming.packets,
            missing=int(wanted.size),
            needed=int(wanted.size),
            echo=0,
        )
        core.send_control(incoming.peer, packet)

    # -- probes and completion -----------------------------------------------------------------------------------------------

    def on_probe(self, probe: Datagram, now: int) -> None:
        """A sender says that it has sent all of a message."""
        source, message, sequence = probe.source, probe.message, probe.sequence
        finished = self._core.peers[source].finished.get(message)
        if finished is not None:
            self._stop(source, message, finished, sequence, now)
            return
        incoming = self._find(source, message, probe.described, 1, now, probe=sequence)
        if incoming is None:
            return
        incoming.note_probe(sequence, now)
        self._arm(incoming)
        self._decide(incoming, now)

    def _deadline(self, incoming: IncomingMessage) -> int | None:
        if not (incoming.probed or incoming.satisfied):
            return None
        grace = self._core.policy.grace
        flow = self._core.peers[incoming.peer]
        # A sender that waits for feedback is silent for a round trip and for as long as feedback is held back here.
        floor = flow.rtt.smoothed + 4 * flow.rtt.variation + flow.feedback_delay()
        floor = max(int(grace.floor_ms * MILLISECOND), floor)
        return incoming.deadline(grace.factor, floor, flow.ordering.window(flow.rtt, incoming.satisfied), flow.last_data)

    def _arm(self, incoming: IncomingMessage) -> None:
        deadline = self._deadline(incoming)
        if deadline is not None:
            self._core.timers.set((COMPLETION_TIMER, incoming.peer, incoming.message), deadline)

    def on_completion_timer(self, peer: int, message: int, now: int) -> None:
        """Waiting longer would not be cheap, or stragglers had their time."""
        incoming = self._core.peers[peer].incoming.get(message)
        if incoming is not None:
            self._decide(incoming, now)

    def _decide(self, incoming: IncomingMessage, now: int) -> None:
        core = self._core
        incoming.allowed = core.evenness.allowed(incoming.peer, incoming.message, incoming.packets, incoming.bound)
        deadline = self._deadline(incoming)
        if deadline is None:
            return
        if now < deadline:
            core.timers.set((COMPLETION_TIMER, incoming.peer, incoming.message), deadline)
            return
        if incoming.satisfied:
            core.peers[incoming.peer].ordering.waited_in_vain()
            self._complete(incoming, now)
            return
        incoming.probed = False
        incoming.reported = True
        packet = core.build.report(
            PacketType.STATUS,
            incoming.peer,
            incoming.message,
            microseconds(now),
            incoming.bitmap(),
            packets=incoming.packets,
            missing=incoming.missing,
            needed=incoming.needed,
            echo=incoming.probe_echo,
        )
        core.counters["status_sent"] += 1
        if core.evenness.asked(incoming.peer, incoming.packets, incoming.bound, incoming.missing, incoming.allowed):
            core.counters["evened"] += 1
        core.send_control(incoming.peer, packet)

    def _complete(self, incoming: IncomingMessage, now: int) -> None:
        core = self._core
        key = (incoming.peer, incoming.message)
        flow = core.peers[incoming.peer]
        del flow.incoming[incoming.message]
        core.arrivals.close(incoming)
        core.timers.cancel((COMPLETION_TIMER, *key))
        self.admission.completed(flow, incoming)
        lost = incoming.lost() if incoming.missing else _NONE
        self._stop(*key, flow.finished.add(incoming, now), incoming.probe_echo, now)
        core.evenness.received(*key, incoming.packets, incoming.missing, incoming.bound)
        core.counters["completed"] += 1
        core.counters["lost"] += int(lost.size)
        core.events.append(
            MessageReceived(incoming.peer, incoming.message, incoming.buffer, incoming.stride, lost, incoming.tags)
        )

    def _stop(self, peer: int, message: int, finished: Finished, echo: int, now: int) -> None:
        packet = self._core.build.report(
            PacketType.STOP,
            peer,
            message,
            microseconds(now),
            finished.bitmap,
            packets=finished.packets,
            missing=finished.missing,
            needed=0,
            echo=echo,
        )
        self._core.send_control(peer, packet)

    def _report_nothing(self, peer: int, message: int, echo: int, now: int, *, busy: int) -> None:
        """STATUS about a message of which nothing is kept: there is no room for it, or now there is, or it comes too late."""
        packet = self._core.build.report(
            PacketType.STATUS,
            peer,
            message,
            microseconds(now),
            np.zeros(0, np.uint8),
            packets=0,
            missing=0,
            needed=0,
            echo=echo,
            busy=busy,
        )
        self._core.send_control(peer, packet)
