"""Where everything is in the memory of :mod:`dlcp.transport.intake`, positions of 64-bit words, and in a header (``H_``).

The memory holds a head (``I_``), a block for each rank (``P_``), a table of open messages (``E_``), and three lists of what a
batch was about: ranks, messages, and packets that are left to others.  A batch is described by a block for each frame (``F_``).
"""

from __future__ import annotations

from typing import Final

from dlcp.wire.header import HEADER, HEADER_BYTES, VERSION, PacketType

# Head.
I_RANK: Final = 0
I_WORLD: Final = 1
I_COOKIE: Final = 2
I_CLOSED: Final = 3
"""Not 0: leave every packet that is ours to others."""
I_STAMP: Final = 4
"""Number of the batch."""
I_NOW: Final = 5
"""The receiver's clock in nanoseconds."""
I_FRAME: Final = 6
I_ROW: Final = 7
"""The next packet."""
I_ORPHAN: Final = 8
"""Not 0: the next packet's message is none that is open, which is known already."""
I_SOURCES: Final = 9
I_MESSAGES: Final = 10
I_REST: Final = 11
"""How long the lists are."""
I_ENTRIES: Final = 12
I_SOURCE_LIST: Final = 13
I_MESSAGE_LIST: Final = 14
I_REST_LIST: Final = 15
"""Where the table and the lists are."""
I_REFUSED: Final = 16
"""Five counts of datagrams that are not ours, in the order of ``REFUSALS``."""
I_WORDS: Final = 32

REFUSALS: Final = ("truncated", "version", "foreign", "check", "misaddressed")

# A rank: what the batch brought from it.
P_STAMP: Final = 0
P_COUNT: Final = 1
P_MARKED: Final = 2
P_DEPTH: Final = 3
P_ASKING: Final = 4
P_NEWEST: Final = 5
"""The batch brought a higher sequence number than any before."""
# What is remembered of it.
P_HIGHEST: Final = 6
P_ECHO: Final = 7
"""Timestamp of the packet with the highest number."""
P_PACKETS: Final = 8
P_IN_ORDER: Final = 9
P_EXTENT: Final = 10
"""Packets in all, in a row without one out of order, and by how many nanoseconds one came late: see ``ordering``."""
P_WAITED: Final = 11
"""Microseconds that the packet with the highest number waited on this host before it was taken."""
P_CLASS_HIGHEST: Final = 16
P_CLASS_DELAY: Final = 24
P_CLASS_KNOWN: Final = 32
P_WORDS: Final = 40

# An open message.
E_OWNER: Final = 0
"""Rank it comes from, plus 1; 0: nothing is here."""
E_MESSAGE: Final = 1
E_LENGTH: Final = 2
E_SHAPE: Final = 3
"""Stride, bound and protected packets, 16 bits each, as in the header."""
E_BUFFER: Final = 4
E_HAVE: Final = 5
E_TAGS: Final = 6
"""Addresses of what is placed, of a byte a packet that says whether it is in, and of one for its tag or 0."""
E_STAMP: Final = 7
E_COUNT: Final = 8
E_AGAIN: Final = 9
E_NEW: Final = 10
E_NEW_PROTECTED: Final = 11
"""What the batch brought: packets; those sent before; those that were not in; those of the latter that are protected."""
E_WORDS: Final = 16

ENTRIES: Final = 1024
REACH: Final = 4
"""How many places a message may have in the table."""
REST_ROOM: Final = 512
R_WORDS: Final = 3
"""What is left to others: frame, row, and the microseconds that it waited on this host before it was taken."""

# A frame.
F_DATA: Final = 0
F_PITCH: Final = 1
F_WIDTH: Final = 2
F_ROWS: Final = 3
F_LENGTHS: Final = 4
F_ECN: Final = 5
F_CAME: Final = 6
F_CAME_PITCH: Final = 7
"""Where arrival times are, 0 if nobody knows them, and bytes from one to the next."""
F_WORDS: Final = 8

WAITED_MOST: Final = 1_000_000
"""Microseconds; nothing waits longer than that: the clocks were set meanwhile."""

# Verdicts of a pass.
DONE: Final = 0
UNKNOWN: Final = 1
"""The next packet's message is not in the table."""
FULL: Final = 2
"""A list is full."""

# The header, as six words in network byte order.
MASK48: Final = 0xFFFFFFFFFFFF

H_BYTES: Final = HEADER_BYTES
H_VERSION: Final = VERSION
H_TYPES: Final = len(PacketType)
H_DATA: Final = int(PacketType.DATA)
H_PROBE: Final = int(PacketType.PROBE)
H_PING: Final = int(PacketType.PING)
_FLAGS: Final = 48
"""Bits of the first word behind the byte with the flags."""
H_PROTECTED: Final = 1 << (HEADER.slots["protected"].shift + _FLAGS)
H_TRIMMED: Final = 1 << (HEADER.slots["trimmed"].shift + _FLAGS)
H_RETRANSMISSION: Final = 1 << (HEADER.slots["retransmission"].shift + _FLAGS)
H_PRIORITY_SHIFT: Final = HEADER.slots["priority"].shift + _FLAGS
H_TAG_SHIFT: Final = HEADER.slots["protected"].shift + _FLAGS


def _fits() -> bool:
    """Tells whether the header is laid out as the functions take it for granted."""
    bytes_of = {
        "version": 0,
        "type": 0,
        "priority": 1,
        "source": 4,
        "destination": 6,
        "cookie": 8,
        "operation": 16,
        "length": 24,
        "offset": 28,
        "sequence": 32,
        "timestamp": 36,
        "stride": 40,
        "bound": 42,
        "protected_packets": 44,
        "queue_depth": 46,
    }
    placed = all(HEADER.slots[name].byte == byte for name, byte in bytes_of.items())
    return HEADER_BYTES == 48 and placed


assert _fits(), "the header has changed: change the functions, too"
