"""Transports with a window and an acknowledgement for every packet: TCP Reno and CUBIC, DCTCP; and datagrams without either.

Acknowledgements name the packet they are for, as SACK does. A packet counts as lost once one that is ``F_DUPS`` further on has
been acknowledged, or at a timeout; what is lost is sent again before anything new. Windows are in 1/1024 packets, DCTCP's
alpha in 1/65536: whole numbers, so that Python and machine agree.

A flow whose packets have all arrived is complete; that is when its receiver has it, not when its sender knows.
"""

from __future__ import annotations

from sim.engine.agenda import arm
from sim.engine.layout import (
    ACK,
    AGAIN,
    CE,
    CLASS_MASK,
    CUBIC,
    CUT,
    DATA,
    DCTCP,
    ECT,
    F_ACKED,
    F_ACKS,
    F_ALPHA,
    F_BACKOFF,
    F_CUM,
    F_DUPS,
    F_ENDED,
    F_EPOCH,
    F_FLAGS,
    F_FLIGHT,
    F_FROM,
    F_FULL,
    F_GAIN,
    F_GAPS,
    F_GOT,
    F_GREATEST,
    F_HIGH,
    F_HOLES,
    F_KIND,
    F_MARKED,
    F_MARKS,
    F_MISSING,
    F_ORIGIN,
    F_PACKETS,
    F_RECOVER,
    F_RESENT,
    F_RETRY,
    F_ROUND,
    F_RTO,
    F_RTTVAR,
    F_SCAN,
    F_SENT,
    F_SRTT,
    F_TAIL,
    F_THRESHOLD,
    F_TIMER,
    F_TO,
    F_TOP,
    F_WINDOW,
    H_CONTROL_BYTES,
    KEPT,
    KIND_SHIFT,
    NDP,
    P_FLAGS,
    P_FLOW,
    P_SENT,
    P_SEQ,
    P_TO,
    PFABRIC,
    SIZE_SHIFT,
    WARMUP,
)
from sim.engine.ports import give_packet, take_packet
from sim.engine.words import Words, clear, has, ld, lowest, put, st

ONE = 1024
"""A packet, in units of windows."""
ALPHA_ONE = 65536
LEAST_WINDOW = 2 * ONE


def make_data(m: Words, flow: int, index: int, flags: int, now: int) -> int:
    """Returns packet ``index`` of a flow."""
    packet = take_packet(m)
    size = ld(m, flow + F_TAIL) if index == ld(m, flow + F_PACKETS) - 1 else ld(m, flow + F_FULL)
    st(m, packet + P_FLOW, flow)
    st(m, packet + P_SEQ, index)
    st(m, packet + P_FLAGS, flags | (DATA << KIND_SHIFT) | (size << SIZE_SHIFT))
    st(m, packet + P_SENT, now)
    st(m, packet + P_TO, ld(m, flow + F_TO))
    return packet


def take_raw(m: Words, flow: int, now: int) -> int:
    """Returns the next datagram, or 0 after the last."""
    index = ld(m, flow + F_SENT)
    if index >= ld(m, flow + F_PACKETS):
        return 0
    st(m, flow + F_SENT, index + 1)
    return make_data(m, flow, index, ld(m, flow + F_FLAGS), now)


def take_window(m: Words, flow: int, now: int) -> int:
    """Returns the next packet, one that is lost before any new one, or 0 if the window is full or nothing is left."""
    flight = ld(m, flow + F_FLIGHT)
    if (flight + 1) * ONE > ld(m, flow + F_WINDOW):
        return 0
    choice = choose(m, flow)
    if choice < 0:
        return 0
    st(m, flow + F_FLIGHT, flight + 1)
    if flight == 0:
        arm(m, flow + F_TIMER, now + retry_time(m, flow))
    return make_data(m, flow, choice >> 1, ld(m, flow + F_FLAGS) | (AGAIN if choice & 1 else 0), now)


def choose(m: Words, flow: int) -> int:
    """Takes the next packet, one to be sent again before any new one; returns twice its number, one more if again, or -1."""
    if ld(m, flow + F_GAPS):
        index = next_hole(m, flow)
        clear(m, ld(m, flow + F_HOLES), index)
        st(m, flow + F_GAPS, ld(m, flow + F_GAPS) - 1)
        st(m, flow + F_RESENT, ld(m, flow + F_RESENT) + 1)
        return 2 * index + 1
    index = ld(m, flow + F_SENT)
    if index >= ld(m, flow + F_PACKETS):
        return -1
    st(m, flow + F_SENT, index + 1)
    return 2 * index


def next_hole(m: Words, flow: int) -> int:
    """Returns the lowest packet that counts as lost; there has to be one at or after ``F_RETRY``."""
    holes = ld(m, flow + F_HOLES)
    word = ld(m, flow + F_RETRY) >> 5
    while ld(m, holes + word) == 0:
        word += 1
    st(m, flow + F_RETRY, word << 5)
    return (word << 5) + lowest(ld(m, holes + word))


