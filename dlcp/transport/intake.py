"""What is done with every packet that comes: the gate, the count for congestion feedback, order, and the payload to its place.

Plain functions over one memory of 64-bit words, in the part of Python that :mod:`dlcp.compiler` compiles.
:mod:`dlcp.transport.arrivals` owns the memory; what needs a decision is left to others: control, new messages, whatever is odd.

The gate: datagrams that are not ours, whole and well-formed are counted and change nothing.  A payload is written only where the
header, its message's entry and the datagram's length agree, so never beyond the buffer.
"""

from __future__ import annotations

from dlcp.compiler.raw import Words, big64, here64, ld, move, octet, put_octet, st
from dlcp.transport.intake_layout import (
    DONE,
    E_AGAIN,
    E_BUFFER,
    E_COUNT,
    E_HAVE,
    E_LENGTH,
    E_MESSAGE,
    E_NEW,
    E_NEW_PROTECTED,
    E_OWNER,
    E_SHAPE,
    E_STAMP,
    E_TAGS,
    E_WORDS,
    ENTRIES,
    F_CAME,
    F_CAME_PITCH,
    F_DATA,
    F_ECN,
    F_LENGTHS,
    F_PITCH,
    F_ROWS,
    F_WIDTH,
    F_WORDS,
    FULL,
    H_BYTES,
    H_DATA,
    H_PING,
    H_PRIORITY_SHIFT,
    H_PROBE,
    H_PROTECTED,
    H_RETRANSMISSION,
    H_TAG_SHIFT,
    H_TRIMMED,
    H_TYPES,
    H_VERSION,
    I_CLOSED,
    I_COOKIE,
    I_ENTRIES,
    I_FRAME,
    I_MESSAGE_LIST,
    I_MESSAGES,
    I_NOW,
    I_ORPHAN,
    I_RANK,
    I_REFUSED,
    I_REST,
    I_REST_LIST,
    I_ROW,
    I_SOURCE_LIST,
    I_SOURCES,
    I_STAMP,
    I_WORDS,
    I_WORLD,
    MASK48,
    P_ASKING,
    P_CLASS_DELAY,
    P_CLASS_HIGHEST,
    P_CLASS_KNOWN,
    P_COUNT,
    P_DEPTH,
    P_ECHO,
    P_EXTENT,
    P_HIGHEST,
    P_IN_ORDER,
    P_MARKED,
    P_NEWEST,
    P_PACKETS,
    P_STAMP,
    P_WAITED,
    P_WORDS,
    R_WORDS,
    REACH,
    REST_ROOM,
    UNKNOWN,
    WAITED_MOST,
)
from dlcp.transport.serial import ahead
from dlcp.wire.checksum import CHECK_SHIFT, MASK16, MASK32, check_of


def whole(at: int) -> int:
    """Tells whether the check of the header at an address holds."""
    first = big64(at)
    check = check_of(first, big64(at + 8), big64(at + 16), big64(at + 24), big64(at + 32), big64(at + 40))
    return check == ((first >> CHECK_SHIFT) & MASK16)


def refuse(m: Words, why: int) -> None:
    """Counts a datagram that is not ours."""
    st(m, I_REFUSED + why, ld(m, I_REFUSED + why) + 1)


def place_of(source: int, message: int) -> int:
    """Returns the first of the places that a message may have in the table."""
    mixed = ((message >> 32) & MASK32) * 40503 + (message & MASK32) * 30011 + source * 20011
    return (mixed ^ (mixed >> 15)) & (ENTRIES - 1)


def entry_of(m: Words, source: int, message: int) -> int:
    """Returns the position of an open message, 0 if it is not in the table."""
    place = place_of(source, message)
    tried = 0
    while tried < REACH:
        entry = ld(m, I_ENTRIES) + ((place + tried) & (ENTRIES - 1)) * E_WORDS
        if ld(m, entry + E_MESSAGE) == message and ld(m, entry + E_OWNER) == source + 1:
            return entry
        tried += 1
    return 0


def leave(m: Words, frame: int, row: int, waited: int) -> None:
    """Leaves a packet to others."""
    at = ld(m, I_REST_LIST) + R_WORDS * ld(m, I_REST)
    st(m, at, frame)
    st(m, at + 1, row)
    st(m, at + 2, waited)
    st(m, I_REST, ld(m, I_REST) + 1)


