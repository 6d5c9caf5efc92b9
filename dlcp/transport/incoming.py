"""One message on its way in: where packets are placed, and the rule that says when it is complete.

Completion rule.  A message is *satisfied* when every protected packet is in and the missing share does not exceed its bound
(reliable: nothing is missing).  It is complete

* at once, when nothing is missing;
* when it is satisfied and its sender has said that all was sent (PROBE), after the reordering window;
* when it is satisfied and nothing came from its sender for the grace period: waiting longer would not be cheap.

An unsatisfied message whose sender has probed is answered with what is missing.  Nothing here keeps time: the endpoint asks
:meth:`IncomingMessage.deadline` and comes back.
"""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dlcp.transport.outgoing import BOUND_SCALE, packets_of
from dlcp.transport.packets import Frames
from dlcp.wire.header import CONTROL_CLASS, HEADER, HEADER_BYTES

Bytes = NDArray[np.uint8]

SCATTER_BYTES: Final = 4096
"""Runs shorter than this on average are placed by one indexed assignment a frame: a slice for each costs more than copying."""

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
        "_full_rows",
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
        self.rebase(buffer)

    def rebase(self, buffer: Bytes) -> None:
        """Continues in another buffer (what has arrived is the caller's to copy)."""
        self.buffer = buffer
        full = self.length // self.stride
        self._full_rows = buffer[: full * self.stride].reshape(full, self.stride)

    def place(
        self,
        payload: Bytes,
        rows: NDArray[np.int64] | slice,
        indices: NDArray[np.int64],
        protected: NDArray[np.bool_],
        now: int,
    ) -> int:
        """Places packets.

        Args:
            payload: ``uint8[m, >= stride]``, payloads of received datagrams, one a row.
            rows: Which rows of ``payload`` belong to ``indices``.
            indices: ``int64[n]``, packet index of each, all within the message, each row as long as its packet.
            protected: ``bool[n]``, protection bit of each.
            now: Nanoseconds.

        Returns:
            How many were new; the others were duplicates and changed nothing.
        """
        fresh = ~self.have[indices]
        increasing = indices.size == 1 or bool((np.diff(indices) > 0).all())
        if not (increasing and fresh.all()):
            keep = np.zeros(indices.size, bool)
            keep[np.unique(indices, return_index=True)[1]] = True
            keep &= fresh
            if not keep.any():
                return 0
            chosen = np.flatnonzero(keep)
            rows = chosen + (rows.start or 0) if isinstance(rows, slice) else rows[chosen]
            indices, protected = indices[chosen], protected[chosen]
        count = int(indices.size)
        self._copy(payload[rows], indices, increasing)
        self._account(indices, count, protected, now)
        return count

    def place_runs(
        self,
        frames: list[Frames],
        runs: list[tuple[int, int, int, int]],
        indices: NDArray[np.int64],
        ascending: bool,
        protected: NDArray[np.bool_],
        now: int,
    ) -> bool:
        """Places packets if none of them is in yet, or twice in ``indices``; see :mod:`dlcp.transport.arrivals`.

        Returns:
            Whether it did; if not, nothing has changed and :meth:`place` must sort out the duplicates.
        """
        first, count = int(indices[0]), int(indices.size)
        if not ascending and np.unique(indices).size != count:
            return False
        dense = ascending and int(indices[-1]) - first == count - 1
        here: slice | NDArray[np.int64] = slice(first, first + count) if dense else indices
        if self.have[here].any():
            return False
        if len(runs) > 4 and count * self.stride < SCATTER_BYTES * len(runs):
            self._scatter(frames, runs, indices)
        else:
            self._slide(frames, runs)
        self._account(here, count, protected, now)
        return True

    def place_one(self, payload: Bytes, index: int, protected: bool, now: int) -> bool:
        """Places one packet; returns False, and changes nothing, if it is in already.

        Args:
            payload: ``uint8[n]``, as long as the packet.
            index: Its number, within the message.
            protected: Its protection bit.
            now: Nanoseconds.
        """
        if self.have[index]:
            return False
        at = index * self.stride
        self.buffer[at : at + payload.size] = payload
        self.have[index] = True
        self.missing -= 1
        self.protected_missing -= protected
        self._note_gap(now)
        return True

    def _slide(self, frames: list[Frames], runs: list[tuple[int, int, int, int]]) -> None:
        full, end = self._full_rows.shape[0], HEADER_BYTES + self.stride
        for frame, start, stop, index in runs:
            data = frames[frame].data
            past = index + stop - start
            if past > full:
                past, stop = full, stop - 1
                tail = self.length - full * self.stride
                self.buffer[full * self.stride :] = data[stop, HEADER_BYTES : HEADER_BYTES + tail]
            if past > index:
                self._full_rows[index:past] = data[start:stop, HEADER_BYTES:end]

    def _scatter(self, frames: list[Frames], runs: list[tuple[int, int, int, int]], indices: NDArray[np.int64]) -> None:
        """Packets of mixed tags interleave: one indexed assignment a frame beats one slice a run."""
        at = 0
        for frame, group in itertools.groupby(runs, key=lambda run: run[0]):
            stretch = list(group)
            first, last = stretch[0][1], stretch[-1][2]
            count = sum(stop - start for _, start, stop, _ in stretch)
            rows: slice | NDArray[np.int64] = slice(first, last)
            if last - first != count or any(a[2] != b[1] for a, b in itertools.pairwise(stretch)):
                rows = np.concatenate([np.arange(start, stop) for _, start, stop, _ in stretch])
            self._copy(frames[frame].data[rows, HEADER_BYTES:], indices[at : at + count], False)
            at += count

    def _account(self, here: slice | NDArray[np.int64], count: int, protected: NDArray[np.bool_], now: int) -> None:
        self.have[here] = True
        self.missing -= count
        self.protected_missing -= int(np.count_nonzero(protected))
        self._note_gap(now)

    def _note_gap(self, now: int) -> None:
        # Not divided by the packets of a batch: what matters is for how long a sender that is not done may be silent, and it may
        # send in bursts.
        gap = float(now - self.last_arrival)
        if gap:
            self.interarrival = gap if not self.interarrival else self.interarrival + (gap - self.interarrival) / 4
            self.last_arrival = now

    def _copy(self, source: Bytes, indices: NDArray[np.int64], increasing: bool) -> None:
        full = self._full_rows.shape[0]
        if full < self.packets:
            is_tail = indices == full
            if is_tail.any():
                self.buffer[full * self.stride :] = source[int(is_tail.argmax()), : self.length - full * self.stride]
                indices, source = indices[~is_tail], source[~is_tail]
                if not indices.size:
                    return
        first, last = int(indices[0]), int(indices[-1])
        if increasing and last - first == indices.size - 1:
            self._full_rows[first : last + 1] = source[:, : self.stride]
        else:
            self._full_rows[indices] = source[:, : self.stride]

    def note_tags(self, indices: NDArray[np.int64], flags: Bytes) -> None:
        """Remembers the tags of packets: ``uint8[n]``, the header bytes that hold them.

        A packet that was sent again came with class 7; if its first copy comes too, that one's class counts.
        """
        if self.tags is None:
            self.tags = np.full(self.packets, UNKNOWN_TAG, np.uint8)
        self.tags[indices] = np.minimum(self.tags[indices], flags >> _TAG_SHIFT)

    def note_tag(self, index: int, flags: int) -> None:
        """Remembers the tag of one packet; see :meth:`note_tags`."""
        if self.tags is None:
            self.tags = np.full(self.packets, UNKNOWN_TAG, np.uint8)
        self.tags[index] = min(int(self.tags[index]), flags >> _TAG_SHIFT)

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