def retry_time(m: Words, flow: int) -> int:
    """Returns the retransmission timeout (RFC 6298), doubled for each in a row; of pFabric it stays."""
    if ld(m, flow + F_KIND) == PFABRIC:
        return ld(m, flow + F_RTO)
    base = ld(m, flow + F_SRTT) + 4 * ld(m, flow + F_RTTVAR)
    least = ld(m, flow + F_RTO)
    backoff = ld(m, flow + F_BACKOFF)
    return (base if base > least else least) << (backoff if backoff < 8 else 8)


def on_data(m: Words, flow: int, packet: int) -> int:
    """Takes a packet in at the receiver, unless it was trimmed; returns 1 if it was the last one missing."""
    if ld(m, packet + P_FLAGS) & CUT:
        return 0
    index = ld(m, packet + P_SEQ)
    done = 0
    got = ld(m, flow + F_GOT)
    if has(m, got, index) == 0:
        put(m, got, index)
        missing = ld(m, flow + F_MISSING) - 1
        st(m, flow + F_MISSING, missing)
        done = 1 if missing == 0 else 0
    return done


def to_ack(m: Words, flow: int, packet: int) -> None:
    """Makes a packet that has arrived its acknowledgement, which echoes its mark and the time it was sent."""
    flags = ld(m, packet + P_FLAGS)
    if flags & CE:
        st(m, flow + F_MARKS, ld(m, flow + F_MARKS) + 1)
    flags = (ld(m, flow + F_FLAGS) & ~ECT) | (flags & (CE | CUT)) | KEPT | (ACK << KIND_SHIFT)
    kind = ld(m, flow + F_KIND)
    if kind == NDP or kind == PFABRIC:
        flags |= CLASS_MASK
    st(m, packet + P_FLAGS, flags | (ld(m, H_CONTROL_BYTES) << SIZE_SHIFT))
    st(m, packet + P_TO, ld(m, flow + F_FROM))


def on_ack(m: Words, flow: int, packet: int, now: int) -> None:
    """Takes an acknowledgement in at the sender."""
    index = ld(m, packet + P_SEQ)
    marked = ld(m, packet + P_FLAGS) & CE
    sample(m, flow, now - ld(m, packet + P_SENT))
    give_packet(m, packet)
    acks = ld(m, flow + F_ACKS)
    if ld(m, flow + F_ENDED) or has(m, acks, index):
        return
    put(m, acks, index)
    if ld(m, flow + F_GAPS) and has(m, ld(m, flow + F_HOLES), index):
        # It was late, not lost.
        clear(m, ld(m, flow + F_HOLES), index)
        st(m, flow + F_GAPS, ld(m, flow + F_GAPS) - 1)
    else:
        st(m, flow + F_FLIGHT, ld(m, flow + F_FLIGHT) - 1)
    st(m, flow + F_BACKOFF, 0)
    sent = ld(m, flow + F_SENT)
    cum = ld(m, flow + F_CUM)
    while cum < sent and has(m, acks, cum):
        cum += 1
    st(m, flow + F_CUM, cum)
    if index > ld(m, flow + F_HIGH):
        st(m, flow + F_HIGH, index)
    if cum == ld(m, flow + F_PACKETS):
        st(m, flow + F_ENDED, 1)
        arm(m, flow + F_TIMER, 0)
        return
    grow(m, flow, index, marked, now)
    find_losses(m, flow, now)
    arm(m, flow + F_TIMER, now + retry_time(m, flow))


def sample(m: Words, flow: int, rtt: int) -> None:
    """Takes a round-trip time (RFC 6298)."""
    smoothed = ld(m, flow + F_SRTT)
    if smoothed == 0:
        st(m, flow + F_SRTT, rtt)
        st(m, flow + F_RTTVAR, rtt >> 1)
    else:
        off = rtt - smoothed
        st(m, flow + F_SRTT, smoothed + (off >> 3))
        variation = ld(m, flow + F_RTTVAR)
        st(m, flow + F_RTTVAR, variation + (((off if off > 0 else -off) - variation) >> 2))


