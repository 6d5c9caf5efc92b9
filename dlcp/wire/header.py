"""The DLCP header: the one table from which every reader and writer of the bytes is generated.

Every datagram starts with :data:`HEADER` (48 bytes).  Payload then starts on an 8-byte boundary, so that elements of any
supported type are aligned.  The fields that a switch may change are marked ``mutable`` and are left out of the header check.

Design: DLCP (arXiv 2008.08445) names tensor id, offset, sequence, length, source, destination, ToS and a last flag.  This header
adds what a hostile or lossy network asks for: a version, a 64-bit job cookie, a check, timestamps for delay-based control, and
the count of protected packets, so that a receiver knows when it has all of them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from dlcp.wire.layout import Field, Layout

VERSION: Final = 1
UDP_PORT: Final = 9753
"""Default port of the dissector and of ``dlcp serve``; ranks bind ephemeral ports."""

CONTROL_CLASS: Final = 7
LAYER_CLASSES: Final = 7


class PacketType(IntEnum):
    """What a datagram is."""

    DATA = 0
    PROBE = 1
    STATUS = 2
    STOP = 3
    FEEDBACK = 4
    HELLO = 5
    HELLO_ACK = 6
    PING = 7
    ABORT = 8
    GOODBYE = 9


class Phase(IntEnum):
    """Which leg of a collective a message belongs to; selects the loss bound."""

    PUSH = 0
    PULL = 1
    RING_REDUCE = 2
    RING_GATHER = 3
    BROADCAST = 4
    RAW = 5
    EXCHANGE = 6
    DIRECT = 7


class WireType(IntEnum):
    """Element type of the payload, little-endian."""

    UINT8 = 0
    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    FLOAT64 = 4


ITEM_BYTES: Final = {
    WireType.UINT8: 1,
    WireType.FLOAT32: 4,
    WireType.FLOAT16: 2,
    WireType.BFLOAT16: 2,
    WireType.FLOAT64: 8,
}


def _names(kind: type[IntEnum]) -> dict[int, str]:
    return {int(member): member.name.lower() for member in kind}


HEADER: Final = Layout(
    "dlcp",
    [
        Field("version", 4, "Protocol version, 1."),
        Field("type", 4, "What this datagram is.", values=_names(PacketType)),
        Field("priority", 3, "Class: 0 (back layers) to 6 (front layers), 7 for control and trimmed headers.", mutable=True),
        Field("protected", 1, "1: a switch must not drop it selectively (large gradients); 0: droppable."),
        Field("trimmed", 1, "1: a switch removed the payload.", mutable=True),
        Field("retransmission", 1, "1: sent before."),
        Field("reserved", 2, "Zero."),
        Field("check", 16, "Internet checksum (RFC 1071) of the header; mutable fields and this one count as zero."),
        Field("source", 16, "Rank of the sender."),
        Field("destination", 16, "Rank of the receiver."),
        Field("cookie", 64, "Secret of the job, drawn at rendezvous; anything else is foreign."),
        Field("operation", 32, "Collective call, counted per job (serial arithmetic, RFC 1982)."),
        Field("phase", 8, "Leg of the collective.", values=_names(Phase)),
        Field(
            "dtype",
            8,
            "Low nibble: element type; bits 4 to 6: number of parts, folded; bit 7: mean.",
            parts=(
                Field("mean", 1, "1: the sum is divided by the number of contributors."),
                Field("parts", 3, "Messages the array is cut into: the octal digits of their number, exclusive-ored."),
                Field("element", 4, "Element type of the payload, little-endian.", values=_names(WireType)),
            ),
        ),
        Field("part", 16, "Which message of that leg, between these two ranks."),
        Field("length", 32, "Bytes of the whole message."),
        Field("offset", 32, "Byte at which this payload starts; a multiple of stride."),
        Field("sequence", 32, "Data, probe and ping packets sent to this receiver so far (serial arithmetic); 0 in all others."),
        Field("timestamp", 32, "Sender's clock in microseconds, modulo 2^32."),
        Field("stride", 16, "Payload bytes of every packet of the message but the last."),
        Field("bound", 16, "Loss bound of the message in 1/65536; 0: reliable."),
        Field("protected_packets", 16, "How many packets of the message are protected."),
        Field("queue_depth", 16, "Deepest queue seen on the path, stamped by switches.", mutable=True),
    ],
)
HEADER_BYTES: Final = HEADER.size

FEEDBACK_BODY: Final = Layout(
    "feedback",
    [
        Field("highest_sequence", 32, "Highest sequence received from the addressee."),
        Field("received", 32, "Sequenced packets (data, probe, ping) received from it, modulo 2^32."),
        Field("marked", 32, "Those that carried a congestion mark (ECN CE), modulo 2^32."),
        Field("trimmed", 32, "Those that arrived trimmed, modulo 2^32."),
        Field("timestamp_echo", 32, "Timestamp of the packet that carried highest_sequence."),
        Field("delay", 32, "Microseconds between its arrival and this packet."),
        Field("window", 32, "Bytes the addressee may have in flight."),
        Field("queue_depth", 16, "Deepest queue stamped since the last feedback."),
        Field("wait", 16, "How long that packet had waited on its receiver's host before it was taken, in 10 microseconds."),
    ],
)

BUSY: Final = 1
"""No memory for the message now; its sender tries again later."""
OVER: Final = 2
"""The message's operation is over at its receiver, and the message was no part of it."""

REPORT_BODY: Final = Layout(
    "report",
    [
        Field("missing", 32, "Packets of the message that have not arrived."),
        Field("needed", 32, "Packets still needed to satisfy protection and bound; 0 in STOP."),
        Field("packets", 16, "Packets of the message, which is the number of bits that follow; 0: nothing known of it."),
        Field(
            "busy",
            8,
            "Why nothing more can be said: 1: no memory for the message now, try later; 2: its operation is over here.",
            values={0: "no", 1: "no_memory", 2: "over"},
        ),
        Field("reserved", 8, "Zero."),
        Field("echo", 32, "Sequence of the probe that is answered; 0: unsolicited."),
    ],
)
"""Body of STATUS and STOP; a bitmap of missing packets follows, first packet in the most significant bit of the first byte."""

HELLO_BODY: Final = Layout(
    "hello",
    [
        Field("nonce", 64, "Chosen by the sender of HELLO, echoed in HELLO_ACK."),
        Field("datagram", 16, "UDP payload bytes of this datagram, padding included."),
        Field("reserved", 16, "Zero."),
        Field("reserved_tail", 32, "Zero."),
    ],
)


class AbortKind(IntEnum):
    """Which error an ABORT raises at its receivers."""

    FAILURE = 0
    PEER_LOST = 1
    TIMEOUT = 2
    MISMATCH = 3


ABORT_BODY: Final = Layout(
    "abort",
    [
        Field("kind", 8, "Which error to raise.", values=_names(AbortKind)),
        Field("reserved", 8, "Zero."),
        Field("culprit", 16, "Rank that failed, which need not be the sender."),
        Field("silence_ms", 32, "For a lost peer: how long it has been silent."),
    ],
)
"""Body of ABORT; the reason follows as UTF-8 up to the end of the datagram."""
