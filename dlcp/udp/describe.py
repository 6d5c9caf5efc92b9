"""Describes bursts to the kernel: headers, I/O vectors, messages for segmentation offload.

Plain functions over one memory of 64-bit words, in the part of Python that :mod:`dlcp.compiler` compiles;
:mod:`dlcp.udp.batch` owns the memory.

With segmentation offload a message is a run of datagrams to one peer, with one ToS and one size, the last of which may be
shorter; it may reach over the border of two bursts.
"""

from __future__ import annotations

from dlcp.compiler.raw import Words, big64, here64, ld, put_big64, put_here64, st
from dlcp.udp.describe_layout import (
    B_COUNT,
    B_DATA,
    B_FLAGS,
    B_HEADERS,
    B_LENGTH,
    B_LOCATION,
    B_OFFSETS,
    B_PAYLOAD,
    B_SEQUENCE,
    B_SIZES,
    B_STRIDE,
    B_TIMESTAMP,
    B_TOS,
    B_WIDTH,
    B_WORDS,
    CELL_BYTES,
    CONTROL_LENGTH_AT,
    D_BURST,
    D_CONTROL,
    D_COPIES,
    D_COUNT,
    D_IN_MESSAGE,
    D_LOCATION,
    D_MESSAGE_BYTES,
    D_MESSAGES,
    D_OPEN,
    D_ROW,
    D_ROWS,
    D_SEGMENTS,
    D_SIZE,
    D_STOPS,
    D_TOS,
    D_TOS_SPACE,
    D_VECTORS,
    FLAGS_SHIFT,
    H_BYTES,
    INT_SHIFT,
    MESSAGE_BYTES,
    NAME_AT,
    PACKETS,
    SHORT_SHIFT,
    VALUE_AT,
    VECTOR_AT,
    VECTOR_BYTES,
    VECTORS_AT,
    WITHOUT_CHECK,
    WITHOUT_FLAGS,
)
from dlcp.wire.checksum import CHECK_SHIFT, MASK32, check_of


def make_header(at: int, template: int, flags: int, offset: int, sequence: int, timestamp: int) -> None:
    """Makes the header of a data packet from its message's, and seals it (RFC 1071)."""
    first = (big64(template) & WITHOUT_FLAGS & WITHOUT_CHECK) | (flags << FLAGS_SHIFT)
    cookie = big64(template + 8)
    message = big64(template + 16)
    span = (big64(template + 24) & ~MASK32) | offset
    shape = big64(template + 40)
    numbers = (sequence << 32) | timestamp
    put_big64(at, first | (check_of(first, cookie, message, span, numbers, shape) << CHECK_SHIFT))
    put_big64(at + 8, cookie)
    put_big64(at + 16, message)
    put_big64(at + 24, span)
    put_big64(at + 32, numbers)
    put_big64(at + 40, shape)


def close(m: Words) -> None:
    """Describes the control messages of the last message, which does not grow any more."""
    last = ld(m, D_COUNT) - 1
    st(m, D_OPEN, 0)
    st(m, D_STOPS + last, ld(m, D_ROWS))
    message = ld(m, D_MESSAGES) + last * MESSAGE_BYTES
    inside = ld(m, D_IN_MESSAGE)
    put_here64(message + VECTORS_AT, 2 * inside)
    cell = ld(m, D_CONTROL) + last * 2 * CELL_BYTES
    if ld(m, D_TOS_SPACE):
        put_here64(cell + VALUE_AT, ld(m, D_TOS) << INT_SHIFT)
        cell += CELL_BYTES
    length = ld(m, D_TOS_SPACE)
    if inside > 1:
        put_here64(cell + VALUE_AT, ld(m, D_SIZE) << SHORT_SHIFT)
        length += CELL_BYTES
    put_here64(message + CONTROL_LENGTH_AT, length)


