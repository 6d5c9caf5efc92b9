"""Completes transport checksums that a sender left to its network card.

A host on a virtual Ethernet pair whose transmit offload is on hands over frames whose TCP or UDP checksum is only begun; the
kernel would complete it on a real link.  A switch in user space that forwards such a frame as it stands delivers garbage: ping
works, UDP does not.
"""

from __future__ import annotations

from typing import Final

_IPV4: Final = 0x0800
_IPV6: Final = 0x86DD
_TAGS: Final = (0x8100, 0x88A8)
_CHECKSUM_AT: Final = {6: 16, 17: 6}
"""IP protocol to the offset of the checksum in its header: TCP (RFC 9293), UDP (RFC 768)."""


def internet_checksum(data: bytes) -> int:
    """RFC 1071's checksum of ``data``: the complement of the one's complement sum of its 16-bit words."""
    if len(data) & 1:
        data += b"\0"
    # 2**16 is 1 modulo 0xffff, so the remainder of the whole number is the sum of its words with end-around carry.
    total = int.from_bytes(data, "big")
    return 0xFFFF - (total % 0xFFFF or (0xFFFF if total else 0))


def complete(frame: bytes) -> bytes:
    """Returns an Ethernet frame with its TCP or UDP checksum computed; a frame that has none, or is cut short, as it is.

    IPv6 extension headers and IPv4 fragments are left alone: the kernel leaves no checksum of theirs undone.
    """
    at = 12
    while len(frame) >= at + 2 and int.from_bytes(frame[at : at + 2], "big") in _TAGS:
        at += 4
    kind = int.from_bytes(frame[at : at + 2], "big")
    at += 2
    if kind == _IPV4 and len(frame) >= at + 20 and frame[at] >> 4 == 4:
        header = (frame[at] & 0xF) * 4
        length = int.from_bytes(frame[at + 2 : at + 4], "big") - header
        protocol = frame[at + 9]
        addresses = frame[at + 12 : at + 20]
        if header < 20 or int.from_bytes(frame[at + 6 : at + 8], "big") & 0x3FFF:
            return frame
        at += header
    elif kind == _IPV6 and len(frame) >= at + 40:
        length = int.from_bytes(frame[at + 4 : at + 6], "big")
        protocol = frame[at + 6]
        addresses = frame[at + 8 : at + 40]
        at += 40
    else:
        return frame
    offset = _CHECKSUM_AT.get(protocol)
    if offset is None or length < offset + 2 or len(frame) < at + length:
        return frame
    segment = bytearray(frame[at : at + length])
    segment[offset : offset + 2] = b"\0\0"
    pseudo = addresses + length.to_bytes(4, "big") + protocol.to_bytes(4, "big")
    value = internet_checksum(pseudo + bytes(segment))
    if protocol == 17 and not value:
        value = 0xFFFF
    return frame[: at + offset] + value.to_bytes(2, "big") + frame[at + offset + 2 :]


__all__ = ["complete", "internet_checksum"]
