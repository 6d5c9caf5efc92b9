"""Where everything is in the memory of :mod:`dlcp.udp.describe`: positions of 64-bit words."""

from __future__ import annotations

import sys
from typing import Final

from dlcp.wire.checksum import CHECK_SHIFT, MASK16
from dlcp.wire.header import HEADER, HEADER_BYTES

# Head.
D_MESSAGES: Final = 0
D_VECTORS: Final = 1
D_COPIES: Final = 2
D_CONTROL: Final = 3
"""Addresses of the kernel's message headers, I/O vectors (two a datagram), room for headers, control messages (two a message)."""
D_SEGMENTS: Final = 4
D_MESSAGE_BYTES: Final = 5
"""Datagrams, and UDP payload bytes, that one message may hold."""
D_TOS_SPACE: Final = 6
"""Bytes of the control message with the ToS; 0: it is not sent along, and all datagrams described at once must have the same."""
D_BURST: Final = 7
D_ROW: Final = 8
"""The next datagram: burst, and row of it."""
D_ROWS: Final = 9
D_COUNT: Final = 10
"""Datagrams and messages described."""
D_OPEN: Final = 11
D_SIZE: Final = 12
D_IN_MESSAGE: Final = 13
"""Whether the last message may still grow, the bytes of its first datagram, and how many it holds."""
D_LOCATION: Final = 14
D_TOS: Final = 15
"""Where to, and with what ToS."""
D_STOPS: Final = 16
"""From here on, for each message, the datagrams described up to its end."""

# A burst.
B_LOCATION: Final = 0
"""Address of a socket address."""
B_TOS: Final = 1
B_COUNT: Final = 2
B_DATA: Final = 3
"""Not 0: headers are yet to be made, from a template."""
B_HEADERS: Final = 4
"""Address of the headers, or of the template."""
B_WIDTH: Final = 5
B_PAYLOAD: Final = 6
B_LENGTH: Final = 7
"""Address and bytes of the payload."""
B_OFFSETS: Final = 8
"""Address of the datagrams' offsets in it, or of the packets' numbers."""
B_SIZES: Final = 9
"""Address of the datagrams' payload bytes; of data they follow from the stride."""
B_STRIDE: Final = 10
B_FLAGS: Final = 11
B_SEQUENCE: Final = 12
B_TIMESTAMP: Final = 13
B_WORDS: Final = 14

PACKETS: Final = 1024
"""Datagrams described at once; ``sendmmsg`` takes at most 1024 messages."""

# Structures of the kernel where words have 64 bits: bytes.
MESSAGE_BYTES: Final = 64
NAME_AT: Final = 0
VECTOR_AT: Final = 16
VECTORS_AT: Final = 24
CONTROL_LENGTH_AT: Final = 40
VECTOR_BYTES: Final = 16
CELL_BYTES: Final = 24
VALUE_AT: Final = 16
SHORT_SHIFT: Final = 0 if sys.byteorder == "little" else 48
INT_SHIFT: Final = 0 if sys.byteorder == "little" else 32
"""Bits by which a short, an int, is shifted in a word at whose address it stands."""

# The header.
H_BYTES: Final = HEADER_BYTES
FLAGS_SHIFT: Final = 48
WITHOUT_FLAGS: Final = ~(0xFF << FLAGS_SHIFT)
WITHOUT_CHECK: Final = ~(MASK16 << CHECK_SHIFT)
assert HEADER.slots["priority"].byte == 1
assert [HEADER.slots[name].byte for name in ("offset", "sequence", "timestamp")] == [28, 32, 36], "change describe.py, too"