def grow(m: Words, flow: int, index: int, marked: int, now: int) -> None:
    """Reacts to an acknowledgement: once a round to marks, else by growing."""
    window = ld(m, flow + F_WINDOW)
    kind = ld(m, flow + F_KIND)
    acked = ld(m, flow + F_ACKED) + 1
    marks = ld(m, flow + F_MARKED) + (1 if marked else 0)
    st(m, flow + F_ACKED, acked)
    st(m, flow + F_MARKED, marks)
    if marked and index >= ld(m, flow + F_RECOVER):
        st(m, flow + F_RECOVER, ld(m, flow + F_SENT))
        if kind == DCTCP or kind == WARMUP:
            # RFC 8257, section 3.3; alpha starts at 1, so the first mark halves the window.
            window -= (window * ld(m, flow + F_ALPHA)) >> 17
            window = window if window > LEAST_WINDOW else LEAST_WINDOW
            st(m, flow + F_THRESHOLD, window)
        else:
            window = reduced(m, flow, window, now)
    elif index >= ld(m, flow + F_RECOVER) or kind == DCTCP or kind == WARMUP:
        window += growth(m, flow, window, now)
        most = ld(m, flow + F_GREATEST)
        window = window if window < most else most
    st(m, flow + F_WINDOW, window)
    if index >= ld(m, flow + F_ROUND):
        st(m, flow + F_ROUND, ld(m, flow + F_SENT))
        alpha = ld(m, flow + F_ALPHA)
        alpha += ((marks * ALPHA_ONE // acked - alpha) * ld(m, flow + F_GAIN)) >> 16
        st(m, flow + F_ALPHA, alpha)
        st(m, flow + F_ACKED, 0)
        st(m, flow + F_MARKED, 0)


def growth(m: Words, flow: int, window: int, now: int) -> int:
    """Returns what an acknowledgement adds to the window."""
    if window < ld(m, flow + F_THRESHOLD):
        return ONE
    reno = ONE * ONE // window
    if ld(m, flow + F_KIND) != CUBIC:
        return reno
    # RFC 9438: W(t) = C (t - K)^3 + W_max with C = 0.4; t in ms, windows in 1/1024 packets.
    if ld(m, flow + F_EPOCH) == 0:
        st(m, flow + F_EPOCH, now)
        top = ld(m, flow + F_TOP)
        if top < window:
            top = window
            st(m, flow + F_TOP, top)
        st(m, flow + F_ORIGIN, cube_root((top - window) * 10 // 4 * 1000000000 // ONE))
    off = (now - ld(m, flow + F_EPOCH) + ld(m, flow + F_SRTT)) // 1000000000 - ld(m, flow + F_ORIGIN)
    off = off if off < 100000 else 100000
    target = ld(m, flow + F_TOP) + off * off * off * 4 // 10 * ONE // 1000000000
    most = window + (window >> 1)
    target = target if target < most else most
    cubic = (target - window) * ONE // window if target > window else 0
    return cubic if cubic > reno else reno


def cube_root(value: int) -> int:
    """Returns the whole part of the cube root of a number from 0 to 10^15."""
    root = 0
    bit = 1 << 16
    while bit:
        trial = root + bit
        if trial * trial * trial <= value:
            root = trial
        bit >>= 1
    return root


def reduced(m: Words, flow: int, window: int, now: int) -> int:
    """Returns the window after a sign of congestion, and notes the threshold."""
    st(m, flow + F_EPOCH, 0)
    if ld(m, flow + F_KIND) == CUBIC:
        st(m, flow + F_TOP, window)
        window = window * 7 // 10
    else:
        window >>= 1
    window = window if window > LEAST_WINDOW else LEAST_WINDOW
    st(m, flow + F_THRESHOLD, window)
    return window


def find_losses(m: Words, flow: int, now: int) -> None:
    """Counts as lost what was passed over: each packet once, so a second loss is for the timer to find."""
    upto = ld(m, flow + F_HIGH) - ld(m, flow + F_DUPS)
    scan = ld(m, flow + F_SCAN)
    cum = ld(m, flow + F_CUM)
    scan = scan if scan > cum else cum
    if upto < scan:
        return
    found = mark_lost(m, flow, scan, upto + 1)
    st(m, flow + F_SCAN, upto + 1)
    if found and upto >= ld(m, flow + F_RECOVER):
        st(m, flow + F_RECOVER, ld(m, flow + F_SENT))
        st(m, flow + F_WINDOW, reduced(m, flow, ld(m, flow + F_WINDOW), now))


def mark_lost(m: Words, flow: int, begin: int, end: int) -> int:
    """Counts packets of a range as lost that are in flight; returns how many."""
    acks = ld(m, flow + F_ACKS)
    holes = ld(m, flow + F_HOLES)
    found = 0
    index = begin
    while index < end:
        if has(m, acks, index) == 0 and has(m, holes, index) == 0:
            put(m, holes, index)
            found += 1
        index += 1
    if found:
        st(m, flow + F_GAPS, ld(m, flow + F_GAPS) + found)
        st(m, flow + F_FLIGHT, ld(m, flow + F_FLIGHT) - found)
        if begin < ld(m, flow + F_RETRY):
            st(m, flow + F_RETRY, begin)
    return found


def on_timeout(m: Words, flow: int, now: int) -> None:
    """Nothing was acknowledged for too long: all that is out counts as lost, and the window starts again."""
    sent = ld(m, flow + F_SENT)
    reduced(m, flow, ld(m, flow + F_WINDOW), now)
    mark_lost(m, flow, ld(m, flow + F_CUM), sent)
    st(m, flow + F_SCAN, sent)
    # Slow start: what is sent again makes the window grow.
    st(m, flow + F_RECOVER, ld(m, flow + F_CUM))
    st(m, flow + F_WINDOW, ONE)
    st(m, flow + F_BACKOFF, ld(m, flow + F_BACKOFF) + 1)