def meet(m: Words, source: int) -> int:
    """Returns the position of a rank's block, which is on the list of this batch from now on."""
    peer = I_WORDS + source * P_WORDS
    if ld(m, peer + P_STAMP) != ld(m, I_STAMP):
        st(m, peer + P_STAMP, ld(m, I_STAMP))
        st(m, peer + P_COUNT, 0)
        st(m, peer + P_MARKED, 0)
        st(m, peer + P_DEPTH, 0)
        st(m, peer + P_ASKING, 0)
        st(m, peer + P_NEWEST, 0)
        st(m, ld(m, I_SOURCE_LIST) + ld(m, I_SOURCES), source)
        st(m, I_SOURCES, ld(m, I_SOURCES) + 1)
    return peer


def count(m: Words, peer: int, sequence: int, timestamp: int, priority: int, marked: int, depth: int, waited: int) -> None:
    """Counts a numbered packet, and looks whether it is in order among those of its class."""
    st(m, peer + P_COUNT, ld(m, peer + P_COUNT) + 1)
    st(m, peer + P_MARKED, ld(m, peer + P_MARKED) + marked)
    if depth > ld(m, peer + P_DEPTH):
        st(m, peer + P_DEPTH, depth)
    newest = ahead(sequence, ld(m, peer + P_HIGHEST)) > 0
    if newest:
        st(m, peer + P_HIGHEST, sequence)
        st(m, peer + P_ECHO, timestamp)
        st(m, peer + P_NEWEST, 1)
        st(m, peer + P_WAITED, waited)
    st(m, peer + P_PACKETS, ld(m, peer + P_PACKETS) + 1)
    st(m, peer + P_IN_ORDER, ld(m, peer + P_IN_ORDER) + 1)
    delay = (ld(m, I_NOW) // 1000 - waited - timestamp) & MASK32
    distance = 1
    if not newest and ld(m, peer + P_CLASS_KNOWN + priority):
        distance = ahead(sequence, ld(m, peer + P_CLASS_HIGHEST + priority))
    if distance > 0:
        st(m, peer + P_CLASS_KNOWN + priority, 1)
        st(m, peer + P_CLASS_HIGHEST + priority, sequence)
        st(m, peer + P_CLASS_DELAY + priority, delay)
    elif distance < 0:
        # How much longer it took than the packet that came before it though it left later.
        extent = ahead(delay, ld(m, peer + P_CLASS_DELAY + priority)) * 1000
        if extent > ld(m, peer + P_EXTENT):
            st(m, peer + P_EXTENT, extent)
        st(m, peer + P_IN_ORDER, 0)


def put(m: Words, entry: int, at: int, first: int, offset: int, stride: int, size: int) -> None:
    """Puts a payload in its place, if it is not there yet."""
    if ld(m, entry + E_STAMP) != ld(m, I_STAMP):
        st(m, entry + E_STAMP, ld(m, I_STAMP))
        st(m, entry + E_COUNT, 0)
        st(m, entry + E_AGAIN, 0)
        st(m, entry + E_NEW, 0)
        st(m, entry + E_NEW_PROTECTED, 0)
        st(m, ld(m, I_MESSAGE_LIST) + ld(m, I_MESSAGES), entry)
        st(m, I_MESSAGES, ld(m, I_MESSAGES) + 1)
    st(m, entry + E_COUNT, ld(m, entry + E_COUNT) + 1)
    if first & H_RETRANSMISSION:
        st(m, entry + E_AGAIN, ld(m, entry + E_AGAIN) + 1)
    index = offset // stride
    tags = ld(m, entry + E_TAGS)
    if tags:
        # A packet that was sent again came with class 7; if its first copy comes too, that one's class counts.
        tag = (first >> H_TAG_SHIFT) & 15
        if tag < octet(tags + index):
            put_octet(tags + index, tag)
    have = ld(m, entry + E_HAVE) + index
    if octet(have):
        return
    move(ld(m, entry + E_BUFFER) + offset, at, size)
    put_octet(have, 1)
    st(m, entry + E_NEW, ld(m, entry + E_NEW) + 1)
    if first & H_PROTECTED:
        st(m, entry + E_NEW_PROTECTED, ld(m, entry + E_NEW_PROTECTED) + 1)


def gate(m: Words, at: int, size: int) -> int:
    """Tells whether a datagram is ours; counts why not."""
    if size < H_BYTES:
        refuse(m, 0)
        return 0
    first = big64(at)
    if (first >> 60) & 15 != H_VERSION or (first >> 56) & 15 >= H_TYPES:
        refuse(m, 1)
        return 0
    if big64(at + 8) != ld(m, I_COOKIE):
        refuse(m, 2)
        return 0
    if not whole(at):
        refuse(m, 3)
        return 0
    source = (first >> 16) & MASK16
    if first & MASK16 != ld(m, I_RANK) or source >= ld(m, I_WORLD) or source == ld(m, I_RANK):
        refuse(m, 4)
        return 0
    return 1


def odd(first: int, length: int, offset: int, stride: int, size: int) -> int:
    """Tells whether a data packet is trimmed, or its payload is none that its header describes."""
    if first & H_TRIMMED or stride == 0 or offset % stride:
        return 1
    if offset >= length and length:
        return 1
    rest = length - offset
    return size - H_BYTES != (stride if stride < rest else rest)


def waited_of(m: Words, arrival: int) -> int:
    """Returns the microseconds that a datagram waited on this host."""
    if arrival == 0:
        return 0
    waited = (ld(m, I_NOW) - arrival) // 1000
    return waited if waited > 0 and waited < WAITED_MOST else 0


def packet(m: Words, at: int, size: int, ecn: int, waited: int, frame: int, row: int) -> int:
    """Takes one datagram, ``size`` bytes at an address; returns a verdict."""
    if not gate(m, at, size):
        return DONE
    first = big64(at)
    kind = (first >> 56) & 15
    source = (first >> 16) & MASK16
    if ld(m, I_CLOSED):
        if ld(m, I_REST) == REST_ROOM:
            return FULL
        meet(m, source)
        leave(m, frame, row, waited)
        return DONE
    last = big64(at + 40)
    entry = 0
    if kind == H_DATA:
        range_ = big64(at + 24)
        length = (range_ >> 32) & MASK32
        offset = range_ & MASK32
        stride = (last >> 48) & MASK16
        if not odd(first, length, offset, stride, size):
            entry = entry_of(m, source, big64(at + 16))
            if entry == 0 and not ld(m, I_ORPHAN):
                return UNKNOWN
            if entry and (ld(m, entry + E_LENGTH) != length or ld(m, entry + E_SHAPE) != (last >> 16) & MASK48):
                entry = 0
    if entry == 0 and not ld(m, I_ORPHAN) and ld(m, I_REST) == REST_ROOM:
        return FULL
    peer = meet(m, source)
    if kind == H_DATA or kind == H_PROBE or kind == H_PING:
        numbers = big64(at + 32)
        if kind != H_DATA:
            st(m, peer + P_ASKING, 1)
        priority = (first >> H_PRIORITY_SHIFT) & 7
        count(m, peer, (numbers >> 32) & MASK32, numbers & MASK32, priority, ecn & 3 == 3, last & MASK16, waited)
    if entry:
        put(m, entry, at + H_BYTES, first, big64(at + 24) & MASK32, (last >> 48) & MASK16, size - H_BYTES)
    elif ld(m, I_ORPHAN):
        st(m, I_ORPHAN, 0)
    else:
        leave(m, frame, row, waited)
    return DONE


def take(m: Words, frames: Words, number: int) -> int:
    """Takes a batch of ``number`` frames from where the last pass stopped; returns a verdict."""
    frame = ld(m, I_FRAME)
    row = ld(m, I_ROW)
    while frame < number:
        f = frame * F_WORDS
        data = ld(frames, f + F_DATA)
        pitch = ld(frames, f + F_PITCH)
        width = ld(frames, f + F_WIDTH)
        lengths = ld(frames, f + F_LENGTHS)
        ecn = ld(frames, f + F_ECN)
        rows = ld(frames, f + F_ROWS)
        came = ld(frames, f + F_CAME)
        came_pitch = ld(frames, f + F_CAME_PITCH)
        while row < rows:
            size = here64(lengths + 8 * row)
            if size > width:
                size = width
            waited = waited_of(m, here64(came + row * came_pitch) if came else 0)
            verdict = packet(m, data + row * pitch, size, octet(ecn + row), waited, frame, row)
            if verdict != DONE:
                st(m, I_FRAME, frame)
                st(m, I_ROW, row)
                return verdict
            row += 1
        row = 0
        frame += 1
    st(m, I_FRAME, frame)
    st(m, I_ROW, 0)
    return DONE