def add(m: Words, size: int) -> None:
    """Puts the next datagram, of ``size`` bytes, into the last message, or begins another one."""
    row = ld(m, D_ROWS)
    if ld(m, D_OPEN):
        inside = ld(m, D_IN_MESSAGE) + 1
        first = ld(m, D_SIZE)
        if size <= first and inside <= ld(m, D_SEGMENTS) and inside * first <= ld(m, D_MESSAGE_BYTES):
            st(m, D_IN_MESSAGE, inside)
            st(m, D_ROWS, row + 1)
            if size < first:
                close(m)
            return
        close(m)
    message = ld(m, D_MESSAGES) + ld(m, D_COUNT) * MESSAGE_BYTES
    put_here64(message + NAME_AT, ld(m, D_LOCATION))
    put_here64(message + VECTOR_AT, ld(m, D_VECTORS) + row * 2 * VECTOR_BYTES)
    st(m, D_COUNT, ld(m, D_COUNT) + 1)
    st(m, D_OPEN, 1)
    st(m, D_SIZE, size)
    st(m, D_IN_MESSAGE, 1)
    st(m, D_ROWS, row + 1)


def datagram(m: Words, b: Words, at: int, row: int) -> int:
    """Describes datagram ``row`` of the burst at ``at``; returns 0, or 1 if it reaches beyond its payload."""
    rows = ld(m, D_ROWS)
    header = ld(b, at + B_HEADERS)
    width = ld(b, at + B_WIDTH)
    length = ld(b, at + B_LENGTH)
    offset = here64(ld(b, at + B_OFFSETS) + 8 * row)
    if ld(b, at + B_DATA):
        stride = ld(b, at + B_STRIDE)
        if offset < 0 or offset > length:
            return 1
        offset = offset * stride
        size = length - offset
        if size > stride:
            size = stride
        if size < 0:
            return 1
        copy = ld(m, D_COPIES) + rows * H_BYTES
        sequence = (ld(b, at + B_SEQUENCE) + row) & MASK32
        make_header(copy, header, ld(b, at + B_FLAGS), offset, sequence, ld(b, at + B_TIMESTAMP))
        header = copy
    else:
        size = here64(ld(b, at + B_SIZES) + 8 * row)
        # Not their sum: it may have more than 64 bits.
        if offset < 0 or size < 0 or offset > length or size > length - offset:
            return 1
        header += row * width
    vector = ld(m, D_VECTORS) + rows * 2 * VECTOR_BYTES
    put_here64(vector, header)
    put_here64(vector + 8, width)
    put_here64(vector + 16, ld(b, at + B_PAYLOAD) + offset)
    put_here64(vector + 24, size)
    add(m, width + size)
    if length == 0:
        # Control packets go alone: a receiver would have to take a whole batch apart for a few of them that came as one.
        close(m)
    return 0


def describe(m: Words, b: Words, number: int) -> int:
    """Describes as many datagrams of ``number`` bursts as fit, from where the head says; returns 0, or 1 if one is impossible."""
    st(m, D_ROWS, 0)
    st(m, D_COUNT, 0)
    st(m, D_OPEN, 0)
    while ld(m, D_BURST) < number:
        at = ld(m, D_BURST) * B_WORDS
        location = ld(b, at + B_LOCATION)
        tos = ld(b, at + B_TOS)
        row = ld(m, D_ROW)
        count = ld(b, at + B_COUNT)
        if row < count:
            if ld(m, D_ROWS) == 0 or location != ld(m, D_LOCATION) or tos != ld(m, D_TOS):
                if ld(m, D_ROWS) and tos != ld(m, D_TOS) and ld(m, D_TOS_SPACE) == 0:
                    break
                if ld(m, D_OPEN):
                    close(m)
                st(m, D_LOCATION, location)
                st(m, D_TOS, tos)
            while row < count and ld(m, D_ROWS) < PACKETS:
                if datagram(m, b, at, row):
                    return 1
                row += 1
            st(m, D_ROW, row)
            if row < count:
                break
        st(m, D_ROW, 0)
        st(m, D_BURST, ld(m, D_BURST) + 1)
        if ld(m, D_ROWS) == PACKETS:
            break
    if ld(m, D_OPEN):
        close(m)
    return 0
