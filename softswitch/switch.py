"""The switch without I/O: joins a compiled pipeline to the traffic manager.

Theory of operation.  A packet that arrives goes through ingress at once.  What ingress decides happens in simple_switch's order:
clones of the packet as it came, then resubmission, or else replication, or else one egress port.  At an egress port a packet
waits in the queue of its priority until the link is free; only then does egress run, so that it sees what the queue holds, and
the length that egress emits is what occupies the link.  A port whose link is transparent (no rate, delay or loss) needs no
queue: egress runs at once.

Time is integer nanoseconds of any clock and is an argument of every call; calls must not go back in time.

Every packet is accounted for::

    received + copies = transmitted + packet_ins + queued + on links + sum of all drops

where ``copies`` are clones, and replicas beyond the first.  The pipeline counts what it drops itself in ``runtime.drops``.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from softswitch.errors import BadValue
from softswitch.traffic.manager import TrafficManager
from softswitch.traffic.port import Port
from softswitch.traffic.queues import Item

if TYPE_CHECKING:
    from softswitch.pipeline import Pipeline

# simple_switch's PktInstanceType.
NORMAL: Final = 0
INGRESS_CLONE: Final = 1
EGRESS_CLONE: Final = 2
RECIRCULATED: Final = 4
REPLICATED: Final = 5
RESUBMITTED: Final = 6

MAX_PASSES: Final = 64
"""Times that one packet may be resubmitted, recirculated or cloned from a clone, and copies that a call makes per packet given to
it; what exceeds that is dropped and counted, so that no program can hang the switch.  simple_switch has no limit."""


class Switch:
    """A switch that is told what arrives and asked what leaves.

    Args:
        queues: Priorities of each port.  A packet with a priority beyond is dropped and counted.
        drop_port: The egress port that means "drop".
        cpu_port: Port of the controller, or None for none.
        seed: Of losses.
        start: What the clock shows now, in ns; the program sees microseconds since then.
        clock: Read only where a caller gives no time.

    Raises:
        BadValue: A value out of range.
    """

    def __init__(
        self,
        *,
        queues: int = 8,
        drop_port: int = 511,
        cpu_port: int | None = None,
        seed: int = 0,
        start: int = 0,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        if cpu_port is not None and cpu_port == drop_port:
            raise BadValue(f"port {cpu_port} cannot be both the CPU port and the drop port")
        self.traffic = TrafficManager(queues=queues, seed=seed, leave=self._leave)
        self.queues = queues
        self.ports = self.traffic.ports
        self.drop_port = drop_port
        self.cpu_port = cpu_port
        self.pipeline: Pipeline | None = None
        self.on_packet_in: Callable[[bytes], object] | None = None
        """Called with each packet that leaves through the CPU port, controller header included."""
        self.on_port_state: Callable[[int, bool], object] | None = None
        """Called after a port went up or down."""
        self.start = start
        self.clock = clock
        self.drops: Counter[str] = Counter()
        """Packets lost in the switch, not at a port, by cause; those that former programs dropped included."""
        self.received = self.copies = self.packet_ins = 0
        self.last_fault: Exception | None = None
        """The last error that a pipeline raised; a packet that does that is dropped as ``internal-error``."""
        self._room = 0
        """Copies and further passes that the current call may still make."""
        # Egress never queues a packet itself: a chain of clones or recirculations is a loop here, not a recursion.
        self._again: deque[tuple[bytes, int, int, Any, int]] = deque()
        """Packets to go through ingress again: data, port, instance type, preserved fields, passes."""
        self._clones: deque[tuple[int, Item]] = deque()
        """Copies that egress made: clone session, and the copy."""
        self._pending_since = 0
        self._ingress: Callable[..., Any] = _no_program
        self._egress: Callable[..., Any] = _no_program
        if cpu_port is not None:
            self.add_port(cpu_port)
            self.ports[cpu_port].emit = self._packet_in

    # Configuration

    def set_pipeline(self, pipeline: Pipeline | None) -> None:
        """Puts a program in force at once; packets queued for the former one are dropped and counted."""
        self.traffic.discard_queued("program-replaced")
        self._clones.clear()
        if self._again:
            self.drops["program-replaced"] += len(self._again)
            self._again.clear()
        if self.pipeline is not None:
            self.drops.update(self.pipeline.runtime.drops)
        self.pipeline = pipeline
        self._ingress = _no_program if pipeline is None else pipeline.ingress
        self._egress = _no_program if pipeline is None else pipeline.egress
        if pipeline is not None:
            for port in self.ports.values():
                pipeline.runtime.set_port_state(port.number, port.up)

    def add_port(self, number: int, **options: Any) -> Port:
        """Adds a port; the options are those of ``TrafficManager.add_port``.

        Raises:
            BadValue: A value out of range, or a number that is taken or means "drop".
        """
        if number == self.drop_port:
            raise BadValue(f"port {number} is the drop port")
        port = self.traffic.add_port(number, **options)
        if self.pipeline is not None:
            self.pipeline.runtime.set_port_state(number, port.up)
        return port

    def set_port_state(self, number: int, up: bool, now: int | None = None) -> None:
        """Tells the switch that a link went up or down; what waits at a port that goes down is lost, and counted.

        Raises:
            UnknownObject: There is no such port.
        """
        if not self.traffic.set_state(number, up, self._now(now)):
            return
        if self.pipeline is not None:
            self.pipeline.runtime.set_port_state(number, up)
        if self.on_port_state is not None:
            self.on_port_state(number, up)

    def set_rate(self, number: int, rate_bps: int | None, now: int | None = None) -> None:
        """Changes a port's rate in bits per second; None: unlimited."""
        self.traffic.set_link(number, self._now(now), rate_bps=rate_bps)

    def set_link(self, number: int, now: int | None = None, **options: Any) -> None:
        """Changes what is behind a port; the options are ``rate_bps``, ``delay_ns``, ``loss`` and ``loss_in`` of ``add_port``.

        Raises:
            UnknownObject: There is no such port.
            BadValue: A value out of range.
        """
        self.traffic.set_link(number, self._now(now), **options)

    # Packets

    def receive(self, port: int, data: bytes, now: int) -> None:
        """Takes one packet that arrived at ``port``."""
        self.receive_batch(port, (data,), now)

    def receive_batch(self, port: int, packets: Sequence[bytes], now: int) -> None:
        """Takes packets that arrived at ``port``, in order.

        Raises:
            UnknownObject: There is no such port.
        """
        origin = self.traffic.port(port)
        self.received += len(packets)
        if not origin.up:
            origin.drops["port-down"] += len(packets)
            return
        if origin.loss_in:
            packets = origin.arriving(packets)
        origin.in_packets += len(packets)
        origin.in_bytes += sum(map(len, packets))
        self._room = MAX_PASSES * (len(packets) + len(self._again) + len(self._clones))
        ports, queues, ingress, egress = self.ports, self.queues, self._ingress, self._egress
        enqueue = self.traffic.enqueue
        micros = (now - self.start) // 1000
        remaining = iter(packets)
        while True:
            try:
                for data in remaining:
                    result = ingress(data, port, micros)
                    if result is None:
                        continue
                    if result.__class__ is tuple:
                        number, priority, phv = result
                        target = ports.get(number)
                        if target is not None and target.direct and priority < queues:
                            target.queues.enqueued[priority] += 1
                            sent = egress(phv, number, micros, 0, NORMAL, priority, micros, 0, 0, 0)
                            if sent.__class__ is bytes:
                                target.out_packets += 1
                                target.out_bytes += len(sent)
                                target.emit(sent)
                            elif sent is not None:
                                self._after_egress(sent, target, Item(priority, len(data), phv, micros, port), now)
                        else:
                            enqueue(number, Item(priority, len(data), phv, micros, port), now)
                    else:
                        self._after_ingress(result, data, port, 0, now)
                    if self._again or self._clones:
                        self._run_pending(now)
                return
            except _NoProgram:
                self.drops["no-program"] += 1
            except Exception as error:
                self._fault(error)

    def packet_out(self, data: bytes, now: int | None = None) -> None:
        """Takes a packet from the controller, with its controller header, as if it arrived at the CPU port.

        Raises:
            BadValue: The switch has no CPU port.
        """
        if self.cpu_port is None:
            raise BadValue("this switch has no CPU port; start it with one (--cpu-port)")
        self.receive(self.cpu_port, data, self._now(now))

    def advance(self, now: int) -> None:
        """Serves every port up to ``now``: what has left a link by then stands in its port's ``out``."""
        self._room = MAX_PASSES * (self.traffic.waiting() + len(self._again) + len(self._clones))
        self.traffic.advance(now)
        if self._again or self._clones:
            self._run_pending(now)

    def transmit(self, now: int) -> list[tuple[int, bytes]]:
        """Serves every port up to ``now`` and takes what has left: (port, packet), in order at each port."""
        self.advance(now)
        result: list[tuple[int, bytes]] = []
        for port in self.ports.values():
            if port.out:
                result.extend((port.number, data) for data in port.out)
                port.out.clear()
        return result

    def next_timer(self) -> int | None:
        """When ``advance`` or ``transmit`` next has something to do, in ns, or None."""
        return self._pending_since if self._again or self._clones else self.traffic.next_timer()

    def pending(self) -> int:
        """Packets on their way back to ingress; not the copies that egress asked for and that are not made yet."""
        return len(self._again)

    # From ingress to the queues

    def _after_ingress(self, outcome: Any, data: bytes, port: int, passes: int, now: int) -> None:
        length = len(data)
        micros = (now - self.start) // 1000
        for session, phv in outcome.clones:
            self._clone(session, Item(0, length, phv, micros, port, INGRESS_CLONE, passes), now)
        if outcome.resubmit is not None:
            self._pass_again(data, port, RESUBMITTED, outcome.resubmit, passes + 1)
        elif outcome.multicast is not None:
            group, priority, phv = outcome.multicast
            assert self.pipeline is not None
            replicas = self.pipeline.runtime.groups.copies(group)
            self._replicate(replicas, Item(priority, length, phv, micros, port, REPLICATED, passes), now)
        elif outcome.unicast is not None:
            number, priority, phv = outcome.unicast
            self.traffic.enqueue(number, Item(priority, length, phv, micros, port, NORMAL, passes), now)

    def _clone(self, session: int, item: Item, now: int) -> None:
        """Sends a copy to the ports of a clone session; to none if the session is not configured, as simple_switch does."""
        assert self.pipeline is not None
        found = self.pipeline.runtime.sessions.items.get(session)
        if found is None:
            return
        self.copies += 1
        if item.passes >= MAX_PASSES:
            self.drops["too-many-passes"] += 1
            return
        item.priority, item.truncate = found.class_of_service, found.packet_length
        item.passes += 1
        self._replicate(found.active, item, now)

    def _replicate(self, replicas: Iterable[tuple[int, int]], item: Item, now: int) -> None:
        """Queues one copy for each (port, replication id)."""
        copies = -1
        for number, rid in replicas:
            copies += 1
            if self._room > 0:
                self._room -= 1
                twin = Item(
                    item.priority,
                    item.length,
                    item.phv,
                    item.enqueued_us,
                    item.port,
                    item.instance_type,
                    item.passes,
                    rid,
                    item.truncate,
                )
                self.traffic.enqueue(number, twin, now)
            else:
                self.drops["too-many-passes"] += 1
        if copies < 0:
            self.drops["no-replica"] += 1
        else:
            self.copies += copies

    def _pass_again(self, data: bytes, port: int, kind: int, preserved: Any, passes: int) -> None:
        if passes > MAX_PASSES:
            self.drops["too-many-passes"] += 1
        else:
            self._again.append((data, port, kind, preserved, passes))

    def _run_pending(self, now: int) -> None:
        """Queues the copies that egress made, and sends resubmitted and recirculated packets through ingress."""
        micros = (now - self.start) // 1000
        while True:
            try:
                if self._clones:
                    session, item = self._clones.popleft()
                    item.enqueued_us = micros
                    self._clone(session, item, now)
                elif self._again:
                    data, port, kind, preserved, passes = self._again.popleft()
                    if self._room <= 0:
                        self.drops["too-many-passes"] += 1
                        continue
                    self._room -= 1
                    result = self._ingress(data, port, micros, kind, preserved)
                    if result.__class__ is tuple:
                        number, priority, phv = result
                        self.traffic.enqueue(number, Item(priority, len(data), phv, micros, port, NORMAL, passes), now)
                    elif result is not None:
                        self._after_ingress(result, data, port, passes, now)
                else:
                    return
            except Exception as error:
                self._fault(error)

    # From the queues to the links

    def _leave(self, port: Port, item: Item, start: int, depth: int) -> None:
        """Runs egress for a packet whose turn it is at ``start`` and puts what comes out on the link."""
        micros = (start - self.start) // 1000
        enqueued = item.enqueued_us
        try:
            sent = self._egress(
                item.phv,
                port.number,
                micros,
                item.rid,
                item.instance_type,
                item.priority,
                enqueued,
                item.depth,
                micros - enqueued,
                depth,
            )
            if sent.__class__ is bytes:
                self.traffic.emit(port, sent[: item.truncate] if item.truncate else sent, start)
            elif sent is not None:
                self._after_egress(sent, port, item, start)
        except Exception as error:
            self._fault(error)

    def _after_egress(self, outcome: Any, port: Port, item: Item, now: int) -> None:
        self._pending_since = now
        for session, phv in outcome.clones:
            self._clones.append((session, Item(0, item.length, phv, 0, item.port, EGRESS_CLONE, item.passes)))
        if outcome.recirculate is not None:
            data, preserved = outcome.recirculate
            self._pass_again(data, item.port, RECIRCULATED, preserved, item.passes + 1)
        elif outcome.data is not None:
            self.traffic.emit(port, outcome.data[: item.truncate] if item.truncate else outcome.data, now)

    # The edges

    def _now(self, now: int | None) -> int:
        return self.clock() if now is None else now

    def _packet_in(self, data: bytes) -> None:
        if self.on_packet_in is None:
            self.drops["no-controller"] += 1
            return
        self.packet_ins += 1
        self.on_packet_in(data)

    def _fault(self, error: Exception) -> None:
        self.drops["internal-error"] += 1
        self.last_fault = error


class _NoProgram(Exception):
    """A packet came while no program was in force."""


def _no_program(*_: Any) -> Any:
    raise _NoProgram


__all__ = ["MAX_PASSES", "Switch"]
