"""What the sending and the receiving half of an endpoint share."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dlcp.policy import Policy
from dlcp.transport.arrivals import Arrivals, Identity
from dlcp.transport.congestion import FlowParameters, create
from dlcp.transport.control import ControlPackets
from dlcp.transport.evenness import Evenness
from dlcp.transport.events import Event
from dlcp.transport.finished import FinishedMessages
from dlcp.transport.outgoing import MAX_PACKETS
from dlcp.transport.packets import Burst, control_burst
from dlcp.transport.peer import Peer
from dlcp.transport.rtt import RttEstimator
from dlcp.transport.serial import MASK
from dlcp.transport.timers import Timers
from dlcp.wire.header import CONTROL_CLASS, HEADER_BYTES, REPORT_BODY

MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000_000_000
INITIAL_RTT_NS: Final = 10 * MILLISECOND

TimerKey = tuple[str, int, int]


class Core:
    """State and small services: peers, timers, counters, events, the queue of control packets.

    Args:
        identity: Rank, world size, cookie.
        policy: The job's policy.
        stride: Payload bytes per packet, a multiple of 8.
        receive_window: Bytes all peers together may have in flight towards this endpoint.
        now: Nanoseconds.
    """

    def __init__(self, identity: Identity, policy: Policy, stride: int, receive_window: int, now: int) -> None:
        self.identity = identity
        self.arrivals = Arrivals(identity)
        self.policy = policy
        self.stride = stride
        self.timers: Timers[TimerKey] = Timers()
        self.counters: Counter[str] = Counter()
        self.events: deque[Event] = deque()
        self.build = ControlPackets(identity.rank, identity.cookie)
        self.control_tos = policy.tos(CONTROL_CLASS, True)
        self.control_out: list[Burst] = []
        self.packet_bytes = stride + HEADER_BYTES
        # One report, in one datagram, must be able to list all packets of a message.
        self.max_packets = max(min(8 * (stride - REPORT_BODY.size), MAX_PACKETS), 1)
        self.evenness = Evenness(policy.loss.evenness)
        self.max_message_bytes = min(policy.wire.message_bytes, self.max_packets * stride)
        others = max(identity.world - 1, 1)
        self.window_per_peer = max(receive_window // others, 2 * self.packet_bytes)
        self.peers: dict[int, Peer] = {
            rank: self._make_peer(rank, now) for rank in range(identity.world) if rank != identity.rank
        }

    def _make_peer(self, rank: int, now: int) -> Peer:
        congestion, timeouts = self.policy.congestion, self.policy.timeouts
        control = create(
            congestion.algorithm,
            FlowParameters(
                packet_bytes=self.packet_bytes,
                initial_window=congestion.initial_window_packets,
                max_window=max(congestion.max_window_bytes // self.packet_bytes, 2),
                loss_tolerance=self.policy.loss.push,
                target_delay_ns=int(congestion.target_delay_us * 1000),
                gain=congestion.gain,
                rate=congestion.rate_mbps * 1e6 / 8,
            ),
        )
        rtt = RttEstimator(
            initial_ns=INITIAL_RTT_NS,
            floor_ns=int(timeouts.probe_min_ms * MILLISECOND),
            ceiling_ns=int(timeouts.probe_max_ms * MILLISECOND),
        )
        # Two seconds more than the peer timeout: the two clocks do not start together.
        finished = FinishedMessages(int((timeouts.peer_s + 2) * SECOND), int(timeouts.probe_max_ms * MILLISECOND))
        return Peer(rank, control, rtt, self.packet_bytes, finished, self.arrivals.peer(rank), now)

    def send_control(self, peer: int, packet: NDArray[np.uint8]) -> None:
        """Queues one control packet; the next :meth:`Endpoint.transmit` hands it out."""
        self.control_out.append(control_burst(peer, self.control_tos, packet))


def microseconds(now: int) -> int:
    """Returns the header timestamp for ``now`` (nanoseconds)."""
    return now // 1000 & MASK
