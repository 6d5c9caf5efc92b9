"""One message on its way in: what of it is there, and the rule that says when it is complete.

:mod:`dlcp.transport.intake` places the packets; it is told of the arrays here by their addresses.

Completion rule.  A message is *satisfied* when every protected packet is in and the missing share does not exceed its bound
(reliable: nothing is missing).  It is complete

* at once, when nothing is missing;
* when it is satisfied and its sender has said that all was sent (PROBE), after the reordering window;
* when it is satisfied and nothing came from its sender for the grace period: waiting longer would not be cheap.

An unsatisfied message whose sender has probed is answered with what is missing.  Nothing here keeps time: the endpoint asks
:meth:`IncomingMessage.deadline` and comes back.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from dlcp.transport.outgoing import BOUND_SCALE, packets_of
from dlcp.wire.header import CONTROL_CLASS, HEADER

Bytes = NDArray[np.uint8]

UNKNOWN_TAG: Final = CONTROL_CLASS * 2 + 1
_TAG_SHIFT: Final = HEADER.slots["protected"].shift
assert HEADER.slots["priority"].shift == _TAG_SHIFT + 1, "class and protection are neighbours, so that their bits are a tag"


class IncomingMessage:
    """A message from one peer.

    Args:
        peer: Sender's rank.
        message: 64-bit message id.
        length: Bytes.
        stride: Payload bytes per packet.
        bound: Loss bound in 1/65536.
        protected_packets: How many of its packets are protected.
        buffer: ``uint8[length]`` to place packets in.
        now: Nanoseconds.
    """

    __slots__ = (
        "allowed",
        "bound",
        "buffer",
        "forgone",
        "have",
        "interarrival",
        "last_arrival",
        "length",
        "message",
        "missing",
        "packets",
        "peer",
        "posted",
        "probe_echo",
        "probed",
        "probed_at",
        "protected_missing",
        "protected_packets",
        "reported",
        "settled",
        "stride",
        "tags",
    )

    def __init__(
        self,
        peer: int,
        message: int,
        length: int,
        stride: int,
        bound: int,
        protected_packets: int,
        buffer: Bytes,
        now: int,
    ) -> None:
        self.peer = peer
        self.message = message
        self.length = length
        self.stride = stride
        self.bound = bound
        self.protected_packets = protected_packets
        self.packets = packets_of(length, stride)
        self.allowed = self.packets * bound // BOUND_SCALE
        self.have = np.zeros(self.packets, bool)
        # Of packets that came trimmed: asked for again, or given up within the bound.
        self.settled = np.zeros(self.packets, bool)
        self.forgone = 0
        self.missing = self.packets
        self.protected_missing = protected_packets
        self.probed = False
        self.probed_at = now
        self.probe_echo = 0
        self.reported = False
        self.posted = False
        self.last_arrival = now
        self.interarrival = 0.0
        self.tags: Bytes | None = None
        if buffer.size != length or buffer.dtype != np.uint8 or not (buffer.flags.c_contiguous and buffer.flags.writeable):
            raise ValueError(f"the buffer must be {length} contiguous, writable bytes")
        self.buffer = buffer

    def account(self, new: int, protected: int, now: int) -> None:
        """Takes into account packets that have been placed, and were not in before."""
        if new:
            self.missing -= new
            self.protected_missing -= protected
            self._note_gap(now)

    def _note_gap(self, now: int) -> None:
        # Not divided by the packets of a batch: what matters is for how long a sender that is not done may be silent, and it may
        # send in bursts.
        gap = float(now - self.last_arrival)
        if gap:
            self.interarrival = gap if not self.interarrival else self.interarrival + (gap - self.interarrival) / 4
            self.last_arrival = now

    def keep_tags(self) -> None:
        """Has the tag of every packet remembered from now on."""
        if self.tags is None:
            self.tags = np.full(self.packets, UNKNOWN_TAG, np.uint8)

    def note_trimmed(self, indices: NDArray[np.int64], protected: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Learns that a switch has cut the payload off some packets.

        Returns:
            ``int64[m]``, those to ask for at once: protected ones, and droppable ones beyond what the bound covers.  Each is
            named once only.
        """
        indices, first = np.unique(indices, return_index=True)
        protected = protected[first]
        fresh = ~self.have[indices] & ~self.settled[indices]
        indices, protected = indices[fresh], protected[fresh]
        self.settled[indices] = True
        droppable = indices[~protected]
        spare = max(self.allowed - self.forgone, 0)
        self.forgone += min(spare, int(droppable.size))
        return np.sort(np.concatenate([indices[protected], droppable[spare:]]))

    @property
    def satisfied(self) -> bool:
        """All protected packets are in, and no more is missing than the bound allows."""
        return self.protected_missing <= 0 and self.missing <= self.allowed

    @property
    def needed(self) -> int:
        """Packets still needed to satisfy the rule (a lower limit: which ones are protected is not known here)."""
        return max(self.protected_missing, self.missing - self.allowed, 0)

    def lost(self) -> NDArray[np.int64]:
        """Returns the indices of the packets that are not in."""
        return np.flatnonzero(~self.have).astype(np.int64)

    def bitmap(self) -> Bytes:
        """Returns one bit a packet, set if missing, first packet in the most significant bit."""
        return np.packbits(~self.have)

    def note_probe(self, sequence: int, now: int) -> None:
        """Learns that the sender has sent all; a second probe does not prolong the wait for stragglers."""
        if not self.probed:
            self.probed = True
            self.probed_at = now
        self.probe_echo = sequence

    def deadline(self, grace_factor: float, grace_floor: int, reordering_window: int, last_data: int) -> int | None:
        """Returns when the endpoint must act on this message if nothing more arrives; None: never.

        Args:
            grace_factor: Inter-arrival times of silence that are too many.
            grace_floor: Shortest silence that is too long, in nanoseconds.
            reordering_window: How long stragglers may take once all has been sent, in nanoseconds.
            last_data: When data of any message last came from this sender: as long as some does, it has not fallen silent, it
                has something more urgent to send.
        """
        if self.probed:
            return max(self.last_arrival, self.probed_at) + reordering_window
        if self.satisfied:
            return max(self.last_arrival, last_data) + max(int(grace_factor * self.interarrival), grace_floor)
        return None


def unpack_bitmap(bits: Bytes, packets: int) -> NDArray[np.int64]:
    """Returns the indices that a report's bitmap names, ascending.

    Raises:
        ValueError: The bitmap is shorter than ``packets`` bits.
    """
    if bits.size * 8 < packets:
        raise ValueError(f"bitmap of {bits.size} bytes for {packets} packets")
    return np.flatnonzero(np.unpackbits(bits, count=packets)).astype(np.int64)
